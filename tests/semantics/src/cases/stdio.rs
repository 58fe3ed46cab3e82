//! libc's buffered streams on connections.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, Stream};
use std::ffi::CStr;

pub const GROUP: Group = Group {
    name: "stdio",
    cases: &[
        Case::new("lines", FAMILY, lines),
        Case::new("numbers_and_flush", FAMILY, numbers_and_flush),
        Case::new("reading_and_writing_one_stream", FAMILY, reading_and_writing_one_stream),
        Case::new("two_streams_over_duplicates", FAMILY, two_streams_over_duplicates),
        Case::new("close_by_stream", FAMILY, close_by_stream),
        Case::new("modes", ONCE, modes),
        Case::new("end_and_error", FAMILY, end_and_error),
        Case::new("nothing_there", FAMILY | MODE, nothing_there),
        Case::new("unbuffered", ONCE, |v| buffered(v, libc::_IONBF)),
        Case::new("line_buffered", ONCE, |v| buffered(v, libc::_IOLBF)),
        Case::new("fully_buffered", ONCE, |v| buffered(v, libc::_IOFBF)),
        Case::new("how_much_is_read_ahead", ONCE, how_much_is_read_ahead),
        Case::new("no_seeking", ONCE, no_seeking),
        Case::new("unread_a_byte", ONCE, unread_a_byte),
        Case::new("to_a_peer_that_left", FAMILY, to_a_peer_that_left),
        Case::new("descriptor_printing", FAMILY | MODE, descriptor_printing),
        Case::new("large_both_ways", FAMILY, large_both_ways),
        Case::new("before_connect", FAMILY, before_connect).on_any_path(),
        Case::new("interrupted", ONCE, interrupted),
        Case::new("unflushed_over_fork", ONCE, unflushed_over_fork),
        Case::new("unflushed_when_a_child_exits", FAMILY, unflushed_when_a_child_exits),
    ],
};

fn open(fd: Fd, mode: &CStr) -> Option<Stream> {
    let (stream, ret) = Stream::open(fd.raw, mode);
    let number = stream.map(|stream| stream.fileno() == fd.raw);
    trace!("fdopen({}, {mode:?}) = {ret} its number {number:?}", fd.name);
    stream
}

fn streams(client: Fd, server: Fd) -> (Stream, Stream) {
    match (open(client, c"w"), open(server, c"r")) {
        (Some(out), Some(into)) => (out, into),
        _ => panic!("fdopen"),
    }
}

fn marks(stream: Stream) {
    trace!("end, error {:?}", stream.marks());
}

fn lines(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = streams(client, server);
    trace!("write {}", out.write(b"first line\nsecond\n\nno end"));
    trace!("close {}", out.close());
    trace!("{:?}", into.line(6));
    trace!("{:?}", into.line(60));
    trace!("{:?}", into.whole_line());
    trace!("{:?}", into.whole_line());
    trace!("{:?}", into.line(60));
    marks(into);
    trace!("{:?}", into.line(60));
    marks(into);
    trace!("close {}", into.close());
}

fn numbers_and_flush(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = streams(client, server);
    trace!("print {}", out.print(42, c"words"));
    fionread(server);
    trace!("flush {}", out.flush());
    await_queued(server, 12);
    trace!("{:?}", into.line(60));
    trace!("flush {}", out.flush());
    trace!("flush {}", into.flush());
}

fn reading_and_writing_one_stream(v: Variant) {
    let (client, server) = v.pair();
    let Some(both) = open(server, c"r+") else { return };
    send(client, b"question\n", 0);
    trace!("{:?}", both.line(60));
    trace!("print {}", both.print(7, c"answer"));
    trace!("flush {}", both.flush());
    await_queued(client, 13);
    recv(client, 60, 0);
    send(client, b"another\n", 0);
    trace!("{:?}", both.line(60));
    trace!("close {}", both.close());
    await_hangup(client);
    recv(client, 60, 0);
}

fn two_streams_over_duplicates(v: Variant) {
    let (client, server) = v.pair();
    let copy = dup(server, "copy");
    let (Some(into), Some(out)) = (open(server, c"r"), open(copy, c"w")) else { return };
    send(client, b"one\ntwo\n", 0);
    trace!("{:?}", into.line(60));
    trace!("print {}", out.print(1, c"back"));
    trace!("close {}", out.close());
    await_queued(client, 11);
    recv(client, 60, 0);
    poll_now(client);
    trace!("{:?}", into.line(60));
    trace!("close {}", into.close());
    await_hangup(client);
    recv(client, 60, 0);
}

fn close_by_stream(v: Variant) {
    let (client, server) = v.pair();
    let Some(stream) = open(server, c"r+") else { return };
    trace!("write {}", stream.write(b"unflushed"));
    trace!("close {}", stream.close());
    trace!("close {}", sys::close(server.raw));
    await_hangup(client);
    recv(client, 60, 0);
    recv(client, 60, 0);
}

fn modes(v: Variant) {
    let (client, server) = v.pair();
    open(client, c"x");
    open(client, c"");
    open(crate::child::bad_fd(), c"r");
    if let Some(stream) = open(client, c"r") {
        trace!("write {}", stream.write(b"abc"));
        trace!("flush {}", stream.flush());
        marks(stream);
    }
    if let Some(stream) = open(server, c"w") {
        trace!("read {}", stream.read(&mut [0; 4]));
        marks(stream);
    }
    open(server, c"a");
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    open(server, c"wb");
    open(server, c"r+e");
}

fn end_and_error(v: Variant) {
    let (client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    send(client, b"abc", 0);
    shutdown(client, libc::SHUT_WR);
    let mut buffer = [0; 16];
    trace!("read {}", into.read(&mut buffer));
    marks(into);
    into.clear();
    trace!("read {}", into.read(&mut buffer));
    marks(into);
    let (client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    set_linger(client, 1, 0);
    close(client);
    await_hangup(server);
    trace!("read {}", into.read(&mut buffer));
    marks(into);
}

fn nothing_there(v: Variant) {
    let (client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    let mut buffer = [0; 4];
    if v.nonblocking {
        trace!("read {}", into.read(&mut buffer));
        marks(into);
        into.clear();
    }
    send(client, b"abcdef", 0);
    await_queued(server, 6);
    trace!("read {}", into.read(&mut buffer));
    trace!("{:?}", String::from_utf8_lossy(&buffer));
    marks(into);
}

fn buffered(v: Variant, mode: i32) {
    let (client, server) = v.pair();
    let (out, into) = streams(client, server);
    trace!("setvbuf {} {}", out.buffer(mode), into.buffer(mode));
    trace!("write {}", out.write(b"part"));
    fionread(server);
    trace!("write {}", out.write(b" line\nrest"));
    fionread(server);
    trace!("flush {}", out.flush());
    await_queued(server, 14);
    trace!("{:?}", into.line(60));
    fionread(server);
}

fn how_much_is_read_ahead(v: Variant) {
    let (client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    send(client, &[b'x'; 20_000], 0);
    await_queued(server, 20_000);
    let mut buffer = [0; 10];
    trace!("read {}", into.read(&mut buffer));
    fionread(server);
    let mut buffer = [0; 5000];
    trace!("read {}", into.read(&mut buffer));
    fionread(server);
    set_option(client, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    let Some(out) = open(client, c"w") else { return };
    for _ in 0..5 {
        trace!("write {}", out.write(&[b'y'; 1500]));
        fionread(server);
    }
    trace!("write {}", out.write(&[b'y'; 15_000]));
    fionread(server);
}

fn no_seeking(v: Variant) {
    let (client, _server) = v.pair();
    let Some(out) = open(client, c"r+") else { return };
    trace!("seek {}", out.seek(0));
    trace!("lseek {}", sys::lseek(client.raw, 0, libc::SEEK_SET));
}

fn unread_a_byte(v: Variant) {
    let (client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    send(client, b"bcd", 0);
    await_queued(server, 3);
    trace!("unread {}", into.unread(b'a'));
    let mut buffer = [0; 4];
    trace!("read {} {:?}", into.read(&mut buffer), String::from_utf8_lossy(&buffer));
}

fn to_a_peer_that_left(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    let Some(out) = open(client, c"w") else { return };
    close(server);
    await_hangup(client);
    trace!("write {}", out.write(b"first"));
    trace!("flush {}", out.flush());
    poll(&[(client, 0)], 10_000);
    trace!("write {}", out.write(b"second"));
    trace!("flush {}", out.flush());
    marks(out);
    trace!("write {}", out.write(b"third"));
    trace!("flush {}", out.flush());
    trace!("close {}", out.close());
}

fn descriptor_printing(v: Variant) {
    let (client, server) = v.pair();
    trace!("dprintf {}", sys::print_to(client.raw, 3, c"words"));
    await_queued(server, 12);
    recv(server, 60, 0);
    shutdown(client, libc::SHUT_WR);
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    trace!("dprintf {}", sys::print_to(client.raw, 3, c"words"));
    trace!("dprintf {}", sys::print_to(crate::child::bad_fd().raw, 3, c"words"));
}

fn large_both_ways(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = streams(client, server);
    let sender = std::thread::spawn(move || {
        let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut right = true;
        for piece in data.chunks(7777) {
            right &= out.write(piece).size() == piece.len();
        }
        right && out.close().is_ok()
    });
    let mut all = Vec::new();
    let mut buffer = vec![0; 33_333];
    loop {
        let got = into.read(&mut buffer).size();
        if got == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..got]);
    }
    trace!("sent {:?}", sender.join().unwrap_or(false));
    trace!("{}", shown(&all));
    marks(into);
}

fn before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let Some(out) = open(client, c"w") else { return };
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    trace!("print {}", out.print(1, c"early"));
    trace!("flush {}", out.flush());
    await_queued(server, 12);
    recv(server, 60, 0);
}

fn interrupted(v: Variant) {
    let (_client, server) = v.pair();
    let Some(into) = open(server, c"r") else { return };
    sys::sigaction(libc::SIGALRM, super::ignore_signal, 0);
    sys::alarm_ms(60, 0);
    trace!("read {}", into.read(&mut [0; 4]));
    marks(into);
}

fn unflushed_over_fork(v: Variant) {
    let (client, server) = v.pair();
    let Some(out) = open(client, c"w") else { return };
    trace!("write {}", out.write(b"parent's "));
    let child = sys::fork(|| {
        trace::set_actor("child");
        trace!("write {}", out.write(b"child's"));
        trace!("flush {}", out.flush());
        0
    });
    trace!("{}", sys::wait_for(child));
    trace!("flush {}", out.flush());
    await_queued(server, 25);
    recv(server, 60, 0);
}

/// A server that forks for each client, whose children write to a stream, and exit without closing it.
fn unflushed_when_a_child_exits(v: Variant) {
    let (client, server) = v.pair();
    let child = sys::fork(|| {
        sys::close(client.raw);
        trace::set_actor("child");
        if let Some(out) = open(server, c"w") {
            trace!("write {}", out.write(b"what is in the buffer"));
        }
        // SAFETY: no other thread runs here.
        unsafe { libc::exit(3) }
    });
    close(server);
    recv(client, 60, 0);
    recv(client, 60, 0);
    trace!("{}", sys::wait_for(child));
}

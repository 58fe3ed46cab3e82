//! sendfile, splice and their kin: bytes that go from descriptor to descriptor.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::rng::Hash;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "moving",
    cases: &[
        Case::new("sendfile", FAMILY | MODE, sendfile_whole),
        Case::new("sendfile_with_offset", FAMILY, sendfile_with_offset),
        Case::new("sendfile_odd_counts", ONCE, sendfile_odd_counts),
        Case::new("sendfile_from_what_has_no_pages", ONCE, sendfile_from_what_has_no_pages),
        Case::new("sendfile_from_a_connection", FAMILY | MODE, sendfile_from_a_connection),
        Case::new("sendfile_bad_arguments", ONCE, sendfile_bad_arguments),
        Case::new("sendfile_when_full", FAMILY, sendfile_when_full),
        Case::new("sendfile_after_peer_left", FAMILY, sendfile_after_peer_left),
        Case::new("sendfile_large", FAMILY | MODE, sendfile_large),
        Case::new("splice_out", FAMILY | MODE, splice_out),
        Case::new("splice_out_waits", FAMILY, splice_out_waits),
        Case::new("splice_out_at_the_end", FAMILY | MODE, splice_out_at_the_end),
        Case::new("splice_out_after_reset", FAMILY, splice_out_after_reset),
        Case::new("splice_out_to_a_full_pipe", FAMILY, splice_out_to_a_full_pipe),
        Case::new("splice_out_to_a_broken_pipe", ONCE, splice_out_to_a_broken_pipe),
        Case::new("splice_out_timeout", ONCE, splice_out_timeout),
        Case::new("splice_in", FAMILY | MODE, splice_in),
        Case::new("splice_in_from_an_empty_pipe", FAMILY | MODE, splice_in_from_an_empty_pipe),
        Case::new("splice_in_waits", FAMILY, splice_in_waits),
        Case::new("splice_in_when_full", FAMILY, splice_in_when_full),
        Case::new("splice_in_after_peer_left", FAMILY, splice_in_after_peer_left),
        Case::new("splice_bad_arguments", ONCE, splice_bad_arguments),
        Case::new("splice_as_a_proxy", FAMILY, splice_as_a_proxy),
        Case::new("splice_interrupted", ONCE, splice_interrupted),
        Case::new("tee_and_others", ONCE, tee_and_others),
        Case::new("by_number", ONCE, by_number),
    ],
};

const BLOCK: u32 = 0;
const NOWAIT: u32 = libc::SPLICE_F_NONBLOCK;

fn a_pipe(flags: i32) -> (Fd, Fd) {
    let (_, ends) = sys::pipe2(flags);
    (Fd::new(ends[0], "pipe out"), Fd::new(ends[1], "pipe in"))
}

fn file(data: &[u8]) -> Fd {
    Fd::new(sys::file_with(data), "file")
}

fn position(fd: Fd) {
    trace!("position of {} = {}", fd.name, sys::lseek(fd.raw, 0, libc::SEEK_CUR));
}

fn sendfile(to: Fd, from: Fd, offset: Option<i64>, count: usize) {
    let mut place = offset.unwrap_or(0);
    let ret = sys::sendfile(to.raw, from.raw, offset.is_some().then_some(&mut place), count);
    trace!("sendfile({}, {}, {offset:?}, {count}) = {ret} offset {place}", to.name, from.name);
}

fn splice(from: Fd, to: Fd, count: usize, flags: u32) -> i64 {
    let ret = sys::splice(from.raw, None, to.raw, None, count, flags);
    trace!("splice({}, {}, {count}, {flags:#x}) = {ret}", from.name, to.name);
    ret.value
}

fn sendfile_whole(v: Variant) {
    let (client, server) = v.pair();
    let file = file(b"the whole file");
    sendfile(client, file, None, 14);
    position(file);
    await_queued(server, 14);
    recv(server, 20, 0);
    sendfile(client, file, None, 14);
    sys::lseek(file.raw, 4, libc::SEEK_SET);
    sendfile(client, file, None, 5);
    position(file);
    await_queued(server, 5);
    recv(server, 20, 0);
}

fn sendfile_with_offset(v: Variant) {
    let (client, server) = v.pair();
    let file = file(b"0123456789");
    sendfile(client, file, Some(3), 4);
    sendfile(client, file, Some(8), 100);
    sendfile(client, file, Some(10), 1);
    sendfile(client, file, Some(1000), 1);
    position(file);
    await_queued(server, 6);
    recv(server, 20, 0);
}

fn sendfile_odd_counts(v: Variant) {
    let (client, server) = v.pair();
    let file = file(b"0123456789");
    sendfile(client, file, None, 0);
    sendfile(client, file, Some(-1), 5);
    sendfile(client, file, Some(i64::MIN), 5);
    sendfile(client, file, Some(2), usize::MAX >> 1);
    sendfile(client, file, Some(2), usize::MAX);
    sendfile(client, file, None, usize::MAX);
    position(file);
    recv(server, 60, libc::MSG_DONTWAIT);
}

fn sendfile_from_what_has_no_pages(v: Variant) {
    let (client, _server) = v.pair();
    let (out, into) = a_pipe(0);
    write(into, b"in the pipe");
    sendfile(client, out, None, 4);
    sendfile(client, out, Some(0), 4);
    let set = epoll_create("set");
    sendfile(client, set, None, 4);
    sendfile(client, set, Some(0), 4);
    let directory = std::fs::File::open("/").map(std::os::fd::IntoRawFd::into_raw_fd).unwrap_or(-1);
    sendfile(client, Fd::new(directory, "directory"), None, 4);
}

fn sendfile_from_a_connection(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let file = file(b"");
    send(client, b"into a file", 0);
    await_queued(server, 11);
    sendfile(file, server, None, 4);
    sendfile(file, server, Some(0), 4);
    sendfile(client, server, None, 4);
    sendfile(into, server, Some(0), 4);
    sendfile(into, server, None, 4);
    read(out, 20);
    recv(server, 20, 0);
}

fn sendfile_bad_arguments(v: Variant) {
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    let (client, server) = v.pair();
    let bad = crate::child::bad_fd();
    let file = file(b"0123456789");
    sendfile(bad, file, None, 4);
    sendfile(client, bad, None, 4);
    sendfile(bad, server, None, 4);
    sendfile(server, bad, None, 0);
    let write_only = std::fs::OpenOptions::new().write(true).open("/dev/null");
    let write_only = Fd::new(write_only.map(std::os::fd::IntoRawFd::into_raw_fd).unwrap_or(-1), "write only");
    sendfile(client, write_only, None, 4);
    sendfile(client, write_only, Some(0), 4);
    let unconnected = v.named_client("unconnected");
    sendfile(unconnected, file, None, 4);
    sendfile(v.listener(), file, None, 4);
}

fn sendfile_when_full(v: Variant) {
    let (client, server) = v.pair();
    let data = vec![b'x'; 100_000];
    let file = file(&data);
    sys::set_nonblocking(client.raw, true);
    let filled = fill_firmly(client, 5);
    sendfile(client, file, None, 100_000);
    position(file);
    drain(server, 5, filled);
    await_writable(client);
    sendfile(client, file, None, 10);
    position(file);
    await_queued(server, 10);
    recv(server, 20, 0);
}

fn sendfile_after_peer_left(v: Variant) {
    let (client, server) = v.pair();
    let file = file(b"0123456789");
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    close(server);
    await_hangup(client);
    sendfile(client, file, None, 4);
    await_reset(client);
    sendfile(client, file, None, 4);
    sendfile(client, file, None, 4);
    let (client, _server) = v.pair();
    shutdown(client, libc::SHUT_WR);
    sendfile(client, file, None, 2);
    position(file);
}

/// Waits until a send to a peer that left has brought the reset.
fn await_reset(fd: Fd) {
    poll(&[(fd, 0)], 10_000);
}

fn sendfile_large(v: Variant) {
    let (client, server) = v.pair();
    let mut data = vec![0; 5 << 20];
    beeline_testkit::rng::fill_stream(77, 0, &mut data);
    let file = file(&data);
    let receiver = std::thread::spawn(move || {
        trace::set_actor("receiver");
        receive_stream(server, 77, 5 << 20, 60_000);
    });
    let mut sent = 0;
    while sent < data.len() {
        let ret = sys::sendfile(client.raw, file.raw, None, 1 << 20);
        match ret.is(libc::EAGAIN) {
            true => drop(await_writable(client)),
            false if ret.value <= 0 => return trace!("sendfile {ret}"),
            false => sent += ret.size(),
        }
    }
    position(file);
    let _ = receiver.join();
}

fn splice_out(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    send(client, b"through a pipe", 0);
    await_queued(server, 14);
    splice(server, into, 7, BLOCK);
    fionread(server);
    read(out, 20);
    splice(server, into, 100, BLOCK);
    read(out, 20);
    splice(server, into, 0, BLOCK);
    poll_now(server);
    if v.nonblocking {
        splice(server, into, 100, BLOCK);
    }
}

fn splice_out_waits(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let sender = once_asleep("sender", move || {
        send(client, b"at last", 0);
    });
    // SPLICE_F_NONBLOCK is about the pipe, not about the socket.
    splice(server, into, 100, NOWAIT);
    read(out, 20);
    let _ = sender.join();
}

fn splice_out_at_the_end(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    send(client, b"last words", 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    splice(server, into, 100, BLOCK);
    splice(server, into, 100, BLOCK);
    splice(server, into, 100, BLOCK);
    read(out, 20);
}

fn splice_out_after_reset(v: Variant) {
    let (client, server) = v.pair();
    let (_out, into) = a_pipe(0);
    send(server, b"never read", 0);
    await_queued(client, 10);
    set_linger(client, 1, 0);
    close(client);
    await_hangup(server);
    splice(server, into, 100, BLOCK);
    splice(server, into, 100, BLOCK);
    let (client, server) = v.pair();
    send(client, b"unread", 0);
    await_queued(server, 6);
    shutdown(server, libc::SHUT_RD);
    splice(server, into, 100, BLOCK);
    splice(server, into, 100, BLOCK);
}

fn splice_out_to_a_full_pipe(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(libc::O_NONBLOCK);
    while sys::write(into.raw, &[b'p'; 4096]).is_ok() {}
    send(client, b"kept", 0);
    await_queued(server, 4);
    splice(server, into, 4, NOWAIT);
    fionread(server);
    while sys::read(out.raw, &mut [0; 4096]).is_ok() {}
    splice(server, into, 4, NOWAIT);
    read(out, 20);
}

fn splice_out_to_a_broken_pipe(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    let (out, into) = a_pipe(0);
    send(client, b"kept", 0);
    await_queued(server, 4);
    close(out);
    splice(server, into, 4, BLOCK);
    recv(server, 20, 0);
}

fn splice_out_timeout(v: Variant) {
    let (_client, server) = v.pair();
    let (_out, into) = a_pipe(0);
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 60);
    splice(server, into, 4, BLOCK);
}

fn splice_in(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    write(into, b"through a pipe");
    splice(out, client, 7, BLOCK);
    splice(out, client, 7, libc::SPLICE_F_MORE | libc::SPLICE_F_MOVE);
    await_queued(server, 14);
    recv(server, 20, 0);
    write(into, b"more than is there");
    splice(out, client, 1000, NOWAIT);
    await_queued(server, 18);
    recv(server, 20, 0);
    splice(out, client, 0, BLOCK);
}

fn splice_in_from_an_empty_pipe(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    splice(out, client, 7, NOWAIT);
    sys::set_nonblocking(out.raw, true);
    splice(out, client, 7, BLOCK);
    sys::set_nonblocking(out.raw, false);
    write(into, b"x");
    close(into);
    splice(out, client, 7, BLOCK);
    splice(out, client, 7, BLOCK);
    await_queued(server, 1);
    recv(server, 20, 0);
}

fn splice_in_waits(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let writer = once_asleep("writer", move || {
        write(into, b"at last");
    });
    splice(out, client, 100, BLOCK);
    await_queued(server, 7);
    recv(server, 20, 0);
    let _ = writer.join();
}

fn splice_in_when_full(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    sys::set_nonblocking(client.raw, true);
    let filled = fill_firmly(client, 6);
    write(into, b"kept");
    splice(out, client, 4, BLOCK);
    fionread(out);
    drain(server, 6, filled);
    await_writable(client);
    splice(out, client, 4, BLOCK);
    await_queued(server, 4);
    recv(server, 20, 0);
}

fn splice_in_after_peer_left(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    write(into, b"abcdefghij");
    close(server);
    await_hangup(client);
    splice(out, client, 2, BLOCK);
    await_reset(client);
    splice(out, client, 2, BLOCK);
    splice(out, client, 2, BLOCK);
    let (client, _server) = v.pair();
    shutdown(client, libc::SHUT_WR);
    splice(out, client, 2, BLOCK);
    fionread(out);
}

fn splice_bad_arguments(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let bad = crate::child::bad_fd();
    let file = file(b"0123456789");
    write(into, b"abc");
    send(client, b"abc", 0);
    await_queued(server, 3);
    splice(server, client, 3, BLOCK);
    splice(server, file, 3, BLOCK);
    splice(file, client, 3, BLOCK);
    splice(server, bad, 3, BLOCK);
    splice(bad, client, 3, BLOCK);
    splice(server, into, 3, 0x100);
    splice(out, client, 3, 0x100);
    splice(server, into, 0, 0x100);
    splice(server, out, 3, BLOCK);
    splice(into, client, 3, BLOCK);
    let mut offset = 0;
    trace!("from offset {}", sys::splice(server.raw, Some(&mut offset), into.raw, None, 3, 0));
    trace!("to offset {}", sys::splice(server.raw, None, into.raw, Some(&mut offset), 3, 0));
    trace!("from offset {}", sys::splice(out.raw, Some(&mut offset), client.raw, None, 3, 0));
    trace!("to offset {}", sys::splice(out.raw, None, client.raw, Some(&mut offset), 3, 0));
    splice(v.named_client("unconnected"), into, 3, BLOCK);
    splice(v.listener(), into, 3, BLOCK);
    recv(server, 20, libc::MSG_DONTWAIT);
}

fn splice_as_a_proxy(v: Variant) {
    let (client, front) = v.pair();
    let (back, server) = v.pair();
    let length = 5 << 20;
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        send_stream(client, 91, length, 70_000);
        shutdown(client, libc::SHUT_WR);
    });
    let receiver = std::thread::spawn(move || {
        trace::set_actor("receiver");
        receive_stream(server, 91, length + 1, 50_000);
    });
    let (out, into) = a_pipe(0);
    let mut moved = 0;
    loop {
        let got = sys::splice(front.raw, None, into.raw, None, 1 << 20, libc::SPLICE_F_MOVE);
        if got.value <= 0 {
            trace!("front ended: {got}");
            break;
        }
        let mut left = got.size();
        while left != 0 {
            let put = sys::splice(out.raw, None, back.raw, None, left, libc::SPLICE_F_MOVE | libc::SPLICE_F_MORE);
            if put.value <= 0 {
                return trace!("back ended: {put}");
            }
            left -= put.size();
        }
        moved += got.value;
    }
    shutdown(back, libc::SHUT_WR);
    trace!("moved {moved}");
    let _ = (sender.join(), receiver.join());
}

fn splice_interrupted(v: Variant) {
    let (_client, server) = v.pair();
    let (_out, into) = a_pipe(0);
    sys::sigaction(libc::SIGALRM, super::ignore_signal, 0);
    sys::alarm_ms(60, 0);
    splice(server, into, 10, BLOCK);
}

fn tee_and_others(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let file = file(b"0123456789");
    send(client, b"abc", 0);
    await_queued(server, 3);
    write(into, b"abc");
    trace!("tee {}", sys::tee(server.raw, into.raw, 3, NOWAIT));
    trace!("tee {}", sys::tee(out.raw, client.raw, 3, NOWAIT));
    trace!("copy_file_range {}", sys::copy_file_range(server.raw, file.raw, 3));
    trace!("copy_file_range {}", sys::copy_file_range(file.raw, client.raw, 3));
    trace!("vmsplice {}", sys::vmsplice(client.raw, b"abc"));
    trace!("vmsplice {}", sys::vmsplice(server.raw, b"abc"));
    recv(server, 20, 0);
}

fn by_number(v: Variant) {
    let (client, server) = v.pair();
    let (out, into) = a_pipe(0);
    let file = file(b"from a file");
    let fd = |fd: Fd| fd.raw as usize;
    // SAFETY: numbers, and null for offsets.
    unsafe {
        let sent = sys::syscall(libc::SYS_sendfile, [fd(client), fd(file), 0, 11, 0, 0]);
        await_queued(server, 11);
        let put = sys::syscall(libc::SYS_splice, [fd(server), 0, fd(into), 0, 100, 0]);
        let taken = sys::syscall(libc::SYS_splice, [fd(out), 0, fd(client), 0, 100, 0]);
        trace!("sendfile {sent} splice {put} splice {taken}");
        let copied = sys::syscall(libc::SYS_copy_file_range, [fd(file), 0, fd(client), 0, 3, 0]);
        let teed = sys::syscall(libc::SYS_tee, [fd(server), fd(into), 3, 0, 0, 0]);
        trace!("copy_file_range {copied} tee {teed}");
    }
    await_queued(server, 11);
    let all = recv(server, 20, 0);
    trace!("{:x}", Hash::of(&all).0);
}

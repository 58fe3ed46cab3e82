//! send, recv, read, write: plain data, boundaries, odd lengths, bad arguments.

use crate::case::axes::{ALL_FAMILIES, FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::child::bad_fd;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::rng::fill_stream;
use beeline_testkit::sys::{self, Pieces};

pub const GROUP: Group = Group {
    name: "data",
    cases: &[
        Case::new("ping_pong", ALL_FAMILIES | MODE, ping_pong),
        Case::new("read_and_write", FAMILY | MODE, read_and_write),
        Case::new("no_message_boundaries", FAMILY | MODE, no_message_boundaries),
        Case::new("short_reads", FAMILY | MODE, short_reads),
        Case::new("sizes", FAMILY | MODE, sizes),
        Case::new("zero_length", FAMILY | MODE, zero_length),
        Case::new("empty_when_nonblocking", FAMILY, empty_when_nonblocking),
        Case::new("null_buffers", ONCE, null_buffers),
        Case::new("unmapped_buffers", ONCE, unmapped_buffers),
        Case::new("forbidden_page", ONCE, forbidden_page),
        Case::new("buffer_ends_in_nothing", ONCE, buffer_ends_in_nothing).deviates(
            "a buffer that begins well and ends in a page without access raises SIGSEGV: the copy is our own",
        ),
        Case::new("bad_descriptors", ONCE, bad_descriptors),
        Case::new("wrong_kinds_of_descriptor", ONCE, wrong_kinds_of_descriptor),
        Case::new("recvfrom_and_sendto", FAMILY | MODE, recvfrom_and_sendto),
        Case::new("both_directions_at_once", FAMILY | MODE, both_directions_at_once),
        Case::new("huge_lengths", ONCE, huge_lengths),
        Case::new("much_to_a_closed_peer", FAMILY | MODE, much_to_a_closed_peer),
        Case::new("many_small_sends_one_recv", FAMILY | MODE, many_small_sends_one_recv),
        Case::new("seek_and_stat", ONCE, seek_and_stat),
        Case::new("other_descriptors_are_left_alone", ONCE, other_descriptors_are_left_alone),
    ],
};

fn ping_pong(v: Variant) {
    let (client, server) = v.pair();
    for round in 0..10_u8 {
        send(client, &[b'a' + round; 8], 0);
        await_queued(server, 8);
        recv(server, 8, 0);
        send(server, &[b'A' + round; 8], 0);
        await_queued(client, 8);
        recv(client, 8, 0);
    }
}

fn read_and_write(v: Variant) {
    let (client, server) = v.pair();
    write(client, b"by write");
    await_queued(server, 8);
    read(server, 100);
    write(server, b"back");
    await_queued(client, 4);
    read(client, 2);
    read(client, 2);
    close(server);
    await_hangup(client);
    read(client, 10);
    read(client, 10);
}

fn no_message_boundaries(v: Variant) {
    let (client, server) = v.pair();
    for word in ["one ", "two ", "three"] {
        send(client, word.as_bytes(), 0);
    }
    await_queued(server, 13);
    recv(server, 6, 0);
    recv(server, 100, 0);
}

fn short_reads(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    for length in [1, 2, 3, 0, 4, 1] {
        if length <= queued(server) as usize || v.nonblocking {
            recv(server, length, 0);
        }
    }
    fionread(server);
}

fn sizes(v: Variant) {
    let (client, server) = v.pair();
    for length in [1_usize, 7, 8, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 16_000, 30_000] {
        let mut data = vec![0; length];
        fill_stream(length as u64, 0, &mut data);
        send(client, &data, 0);
        await_queued(server, length as i32);
        recv(server, length + 10, 0);
    }
}

fn zero_length(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"", 0);
    write(client, b"");
    poll_now(server);
    recv(server, 0, libc::MSG_DONTWAIT);
    read(server, 0);
    send(client, b"data", 0);
    await_queued(server, 4);
    recv(server, 0, 0);
    read(server, 0);
    fionread(server);
    recv(server, 10, 0);
    close(client);
    await_hangup(server);
    recv(server, 0, 0);
    read(server, 0);
    recv(server, 1, 0);
}

fn empty_when_nonblocking(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    recv(server, 1, 0);
    read(client, 1);
    recv(client, 1, libc::MSG_PEEK);
    recv(client, 1, libc::MSG_WAITALL);
    recvmsg(client, &[4, 4], 0);
    readv(client, &[4, 4]);
    send(client, b"x", 0);
    await_readable(server);
    read(server, 1);
    read(server, 1);
}

fn null_buffers(v: Variant) {
    let (client, server) = v.pair();
    trace!("send null: {}", sys::send_at(client.raw, 0, 5, libc::MSG_NOSIGNAL));
    trace!("write null: {}", sys::write_at(client.raw, 0, 5));
    trace!("send null zero: {}", sys::send_at(client.raw, 0, 0, 0));
    trace!("recv null, nothing there: {}", sys::recv_at(server.raw, 0, 5, libc::MSG_DONTWAIT));
    send(client, b"hello", 0);
    await_queued(server, 5);
    trace!("recv null: {}", sys::recv_at(server.raw, 0, 5, 0));
    trace!("read null: {}", sys::read_at(server.raw, 0, 5));
    trace!("recv null zero: {}", sys::recv_at(server.raw, 0, 0, 0));
    trace!("readv null: {}", sys::readv_at(server.raw, 0, 1));
    trace!("writev null: {}", sys::writev_at(server.raw, 0, 1));
    recv(server, 16, 0);
}

fn unmapped_buffers(v: Variant) {
    let (client, server) = v.pair();
    let nowhere = 0x10;
    trace!("send: {}", sys::send_at(client.raw, nowhere, 5, libc::MSG_NOSIGNAL));
    trace!("write: {}", sys::write_at(client.raw, nowhere, 5));
    send(client, b"hello", 0);
    await_queued(server, 5);
    trace!("recv: {}", sys::recv_at(server.raw, nowhere, 5, 0));
    trace!("read: {}", sys::read_at(server.raw, nowhere, 5));
    trace!("peek: {}", sys::recv_at(server.raw, nowhere, 5, libc::MSG_PEEK));
    recv(server, 16, 0);
    send(client, b"after", 0);
    await_queued(server, 5);
    recv(server, 16, 0);
}

/// A page that must not be touched, as test suites and guarding allocators have them.
fn forbidden_page(v: Variant) {
    let (client, server) = v.pair();
    let page = page_edge();
    send(server, b"back", 0);
    await_queued(client, 4);
    trace!("send: {}", sys::send_at(client.raw, page, 5, libc::MSG_NOSIGNAL));
    trace!("write: {}", sys::write_at(client.raw, page, 5));
    trace!("writev: {}", sys::writev_at(client.raw, page, 1));
    trace!("recv: {}", sys::recv_at(client.raw, page, 5, 0));
    trace!("peek: {}", sys::recv_at(client.raw, page, 5, libc::MSG_PEEK));
    trace!("read: {}", sys::read_at(client.raw, page, 5));
    trace!("readv: {}", sys::readv_at(client.raw, page, 1));
    trace!("poll: {}", sys::poll_at(page, 1, 0));
    trace!("getsockname: {}", sys::getsockname_at(client.raw, page, page));
    recv(client, 16, 0);
    send(client, b"after", 0);
    await_queued(server, 5);
    recv(server, 16, 0);
    sys::shutdown(client.raw, libc::SHUT_WR);
    trace!("send when shut: {}", sys::send_at(client.raw, page, 5, libc::MSG_NOSIGNAL));
}

/// Two pages of which the second cannot be used; the address of the boundary.
fn page_edge() -> usize {
    let (size, rights) = (8192, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping, kept until the process ends; the second page belongs to it.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), size, rights, flags, -1, 0);
        assert!(base != libc::MAP_FAILED, "mmap");
        libc::mprotect(base.add(4096), 4096, libc::PROT_NONE);
        base as usize + 4096
    }
}

fn buffer_ends_in_nothing(v: Variant) {
    // The buffer is valid at first and ends in a page without access. How much of it is used may differ; nothing may
    // be lost from the stream.
    let (client, server) = v.pair();
    let edge = page_edge();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    let ret = sys::recv_at(server.raw, edge - 4, 10, 0);
    trace!("recv over the edge: {}", if ret.is_ok() { "some".to_owned() } else { ret.to_string() });
    let left = 10 - ret.size();
    trace!("left as it must be: {}", queued(server) as usize == left);
}

fn bad_descriptors(_: Variant) {
    let bad = bad_fd();
    send(bad, b"x", 0);
    recv(bad, 1, 0);
    read(bad, 1);
    write(bad, b"x");
    readv(bad, &[1]);
    writev(bad, &[b"x"]);
    sendmsg(bad, &[b"x"], 0);
    recvmsg(bad, &[1], 0);
    shutdown(bad, libc::SHUT_WR);
    close(bad);
    fionread(bad);
    so_error(bad);
    trace!("minus one: {}", sys::send(-1, b"x", 0));
    trace!("far out: {}", sys::recv(i32::MAX, &mut [0], 0));
    trace!("close minus one: {}", sys::close(-1));
}

fn wrong_kinds_of_descriptor(_: Variant) {
    let (_, pipe) = sys::pipe2(0);
    let (reader, writer) = (Fd::new(pipe[0], "reader"), Fd::new(pipe[1], "writer"));
    send(writer, b"x", 0);
    recv(reader, 1, 0);
    write(writer, b"through the pipe");
    read(reader, 100);
    read(writer, 1);
    write(reader, b"x");
    shutdown(reader, libc::SHUT_RD);
    so_error(reader);
}

fn recvfrom_and_sendto(v: Variant) {
    let (client, server) = v.pair();
    let anywhere = v.address_of(v.listener());
    // A destination is ignored on a connected stream.
    let ret = sys::sendto(client.raw, b"to", 0, &anywhere);
    trace!("sendto {ret}");
    await_queued(server, 2);
    let mut buffer = [0; 16];
    let (ret, length) = sys::recvfrom(server.raw, &mut buffer, 0);
    trace!("recvfrom {ret} {} address length {length}", shown(&buffer[..ret.size()]));
}

fn both_directions_at_once(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"from client", 0);
    send(server, b"from server", 0);
    await_queued(client, 11);
    await_queued(server, 11);
    fionread(client);
    fionread(server);
    recv(client, 100, 0);
    recv(server, 100, 0);
}

fn huge_lengths(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abc", 0);
    await_queued(server, 3);
    // The buffer is smaller than said, the data is smaller still.
    let mut buffer = vec![0_u8; 64];
    let place = buffer.as_mut_ptr() as usize;
    trace!("recv with a length above SSIZE_MAX: {}", sys::recv_at(server.raw, place, usize::MAX, 0));
    let left = queued(server);
    trace!("left {left}");
}

fn many_small_sends_one_recv(v: Variant) {
    let (client, server) = v.pair();
    for count in 0..500_u32 {
        sys::send(client.raw, &count.to_le_bytes(), 0);
    }
    await_queued(server, 2000);
    recv(server, 4000, 0);
}

fn seek_and_stat(v: Variant) {
    let (client, _server) = v.pair();
    trace!("lseek {}", sys::lseek(client.raw, 0, libc::SEEK_CUR));
    let (ret, kind) = sys::fstat_kind(client.raw);
    trace!("fstat {ret}, a socket: {}", kind == libc::S_IFSOCK);
    // SAFETY: isatty takes an integer.
    trace!("isatty {}", unsafe { libc::isatty(client.raw) });
}

fn other_descriptors_are_left_alone(_: Variant) {
    let (_, ends) = sys::socketpair(libc::SOCK_STREAM);
    let (left, right) = (Fd::new(ends[0], "left"), Fd::new(ends[1], "right"));
    send(left, b"unix", 0);
    recv(right, 16, 0);
    close(left);
    recv(right, 16, 0);
    let one = socket(libc::AF_INET, libc::SOCK_DGRAM, 0, "udp");
    let two = socket(libc::AF_INET, libc::SOCK_DGRAM, 0, "udp two");
    let v = Variant::default();
    bind(one, &sys::RawAddress::new(v.target(0)));
    connect(two, &v.address_of(one));
    send(two, b"datagram", 0);
    await_readable(one);
    recv(one, 3, libc::MSG_TRUNC);
    poll_now(one);
}

/// What a peer that is gone answers comes while the call still copies: it takes a part, however much there is.
fn much_to_a_closed_peer(v: Variant) {
    let data = vec![7; 8 << 20];
    for in_pieces in [false, true] {
        let (client, server) = v.pair();
        sys::close(server.raw);
        await_hangup(client);
        let sent = match in_pieces {
            false => sys::send(client.raw, &data, libc::MSG_NOSIGNAL),
            true => {
                let pieces: Vec<&[u8]> = data.chunks(100_000).collect();
                sys::sendmsg(client.raw, &mut Pieces::of_data(&pieces), libc::MSG_NOSIGNAL)
            }
        };
        trace!("in pieces: {in_pieces}, some: {}, all: {}", sent.is_ok(), sent.value == data.len() as i64);
        send(client, b"more", libc::MSG_NOSIGNAL);
        sys::close(client.raw);
    }
}

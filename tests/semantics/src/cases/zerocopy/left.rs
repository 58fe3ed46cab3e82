//! `TCP_INQ`: how much is left after a receive.

use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

const TCP_INQ: i32 = 36;

fn ask(fd: Fd) {
    set_option(fd, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ", 1);
}

/// A receive with this room for bytes and for control messages.
fn take(fd: Fd, length: usize, room: usize, flags: i32) {
    let (ret, got) = sys::recvmsg_with_room(fd.raw, length, room, flags);
    let told = if ret.is_ok() {
        let flags = sys::message_flags_name(got.flags);
        format!("{} flags={flags} name={} {:?}", shown(&got.data), got.name_length, got.control)
    } else {
        String::new()
    };
    trace!("recvmsg({}, {length}, {room}, {}) = {ret} {told}", fd.name, sys::message_flags_name(flags));
}

pub fn bytes_left(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"sixteen bytes ok", 0);
    await_queued(server, 16);
    take(server, 1, 64, 0);
    ask(server);
    option(server, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ");
    take(server, 4, 64, 0);
    take(server, 4, 64, libc::MSG_PEEK);
    take(server, 0, 64, 0);
    take(server, 2, 64, libc::MSG_TRUNC);
    recv(server, 1, 0);
    recvmsg(server, &[1], 0);
    take(server, 2, 64, libc::MSG_WAITALL);
    take(server, 64, 64, 0);
    take(server, 64, 64, libc::MSG_DONTWAIT);
    set_option(server, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ", 0);
    send(client, b"more", 0);
    await_queued(server, 4);
    take(server, 1, 64, 0);
    set_option(server, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ", 2);
    set_option(server, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ", -1);
}

pub fn at_the_end(v: Variant) {
    let (client, server) = v.pair();
    ask(server);
    send(client, b"last words", 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    take(server, 4, 64, 0);
    take(server, 4, 64, libc::MSG_PEEK);
    take(server, 6, 64, 0);
    take(server, 4, 64, libc::MSG_PEEK);
    take(server, 4, 64, 0);
    take(server, 4, 64, 0);
    ask(client);
    send(server, b"answer", 0);
    close(server);
    await_hangup(client);
    take(client, 64, 64, 0);
    take(client, 64, 64, 0);
    let (client, server) = v.pair();
    ask(server);
    send(client, b"unheard", 0);
    await_queued(server, 7);
    shutdown(server, libc::SHUT_RD);
    take(server, 3, 64, 0);
    take(server, 64, 64, 0);
    take(server, 64, 64, 0);
}

pub fn after_a_reset(v: Variant) {
    let (client, server) = v.pair();
    ask(server);
    send(client, b"before", 0);
    await_queued(server, 6);
    set_linger(client, 1, 0);
    close(client);
    await_hangup(server);
    take(server, 3, 64, 0);
    take(server, 64, 64, 0);
    take(server, 64, 64, 0);
    take(server, 64, 64, 0);
}

pub fn and_urgent(v: Variant) {
    let (client, server) = v.pair();
    ask(server);
    send(client, b"12345!", libc::MSG_OOB);
    send(client, b"67890", 0);
    await_queued(server, 5);
    until("all came", || sys::recv(server.raw, &mut [0; 1], libc::MSG_OOB | libc::MSG_PEEK).is_ok());
    await_acknowledged(client, server);
    take(server, 2, 64, 0);
    take(server, 2, 64, libc::MSG_OOB);
    take(server, 64, 64, 0);
    take(server, 2, 64, 0);
    take(server, 64, 64, 0);
}

pub fn with_little_room(v: Variant) {
    let (client, server) = v.pair();
    ask(server);
    send(client, &[b'x'; 64], 0);
    await_queued(server, 64);
    for room in [0, 1, 8, 15, 16, 17, 19, 20, 21, 23, 24, 25, 64] {
        take(server, 1, room, 0);
    }
    let mut messages = [sys::Pieces::of_lengths(&[4]), sys::Pieces::of_lengths(&[4])];
    let (ret, lengths) = sys::recvmmsg(server.raw, &mut messages, 0, -1);
    trace!("recvmmsg = {ret} {lengths:?}");
}

pub fn by_the_listener(v: Variant) {
    let listener = v.listener();
    ask(listener);
    let client = v.client();
    ask(client);
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    option(server, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ");
    option(client, libc::IPPROTO_TCP, TCP_INQ, "TCP_INQ");
    send(client, b"hello", 0);
    await_queued(server, 5);
    take(server, 2, 64, 0);
    send(server, b"hello", 0);
    await_queued(client, 5);
    take(client, 2, 64, 0);
}

//! SO_RCVTIMEO and SO_SNDTIMEO.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "timeouts",
    cases: &[
        Case::new("receive", FAMILY, receive),
        Case::new("receive_by_every_call", ONCE, receive_by_every_call),
        Case::new("receive_data_in_time", FAMILY, receive_data_in_time),
        Case::new("waitall_with_a_part", FAMILY, waitall_with_a_part),
        Case::new("send_when_full", FAMILY, send_when_full),
        Case::new("large_send_in_part", ONCE, large_send_in_part),
        Case::new("no_room_at_a_shut_reading_half_is_no_work", FAMILY, no_room_at_a_shut_reading_half_is_no_work),
        Case::new("accept_timeout", FAMILY, accept_timeout),
        Case::new("negative_before_connect", FAMILY, negative_before_connect),
        Case::new("negative_at_a_listener", FAMILY, negative_at_a_listener),
        Case::new("negative_while_connected", ONCE, negative_while_connected),
        Case::new("set_while_connected_then_cleared", ONCE, set_then_cleared),
        Case::new("peek_timeout", ONCE, peek_timeout),
    ],
};

fn timed(what: &str, ms: u64, call: impl FnOnce()) {
    let start = Instant::now();
    call();
    trace!("{what} took its time: {}", start.elapsed() >= Duration::from_millis(ms - 1));
}

fn receive(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 40);
    timed("recv", 40, || {
        recv(server, 8, 0);
    });
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 8, 0);
    timed("recv", 40, || {
        recv(server, 8, 0);
    });
    close(client);
    await_hangup(server);
    recv(server, 8, 0);
}

fn receive_by_every_call(v: Variant) {
    let (_client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 20);
    timed("read", 20, || {
        read(server, 8);
    });
    timed("readv", 20, || {
        readv(server, &[1, 2]);
    });
    timed("recvmsg", 20, || {
        recvmsg(server, &[1, 2], 0);
    });
    timed("recvfrom", 20, || {
        trace!("recvfrom {}", sys::recvfrom(server.raw, &mut [0; 4], 0).0);
    });
    timed("waitall", 20, || {
        recv(server, 8, libc::MSG_WAITALL);
    });
    // Waiting for readiness has its own time.
    poll(&[(server, libc::POLLIN)], 5);
}

fn receive_data_in_time(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 30_000);
    let thread = once_asleep("thread", move || {
        send(client, b"in time", 0);
    });
    recv(server, 16, 0);
    let _ = thread.join();
}

fn waitall_with_a_part(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 40);
    send(client, b"half", 0);
    await_queued(server, 4);
    timed("recv", 40, || {
        recv(server, 8, libc::MSG_WAITALL);
    });
    fionread(server);
}

fn send_when_full(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(client, libc::SO_SNDTIMEO, "SO_SNDTIMEO", 40);
    let sent = fill_firmly(client, 4);
    timed("send", 40, || {
        send(client, b"no room", 0);
    });
    drain(server, 4, sent);
    await_writable(client);
    send(client, b"room", 0);
    await_queued(server, 4);
    recv(server, 8, 0);
}

fn large_send_in_part(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(client, libc::SO_SNDTIMEO, "SO_SNDTIMEO", 300);
    let mut data = vec![0; 64 << 20];
    beeline_testkit::rng::fill_stream(6, 0, &mut data);
    let ret = sys::send(client.raw, &data, 0);
    trace!("in part: {}", ret.value > 0 && ret.size() < data.len());
    drain(server, 6, ret.value as u64);
    fionread(server);
}

/// Who waits for room at a peer that has shut its reading half sleeps as beside any other, and hears of room.
fn no_room_at_a_shut_reading_half_is_no_work(v: Variant) {
    let (client, server) = v.pair();
    shutdown(server, libc::SHUT_RD);
    let sent = fill_firmly(client, 4);
    set_timeout(client, libc::SO_SNDTIMEO, "SO_SNDTIMEO", 300);
    let before = sys::thread_cpu_ms();
    timed("send", 300, || {
        send(client, b"no room", 0);
    });
    trace!("send was busy: {}", sys::thread_cpu_ms() - before > 150);
    let before = sys::thread_cpu_ms();
    for _ in 0..300 {
        sys::poll(&mut [libc::pollfd { fd: client.raw, events: libc::POLLOUT, revents: 0 }], 1);
    }
    trace!("poll was busy: {}", sys::thread_cpu_ms() - before > 150);
    let thread = once_asleep("thread", move || {
        drain_shut(server, 4, sent);
    });
    poll(&[(client, libc::POLLOUT)], 10_000);
    let _ = thread.join();
}

fn accept_timeout(v: Variant) {
    let listener = v.listener();
    set_timeout(listener, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 40);
    timed("accept", 40, || {
        accept(listener, "none");
    });
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    // A new connection inherits the time.
    timed("recv", 40, || {
        recv(server, 8, 0);
    });
}

/// Sets a time of so many seconds and microseconds, and asks what it is.
fn set_time(fd: Fd, number: i32, seconds: i64, microseconds: i64) {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&seconds.to_ne_bytes());
    value[8..].copy_from_slice(&microseconds.to_ne_bytes());
    let ret = sys::setsockopt(fd.raw, libc::SOL_SOCKET, number, &value);
    let (_, length) = sys::getsockopt(fd.raw, libc::SOL_SOCKET, number, &mut value);
    trace!("option {number} of {} set to {seconds} s {microseconds} us = {ret}, is {value:?} {length}", fd.name);
}

/// Negative seconds are no wait at all, told as a time of 0; connect(2) does not wait either.
fn negative_before_connect(v: Variant) {
    let (listener, client) = (v.listener(), v.client());
    for number in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        set_time(client, number, 3, 0);
        set_time(client, number, 1, 1_000_000);
        set_time(client, number, -1, -1);
        set_time(client, number, -1, 999_999);
    }
    connect(client, &v.address_of(listener));
    await_readable(listener);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    await_writable(client);
    connect(client, &v.address_of(listener));
    connect(client, &v.address_of(listener));
    recv(client, 8, 0);
    send(server, b"half", 0);
    await_queued(client, 4);
    recv(client, 8, libc::MSG_WAITALL);
    recv(client, 8, libc::MSG_WAITALL);
    let sent = fill_firmly(client, 4);
    send(client, b"no room", 0);
    drain(server, 4, sent);
    for number in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut value = [1; 16];
        let (ret, length) = sys::getsockopt(client.raw, libc::SOL_SOCKET, number, &mut value);
        trace!("option {number}: {ret} {value:?} {length}");
        set_time(client, number, 0, 0);
    }
    let thread = once_asleep("thread", move || {
        send(server, b"patience", 0);
    });
    recv(client, 16, 0);
    let _ = thread.join();
}

fn negative_at_a_listener(v: Variant) {
    let listener = v.listener();
    set_time(listener, libc::SO_RCVTIMEO, -7, 0);
    accept(listener, "none");
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    recv(server, 8, 0);
    send(client, b"here", 0);
    await_queued(server, 4);
    recv(server, 8, 0);
}

/// By both names that the kernel has for it.
fn negative_while_connected(v: Variant) {
    let (_client, server) = v.pair();
    for number in [libc::SO_RCVTIMEO, libc::SO_RCVTIMEO_NEW] {
        set_time(server, number, -1, 0);
        recv(server, 8, 0);
        set_time(server, number, 1, 1_000_000);
        set_time(server, number, 0, 20_000);
        recv(server, 8, 0);
    }
    for number in [libc::SO_SNDTIMEO, libc::SO_SNDTIMEO_NEW] {
        set_time(server, number, 8, 0);
        set_time(server, number, i64::MIN, 0);
    }
    fill_firmly(server, 4);
    send(server, b"no room", 0);
}

fn set_then_cleared(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 10);
    recv(server, 8, 0);
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 0);
    let thread = once_asleep("thread", move || {
        send(client, b"patience", 0);
    });
    recv(server, 16, 0);
    let _ = thread.join();
}

fn peek_timeout(v: Variant) {
    let (_client, server) = v.pair();
    set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 20);
    timed("peek", 20, || {
        recv(server, 8, libc::MSG_PEEK);
    });
}

//! Listeners that another program has set up: what was set on them then, connections have that are accepted here.

use super::every_option::{self, SET};
use crate::across::Across;
use crate::case::axes::FAMILY;
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::{Family, Variant};
use beeline_testkit::sys::{self, RawAddress};
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "foreign",
    cases: &[
        Case::new("every_option", FAMILY, every_option),
        Case::new("times_and_linger", FAMILY, times_and_linger),
        Case::new("congestion_and_rate", FAMILY, congestion_and_rate),
        Case::new("what_lanes_do_not_have", FAMILY, what_lanes_do_not_have).on_any_path(),
    ],
};

const SOCKET: i32 = libc::SOL_SOCKET;

/// A socket that is bound to a free port, of which no library knows, with what `set` does to it.
fn foreign(v: Variant, set: impl FnOnce(Fd)) -> Fd {
    let raw = Across::at_the_server(|| sys::socket_unseen(v.listener_domain(), libc::SOCK_STREAM));
    let listener = Fd::new(raw as i32, "listener");
    if v.family == Family::Dual {
        sys::setsockopt_unseen(listener.raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes());
    }
    set(listener);
    let bound = sys::bind_unseen(listener.raw, &RawAddress::new(v.listener_address(0)));
    assert!(raw >= 0 && bound == 0, "{raw} {bound}");
    listener
}

/// The listener serves from now on.
fn serve(listener: Fd) {
    let mut waited = [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }];
    Across::at_the_server(|| sys::poll(&mut waited, 0));
}

fn every_option(v: Variant) {
    // With it, a dual listener takes no client of IPv4.
    let shuts_out = |level, name| v.family == Family::Dual && (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    for (level, name, value) in SET.iter().copied().filter(|(level, name, _)| !shuts_out(*level, *name)) {
        let listener = foreign(v, |fd| {
            let set = sys::setsockopt_unseen(fd.raw, level, name, &value.to_ne_bytes());
            trace!("level {level} option {name} set {value} = {set}");
        });
        // The number was another listener's before.
        Across::at_the_server(|| sys::listen(listener.raw, 16));
        serve(listener);
        let client = v.client();
        sys::connect(client.raw, &v.address_of(listener));
        if name == libc::TCP_DEFER_ACCEPT {
            sys::send(client.raw, b"x", 0);
        }
        let server = Fd::new(crate::across::accept(listener.raw).value as i32, "server");
        if every_option::settable(level, name) {
            let told = [client, server].map(|fd| every_option::value_of(fd, level, name));
            trace!("inherited: {}", told.join(" and "));
        }
        for fd in [client, server, listener] {
            sys::close(fd.raw);
        }
    }
}

fn time(seconds: i64, microseconds: i64) -> [u8; 16] {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&seconds.to_ne_bytes());
    value[8..].copy_from_slice(&microseconds.to_ne_bytes());
    value
}

fn read_bytes(fd: Fd, number: i32, name: &str, room: usize) {
    let mut value = vec![0; room];
    let (ret, length) = sys::getsockopt(fd.raw, SOCKET, number, &mut value);
    trace!("getsockopt({}, {name}) = {ret} {value:?} length {length}", fd.name);
}

/// It is met when somebody polls for the first time.
fn times_and_linger(v: Variant) {
    let listener = foreign(v, |fd| {
        sys::setsockopt_unseen(fd.raw, SOCKET, libc::SO_RCVTIMEO, &time(0, 40_000));
        sys::setsockopt_unseen(fd.raw, SOCKET, libc::SO_SNDTIMEO, &time(7, 0));
        sys::setsockopt_unseen(fd.raw, SOCKET, libc::SO_LINGER, &[1, 0, 0, 0, 5, 0, 0, 0]);
        for number in [libc::SO_KEEPALIVE, libc::SO_OOBINLINE] {
            sys::setsockopt_unseen(fd.raw, SOCKET, number, &1_i32.to_ne_bytes());
        }
    });
    Across::at_the_server(|| sys::listen_unseen(listener.raw, 16));
    serve(listener);
    let start = Instant::now();
    accept(listener, "nobody");
    trace!("accept took its time: {}", start.elapsed() >= Duration::from_millis(39));
    let (client, server) = v.pair_on(listener);
    for fd in [client, server] {
        read_bytes(fd, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 16);
        read_bytes(fd, libc::SO_SNDTIMEO, "SO_SNDTIMEO", 16);
        read_bytes(fd, libc::SO_LINGER, "SO_LINGER", 8);
        option(fd, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE");
    }
    let start = Instant::now();
    recv(server, 8, 0);
    trace!("recv took its time: {}", start.elapsed() >= Duration::from_millis(39));
    send(client, b"!", libc::MSG_OOB);
    await_queued(server, 1);
    recv(server, 8, 0);
}

fn congestion_and_rate(v: Variant) {
    let listener = foreign(v, |fd| {
        sys::setsockopt_unseen(fd.raw, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
        sys::setsockopt_unseen(fd.raw, SOCKET, libc::SO_MAX_PACING_RATE, &(1_u64 << 40).to_ne_bytes());
    });
    Across::at_the_server(|| sys::listen_unseen(listener.raw, 16));
    serve(listener);
    let (client, server) = v.pair_on(listener);
    let mut name = [0; 16];
    let (ret, length) = sys::getsockopt(server.raw, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name);
    trace!(
        "congestion of the server {ret} {} length {length}",
        shown(name.split(|byte| *byte == 0).next().unwrap_or(&[]))
    );
    for fd in [client, server] {
        read_bytes(fd, libc::SO_MAX_PACING_RATE, "SO_MAX_PACING_RATE", 8);
    }
}

fn what_lanes_do_not_have(v: Variant) {
    for (level, number, name, value) in [
        (SOCKET, libc::SO_TIMESTAMP, "SO_TIMESTAMP", 1_i32),
        (SOCKET, libc::SO_TIMESTAMPING, "SO_TIMESTAMPING", 8),
        (SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF", 1),
        (SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", 2000),
        (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, "TCP_SAVE_SYN", 1),
    ] {
        let listener = foreign(v, |fd| {
            sys::setsockopt_unseen(fd.raw, level, number, &value.to_ne_bytes());
        });
        Across::at_the_server(|| sys::listen(listener.raw, 16));
        serve(listener);
        let client = v.client();
        connect(client, &v.address_of(listener));
        let server = accept(listener, "server");
        option(server, level, number, name);
        send(client, b"abcdefgh", 0);
        await_queued(server, 8);
        recv(server, 2, libc::MSG_PEEK);
        recv(server, 2, libc::MSG_PEEK);
        let mut syn = [0; 128];
        let (ret, length) = sys::getsockopt(server.raw, libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut syn);
        trace!("the SYN that was saved: {ret} length {length}");
        for fd in [client, server, listener] {
            close(fd);
        }
    }
}

//! Every option that there is: what it is on a fresh socket, on both ends of a connection and on a listener, what
//! setting it does at each of those times, and what an accepted socket inherits.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "every_option",
    cases: &[
        Case::new("socket_level", FAMILY, |v| defaults(v, libc::SOL_SOCKET)),
        Case::new("tcp_level", FAMILY, |v| defaults(v, libc::IPPROTO_TCP)),
        Case::new("ip_level", FAMILY, |v| defaults(v, libc::IPPROTO_IP)),
        Case::new("ipv6_level", FAMILY, |v| defaults(v, libc::IPPROTO_IPV6)),
        Case::new("set_on_a_connection", FAMILY, set_on_a_connection),
        Case::new("set_before_connect", FAMILY, set_before_connect),
        Case::new("set_on_a_listener", FAMILY, set_on_a_listener),
        Case::new("room_for_the_value", ONCE, room_for_the_value),
        Case::new("info_length", ONCE, info_length),
        Case::new("info_states", FAMILY, info_states),
        Case::new("info_of_traffic", ONCE, info_of_traffic),
        Case::new("segment_size", FAMILY, segment_size),
        Case::new("peer_name", FAMILY, peer_name),
        Case::new("cookie", FAMILY, cookie),
        Case::new("of_the_path", FAMILY, of_the_path),
        Case::new("saved_syn", FAMILY, saved_syn).on_any_path(),
        Case::new("saved_syn_set_late", ONCE, saved_syn_set_late),
        Case::new("names_of_algorithms", ONCE, names_of_algorithms),
        Case::new("priority_of_a_service", FAMILY, priority_of_a_service),
    ],
};

/// Options whose value is another one in each run, or another one from moment to moment, with why.
const VOLATILE: &[(i32, i32)] = &[
    // Buffers that TCP sizes by what it measures.
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, COOKIE),
    (libc::SOL_SOCKET, libc::SO_MEMINFO),
    (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID),
    (libc::IPPROTO_TCP, libc::TCP_INFO),
    // Whether the last segment asked for an acknowledgement at once.
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    // IP_PROTOCOL: the local port.
    (libc::IPPROTO_IP, 52),
    // Grows with what was received, and is bounded by what the other end asked for.
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    // Clocks.
    (libc::IPPROTO_TCP, libc::TCP_TIMESTAMP),
    (libc::IPPROTO_TCP, libc::TCP_CC_INFO),
    (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE),
];

const COOKIE: i32 = 57;

/// The integer options that programs set, with a value that is not their default.
pub const SET: &[(i32, i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 1),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE, 1),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 1),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
    (libc::SOL_SOCKET, libc::SO_PRIORITY, 4),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 7),
    (libc::SOL_SOCKET, libc::SO_SNDLOWAT, 7),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, 30),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU, 0),
    (libc::SOL_SOCKET, libc::SO_SNDBUF, 50_000),
    (libc::SOL_SOCKET, libc::SO_RCVBUF, 50_000),
    (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 60_000),
    (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 60_000),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE, 1),
    (libc::SOL_SOCKET, libc::SO_TYPE, 1),
    (libc::SOL_SOCKET, libc::SO_ERROR, 1),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, 1),
    (libc::SOL_SOCKET, libc::SO_PASSCRED, 1),
    (libc::SOL_SOCKET, libc::SO_PEERCRED, 1),
    (libc::SOL_SOCKET, libc::SO_NO_CHECK, 1),
    (libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 0),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, 1_000_000_000),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 2),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, -1),
    (libc::IPPROTO_TCP, 36, 1),
    (libc::IPPROTO_TCP, 36, 2),
    (libc::IPPROTO_TCP, 36, -1),
    (libc::SOL_SOCKET, 80, 1),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1000),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 7),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 7),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 3),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, 9),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 5),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 40_000),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5000),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, -1),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, 1),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK, 1),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 9999),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, 0),
    (libc::IPPROTO_TCP, 9999, 1),
    (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
    (libc::IPPROTO_IP, libc::IP_TTL, 33),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, 0),
    (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
    (libc::IPPROTO_IP, libc::IP_FREEBIND, 1),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 3),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 33),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x20),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
];

pub fn value_of(fd: Fd, level: i32, name: i32) -> String {
    let mut value = [0_u8; 64];
    let (ret, length) = sys::getsockopt(fd.raw, level, name, &mut value);
    match (ret.is_ok(), length) {
        (false, _) => ret.to_string(),
        (true, 4) => i32::from_ne_bytes([value[0], value[1], value[2], value[3]]).to_string(),
        (true, _) => format!("{length} bytes {}", shown(value.get(..length as usize).unwrap_or(&value))),
    }
}

pub fn settable(level: i32, name: i32) -> bool {
    !VOLATILE.contains(&(level, name))
}

fn defaults(v: Variant, level: i32) {
    let fresh = v.named_client("fresh");
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    for name in (0..90).filter(|name| settable(level, *name)) {
        let values = [fresh, listener, client, server].map(|fd| value_of(fd, level, name));
        trace!("level {level} option {name}: {}", values.join(", "));
    }
}

/// Sets an option and reads it back.
fn set(fd: Fd, (level, name, value): (i32, i32, i32)) {
    let before = if settable(level, name) { value_of(fd, level, name) } else { String::new() };
    let ret = sys::setsockopt(fd.raw, level, name, &value.to_ne_bytes());
    let told_as = if level == libc::SOL_SOCKET { told_as(name) } else { name };
    let after = if settable(level, told_as) || ret.is_ok() && is_buffer(told_as) && level == libc::SOL_SOCKET {
        value_of(fd, level, told_as)
    } else {
        String::new()
    };
    trace!("{} level {level} option {name}: was {before}, set {value} = {ret}, is {after}", fd.name);
}

/// By which name the kernel tells what was set.
fn told_as(name: i32) -> i32 {
    match name {
        libc::SO_SNDBUFFORCE => libc::SO_SNDBUF,
        libc::SO_RCVBUFFORCE => libc::SO_RCVBUF,
        _ => name,
    }
}

fn is_buffer(name: i32) -> bool {
    matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF)
}

fn set_on_a_connection(v: Variant) {
    for option in SET {
        let listener = v.listener();
        let (client, server) = v.pair_on(listener);
        set(client, *option);
        set(server, *option);
        for fd in [client, server, listener] {
            sys::close(fd.raw);
        }
    }
}

fn set_before_connect(v: Variant) {
    for option in SET {
        let listener = v.listener();
        let client = v.client();
        set(client, *option);
        sys::connect(client.raw, &v.address_of(listener));
        let server = Fd::new(crate::across::accept(listener.raw).value as i32, "server");
        let (level, name, _) = *option;
        if settable(level, name) {
            trace!("connected: {} and {}", value_of(client, level, name), value_of(server, level, name));
        }
        for fd in [client, server, listener] {
            sys::close(fd.raw);
        }
    }
}

fn set_on_a_listener(v: Variant) {
    for option in SET {
        let listener = v.listener();
        set(listener, *option);
        let client = v.client();
        sys::connect(client.raw, &v.address_of(listener));
        if option.1 == libc::TCP_DEFER_ACCEPT {
            sys::send(client.raw, b"x", 0);
        }
        let server = Fd::new(crate::across::accept(listener.raw).value as i32, "server");
        let (level, name, _) = *option;
        if settable(level, name) {
            trace!("inherited: {} and {}", value_of(client, level, name), value_of(server, level, name));
        }
        for fd in [client, server, listener] {
            sys::close(fd.raw);
        }
    }
}

fn room_for_the_value(v: Variant) {
    let (client, _server) = v.pair();
    for (level, name, _) in SET.iter().copied().filter(|(level, name, _)| settable(*level, *name)) {
        for room in [0, 1, 3, 5] {
            let mut value = vec![0; room];
            let (ret, length) = sys::getsockopt(client.raw, level, name, &mut value);
            trace!("level {level} option {name} room {room}: {ret} {value:?} length {length}");
        }
    }
}

fn info_length(v: Variant) {
    let (client, _server) = v.pair();
    for room in [0, 1, 104, 500] {
        let mut value = vec![0; room];
        let (ret, length) = sys::getsockopt(client.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value);
        trace!("room {room}: {ret} length {length} state {:?}", value.first());
    }
}

/// Fields of `TCP_INFO` that do not depend on time: state, options, scales, segment sizes.
fn info(fd: Fd) {
    let mut value = [0_u8; 256];
    let (ret, length) = sys::getsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value);
    let word = |at: usize| u32::from_ne_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
    trace!(
        "TCP_INFO({}) = {ret} length {length} state {} congestion {} retransmits {} probes {} backoff {}",
        fd.name, value[0], value[1], value[2], value[3], value[4]
    );
    trace!("options {:#x} scales {:#x}", value[5], value[6]);
    trace!("snd_mss {} unacked {} sacked {} lost {} retrans {}", word(16), word(24), word(28), word(32), word(36));
    trace!("fackets {} pmtu {} total_retrans {}", word(40), word(60), word(100));
    trace!("rtt known {}", word(68) != 0);
}

fn info_states(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    info(v.named_client("fresh"));
    info(listener);
    info(client);
    info(server);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    info(server);
    shutdown(server, libc::SHUT_WR);
    await_hangup(client);
    until("the client is closed", || {
        let mut value = [0; 8];
        sys::getsockopt(client.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value);
        value[0] != 5
    });
    let mut value = [0; 8];
    sys::getsockopt(server.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value);
    trace!("server state {}", value[0]);
}

/// Bytes that were acknowledged and received, which grow by what was sent.
fn info_of_traffic(v: Variant) {
    let (client, server) = v.pair();
    let count = |fd: Fd, at: usize| {
        let mut value = [0_u8; 256];
        sys::getsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_INFO, &mut value);
        value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    };
    // tcpi_bytes_received, tcpi_bytes_sent.
    let before = (count(server, 128), count(client, 200));
    send(client, &[b'x'; 5000], 0);
    await_queued(server, 5000);
    recv(server, 5000, 0);
    trace!("received {} sent {}", count(server, 128) - before.0, count(client, 200) - before.1);
}

fn segment_size(v: Variant) {
    let size = |fd: Fd| trace!("{} segment size {}", fd.name, value_of(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG));
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    size(client);
    size(server);
    for value in [1000, 7] {
        set_option(client, libc::IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG", value);
        size(client);
    }
    let client = v.named_client("bounded");
    set_option(client, libc::IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG", 1000);
    size(client);
    connect(client, &v.address_of(listener));
    size(client);
}

fn peer_name(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        for room in [0, 4, 16, 28, 40] {
            let mut value = vec![0; room];
            let (ret, length) = sys::getsockopt(fd.raw, libc::SOL_SOCKET, libc::SO_PEERNAME, &mut value);
            trace!("{} room {room}: {ret} length {length} family {:?}", fd.name, value.first());
        }
    }
}

fn cookie(v: Variant) {
    let (client, server) = v.pair();
    let cookie = |fd: Fd| {
        let mut value = [0_u8; 8];
        let (ret, length) = sys::getsockopt(fd.raw, libc::SOL_SOCKET, COOKIE, &mut value);
        (ret, length, u64::from_ne_bytes(value))
    };
    let (ours, again, theirs) = (cookie(client), cookie(client), cookie(server));
    trace!("{} {} same {} others {}", ours.0, ours.1, ours.2 == again.2, ours.2 != theirs.2);
    trace!("set {}", sys::setsockopt(client.raw, libc::SOL_SOCKET, COOKIE, &[1; 8]));
}

/// What the kernel makes of the path and its load: told of a connection as it is, and of a listener's not at all.
fn of_the_path(v: Variant) {
    // SAFETY: no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    sys::stay_on(cpu);
    let fresh = v.named_client("fresh");
    let listener = v.listener();
    set_option(listener, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, "SO_INCOMING_CPU", 1000);
    let (client, server) = v.pair_on(listener);
    send(client, b"x", 0);
    await_queued(server, 1);
    send(server, b"x", 0);
    await_queued(client, 1);
    let number = |fd: Fd, name| value_of(fd, libc::SOL_SOCKET, name).parse().unwrap_or(i32::MIN);
    let room = number(fresh, libc::SO_SNDBUF);
    for fd in [client, server] {
        trace!("{} has more room than a fresh socket: {}", fd.name, number(fd, libc::SO_SNDBUF) > room);
        trace!("{} comes in here: {}", fd.name, number(fd, libc::SO_INCOMING_CPU) == cpu);
    }
    let listener = v.listener();
    set_option(listener, libc::SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 50_000);
    let (client, server) = v.pair_on(listener);
    set_option(client, libc::SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 60_000);
    trace!("set: {} and {}", number(client, libc::SO_SNDBUF), number(server, libc::SO_SNDBUF));
}

fn syn_of(server: Fd) {
    let mut syn = [0; 128];
    let (ret, length) = sys::getsockopt(server.raw, libc::IPPROTO_TCP, libc::TCP_SAVED_SYN, &mut syn);
    trace!("the SYN that {} has saved: {ret} length {length}", server.name);
}

fn saved_syn(v: Variant) {
    for value in [1, 0, 2] {
        let listener = v.listener();
        set_option(listener, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, "TCP_SAVE_SYN", value);
        let client = v.client();
        connect(client, &v.address_of(listener));
        let server = accept(listener, "server");
        syn_of(server);
        // It is told once.
        syn_of(server);
    }
}

/// A connection may have it, and has no SYN for all that.
fn saved_syn_set_late(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        for value in [1, 2, 3, 0] {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, "TCP_SAVE_SYN", value);
            option(fd, libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, "TCP_SAVE_SYN");
        }
        syn_of(fd);
    }
}

fn names_of_algorithms(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    for fd in [listener, client, server] {
        for room in [2, 16, 40] {
            for option in [libc::TCP_CONGESTION, libc::TCP_ULP] {
                let mut value = vec![0; room];
                let (ret, length) = sys::getsockopt(fd.raw, libc::IPPROTO_TCP, option, &mut value);
                trace!("{} option {option} room {room}: {ret} length {length} {}", fd.name, shown(&value));
            }
        }
        for name in [&b"reno"[..], b"cubic\0junk", b"none such", b""] {
            let ret = sys::setsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
            trace!("{} congestion {}: {ret} {}", fd.name, shown(name), value_of(fd, libc::IPPROTO_TCP, 13));
        }
        trace!("ulp {}", sys::setsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_ULP, b"none such"));
    }
}

/// Another type of service sets the priority, and the same one does not.
fn priority_of_a_service(v: Variant) {
    let priority = |fd: Fd| value_of(fd, libc::SOL_SOCKET, libc::SO_PRIORITY);
    let set_all = |fd: Fd| {
        for (level, name, value) in [
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10_i32),
            (libc::SOL_SOCKET, libc::SO_PRIORITY, 4),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x08),
            (libc::IPPROTO_IP, libc::IP_TOS, 0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x10),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
        ] {
            let ret = sys::setsockopt(fd.raw, level, name, &value.to_ne_bytes());
            trace!("{} level {level} option {name} set {value} = {ret}, priority {}", fd.name, priority(fd));
        }
    };
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    for fd in [client, server, listener] {
        set_all(fd);
    }
    let (_, server) = v.pair_on(listener);
    trace!("inherited: {}", priority(server));
    let client = v.named_client("fresh");
    set_all(client);
    connect(client, &v.address_of(v.listener()));
    trace!("connected: {}", priority(client));
}

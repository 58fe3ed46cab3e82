//! getsockopt and setsockopt.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "options",
    cases: &[
        Case::new("identity", FAMILY, identity),
        Case::new("socket_level_ints", FAMILY, socket_level_ints),
        Case::new("tcp_level_ints", FAMILY, tcp_level_ints),
        Case::new("set_before_connect", FAMILY, set_before_connect),
        Case::new("linger", FAMILY, linger),
        Case::new("timeouts_read_back", FAMILY, timeouts_read_back),
        Case::new("buffer_sizes", FAMILY, buffer_sizes),
        Case::new("small_buffers", FAMILY, small_buffers).on_any_path(),
        Case::new("send_buffer_set_late", ONCE, send_buffer_set_late)
            .deviates("SO_SNDBUF set on a connection does not limit what is on its way: a ring holds 4 MiB"),
        Case::new("peek_offset", FAMILY, peek_offset).on_any_path(),
        Case::new("peek_offset_after_a_refusal", FAMILY, peek_offset_after_a_refusal).on_any_path(),
        Case::new("peek_offset_set_late", ONCE, peek_offset_set_late)
            .deviates("SO_PEEK_OFF cannot be switched on once a connection is a lane: ENOPROTOOPT"),
        Case::new("low_water_mark", FAMILY, low_water_mark),
        Case::new("low_water_mark_for_readiness", FAMILY, low_water_mark_for_readiness),
        Case::new("busy_polling", FAMILY, busy_polling),
        Case::new("short_and_long_values", ONCE, short_and_long_values),
        Case::new("bad_pointers", ONCE, bad_pointers),
        Case::new("unknown_options", ONCE, unknown_options),
        Case::new("switched_off_by_nothing", FAMILY, switched_off_by_nothing),
        Case::new("bad_descriptors", ONCE, bad_descriptors),
        Case::new("nodelay_and_cork", FAMILY, nodelay_and_cork),
        Case::new("cork_holds_back", ONCE, cork_holds_back).on_any_path(),
        Case::new("defer_accept", FAMILY, defer_accept).on_any_path(),
        Case::new("read_only_options", ONCE, read_only_options),
        Case::new("tcp_info_state", FAMILY, tcp_info_state),
        Case::new("listener_options", FAMILY, listener_options),
        Case::new("after_peer_closed", FAMILY, after_peer_closed),
    ],
};

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;

fn identity(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server, v.listener(), v.client()] {
        option(fd, SOCKET, libc::SO_DOMAIN, "SO_DOMAIN");
        option(fd, SOCKET, libc::SO_TYPE, "SO_TYPE");
        option(fd, SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL");
        option(fd, SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN");
        option(fd, SOCKET, libc::SO_ERROR, "SO_ERROR");
    }
}

fn each(fd: Fd, level: i32, table: &[(i32, &str, i32)]) {
    for (number, name, value) in table {
        option(fd, level, *number, name);
        set_option(fd, level, *number, name, *value);
        option(fd, level, *number, name);
        set_option(fd, level, *number, name, 0);
        option(fd, level, *number, name);
    }
}

fn socket_level_ints(v: Variant) {
    let (client, server) = v.pair();
    let table = [
        (libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1),
        (libc::SO_OOBINLINE, "SO_OOBINLINE", 1),
        (libc::SO_REUSEADDR, "SO_REUSEADDR", 1),
        (libc::SO_DONTROUTE, "SO_DONTROUTE", 1),
        (libc::SO_PRIORITY, "SO_PRIORITY", 3),
        (libc::SO_BROADCAST, "SO_BROADCAST", 1),
        (libc::SO_RCVLOWAT, "SO_RCVLOWAT", 5),
        (libc::SO_SNDLOWAT, "SO_SNDLOWAT", 5),
        (libc::SO_KEEPALIVE, "SO_KEEPALIVE", 77),
    ];
    each(client, SOCKET, &table);
    each(server, SOCKET, &table);
}

fn tcp_level_ints(v: Variant) {
    let (client, server) = v.pair();
    let table = [
        (libc::TCP_NODELAY, "TCP_NODELAY", 1),
        (libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", 77),
        (libc::TCP_KEEPINTVL, "TCP_KEEPINTVL", 7),
        (libc::TCP_KEEPCNT, "TCP_KEEPCNT", 5),
        (libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", 5000),
        (libc::TCP_SYNCNT, "TCP_SYNCNT", 4),
        (libc::TCP_LINGER2, "TCP_LINGER2", 9),
        (libc::TCP_NODELAY, "TCP_NODELAY", 99),
    ];
    each(client, TCP, &table);
    each(server, TCP, &table);
}

fn set_before_connect(v: Variant) {
    // What was set on the unconnected socket is what the connection reports.
    let listener = v.listener();
    let client = v.client();
    set_option(client, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1);
    set_option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    set_option(client, TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", 33);
    set_option(client, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", 30_000);
    set_option(client, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 40_000);
    set_timeout(client, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 1500);
    set_linger(client, 1, 3);
    connect(client, &v.address_of(listener));
    accept(listener, "server");
    trace::write_note(format_args!("pair"));
    option(client, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE");
    option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY");
    option(client, TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE");
    option(client, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF");
    option(client, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF");
    read_bytes(client, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 16);
    read_bytes(client, libc::SO_LINGER, "SO_LINGER", 8);
}

fn read_bytes(fd: Fd, number: i32, name: &str, room: usize) {
    let mut value = vec![0; room];
    let (ret, length) = sys::getsockopt(fd.raw, SOCKET, number, &mut value);
    trace!("getsockopt({}, {name}) = {ret} {value:?} length {length}", fd.name);
}

fn linger(v: Variant) {
    let (client, server) = v.pair();
    read_bytes(client, libc::SO_LINGER, "SO_LINGER", 8);
    set_linger(client, 1, 5);
    read_bytes(client, libc::SO_LINGER, "SO_LINGER", 8);
    send(client, b"delivered", 0);
    await_queued(server, 9);
    recv(server, 16, 0);
    close(client);
    await_hangup(server);
    recv(server, 16, 0);
}

fn timeouts_read_back(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        for (number, name) in [(libc::SO_RCVTIMEO, "SO_RCVTIMEO"), (libc::SO_SNDTIMEO, "SO_SNDTIMEO")] {
            read_bytes(fd, number, name, 16);
            set_timeout(fd, number, name, 2500);
            read_bytes(fd, number, name, 16);
            set_timeout(fd, number, name, 0);
            read_bytes(fd, number, name, 16);
            // The kernel keeps whole ticks of its clock.
            for (seconds, microseconds) in [(0_i64, 1_500_i64), (0, 1), (3, 999_999)] {
                let mut time = [0; 16];
                time[..8].copy_from_slice(&seconds.to_ne_bytes());
                time[8..].copy_from_slice(&microseconds.to_ne_bytes());
                trace!("{seconds} s {microseconds} us: {}", sys::setsockopt(fd.raw, SOCKET, number, &time));
                read_bytes(fd, number, name, 16);
            }
        }
    }
    let mut odd = [0; 16];
    odd[8..].copy_from_slice(&2_000_000_i64.to_ne_bytes());
    trace!("too many microseconds: {}", sys::setsockopt(client.raw, SOCKET, libc::SO_RCVTIMEO, &odd));
    odd[..8].copy_from_slice(&(-1_i64).to_ne_bytes());
    odd[8..].fill(0);
    trace!("negative: {}", sys::setsockopt(client.raw, SOCKET, libc::SO_RCVTIMEO, &odd));
    trace!("short: {}", sys::setsockopt(client.raw, SOCKET, libc::SO_RCVTIMEO, &odd[..8]));
}

fn buffer_sizes(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        // Defaults adapt to the connection; what was asked for is doubled and kept.
        for size in [10_000, 100_000, 1] {
            set_option(fd, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", size);
            option(fd, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF");
            set_option(fd, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", size);
            option(fd, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF");
        }
    }
    send(client, b"works", 0);
    await_queued(server, 5);
    recv(server, 8, 0);
}

/// What TCP takes is twice the buffer and what the receiver's window allows, some 170 KiB here.
fn send_buffer_set_late(v: Variant) {
    let (client, _server) = v.pair();
    set_option(client, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 4096);
    let sent = fill_firmly(client, 1);
    trace!("stopped before 1 MiB: {}", sent < 1 << 20);
}

/// Peeks on and on at what its peer sends, and reads. Linux has it for TCP since 6.9.
fn peeks_on(reader: Fd, peer: Fd) {
    send(peer, b"abcdefgh", 0);
    await_queued(reader, 8);
    for flags in [libc::MSG_PEEK, libc::MSG_PEEK, 0, libc::MSG_PEEK, 0] {
        recv(reader, 2, flags);
    }
    option(reader, SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF");
}

fn peek_offset(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    set_option(client, SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF", 1);
    connect(client, &v.address_of(listener));
    peeks_on(client, accept(listener, "server"));
}

/// A socket that was refused may be connected again, and has what was set on it before and since.
fn peek_offset_after_a_refusal(v: Variant) {
    let (nobody, listener) = (v.bound(), v.listener());
    for offsets in [[1, 1], [-1, 1]] {
        let client = v.client();
        for (offset, at) in offsets.into_iter().zip([nobody, listener]) {
            set_option(client, SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF", offset);
            connect(client, &v.address_of(at));
        }
        peeks_on(client, accept(listener, "server"));
    }
}

fn peek_offset_set_late(v: Variant) {
    let (client, server) = v.pair();
    set_option(client, SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF", -1);
    set_option(client, SOCKET, libc::SO_PEEK_OFF, "SO_PEEK_OFF", 1);
    peeks_on(client, server);
}

/// Options whose value is a text or a header are off when it is empty, and may be switched off on any socket.
fn switched_off_by_nothing(v: Variant) {
    let switch_off = |fd: Fd| {
        for value in [&b""[..], b"\0", b"\0\0\0\0", b"\0lo\0"] {
            trace!("no device {value:?}: {}", sys::setsockopt(fd.raw, SOCKET, libc::SO_BINDTODEVICE, value));
        }
        trace!("no options: {}", sys::setsockopt(fd.raw, libc::IPPROTO_IP, libc::IP_OPTIONS, b""));
    };
    let (client, server) = v.pair();
    switch_off(client);
    switch_off(server);
    send(client, b"as before", 0);
    await_queued(server, 9);
    recv(server, 16, 0);
    let early = v.client();
    switch_off(early);
    connect(early, &v.address_of(v.listener()));
}

/// Who asks for small buffers has little on its way, whenever the listener asked.
fn small_buffers(v: Variant) {
    const SIZE: i32 = 4096;
    let fill = |client: Fd, server: Fd| {
        let data = [7; 4096];
        let mut total = 0;
        for _ in 0..1000 {
            let sent = sys::send(client.raw, &data, libc::MSG_DONTWAIT);
            if !sent.is_ok() {
                break;
            }
            total += sent.value;
        }
        trace!("sender was stopped before 256 KiB: {}", total < 256 << 10);
        sys::close(client.raw);
        sys::close(server.raw);
    };
    for early in [true, false] {
        let listener = v.listener();
        let mut waited = [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }];
        trace!("a listener that has waited: {}", sys::poll(&mut waited, 0));
        if early {
            set_option(listener, SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", SIZE);
        }
        let client = v.client();
        set_option(client, SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", SIZE);
        connect(client, &v.address_of(listener));
        fill(client, accept(listener, "server"));
    }
}

fn low_water_mark(v: Variant) {
    // The kernel counts what lies unread, not what the sleeping call has taken already: a receiver that took a part
    // below the mark may sleep on although mark bytes have come in all. So the bytes come at once here.
    let (client, server) = v.pair();
    set_option(server, SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", 6);
    let thread = once_asleep("thread", move || {
        send(client, b"abcdefg", 0);
    });
    recv(server, 64, 0);
    let _ = thread.join();
    send(client, b"abc", 0);
    await_queued(server, 3);
    recv(server, 64, libc::MSG_DONTWAIT);
}

/// A listener's value goes to whom it accepts; 0 and impossible values are told as they are; and calls that wait go on
/// to.
fn busy_polling(v: Variant) {
    const NAME: &str = "SO_BUSY_POLL";
    let (listener, first) = (v.listener(), v.client());
    for value in [-1, 70, 0, 30] {
        set_option(listener, SOCKET, libc::SO_BUSY_POLL, NAME, value);
        option(listener, SOCKET, libc::SO_BUSY_POLL, NAME);
    }
    option(first, SOCKET, libc::SO_BUSY_POLL, NAME);
    set_option(first, SOCKET, libc::SO_BUSY_POLL, NAME, 20);
    connect(first, &v.address_of(listener));
    let (client, server) = (first, accept(listener, "server"));
    trace::write_note(format_args!("pair"));
    for fd in [client, server] {
        option(fd, SOCKET, libc::SO_BUSY_POLL, NAME);
    }
    for value in [50, i32::MIN, 0, i32::MAX, 1] {
        set_option(server, SOCKET, libc::SO_BUSY_POLL, NAME, value);
        option(server, SOCKET, libc::SO_BUSY_POLL, NAME);
        let thread = once_asleep("thread", move || {
            send(client, b"abc", 0);
        });
        recv(server, 64, 0);
        let _ = thread.join();
    }
}

fn low_water_mark_for_readiness(v: Variant) {
    let (client, server) = v.pair();
    set_option(server, SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", 6);
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN);
    send(client, b"abc", 0);
    await_queued(server, 3);
    poll_now(server);
    select(&[server], &[], &[], 0);
    epoll_wait(set, 4, 0);
    send(client, b"def", 0);
    await_queued(server, 6);
    poll_now(server);
    select(&[server], &[], &[], 0);
    epoll_wait(set, 4, 0);
    recv(server, 2, 0);
    poll_now(server);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    poll_now(server);
}

fn short_and_long_values(v: Variant) {
    let (client, _server) = v.pair();
    let set = |bytes: &[u8]| sys::setsockopt(client.raw, SOCKET, libc::SO_KEEPALIVE, bytes);
    trace!("one byte {}", set(&[1]));
    trace!("no bytes {}", set(&[]));
    trace!("eight bytes {}", set(&[1, 0, 0, 0, 0, 0, 0, 0]));
    for room in [0, 1, 2, 4, 8] {
        let mut value = vec![9; room];
        let (ret, length) = sys::getsockopt(client.raw, SOCKET, libc::SO_KEEPALIVE, &mut value);
        trace!("room {room}: {ret} {value:?} length {length}");
        let mut value = vec![9; room];
        let (ret, length) = sys::getsockopt(client.raw, TCP, libc::TCP_NODELAY, &mut value);
        trace!("room {room}: {ret} {value:?} length {length}");
    }
    trace!("linger of four bytes {}", sys::setsockopt(client.raw, SOCKET, libc::SO_LINGER, &[0; 4]));
}

fn bad_pointers(v: Variant) {
    let (client, _server) = v.pair();
    let mut length: u32 = 4;
    let mut value: u32 = 0;
    let (length_at, value_at) = (&raw mut length as usize, &raw mut value as usize);
    for (what, pointer, place) in
        [("value null", 0, length_at), ("length null", value_at, 0), ("both unmapped", 16, 16)]
    {
        trace!("get, {what}: {}", sys::getsockopt_at(client.raw, SOCKET, libc::SO_KEEPALIVE, pointer, place));
        trace!("get tcp, {what}: {}", sys::getsockopt_at(client.raw, TCP, libc::TCP_NODELAY, pointer, place));
    }
    trace!("set null: {}", sys::setsockopt_at(client.raw, SOCKET, libc::SO_KEEPALIVE, 0, 4));
    trace!("set unmapped: {}", sys::setsockopt_at(client.raw, TCP, libc::TCP_NODELAY, 16, 4));
    let mut negative: i32 = -1;
    let negative_at = &raw mut negative as usize;
    trace!("negative length: {}", sys::getsockopt_at(client.raw, SOCKET, libc::SO_KEEPALIVE, value_at, negative_at));
}

fn unknown_options(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        set_option(fd, SOCKET, 9999, "unknown", 1);
        option(fd, SOCKET, 9999, "unknown");
        set_option(fd, TCP, 9999, "unknown tcp", 1);
        option(fd, TCP, 9999, "unknown tcp");
        set_option(fd, 77, 1, "unknown level", 1);
        option(fd, 77, 1, "unknown level");
        option(fd, libc::IPPROTO_UDP, 1, "udp level");
    }
}

fn bad_descriptors(_: Variant) {
    let bad = crate::child::bad_fd();
    set_option(bad, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1);
    option(bad, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE");
    let (_, ends) = sys::pipe2(0);
    let pipe = Fd::new(ends[0], "pipe");
    set_option(pipe, TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    option(pipe, SOCKET, libc::SO_TYPE, "SO_TYPE");
}

fn nodelay_and_cork(v: Variant) {
    let (client, server) = v.pair();
    set_option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    set_option(client, TCP, libc::TCP_CORK, "TCP_CORK", 1);
    send(client, b"corked ", 0);
    send(client, b"data", 0);
    set_option(client, TCP, libc::TCP_CORK, "TCP_CORK", 0);
    await_queued(server, 11);
    recv(server, 32, 0);
    option(client, TCP, libc::TCP_CORK, "TCP_CORK");
    set_option(server, TCP, libc::TCP_QUICKACK, "TCP_QUICKACK", 1);
}

fn cork_holds_back(v: Variant) {
    // A cork that is never pulled is pulled by the kernel after 200 ms.
    let (client, server) = v.pair();
    set_option(client, TCP, libc::TCP_CORK, "TCP_CORK", 1);
    send(client, b"late", 0);
    poll(&[(server, libc::POLLIN)], 10_000);
    recv(server, 8, 0);
}

fn defer_accept(v: Variant) {
    let listener = v.bound();
    set_option(listener, TCP, libc::TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT", 5);
    sys::listen(listener.raw, 8);
    poll_now(listener);
    let client = v.client();
    connect(client, &v.address_of(listener));
    poll_now(client);
    send(client, b"now", 0);
    await_readable(listener);
    let server = accept(listener, "server");
    recv(server, 8, libc::MSG_DONTWAIT);
}

fn read_only_options(v: Variant) {
    let (client, _server) = v.pair();
    for (number, name) in [
        (libc::SO_TYPE, "SO_TYPE"),
        (libc::SO_ERROR, "SO_ERROR"),
        (libc::SO_DOMAIN, "SO_DOMAIN"),
        (libc::SO_PROTOCOL, "SO_PROTOCOL"),
        (libc::SO_ACCEPTCONN, "SO_ACCEPTCONN"),
    ] {
        set_option(client, SOCKET, number, name, 1);
    }
}

fn tcp_info_state(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let state = |fd: Fd| {
        let mut value = [0; 8];
        let (ret, length) = sys::getsockopt(fd.raw, TCP, libc::TCP_INFO, &mut value);
        trace!("TCP_INFO({}) = {ret} state {} length {length}", fd.name, value[0]);
    };
    state(client);
    state(server);
    state(listener);
    state(v.named_client("fresh"));
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    state(server);
}

fn listener_options(v: Variant) {
    let listener = v.listener();
    set_option(listener, SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", 1);
    option(listener, SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR");
    set_option(listener, TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    so_error(listener);
    if v.listener_domain() == libc::AF_INET6 {
        option(listener, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY");
        set_option(listener, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", 1);
    }
    let (client, server) = v.pair_on(listener);
    option(server, TCP, libc::TCP_NODELAY, "TCP_NODELAY");
    option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY");
}

fn after_peer_closed(v: Variant) {
    let (client, server) = v.pair();
    close(server);
    await_hangup(client);
    set_option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    option(client, TCP, libc::TCP_NODELAY, "TCP_NODELAY");
    set_option(client, SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1);
    option(client, SOCKET, libc::SO_ERROR, "SO_ERROR");
}

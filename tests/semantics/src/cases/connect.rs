//! connect: its states, its errors, and what it leaves alone.

use crate::case::axes::{ALL_FAMILIES, FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::{Family, Variant, port_of};
use beeline_testkit::sys::{self, RawAddress};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const GROUP: Group = Group {
    name: "connect",
    cases: &[
        Case::new("blocking_then_data_both_ways", ALL_FAMILIES, blocking_then_data_both_ways),
        Case::new("nonblocking_states", ALL_FAMILIES, nonblocking_states),
        Case::new("second_connect_when_blocking", FAMILY, second_connect_when_blocking),
        Case::new("refused", ALL_FAMILIES, refused).on_any_path(),
        Case::new("refused_nonblocking", ALL_FAMILIES, refused_nonblocking).on_any_path(),
        Case::new("again_after_refused", FAMILY, again_after_refused).on_any_path(),
        Case::new("before_anybody_accepts", ALL_FAMILIES, before_anybody_accepts).on_any_path(),
        Case::new("many_before_accept", FAMILY, many_before_accept).on_any_path(),
        Case::new("unpolled_listener", FAMILY, unpolled_listener).on_any_path(),
        Case::new("to_own_address", FAMILY, to_own_address).on_any_path(),
        Case::new("on_a_listener", FAMILY, on_a_listener).on_any_path(),
        Case::new("bad_arguments", ONCE, bad_arguments).on_any_path(),
        Case::new("wrong_family", ONCE, wrong_family).on_any_path(),
        Case::new("unspecified_address", FAMILY, unspecified_address).on_any_path(),
        Case::new("unspecified_address_of_the_bound", ONCE, unspecified_address_of_the_bound).on_any_path(),
        Case::new("bound_client", FAMILY, bound_client).on_any_path(),
        Case::new("bound_clients_in_turn", FAMILY, bound_clients_in_turn),
        Case::new("bound_to_one_port_each_time", FAMILY, bound_to_one_port_each_time),
        Case::new("dissolve_by_af_unspec", ONCE, dissolve_by_af_unspec).on_any_path().deviates(
            "after connecting to AF_UNSPEC the first send says EPIPE, not ECONNRESET: the fd is a fresh TCP socket",
        ),
        Case::new("calls_before_connect", FAMILY | MODE, calls_before_connect).on_any_path(),
        Case::new("flags_survive", FAMILY | MODE, flags_survive),
        Case::new("nonblocking_wait_by_poll", FAMILY, nonblocking_wait_by_poll),
        Case::new("nonblocking_wait_by_select", FAMILY, nonblocking_wait_by_select),
        Case::new("nonblocking_wait_by_epoll", FAMILY, nonblocking_wait_by_epoll),
        Case::new("sequence_of_connections", FAMILY, sequence_of_connections),
        Case::new("descriptor_numbers", FAMILY, descriptor_numbers),
    ],
};

fn blocking_then_data_both_ways(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(client, b"request", 0);
    await_queued(server, 7);
    recv(server, 64, 0);
    send(server, b"answer", 0);
    await_queued(client, 6);
    recv(client, 64, 0);
    close(client);
    await_hangup(server);
    recv(server, 64, 0);
    close(server);
}

fn nonblocking_states(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let address = v.address_of(listener);
    connect(client, &address);
    await_writable(client);
    poll_now(client);
    connect(client, &address);
    connect(client, &address);
    so_error(client);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    recv(client, 8, 0);
    send(client, b"x", 0);
    await_readable(server);
    recv(server, 8, 0);
}

fn second_connect_when_blocking(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let address = v.address_of(listener);
    connect(client, &address);
    connect(client, &address);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    connect(client, &address);
    connect(server, &address);
    send(client, b"still fine", 0);
    await_readable(server);
    recv(server, 64, 0);
}

/// An address where nobody listens: a port that was just given up.
fn vacant(v: Variant) -> RawAddress {
    // The socket keeps the port without listening, so nobody else can listen there either.
    let holder = v.bound();
    v.address_of(holder)
}

fn refused(v: Variant) {
    let client = v.client();
    let address = vacant(v);
    connect(client, &address);
    so_error(client);
    poll_now(client);
    send(client, b"x", libc::MSG_NOSIGNAL);
    recv(client, 8, 0);
    close(client);
}

fn refused_nonblocking(v: Variant) {
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let address = vacant(v);
    connect(client, &address);
    await_events(client, libc::POLLERR);
    poll_now(client);
    so_error(client);
    so_error(client);
    poll_now(client);
    close(client);
}

fn again_after_refused(v: Variant) {
    let client = v.client();
    let holder = v.bound();
    let address = v.address_of(holder);
    connect(client, &address);
    listen(holder, 8);
    poll(&[(holder, libc::POLLIN)], 0);
    connect(client, &address);
    let server = accept(holder, "server");
    send(client, b"now", 0);
    await_readable(server);
    recv(server, 8, 0);
}

fn before_anybody_accepts(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    send(client, b"early ", 0);
    send(client, b"bird", 0);
    await_readable(listener);
    let server = accept(listener, "server");
    await_queued(server, 10);
    recv(server, 64, 0);
    let hasty = v.named_client("hasty");
    connect(hasty, &v.address_of(listener));
    send(hasty, b"gone", 0);
    close(hasty);
    await_readable(listener);
    let orphan = accept(listener, "orphan");
    await_hangup(orphan);
    recv(orphan, 64, 0);
    recv(orphan, 64, 0);
}

fn many_before_accept(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let names = ["one", "two", "three", "four"];
    for name in names {
        let client = v.named_client(name);
        connect(client, &address);
        send(client, name.as_bytes(), 0);
    }
    let mut heard: Vec<Vec<u8>> = Vec::new();
    for _ in names {
        await_readable(listener);
        let server = accept(listener, "server");
        await_readable(server);
        let mut buffer = vec![0; 16];
        let ret = sys::recv(server.raw, &mut buffer, 0);
        buffer.truncate(ret.size());
        heard.push(buffer);
    }
    let in_order = heard.iter().zip(names).all(|(data, name)| data == name.as_bytes());
    trace!("accepted in the order of connecting: {in_order}");
}

fn unpolled_listener(v: Variant) {
    let listener = v.listener_with(4);
    let client = v.client();
    connect(client, &v.address_of(listener));
    send(client, b"hello", 0);
    let server = accept(listener, "server");
    await_queued(server, 5);
    recv(server, 16, 0);
    send(server, b"there", 0);
    await_queued(client, 5);
    recv(client, 16, 0);
}

fn to_own_address(v: Variant) {
    // A socket that connects to the address it is bound to itself: TCP's simultaneous open with oneself.
    let client = v.client();
    let own = RawAddress::new(v.target(0));
    bind(client, &own);
    let address = RawAddress::new(v.target(port_of(client)));
    connect(client, &address);
    send(client, b"to myself", 0);
    await_readable(client);
    recv(client, 64, 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(client);
    recv(client, 64, 0);
}

fn on_a_listener(v: Variant) {
    let listener = v.listener();
    connect(listener, &v.address_of(listener));
    recv(listener, 8, libc::MSG_DONTWAIT);
    send(listener, b"x", libc::MSG_NOSIGNAL);
    poll_now(listener);
}

fn bad_arguments(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let client = v.client();
    trace!("null address: {}", sys::connect_at(client.raw, 0, 16));
    trace!("short address: {}", sys::connect_at(client.raw, &raw const address.storage as usize, 8));
    trace!("empty address: {}", sys::connect_at(client.raw, &raw const address.storage as usize, 0));
    trace!("huge address: {}", sys::connect_at(client.raw, &raw const address.storage as usize, 4096));
    trace!("bad fd: {}", sys::connect(crate::child::bad_fd().raw, &address));
    let (_, pipe) = sys::pipe2(0);
    trace!("pipe: {}", sys::connect(pipe[0], &address));
    connect(client, &address);
}

fn wrong_family(v: Variant) {
    let listener = v.listener();
    let v6 = Variant { family: Family::V6, ..v };
    let client = v.client();
    connect(client, &v6.address_of(v6.listener()));
    let mut odd = v.address_of(listener);
    odd.storage.ss_family = 99;
    connect(client, &odd);
    connect(client, &v.address_of(listener));
}

fn unspecified_address(v: Variant) {
    // 0.0.0.0 and :: mean this host to connect.
    let listener = v.listener();
    let client = v.client();
    let ip = match v.target(0).ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    connect(client, &RawAddress::new(SocketAddr::new(ip, port_of(listener))));
    let server = accept(listener, "server");
    let (_, peer) = sys::getpeername(client.raw, 128);
    trace!("peer ip {:?}", peer.decode().map(|address| address.ip()));
    let (_, own) = sys::getsockname(server.raw, 128);
    trace!("server ip {:?}", own.decode().map(|address| address.ip()));
    send(client, b"x", 0);
    await_readable(server);
    recv(server, 8, 0);
}

fn unspecified_address_of_the_bound(v: Variant) {
    // Over IPv4 it means the bound address, over IPv6 loopback. Which of both an IPv6 socket connects over is told by
    // the address that it is bound to.
    let listener = Variant { family: Family::Dual, ..v }.listener();
    let port = port_of(listener);
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    for (bound, any) in [
        ("127.0.0.2", "0.0.0.0"),
        ("::1", "::"),
        ("::ffff:127.0.0.2", "::"),
        ("::ffff:127.0.0.2", "::ffff:0.0.0.0"),
        ("::ffff:0.0.0.0", "::"),
        ("::", "::ffff:0.0.0.0"),
    ] {
        let family = if ip(bound).is_ipv4() { Family::V4 } else { Family::V6 };
        let client = Variant { family, ..v }.client();
        bind(client, &RawAddress::new(SocketAddr::new(ip(bound), 0)));
        connect(client, &RawAddress::new(SocketAddr::new(ip(any), port)));
        let server = accept(listener, "server");
        let shown = |(_, name): (_, RawAddress)| name.decode().map(|address| address.ip());
        trace!("{bound} to {any}: {:?}", shown(sys::getpeername(client.raw, 128)));
        trace!("from {:?}", shown(sys::getsockname(client.raw, 128)));
        trace!("seen {:?}", shown(sys::getsockname(server.raw, 128)));
        send(client, b"x", 0);
        await_readable(server);
        recv(server, 8, 0);
        close(client);
        close(server);
    }
}

fn bound_client(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    bind(client, &RawAddress::new(v.target(0)));
    let port = port_of(client);
    connect(client, &v.address_of(listener));
    let (ret, peer) = {
        let ret = crate::across::accept_address(listener.raw, 128);
        (ret.0, ret.1)
    };
    let server = Fd::new(ret.value as i32, "server");
    trace!("kept its port: {}", port_of(client) == port);
    trace!("server sees it: {}", peer.decode().map(|address| address.port()) == Some(port));
    let rival = v.named_client("rival");
    bind(rival, &RawAddress::new(v.target(port)));
    send(server, b"hi", 0);
    await_readable(client);
    recv(client, 8, 0);
}

fn bound_clients_in_turn(v: Variant) {
    // Each has its own address, whatever the connection before had.
    let listener = v.listener();
    for binds in [true, true, false, true, false, false, true] {
        let client = v.client();
        if binds {
            bind(client, &RawAddress::new(v.target(0)));
        }
        let bound = port_of(client);
        connect(client, &v.address_of(listener));
        let (ret, peer) = crate::across::accept_address(listener.raw, 128);
        let server = Fd::new(ret.value as i32, "server");
        let shown = |(_, name): (_, RawAddress)| name.decode();
        let own = shown(sys::getsockname(client.raw, 128));
        trace!("kept: {}", bound == 0 || port_of(client) == bound);
        trace!("accept tells it: {}", peer.decode().map(|address| address.port()) == own.map(|address| address.port()));
        trace!("so does getpeername: {}", shown(sys::getpeername(server.raw, 128)) == peer.decode());
        let rival = v.named_client("rival");
        if binds {
            bind(rival, &RawAddress::new(v.target(bound)));
        }
        send(client, b"there", 0);
        await_queued(server, 5);
        recv(server, 8, 0);
        send(server, b"back", 0);
        await_queued(client, 4);
        recv(client, 8, 0);
        close(rival);
        close(client);
        await_hangup(server);
        close(server);
    }
}

fn bound_to_one_port_each_time(v: Variant) {
    // What is kept of the connection before is in nobody's way, whoever ends it how.
    let listener = v.listener();
    let mut port = 0;
    for _ in 0..6 {
        let client = v.client();
        set_option(client, libc::SOL_SOCKET, libc::SO_REUSEADDR, "REUSEADDR", 1);
        bind(client, &RawAddress::new(v.target(port)));
        port = port_of(client);
        connect(client, &v.address_of(listener));
        let server = accept(listener, "server");
        send(client, b"there", 0);
        await_queued(server, 5);
        recv(server, 8, 0);
        close(client);
        await_hangup(server);
        recv(server, 8, 0);
        shutdown(server, libc::SHUT_WR);
        close(server);
    }
}

fn dissolve_by_af_unspec(v: Variant) {
    let (client, server) = v.pair();
    let nobody = RawAddress { length: 16, ..RawAddress::default() };
    connect(client, &nobody);
    await_hangup(server);
    poll_now(server);
    recv(server, 8, libc::MSG_DONTWAIT);
    send(client, b"x", libc::MSG_NOSIGNAL);
}

fn calls_before_connect(v: Variant) {
    let client = v.client();
    sys::set_nonblocking(client.raw, v.nonblocking);
    poll_now(client);
    recv(client, 8, 0);
    send(client, b"x", libc::MSG_NOSIGNAL);
    shutdown(client, libc::SHUT_WR);
    fionread(client);
    so_error(client);
    trace!("getpeername: {}", sys::getpeername(client.raw, 128).0);
    trace!("accept: {}", crate::across::accept(client.raw));
}

fn flags_survive(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    sys::set_nonblocking(client.raw, v.nonblocking);
    sys::fcntl(client.raw, libc::F_SETFD, libc::FD_CLOEXEC);
    connect(client, &v.address_of(listener));
    await_writable(client);
    trace::write_note(format_args!("pair"));
    fcntl(client, libc::F_GETFD, "F_GETFD", 0);
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    let server = accept(listener, "server");
    fcntl(server, libc::F_GETFD, "F_GETFD", 0);
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
}

fn nonblocking_wait(v: Variant, wait: fn(Fd)) {
    let listener = v.listener();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    connect(client, &v.address_of(listener));
    wait(client);
    so_error(client);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(client, b"through", 0);
    await_readable(server);
    recv(server, 16, 0);
}

fn nonblocking_wait_by_poll(v: Variant) {
    nonblocking_wait(v, |client| {
        poll(&[(client, libc::POLLOUT | libc::POLLIN)], 10_000);
    });
}

fn nonblocking_wait_by_select(v: Variant) {
    nonblocking_wait(v, |client| {
        select(&[client], &[client], &[client], 10_000);
    });
}

fn nonblocking_wait_by_epoll(v: Variant) {
    nonblocking_wait(v, |client| {
        let set = epoll_create("set");
        epoll_add(set, client, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP);
        epoll_wait(set, 4, 10_000);
    });
}

fn sequence_of_connections(v: Variant) {
    let listener = v.listener();
    for round in 0..20_u8 {
        let (client, server) = v.pair_on(listener);
        send(client, &[round; 3], 0);
        await_queued(server, 3);
        recv(server, 8, 0);
        if round % 2 == 0 {
            close(client);
            await_hangup(server);
            recv(server, 8, 0);
            close(server);
        } else {
            close(server);
            await_hangup(client);
            recv(client, 8, 0);
            close(client);
        }
    }
}

fn descriptor_numbers(v: Variant) {
    // The library keeps out of the numbers that a program counts on: the lowest free one, every time.
    let first = sys::dup(0).value;
    sys::close(first as i32);
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let again = v.named_client("again");
    trace!("listener +{}", i64::from(listener.raw) - first);
    trace!("client +{}", i64::from(client.raw) - first);
    trace!("server +{}", i64::from(server.raw) - first);
    trace!("next socket +{}", i64::from(again.raw) - first);
    close(client);
    let reused = v.named_client("reused");
    trace!("reused +{}", i64::from(reused.raw) - first);
}

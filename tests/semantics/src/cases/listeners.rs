//! Listeners: backlog, closing, REUSEPORT groups, dual stack, listeners that are inherited.

use crate::case::axes::{ALL_FAMILIES, FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::{Family, Variant, port_of};
use beeline_testkit::sys::{self, RawAddress};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub const GROUP: Group = Group {
    name: "listeners",
    cases: &[
        Case::new("states_of_a_socket", FAMILY, states_of_a_socket).on_any_path(),
        Case::new("listen_errors", ONCE, listen_errors).on_any_path(),
        Case::new("data_calls_on_a_listener", FAMILY, data_calls_on_a_listener),
        Case::new("closed_with_clients_waiting", FAMILY, closed_with_clients_waiting).on_any_path(),
        Case::new("closed_with_clients_that_ask", FAMILY, closed_with_clients_that_ask),
        Case::new("closed_while_connections_live", ALL_FAMILIES, closed_while_connections_live),
        Case::new("connect_after_close", ALL_FAMILIES, connect_after_close).on_any_path(),
        Case::new("reopened_on_the_same_port", FAMILY, reopened_on_the_same_port),
        Case::new("reuseport_group", FAMILY, reuseport_group),
        Case::new("reuseport_member_leaves", FAMILY, reuseport_member_leaves),
        Case::new("wildcard_and_exact", ONCE, wildcard_and_exact),
        Case::new("dual_stack_takes_both", ONCE, dual_stack_takes_both),
        Case::new("v6only_takes_one", ONCE, v6only_takes_one).on_any_path(),
        Case::new("other_loopback_address", ONCE, other_loopback_address),
        Case::new("inherited_by_a_child", FAMILY, inherited_by_a_child).on_any_path(),
        Case::new("parent_closes_child_serves", FAMILY, parent_closes_child_serves).on_any_path(),
        Case::new("child_exits_parent_serves", FAMILY, child_exits_parent_serves),
        Case::new("bind_in_use", FAMILY, bind_in_use).on_any_path(),
        Case::new("listen_again_with_another_backlog", FAMILY, listen_again),
        Case::new("nonblocking_accept_loop", FAMILY, nonblocking_accept_loop),
        Case::new("connects_to_itself_by_two_sockets", FAMILY, two_sockets_of_one_process),
        Case::new("backlog_of_many", FAMILY, backlog_of_many).on_any_path(),
        Case::new("implicit_bind", ONCE, implicit_bind),
    ],
};

fn states_of_a_socket(v: Variant) {
    let fresh = v.client();
    poll_now(fresh);
    trace!("accept {}", crate::across::accept(fresh.raw));
    let bound = v.bound();
    poll_now(bound);
    listen(bound, 4);
    poll_now(bound);
    bind(bound, &RawAddress::new(v.target(0)));
    shutdown(bound, libc::SHUT_WR);
    poll_now(bound);
    shutdown(bound, libc::SHUT_RD);
    poll_now(bound);
    listen(bound, 4);
    poll_now(bound);
    let client = v.client();
    connect(client, &v.address_of(bound));
    await_readable(bound);
    accept(bound, "server");
}

fn listen_errors(v: Variant) {
    let (client, server) = v.pair();
    listen(client, 4);
    listen(server, 4);
    listen(crate::child::bad_fd(), 4);
    let (_, ends) = sys::pipe2(0);
    listen(Fd::new(ends[0], "pipe"), 4);
    let datagram = socket(libc::AF_INET, libc::SOCK_DGRAM, 0, "udp");
    listen(datagram, 4);
    let odd = v.bound();
    listen(odd, -1);
    listen(odd, 0);
}

fn data_calls_on_a_listener(v: Variant) {
    let listener = v.listener();
    recv(listener, 8, libc::MSG_DONTWAIT);
    read(listener, 8);
    send(listener, b"x", libc::MSG_NOSIGNAL);
    fionread(listener);
    trace!("getpeername {}", sys::getpeername(listener.raw, 128).0);
    fcntl(listener, libc::F_GETFL, "F_GETFL", 0);
}

fn closed_with_clients_waiting(v: Variant) {
    // Connected and never accepted: the clients are reset.
    let listener = v.listener();
    let (one, two) = (v.named_client("one"), v.named_client("two"));
    connect(one, &v.address_of(listener));
    connect(two, &v.address_of(listener));
    send(one, b"anybody?", 0);
    await_readable(listener);
    close(listener);
    for client in [one, two] {
        await_events(client, libc::POLLERR | libc::POLLHUP);
        poll_now(client);
        recv(client, 8, libc::MSG_DONTWAIT);
        recv(client, 8, libc::MSG_DONTWAIT);
    }
}

fn closed_while_connections_live(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    close(listener);
    send(client, b"still", 0);
    await_queued(server, 5);
    recv(server, 8, 0);
    send(server, b"here", 0);
    await_queued(client, 4);
    recv(client, 8, 0);
}

fn connect_after_close(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let (client, server) = v.pair_on(listener);
    close(listener);
    connect(v.named_client("late"), &address);
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 8, 0);
}

fn reopened_on_the_same_port(v: Variant) {
    let listener = v.bound();
    sys::setsockopt(listener.raw, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32.to_ne_bytes());
    listen(listener, 8);
    poll_now(listener);
    let (client, server) = v.pair_on(listener);
    let name = sys::getsockname(listener.raw, 128).1;
    close(listener);
    let again = socket(v.listener_domain(), libc::SOCK_STREAM, 0, "again");
    if v.family == Family::Dual {
        sys::setsockopt(again.raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes());
    }
    sys::setsockopt(again.raw, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32.to_ne_bytes());
    bind(again, &name);
    listen(again, 8);
    poll_now(again);
    let (client2, server2) = v.blocking_pair_on(again, "client2", "server2");
    send(client, b"old", 0);
    send(client2, b"new", 0);
    await_queued(server, 3);
    await_queued(server2, 3);
    recv(server, 8, 0);
    recv(server2, 8, 0);
}

/// Two listeners on one port.
fn group(v: Variant) -> [Fd; 2] {
    let one = Fd::new(sys::socket(v.listener_domain(), libc::SOCK_STREAM, 0).value as i32, "one");
    let two = Fd::new(sys::socket(v.listener_domain(), libc::SOCK_STREAM, 0).value as i32, "two");
    let mut port = 0;
    for member in [one, two] {
        if v.family == Family::Dual {
            sys::setsockopt(member.raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes());
        }
        set_option(member, libc::SOL_SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", 1);
        let ip = match v.family {
            Family::Dual => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => v.target(0).ip(),
        };
        bind(member, &RawAddress::new(SocketAddr::new(ip, port)));
        listen(member, 64);
        poll_now(member);
        port = port_of(one);
    }
    [one, two]
}

fn reuseport_group(v: Variant) {
    // Which member gets a client is the kernel's choice; each client is served by exactly one.
    let members = group(v);
    let mut served = 0;
    for round in 0..24_u8 {
        let client = v.client();
        sys::connect(client.raw, &v.address_of(members[0]));
        sys::send(client.raw, &[round], 0);
        let mut entries = members.map(|member| libc::pollfd { fd: member.raw, events: libc::POLLIN, revents: 0 });
        let ret = sys::poll(&mut entries, 10_000);
        let ready: Vec<&libc::pollfd> = entries.iter().filter(|entry| entry.revents != 0).collect();
        if ret.value != 1 || ready.len() != 1 {
            return trace!("poll {ret}, {} ready", ready.len());
        }
        let server = Fd::new(crate::across::accept(ready[0].fd).value as i32, "server");
        trace::write_note(format_args!("pair"));
        await_queued(server, 1);
        let mut byte = [0];
        sys::recv(server.raw, &mut byte, 0);
        served += u32::from(byte[0] == round);
        sys::close(client.raw);
        sys::close(server.raw);
    }
    trace!("served {served}");
}

fn reuseport_member_leaves(v: Variant) {
    let [one, two] = group(v);
    let address = v.address_of(one);
    close(one);
    for _ in 0..8 {
        let client = v.client();
        connect(client, &address);
        await_readable(two);
        let server = accept(two, "server");
        trace::write_note(format_args!("pair"));
        send(server, b"x", 0);
        await_queued(client, 1);
        recv(client, 4, 0);
    }
}

fn wildcard_and_exact(v: Variant) {
    // An exact listener beats a wildcard one on the same port.
    let wildcard = Variant { family: Family::Wildcard, ..v };
    let make = |ip: &str, port: u16, name| {
        let fd = Fd::new(sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32, name);
        sys::setsockopt(fd.raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1_i32.to_ne_bytes());
        if let Ok(ip) = ip.parse() {
            bind(fd, &RawAddress::new(SocketAddr::new(ip, port)));
        }
        listen(fd, 8);
        poll_now(fd);
        fd
    };
    let any = make("0.0.0.0", 0, "any");
    let exact = make("127.0.0.1", port_of(any), "exact");
    let client = v.client();
    connect(client, &wildcard.address_of(any));
    await_readable(exact);
    poll_now(any);
    accept(exact, "server");
    trace::write_note(format_args!("pair"));
    close(exact);
    let second = v.named_client("second");
    connect(second, &wildcard.address_of(any));
    await_readable(any);
    accept(any, "server");
    trace::write_note(format_args!("pair"));
}

fn dual_stack_takes_both(v: Variant) {
    let dual = Variant { family: Family::Dual, ..v };
    let listener = dual.listener();
    let port = port_of(listener);
    for family in [Family::V4, Family::V6, Family::Mapped] {
        let v = Variant { family, ..v };
        let client = v.client();
        connect(client, &RawAddress::new(v.target(port)));
        let (ret, peer) = crate::across::accept_address(listener.raw, 128);
        trace::write_note(format_args!("pair"));
        trace!("accepted {} from {:?}", ret.is_ok(), peer.decode().map(|a| a.ip()));
        let server = Fd::new(ret.value as i32, "server");
        send(client, b"x", 0);
        await_queued(server, 1);
        recv(server, 8, 0);
    }
}

fn v6only_takes_one(v: Variant) {
    let listener = Fd::new(sys::socket(libc::AF_INET6, libc::SOCK_STREAM, 0).value as i32, "listener");
    set_option(listener, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", 1);
    bind(listener, &RawAddress::new(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)));
    listen(listener, 8);
    poll_now(listener);
    let port = port_of(listener);
    let six = Variant { family: Family::V6, ..v };
    connect(six.named_client("six"), &RawAddress::new(six.target(port)));
    accept(listener, "server");
    connect(v.named_client("four"), &RawAddress::new(v.target(port)));
}

fn other_loopback_address(v: Variant) {
    // All of 127/8 is this host.
    let listener = Fd::new(sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32, "listener");
    let other: SocketAddr = SocketAddr::from(([127, 9, 8, 7], 0));
    bind(listener, &RawAddress::new(other));
    listen(listener, 8);
    poll_now(listener);
    let target = SocketAddr::from(([127, 9, 8, 7], port_of(listener)));
    let client = v.client();
    connect(client, &RawAddress::new(target));
    let (ret, peer) = crate::across::accept_address(listener.raw, 128);
    trace::write_note(format_args!("pair"));
    trace!("peer {:?}", peer.decode().map(|a| a.ip()));
    let server = Fd::new(ret.value as i32, "server");
    trace!("server {:?}", sys::getsockname(server.raw, 128).1.decode().map(|a| a.ip()));
    send(server, b"x", 0);
    await_queued(client, 1);
    recv(client, 8, 0);
    connect(v.named_client("elsewhere"), &RawAddress::new(v.target(port_of(listener))));
}

fn serve_one(listener: Fd) {
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    recv(server, 4, libc::MSG_WAITALL);
    send(server, b"served", 0);
    close(server);
}

fn ask_one(v: Variant, address: &RawAddress) {
    let client = v.client();
    connect(client, address);
    send(client, b"ask!", 0);
    recv(client, 6, libc::MSG_WAITALL);
    recv(client, 6, 0);
    close(client);
}

fn inherited_by_a_child(v: Variant) {
    // The parent never waits on its listener; the child serves.
    let listener = v.listener_with(8);
    let child = sys::fork(|| {
        trace::set_actor("child");
        serve_one(listener);
        serve_one(listener);
        0
    });
    ask_one(v, &v.address_of(listener));
    ask_one(v, &v.address_of(listener));
    trace!("child: {}", sys::wait_for(child));
}

fn parent_closes_child_serves(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let child = sys::fork(|| {
        trace::set_actor("child");
        poll(&[(listener, libc::POLLIN)], -1);
        serve_one(listener);
        0
    });
    close(listener);
    ask_one(v, &address);
    trace!("child: {}", sys::wait_for(child));
    connect(v.named_client("late"), &address);
}

fn child_exits_parent_serves(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let child = sys::fork(|| {
        poll(&[(listener, libc::POLLIN)], 0);
        0
    });
    trace!("child: {}", sys::wait_for(child));
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        ask_one(v, &address);
    });
    serve_one(listener);
    let _ = thread.join();
}

fn bind_in_use(v: Variant) {
    let listener = v.listener();
    let rival = socket(v.listener_domain(), libc::SOCK_STREAM, 0, "rival");
    bind(rival, &sys::getsockname(listener.raw, 128).1);
    listen(rival, 4);
    let foreign = v.named_client("foreign");
    let elsewhere: SocketAddr = match v.client_domain() == libc::AF_INET6 {
        true => "[2001:db8::1]:0".parse().unwrap_or(v.target(0)),
        false => "192.0.2.1:0".parse().unwrap_or(v.target(0)),
    };
    bind(foreign, &RawAddress::new(elsewhere));
    bind(foreign, &RawAddress::new(v.target(0)));
    bind(foreign, &RawAddress::new(v.target(0)));
}

fn listen_again(v: Variant) {
    let listener = v.listener();
    listen(listener, 2);
    let (client, server) = v.pair_on(listener);
    listen(listener, 64);
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 8, 0);
    let (_client, _server) = v.blocking_pair_on(listener, "client2", "server2");
}

fn nonblocking_accept_loop(v: Variant) {
    let listener = v.listener();
    sys::set_nonblocking(listener.raw, true);
    let clients: Vec<Fd> = (0..6).map(|_| v.client()).collect();
    for client in &clients {
        connect(*client, &v.address_of(listener));
    }
    let mut accepted = 0;
    until("all are accepted", || {
        while crate::across::accept(listener.raw).is_ok() {
            accepted += 1;
        }
        accepted == 6
    });
    accept(listener, "none");
    poll_now(listener);
}

fn two_sockets_of_one_process(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    send(client, b"to server", 0);
    send(server, b"to client", 0);
    await_queued(client, 9);
    await_queued(server, 9);
    recv(client, 16, 0);
    recv(server, 16, 0);
    close(client);
    await_hangup(server);
    recv(server, 16, 0);
    close(server);
}

fn backlog_of_many(v: Variant) {
    let listener = v.listener_with(64);
    poll_now(listener);
    let address = v.address_of(listener);
    let clients: Vec<Fd> = (0..50).map(|_| v.client()).collect();
    for (at, client) in clients.iter().enumerate() {
        sys::connect(client.raw, &address);
        sys::send(client.raw, &[at as u8], 0);
    }
    let mut heard = std::collections::BTreeSet::new();
    for _ in 0..50 {
        await_readable(listener);
        let server = Fd::new(crate::across::accept(listener.raw).value as i32, "server");
        await_readable(server);
        let mut byte = [0];
        sys::recv(server.raw, &mut byte, 0);
        heard.insert(byte[0]);
        sys::send(server.raw, &byte, 0);
    }
    trace!("heard {}", heard.len());
    let mut right = 0;
    for (at, client) in clients.iter().enumerate() {
        let mut byte = [0];
        sys::recv(client.raw, &mut byte, 0);
        right += u32::from(byte[0] == at as u8);
    }
    trace!("answered {right}");
}

fn implicit_bind(v: Variant) {
    // listen without bind takes a port by itself.
    let listener = Fd::new(sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32, "listener");
    listen(listener, 8);
    poll_now(listener);
    trace!("has a port: {}", port_of(listener) > 0);
    let client = v.client();
    connect(client, &RawAddress::new(v.target(port_of(listener))));
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 8, 0);
}

/// How programs that connect without blocking learn that nobody took them: they ask for the error.
fn closed_with_clients_that_ask(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    // From here on the listener is served.
    poll_now(listener);
    let clients = [v.client(), v.client(), v.client()];
    for client in clients {
        connect(client, &address);
    }
    accept(listener, "server");
    close(listener);
    for client in clients {
        option(client, libc::SOL_SOCKET, libc::SO_ERROR, "SO_ERROR");
        option(client, libc::SOL_SOCKET, libc::SO_ERROR, "SO_ERROR");
        poll_now(client);
        send(client, b"late", libc::MSG_NOSIGNAL);
    }
}

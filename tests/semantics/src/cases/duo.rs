//! Two programs of which both, or only one, have the library: with one it is TCP, and nobody can tell.

use crate::case::axes::{ALL_FAMILIES, FAMILY, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall, RawAddress};

pub const GROUP: Group = Group {
    name: "duo",
    cases: &[
        Case::duo("question_and_answer", ALL_FAMILIES, answer_server, answer_client),
        Case::duo("nonblocking_client", FAMILY, answer_server, nonblocking_client),
        Case::duo("long_stream_up", FAMILY, stream_up_server, stream_up_client),
        Case::duo("long_stream_down", FAMILY, stream_down_server, stream_down_client),
        Case::duo("both_ways", ONCE, both_ways_server, both_ways_client),
        Case::duo("server_exits", FAMILY, exiting_server, deserted_client),
        Case::duo("server_exits_unread", FAMILY, exiting_unread_server, reset_client),
        Case::duo("server_aborts", FAMILY, aborting_server, deserted_client),
        Case::duo("client_is_killed", FAMILY, deserted_server, killed_client),
        Case::duo("client_is_killed_and_only_looked_for", FAMILY, busy_server, killed_client),
        Case::duo("half_close", FAMILY, half_close_server, half_close_client),
        Case::duo("epoll_echo", FAMILY | TRIGGER, epoll_server, many_clients),
        Case::duo("hundred_connections", FAMILY, sequential_server, sequential_client),
        Case::duo("forking_server", FAMILY, forking_server, sequential_client),
        Case::duo("late_server", FAMILY, late_server, clients_in_a_row).on_any_path(),
        Case::duo("names", ALL_FAMILIES, names_server, names_client),
    ],
};

fn accepted(listener: Fd) -> Fd {
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    server
}

fn answer_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    for _ in 0..50 {
        let question = recv(server, 8, libc::MSG_WAITALL);
        send(server, &question.iter().rev().copied().collect::<Vec<_>>(), 0);
    }
    recv(server, 8, 0);
    close(server);
}

fn ask_fifty(client: Fd) {
    for round in 0..50 {
        send(client, format!("ask {round:04}").as_bytes(), 0);
        recv(client, 8, libc::MSG_WAITALL);
    }
    close(client);
}

fn answer_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    ask_fifty(client);
}

fn nonblocking_client(_: Variant, client: Fd, target: &RawAddress) {
    sys::set_nonblocking(client.raw, true);
    connect(client, target);
    poll(&[(client, libc::POLLOUT)], -1);
    so_error(client);
    sys::set_nonblocking(client.raw, false);
    ask_fifty(client);
}

fn stream_up_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    receive_stream(server, 91, 64 << 20, 100_000);
    recv(server, 8, 0);
}

fn stream_up_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    send_stream(client, 92, 64 << 20, 70_000);
    close(client);
}

fn stream_down_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    send_stream(server, 93, 64 << 20, 100_000);
    shutdown(server, libc::SHUT_WR);
    recv(server, 8, 0);
}

fn stream_down_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    receive_stream(client, 94, 64 << 20, 30_000);
    recv(client, 8, 0);
    close(client);
}

fn both_ways(fd: Fd) {
    let sender = std::thread::spawn(move || {
        trace::set_actor(if fd.name == "server" { "server sends" } else { "client sends" });
        send_stream(fd, 95, 32 << 20, 50_000);
    });
    receive_stream(fd, 96, 32 << 20, 60_000);
    let _ = sender.join();
}

fn both_ways_server(_: Variant, listener: Fd) {
    both_ways(accepted(listener));
}

fn both_ways_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    both_ways(client);
}

fn exiting_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    recv(server, 4, libc::MSG_WAITALL);
    send(server, b"goodbye", 0);
    // The process ends without closing anything.
}

fn exiting_unread_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    recv(server, 2, libc::MSG_WAITALL);
    await_queued(server, 2);
}

fn aborting_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    recv(server, 4, libc::MSG_WAITALL);
    send(server, b"goodbye", 0);
    sys::kill(sys::process_id(), libc::SIGKILL);
}

fn deserted_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    send(client, b"ask!", 0);
    recv(client, 7, libc::MSG_WAITALL);
    await_hangup(client);
    poll_now(client);
    recv(client, 8, 0);
    send(client, b"x", libc::MSG_NOSIGNAL);
    await_events(client, libc::POLLHUP);
    send(client, b"y", libc::MSG_NOSIGNAL);
    so_error(client);
}

fn reset_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    send(client, b"ask!", 0);
    await_events(client, libc::POLLERR);
    poll_now(client);
    recv(client, 8, 0);
    recv(client, 8, 0);
    send(client, b"y", libc::MSG_NOSIGNAL);
}

fn deserted_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    recv(server, 4, libc::MSG_WAITALL);
    await_hangup(server);
    recv(server, 16, 0);
    recv(server, 16, 0);
    poll_now(server);
}

/// Is told of room whenever it asks, and tries to receive all the same.
fn busy_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    recv(server, 4, libc::MSG_WAITALL);
    recv(server, 8, libc::MSG_WAITALL);
    until("the end", || {
        sys::poll(&mut [libc::pollfd { fd: server.raw, events: libc::POLLIN | libc::POLLOUT, revents: 0 }], -1);
        sys::recv(server.raw, &mut [0; 8], libc::MSG_DONTWAIT).value == 0
    });
}

fn killed_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    send(client, b"ask!", 0);
    send(client, b"and more", 0);
    sys::kill(sys::process_id(), libc::SIGKILL);
}

fn half_close_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    let mut whole = Vec::new();
    loop {
        let mut buffer = [0; 1000];
        let ret = sys::recv(server.raw, &mut buffer, 0);
        if ret.value <= 0 {
            break;
        }
        whole.extend_from_slice(&buffer[..ret.size()]);
    }
    trace!("received {}", shown(&whole));
    poll_now(server);
    send(server, b"got it all", 0);
    close(server);
}

fn half_close_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    send(client, &[5; 5000], 0);
    shutdown(client, libc::SHUT_WR);
    recv(client, 10, libc::MSG_WAITALL);
    recv(client, 10, 0);
    poll_now(client);
}

/// An event loop that echoes, until forty clients have come and gone.
fn epoll_server(v: Variant, listener: Fd) {
    let set = epoll_create("set");
    sys::set_nonblocking(listener.raw, true);
    let entry = libc::EPOLLIN as u32 | v.trigger();
    sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, listener.raw, entry, listener.raw as u64);
    let (mut bytes, mut ended) = (0, 0);
    while ended < 40 {
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 16, -1, None);
        for event in events {
            let fd = { event.u64 } as i32;
            if fd == listener.raw {
                loop {
                    let ret = crate::across::accept4(listener.raw, libc::SOCK_NONBLOCK);
                    if !ret.is_ok() {
                        break;
                    }
                    trace::write_note(format_args!("pair"));
                    sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, ret.value as i32, entry, ret.value as u64);
                }
                continue;
            }
            let mut buffer = [0; 512];
            loop {
                let ret = sys::recv(fd, &mut buffer, 0);
                match ret.value {
                    1.. => {
                        bytes += ret.size();
                        sys::send(fd, &buffer[..ret.size()], libc::MSG_NOSIGNAL);
                    }
                    0 => {
                        ended += 1;
                        sys::close(fd);
                        break;
                    }
                    _ => break,
                }
            }
        }
    }
    trace!("echoed {bytes}");
}

fn many_clients(v: Variant, first: Fd, target: &RawAddress) {
    let mut clients = vec![first];
    clients.extend((1..40).map(|_| v.client()));
    for client in &clients {
        sys::connect(client.raw, target);
    }
    let mut right = 0;
    for round in 0..10_u8 {
        for (at, client) in clients.iter().enumerate() {
            sys::send(client.raw, &[round, at as u8, 7], 0);
        }
        for (at, client) in clients.iter().enumerate() {
            let mut back = [0; 3];
            sys::recv(client.raw, &mut back, libc::MSG_WAITALL);
            right += u32::from(back == [round, at as u8, 7]);
        }
    }
    trace!("right {right}");
}

fn sequential_server(_: Variant, listener: Fd) {
    for _ in 0..100 {
        let fd = crate::across::accept(listener.raw).value as i32;
        trace::write_note(format_args!("pair"));
        serve_sequential(fd);
        sys::close(fd);
    }
    trace!("served");
}

fn serve_sequential(fd: i32) {
    let mut buffer = [0; 16];
    let got = sys::recv(fd, &mut buffer, 0).size();
    sys::send(fd, &buffer[..got], libc::MSG_NOSIGNAL);
    sys::recv(fd, &mut buffer, 0);
}

fn forking_server(_: Variant, listener: Fd) {
    for _ in 0..100 {
        let fd = crate::across::accept(listener.raw).value as i32;
        trace::write_note(format_args!("pair"));
        let child = sys::fork(|| {
            sys::close(listener.raw);
            serve_sequential(fd);
            0
        });
        sys::close(fd);
        sys::wait_for(child);
    }
    trace!("served");
}

fn sequential_client(v: Variant, first: Fd, target: &RawAddress) {
    let mut right = 0;
    for round in 0..100_u32 {
        let client = if round == 0 { first } else { v.client() };
        let connected = sys::connect(client.raw, target);
        if !connected.is_ok() {
            trace!("connect {connected}");
        }
        sys::send(client.raw, &round.to_le_bytes(), 0);
        let mut back = [0; 4];
        sys::recv(client.raw, &mut back, libc::MSG_WAITALL);
        right += u32::from(back == round.to_le_bytes());
        sys::close(client.raw);
    }
    trace!("right {right}");
}

/// One that is at something else for a third of a second, and then takes its clients in the order in which they came.
fn late_server(_: Variant, listener: Fd) {
    let mut order = Vec::new();
    for number in 0..CLIENTS_IN_A_ROW {
        let fd = crate::across::accept(listener.raw).value as i32;
        let mut said = [0; 1];
        sys::recv(fd, &mut said, 0);
        order.push(said[0]);
        if number == 0 {
            trace::write_note(format_args!("pair"));
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        sys::send(fd, &said, libc::MSG_NOSIGNAL);
    }
    trace!("accepted {order:?}");
}

const CLIENTS_IN_A_ROW: u8 = 6;

fn clients_in_a_row(v: Variant, first: Fd, target: &RawAddress) {
    let clients = (0..CLIENTS_IN_A_ROW).map(|number| if number == 0 { first } else { v.client() });
    let clients: Vec<Fd> = clients
        .zip(0..)
        .map(|(client, number): (Fd, u8)| {
            trace!("connect {}", sys::connect(client.raw, target));
            sys::send(client.raw, &[number], 0);
            if number == 0 {
                // The server is about to be late.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            client
        })
        .collect();
    for client in clients {
        let mut back = [0; 1];
        sys::recv(client.raw, &mut back, libc::MSG_WAITALL);
        trace!("answered {back:?}");
    }
}

fn names_server(_: Variant, listener: Fd) {
    let server = accepted(listener);
    // The client sends its own name; it must be the server's peer.
    let said = recv_quietly(server);
    let (_, peer) = sys::getpeername(server.raw, 128);
    let (_, own) = sys::getsockname(server.raw, 128);
    trace!("own {:?} peer {:?}", own.decode().map(|a| a.ip()), peer.decode().map(|a| a.ip()));
    let port = peer.decode().map_or(0, |a| a.port());
    trace!("the port it says: {}", said == port.to_le_bytes());
}

fn recv_quietly(fd: Fd) -> [u8; 2] {
    let mut word = [0; 2];
    sys::recv(fd.raw, &mut word, libc::MSG_WAITALL);
    word
}

fn names_client(_: Variant, client: Fd, target: &RawAddress) {
    connect(client, target);
    let (_, own) = sys::getsockname(client.raw, 128);
    let (_, peer) = sys::getpeername(client.raw, 128);
    trace!("own {:?} peer {:?}", own.decode().map(|a| a.ip()), peer.decode().map(|a| a.ip()));
    trace!("peer is the target: {}", peer.decode() == target.decode());
    sys::send(client.raw, &own.decode().map_or(0, |a| a.port()).to_le_bytes(), 0);
}

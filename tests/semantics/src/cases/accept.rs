//! accept and accept4: what they return, what a new socket inherits, how addresses are cut.

use crate::case::axes::{ALL_FAMILIES, FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::child::bad_fd;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, RawAddress};

pub const GROUP: Group = Group {
    name: "accept",
    cases: &[
        Case::new("nothing_pending", FAMILY, nothing_pending),
        Case::new("inherits_no_flags", FAMILY, inherits_no_flags),
        Case::new("accept4_flags", FAMILY, accept4_flags),
        Case::new("accept4_unknown_flags", ONCE, accept4_unknown_flags),
        Case::new("address_of_the_peer", ALL_FAMILIES, address_of_the_peer),
        Case::new("address_cut_to_room", FAMILY, address_cut_to_room),
        Case::new("address_without_length", ONCE, |v| bad_pointers(v, 0)).on_any_path(),
        Case::new("unmapped_length", ONCE, |v| bad_pointers(v, 8)).on_any_path(),
        Case::new("bad_descriptors", ONCE, bad_descriptors),
        Case::new("inherits_options", FAMILY, inherits_options),
        Case::new("blocks_until_a_client_comes", ALL_FAMILIES, blocks_until_a_client_comes),
        Case::new("blocks_first_then_many", FAMILY, blocks_first_then_many),
        Case::new("two_threads_accept", FAMILY, two_threads_accept),
        Case::new("forked_workers_accept", FAMILY, forked_workers_accept),
        Case::new("workers_that_poll_first", FAMILY, workers_that_poll_first),
        Case::new("readable_means_acceptable_by_poll", FAMILY, |v| readable_means_acceptable(v, false)),
        Case::new("readable_means_acceptable_by_epoll", FAMILY, |v| readable_means_acceptable(v, true)),
        Case::new("accept_after_shutdown", FAMILY, accept_after_shutdown).on_any_path(),
        Case::new("shutdown_wakes_accept", FAMILY, shutdown_wakes_accept).on_any_path(),
        Case::new("listener_masks", ALL_FAMILIES, listener_masks),
        Case::new("accepts_after_client_left", FAMILY, accepts_after_client_left).on_any_path(),
        Case::new("accepts_after_client_reset", FAMILY, accepts_after_client_reset).on_any_path(),
        Case::new("of_one_that_left_before_one_that_comes_again", FAMILY, of_one_that_left_before_one_that_comes_again),
        Case::new("of_a_silent_client_put_off", ONCE, of_a_silent_client_put_off)
            .deviates("TCP_DEFER_ACCEPT is kept, and does not put off a client over a lane that says nothing"),
    ],
};

fn nothing_pending(v: Variant) {
    let listener = v.listener();
    sys::set_nonblocking(listener.raw, true);
    accept(listener, "none");
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    let server = accept(listener, "server");
    accept(listener, "none");
    send(server, b"x", 0);
    await_readable(client);
    recv(client, 4, 0);
}

fn inherits_no_flags(v: Variant) {
    let listener = v.listener();
    sys::set_nonblocking(listener.raw, true);
    sys::fcntl(listener.raw, libc::F_SETFD, libc::FD_CLOEXEC);
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    let server = accept(listener, "server");
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    fcntl(server, libc::F_GETFD, "F_GETFD", 0);
}

fn accept4_flags(v: Variant) {
    let listener = v.listener();
    for flags in [0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC] {
        let client = v.client();
        connect(client, &v.address_of(listener));
        let server = accept4(listener, flags, "server");
        fcntl(server, libc::F_GETFL, "F_GETFL", 0);
        fcntl(server, libc::F_GETFD, "F_GETFD", 0);
        close(client);
        await_hangup(server);
        recv(server, 1, 0);
        close(server);
    }
}

fn accept4_unknown_flags(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    accept4(listener, 1, "none");
    poll_now(listener);
    accept4(listener, 0, "server");
}

fn address_of_the_peer(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    let (ret, peer) = crate::across::accept_address(listener.raw, 128);
    let (_, own) = sys::getsockname(client.raw, 128);
    let (peer_ip, own_ip) = (peer.decode().map(|a| a.ip()), own.decode().map(|a| a.ip()));
    trace!("length {} ip {peer_ip:?}, client's own ip {own_ip:?}", peer.length);
    trace!("same port: {}", peer.decode().map(|a| a.port()) == own.decode().map(|a| a.port()));
    trace!("accepted: {}", ret.is_ok());
}

fn address_cut_to_room(v: Variant) {
    let listener = v.listener();
    for room in [0_u32, 1, 2, 4, 8, 16, 27, 28, 128] {
        let client = v.client();
        connect(client, &v.address_of(listener));
        let (ret, peer) = crate::across::accept_address(listener.raw, room);
        trace!("room {room}: ok {} length {} family {}", ret.is_ok(), peer.length, peer.storage.ss_family);
        close(client);
        sys::close(ret.value as i32);
    }
}

fn bad_pointers(v: Variant, length_place: usize) {
    let listener = v.listener();
    let mut room = RawAddress::default();
    let address = &raw mut room.storage as usize;
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    trace!("accept {}", sys::accept_at(listener.raw, address, length_place));
    sys::set_nonblocking(listener.raw, true);
    // Whether the connection is lost by that differs between kernels; the next client is what counts.
    while crate::across::accept(listener.raw).is_ok() {}
    sys::set_nonblocking(listener.raw, false);
    sys::close(client.raw);
    let client = v.client();
    connect(client, &v.address_of(listener));
    accept(listener, "server");
}

fn bad_descriptors(v: Variant) {
    trace!("bad fd: {}", crate::across::accept(bad_fd().raw));
    trace!("minus one: {}", crate::across::accept(-1));
    let (_, pipe) = sys::pipe2(0);
    trace!("pipe: {}", crate::across::accept(pipe[0]));
    let (client, server) = v.pair();
    accept(client, "none");
    accept(server, "none");
    let fresh = v.client();
    accept(fresh, "none");
    let datagram = socket(libc::AF_INET, libc::SOCK_DGRAM, 0, "udp");
    accept(datagram, "none");
}

fn inherits_options(v: Variant) {
    let listener = v.bound();
    set_option(listener, libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1);
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
    set_linger(listener, 1, 7);
    set_timeout(listener, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 20_000);
    sys::listen(listener.raw, 8);
    poll_now(listener);
    let client = v.client();
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    option(server, libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE");
    option(server, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY");
    option(server, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN");
    option(listener, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN");
    let mut value = [0; 16];
    sys::getsockopt(server.raw, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut value);
    trace!("SO_RCVTIMEO {value:?}");
    sys::getsockopt(server.raw, libc::SOL_SOCKET, libc::SO_LINGER, &mut value);
    trace!("SO_LINGER {:?}", &value[..8]);
}

fn blocks_until_a_client_comes(v: Variant) {
    let listener = v.listener();
    let thread = once_asleep("thread", move || {
        let client = v.client();
        connect(client, &v.address_of(listener));
        trace::write_note(format_args!("pair"));
        await_readable(client);
        recv(client, 16, 0);
        send(client, b"thanks", 0);
    });
    let server = accept(listener, "server");
    send(server, b"welcome", 0);
    await_queued(server, 6);
    recv(server, 16, 0);
    let _ = thread.join();
}

fn blocks_first_then_many(v: Variant) {
    // The listener was never polled: the first accept is the first sign of life.
    let listener = v.listener_with(16);
    let thread = once_asleep("thread", move || {
        for _ in 0..8 {
            let client = v.client();
            connect(client, &v.address_of(listener));
            await_readable(client);
            recv(client, 16, 0);
            close(client);
        }
    });
    for round in 0..8_u8 {
        let server = accept(listener, "server");
        trace::write_note(format_args!("pair"));
        send(server, &[b'0' + round], 0);
        await_hangup(server);
        recv(server, 1, 0);
        close(server);
    }
    let _ = thread.join();
}

/// Serves until it is told to stop by a client that says `q`; answers every byte.
fn serve(listener: Fd, wait: bool) {
    loop {
        if wait {
            let mut entry = [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }];
            sys::poll(&mut entry, -1);
        }
        let ret = crate::across::accept(listener.raw);
        if ret.is(libc::EAGAIN) {
            continue;
        }
        if !ret.is_ok() {
            trace!("accept {ret}");
            return;
        }
        let mut byte = [0];
        let fd = ret.value as i32;
        sys::recv(fd, &mut byte, 0);
        sys::send(fd, &byte, libc::MSG_NOSIGNAL);
        sys::close(fd);
        if byte[0] == b'q' {
            return;
        }
    }
}

/// Twelve clients one after the other, then one `q` for each of two servers.
fn ask(v: Variant, listener: Fd) {
    for question in b"abcdefghijklqq" {
        let client = v.client();
        connect(client, &v.address_of(listener));
        trace::write_note(format_args!("pair"));
        send(client, &[*question], 0);
        recv(client, 1, libc::MSG_WAITALL);
        recv(client, 1, 0);
        close(client);
    }
}

fn two_threads_accept(v: Variant) {
    let listener = v.listener();
    let servers = [(); 2].map(|()| std::thread::spawn(move || serve(listener, false)));
    ask(v, listener);
    for server in servers {
        let _ = server.join();
    }
}

fn forked_workers_accept(v: Variant) {
    let listener = v.listener();
    let workers = [(); 2].map(|()| {
        sys::fork(|| {
            serve(listener, false);
            0
        })
    });
    ask(v, listener);
    for worker in workers {
        trace!("worker: {}", sys::wait_for(worker));
    }
}

fn workers_that_poll_first(v: Variant) {
    let listener = v.listener();
    sys::set_nonblocking(listener.raw, true);
    let workers = [(); 2].map(|()| {
        sys::fork(|| {
            serve(listener, true);
            0
        })
    });
    ask(v, listener);
    for worker in workers {
        trace!("worker: {}", sys::wait_for(worker));
    }
}

/// A program that waits for its non-blocking listener and then accepts once is not told EAGAIN, though clients come at
/// any moment: many programs are not prepared for it. A client that loses its CPU between its two calls may cause that
/// (`docs/limits.md`), so it is tried three times: one that does so always is found.
fn readable_means_acceptable(v: Variant, by_epoll: bool) {
    let listener = v.listener();
    sys::set_nonblocking(listener.raw, true);
    let set = epoll_create("set");
    epoll_add(set, listener, libc::EPOLLIN);
    let mut in_vain = 1;
    for _ in 0..3 {
        if in_vain != 0 {
            in_vain = accepts_in_vain(v, listener, by_epoll.then_some(set));
        }
    }
    trace!("in vain {in_vain}");
}

/// Accepts 300 clients. How often that was in vain although the listener was readable.
fn accepts_in_vain(v: Variant, listener: Fd, set: Option<Fd>) -> u32 {
    let child = sys::fork(|| {
        for _ in 0..300 {
            let client = v.client();
            sys::connect(client.raw, &v.address_of(listener));
            sys::recv(client.raw, &mut [0], 0);
            sys::close(client.raw);
        }
        0
    });
    let (mut accepted, mut in_vain) = (0, 0);
    while accepted < 300 {
        match set {
            Some(set) => drop(sys::epoll_wait(sys::EpollCall::Wait, set.raw, 1, -1, None)),
            None => drop(sys::poll(&mut [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }], -1)),
        }
        let ret = crate::across::accept(listener.raw);
        match ret.is_ok() {
            true => {
                accepted += 1;
                trace::write_note(format_args!("pair"));
                sys::close(ret.value as i32);
            }
            false => in_vain += 1,
        }
    }
    let ended = sys::wait_for(child);
    if ended != "exit 0" {
        trace!("child: {ended}");
    }
    in_vain
}

fn accept_after_shutdown(v: Variant) {
    let listener = v.listener();
    shutdown(listener, libc::SHUT_RDWR);
    accept(listener, "none");
    poll_now(listener);
    let client = v.client();
    connect(client, &v.address_of(listener));
}

fn shutdown_wakes_accept(v: Variant) {
    let listener = v.listener();
    let thread = once_asleep("thread", move || {
        shutdown(listener, libc::SHUT_RD);
    });
    accept(listener, "none");
    let _ = thread.join();
}

fn listener_masks(v: Variant) {
    let listener = v.listener();
    poll_now(listener);
    select(&[listener], &[listener], &[listener], 0);
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    poll_now(listener);
    poll_now(listener);
    select(&[listener], &[listener], &[listener], 0);
    accept(listener, "server");
    poll_now(listener);
    select(&[listener], &[listener], &[listener], 0);
}

fn accepts_after_client_left(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    send(client, b"last words", 0);
    close(client);
    await_readable(listener);
    let server = accept(listener, "server");
    await_hangup(server);
    poll_now(server);
    recv(server, 64, 0);
    recv(server, 64, 0);
    let (ret, _) = sys::getpeername(server.raw, RawAddress::default().length);
    trace!("getpeername {ret}");
}

fn accepts_after_client_reset(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    connect(client, &v.address_of(listener));
    set_linger(client, 1, 0);
    close(client);
    await_readable(listener);
    let server = accept(listener, "server");
    await_events(server, libc::POLLERR);
    poll_now(server);
    recv(server, 64, 0);
    recv(server, 64, 0);
}

fn of_one_that_left_before_one_that_comes_again(v: Variant) {
    let listener = v.listener();
    let target = v.address_of(listener);
    let meet = || {
        let client = v.client();
        connect(client, &target);
        await_readable(listener);
        (client, accept(listener, "server"))
    };
    let (client, server) = meet();
    close(client);
    await_hangup(server);
    close(server);
    // Both ends of the second may be kept for another, as soon as both are closed.
    let (client, server) = meet();
    close(client);
    await_hangup(server);
    let client = v.client();
    connect(client, &target);
    send(client, b"third", 0);
    close(client);
    close(server);
    let client = v.client();
    connect(client, &target);
    send(client, b"fourth", 0);
    for _ in 0..2 {
        await_readable(listener);
        let server = accept(listener, "server");
        await_readable(server);
        recv(server, 16, 0);
        close(server);
    }
}

fn of_a_silent_client_put_off(v: Variant) {
    let listener = v.bound();
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT", 5);
    sys::listen(listener.raw, 8);
    poll_now(listener);
    let silent = v.client();
    connect(silent, &v.address_of(listener));
    poll(&[(listener, libc::POLLIN)], 50);
}

//! Every state that a connection can be in, seen by every way of looking at it.
//!
//! A state is a function that makes it; an observer is a function that looks and records. The cases are all pairs.

use crate::case::axes::MODE;
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

/// A connection in some state: `client` is what the observers look at, `server` may be gone.
struct Made {
    client: Fd,
    server: Option<Fd>,
}

const ALL: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP;

macro_rules! every_pair {
    ($($state:ident)*; $observers:tt) => { &[$(every_pair!(@ $state $observers)),*] };
    (@ $state:ident [$($observer:ident)*]) => {
        [$(Case::new(
            concat!(stringify!($state), "_by_", stringify!($observer)),
            MODE,
            |v| $observer($state(v)),
        )),*]
    };
}

const ROWS: &[[Case; 9]] = every_pair!(
    fresh data_waiting peer_half_closed peer_half_closed_with_data half_closed both_half_closed
    own_reading_shut own_reading_shut_then_data own_both_shut peer_both_shut
    peer_closed peer_closed_with_data peer_reset peer_reset_with_data peer_closed_unread
    written_after_peer_closed refused_by_reset full
    both_shut_then_data both_shut_one_by_one_then_data peer_closed_unread_after_shutting_reading;
    [poll_events select_sets epoll_level epoll_edge receive_first send_first error_first names_and_counts shut_again]
);

const COUNT: usize = ROWS.len() * 9;

/// The rows one after the other.
const CASES: [Case; COUNT] = {
    let mut cases = [ROWS[0][0]; COUNT];
    let mut at = 0;
    while at < COUNT {
        cases[at] = ROWS[at / 9][at % 9];
        at += 1;
    }
    cases
};

pub const GROUP: Group = Group { name: "states", cases: &CASES };

fn made(v: Variant) -> (Fd, Fd) {
    v.pair()
}

fn fresh(v: Variant) -> Made {
    let (client, server) = made(v);
    Made { client, server: Some(server) }
}

fn data_waiting(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::send(server.raw, b"data", 0);
    await_queued(client, 4);
    Made { client, server: Some(server) }
}

fn peer_half_closed(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(server.raw, libc::SHUT_WR);
    await_hangup(client);
    Made { client, server: Some(server) }
}

fn peer_half_closed_with_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::send(server.raw, b"data", 0);
    sys::shutdown(server.raw, libc::SHUT_WR);
    await_hangup(client);
    Made { client, server: Some(server) }
}

fn half_closed(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_WR);
    await_hangup(server);
    Made { client, server: Some(server) }
}

fn both_half_closed(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_WR);
    await_hangup(server);
    sys::shutdown(server.raw, libc::SHUT_WR);
    await_events(client, libc::POLLHUP);
    Made { client, server: Some(server) }
}

fn own_reading_shut(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_RD);
    Made { client, server: Some(server) }
}

fn own_reading_shut_then_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_RD);
    sys::send(server.raw, b"data", 0);
    await_queued(client, 4);
    Made { client, server: Some(server) }
}

fn own_both_shut(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_RDWR);
    await_hangup(server);
    Made { client, server: Some(server) }
}

fn peer_both_shut(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(server.raw, libc::SHUT_RDWR);
    await_hangup(client);
    Made { client, server: Some(server) }
}

fn peer_closed(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::close(server.raw);
    await_hangup(client);
    Made { client, server: None }
}

fn peer_closed_with_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::send(server.raw, b"data", 0);
    sys::close(server.raw);
    await_hangup(client);
    Made { client, server: None }
}

fn reset(server: Fd) {
    sys::setsockopt(server.raw, libc::SOL_SOCKET, libc::SO_LINGER, &[1, 0, 0, 0, 0, 0, 0, 0]);
    sys::close(server.raw);
}

fn peer_reset(v: Variant) -> Made {
    let (client, server) = made(v);
    reset(server);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

fn peer_reset_with_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::send(server.raw, b"data", 0);
    await_queued(client, 4);
    reset(server);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

fn peer_closed_unread(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::send(client.raw, b"never read", 0);
    await_queued(server, 10);
    sys::close(server.raw);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

fn written_after_peer_closed(v: Variant) -> Made {
    let made = peer_closed(v);
    sys::send(made.client.raw, b"too late", libc::MSG_NOSIGNAL);
    await_events(made.client, libc::POLLERR);
    made
}

/// The reset has been seen by one call already.
fn refused_by_reset(v: Variant) -> Made {
    let made = peer_reset(v);
    sys::recv(made.client.raw, &mut [0; 8], 0);
    made
}

/// Data for an end that neither reads nor writes any more resets the connection, and that end sees it as well.
fn both_shut_then_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_RDWR);
    await_hangup(server);
    sys::send(server.raw, b"for nobody", libc::MSG_NOSIGNAL);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

fn both_shut_one_by_one_then_data(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(client.raw, libc::SHUT_WR);
    await_hangup(server);
    sys::shutdown(client.raw, libc::SHUT_RD);
    sys::send(server.raw, b"for nobody", libc::MSG_NOSIGNAL);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

/// What arrived after the peer shut its reading side counts as unread when it closes.
fn peer_closed_unread_after_shutting_reading(v: Variant) -> Made {
    let (client, server) = made(v);
    sys::shutdown(server.raw, libc::SHUT_RD);
    sys::send(client.raw, b"never read", 0);
    await_queued(server, 10);
    sys::close(server.raw);
    await_events(client, libc::POLLERR);
    Made { client, server: None }
}

fn full(v: Variant) -> Made {
    let (client, server) = made(v);
    fill_firmly(client, 1);
    Made { client, server: Some(server) }
}

fn poll_events(made: Made) {
    poll_now(made.client);
    poll_now(made.client);
    poll(&[(made.client, 0)], 0);
    poll(&[(made.client, libc::POLLIN)], 0);
    poll(&[(made.client, libc::POLLOUT)], 0);
    poll(&[(made.client, libc::POLLRDNORM | libc::POLLWRNORM | libc::POLLRDBAND | libc::POLLWRBAND)], 0);
    if let Some(server) = made.server {
        poll_now(server);
    }
}

fn select_sets(made: Made) {
    select(&[made.client], &[], &[], 0);
    select(&[], &[made.client], &[], 0);
    select(&[], &[], &[made.client], 0);
    select(&[made.client], &[made.client], &[made.client], 0);
    if let Some(server) = made.server {
        select(&[server, made.client], &[server, made.client], &[], 0);
    }
}

fn epoll_level(made: Made) {
    let set = epoll_create("set");
    epoll_add(set, made.client, ALL);
    epoll_wait(set, 8, 0);
    epoll_wait(set, 8, 0);
    epoll_mod(set, made.client, 0);
    epoll_wait(set, 8, 0);
    epoll_mod(set, made.client, libc::EPOLLIN);
    epoll_wait(set, 8, 0);
    if let Some(server) = made.server {
        epoll_add(set, server, ALL);
        epoll_wait(set, 8, 0);
    }
}

fn epoll_edge(made: Made) {
    let set = epoll_create("set");
    epoll_add(set, made.client, ALL | libc::EPOLLET);
    epoll_wait(set, 8, 0);
    epoll_wait(set, 8, 0);
    epoll_mod(set, made.client, ALL | libc::EPOLLET);
    epoll_wait(set, 8, 0);
    epoll_wait(set, 8, 0);
}

fn receive_first(made: Made) {
    let client = made.client;
    recv(client, 2, libc::MSG_DONTWAIT);
    recv(client, 10, libc::MSG_DONTWAIT);
    recv(client, 10, libc::MSG_DONTWAIT);
    so_error(client);
    poll_now(client);
    recv(client, 10, libc::MSG_PEEK | libc::MSG_DONTWAIT);
}

fn send_first(made: Made) {
    let client = made.client;
    // Sending to a peer that is gone is answered by a reset, once.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let sent = send(client, b"one", flags);
    match made.server {
        None if sent.is_ok() => {
            await_events(client, libc::POLLHUP);
        }
        // A peer that shut its reading side answers with a reset, any other takes the bytes.
        Some(server) if sent.is_ok() => {
            let mut entry = [libc::pollfd { fd: client.raw, events: 0, revents: 0 }];
            until("the bytes have an effect", || {
                queued(server) >= 3 || (sys::poll(&mut entry, 0).value > 0 && entry[0].revents & libc::POLLHUP != 0)
            });
        }
        _ => {}
    }
    send(client, b"two", flags);
    send(client, b"three", flags);
    send(client, b"", flags);
    recv(client, 10, libc::MSG_DONTWAIT);
    recv(client, 10, libc::MSG_DONTWAIT);
    so_error(client);
    poll_now(client);
}

fn error_first(made: Made) {
    let client = made.client;
    so_error(client);
    so_error(client);
    poll_now(client);
    recv(client, 10, libc::MSG_DONTWAIT);
    recv(client, 10, libc::MSG_DONTWAIT);
    send(client, b"x", libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
}

fn names_and_counts(made: Made) {
    let client = made.client;
    fionread(client);
    trace!("getsockname {}", sys::getsockname(client.raw, 128).0);
    trace!("getpeername {}", sys::getpeername(client.raw, 128).0);
    option(client, libc::SOL_SOCKET, libc::SO_TYPE, "SO_TYPE");
    option(client, libc::SOL_SOCKET, libc::SO_DOMAIN, "SO_DOMAIN");
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    sys::set_nonblocking(client.raw, true);
    read(client, 10);
    read(client, 10);
}

fn shut_again(made: Made) {
    let client = made.client;
    shutdown(client, libc::SHUT_WR);
    shutdown(client, libc::SHUT_RD);
    poll_now(client);
    shutdown(client, libc::SHUT_RDWR);
    recv(client, 10, libc::MSG_DONTWAIT);
    recv(client, 10, libc::MSG_DONTWAIT);
    send(client, b"x", libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    trace!("shutdown(3) {}", sys::shutdown(client.raw, 3));
    trace!("shutdown(-1) {}", sys::shutdown(client.raw, -1));
    close(client);
}

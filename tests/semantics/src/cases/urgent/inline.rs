//! `SO_OOBINLINE`: urgent bytes that stay in line.

use super::{OOB, await_urgent, look, settle};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub(super) fn inline(v: Variant) {
    let (client, server) = v.pair();
    set_option(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    look(server);
    recv(server, 8, OOB);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, libc::MSG_PEEK);
    recv(server, 8, 0);
    look(server);
}

/// What is spliced ends before the urgent byte, in line or not, and is moved once.
pub(super) fn spliced(v: Variant) {
    let (client, server) = v.pair();
    set_inline(server, 1);
    let (_, ends) = sys::pipe2(0);
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    for _ in 0..2 {
        trace!("splice {}", sys::splice(server.raw, None, ends[1], None, 10, 0));
        look(server);
    }
    read(Fd::new(ends[0], "pipe"), 16);
    recv(server, 8, 0);
    look(server);
    send(client, b"ef", 0);
    await_queued(server, 2);
    trace!("splice {}", sys::splice(server.raw, None, ends[1], None, 10, 0));
    read(Fd::new(ends[0], "pipe"), 16);
}

fn set_inline(fd: Fd, inline: i32) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", inline);
}

/// The reader stands at the first urgent byte, which the second one makes pass: to become inline does not bring it
/// back.
pub(super) fn inline_after_a_second(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    send(client, b"cd2", OOB);
    settle(server);
    set_inline(server, 1);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, 0);
    look(server);
}

/// The reader stands at the first urgent byte, which is inline and stays when the second comes: also for a reader that
/// is inline no more.
pub(super) fn inline_no_more_after_a_second(v: Variant) {
    let (client, server) = v.pair();
    set_inline(server, 1);
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    send(client, b"cd2", OOB);
    settle(server);
    set_inline(server, 0);
    look(server);
    send(client, b"ef3", OOB);
    settle(server);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, OOB);
    look(server);
}

/// The reader stands at an urgent byte that was inline when it came, and is not when the second comes.
pub(super) fn inline_between_two(v: Variant) {
    let (client, server) = v.pair();
    set_inline(server, 1);
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    set_inline(server, 0);
    set_inline(server, 1);
    set_inline(server, 0);
    look(server);
    send(client, b"cd2", OOB);
    settle(server);
    look(server);
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
}

pub(super) fn inline_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    set_option(client, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    send(server, b"a!", OOB);
    await_urgent(client);
    recv(client, 8, 0);
    recv(client, 8, 0);
}

pub(super) fn inline_by_the_listener(v: Variant) {
    let listener = v.listener();
    set_option(listener, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    let (client, server) = v.pair_on(listener);
    option(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE");
    send(client, b"a!", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    recv(server, 8, 0);
}

/// With the urgent byte in line there is something to read, which whoever looks anew is told.
pub(super) fn inline_at_the_mark(v: Variant) {
    let (client, server) = v.pair();
    let edges = epoll_create("edges");
    epoll_add(edges, server, libc::EPOLLIN | libc::EPOLLET);
    send(client, b"ab!", OOB);
    await_urgent(server);
    epoll_wait(edges, 4, 0);
    recv(server, 8, 0);
    let set = epoll_create("set");
    set_option(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    look(server);
    epoll_wait(edges, 4, 0);
    epoll_add(set, server, libc::EPOLLIN);
    epoll_wait(set, 4, 0);
    // This tells all sets.
    set_option(server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", 1);
    epoll_wait(edges, 4, 0);
    epoll_wait(edges, 4, 0);
}

pub(super) fn inline_at_the_mark_by_epoll(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab!", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN);
    epoll_wait(set, 4, 0);
    set_option(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    epoll_wait(set, 4, 0);
}

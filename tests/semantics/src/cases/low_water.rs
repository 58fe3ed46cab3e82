//! `SO_RCVLOWAT` and edges: what an edge-triggered set is told of bytes that are too few.
//!
//! The sets here watch for room, too, which there always is: so every edge is told, whether there is enough to read or
//! not.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "low_water",
    cases: &[
        Case::new("too_few_are_no_edge", FAMILY, too_few_are_no_edge),
        Case::new("an_urgent_byte_is_an_edge", FAMILY, an_urgent_byte_is_an_edge),
        Case::new("an_urgent_byte_is_an_edge_when_it_was_read", FAMILY, an_urgent_byte_is_an_edge_when_it_was_read),
        Case::new("an_urgent_byte_ends_a_sleep", FAMILY, an_urgent_byte_ends_a_sleep),
        Case::new("passed_urgent_bytes_do_not_count", FAMILY, passed_urgent_bytes_do_not_count),
        Case::new("lowered_when_all_was_read", FAMILY, lowered_when_all_was_read),
        Case::new("lowered_when_some_is_left", FAMILY, lowered_when_some_is_left),
        Case::new("lowered_and_raised_again", FAMILY, lowered_and_raised_again),
        Case::new("lowering_ends_a_sleep", FAMILY, lowering_ends_a_sleep),
        Case::new("raised_over_what_has_come", FAMILY, raised_over_what_has_come),
        Case::new("too_few_are_no_edge_of_a_nested_set", FAMILY, too_few_are_no_edge_of_a_nested_set),
        Case::new("two_gigabytes_later", ONCE, two_gigabytes_later),
    ],
};

const ALL: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLET;

fn mark(fd: Fd, bytes: i32) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", bytes);
}

/// A connection (client, server) with the server in an edge-triggered set, whose first report was taken.
fn watched(v: Variant) -> (Fd, Fd, Fd) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, ALL);
    epoll_wait(set, 4, 0);
    (client, server, set)
}

/// Sends, and waits until it has arrived.
fn deliver(client: Fd, server: Fd, data: &[u8], flags: i32) {
    send(client, data, flags);
    await_acknowledged(client, server);
}

fn too_few_are_no_edge(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 6);
    deliver(client, server, b"abc", 0);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"def", 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    recv(server, 4, 0);
    deliver(client, server, b"ghi", 0);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"j", 0);
    epoll_wait(set, 4, 0);
    // Enough when it came is an edge even if it was read since.
    deliver(client, server, b"k", 0);
    recv(server, 64, 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn an_urgent_byte_is_an_edge(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"!", libc::MSG_OOB);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"ab", 0);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"cd!", libc::MSG_OOB);
    epoll_wait(set, 4, 0);
    recv(server, 1, libc::MSG_OOB);
    epoll_wait(set, 4, 0);
    recv(server, 64, 0);
    epoll_wait(set, 4, 0);
    mark(server, 1);
    epoll_wait(set, 4, 0);
}

fn an_urgent_byte_is_an_edge_when_it_was_read(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"ab!", libc::MSG_OOB);
    recv(server, 64, libc::MSG_DONTWAIT);
    recv(server, 64, libc::MSG_DONTWAIT);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"ab!", libc::MSG_OOB);
    recv(server, 1, libc::MSG_OOB);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn an_urgent_byte_ends_a_sleep(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"abc", 0);
    epoll_wait(set, 4, 0);
    for _ in 0..2 {
        let main = sys::thread_id();
        let sender = std::thread::spawn(move || {
            trace::set_actor("sender");
            await_asleep(main);
            deliver(client, server, b"d", 0);
            await_asleep(main);
            send(client, b"!", libc::MSG_OOB);
        });
        epoll_wait(set, 4, 10_000);
        let _ = sender.join();
    }
}

fn passed_urgent_bytes_do_not_count(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 3);
    for _ in 0..2 {
        deliver(client, server, b"!", libc::MSG_OOB);
        epoll_wait(set, 4, 0);
    }
    for _ in 0..2 {
        deliver(client, server, b".", 0);
        epoll_wait(set, 4, 0);
    }
    deliver(client, server, b"!", libc::MSG_OOB);
    mark(server, 4);
    epoll_wait(set, 4, 0);
    mark(server, 5);
    epoll_wait(set, 4, 0);
}

fn lowered_when_all_was_read(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"abcde", 0);
    epoll_wait(set, 4, 0);
    recv(server, 5, 0);
    mark(server, 1);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"f", 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn lowered_when_some_is_left(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"abcde", 0);
    epoll_wait(set, 4, 0);
    recv(server, 3, 0);
    mark(server, 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    mark(server, 1);
    recv(server, 2, 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn lowered_and_raised_again(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 5);
    deliver(client, server, b"abcd", 0);
    recv(server, 4, 0);
    mark(server, 1);
    mark(server, 5);
    epoll_wait(set, 4, 0);
    deliver(client, server, b"efgh", 0);
    epoll_wait(set, 4, 0);
    recv(server, 4, 0);
    mark(server, 1);
    deliver(client, server, b"i", 0);
    recv(server, 1, 0);
    mark(server, 5);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn lowering_ends_a_sleep(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 10);
    deliver(client, server, b"abc", 0);
    let main = sys::thread_id();
    let other = std::thread::spawn(move || {
        trace::set_actor("other");
        await_asleep(main);
        mark(server, 4);
        await_asleep(main);
        mark(server, 3);
    });
    epoll_wait(set, 4, 10_000);
    let _ = other.join();
    epoll_wait(set, 4, 0);
}

fn raised_over_what_has_come(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 5);
    deliver(client, server, b"abcdefgh", 0);
    mark(server, 20);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn too_few_are_no_edge_of_a_nested_set(v: Variant) {
    let (client, server) = v.pair();
    let inner = epoll_create("inner");
    epoll_add(inner, server, libc::EPOLLIN | libc::EPOLLOUT);
    let outer = epoll_create("outer");
    epoll_add(outer, inner, libc::EPOLLIN | libc::EPOLLET);
    epoll_wait(outer, 4, 0);
    mark(server, 10);
    deliver(client, server, b"abc", 0);
    epoll_wait(outer, 4, 0);
    deliver(client, server, b"!", libc::MSG_OOB);
    epoll_wait(outer, 4, 0);
    epoll_wait(outer, 4, 0);
}

/// Counts of bytes wrap.
fn two_gigabytes_later(v: Variant) {
    let (client, server, set) = watched(v);
    mark(server, 2);
    let mut buffer = vec![0; 128 * 1024];
    let mut left = (1_u64 << 31) + buffer.len() as u64;
    while left > 0 {
        let sent = sys::send(client.raw, &buffer, libc::MSG_NOSIGNAL).value.max(0) as u64;
        let mut got = 0;
        while got < sent {
            got += sys::recv(server.raw, &mut buffer, 0).value.max(0) as u64;
        }
        left = left.saturating_sub(sent);
    }
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

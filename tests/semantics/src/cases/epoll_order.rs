//! The order of the events of one wait, and whose turn it is where there is no room for all: the kernel's ready list.

use crate::case::axes::{ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "epoll_order",
    cases: &[
        Case::new("sends_while_cold", TRIGGER, sends_while_cold),
        Case::new("sends_after_many_waits", TRIGGER, sends_after_many_waits),
        Case::new("sends_while_hot", TRIGGER, sends_while_hot),
        Case::new("sends_to_added", TRIGGER, sends_to_added),
        Case::new("the_first_byte_counts", TRIGGER, the_first_byte_counts),
        Case::new("an_end_before_data", TRIGGER, an_end_before_data),
        Case::new("data_before_an_end", TRIGGER, data_before_an_end),
        Case::new("a_reset_between", TRIGGER, a_reset_between),
        Case::new("ends", TRIGGER, ends),
        Case::new("half_ends", TRIGGER, half_ends),
        Case::new("what_is_left_keeps_its_place", TRIGGER, what_is_left_keeps_its_place),
        Case::new("turns", TRIGGER, turns),
        Case::new("turns_with_a_pipe", ONCE, turns_with_a_pipe),
        Case::new("a_pipe_among_cold_ones", TRIGGER, a_pipe_among_cold_ones),
        Case::new("a_pipe_keeps_its_place", ONCE, a_pipe_keeps_its_place),
    ],
};

const IN: i32 = libc::EPOLLIN | libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const A_WHILE: i32 = 20;
const NAMES: [(&str, &str); 6] = [("ca", "a"), ("cb", "b"), ("cc", "c"), ("cd", "d"), ("ce", "e"), ("cf", "f")];

fn trigger(v: Variant) -> i32 {
    if v.edge { ET } else { 0 }
}

/// Six connections, the servers' ends in a set.
fn watched(v: Variant) -> (Fd, Vec<(Fd, Fd)>) {
    let listener = v.listener();
    let pairs: Vec<_> = NAMES.iter().map(|(client, server)| v.blocking_pair_on(listener, client, server)).collect();
    let set = epoll_create("set");
    for (_, server) in &pairs {
        epoll_add(set, *server, IN | trigger(v));
    }
    (set, pairs)
}

fn say(pairs: &[(Fd, Fd)], order: &[usize]) {
    for (client, _) in order.iter().filter_map(|index| pairs.get(*index)) {
        send(*client, b"x", 0);
    }
    arrived(pairs, order);
}

fn arrived(pairs: &[(Fd, Fd)], order: &[usize]) {
    for (_, server) in order.iter().filter_map(|index| pairs.get(*index)) {
        await_readable(*server);
    }
}

fn hear(pairs: &[(Fd, Fd)], order: &[usize]) {
    for (_, server) in order.iter().filter_map(|index| pairs.get(*index)) {
        recv(*server, 100, libc::MSG_DONTWAIT);
    }
}

fn sends_while_cold(v: Variant) {
    let (set, pairs) = watched(v);
    for order in [[3, 0, 5, 1, 4, 2], [2, 1, 0, 5, 4, 3], [0, 2, 4, 1, 3, 5]] {
        epoll_wait(set, 10, A_WHILE);
        say(&pairs, &order);
        epoll_wait(set, 10, -1);
        hear(&pairs, &order);
    }
}

fn sends_after_many_waits(v: Variant) {
    let (set, pairs) = watched(v);
    for order in [[3, 0, 5, 1, 4, 2], [2, 1, 0, 5, 4, 3], [0, 2, 4, 1, 3, 5]].iter().cycle().take(18) {
        epoll_wait(set, 10, 2);
        say(&pairs, order);
        epoll_wait(set, 10, -1);
        hear(&pairs, order);
    }
}

fn sends_while_hot(v: Variant) {
    let (set, pairs) = watched(v);
    say(&pairs, &[0, 1, 2, 3, 4, 5]);
    epoll_wait(set, 10, -1);
    hear(&pairs, &[0, 1, 2, 3, 4, 5]);
    epoll_wait(set, 10, 0);
    for order in [[3, 0, 5, 1, 4, 2], [2, 1, 0, 5, 4, 3], [0, 2, 4, 1, 3, 5], [5, 4, 3, 2, 1, 0]] {
        say(&pairs, &order);
        epoll_wait(set, 10, -1);
        hear(&pairs, &order);
        epoll_wait(set, 10, 0);
    }
}

fn sends_to_added(v: Variant) {
    let listener = v.listener();
    let pairs: Vec<_> = NAMES.iter().map(|(client, server)| v.blocking_pair_on(listener, client, server)).collect();
    let set = epoll_create("set");
    say(&pairs, &[4, 2]);
    for (_, server) in pairs.iter().rev() {
        epoll_add(set, *server, IN | trigger(v));
    }
    epoll_wait(set, 10, -1);
    hear(&pairs, &[4, 2]);
    epoll_wait(set, 10, 0);
}

fn the_first_byte_counts(v: Variant) {
    let (set, pairs) = watched(v);
    for _ in 0..3 {
        epoll_wait(set, 10, 0);
        say(&pairs, &[1, 0, 1, 2, 0, 1]);
        epoll_wait(set, 10, -1);
        hear(&pairs, &[0, 1, 2]);
        epoll_wait(set, 10, 0);
    }
}

fn an_end_before_data(v: Variant) {
    let (set, pairs) = watched(v);
    say(&pairs, &[0, 1, 2]);
    epoll_wait(set, 10, -1);
    hear(&pairs, &[0, 1, 2]);
    epoll_wait(set, 10, 0);
    for (closed, said) in [(2, 0), (1, 0), (3, 4)] {
        close(pairs[closed].0);
        await_hangup(pairs[closed].1);
        say(&pairs, &[said]);
        epoll_wait(set, 10, -1);
        hear(&pairs, &[said]);
        epoll_del(set, pairs[closed].1);
    }
}

fn data_before_an_end(v: Variant) {
    let (set, pairs) = watched(v);
    say(&pairs, &[0, 1, 2]);
    epoll_wait(set, 10, -1);
    hear(&pairs, &[0, 1, 2]);
    epoll_wait(set, 10, 0);
    for (closed, said) in [(0, 2), (1, 2), (3, 4)] {
        say(&pairs, &[said]);
        close(pairs[closed].0);
        await_hangup(pairs[closed].1);
        epoll_wait(set, 10, -1);
        hear(&pairs, &[said]);
        epoll_del(set, pairs[closed].1);
    }
}

fn a_reset_between(v: Variant) {
    let (set, pairs) = watched(v);
    epoll_wait(set, 10, A_WHILE);
    say(&pairs, &[4]);
    set_linger(pairs[2].0, 1, 0);
    close(pairs[2].0);
    await_hangup(pairs[2].1);
    say(&pairs, &[0]);
    epoll_wait(set, 10, -1);
}

fn ends(v: Variant) {
    let (set, pairs) = watched(v);
    epoll_wait(set, 10, 0);
    for index in [3, 1, 5, 0] {
        close(pairs[index].0);
        await_hangup(pairs[index].1);
    }
    epoll_wait(set, 10, -1);
}

fn half_ends(v: Variant) {
    let (set, pairs) = watched(v);
    epoll_wait(set, 10, 0);
    say(&pairs, &[3]);
    shutdown(pairs[1].0, libc::SHUT_WR);
    await_hangup(pairs[1].1);
    say(&pairs, &[5]);
    shutdown(pairs[3].0, libc::SHUT_WR);
    await_hangup(pairs[3].1);
    say(&pairs, &[0]);
    epoll_wait(set, 10, -1);
}

/// What is watched by level and not read goes to the end of the list each time it is told, and stays in order.
fn what_is_left_keeps_its_place(v: Variant) {
    let (set, pairs) = watched(v);
    epoll_wait(set, 10, 0);
    say(&pairs, &[4, 1, 3]);
    epoll_wait(set, 10, -1);
    say(&pairs, &[2]);
    epoll_wait(set, 10, -1);
    hear(&pairs, &[1]);
    say(&pairs, &[0, 1]);
    epoll_wait(set, 10, -1);
    hear(&pairs, &[3, 4]);
    epoll_wait(set, 10, 0);
    say(&pairs, &[3]);
    epoll_wait(set, 10, 0);
}

fn turns(v: Variant) {
    let (set, pairs) = watched(v);
    epoll_wait(set, 10, 0);
    say(&pairs, &[4, 1, 3, 0, 2]);
    for room in [1, 1, 1, 2, 3, 1, 2, 4, 1, 2] {
        epoll_wait(set, room, 0);
    }
    hear(&pairs, &[1, 0]);
    say(&pairs, &[5, 1]);
    for room in [2, 2, 2, 3, 1] {
        epoll_wait(set, room, 0);
    }
}

/// Neither what is a connection nor what is not waits for ever.
fn turns_with_a_pipe(v: Variant) {
    let (set, pairs) = watched(v);
    let (_, ends) = sys::pipe2(0);
    let out = Fd::new(ends[0], "pipe");
    epoll_add(set, out, IN);
    epoll_wait(set, 10, 0);
    sys::write(ends[1], b"x");
    say(&pairs, &[1, 0]);
    let mut seen = Vec::new();
    for _ in 0..12 {
        let (_, events) = sys::epoll_wait(sys::EpollCall::Wait, set.raw, 1, 0, None);
        seen.extend(events.first().map(|event| event.u64));
    }
    seen.sort_unstable();
    seen.dedup();
    trace!("{} of three were told of", seen.len());
}

fn a_pipe_among_cold_ones(v: Variant) {
    let (set, pairs) = watched(v);
    let (_, ends) = sys::pipe2(0);
    let out = Fd::new(ends[0], "pipe");
    epoll_add(set, out, IN | trigger(v));
    for (before, after) in [(1, 0), (3, 4), (5, 2)] {
        epoll_wait(set, 10, A_WHILE);
        say(&pairs, &[before]);
        sys::write(ends[1], b"x");
        say(&pairs, &[after]);
        epoll_wait(set, 10, -1);
        hear(&pairs, &[before, after]);
        read(out, 8);
    }
}

fn a_pipe_keeps_its_place(v: Variant) {
    let (set, pairs) = watched(v);
    let (_, ends) = sys::pipe2(0);
    let out = Fd::new(ends[0], "pipe");
    epoll_add(set, out, IN);
    epoll_wait(set, 10, A_WHILE);
    say(&pairs, &[1]);
    sys::write(ends[1], b"x");
    say(&pairs, &[0]);
    for _ in 0..3 {
        epoll_wait(set, 10, -1);
    }
    hear(&pairs, &[1]);
    epoll_wait(set, 10, -1);
    say(&pairs, &[1]);
    epoll_wait(set, 10, -1);
    epoll_wait(set, 10, -1);
}

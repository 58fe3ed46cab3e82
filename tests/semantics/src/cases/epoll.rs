//! One epoll set: when it tells what. Level, edge, oneshot, RDHUP, fairness, times.

mod edges;
mod halves;

use crate::case::axes::{FAMILY, MODE, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "epoll",
    cases: &[
        Case::new("level_repeats", FAMILY | MODE, level_repeats),
        Case::new("edge_once_per_arrival", FAMILY | MODE, edges::edge_once_per_arrival),
        Case::new("edge_after_partial_read", FAMILY | MODE, edges::edge_after_partial_read),
        Case::new("edge_read_until_eagain", FAMILY, edges::edge_read_until_eagain),
        Case::new("edge_both_directions", FAMILY | MODE, edges::edge_both_directions),
        Case::new("edge_writable_after_full", FAMILY, edges::edge_writable_after_full),
        Case::new("level_writable_after_full", FAMILY, edges::level_writable_after_full),
        Case::new("room_by_its_other_name", FAMILY | TRIGGER, edges::room_by_its_other_name),
        Case::new("a_pipe_of_equal_data", FAMILY | TRIGGER, edges::a_pipe_of_equal_data),
        Case::new("one_shots_of_equal_data", FAMILY | TRIGGER, edges::one_shots_of_equal_data),
        Case::new("room_among_members_of_equal_data", FAMILY | TRIGGER, edges::room_among_members_of_equal_data),
        Case::new(
            "room_no_longer_asked_for_keeps_nobody_awake",
            FAMILY,
            edges::room_no_longer_asked_for_keeps_nobody_awake,
        ),
        Case::new("no_room_at_a_shut_reading_half", FAMILY | TRIGGER, edges::no_room_at_a_shut_reading_half),
        Case::new("room_after_many_members_have_left", FAMILY | TRIGGER, edges::room_after_many_members_have_left),
        Case::new("edge_mod_reports_again", FAMILY, edges::edge_mod_reports_again),
        Case::new("oneshot_and_rearm", FAMILY | TRIGGER, edges::oneshot_and_rearm),
        Case::new("oneshot_rearm_when_ready", FAMILY, edges::oneshot_rearm_when_ready),
        Case::new("oneshot_disarmed_stays_quiet", FAMILY, edges::oneshot_disarmed_stays_quiet),
        Case::new("oneshot_disarmed_outlives_the_peer", FAMILY | TRIGGER, edges::oneshot_disarmed_outlives_the_peer),
        Case::new("rdhup", FAMILY | TRIGGER, rdhup),
        Case::new("hup_after_both", FAMILY | TRIGGER, hup_after_both),
        Case::new("close_by_peer", FAMILY | TRIGGER, close_by_peer),
        Case::new("reset_by_peer", FAMILY | TRIGGER, reset_by_peer),
        Case::new("errors_without_interest", FAMILY | TRIGGER, errors_without_interest),
        Case::new("room_smaller_than_ready", FAMILY, room_smaller_than_ready),
        Case::new("turns_are_fair", ONCE, turns_are_fair),
        Case::new("timeouts", FAMILY | MODE, timeouts),
        Case::new("mixture", FAMILY | TRIGGER, mixture),
        Case::new("timer_is_not_starved", FAMILY, timer_is_not_starved),
        Case::new("pipe_is_not_starved", FAMILY, pipe_is_not_starved),
        Case::new("own_shutdown", FAMILY | TRIGGER, own_shutdown),
        Case::new("reset_by_a_send_after_both_halves_are_shut", FAMILY, reset_by_a_send_after_both_halves_are_shut),
        Case::new("edge_with_the_reading_half_shut", FAMILY | MODE, edges::edge_with_the_reading_half_shut),
        Case::new(
            "room_at_a_peer_that_shuts_both_halves_and_closes",
            FAMILY | TRIGGER,
            halves::room_at_a_peer_that_shuts_both_halves_and_closes,
        ),
        Case::new(
            "room_in_a_set_inside_at_a_peer_that_closes",
            FAMILY | TRIGGER,
            halves::room_in_a_set_inside_at_a_peer_that_closes,
        ),
        Case::new(
            "room_that_a_peer_makes_that_is_shut_both_ways",
            FAMILY | TRIGGER,
            halves::room_that_a_peer_makes_that_is_shut_both_ways,
        ),
        Case::new(
            "bytes_where_both_ends_have_shut_their_reading_halves",
            FAMILY,
            halves::bytes_where_both_ends_have_shut_their_reading_halves,
        ),
        Case::new("reset_after_both_own_halves_are_shut", FAMILY, halves::reset_after_both_own_halves_are_shut),
        Case::new("own_halves_shut_without_room", FAMILY, halves::own_halves_shut_without_room),
        Case::new(
            "oneshot_disarmed_while_halves_are_shut",
            FAMILY | TRIGGER,
            halves::oneshot_disarmed_while_halves_are_shut,
        ),
        Case::new("a_mask_lets_signals_in_at_a_shut_reader", FAMILY, halves::a_mask_lets_signals_in_at_a_shut_reader),
        Case::new("reset_by_a_send_after_the_close", FAMILY, halves::reset_by_a_send_after_the_close),
        Case::new("peek_keeps_level_ready", FAMILY | TRIGGER, peek_keeps_level_ready),
        Case::new("echo_loop", FAMILY | TRIGGER, echo_loop),
        Case::new("forty_connections", FAMILY | TRIGGER, forty_connections),
        Case::new("band_and_normal_bits", ONCE, band_and_normal_bits),
    ],
};

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

fn trigger(v: Variant) -> i32 {
    if v.edge { ET } else { 0 }
}

fn level_repeats(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    epoll_wait(set, 4, 0);
    send(client, b"abc", 0);
    await_queued(server, 3);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, -1);
    recv(server, 1, 0);
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    send(client, b"d", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
}

fn rdhup(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
}

fn hup_after_both(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    epoll_wait(set, 4, 0);
    shutdown(server, libc::SHUT_WR);
    await_events(server, libc::POLLHUP);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

fn close_by_peer(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    send(client, b"bye", 0);
    await_queued(server, 3);
    epoll_wait(set, 4, 0);
    close(client);
    await_hangup(server);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    send(server, b"x", libc::MSG_NOSIGNAL);
    await_events(server, libc::POLLHUP);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    close(server);
    epoll_wait(set, 4, 0);
}

fn reset_by_peer(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    set_linger(client, 1, 0);
    close(client);
    await_events(server, libc::POLLERR);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    recv(server, 8, libc::MSG_DONTWAIT);
    epoll_wait(set, 4, 0);
}

fn errors_without_interest(v: Variant) {
    // ERR and HUP are reported to everybody.
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, 0);
    set_linger(client, 1, 0);
    close(client);
    await_events(server, libc::POLLERR);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
}

fn room_smaller_than_ready(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        let (client, server) = v.blocking_pair_on(listener, "client", name);
        epoll_add(set, server, IN | ET);
        send(client, b"x", 0);
        await_queued(server, 1);
    }
    // With edges each is told once, in whatever groups.
    let mut seen = Vec::new();
    loop {
        let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 2, 0, None);
        trace!("epoll_wait with room for 2: {ret}");
        if ret.value <= 0 {
            break;
        }
        seen.extend(events.iter().map(|event| { event.u64 } as u8 as char));
    }
    seen.sort_unstable();
    trace!("seen {seen:?}");
}

fn turns_are_fair(v: Variant) {
    // Level-triggered and never read: every connection gets its turn although the room is for one.
    let listener = v.listener();
    let set = epoll_create("set");
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        let (client, server) = v.blocking_pair_on(listener, "client", name);
        epoll_add(set, server, IN);
        send(client, b"x", 0);
        await_queued(server, 1);
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 1, 0, None);
        seen.extend(events.iter().map(|event| event.u64));
    }
    trace!("seen {}", seen.len());
}

fn timeouts(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN);
    epoll_wait(set, 4, 0);
    for which in [EpollCall::Wait, EpollCall::Pwait, EpollCall::Pwait2] {
        let start = Instant::now();
        epoll_wait_by(which, set, 4, 30, None);
        trace!("waited: {}", start.elapsed() >= Duration::from_millis(29));
    }
    epoll_mod(set, client, OUT);
    epoll_wait(set, 4, 10_000);
    let empty = epoll_create("empty");
    epoll_wait(empty, 4, 10);
}

fn mixture(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (_, ends) = sys::pipe2(0);
    let (reader, writer) = (Fd::new(ends[0], "reader"), Fd::new(ends[1], "writer"));
    let set = epoll_create("set");
    for fd in [server, listener, reader] {
        epoll_add(set, fd, IN | trigger(v));
    }
    epoll_wait(set, 8, 0);
    write(writer, b"x");
    epoll_wait(set, 8, -1);
    read(reader, 1);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 8, -1);
    connect(v.named_client("other"), &v.address_of(listener));
    await_readable(listener);
    write(writer, b"y");
    epoll_wait(set, 8, -1);
    epoll_wait(set, 8, 0);
}

fn timer_is_not_starved(v: Variant) {
    // One connection is always ready; a timer in the same set must be told within some rounds all the same.
    let (client, server) = v.pair();
    // SAFETY: integers only.
    let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
    let timer = Fd::new(timer, "timer");
    let soon = libc::itimerspec { it_interval: sys::timespec_of_ms(0), it_value: sys::timespec_of_ms(20) };
    // SAFETY: the descriptor is a timer and the value is valid.
    unsafe { libc::timerfd_settime(timer.raw, 0, &raw const soon, std::ptr::null_mut()) };
    never_starved(client, server, timer);
}

fn pipe_is_not_starved(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    write(Fd::new(ends[1], "writer"), b"x");
    never_starved(client, server, Fd::new(ends[0], "pipe"));
}

fn never_starved(client: Fd, server: Fd, other: Fd) {
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    epoll_add(set, other, IN);
    send(client, b"x", 0);
    await_queued(server, 1);
    let seen = until("the other is told", || {
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 1, -1, None);
        events.iter().any(|event| { event.u64 } as u8 == other.name.as_bytes()[0])
    });
    trace!("told: {seen}");
}

fn own_shutdown(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_RD);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
}

/// However often it was told of since, a connection that is shut both ways answers the first byte by a reset.
fn reset_by_a_send_after_both_halves_are_shut(v: Variant) {
    /// `TCP_FIN_WAIT2` and `TCP_CLOSE` of the kernel.
    const HAS_ENDED: u8 = 5;
    const IS_RESET: u8 = 7;
    let (client, server) = v.pair();
    let sets = [epoll_create("a"), epoll_create("b")];
    for set in sets {
        epoll_add(set, client, IN | ET | libc::EPOLLEXCLUSIVE);
    }
    shutdown(client, libc::SHUT_RDWR);
    until("the peer has heard of the end", || tcp_state(client) == HAS_ENDED);
    for set in sets {
        epoll_wait(set, 4, 0);
        close(set);
    }
    let set = epoll_create("set");
    epoll_add(set, client, IN | RDHUP);
    epoll_wait(set, 4, 0);
    send(server, b"x", 0);
    until("both are reset", || tcp_state(client) == IS_RESET && tcp_state(server) == IS_RESET);
    send(server, b"x", libc::MSG_NOSIGNAL);
    poll(&[(client, libc::POLLIN), (server, libc::POLLIN)], 0);
}

fn peek_keeps_level_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    send(client, b"abc", 0);
    await_queued(server, 3);
    epoll_wait(set, 4, -1);
    recv(server, 8, libc::MSG_PEEK);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
}

fn echo_loop(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        let mut buffer = [0; 4096];
        loop {
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
            loop {
                let ret = sys::recv(server.raw, &mut buffer, 0);
                match ret.value {
                    1.. => sys::send(server.raw, &buffer[..ret.size()], 0),
                    0 => return trace!("end"),
                    _ => break,
                };
            }
        }
    });
    for round in 0..2000_u32 {
        let data = round.to_le_bytes();
        sys::send(client.raw, &data, 0);
        let mut back = [0; 4];
        await_queued(client, 4);
        sys::recv(client.raw, &mut back, 0);
        if back != data {
            trace!("round {round}: {back:?}");
        }
    }
    close(client);
    let _ = thread.join();
}

fn forty_connections(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    let pairs: Vec<(Fd, Fd)> = (0..40).map(|_| v.pair_on(listener)).collect();
    for (at, (_, server)) in pairs.iter().enumerate() {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, server.raw, (IN | trigger(v)) as u32, at as u64);
    }
    for round in 0..5_usize {
        let chosen: Vec<usize> = (0..40).filter(|at| (at * 7 + round) % 5 == 0).collect();
        for at in &chosen {
            sys::send(pairs[*at].0.raw, &[round as u8], 0);
        }
        for at in &chosen {
            await_queued(pairs[*at].1, 1);
        }
        let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 64, -1, None);
        let mut seen: Vec<u64> = events.iter().map(|event| event.u64).collect();
        seen.sort_unstable();
        trace!("round {round}: {ret} {seen:?}");
        for at in &chosen {
            sys::recv(pairs[*at].1.raw, &mut [0; 8], 0);
        }
        epoll_wait(set, 4, 0);
    }
}

fn band_and_normal_bits(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLRDNORM | libc::EPOLLWRNORM | libc::EPOLLRDBAND | libc::EPOLLWRBAND);
    epoll_wait(set, 4, 0);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, libc::EPOLLRDNORM | IN);
    epoll_wait(set, 4, 0);
}

//! Urgent data: MSG_OOB, SO_OOBINLINE, SIOCATMARK, POLLPRI, SIGURG.

use crate::case::axes::{FAMILY, MODE, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::sync::atomic::{AtomicI32, Ordering};

pub const GROUP: Group = Group {
    name: "urgent",
    cases: &[
        Case::new("one_byte", FAMILY | MODE, one_byte),
        Case::new("last_of_many", FAMILY | MODE, last_of_many),
        Case::new("in_the_middle", FAMILY | MODE, in_the_middle),
        Case::new("waitall_stops_at_the_mark", FAMILY, waitall_stops_at_the_mark),
        Case::new("read_past_unread", FAMILY | MODE, read_past_unread),
        Case::new("none_there", FAMILY | MODE, none_there),
        Case::new("taken_once", FAMILY | MODE, taken_once),
        Case::new("peeked", FAMILY | MODE, peeked),
        Case::new("peek_of_data_at_the_mark", FAMILY | MODE, peek_of_data_at_the_mark),
        Case::new("two_in_a_row", FAMILY | MODE, two_in_a_row),
        Case::new("three_in_a_row", FAMILY | MODE, three_in_a_row),
        Case::new("two_with_data_between", FAMILY | MODE, two_with_data_between),
        Case::new("a_second_after_the_first_was_taken", FAMILY, a_second_after_the_first_was_taken),
        Case::new("inline", FAMILY | MODE, inline),
        Case::new("inline_before_connect", FAMILY, inline_before_connect),
        Case::new("inline_by_the_listener", FAMILY, inline_by_the_listener),
        Case::new("inline_after_a_second", FAMILY | MODE, inline_after_a_second),
        Case::new("inline_no_more_after_a_second", FAMILY | MODE, inline_no_more_after_a_second),
        Case::new("inline_between_two", FAMILY | MODE, inline_between_two),
        Case::new("readiness", FAMILY | MODE, readiness),
        Case::new("readiness_by_epoll", FAMILY | TRIGGER, readiness_by_epoll),
        Case::new("inline_at_the_mark", FAMILY, inline_at_the_mark),
        Case::new("inline_at_the_mark_by_epoll", FAMILY, inline_at_the_mark_by_epoll).deviates(
            "SO_OOBINLINE set where the urgent byte is the next one: a level-triggered set tells at once that it can be read",
        ),
        Case::new("priority_alone_by_epoll", FAMILY | TRIGGER, priority_alone_by_epoll),
        Case::new("poll_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_poll)),
        Case::new("select_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_select)),
        Case::new("epoll_waits_for_it", FAMILY, |v| waits_for_it(v, wait_by_epoll)),
        Case::new("poll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| poll_alone(fd, 10_000))),
        Case::new("select_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| select_alone(fd, 10_000))),
        Case::new("epoll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| epoll_alone(fd, 10_000))),
        Case::new("edge_epoll_sleeps_beside_data", FAMILY, |v| sleeps_beside_data(v, |fd| edge_alone(fd, 10_000))),
        Case::new("poll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| poll_alone(fd, 300))),
        Case::new("select_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| select_alone(fd, 300))),
        Case::new("epoll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| epoll_alone(fd, 300))),
        Case::new("edge_epoll_uses_no_cpu_beside_data", ONCE, |v| uses_no_cpu_beside_data(v, |fd| edge_alone(fd, 300))),
        Case::new("epoll_for_data_sleeps_beside_it", FAMILY | TRIGGER, epoll_for_data_sleeps_beside_it),
        Case::new("poll_beside_data_hears_the_end", FAMILY, poll_beside_data_hears_the_end),
        Case::new("blocked_recv_throws_it_away", FAMILY, blocked_recv_throws_it_away),
        Case::new("by_messages", FAMILY, by_messages),
        Case::new("skipped_by_trunc", FAMILY, skipped_by_trunc),
        Case::new("after_the_end", FAMILY | MODE, after_the_end),
        Case::new("to_a_peer_that_left", FAMILY, to_a_peer_that_left),
        Case::new("of_no_bytes", FAMILY, of_no_bytes),
        Case::new("close_with_it_unread", FAMILY, close_with_it_unread),
        Case::new("spliced", ONCE, spliced),
        Case::new("sigurg", FAMILY, sigurg),
        Case::new("sigurg_owner_by_ioctl", ONCE, sigurg_owner_by_ioctl),
        Case::new("sigurg_owner_before_connect", ONCE, sigurg_owner_before_connect),
        Case::new("sigurg_interrupts", ONCE, sigurg_interrupts),
        Case::new("many_rounds", ONCE, many_rounds),
    ],
};

const OOB: i32 = libc::MSG_OOB;

unsafe extern "C" {
    fn sockatmark(fd: i32) -> i32;
}

/// Whether the next byte to read is the urgent one, by both names.
fn at_mark(fd: Fd) {
    let mut value = -1;
    let ret = sys::ioctl(fd.raw, 0x8905, &mut value);
    // SAFETY: a number.
    trace!("at mark ({}) = {ret} {value} {}", fd.name, unsafe { sockatmark(fd.raw) });
}

/// Everything that can be asked without changing anything.
fn look(fd: Fd) {
    at_mark(fd);
    fionread(fd);
    poll_now(fd);
}

/// Waits until the urgent byte is there.
fn await_urgent(fd: Fd) {
    await_events(fd, libc::POLLPRI);
}

fn one_byte(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    look(server);
    recv(server, 4, libc::MSG_DONTWAIT);
    recv(server, 4, OOB);
    look(server);
    send(client, b"more", 0);
    await_queued(server, 4);
    recv(server, 8, 0);
    look(server);
}

fn last_of_many(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abcd!", OOB);
    await_urgent(server);
    look(server);
    recv(server, 8, OOB);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, libc::MSG_DONTWAIT);
    look(server);
}

fn in_the_middle(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"before", 0);
    send(client, b"!", OOB);
    send(client, b"after", 0);
    await_urgent(server);
    settle(server);
    look(server);
    recv(server, 3, 0);
    look(server);
    recv(server, 20, 0);
    look(server);
    recv(server, 20, OOB);
    look(server);
    recv(server, 20, 0);
    look(server);
}

/// Lets what is on its way arrive: FIONREAD stops at the mark and cannot tell.
fn settle(fd: Fd) {
    sys::poll(&mut [libc::pollfd { fd: fd.raw, events: 0, revents: 0 }], 30);
}

fn waitall_stops_at_the_mark(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"1234", 0);
    send(client, b"!", OOB);
    send(client, b"5678", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, libc::MSG_WAITALL);
    recv(server, 4, libc::MSG_WAITALL);
    look(server);
}

fn read_past_unread(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    read(server, 8);
    read(server, 8);
    recv(server, 8, OOB);
    look(server);
}

fn none_there(v: Variant) {
    let (client, server) = v.pair();
    recv(server, 1, OOB);
    recv(server, 0, OOB);
    recv(server, 1, OOB | libc::MSG_PEEK);
    at_mark(server);
    send(client, b"data", 0);
    await_queued(server, 4);
    recv(server, 1, OOB);
    look(server);
}

fn taken_once(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    recv(server, 0, OOB);
    recv(server, 1, OOB);
    recv(server, 1, OOB);
    send(client, b"?", OOB);
    await_urgent(server);
    recv(server, 1, OOB);
    look(server);
}

fn peeked(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab!", OOB);
    await_urgent(server);
    recv(server, 1, OOB | libc::MSG_PEEK);
    recv(server, 1, OOB | libc::MSG_PEEK);
    look(server);
    recv(server, 1, OOB);
    recv(server, 1, OOB | libc::MSG_PEEK);
}

fn peek_of_data_at_the_mark(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, libc::MSG_PEEK);
    recv(server, 2, 0);
    recv(server, 8, libc::MSG_PEEK);
    look(server);
    recv(server, 8, libc::MSG_PEEK);
    recv(server, 8, 0);
    recv(server, 8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
}

fn two_in_a_row(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"1", OOB);
    await_urgent(server);
    send(client, b"2", OOB);
    settle(server);
    look(server);
    recv(server, 1, OOB);
    send(client, b"x", 0);
    settle(server);
    recv(server, 8, libc::MSG_DONTWAIT);
    look(server);
}

fn three_in_a_row(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"a", 0);
    await_queued(server, 1);
    recv(server, 1, 0);
    for byte in [b"1", b"2", b"3"] {
        send(client, byte, OOB);
        settle(server);
    }
    look(server);
    send(client, b"rest", 0);
    settle(server);
    look(server);
    recv(server, 8, 0);
    look(server);
}

fn two_with_data_between(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"1", OOB);
    settle(server);
    send(client, b"cd", 0);
    send(client, b"2", OOB);
    settle(server);
    look(server);
    recv(server, 20, 0);
    look(server);
    recv(server, 20, OOB);
    recv(server, 20, libc::MSG_DONTWAIT);
    look(server);
}

fn a_second_after_the_first_was_taken(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, OOB);
    recv(server, 8, 0);
    look(server);
    send(client, b"cd2", OOB);
    await_urgent(server);
    look(server);
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
}

fn inline(v: Variant) {
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

fn set_inline(fd: Fd, inline: i32) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", inline);
}

/// The reader stands at the first urgent byte, which the second one makes pass: to become inline does not bring it back.
fn inline_after_a_second(v: Variant) {
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
fn inline_no_more_after_a_second(v: Variant) {
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
fn inline_between_two(v: Variant) {
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

fn inline_before_connect(v: Variant) {
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

fn inline_by_the_listener(v: Variant) {
    let listener = v.listener();
    set_option(listener, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", 1);
    let (client, server) = v.pair_on(listener);
    option(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE");
    send(client, b"a!", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    recv(server, 8, 0);
}

fn readiness(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    select(&[server], &[], &[server], 0);
    poll(&[(server, libc::POLLPRI)], 0);
    poll(&[(server, libc::POLLIN)], 0);
    recv(server, 1, OOB);
    select(&[server], &[], &[server], 0);
    send(client, b"x", 0);
    await_readable(server);
    select(&[server], &[], &[server], 0);
    recv(server, 8, 0);
    select(&[server], &[], &[server], 0);
}

fn readiness_by_epoll(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN | libc::EPOLLPRI | v.trigger() as i32);
    epoll_wait(set, 4, 0);
    send(client, b"!", OOB);
    epoll_wait(set, 4, 10_000);
    epoll_wait(set, 4, 0);
    recv(server, 1, OOB);
    epoll_wait(set, 4, 0);
    send(client, b"x", 0);
    epoll_wait(set, 4, 10_000);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    send(client, b"ab?", OOB);
    epoll_wait(set, 4, 10_000);
}

fn priority_alone_by_epoll(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLPRI | v.trigger() as i32);
    send(client, b"data", 0);
    await_queued(server, 4);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    send(client, b"!", OOB);
    epoll_wait(set, 4, 10_000);
    recv(server, 1, OOB);
    epoll_wait(set, 4, 0);
}

fn wait_by_poll(fd: Fd) {
    poll(&[(fd, libc::POLLPRI)], 10_000);
}

fn wait_by_select(fd: Fd) {
    select(&[], &[], &[fd], 10_000);
}

fn wait_by_epoll(fd: Fd) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI);
    epoll_wait(set, 4, 10_000);
}

fn waits_for_it(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        await_asleep(main);
        send(client, b"!", OOB);
    });
    wait(server);
    recv(server, 1, OOB);
    let _ = sender.join();
}

fn poll_alone(fd: Fd, timeout_ms: i32) {
    poll(&[(fd, libc::POLLPRI)], timeout_ms);
}

fn select_alone(fd: Fd, timeout_ms: i64) {
    select(&[], &[], &[fd], timeout_ms);
}

fn epoll_alone(fd: Fd, timeout_ms: i32) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI);
    epoll_wait(set, 4, timeout_ms);
    epoll_wait(set, 4, 0);
}

/// Once: the kernel has two edges for an urgent byte, and whether a wait comes between them is chance.
fn edge_alone(fd: Fd, timeout_ms: i32) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI | libc::EPOLLET);
    epoll_wait(set, 4, timeout_ms);
}

/// Nor is who waits for other bytes woken by an urgent one, which is none to read.
fn epoll_for_data_sleeps_beside_it(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN | v.trigger() as i32);
    epoll_wait(set, 4, 0);
    send(client, b"!", OOB);
    await_urgent(server);
    let before = cpu_us();
    epoll_wait(set, 4, 300);
    trace!("idle {}", cpu_us() - before < 50_000);
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        await_asleep(main);
        send(client, b"data", 0);
    });
    epoll_wait(set, 4, 10_000);
    let _ = sender.join();
}

/// With the urgent byte in line there is something to read, which whoever looks anew is told.
fn inline_at_the_mark(v: Variant) {
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

fn inline_at_the_mark_by_epoll(v: Variant) {
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

/// Who waits for urgent bytes alone is not woken by others, neither by those that are there nor by those that come.
fn sleeps_beside_data(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    send(client, b"before", 0);
    await_queued(server, 6);
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        for _ in 0..3 {
            await_asleep(main);
            send(client, b"more", 0);
            settle(client);
        }
        await_asleep(main);
        send(client, b"!", OOB);
    });
    wait(server);
    let _ = sender.join();
    recv(server, 1, OOB);
    look(server);
    recv(server, 64, 0);
}

/// Processor time of this process so far, in microseconds.
fn cpu_us() -> i64 {
    // SAFETY: all-zero is a valid value of this plain C struct, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum()
}

fn uses_no_cpu_beside_data(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    send(client, b"ordinary", 0);
    await_queued(server, 8);
    let before = cpu_us();
    wait(server);
    trace!("idle {}", cpu_us() - before < 50_000);
}

fn poll_beside_data_hears_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ordinary", 0);
    await_queued(server, 8);
    let main = sys::thread_id();
    let closer = std::thread::spawn(move || {
        trace::set_actor("closer");
        await_asleep(main);
        shutdown(client, libc::SHUT_WR);
        await_asleep(main);
        set_linger(client, 1, 0);
        close(client);
    });
    poll(&[(server, libc::POLLPRI)], 10_000);
    let _ = closer.join();
    recv(server, 16, 0);
}

fn blocked_recv_throws_it_away(v: Variant) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        await_asleep(main);
        send(client, b"!", OOB);
        settle(client);
        await_asleep(main);
        send(client, b"data", 0);
    });
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
    let _ = sender.join();
}

fn by_messages(v: Variant) {
    let (client, server) = v.pair();
    sendmsg(client, &[b"ab", b"c!"], OOB);
    await_urgent(server);
    recvmsg(server, &[4], OOB | libc::MSG_PEEK);
    recvmsg(server, &[0], OOB | libc::MSG_PEEK);
    recvmsg(server, &[1, 1], OOB);
    recvmsg(server, &[1], OOB);
    recvmsg(server, &[2, 8], 0);
    look(server);
}

fn skipped_by_trunc(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, OOB | libc::MSG_PEEK | libc::MSG_TRUNC);
    recv(server, 8, libc::MSG_TRUNC);
    recv(server, 1, libc::MSG_TRUNC);
    look(server);
    recv(server, 8, 0);
}

fn after_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab!", OOB);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, OOB);
    recv(server, 8, 0);
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
}

fn to_a_peer_that_left(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    close(server);
    await_hangup(client);
    send(client, b"!", OOB);
    poll(&[(client, 0)], 10_000);
    send(client, b"!", OOB);
    send(client, b"!", OOB | libc::MSG_NOSIGNAL);
}

fn of_no_bytes(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"", OOB);
    send(client, b"x", 0);
    await_queued(server, 1);
    look(server);
    recv(server, 1, OOB);
}

fn close_with_it_unread(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    recv(server, 1, OOB);
    close(server);
    await_hangup(client);
    recv(client, 1, 0);
}

fn spliced(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    trace!("splice {}", sys::splice(server.raw, None, ends[1], None, 10, 0));
    look(server);
}

static SIGNALS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn await_signals(count: i32) {
    until("signals", || SIGNALS.load(Ordering::SeqCst) == count);
}

fn sigurg(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    send(client, b"1", OOB);
    await_urgent(server);
    trace!("F_SETOWN {}", sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id()));
    trace!("signals {}", SIGNALS.load(Ordering::SeqCst));
    recv(server, 1, OOB);
    send(client, b"2", OOB);
    await_signals(1);
    await_urgent(server);
    recv(server, 1, OOB);
    send(client, b"ordinary", 0);
    send(client, b"more3", OOB);
    await_signals(2);
    settle(server);
    look(server);
    recv(server, 20, 0);
    recv(server, 20, OOB);
    look(server);
    poll(&[(server, libc::POLLIN)], 60);
}

fn sigurg_owner_by_ioctl(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    for request in [0x8901, 0x8902] {
        let mut owner = sys::process_id();
        trace!("ioctl {}", sys::ioctl(server.raw, request, &mut owner));
        let mut owner = -1;
        let ret = sys::ioctl(server.raw, request + 2, &mut owner);
        trace!("ioctl {ret} {}", owner == sys::process_id());
        send(client, b"!", OOB);
        await_signals(i32::from(request == 0x8902) + 1);
    }
}

fn sigurg_owner_before_connect(v: Variant) {
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    let listener = v.listener();
    let client = v.client();
    sys::fcntl(client.raw, libc::F_SETOWN, sys::process_id());
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    trace!("owner kept {}", sys::fcntl(client.raw, libc::F_GETOWN, 0).value as i32 == sys::process_id());
    trace!("owner of server {}", sys::fcntl(server.raw, libc::F_GETOWN, 0));
    send(server, b"!", OOB);
    await_signals(1);
    recv(client, 1, OOB);
}

fn sigurg_interrupts(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, 0);
    sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id());
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        sys::block_signals(&[libc::SIGURG], true);
        await_asleep(main);
        send(client, b"!", OOB);
    });
    recv(server, 8, 0);
    recv(server, 1, OOB);
    let _ = sender.join();
}

fn many_rounds(v: Variant) {
    let (client, server) = v.pair();
    let mut right = true;
    for round in 0..3000_usize {
        let data = vec![b'a' + (round % 26) as u8; 1 + round % 700];
        sys::send(client.raw, &data, 0);
        sys::send(client.raw, b"!", OOB);
        let mut urgent = [0; 1];
        let mut buffer = [0; 800];
        let mut got = 0;
        while got < data.len() {
            got += sys::recv(server.raw, &mut buffer[got..], 0).size();
        }
        while sys::recv(server.raw, &mut urgent, OOB).value != 1 {}
        right &= buffer[..got] == data[..] && urgent == *b"!";
    }
    trace!("all right {right}");
    look(server);
}

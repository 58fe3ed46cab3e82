//! One epoll set: errors, level, edge, oneshot, RDHUP, entries that come and go.

use crate::case::axes::{FAMILY, MODE, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::child::bad_fd;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "epoll",
    cases: &[
        Case::new("control_errors", FAMILY, control_errors),
        Case::new("wait_errors", ONCE, wait_errors),
        Case::new("wait_unmapped_events", ONCE, wait_unmapped_events),
        Case::new("descriptors_that_cannot_be_added", ONCE, descriptors_that_cannot_be_added),
        Case::new("level_repeats", FAMILY | MODE, level_repeats),
        Case::new("edge_once_per_arrival", FAMILY | MODE, edge_once_per_arrival),
        Case::new("edge_after_partial_read", FAMILY | MODE, edge_after_partial_read),
        Case::new("edge_read_until_eagain", FAMILY, edge_read_until_eagain),
        Case::new("edge_both_directions", FAMILY | MODE, edge_both_directions),
        Case::new("edge_writable_after_full", FAMILY, edge_writable_after_full),
        Case::new("level_writable_after_full", FAMILY, level_writable_after_full),
        Case::new("edge_mod_reports_again", FAMILY, edge_mod_reports_again),
        Case::new("oneshot_and_rearm", FAMILY | TRIGGER, oneshot_and_rearm),
        Case::new("oneshot_rearm_when_ready", FAMILY, oneshot_rearm_when_ready),
        Case::new("oneshot_disarmed_stays_quiet", FAMILY, oneshot_disarmed_stays_quiet),
        Case::new("rdhup", FAMILY | TRIGGER, rdhup),
        Case::new("hup_after_both", FAMILY | TRIGGER, hup_after_both),
        Case::new("close_by_peer", FAMILY | TRIGGER, close_by_peer),
        Case::new("reset_by_peer", FAMILY | TRIGGER, reset_by_peer),
        Case::new("errors_without_interest", FAMILY | TRIGGER, errors_without_interest),
        Case::new("added_before_connect", FAMILY | TRIGGER, added_before_connect),
        Case::new("added_before_nonblocking_connect", FAMILY | TRIGGER, added_before_nonblocking_connect),
        Case::new("added_before_refused_connect", FAMILY | TRIGGER, added_before_refused_connect).on_any_path(),
        Case::new("added_when_readable", FAMILY | TRIGGER, added_when_readable),
        Case::new("modified_when_ready", FAMILY | TRIGGER, modified_when_ready),
        Case::new("deleted_when_ready", FAMILY | TRIGGER, deleted_when_ready),
        Case::new("closing_removes", FAMILY | TRIGGER, closing_removes),
        Case::new("closing_one_duplicate_keeps", FAMILY | TRIGGER, closing_one_duplicate_keeps),
        Case::new("duplicate_in_the_same_set", FAMILY | TRIGGER, duplicate_in_the_same_set),
        Case::new("number_reused_after_close", FAMILY | TRIGGER, number_reused_after_close),
        Case::new("dup2_over_an_entry", FAMILY | TRIGGER, dup2_over_an_entry),
        Case::new("room_smaller_than_ready", FAMILY, room_smaller_than_ready),
        Case::new("turns_are_fair", ONCE, turns_are_fair),
        Case::new("listener_level", FAMILY, listener_level),
        Case::new("listener_edge", FAMILY, listener_edge),
        Case::new("listener_oneshot", FAMILY, listener_oneshot),
        Case::new("listener_added_before_listen", FAMILY, listener_added_before_listen).on_any_path(),
        Case::new("timeouts", FAMILY | MODE, timeouts),
        Case::new("mixture", FAMILY | TRIGGER, mixture),
        Case::new("timer_is_not_starved", FAMILY, timer_is_not_starved),
        Case::new("pipe_is_not_starved", FAMILY, pipe_is_not_starved),
        Case::new("own_shutdown", FAMILY | TRIGGER, own_shutdown),
        Case::new("peek_keeps_level_ready", FAMILY | TRIGGER, peek_keeps_level_ready),
        Case::new("write_interest_toggled", FAMILY, write_interest_toggled),
        Case::new("data_survives_mod", ONCE, data_survives_mod),
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

fn control_errors(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN);
    epoll_add(set, client, OUT);
    epoll_mod(set, server, IN);
    epoll_del(set, server);
    epoll_add(set, bad_fd(), IN);
    epoll_mod(set, bad_fd(), IN);
    epoll_del(set, bad_fd());
    epoll_add(bad_fd(), client, IN);
    epoll_add(client, server, IN);
    epoll_add(set, set, IN);
    trace!("unknown operation: {}", sys::epoll_ctl(set.raw, 77, client.raw, 0, 0));
    trace!("add without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_ADD, server.raw));
    trace!("mod without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_MOD, client.raw));
    trace!("del without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_DEL, client.raw));
    epoll_del(set, client);
    epoll_add(set, client, IN);
    epoll_mod(set, client, IN | libc::EPOLLEXCLUSIVE);
    epoll_add(set, server, IN | libc::EPOLLEXCLUSIVE | ONESHOT);
    epoll_add(set, server, IN | libc::EPOLLEXCLUSIVE);
    epoll_mod(set, server, IN);
}

fn wait_errors(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT);
    epoll_wait(set, 0, 0);
    epoll_wait(set, -1, 0);
    epoll_wait(bad_fd(), 1, 0);
    epoll_wait(client, 1, 0);
    trace!("null: {}", sys::epoll_wait_at(set.raw, 0, 4, 0));
    trace!("huge room: {}", sys::epoll_wait_at(set.raw, 0x10, i32::MAX, 0));
    epoll_wait(set, 4, 0);
    trace!("create1 with odd flags: {}", sys::epoll_create1(1));
}

fn wait_unmapped_events(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT);
    trace!("unmapped: {}", sys::epoll_wait_at(set.raw, 0x10, 4, 0));
    epoll_wait(set, 4, 0);
}

fn descriptors_that_cannot_be_added(_: Variant) {
    let set = epoll_create("set");
    let file = std::fs::File::open("/proc/self/exe");
    if let Ok(file) = &file {
        epoll_add(set, Fd::new(std::os::fd::AsRawFd::as_raw_fd(file), "file"), IN);
    }
    let (_, ends) = sys::pipe2(0);
    epoll_add(set, Fd::new(ends[0], "reader"), IN);
    epoll_wait(set, 4, 0);
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

fn edge_once_per_arrival(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ET);
    epoll_wait(set, 4, 0);
    for word in ["one", "two", "three"] {
        let before = queued(server);
        send(client, word.as_bytes(), 0);
        await_queued(server, before + word.len() as i32);
        epoll_wait(set, 4, 0);
        epoll_wait(set, 4, 0);
    }
    recv(server, 100, 0);
    epoll_wait(set, 4, 0);
    send(client, b"four", 0);
    await_queued(server, 4);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
}

fn edge_after_partial_read(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ET);
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    epoll_wait(set, 4, -1);
    recv(server, 4, 0);
    epoll_wait(set, 4, 0);
    send(client, b"more", 0);
    await_queued(server, 10);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 100, 0);
}

fn edge_read_until_eagain(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | RDHUP | ET);
    epoll_wait(set, 4, 0);
    for _ in 0..5 {
        send(client, b"0123456789", 0);
        await_queued(server, 10);
        epoll_wait(set, 4, -1);
        while !recv(server, 4, 0).is_empty() {}
        epoll_wait(set, 4, 0);
    }
}

fn edge_both_directions(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | RDHUP | ET);
    epoll_add(set, client, IN | OUT | RDHUP | ET);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    send(client, b"to server", 0);
    await_queued(server, 9);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    send(server, b"to client", 0);
    await_queued(client, 9);
    epoll_wait(set, 4, 0);
    recv(client, 100, 0);
    recv(server, 100, 0);
    epoll_wait(set, 4, 0);
}

fn edge_writable_after_full(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT | ET);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    let sent = fill_firmly(client, 3);
    // While the buffer filled up the kernel may have reported room more than once.
    sys::epoll_wait(EpollCall::Wait, set.raw, 4, 0, None);
    epoll_wait(set, 4, 0);
    drain(server, 3, sent);
    await_writable(client);
    epoll_wait(set, 4, -1);
    await_settled_edges(set);
    send(client, b"again", libc::MSG_DONTWAIT);
    await_queued(server, 5);
}

/// Takes edges that may or may not come in one piece.
fn await_settled_edges(set: Fd) {
    while sys::epoll_wait(EpollCall::Wait, set.raw, 4, 50, None).0.value > 0 {}
}

fn level_writable_after_full(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT);
    epoll_wait(set, 4, 0);
    let sent = fill_firmly(client, 3);
    epoll_wait(set, 4, 0);
    drain(server, 3, sent);
    await_writable(client);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, -1);
}

fn edge_mod_reports_again(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ET);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | ET);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, OUT | ET);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | OUT | ET);
    epoll_wait(set, 4, -1);
}

fn oneshot_and_rearm(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let events = IN | ONESHOT | trigger(v);
    epoll_add(set, server, events);
    epoll_wait(set, 4, 0);
    for _ in 0..3 {
        send(client, b"x", 0);
        await_queued(server, 1);
        epoll_wait(set, 4, -1);
        epoll_wait(set, 4, 0);
        recv(server, 8, 0);
        epoll_wait(set, 4, 0);
        epoll_mod(set, server, events);
        epoll_wait(set, 4, 0);
    }
}

fn oneshot_rearm_when_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ONESHOT);
    send(client, b"x", 0);
    await_queued(server, 1);
    for _ in 0..3 {
        epoll_wait(set, 4, -1);
        epoll_wait(set, 4, 0);
        epoll_mod(set, server, IN | ONESHOT);
    }
    epoll_mod(set, server, IN);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, -1);
}

fn oneshot_disarmed_stays_quiet(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ONESHOT);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
    send(client, b"y", 0);
    await_queued(server, 2);
    epoll_wait(set, 4, 0);
    close(client);
    await_hangup(server);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | ONESHOT);
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

fn added_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(listener));
    epoll_wait(set, 4, -1);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(server, b"hello", 0);
    await_queued(client, 5);
    epoll_wait(set, 4, -1);
    recv(client, 16, 0);
    epoll_wait(set, 4, 0);
    epoll_mod(set, client, IN | trigger(v));
    epoll_wait(set, 4, 0);
    close(server);
    await_hangup(client);
    epoll_wait(set, 4, -1);
    epoll_del(set, client);
    epoll_wait(set, 4, 0);
}

fn added_before_nonblocking_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | trigger(v));
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(listener));
    await_writable(client);
    epoll_wait(set, 4, -1);
    so_error(client);
    epoll_wait(set, 4, 0);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(server, b"hello", 0);
    await_queued(client, 5);
    epoll_wait(set, 4, -1);
}

fn added_before_refused_connect(v: Variant) {
    let vacant = v.bound();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | trigger(v));
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(vacant));
    await_events(client, libc::POLLERR);
    epoll_wait(set, 4, -1);
    so_error(client);
    epoll_wait(set, 4, 0);
}

fn added_when_readable(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"x", 0);
    await_queued(server, 1);
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
}

fn modified_when_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, OUT | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, trigger(v));
    epoll_wait(set, 4, 0);
}

fn deleted_when_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_del(set, server);
    epoll_wait(set, 4, 0);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_del(set, server);
    epoll_wait(set, 4, 0);
}

fn closing_removes(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    send(client, b"x", 0);
    await_queued(server, 1);
    close(server);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN);
    epoll_del(set, server);
}

fn closing_one_duplicate_keeps(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    let twin = dup(server, "twin");
    close(server);
    send(client, b"x", 0);
    await_queued(twin, 1);
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, IN);
    epoll_add(set, twin, IN | trigger(v));
    epoll_wait(set, 4, -1);
    close(twin);
    epoll_wait(set, 4, 0);
}

fn duplicate_in_the_same_set(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    epoll_add(set, twin, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(twin, 8, 0);
    epoll_wait(set, 4, 0);
    epoll_del(set, server);
    send(client, b"y", 0);
    await_queued(twin, 1);
    epoll_wait(set, 4, -1);
}

fn number_reused_after_close(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    close(server);
    let (second_client, second) = v.blocking_pair_on(listener, "client2", "second");
    trace!("{}", second_client.raw == server.raw || second.raw == server.raw);
    epoll_wait(set, 4, 0);
    epoll_add(set, second, IN | trigger(v));
    epoll_wait(set, 4, 0);
    send(second_client, b"z", 0);
    await_queued(second, 1);
    epoll_wait(set, 4, -1);
}

fn dup2_over_an_entry(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (_client2, second) = v.blocking_pair_on(listener, "client2", "second");
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    let ret = sys::dup2(second.raw, server.raw);
    trace!("dup2 took the number: {}", ret.value == i64::from(server.raw));
    await_hangup(client);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN);
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
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

fn listener_level(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN);
    epoll_wait(set, 4, 0);
    for name in ["one", "two"] {
        connect(v.named_client(name), &v.address_of(listener));
    }
    await_readable(listener);
    epoll_wait(set, 4, -1);
    accept(listener, "first");
    await_readable(listener);
    epoll_wait(set, 4, -1);
    accept(listener, "second");
    epoll_wait(set, 4, 0);
}

fn listener_edge(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN | ET);
    epoll_wait(set, 4, 0);
    connect(v.named_client("one"), &v.address_of(listener));
    await_readable(listener);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    connect(v.named_client("two"), &v.address_of(listener));
    // The second arrival is an edge as well, though the first was not taken.
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    accept(listener, "first");
    accept(listener, "second");
    epoll_wait(set, 4, 0);
    connect(v.named_client("three"), &v.address_of(listener));
    epoll_wait(set, 4, -1);
    accept(listener, "third");
}

fn listener_oneshot(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN | ONESHOT);
    connect(v.named_client("one"), &v.address_of(listener));
    await_readable(listener);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    connect(v.named_client("two"), &v.address_of(listener));
    epoll_wait(set, 4, 0);
    epoll_mod(set, listener, IN | ONESHOT);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    accept(listener, "first");
    accept(listener, "second");
}

fn listener_added_before_listen(v: Variant) {
    let listener = v.bound();
    let set = epoll_create("set");
    epoll_add(set, listener, IN);
    epoll_wait(set, 4, 0);
    listen(listener, 8);
    epoll_wait(set, 4, 0);
    connect(v.client(), &v.address_of(listener));
    epoll_wait(set, 4, -1);
    accept(listener, "server");
    epoll_wait(set, 4, 0);
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

fn write_interest_toggled(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN);
    for _ in 0..3 {
        epoll_wait(set, 4, 0);
        epoll_mod(set, client, IN | OUT);
        epoll_wait(set, 4, -1);
        epoll_mod(set, client, IN);
    }
    send(server, b"x", 0);
    await_queued(client, 1);
    epoll_wait(set, 4, -1);
}

fn data_survives_mod(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    for data in [0, 1, u64::MAX, 1 << 63] {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, client.raw, OUT as u32, 7);
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_MOD, client.raw, OUT as u32, data);
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 0, None);
        trace!("{:?}", events.iter().map(|event| event.u64).collect::<Vec<_>>());
    }
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

//! Sets in sets, and sets in `poll` and `select`.

use super::{ET, IN, OUT, say, trigger};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub(super) fn nested(v: Variant) {
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, server, IN | trigger(v));
    epoll_add(outer, inner, IN);
    epoll_wait(outer, 4, 0);
    say(client, server, "x");
    epoll_wait(outer, 4, -1);
    epoll_wait(outer, 4, -1);
    epoll_wait(inner, 4, -1);
    epoll_wait(outer, 4, 0);
    recv(server, 8, 0);
    epoll_wait(outer, 4, 0);
    epoll_wait(inner, 4, 0);
    say(client, server, "y");
    epoll_wait(outer, 4, -1);
    epoll_wait(inner, 4, -1);
}

pub(super) fn nested_twice(v: Variant) {
    let (client, server) = v.pair();
    let (inner, middle, outer) = (epoll_create("inner"), epoll_create("middle"), epoll_create("outer"));
    epoll_add(middle, inner, IN);
    epoll_add(outer, middle, IN);
    epoll_add(inner, server, IN);
    epoll_wait(outer, 4, 0);
    say(client, server, "x");
    epoll_wait(outer, 4, -1);
    epoll_wait(middle, 4, -1);
    epoll_wait(inner, 4, -1);
    recv(server, 8, 0);
    epoll_wait(outer, 4, 0);
    epoll_wait(middle, 4, 0);
}

pub(super) fn nested_edge_outside(v: Variant) {
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, server, IN);
    epoll_add(outer, inner, IN | ET);
    epoll_wait(outer, 4, 0);
    say(client, server, "x");
    epoll_wait(outer, 4, -1);
    epoll_wait(outer, 4, 0);
    epoll_wait(inner, 4, -1);
    recv(server, 8, 0);
    epoll_wait(inner, 4, 0);
    say(client, server, "y");
    epoll_wait(outer, 4, -1);
    epoll_wait(outer, 4, 0);
}
/// What was told and not read is no edge of the outer set any more, nor is a set that has fired: a wait ends in time, and
/// with what comes next.
pub(super) fn nested_edge_outside_with_data_unread(v: Variant) {
    for events in [IN | ET, IN | libc::EPOLLONESHOT] {
        let (client, server) = v.pair();
        let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
        epoll_add(inner, server, IN);
        epoll_add(outer, inner, events);
        say(client, server, "x");
        epoll_wait(outer, 4, -1);
        epoll_wait(outer, 4, 20);
        epoll_wait(inner, 4, -1);
        epoll_wait(outer, 4, 20);
        if events & ET == 0 {
            epoll_mod(outer, inner, events);
        } else {
            say(client, server, "y");
        }
        epoll_wait(outer, 4, -1);
        epoll_wait(outer, 4, 20);
    }
}

/// Room in an inner set is an edge of the outer one, as data is.
pub(super) fn nested_edge_outside_about_room(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, client, OUT);
    epoll_add(outer, inner, IN | ET);
    epoll_wait(outer, 4, -1);
    for seed in 1..=3 {
        let sent = fill_firmly(client, seed);
        while sys::epoll_wait(sys::EpollCall::Wait, outer.raw, 4, 20, None).0.value > 0 {}
        epoll_wait(inner, 4, 0);
        drain(server, seed, sent);
        await_writable(client);
        epoll_wait(outer, 4, 1000);
        epoll_wait(inner, 4, 0);
    }
}

pub(super) fn nested_with_direct_entry(v: Variant) {
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, server, IN | trigger(v));
    epoll_add(outer, inner, IN);
    epoll_add(outer, server, IN | trigger(v));
    say(client, server, "x");
    epoll_wait(outer, 4, -1);
    epoll_wait(inner, 4, -1);
    epoll_wait(outer, 4, 0);
    recv(server, 8, 0);
    epoll_wait(outer, 4, 0);
}

pub(super) fn set_in_poll_and_select(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    poll_now(set);
    select(&[set], &[], &[], 0);
    say(client, server, "x");
    poll(&[(set, libc::POLLIN)], -1);
    select(&[set], &[set], &[], -1);
    epoll_wait(set, 4, -1);
    poll_now(set);
    recv(server, 8, 0);
    poll_now(set);
    let main = sys::thread_id();
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        send(client, b"y", 0);
    });
    poll(&[(set, libc::POLLIN)], -1);
    let _ = thread.join();
}

pub(super) fn loops_are_refused(v: Variant) {
    let (client, _server) = v.pair();
    let (one, two, three) = (epoll_create("one"), epoll_create("two"), epoll_create("three"));
    epoll_add(one, two, IN);
    epoll_add(two, three, IN);
    epoll_add(three, one, IN);
    epoll_add(two, one, IN);
    epoll_add(three, client, OUT);
    epoll_wait(one, 4, 0);
}

pub(super) fn depth_limit(v: Variant) {
    let (_client, server) = v.pair();
    let sets = ["s0", "s1", "s2", "s3", "s4", "s5", "s6"].map(epoll_create);
    for pair in sets.windows(2) {
        epoll_add(pair[1], pair[0], IN);
    }
    epoll_add(sets[0], server, OUT);
    epoll_wait(sets[1], 4, 0);
}

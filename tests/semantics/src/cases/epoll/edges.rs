//! Edges, and members that are told once.

use super::{ET, IN, ONESHOT, OUT, RDHUP, trigger};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};

pub fn edge_once_per_arrival(v: Variant) {
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

pub fn edge_after_partial_read(v: Variant) {
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

pub fn edge_read_until_eagain(v: Variant) {
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

/// Bytes that come to a connection whose reading half is shut are told of as others are.
pub fn edge_with_the_reading_half_shut(v: Variant) {
    let (client, server) = v.pair();
    let (set, outer) = (epoll_create("set"), epoll_create("outer"));
    epoll_add(set, server, IN | RDHUP | ET);
    epoll_add(outer, set, IN | ET);
    shutdown(server, libc::SHUT_RD);
    let take = |timeout: i32| {
        epoll_wait(outer, 4, timeout);
        epoll_wait(set, 4, timeout);
        epoll_wait(set, 4, 0);
    };
    take(0);
    for sent in 1..=3 {
        // A member that has had nothing to tell for a while is looked at no more, but rings.
        for _ in 0..200 {
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, 0, None);
        }
        send(client, b"x", 0);
        await_queued(server, sent);
        take(0);
    }
    let main = sys::thread_id();
    for waits_on in [set, outer] {
        let thread = std::thread::spawn(move || {
            trace::set_actor("thread");
            await_asleep(main);
            send(client, b"y", 0);
        });
        epoll_wait(waits_on, 4, 5_000);
        let _ = thread.join();
        take(0);
    }
}

pub fn edge_both_directions(v: Variant) {
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

pub fn edge_writable_after_full(v: Variant) {
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

pub fn level_writable_after_full(v: Variant) {
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

/// Room has two bits, and either will do.
pub fn room_by_its_other_name(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLWRNORM | trigger(v));
    let sent = fill_firmly(client, 3);
    await_settled_edges(set);
    let thread = once_asleep("thread", move || {
        drain(server, 3, sent);
    });
    epoll_wait(set, 4, 5_000);
    let _ = thread.join();
}

/// Where members have equal data, nobody can tell by an event whose it is.
pub fn room_among_members_of_equal_data(v: Variant) {
    let ((client, server), (other, _peer)) = (v.pair(), v.pair());
    let set = epoll_create("set");
    let sent = fill_firmly(client, 3);
    for (fd, events) in [(client, OUT), (other, IN)] {
        let ret = sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, fd.raw, (events | trigger(v)) as u32, 7);
        trace!("add {}: {ret}", fd.name);
    }
    await_settled_edges(set);
    drain(server, 3, sent);
    await_writable(client);
    let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 2_000, None);
    let masks: Vec<u32> = events.iter().map(|event| event.events).collect();
    trace!("epoll_wait = {ret} {masks:x?}");
}

/// Adds or changes a member of a set of which all have equal data.
fn change_a_namesake(v: Variant, set: Fd, operation: i32, fd: i32, events: i32) {
    let ret = sys::epoll_ctl(set.raw, operation, fd, events as u32 | v.trigger(), 7);
    trace!("change: {ret}");
}

fn wait_for_namesakes(set: Fd) {
    let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 20, None);
    let masks: Vec<u32> = events.iter().map(|event| event.events).collect();
    trace!("epoll_wait = {ret} {masks:x?}");
}

/// What is told of a connection is told once, although a pipe has its data; and so is what is told of the pipe, also of
/// one shot, or where only a duplicate of it is left.
pub fn a_pipe_of_equal_data(v: Variant) {
    for (is_closed, has_duplicate, once) in
        [(false, false, 0), (true, false, 0), (true, true, 0), (false, false, ONESHOT), (true, false, ONESHOT)]
    {
        let (client, server) = v.pair();
        let set = epoll_create("set");
        let (_, [reading, writing]) = sys::pipe2(libc::O_NONBLOCK);
        let change = |operation, fd, events| change_a_namesake(v, set, operation, fd, events);
        let wait = || wait_for_namesakes(set);
        change(libc::EPOLL_CTL_ADD, reading, IN | once);
        sys::write(writing, b"y");
        wait();
        sys::read(reading, &mut [0; 8]);
        let left = if has_duplicate { sys::dup(reading).value as i32 } else { reading };
        if is_closed {
            sys::close(reading);
            // Another one has the number now, which is not in the set.
            sys::pipe2(libc::O_NONBLOCK);
        }
        change(libc::EPOLL_CTL_ADD, server.raw, IN);
        for _ in 0..3 {
            wait();
            send(client, b"x", 0);
            await_queued(server, 1);
            wait();
            recv(server, 8, 0);
            wait();
            if !is_closed || has_duplicate {
                sys::write(writing, b"y");
                wait();
                sys::read(left, &mut [0; 8]);
            }
        }
        close(set);
    }
}

/// A connection of one shot that ends is told of when it is asked for again, although a pipe had its data and its shot.
pub fn one_shots_of_equal_data(v: Variant) {
    for resets in [false, true] {
        let (client, server) = v.pair();
        let set = epoll_create("set");
        let (_, [reading, writing]) = sys::pipe2(libc::O_NONBLOCK);
        let change = |operation, fd, events| change_a_namesake(v, set, operation, fd, events);
        let wait = || wait_for_namesakes(set);
        change(libc::EPOLL_CTL_ADD, reading, IN | ONESHOT);
        sys::write(writing, b"y");
        wait();
        sys::close(reading);
        sys::pipe2(libc::O_NONBLOCK);
        change(libc::EPOLL_CTL_ADD, server.raw, IN | ONESHOT);
        send(client, b"x", 0);
        await_queued(server, 1);
        wait();
        recv(server, 8, 0);
        if resets {
            set_linger(client, 1, 0);
        }
        close(client);
        await_events(server, if resets { libc::POLLERR } else { libc::POLLRDHUP });
        wait();
        wait();
        change(libc::EPOLL_CTL_MOD, server.raw, IN | RDHUP | ONESHOT);
        wait();
        wait();
        close(server);
        close(set);
    }
}

/// Of members of equal data, one no longer asks for room: there being some is no news.
pub fn room_no_longer_asked_for_keeps_nobody_awake(v: Variant) {
    let ((client, server), (other, _peer)) = (v.pair(), v.pair());
    let set = epoll_create("set");
    let change = |operation: i32, fd: Fd, events: i32| {
        let ret = sys::epoll_ctl(set.raw, operation, fd.raw, events as u32, 7);
        trace!("change {}: {ret}", fd.name);
    };
    let sent = fill_firmly(client, 3);
    change(libc::EPOLL_CTL_ADD, client, IN | OUT);
    change(libc::EPOLL_CTL_ADD, other, IN);
    epoll_wait(set, 4, 20);
    change(libc::EPOLL_CTL_MOD, client, IN);
    drain(server, 3, sent);
    await_writable(client);
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 300);
    trace!("busy: {}", sys::thread_cpu_ms() - before > 150);
}

/// A peer that has shut its reading half and is full keeps nobody awake who waits for room, and its room is told of.
pub fn no_room_at_a_shut_reading_half(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    shutdown(server, libc::SHUT_RD);
    let sent = fill_firmly(client, 3);
    epoll_add(set, client, OUT | trigger(v));
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 300);
    for _ in 0..300 {
        sys::epoll_wait(EpollCall::Wait, set.raw, 4, 1, None);
    }
    trace!("busy: {}", sys::thread_cpu_ms() - before > 250);
    let thread = once_asleep("thread", move || {
        drain_shut(server, 3, sent);
    });
    epoll_wait(set, 4, 10_000);
    let _ = thread.join();
}

/// A thread sleeps for room, and other members leave meanwhile.
pub fn room_after_many_members_have_left(v: Variant) {
    const LEAVE: usize = 40;
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let pairs: Vec<_> = (0..LEAVE).map(|_| v.pair()).collect();
    for (fd, _) in &pairs {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, fd.raw, (IN | trigger(v)) as u32, fd.raw as u64);
    }
    epoll_add(set, client, IN | OUT | trigger(v));
    let sent = fill_firmly(client, 3);
    await_settled_edges(set);
    let thread = once_asleep("thread", move || {
        for (fd, _) in &pairs {
            sys::epoll_ctl(set.raw, libc::EPOLL_CTL_DEL, fd.raw, 0, 0);
        }
        drain(server, 3, sent);
    });
    epoll_wait(set, 4, 5_000);
    let _ = thread.join();
}

pub fn edge_mod_reports_again(v: Variant) {
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

pub fn oneshot_and_rearm(v: Variant) {
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

pub fn oneshot_rearm_when_ready(v: Variant) {
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

pub fn oneshot_disarmed_stays_quiet(v: Variant) {
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

/// A wait ends in time although a member that has fired is dead.
pub fn oneshot_disarmed_outlives_the_peer(v: Variant) {
    let set = epoll_create("set");
    for resets in [false, true] {
        let (client, server) = v.pair();
        epoll_add(set, server, IN | ONESHOT | trigger(v));
        send(client, b"x", 0);
        await_queued(server, 1);
        epoll_wait(set, 4, -1);
        recv(server, 8, 0);
        if resets {
            set_linger(client, 1, 0);
        }
        close(client);
        await_events(server, if resets { libc::POLLERR } else { libc::POLLRDHUP });
        epoll_wait(set, 4, 20);
        epoll_wait(set, 4, 0);
        epoll_mod(set, server, IN | RDHUP | ONESHOT | trigger(v));
        epoll_wait(set, 4, -1);
        epoll_wait(set, 4, 20);
        recv(server, 8, 0);
        close(server);
    }
}

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

/// That a connection is closed whose end was told before is nothing to whoever watches the set.
pub(super) fn nested_closed_after_its_end(v: Variant) {
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(outer, inner, IN);
    epoll_add(inner, client, IN | OUT | ET);
    shutdown(server, libc::SHUT_WR);
    await_hangup(client);
    epoll_wait(inner, 4, 0);
    close(server);
    epoll_wait(outer, 4, 20);
    poll(&[(inner, libc::POLLIN)], 0);
    epoll_wait(inner, 4, 0);
}

/// A thread waits on a set that watches a set. A connection joins the inner one whose bytes were there before it was
/// accepted. The client is another process: nothing of its own is to wake the thread.
pub(super) fn nested_with_a_member_that_has_bytes(v: Variant) {
    for mixed in [false, true] {
        let listener = v.bound();
        let ((told, tell), (heard, say)) = (crate::cases::ready::pipe(), crate::cases::ready::pipe());
        let child = sys::fork(|| {
            trace::set_actor("child");
            read(told, 1);
            let client = v.client();
            connect(client, &v.address_of(listener));
            send(client, b"early", 0);
            write(say, b"x");
            read(told, 1);
            0
        });
        listen(listener, 16);
        poll(&[(listener, libc::POLLIN)], 0);
        let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
        let (reader, _writer) = crate::cases::ready::pipe();
        if mixed {
            epoll_add(inner, reader, IN);
        }
        epoll_add(outer, inner, IN);
        write(tell, b"x");
        read(heard, 1);
        let (tell_thread, thread) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            trace::set_actor("waiter");
            let _ = tell_thread.send(sys::thread_id());
            epoll_wait(outer, 4, -1);
        });
        let _ = thread.recv().map(await_asleep);
        let server = accept(listener, "server");
        epoll_add(inner, server, IN);
        let _ = waiter.join();
        recv(server, 8, 0);
        epoll_wait(outer, 4, 0);
        epoll_wait(inner, 4, 0);
        write(tell, b"x");
        trace!("child: {}", sys::wait_for(child));
    }
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

/// The peer closes while nobody asks about the connection; the inner set has a member of another kind.
pub(super) fn nested_with_a_paused_member(v: Variant) {
    for fired in [false, true] {
        let (client, server) = v.pair();
        let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
        let (reader, writer) = crate::cases::ready::pipe();
        epoll_add(inner, reader, IN);
        epoll_add(inner, server, IN | if fired { libc::EPOLLONESHOT } else { 0 });
        epoll_add(outer, inner, IN);
        say(client, server, "x");
        epoll_wait(outer, 4, -1);
        epoll_wait(inner, 4, -1);
        recv(server, 8, 0);
        if !fired {
            epoll_mod(inner, server, 0);
        }
        epoll_wait(outer, 4, 20);
        close(client);
        epoll_wait(outer, 4, 20);
        poll(&[(inner, libc::POLLIN)], 20);
        recv(server, 8, 0);
        epoll_wait(outer, 4, 20);
        epoll_mod(inner, server, IN);
        epoll_wait(outer, 4, -1);
        epoll_wait(inner, 4, -1);
        close(writer);
        close(reader);
    }
}

/// What was told and not read is no edge of the outer set any more, nor is a set that has fired: a wait ends in time,
/// and with what comes next.
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

/// Takes all that the outer set has to tell now.
fn quieten(outer: Fd) {
    while sys::epoll_wait(sys::EpollCall::Wait, outer.raw, 4, 20, None).0.value > 0 {}
}

/// Room that comes after the outer set was told of something else, while there was none.
pub(super) fn nested_edge_outside_about_room_beside_data(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let (other_client, other_server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, client, OUT);
    epoll_add(inner, other_server, IN);
    epoll_add(outer, inner, IN | ET);
    epoll_wait(outer, 4, -1);
    for seed in 1..=3 {
        let sent = fill_firmly(client, seed);
        quieten(outer);
        say(other_client, other_server, "x");
        epoll_wait(outer, 4, 1000);
        recv(other_server, 8, 0);
        quieten(outer);
        drain(server, seed, sent);
        await_writable(client);
        epoll_wait(outer, 4, 1000);
        epoll_wait(inner, 4, 0);
    }
}

/// Room that goes without a send that fails is no edge, and takes none from the bytes that come.
pub(super) fn nested_edge_outside_about_one_byte(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, client, IN | OUT);
    epoll_add(outer, inner, IN | ET);
    quieten(outer);
    for _ in 0..3 {
        let mut sent = 0;
        // Until no room is shown and none comes.
        while sys::poll(&mut [libc::pollfd { fd: client.raw, events: libc::POLLOUT, revents: 0 }], 200).value > 0 {
            sent += sys::send(client.raw, &[7; 4096], libc::MSG_DONTWAIT).value as u64;
        }
        quieten(outer);
        say(server, client, "x");
        epoll_wait(outer, 4, 1000);
        recv(client, 8, 0);
        quieten(outer);
        let mut buffer = vec![0; 64 * 1024];
        while sent > 0 && await_readable(server) {
            sent -= sys::recv(server.raw, &mut buffer, libc::MSG_DONTWAIT).value as u64;
        }
        await_writable(client);
        quieten(outer);
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

/// A connection that ends before it was accepted, seen through two sets.
pub(super) fn nested_client_that_nobody_takes(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let listener = v.listener();
    poll_now(listener);
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_writable(client);
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, client, IN);
    epoll_add(outer, inner, IN);
    epoll_wait(outer, 4, 0);
    close(listener);
    epoll_wait(outer, 4, 1000);
    epoll_wait(inner, 4, 1000);
    recv(client, 8, 0);
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
    let thread = once_asleep("thread", move || {
        send(client, b"y", 0);
    });
    poll(&[(set, libc::POLLIN)], -1);
    let _ = thread.join();
}

/// The second connection's server has closed its end in good order, which may be kept for another.
pub(super) fn set_with_a_listener_whose_client_breaks(v: Variant) {
    let listener = v.listener();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, listener, IN);
    epoll_add(outer, inner, IN);
    for breaks in [false, true] {
        let client = v.client();
        connect(client, &v.address_of(listener));
        await_readable(listener);
        let server = accept(listener, "server");
        close(server);
        await_hangup(client);
        if breaks {
            send(client, b"to nobody", 0);
            await_events(client, libc::POLLERR);
            poll(&[(inner, libc::POLLIN), (outer, libc::POLLIN)], 0);
            select(&[inner, outer], &[], &[], 0);
            epoll_wait(outer, 4, 0);
        }
        close(client);
    }
    let client = v.client();
    connect(client, &v.address_of(listener));
    await_readable(listener);
    poll(&[(inner, libc::POLLIN), (outer, libc::POLLIN)], 0);
    epoll_wait(outer, 4, 0);
    epoll_wait(inner, 4, 0);
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

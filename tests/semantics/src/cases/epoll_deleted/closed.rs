//! Members whose number is closed, or whose set others share.

use super::{A_WHILE, IN, deleted_from, kernel_says, say, trigger, waited_for};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self};

pub fn closed(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let set = deleted_from(server, v);
    close(server);
    await_hangup(client);
    epoll_wait(set, 4, A_WHILE);
    let (second_client, second) = v.blocking_pair_on(listener, "client2", "second");
    epoll_add(set, second, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    say(second_client, second, "x");
    epoll_wait(set, 4, -1);
}

pub fn closed_and_a_duplicate_stays(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    let twin = dup(server, "twin");
    close(server);
    say(client, twin, "x");
    epoll_wait(set, 4, A_WHILE);
    kernel_says(set);
    epoll_add(set, twin, IN | trigger(v));
    epoll_wait(set, 4, -1);
}

/// libc closes the number of a stream without asking anybody.
pub fn closed_by_a_stream_and_a_duplicate_stays(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    let twin = dup(server, "twin");
    if let (Some(stream), _) = sys::Stream::open(server.raw, c"r+") {
        stream.close();
    }
    say(client, twin, "x");
    epoll_wait(set, 4, A_WHILE);
    epoll_wait(set, 4, 0);
    epoll_add(set, twin, IN);
    epoll_wait(set, 4, -1);
}

pub fn number_leads_elsewhere(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (second_client, second) = v.blocking_pair_on(listener, "client2", "second");
    let set = deleted_from(server, v);
    let twin = dup(server, "twin");
    sys::dup2(second.raw, server.raw);
    say(client, twin, "x");
    epoll_wait(set, 4, A_WHILE);
    kernel_says(set);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    say(second_client, second, "y");
    epoll_wait(set, 4, -1);
}

/// Runs `body` in a child, and `then` here while it is there.
fn beside_a_child(body: impl FnOnce(), then: impl FnOnce()) {
    let (_, ends) = sys::pipe2(0);
    let child = sys::fork(|| {
        trace::set_actor("child");
        sys::close(ends[1]);
        body();
        // Until the parent has done its part.
        sys::read(ends[0], &mut [0]);
        0
    });
    sys::close(ends[0]);
    then();
    sys::close(ends[1]);
    trace!("child: {}", sys::wait_for(child));
}

pub fn closed_and_a_child_has_it(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    beside_a_child(
        || {},
        || {
            close(server);
            send(client, b"x", 0);
            kernel_says(set);
            epoll_wait(set, 4, A_WHILE);
            kernel_says(set);
        },
    );
}

/// The set was made before the fork and is the parent's alone as far as the child goes on without it.
pub fn closed_after_a_fork(v: Variant) {
    let (client, server) = v.pair();
    let set = waited_for(server, v);
    beside_a_child(
        || {
            close(set);
        },
        || {
            epoll_del(set, server);
            close(server);
            send(client, b"x", 0);
            epoll_wait(set, 4, A_WHILE);
            kernel_says(set);
        },
    );
}

pub fn a_child_waits_on_the_set(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    beside_a_child(
        || {
            await_queued(server, 1);
            kernel_says(set);
            epoll_wait(set, 4, A_WHILE);
            epoll_add(set, server, IN | trigger(v));
            epoll_wait(set, 4, -1);
        },
        || {
            send(client, b"x", 0);
        },
    );
}

//! Threads that are cancelled in calls that wait: the thread ends, and what it waited on goes on.

use super::waiters::*;
use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use crate::with_all_waiters;
use beeline_testkit::sys::{self, Cancellable, Pieces};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

macro_rules! each_waiter {
    ([$($waiter:ident)*]) => {
        [$( Case::new(stringify!($waiter), ONCE, |v| cancelled(v, $waiter)), )*]
    };
}

const WAITERS: [Case; 16] = with_all_waiters!(each_waiter);

const OTHERS: [Case; 9] = [
    Case::new("in_accept", FAMILY, in_accept),
    Case::new("in_accept_of_a_crowd", ONCE, in_accept_of_a_crowd),
    Case::new("in_send", FAMILY, in_send),
    Case::new("in_splice", ONCE, in_splice),
    Case::new("in_recvmmsg", ONCE, in_recvmmsg),
    Case::new("before_the_call", ONCE, before_the_call),
    Case::new("when_disabled", ONCE, when_disabled),
    Case::new("one_of_two_receivers", FAMILY, one_of_two_receivers),
    Case::new("many_times", ONCE, many_times),
];

const CASES: [Case; 25] = {
    let mut cases = [OTHERS[0]; 25];
    let mut at = 0;
    while at < 25 {
        cases[at] = if at < 16 { WAITERS[at] } else { OTHERS[at - 16] };
        at += 1;
    }
    cases
};

pub const GROUP: Group = Group { name: "cancel", cases: &CASES };

static THREAD: AtomicI32 = AtomicI32::new(0);

/// Starts a thread that says who it is, and waits until it sleeps in `body`.
pub(super) fn asleep_in(body: impl FnOnce() + Send + 'static) -> Cancellable {
    THREAD.store(0, Ordering::SeqCst);
    let thread = Cancellable::start(move || {
        trace::set_actor("thread");
        THREAD.store(sys::thread_id(), Ordering::SeqCst);
        body();
    });
    until("the thread runs", || THREAD.load(Ordering::SeqCst) != 0);
    await_asleep(THREAD.load(Ordering::SeqCst));
    thread
}

pub(super) fn cancel(thread: Cancellable) {
    let ret = thread.cancel();
    trace!("cancel {ret}, cancelled {}", thread.join());
}

/// The connection is as it was.
fn goes_on(client: Fd, server: Fd) {
    send(client, b"after", 0);
    await_queued(server, 5);
    poll_now(server);
    recv(server, 8, 0);
    send(server, b"back", 0);
    recv(client, 8, 0);
    close(server);
    await_hangup(client);
    recv(client, 8, 0);
}

fn cancelled(v: Variant, wait: Waiter) {
    let (client, server) = v.pair();
    cancel(asleep_in(move || wait(server)));
    goes_on(client, server);
}

fn in_accept(v: Variant) {
    let listener = v.listener();
    cancel(asleep_in(move || {
        accept(listener, "nobody");
    }));
    let (client, server) = v.pair_on(listener);
    goes_on(client, server);
}

fn in_accept_of_a_crowd(v: Variant) {
    let listener = v.listener();
    let (_, ends) = sys::pipe2(0);
    let child = sys::fork(|| {
        trace::set_actor("child");
        cancel(asleep_in(move || {
            accept(listener, "nobody");
        }));
        sys::write(ends[1], b"x");
        let server = accept(listener, "server");
        recv(server, 8, 0);
        0
    });
    let thread = asleep_in(move || {
        accept(listener, "nobody");
    });
    cancel(thread);
    sys::read(ends[0], &mut [0; 1]);
    let client = v.client();
    connect(client, &v.address_of(listener));
    send(client, b"served", 0);
    trace!("{}", sys::wait_for(child));
}

fn in_send(v: Variant) {
    let (client, server) = v.pair();
    let filled = fill_firmly(client, 8);
    cancel(asleep_in(move || {
        send(client, b"no room", 0);
    }));
    drain(server, 8, filled);
    goes_on(client, server);
}

fn in_splice(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    cancel(asleep_in(move || {
        sys::splice(server.raw, None, ends[1], None, 10, 0);
    }));
    cancel(asleep_in(move || {
        sys::splice(ends[0], None, client.raw, None, 10, 0);
    }));
    goes_on(client, server);
}

/// Nothing of the connection is left when it is closed.
fn in_recvmmsg(v: Variant) {
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let listener = v.listener();
    let mut before = 0;
    for round in 0..40 {
        let (client, server) = v.pair_on(listener);
        let thread = Cancellable::start(move || {
            THREAD.store(sys::thread_id(), Ordering::SeqCst);
            sys::recvmmsg(server.raw, &mut [Pieces::of_lengths(&[8]), Pieces::of_lengths(&[8])], 0, -1);
        });
        until("the thread runs", || THREAD.swap(0, Ordering::SeqCst) != 0);
        sys::send(client.raw, b"first", 0);
        cancel(thread);
        sys::close(client.raw);
        sys::close(server.raw);
        if round == 20 {
            before = open();
        }
    }
    let more = until("all are given back", || open() <= before + 5);
    trace!("given back {more}");
}

static GO: AtomicBool = AtomicBool::new(false);

fn before_the_call(v: Variant) {
    let (client, server) = v.pair();
    let thread = Cancellable::start(move || {
        trace::set_actor("thread");
        while !GO.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        recv(server, 8, 0);
    });
    let ret = thread.cancel();
    GO.store(true, Ordering::SeqCst);
    trace!("cancel {ret}, cancelled {}", thread.join());
    goes_on(client, server);
}

fn when_disabled(v: Variant) {
    let (client, server) = v.pair();
    let thread = asleep_in(move || {
        sys::allow_cancellation(false);
        recv(server, 8, 0);
        sys::allow_cancellation(true);
        recv(server, 8, 0);
        trace!("still here");
    });
    let ret = thread.cancel();
    send(client, b"data", 0);
    trace!("cancel {ret}, cancelled {}", thread.join());
    goes_on(client, server);
}

fn one_of_two_receivers(v: Variant) {
    let (client, server) = v.pair();
    let first = asleep_in(move || {
        recv(server, 8, 0);
    });
    let second = asleep_in(move || {
        trace::set_actor("second");
        recv(server, 8, 0);
    });
    cancel(first);
    send(client, b"data", 0);
    trace!("cancelled {}", second.join());
    goes_on(client, server);
}

fn many_times(v: Variant) {
    let (client, server) = v.pair();
    for round in 0..200 {
        let thread = Cancellable::start(move || {
            loop {
                sys::recv(server.raw, &mut [0; 8], 0);
            }
        });
        if round % 2 == 0 {
            sys::send(client.raw, b"x", 0);
        }
        thread.cancel();
        if !thread.join() {
            return trace!("not cancelled");
        }
    }
    while sys::recv(server.raw, &mut [0; 8], libc::MSG_DONTWAIT).is_ok() {}
    goes_on(client, server);
}

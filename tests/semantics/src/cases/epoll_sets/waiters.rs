//! Several threads or processes that wait on one connection, on one set or on several.

use super::{ET, IN, OUT, say, trigger};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) fn two_threads_wait_on_one_set(v: Variant) {
    // Each of 200 bytes is received by exactly one of two threads that wait on the same set.
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let take = move || loop {
        sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
        loop {
            let mut byte = [0];
            match sys::recv(server.raw, &mut byte, 0).value {
                1 => TAKEN.fetch_add(1, Ordering::SeqCst),
                0 => return,
                _ => break,
            };
        }
    };
    let threads = [std::thread::spawn(take), std::thread::spawn(take)];
    for count in 1..=200 {
        sys::send(client.raw, b"x", 0);
        until("it is taken", || TAKEN.load(Ordering::SeqCst) == count);
    }
    // With an edge only one thread hears of the end: it must reach the other by another way.
    shutdown(client, libc::SHUT_WR);
    for thread in threads {
        until("a thread has ended", || {
            epoll_mod_quietly(set, server, IN | trigger(v));
            thread.is_finished()
        });
    }
    trace!("taken {}", TAKEN.load(Ordering::SeqCst));
}

/// What others do with a set hides nothing in it from who looks.
pub(super) fn ready_beside_other_threads(v: Variant) {
    const LOOKS: usize = 20_000;
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(inner, server, IN);
    epoll_add(outer, inner, IN);
    say(client, server, "x");
    epoll_wait(outer, 4, -1);
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let busy = std::thread::spawn(move || {
        while DONE.load(Ordering::SeqCst) == 0 {
            sys::epoll_wait(EpollCall::Wait, inner.raw, 4, 0, None);
        }
    });
    let ready = |look: &dyn Fn() -> i64| (0..LOOKS).filter(|_| look() == 1).count();
    let set_by_poll = |set: Fd| {
        let mut entry = [libc::pollfd { fd: set.raw, events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut entry, 0).value
    };
    trace!("inner by poll: {} of {LOOKS}", ready(&|| set_by_poll(inner)));
    trace!("outer by poll: {} of {LOOKS}", ready(&|| set_by_poll(outer)));
    let wait = || sys::epoll_wait(EpollCall::Wait, outer.raw, 4, 0, None).0.value;
    trace!("outer by epoll_wait: {} of {LOOKS}", ready(&wait));
    DONE.store(1, Ordering::SeqCst);
    let _ = busy.join();
}

fn epoll_mod_quietly(set: Fd, fd: Fd, events: i32) {
    sys::epoll_ctl(set.raw, libc::EPOLL_CTL_MOD, fd.raw, events as u32, 0);
}

pub(super) fn two_threads_two_sets_one_connection(v: Variant) {
    // Both sets are told of each arrival, whoever reads it.
    let (client, server) = v.pair();
    let sets = [epoll_create("one"), epoll_create("two")];
    for set in sets {
        epoll_add(set, server, IN | ET);
    }
    static WOKEN: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let waiters = [0, 1].map(|at| {
        std::thread::spawn(move || {
            for _ in 0..20 {
                sys::epoll_wait(EpollCall::Wait, sets[at].raw, 4, -1, None);
                WOKEN[at].fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    for count in 1..=20 {
        sys::send(client.raw, b"x", 0);
        until("both are woken", || WOKEN.iter().all(|woken| woken.load(Ordering::SeqCst) >= count));
    }
    for waiter in waiters {
        let _ = waiter.join();
    }
    fionread(server);
}

pub(super) fn exclusive_waiters(v: Variant) {
    // At least one of the waiters is woken; how many more is up to the kernel.
    let listener = v.listener();
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    sys::set_nonblocking(listener.raw, true);
    let workers = ["one", "two"].map(|name| {
        let set = epoll_create(name);
        epoll_add(set, listener, IN | libc::EPOLLEXCLUSIVE);
        std::thread::spawn(move || {
            loop {
                sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
                let ret = crate::across::accept(listener.raw);
                if !ret.is_ok() {
                    continue;
                }
                let mut byte = [0];
                sys::recv(ret.value as i32, &mut byte, 0);
                SERVED.fetch_add(1, Ordering::SeqCst);
                sys::close(ret.value as i32);
                if byte[0] == b'q' {
                    return;
                }
            }
        })
    });
    for (at, word) in b"abcdefghqq".iter().enumerate() {
        let client = v.client();
        connect(client, &v.address_of(listener));
        trace::write_note(format_args!("pair"));
        send(client, &[*word], 0);
        until("it is served", || SERVED.load(Ordering::SeqCst) == at + 1);
        close(client);
    }
    for worker in workers {
        let _ = worker.join();
    }
}

/// Runs `change` in this thread while another waits on `set`; returns when that wait is over.
fn while_waiting(set: Fd, change: impl FnOnce()) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        let _ = tell.send(sys::thread_id());
        epoll_wait(set, 4, -1);
    });
    if let Ok(waiter) = told.recv() {
        await_asleep(waiter);
    }
    change();
    let _ = thread.join();
}

pub(super) fn add_while_another_thread_waits(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    say(client, server, "x");
    while_waiting(set, || {
        epoll_add(set, server, IN | trigger(v));
    });
}

pub(super) fn mod_while_another_thread_waits(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, 0);
    say(client, server, "x");
    while_waiting(set, || {
        epoll_mod(set, server, IN);
    });
}

pub(super) fn room_after_add(v: Variant) {
    // Nothing to report when the member comes: what comes later must reach the thread that sleeps already.
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let filled = fill_firmly(server, 1);
    while_waiting(set, || {
        epoll_add(set, server, OUT | trigger(v));
        drain(client, 1, filled);
    });
}

pub(super) fn room_after_filling(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | ET);
    epoll_wait(set, 4, 0);
    while_waiting(set, || {
        let filled = fill_firmly(server, 1);
        drain(client, 1, filled);
    });
}

pub(super) fn data_after_mod(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | libc::EPOLLONESHOT | trigger(v));
    say(client, server, "x");
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    while_waiting(set, || {
        epoll_mod(set, server, IN | libc::EPOLLONESHOT | trigger(v));
        say(client, server, "y");
    });
}

pub(super) fn close_while_another_thread_waits(v: Variant) {
    let listener = v.listener();
    let (_client, server) = v.pair_on(listener);
    let (client2, second) = v.blocking_pair_on(listener, "client2", "second");
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    epoll_add(set, second, IN);
    while_waiting(set, || {
        close(server);
        send(client2, b"x", 0);
    });
}

pub(super) fn oneshot_shared_by_threads(v: Variant) {
    // The usual pattern of thread pools: whoever gets the event owns the connection until it arms it again.
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let armed = IN | libc::EPOLLONESHOT | ET;
    epoll_add(set, server, armed);
    static OWNERS: AtomicUsize = AtomicUsize::new(0);
    static TWICE: AtomicUsize = AtomicUsize::new(0);
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    let pool = [(); 3].map(|()| {
        std::thread::spawn(move || {
            loop {
                let (ret, _) = sys::epoll_wait(EpollCall::Wait, set.raw, 1, -1, None);
                if ret.value != 1 {
                    continue;
                }
                TWICE.fetch_add(OWNERS.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                let mut buffer = [0; 64];
                let end = loop {
                    let ret = sys::recv(server.raw, &mut buffer, 0);
                    match ret.value {
                        1.. => BYTES.fetch_add(ret.size(), Ordering::SeqCst),
                        _ => break ret.value == 0,
                    };
                };
                OWNERS.fetch_sub(1, Ordering::SeqCst);
                epoll_mod_quietly(set, server, armed);
                if end {
                    return;
                }
            }
        })
    });
    for _ in 0..500 {
        sys::send(client.raw, b"12345", 0);
    }
    shutdown(client, libc::SHUT_WR);
    for thread in pool {
        let _ = thread.join();
    }
    trace!("bytes {}, owned by two {}", BYTES.load(Ordering::SeqCst), TWICE.load(Ordering::SeqCst));
}

pub(super) fn set_inherited_by_fork(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    let child = sys::fork(|| {
        trace::set_actor("child");
        epoll_wait(set, 4, -1);
        recv(server, 8, 0);
        send(server, b"done", 0);
        0
    });
    send(client, b"x", 0);
    await_queued(client, 4);
    recv(client, 8, 0);
    trace!("child: {}", sys::wait_for(child));
    epoll_wait(set, 4, 0);
    say(client, server, "y");
    epoll_wait(set, 4, -1);
}

pub(super) fn set_shared_by_fork(v: Variant) {
    // The child closes its copy of the connection: the entry lives on through the parent's.
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    let child = sys::fork(|| {
        trace::set_actor("child");
        close(server);
        epoll_wait(set, 4, -1);
        0
    });
    send(client, b"x", 0);
    trace!("child: {}", sys::wait_for(child));
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
}

pub(super) fn child_adds_its_own(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let child = sys::fork(|| {
        trace::set_actor("child");
        let own = epoll_create("own");
        epoll_add(own, server, IN);
        epoll_wait(own, 4, -1);
        recv(server, 1, 0);
        0
    });
    epoll_add(set, client, IN);
    send(client, b"x", 0);
    trace!("child: {}", sys::wait_for(child));
    epoll_wait(set, 4, 0);
    epoll_add(set, server, IN | OUT);
    epoll_wait(set, 4, 0);
}

pub(super) fn two_pollers_one_reader(v: Variant) {
    // poll and epoll in two threads on one connection: an arrival wakes both.
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    let (tell, told) = std::sync::mpsc::channel();
    let other = tell.clone();
    let threads = [
        std::thread::spawn(move || {
            trace::set_actor("by epoll");
            let _ = tell.send(sys::thread_id());
            epoll_wait(set, 4, -1);
        }),
        std::thread::spawn(move || {
            trace::set_actor("by poll");
            let _ = other.send(sys::thread_id());
            poll(&[(server, libc::POLLIN)], -1);
        }),
    ];
    for waiter in told.iter().take(2) {
        await_asleep(waiter);
    }
    send(client, b"x", 0);
    for thread in threads {
        let _ = thread.join();
    }
    recv(server, 8, 0);
}

/// A thread waits on a set that watches a set. Another one looks at the inner set and reads, and goes away: what comes
/// then is the waiter's.
pub(super) fn waiter_behind_a_set_that_others_look_at(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
    epoll_add(outer, inner, IN);
    epoll_add(inner, server, IN);
    let mut late = 0;
    for _ in 0..20 {
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let _ = tell.send(sys::thread_id());
            sys::epoll_wait(EpollCall::Wait, outer.raw, 1, 1000, None).0.value
        });
        if let Ok(thread) = told.recv() {
            await_asleep(thread);
        }
        let mut byte = [0];
        sys::send(client.raw, b"x", 0);
        sys::epoll_wait(EpollCall::Wait, inner.raw, 1, 0, None);
        sys::recv(server.raw, &mut byte, 0);
        sys::epoll_wait(EpollCall::Wait, inner.raw, 1, 0, None);
        sys::epoll_wait(EpollCall::Wait, inner.raw, 1, 0, None);
        sys::send(client.raw, b"y", 0);
        late += usize::from(waiter.join().ok() != Some(1));
        sys::recv(server.raw, &mut byte, 0);
    }
    trace!("waits that did not end: {late}");
}

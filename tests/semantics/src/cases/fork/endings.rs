//! Holders that close, shut down or die, and what the others and the peer see of it.

use super::{child, finish};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::time::Duration;

pub fn child_closes_its_copy(v: Variant) {
    let (client, server) = v.pair();
    finish(child("child", || {
        close(server);
        close(client);
    }));
    send(client, b"still open", 0);
    await_queued(server, 10);
    recv(server, 16, 0);
    poll_now(server);
    poll_now(client);
}

pub fn child_exits(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"for the child", 0);
    await_queued(server, 13);
    finish(child("child", || {
        recv(server, 4, 0);
    }));
    recv(server, 16, 0);
    send(server, b"back", 0);
    await_queued(client, 4);
    recv(client, 16, 0);
}

pub fn child_is_killed(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        // Without a trace: the process may be killed before it could write it.
        sys::recv(server.raw, &mut [0; 16], 0);
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    });
    send(client, b"one", 0);
    until("the child has read", || queued(server) == 0);
    sys::kill(child.value as i32, libc::SIGKILL);
    finish(child);
    send(client, b"two", 0);
    await_queued(server, 3);
    recv(server, 16, 0);
    poll_now(server);
}

pub fn parent_closes_child_goes_on(v: Variant) {
    let (client, server) = v.pair();
    let (_, [reader, writer]) = sys::pipe2(0);
    let child = child("child", || {
        sys::close(client.raw);
        sys::read(reader, &mut [0]);
        await_queued(server, 5);
        recv(server, 16, 0);
        send(server, b"child here", 0);
    });
    close(server);
    poll_now(client);
    sys::write(writer, b"x");
    send(client, b"still?", 0);
    await_queued(client, 10);
    recv(client, 16, 0);
    finish(child);
    await_hangup(client);
    recv(client, 16, 0);
}

pub fn child_shuts_down_for_both(v: Variant) {
    let (client, server) = v.pair();
    finish(child("child", || {
        shutdown(server, libc::SHUT_WR);
    }));
    await_hangup(client);
    recv(client, 8, 0);
    send(server, b"x", libc::MSG_NOSIGNAL);
    send(client, b"other way", 0);
    await_queued(server, 9);
    recv(server, 16, 0);
    poll_now(server);
}

pub fn last_holder_gone(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        sys::close(client.raw);
        send(server, b"last words", 0);
    });
    close(server);
    finish(child);
    await_hangup(client);
    recv(client, 32, 0);
    recv(client, 32, 0);
    poll_now(client);
}

pub fn last_holder_gone_unread(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"never read", 0);
    await_queued(server, 10);
    let child = child("child", || {
        sys::close(client.raw);
    });
    close(server);
    finish(child);
    await_events(client, libc::POLLERR);
    poll_now(client);
    recv(client, 8, 0);
}

pub fn last_holder_killed(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        sys::close(client.raw);
        // Without a trace: the process may be killed before it could write it.
        sys::send(server.raw, b"before the end", 0);
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    });
    close(server);
    await_queued(client, 14);
    sys::kill(child.value as i32, libc::SIGKILL);
    finish(child);
    await_hangup(client);
    poll_now(client);
    recv(client, 32, 0);
    recv(client, 32, 0);
    send(client, b"x", libc::MSG_NOSIGNAL);
}

/// Who only ever asks, and never waits, learns of the end as well.
pub fn last_holder_killed_and_nobody_waits(v: Variant) {
    fn asks(how: &str, v: Variant, mut ask: impl FnMut(Fd) -> bool) {
        let (client, server) = v.pair();
        let child = child("child", || {
            sys::close(client.raw);
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        });
        close(server);
        trace!("{how} before: {}", ask(client));
        sys::kill(child.value as i32, libc::SIGKILL);
        finish(child);
        let asked = || {
            std::thread::sleep(Duration::from_millis(5));
            ask(client)
        };
        trace!("{how} after: {}", std::iter::repeat_with(asked).take(200).any(|told| told));
        close(client);
    }
    asks("poll", v, |fd| sys::poll(&mut [libc::pollfd { fd: fd.raw, events: libc::POLLIN, revents: 0 }], 0).value == 1);
    asks("select", v, |fd| {
        let none = sys::FdSet::of(&[]);
        let mut sets = sys::Sets { read: sys::FdSet::of(&[fd.raw]), write: none, except: none };
        sys::select(fd.raw + 1, &mut sets, 0).0.value == 1
    });
    asks("epoll_wait", v, |fd| {
        // SAFETY: a live event for each call; the set is this closure's own.
        unsafe {
            let set = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd.raw, &raw mut event);
            let told = (0..3).any(|_| libc::epoll_wait(set, &raw mut event, 1, 0) == 1);
            libc::close(set);
            told
        }
    });
}

/// The end shows through sets that watch sets, with members of the kernel's own among theirs or not, whoever asks how.
pub fn last_holder_killed_and_seen_through_sets(v: Variant) {
    let poll = |fd: Fd, wait_ms: i32| {
        sys::poll(&mut [libc::pollfd { fd: fd.raw, events: libc::POLLIN, revents: 0 }], wait_ms).value == 1
    };
    let wait = |fd: Fd, wait_ms: i32| {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { libc::epoll_wait(fd.raw, &raw mut event, 1, wait_ms) == 1 }
    };
    for mixed in [false, true] {
        for way in 0..5 {
            let (client, server) = v.pair();
            let child = child("child", || {
                sys::close(client.raw);
                // SAFETY: no preconditions.
                unsafe { libc::pause() };
            });
            close(server);
            let (inner, outer) = (epoll_create("inner"), epoll_create("outer"));
            epoll_add(inner, client, libc::EPOLLIN);
            epoll_add(outer, inner, libc::EPOLLIN);
            let other = mixed.then(super::super::ready::pipe);
            if let Some((reader, _)) = other {
                epoll_add(inner, reader, libc::EPOLLIN);
            }
            // After these the kernel watches.
            trace!("before: {} {}", wait(outer, 10), poll(inner, 10));
            let victim = child.value as i32;
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                sys::kill(victim, libc::SIGKILL);
            });
            let told = match way {
                0 => wait(outer, 5_000),
                1 => poll(outer, 5_000),
                2 => poll(inner, 5_000),
                _ => (0..200).any(|_| {
                    std::thread::sleep(Duration::from_millis(5));
                    if way == 3 { wait(outer, 0) } else { poll(outer, 0) }
                }),
            };
            killer.join().expect("a killer");
            finish(child);
            trace!("mixed {mixed}, way {way}: {told}");
            epoll_wait(inner, 4, 0);
            [client, inner, outer].into_iter().chain(other.into_iter().flat_map(|(a, b)| [a, b])).for_each(|fd| {
                close(fd);
            });
        }
    }
}

/// One process held the other ends of many connections that a set knows by the same data.
pub fn holder_of_many_killed(v: Variant) {
    const MANY: usize = 10;
    let pairs: Vec<_> = (0..MANY).map(|_| v.pair()).collect();
    let child = child("child", || {
        for (client, _) in &pairs {
            sys::close(client.raw);
        }
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    });
    let set = epoll_create("set");
    for (client, server) in &pairs {
        close(*server);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        // SAFETY: a live event.
        unsafe { libc::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, client.raw, &raw mut event) };
    }
    sys::kill(child.value as i32, libc::SIGKILL);
    finish(child);
    let mut most = 0;
    for _ in 0..200 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MANY + 1];
        // SAFETY: room for that many events.
        most = most.max(unsafe { libc::epoll_wait(set.raw, events.as_mut_ptr(), MANY as i32 + 1, 100) });
        if most == MANY as i32 {
            break;
        }
    }
    trace!("told of {most} at once");
}

/// A reader that is killed while it computes has armed nothing. Who sends to it now and then learns of it soon.
pub fn last_holder_killed_at_work(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        sys::close(client.raw);
        sys::recv(server.raw, &mut [0; 16], 0);
        loop {
            std::hint::spin_loop();
        }
    });
    send(client, b"one", 0);
    until("the child has read", || queued(server) == 0);
    close(server);
    sys::kill(child.value as i32, libc::SIGKILL);
    finish(child);
    let mut taken = 0;
    let last = loop {
        let sent = sys::send(client.raw, b"x", libc::MSG_NOSIGNAL);
        if sent.value < 0 || taken == 100 {
            break sent;
        }
        taken += 1;
        std::thread::sleep(Duration::from_millis(2));
    };
    trace!("sends that were taken are few: {}", taken <= 20);
    // Whether what was left unread was sent before the end (a reset) or after it only the kernel knows.
    trace!("then an error: {}", matches!(last.errno, libc::EPIPE | libc::ECONNRESET));
}

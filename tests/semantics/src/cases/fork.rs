//! A connection that is shared over fork.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::time::Duration;

pub const GROUP: Group = Group {
    name: "fork",
    cases: &[
        Case::new("child_takes_the_server_end", FAMILY | MODE, child_takes_the_server_end),
        Case::new("parent_and_child_alternate", FAMILY | MODE, parent_and_child_alternate),
        Case::new("parent_and_child_write", FAMILY, parent_and_child_write),
        Case::new("parent_and_child_read", FAMILY, parent_and_child_read),
        Case::new("child_closes_its_copy", FAMILY | MODE, child_closes_its_copy),
        Case::new("child_exits", FAMILY, child_exits),
        Case::new("child_is_killed", FAMILY, child_is_killed),
        Case::new("parent_closes_child_goes_on", FAMILY | MODE, parent_closes_child_goes_on),
        Case::new("child_shuts_down_for_both", FAMILY, child_shuts_down_for_both),
        Case::new("last_holder_gone", FAMILY, last_holder_gone),
        Case::new("last_holder_gone_unread", FAMILY, last_holder_gone_unread),
        Case::new("last_holder_killed", FAMILY, last_holder_killed),
        Case::new("last_holder_killed_at_work", FAMILY, last_holder_killed_at_work),
        Case::new("last_holder_killed_and_nobody_waits", FAMILY, last_holder_killed_and_nobody_waits),
        Case::new("last_holder_killed_and_seen_through_sets", FAMILY, last_holder_killed_and_seen_through_sets),
        Case::new("holder_of_many_killed", FAMILY, holder_of_many_killed),
        Case::new("grandchild", FAMILY, grandchild),
        Case::new("child_accepts", FAMILY, child_accepts),
        Case::new("child_connects", FAMILY, child_connects),
        Case::new("forking_server", FAMILY, forking_server),
        Case::new("both_ends_in_the_child", FAMILY, both_ends_in_the_child),
        Case::new("flags_are_shared", FAMILY, flags_are_shared),
        Case::new("child_waits_parent_sends", FAMILY, child_waits_parent_sends),
        Case::new("both_wait_for_data", FAMILY, both_wait_for_data),
        Case::new("stream_continues_in_the_child", FAMILY, stream_continues_in_the_child),
        Case::new("many_forks", ONCE, many_forks),
        Case::new("fork_before_connect", FAMILY, fork_before_connect).on_any_path(),
        Case::new("fork_with_data_waiting", FAMILY | MODE, fork_with_data_waiting),
    ],
};

fn child(name: &'static str, body: impl FnOnce()) -> sys::Ret {
    sys::fork(|| {
        trace::set_actor(name);
        body();
        0
    })
}

fn finish(child: sys::Ret) {
    trace!("child: {}", sys::wait_for(child));
}

fn child_takes_the_server_end(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        close(client);
        await_queued(server, 5);
        recv(server, 8, 0);
        send(server, b"answer", 0);
        await_hangup(server);
        recv(server, 8, 0);
        close(server);
    });
    close(server);
    send(client, b"hello", 0);
    await_queued(client, 6);
    recv(client, 8, 0);
    close(client);
    finish(child);
}

fn parent_and_child_alternate(v: Variant) {
    // Both use the same end in turn; a pipe passes the turn.
    let (client, server) = v.pair();
    let (_, [reader, writer]) = sys::pipe2(0);
    let (_, [back_reader, back_writer]) = sys::pipe2(0);
    let turn = |fd: i32| {
        sys::read(fd, &mut [0]);
    };
    let child = child("child", || {
        for round in 0..5_u8 {
            turn(reader);
            recv(server, 4, 0);
            send(server, &[b'c', b'0' + round], 0);
            sys::write(back_writer, b"x");
        }
    });
    for round in 0..5_u8 {
        send(client, &[b'0' + round; 8], 0);
        await_queued(server, 8);
        recv(server, 4, 0);
        send(server, &[b'p', b'0' + round], 0);
        sys::write(writer, b"x");
        turn(back_reader);
        fionread(server);
        await_queued(client, 4);
        recv(client, 8, 0);
    }
    finish(child);
}

fn parent_and_child_write(v: Variant) {
    // Each sends 20,000 records of its own letter; all arrive, none is cut by the other's (single bytes).
    let (client, server) = v.pair();
    let child = child("child", || {
        for _ in 0..20_000 {
            sys::send(client.raw, b"c", 0);
        }
    });
    let reader = std::thread::spawn(move || {
        let mut counts = [0_u64; 256];
        let mut buffer = [0; 4096];
        loop {
            let ret = sys::recv(server.raw, &mut buffer, 0);
            match ret.value {
                1.. => buffer[..ret.size()].iter().for_each(|byte| counts[usize::from(*byte)] += 1),
                _ => break,
            }
        }
        counts
    });
    for _ in 0..20_000 {
        sys::send(client.raw, b"p", 0);
    }
    finish(child);
    close(client);
    if let Ok(counts) = reader.join() {
        trace!("c {} p {}", counts[usize::from(b'c')], counts[usize::from(b'p')]);
    }
}

fn parent_and_child_read(v: Variant) {
    // Together they get every byte once.
    let (client, server) = v.pair();
    let (_, [reader, writer]) = sys::pipe2(0);
    let take_all = || {
        let mut sum: u64 = 0;
        let mut buffer = [0; 100];
        loop {
            let ret = sys::recv(server.raw, &mut buffer, 0);
            match ret.value {
                1.. => sum += buffer[..ret.size()].iter().map(|byte| u64::from(*byte)).sum::<u64>(),
                _ => return sum,
            }
        }
    };
    let child = child("child", || {
        sys::close(client.raw);
        sys::write(writer, &take_all().to_le_bytes());
    });
    let sender = std::thread::spawn(move || {
        for at in 0..20_000_u32 {
            sys::send(client.raw, &[at as u8; 3], 0);
        }
        sys::close(client.raw);
    });
    let own = take_all();
    let _ = sender.join();
    let mut other = [0; 8];
    sys::read(reader, &mut other);
    finish(child);
    let expected: u64 = (0..20_000_u32).map(|at| u64::from(at as u8) * 3).sum();
    trace!("all bytes: {}", own + u64::from_le_bytes(other) == expected);
}

fn child_closes_its_copy(v: Variant) {
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

fn child_exits(v: Variant) {
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

fn child_is_killed(v: Variant) {
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

fn parent_closes_child_goes_on(v: Variant) {
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

fn child_shuts_down_for_both(v: Variant) {
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

fn last_holder_gone(v: Variant) {
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

fn last_holder_gone_unread(v: Variant) {
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

fn last_holder_killed(v: Variant) {
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
fn last_holder_killed_and_nobody_waits(v: Variant) {
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
fn last_holder_killed_and_seen_through_sets(v: Variant) {
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
            let other = mixed.then(super::ready::pipe);
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
fn holder_of_many_killed(v: Variant) {
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
fn last_holder_killed_at_work(v: Variant) {
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

fn grandchild(v: Variant) {
    let (client, server) = v.pair();
    let first = child("child", || {
        let second = child("grandchild", || {
            await_queued(server, 4);
            recv(server, 8, 0);
            send(server, b"from below", 0);
        });
        trace!("grandchild: {}", sys::wait_for(second));
    });
    send(client, b"deep", 0);
    await_queued(client, 10);
    recv(client, 16, 0);
    finish(first);
}

fn child_accepts(v: Variant) {
    let listener = v.listener();
    let child = child("child", || {
        let server = accept(listener, "server");
        trace::write_note(format_args!("pair"));
        recv(server, 4, libc::MSG_WAITALL);
        send(server, b"hello", 0);
        close(server);
    });
    let client = v.client();
    connect(client, &v.address_of(listener));
    send(client, b"ping", 0);
    recv(client, 5, libc::MSG_WAITALL);
    recv(client, 5, 0);
    finish(child);
}

fn child_connects(v: Variant) {
    let listener = v.listener();
    let child = child("child", || {
        let client = v.client();
        connect(client, &v.address_of(listener));
        send(client, b"ping", 0);
        recv(client, 5, libc::MSG_WAITALL);
    });
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    recv(server, 4, libc::MSG_WAITALL);
    send(server, b"hello", 0);
    await_hangup(server);
    recv(server, 8, 0);
    finish(child);
}

fn forking_server(v: Variant) {
    // One process for each connection, as inetd and sshd do.
    let listener = v.listener();
    let master = child("master", || {
        for name in ["worker 1", "worker 2", "worker 3"] {
            let server = Fd::new(sys::accept(listener.raw).value as i32, "server");
            trace::write_note(format_args!("pair"));
            let worker = child(name, || {
                sys::close(listener.raw);
                recv(server, 3, libc::MSG_WAITALL);
                send(server, name.as_bytes(), 0);
            });
            close(server);
            trace!("worker: {}", sys::wait_for(worker));
        }
    });
    for _ in 0..3 {
        let client = v.client();
        connect(client, &v.address_of(listener));
        send(client, b"who", 0);
        recv(client, 8, libc::MSG_WAITALL);
        recv(client, 8, 0);
        close(client);
    }
    finish(master);
}

fn both_ends_in_the_child(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        send(client, b"self", 0);
        await_queued(server, 4);
        recv(server, 8, 0);
        close(client);
    });
    finish(child);
    send(server, b"parent", 0);
    await_queued(client, 6);
    recv(client, 8, 0);
}

fn flags_are_shared(v: Variant) {
    let (_client, server) = v.pair();
    finish(child("child", || {
        sys::set_nonblocking(server.raw, true);
        sys::fcntl(server.raw, libc::F_SETFD, libc::FD_CLOEXEC);
        set_option(server, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1);
        set_timeout(server, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 1000);
    }));
    recv(server, 8, 0);
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    fcntl(server, libc::F_GETFD, "F_GETFD", 0);
    option(server, libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY");
    let mut value = [0; 16];
    sys::getsockopt(server.raw, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut value);
    trace!("SO_RCVTIMEO {value:?}");
}

fn child_waits_parent_sends(v: Variant) {
    let (client, server) = v.pair();
    let child = child("child", || {
        recv(server, 4, libc::MSG_WAITALL);
        poll(&[(server, libc::POLLIN)], -1);
        recv(server, 4, 0);
    });
    send(client, b"one!", 0);
    until("the child has read", || queued(server) == 0);
    send(client, b"two!", 0);
    finish(child);
}

fn both_wait_for_data(v: Variant) {
    // Parent and child sleep on the same end; two bytes, one for each.
    let (client, server) = v.pair();
    let child = child("child", || {
        recv(server, 1, 0);
    });
    let main = sys::thread_id();
    let thread = std::thread::spawn(move || {
        await_asleep(main);
        sys::send(client.raw, b"x", 0);
        until("one has read", || queued(server) == 0);
        sys::send(client.raw, b"x", 0);
    });
    recv(server, 1, 0);
    let _ = thread.join();
    finish(child);
}

fn stream_continues_in_the_child(v: Variant) {
    // The first half is received by the parent, the second by the child.
    let (client, server) = v.pair();
    let sender = child("sender", || {
        sys::close(server.raw);
        send_stream(client, 21, 1 << 20, 5000);
        send_stream(client, 22, 1 << 20, 5000);
    });
    close(client);
    receive_stream(server, 23, 1 << 20, 3000);
    let receiver = child("receiver", || receive_stream(server, 24, 1 << 20, 3000));
    finish(receiver);
    finish(sender);
    recv(server, 8, 0);
}

fn many_forks(v: Variant) {
    let (client, server) = v.pair();
    for round in 0..30_u8 {
        let child = sys::fork(|| {
            sys::send(client.raw, &[round], 0);
            i32::from(round)
        });
        await_queued(server, 1);
        let mut byte = [0];
        sys::recv(server.raw, &mut byte, 0);
        trace!("{} {}", byte[0], sys::wait_for(child));
    }
}

fn fork_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let (_, [reader, writer]) = sys::pipe2(0);
    let child = child("child", || {
        sys::read(reader, &mut [0]);
        send(client, b"by the child", 0);
        recv(client, 5, libc::MSG_WAITALL);
    });
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    sys::write(writer, b"x");
    await_queued(server, 12);
    recv(server, 16, 0);
    send(server, b"hello", 0);
    finish(child);
    send(client, b"by the parent", 0);
    await_queued(server, 13);
    recv(server, 16, 0);
}

fn fork_with_data_waiting(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    finish(child("child", || {
        recv(server, 3, 0);
        recv(server, 3, libc::MSG_PEEK);
    }));
    recv(server, 3, 0);
    fionread(server);
    recv(server, 10, 0);
}

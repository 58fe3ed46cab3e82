//! A connection that is shared over fork.

mod endings;

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "fork",
    cases: &[
        Case::new("child_takes_the_server_end", FAMILY | MODE, child_takes_the_server_end),
        Case::new("parent_and_child_alternate", FAMILY | MODE, parent_and_child_alternate),
        Case::new("parent_and_child_write", FAMILY, parent_and_child_write),
        Case::new("parent_and_child_read", FAMILY, parent_and_child_read),
        Case::new("child_closes_its_copy", FAMILY | MODE, endings::child_closes_its_copy),
        Case::new("child_exits", FAMILY, endings::child_exits),
        Case::new("child_is_killed", FAMILY, endings::child_is_killed),
        Case::new("parent_closes_child_goes_on", FAMILY | MODE, endings::parent_closes_child_goes_on),
        Case::new("child_shuts_down_for_both", FAMILY, endings::child_shuts_down_for_both),
        Case::new("last_holder_gone", FAMILY, endings::last_holder_gone),
        Case::new("last_holder_gone_unread", FAMILY, endings::last_holder_gone_unread),
        Case::new("last_holder_killed", FAMILY, endings::last_holder_killed),
        Case::new("last_holder_killed_at_work", FAMILY, endings::last_holder_killed_at_work),
        Case::new("last_holder_killed_and_nobody_waits", FAMILY, endings::last_holder_killed_and_nobody_waits),
        Case::new(
            "last_holder_killed_and_seen_through_sets",
            FAMILY,
            endings::last_holder_killed_and_seen_through_sets,
        ),
        Case::new("holder_of_many_killed", FAMILY, endings::holder_of_many_killed),
        Case::new("grandchild", FAMILY, grandchild),
        Case::new("child_accepts", FAMILY, child_accepts),
        Case::new("child_accepts_whom_its_parent_was_told_of", FAMILY, |v| child_and_parent_accept(v, 0)).on_any_path(),
        Case::new("child_accepts_one_that_has_come_again", FAMILY, |v| child_and_parent_accept(v, 2)).on_any_path(),
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

/// Both clients are this process's own and come before the fork, after some that have come and gone.
fn child_and_parent_accept(v: Variant, gone: usize) {
    let listener = v.listener();
    let target = v.address_of(listener);
    for _ in 0..gone {
        let client = v.client();
        connect(client, &target);
        await_readable(listener);
        let server = accept(listener, "server");
        close(client);
        await_hangup(server);
        close(server);
    }
    let clients = ["first", "second"].map(|name| {
        let client = v.named_client(name);
        connect(client, &target);
        client
    });
    await_readable(listener);
    let child = child("child", || {
        await_readable(listener);
        let server = accept(listener, "server");
        send(server, b"from the child", 0);
    });
    finish(child);
    await_readable(listener);
    let server = accept(listener, "server");
    send(server, b"from the parent", 0);
    for client in clients {
        await_readable(client);
        recv(client, 32, 0);
    }
    recv(clients[0], 32, 0);
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
            let server = Fd::new(crate::across::accept(listener.raw).value as i32, "server");
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

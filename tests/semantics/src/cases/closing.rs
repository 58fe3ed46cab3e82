//! Descriptors that one thread closes while another waits on them: the call goes on with the file that it began with,
//! whatever the number becomes, and the file is closed when the call returns.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::cases::waiters::*;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

macro_rules! waiters {
    ([$($waiter:ident)*] $($other:expr,)*) => {
        &[
            $(
                Case::new(stringify!($waiter), FAMILY, |v| number_used_no_more(v, $waiter)),
                Case::new(concat!(stringify!($waiter), "_number_used_again"), FAMILY, |v| number_used_again(v, $waiter)),
            )*
            $($other,)*
        ]
    };
}

pub const GROUP: Group = Group {
    name: "closing",
    cases: waiters!([
        by_recv by_read by_readv by_recvmsg by_waitall by_peek by_poll by_ppoll by_select by_pselect
    ]
        Case::new("end_of_stream", FAMILY, end_of_stream),
        Case::new("in_two_parts", FAMILY, in_two_parts),
        Case::new("many_messages", ONCE, many_messages),
        Case::new("sender", FAMILY, sender),
        Case::new("sender_at_work", ONCE, sender_at_work),
        Case::new("replaced", FAMILY, replaced),
        Case::new("with_a_duplicate", FAMILY, with_a_duplicate),
        Case::new("both_ways", FAMILY, both_ways),
        Case::new("forked_meanwhile", ONCE, forked_meanwhile),
        Case::new("interrupted", ONCE, |v| handled(v, 0)),
        Case::new("restarted", ONCE, |v| handled(v, libc::SA_RESTART)),
        Case::new("with_a_timeout", ONCE, with_a_timeout),
        Case::new("spliced", ONCE, spliced),
        Case::new("accept", FAMILY, accept_asleep),
        Case::new("listener_replaced", ONCE, listener_replaced),
        Case::new("member_of_a_set", FAMILY, member_of_a_set),
        Case::new("set", FAMILY, set_asleep),
        Case::new("polled_set", ONCE, polled_set),
        Case::new("urgent_alone_by_poll", FAMILY, |v| number_used_again_for(v, urgent_by_poll, libc::MSG_OOB)),
    ),
};

/// Runs `body` in another thread once this one sleeps in the call that follows.
fn once_asleep(body: impl FnOnce(i32) + Send + 'static) -> std::thread::JoinHandle<()> {
    let main = sys::thread_id();
    std::thread::spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        body(main);
    })
}

fn number_used_no_more(v: Variant, wait: Waiter) {
    let (client, server) = v.pair();
    let thread = once_asleep(move |main| {
        close(client);
        await_asleep(main);
        poll_now(server);
        send(server, b"late", 0);
    });
    wait(client);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

fn number_used_again(v: Variant, wait: Waiter) {
    number_used_again_for(v, wait, 0);
}

fn number_used_again_for(v: Variant, wait: Waiter, flags: i32) {
    let listener = v.listener();
    let (client, server) = v.blocking_pair_on(listener, "client", "server");
    let (bystander, peer) = v.blocking_pair_on(listener, "bystander", "peer");
    let thread = once_asleep(move |main| {
        close(client);
        let again = dup(bystander, "again");
        trace!("same number {}", again.raw == client.raw);
        send(peer, b"other", flags);
        await_asleep(main);
        poll_now(server);
        send(server, b"late", flags);
    });
    wait(client);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
    recv(bystander, 8, libc::MSG_DONTWAIT);
    recv(client, 8, libc::MSG_DONTWAIT);
}

fn urgent_by_poll(fd: Fd) {
    poll(&[(fd, libc::POLLPRI)], -1);
}

fn end_of_stream(v: Variant) {
    let (client, server) = v.pair();
    let thread = once_asleep(move |_| {
        close(client);
        shutdown(server, libc::SHUT_WR);
    });
    recv(client, 8, 0);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

fn in_two_parts(v: Variant) {
    let (client, server) = v.pair();
    let thread = once_asleep(move |main| {
        close(client);
        send(server, b"ab", 0);
        await_asleep(main);
        send(server, b"cd", 0);
    });
    recv(client, 4, libc::MSG_WAITALL);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

/// A thread that sleeps again and again while its descriptors are closed one after the other.
fn many_messages(v: Variant) {
    let mut right = 0;
    for round in 0..50_u32 {
        let (client, server) = v.pair();
        let thread = once_asleep(move |_| {
            sys::close(client.raw);
            sys::send(server.raw, &round.to_le_bytes(), 0);
        });
        let mut word = [0; 4];
        let ret = sys::recv(client.raw, &mut word, 0);
        right += u32::from(ret.value == 4 && word == round.to_le_bytes());
        let _ = thread.join();
        right += u32::from(sys::recv(server.raw, &mut word, 0).value == 0);
        sys::close(server.raw);
    }
    trace!("right {right}");
}

fn sender(v: Variant) {
    let (client, server) = v.pair();
    let thread = once_asleep(move |_| {
        close(client);
        receive_stream(server, 17, 24 << 20, 1 << 20);
    });
    let mut data = vec![0; 24 << 20];
    beeline_testkit::rng::fill_stream(17, 0, &mut data);
    send(client, &data, 0);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

/// A thread that sends much while its descriptor is closed, wherever it is just then.
fn sender_at_work(v: Variant) {
    const BYTES: usize = 32 << 20;
    let data = vec![7; BYTES];
    let mut right = 0;
    for _ in 0..12 {
        let (client, server) = v.pair();
        let reader = std::thread::spawn(move || {
            let mut room = vec![0; 1 << 20];
            let mut got = 0;
            let mut closed = false;
            loop {
                let ret = sys::recv(server.raw, &mut room, 0);
                if ret.value <= 0 {
                    break;
                }
                got += usize::try_from(ret.value).unwrap_or(0);
                if got > BYTES / 4 && !closed {
                    closed = true;
                    sys::close(client.raw);
                }
            }
            got
        });
        right += u32::from(sys::send(client.raw, &data, 0).value == BYTES as i64);
        right += u32::from(reader.join().is_ok_and(|got| got == BYTES));
        sys::close(server.raw);
    }
    trace!("right {right}");
}

fn replaced(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.blocking_pair_on(listener, "client", "server");
    let (bystander, peer) = v.blocking_pair_on(listener, "bystander", "peer");
    let thread = once_asleep(move |main| {
        trace!("dup2 {}", i64::from(client.raw) == sys::dup2(bystander.raw, client.raw).value);
        send(peer, b"other", 0);
        await_asleep(main);
        send(server, b"late", 0);
    });
    recv(client, 8, 0);
    let _ = thread.join();
    await_hangup(server);
    recv(client, 8, 0);
    send(client, b"answer", 0);
    recv(peer, 8, 0);
}

fn with_a_duplicate(v: Variant) {
    let (client, server) = v.pair();
    let second = dup(client, "second");
    let thread = once_asleep(move |_| {
        close(client);
        send(server, b"late", 0);
    });
    recv(client, 8, 0);
    let _ = thread.join();
    send(second, b"goes on", 0);
    recv(server, 8, 0);
    let thread = once_asleep(move |_| {
        close(second);
        send(server, b"last", 0);
    });
    recv(second, 8, 0);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

/// One thread sleeps for data, one for room.
fn both_ways(v: Variant) {
    let (client, server) = v.pair();
    let receiver = sys::thread_id();
    let (tell, told) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        let _ = tell.send(sys::thread_id());
        let mut data = vec![0; 24 << 20];
        beeline_testkit::rng::fill_stream(18, 0, &mut data);
        send(client, &data, 0);
    });
    let closer = std::thread::spawn(move || {
        trace::set_actor("closer");
        await_asleep(receiver);
        if let Ok(thread) = told.recv() {
            await_asleep(thread);
        }
        close(client);
        send(server, b"late", 0);
        receive_stream(server, 18, 24 << 20, 1 << 20);
        await_hangup(server);
        recv(server, 8, 0);
    });
    recv(client, 8, 0);
    let _ = (sender.join(), closer.join());
}

/// A child does not get what only a call of its parent keeps.
fn forked_meanwhile(v: Variant) {
    let (client, server) = v.pair();
    let thread = once_asleep(move |_| {
        close(client);
        let child = sys::fork(|| {
            sys::poll(&mut [], 20_000);
            0
        });
        send(server, b"late", 0);
        await_hangup(server);
        recv(server, 8, 0);
        // SAFETY: the child made above.
        trace!("kill {}", unsafe { libc::kill(child.value as i32, libc::SIGKILL) });
        trace!("child {}", sys::wait_for(child));
    });
    recv(client, 8, 0);
    let _ = thread.join();
}

/// A call that the kernel restarts is begun again with the number.
fn handled(v: Variant, flags: i32) {
    sys::sigaction(libc::SIGUSR1, super::ignore_signal, flags);
    let (client, server) = v.pair();
    // SAFETY: no preconditions.
    let target = unsafe { libc::pthread_self() };
    let thread = once_asleep(move |_| {
        close(client);
        sys::signal_thread(target, libc::SIGUSR1);
        await_hangup(server);
        recv(server, 8, 0);
    });
    recv(client, 8, 0);
    let _ = thread.join();
}

fn with_a_timeout(v: Variant) {
    let (client, server) = v.pair();
    set_timeout(client, libc::SO_RCVTIMEO, "SO_RCVTIMEO", 300);
    let thread = once_asleep(move |_| {
        close(client);
        await_hangup(server);
        recv(server, 8, 0);
    });
    recv(client, 8, 0);
    let _ = thread.join();
}

fn spliced(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    let thread = once_asleep(move |_| {
        close(client);
        send(server, b"late", 0);
    });
    trace!("splice {}", sys::splice(client.raw, None, ends[1], None, 10, 0));
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
}

fn accept_asleep(v: Variant) {
    let listener = v.listener();
    let address = v.address_of(listener);
    let (bystander, _peer) = v.blocking_pair_on(listener, "bystander", "peer");
    let client = v.client();
    let thread = once_asleep(move |main| {
        close(listener);
        trace!("same number {}", dup(bystander, "again").raw == listener.raw);
        await_asleep(main);
        connect(client, &address);
        send(client, b"hello", 0);
    });
    let server = accept(listener, "server");
    let _ = thread.join();
    recv(server, 8, 0);
    let late = v.named_client("late");
    connect(late, &address);
    recv(listener, 8, libc::MSG_DONTWAIT);
}

fn listener_replaced(v: Variant) {
    let (first, second) = (v.listener(), v.listener());
    let addresses = [v.address_of(first), v.address_of(second)];
    let clients = [v.named_client("one"), v.named_client("two")];
    let thread = once_asleep(move |main| {
        trace!("dup2 {}", sys::dup2(second.raw, first.raw).value == i64::from(first.raw));
        connect(clients[1], &addresses[1]);
        await_asleep(main);
        connect(clients[0], &addresses[0]);
        send(clients[0], b"first", 0);
    });
    let server = accept(first, "server");
    let _ = thread.join();
    recv(server, 8, 0);
    let other = accept(first, "other");
    send(clients[1], b"second", 0);
    recv(other, 8, 0);
}

/// A set keeps no files: a member that is closed is none any more.
fn member_of_a_set(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN);
    let thread = once_asleep(move |_| {
        close(client);
        await_hangup(server);
        recv(server, 8, 0);
    });
    epoll_wait(set, 4, 300);
    let _ = thread.join();
}

fn set_asleep(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.blocking_pair_on(listener, "client", "server");
    let (bystander, peer) = v.blocking_pair_on(listener, "bystander", "peer");
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN);
    let thread = once_asleep(move |main| {
        close(set);
        let again = epoll_create("again");
        trace!("same number {}", again.raw == set.raw);
        epoll_add(again, bystander, libc::EPOLLIN);
        send(peer, b"other", 0);
        await_asleep(main);
        send(server, b"late", 0);
    });
    epoll_wait(set, 4, -1);
    let _ = thread.join();
    epoll_wait(set, 4, 1000);
    recv(client, 8, 0);
}

fn polled_set(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN);
    let thread = once_asleep(move |_| {
        close(set);
        send(server, b"late", 0);
    });
    poll(&[(set, libc::POLLIN)], -1);
    let _ = thread.join();
    recv(client, 8, 0);
    poll(&[(set, libc::POLLIN)], 0);
}

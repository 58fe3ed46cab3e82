//! The flags of send and recv.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::sync::atomic::{AtomicI32, Ordering};

pub const GROUP: Group = Group {
    name: "flags",
    cases: &[
        Case::new("peek", FAMILY | MODE, peek),
        Case::new("peek_across_sends", FAMILY | MODE, peek_across_sends),
        Case::new("peek_at_the_end", FAMILY | MODE, peek_at_the_end),
        Case::new("waitall_when_all_is_there", FAMILY | MODE, waitall_when_all_is_there),
        Case::new("waitall_waits", FAMILY, waitall_waits),
        Case::new("waitall_cut_by_end", FAMILY | MODE, waitall_cut_by_end),
        Case::new("waitall_when_nonblocking", FAMILY, waitall_when_nonblocking),
        Case::new("waitall_and_peek", ONCE, waitall_and_peek),
        Case::new("trunc_throws_away", FAMILY | MODE, trunc_throws_away),
        Case::new("trunc_and_peek", FAMILY, trunc_and_peek),
        Case::new("dontwait", FAMILY, dontwait),
        Case::new("more_then_rest", FAMILY | MODE, more_then_rest),
        Case::new("unknown_flags", ONCE, unknown_flags),
        Case::new("errqueue", ONCE, errqueue),
        Case::new("peek_by_recvmsg", FAMILY, peek_by_recvmsg),
        Case::new("each_alone", FAMILY, each_alone),
        Case::new("control_messages", ONCE, control_messages),
        Case::new("malformed_control_messages", ONCE, malformed_control_messages),
        Case::new("a_thousand_messages_with_a_connection", ONCE, a_thousand_messages_with_a_connection),
        Case::new("fast_open", FAMILY, fast_open).on_any_path(),
        Case::new("async_before_connect", ONCE, async_before_connect).on_any_path(),
        Case::new("async_on_a_connection", FAMILY, async_on_a_connection),
    ],
};

fn peek(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"look twice", 0);
    await_queued(server, 10);
    recv(server, 4, libc::MSG_PEEK);
    recv(server, 100, libc::MSG_PEEK);
    fionread(server);
    poll_now(server);
    recv(server, 4, 0);
    recv(server, 100, libc::MSG_PEEK);
    recv(server, 100, 0);
    recv(server, 100, libc::MSG_PEEK | libc::MSG_DONTWAIT);
}

fn peek_across_sends(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"first", 0);
    await_queued(server, 5);
    recv(server, 100, libc::MSG_PEEK);
    send(client, b"second", 0);
    await_queued(server, 11);
    recv(server, 100, libc::MSG_PEEK);
    recv(server, 7, 0);
    recv(server, 100, libc::MSG_PEEK);
    recv(server, 100, 0);
}

fn peek_at_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"end", 0);
    close(client);
    await_hangup(server);
    recv(server, 10, libc::MSG_PEEK);
    recv(server, 10, 0);
    recv(server, 10, libc::MSG_PEEK);
    recv(server, 10, 0);
}

fn waitall_when_all_is_there(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    recv(server, 10, libc::MSG_WAITALL);
}

fn waitall_waits(v: Variant) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    send(client, b"01234", 0);
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        for part in ["56", "789", "the rest"] {
            await_asleep(main);
            send(client, part.as_bytes(), 0);
        }
    });
    recv(server, 10, libc::MSG_WAITALL);
    let _ = thread.join();
    await_queued(server, 8);
    recv(server, 10, 0);
}

fn waitall_cut_by_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abc", 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    recv(server, 10, libc::MSG_WAITALL);
    recv(server, 10, libc::MSG_WAITALL);
}

fn waitall_when_nonblocking(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    recv(server, 10, libc::MSG_WAITALL);
    send(client, b"abc", 0);
    await_queued(server, 3);
    recv(server, 10, libc::MSG_WAITALL);
    recv(server, 10, libc::MSG_WAITALL);
}

fn waitall_and_peek(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    recv(server, 10, libc::MSG_WAITALL | libc::MSG_PEEK);
    recv(server, 4, libc::MSG_WAITALL | libc::MSG_PEEK);
    recv(server, 10, libc::MSG_WAITALL);
}

fn trunc_throws_away(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    recv(server, 4, libc::MSG_TRUNC);
    recv(server, 2, 0);
    let mut untouched = *b"untouched";
    let ret = sys::recv(server.raw, &mut untouched[..3], libc::MSG_TRUNC);
    trace!("recv {ret}, buffer {}", shown(&untouched));
    trace!("null buffer {}", sys::recv_at(server.raw, 0, 1, libc::MSG_TRUNC));
    recv(server, 2, libc::MSG_DONTWAIT);
}

fn trunc_and_peek(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    recv(server, 4, libc::MSG_TRUNC | libc::MSG_PEEK);
    recv(server, 40, libc::MSG_TRUNC | libc::MSG_PEEK);
    recv(server, 40, 0);
}

fn dontwait(v: Variant) {
    let (client, server) = v.pair();
    recv(server, 4, libc::MSG_DONTWAIT);
    send(client, b"x", libc::MSG_DONTWAIT);
    await_queued(server, 1);
    recv(server, 4, libc::MSG_DONTWAIT);
    recv(server, 4, libc::MSG_DONTWAIT);
    recvmsg(server, &[4], libc::MSG_DONTWAIT);
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
}

fn more_then_rest(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"head ", libc::MSG_MORE);
    send(client, b"tail", 0);
    await_queued(server, 9);
    recv(server, 100, 0);
}

fn unknown_flags(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"x", libc::MSG_CONFIRM);
    send(client, b"y", libc::MSG_DONTROUTE);
    send(client, b"z", libc::MSG_EOR);
    await_queued(server, 3);
    recv(server, 1, libc::MSG_WAITFORONE);
    recv(server, 1, libc::MSG_CMSG_CLOEXEC);
    recv(server, 1, libc::MSG_DONTROUTE);
}

fn errqueue(v: Variant) {
    let (client, server) = v.pair();
    recv(server, 16, libc::MSG_ERRQUEUE);
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 16, libc::MSG_ERRQUEUE);
    recv(server, 16, 0);
}

fn peek_by_recvmsg(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"gather me", 0);
    await_queued(server, 9);
    recvmsg(server, &[3, 0, 20], libc::MSG_PEEK);
    recvmsg(server, &[3, 0, 20], 0);
}

/// Every flag by itself, on a call that has something to do and on one that has not.
fn each_alone(v: Variant) {
    for bit in 0..31 {
        let (client, server) = v.pair();
        let flag = 1 << bit;
        sys::set_nonblocking(server.raw, true);
        if send(client, b"data", flag).is_ok() {
            await_readable(server);
        }
        recv(server, 2, flag);
        recv(server, 8, 0);
        recv(server, 8, flag);
        recvmsg(server, &[4], flag);
    }
}

fn control_messages(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    for (level, kind) in [
        (libc::SOL_SOCKET, libc::SCM_RIGHTS),
        (libc::SOL_SOCKET, libc::SCM_CREDENTIALS),
        (libc::SOL_SOCKET, 99),
        (libc::IPPROTO_IP, libc::IP_TTL),
        (libc::IPPROTO_TCP, 1),
        (77, 1),
    ] {
        let ret = sys::sendmsg_with_control(client.raw, b"x", level, kind, ends[0]);
        trace!("level {level} kind {kind}: {ret}");
    }
    recvmsg(server, &[20], libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
}

/// A connection is passed on by a message whose lengths are wrong, and stays as it is.
fn malformed_control_messages(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::socketpair(libc::SOCK_STREAM);
    let rights = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
    let fd = server.raw as u64;
    let messages: [(&str, &[u64]); 7] = [
        ("shorter than its header", &[8, rights, fd]),
        ("longer than the data", &[32, rights, fd]),
        ("as long as can be", &[u64::MAX - 7, rights, fd]),
        ("longer still", &[u64::MAX, rights, fd]),
        ("the second leads back to the first", &[20, rights, fd, u64::MAX - 23, rights, fd]),
        ("the second leads before the first", &[20, rights, fd, u64::MAX - 31, rights, fd]),
        ("the second is too long", &[20, rights, fd, 28, rights, fd]),
    ];
    for (what, control) in messages {
        trace!("{what}: {}", sys::sendmsg_with_control_words(ends[0], b"x", control));
        trace!("received: {}", sys::recv(ends[1], &mut [0; 4], libc::MSG_DONTWAIT));
        send(client, b"as before", 0);
        recv(server, 9, libc::MSG_WAITALL);
    }
    let short: &[u64] = &[20, rights, fd, 0];
    trace!("bytes behind the last: {}", sys::sendmsg_with_control_words(ends[0], b"x", short));
    trace!("received: {}", sys::recv(ends[1], &mut [0; 4], libc::MSG_DONTWAIT));
    send(client, b"as before", 0);
    recv(server, 9, libc::MSG_WAITALL);
}

/// `sendmmsg` sends 1024 messages at most, also when one of them passes a connection on.
fn a_thousand_messages_with_a_connection(v: Variant) {
    let (_, server) = v.pair();
    let (_, ends) = sys::socketpair(libc::SOCK_STREAM);
    let reader = std::thread::spawn(move || {
        let mut got = 0;
        while let count @ 1.. = sys::recv(ends[1], &mut [0; 64], 0).size() {
            got += count;
        }
        got
    });
    let sent = sys::sendmmsg_with_rights(ends[0], 1030, server.raw);
    sys::shutdown(ends[0], libc::SHUT_WR);
    trace!("sent {sent}, received {:?}", reader.join().ok());
}

fn fast_open(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let address = v.address_of(listener);
    let ret = sys::sendto(client.raw, b"early", libc::MSG_FASTOPEN, &address);
    trace!("sendto {ret}");
    let server = accept(listener, "server");
    await_queued(server, 5);
    recv(server, 8, 0);
    trace!("sendto {}", sys::sendto(client.raw, b"late", libc::MSG_FASTOPEN, &address));
}

static SIGNALS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// A program that reads all there is at each signal.
fn async_on_a_connection(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGIO, count, libc::SA_RESTART);
    trace!("owner {}", sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id()));
    // Who has been told by poll(2) that there is nothing, and has found nothing, waits for signals from now on.
    poll(&[(server, libc::POLLIN)], 0);
    recv(server, 1, libc::MSG_DONTWAIT);
    fcntl(server, libc::F_SETFL, "F_SETFL", libc::O_ASYNC | libc::O_NONBLOCK);
    for round in 0..20 {
        let before = SIGNALS.load(Ordering::SeqCst);
        send(client, b"news", 0);
        until("a signal", || SIGNALS.load(Ordering::SeqCst) != before);
        if round % 2 == 1 {
            poll(&[(server, libc::POLLIN)], 0);
        }
        while !recv(server, 3, 0).is_empty() {}
        // What the reading itself has caused.
        settle();
        if round == 10 {
            send(server, b"answer", 0);
            await_queued(client, 6);
            settle();
        }
    }
    let before = SIGNALS.load(Ordering::SeqCst);
    close(client);
    until("a signal", || SIGNALS.load(Ordering::SeqCst) != before);
    recv(server, 3, 0);
}

/// Lets signals come that are on their way.
fn settle() {
    let mut seen = -1;
    while seen != SIGNALS.load(Ordering::SeqCst) {
        seen = SIGNALS.load(Ordering::SeqCst);
        sys::poll(&mut [], 5);
    }
}

fn async_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    sys::sigaction(libc::SIGIO, super::ignore_signal, libc::SA_RESTART);
    fcntl(client, libc::F_SETFL, "F_SETFL", libc::O_ASYNC);
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    send(server, b"data", 0);
    await_queued(client, 4);
    recv(client, 8, 0);
}

//! `MSG_ZEROCOPY` with its completions, and `TCP_INQ`.
//!
//! Kernel TCP completes a send when the peer's kernel has acknowledged it, which a case waits for.

mod left;

use crate::case::axes::{FAMILY, MODE, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};
use libc::{MSG_ERRQUEUE, MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET};
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "zerocopy",
    cases: &[
        Case::new("one_completion", FAMILY | MODE, one_completion),
        Case::new("merged", FAMILY, merged),
        Case::new("numbers_go_on", ONCE, numbers_go_on),
        Case::new("without_the_option", FAMILY, without_the_option),
        Case::new("without_the_flag", ONCE, without_the_flag),
        Case::new("no_bytes", ONCE, no_bytes),
        Case::new("failed_sends", ONCE, failed_sends),
        Case::new("as_many_as_sends", ONCE, as_many_as_sends),
        Case::new("room_for_control", FAMILY, room_for_control),
        Case::new("taken_by_other_calls", ONCE, taken_by_other_calls),
        Case::new("sent_by_other_calls", ONCE, sent_by_other_calls),
        Case::new("set_at_any_time", FAMILY, set_at_any_time),
        Case::new("set_by_the_listener", FAMILY, set_by_the_listener),
        Case::new("before_it_is_accepted", FAMILY, before_it_is_accepted),
        Case::new("shared_by_dup", ONCE, shared_by_dup),
        Case::new("shared_by_fork", ONCE, shared_by_fork),
        Case::new("ready_in_a_set", FAMILY | TRIGGER, ready_in_a_set),
        Case::new("ready_for_errors_alone", TRIGGER, ready_for_errors_alone),
        Case::new("wakes_a_set", TRIGGER, |v| wakes(v, wait_in_a_set)),
        Case::new("wakes_poll", ONCE, |v| wakes(v, |_, fd| wait_in_poll(fd, libc::POLLIN))),
        Case::new("wakes_poll_for_errors_alone", ONCE, |v| wakes(v, |_, fd| wait_in_poll(fd, 0))),
        Case::new("wakes_select", ONCE, |v| wakes(v, |_, fd| wait_in_select(fd))),
        Case::new("unread_while_there_is_no_room", ONCE, unread_while_there_is_no_room),
        Case::new("after_the_end", ONCE, after_the_end),
        Case::new("bytes_left", FAMILY | MODE, left::bytes_left),
        Case::new("bytes_left_at_the_end", FAMILY, left::at_the_end),
        Case::new("bytes_left_after_a_reset", ONCE, left::after_a_reset),
        Case::new("bytes_left_and_urgent", ONCE, left::and_urgent),
        Case::new("bytes_left_with_little_room", ONCE, left::with_little_room),
        Case::new("bytes_left_by_the_listener", FAMILY, left::by_the_listener),
    ],
};

fn zerocopy(fd: Fd) {
    set_option(fd, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY", 1);
}

/// Two ends of which the client tells of its completions.
fn pair(v: Variant) -> (Fd, Fd) {
    let (client, server) = v.pair();
    zerocopy(client);
    (client, server)
}

/// Waits until all that was sent so far is complete.
fn await_complete(sender: Fd, receiver: Fd) {
    await_acknowledged(sender, receiver);
    await_events(sender, libc::POLLERR);
}

/// What the error queue gives to a reader with this room for control messages.
fn take(fd: Fd, room: usize) -> bool {
    let (ret, got) = sys::recvmsg_with_room(fd.raw, 8, room, MSG_ERRQUEUE);
    if ret.is_ok() {
        let flags = sys::message_flags_name(got.flags);
        trace!("completion({}, {room}) = {ret} flags={flags} name={} {:?}", fd.name, got.name_length, got.control);
    } else {
        trace!("completion({}, {room}) = {ret}", fd.name);
    }
    ret.is_ok()
}

fn one_completion(v: Variant) {
    let (client, server) = pair(v);
    take(client, 256);
    send(client, b"copy nothing", MSG_ZEROCOPY);
    await_complete(client, server);
    poll_now(client);
    so_error(client);
    take(client, 256);
    poll_now(client);
    take(client, 256);
    recv(server, 64, 0);
    poll_now(server);
}

fn merged(v: Variant) {
    let (client, server) = pair(v);
    for data in [&b"one"[..], b"two", b"three"] {
        send(client, data, MSG_ZEROCOPY);
        await_complete(client, server);
    }
    take(client, 256);
    take(client, 256);
}

fn numbers_go_on(v: Variant) {
    let (client, server) = pair(v);
    for count in 1..4 {
        for _ in 0..count {
            send(client, b"x", MSG_ZEROCOPY);
            await_complete(client, server);
        }
        take(client, 256);
    }
    set_option(client, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY", 0);
    send(client, b"x", MSG_ZEROCOPY);
    await_acknowledged(client, server);
    take(client, 256);
    zerocopy(client);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    take(client, 256);
}

fn without_the_option(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"copied", MSG_ZEROCOPY);
    await_acknowledged(client, server);
    await_queued(server, 6);
    poll_now(client);
    take(client, 256);
    recv(server, 64, 0);
}

fn without_the_flag(v: Variant) {
    let (client, server) = pair(v);
    send(client, b"copied", 0);
    write(client, b"copied");
    await_acknowledged(client, server);
    await_queued(server, 12);
    poll_now(client);
    take(client, 256);
}

fn no_bytes(v: Variant) {
    let (client, server) = pair(v);
    send(client, b"", MSG_ZEROCOPY);
    sendmsg(client, &[], MSG_ZEROCOPY);
    poll_now(client);
    take(client, 256);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    take(client, 256);
}

fn failed_sends(v: Variant) {
    let (client, server) = pair(v);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    shutdown(client, libc::SHUT_WR);
    send(client, b"y", MSG_ZEROCOPY | libc::MSG_NOSIGNAL);
    trace!("nowhere: {}", sys::send_at(client.raw, 0x10, 5, MSG_ZEROCOPY | libc::MSG_NOSIGNAL));
    take(client, 256);
    take(client, 256);
    poll_now(client);
}

/// A send that takes a part counts, one that takes nothing does not.
fn as_many_as_sends(v: Variant) {
    let (client, server) = pair(v);
    let data = vec![7; 100_000];
    let (mut sends, mut bytes) = (0, 0);
    loop {
        let ret = sys::send(client.raw, &data, MSG_ZEROCOPY | libc::MSG_DONTWAIT);
        if !ret.is_ok() {
            trace!("full: {ret}");
            break;
        }
        sends += 1;
        bytes += ret.size();
    }
    let mut room = vec![0; 1 << 20];
    while bytes != 0 {
        bytes -= sys::recv(server.raw, &mut room, 0).size();
    }
    let (mut next, mut right) = (0, true);
    until("all sends complete", || {
        let (ret, got) = sys::recvmsg_with_room(client.raw, 8, 256, MSG_ERRQUEUE);
        if ret.is_ok() {
            let word = |at: usize| u32::from_ne_bytes(got.control[at..at + 4].try_into().unwrap_or_default());
            right &= word(24) == next;
            next = word(28) + 1;
        }
        next == sends
    });
    trace!("all in order: {right}");
    take(client, 256);
}

fn room_for_control(v: Variant) {
    let (client, server) = pair(v);
    for room in [0, 1, 15, 16, 17, 20, 31, 32, 40, 47, 48, 49, 59, 60, 63, 64, 65, 128] {
        send(client, b"x", MSG_ZEROCOPY);
        await_complete(client, server);
        take(client, room);
        take(client, 256);
    }
}

fn taken_by_other_calls(v: Variant) {
    let (client, server) = pair(v);
    for flags in [MSG_ERRQUEUE, MSG_ERRQUEUE | libc::MSG_PEEK, MSG_ERRQUEUE | libc::MSG_OOB] {
        send(client, b"x", MSG_ZEROCOPY);
        await_complete(client, server);
        recv(client, 8, flags);
        take(client, 256);
    }
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    let (ret, length) = sys::recvfrom(client.raw, &mut [0; 8], MSG_ERRQUEUE);
    trace!("recvfrom = {ret} name {length}");
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    recvmsg(client, &[], MSG_ERRQUEUE | libc::MSG_CMSG_CLOEXEC);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    let mut messages = [sys::Pieces::of_lengths(&[4]), sys::Pieces::of_lengths(&[4])];
    let (ret, lengths) = sys::recvmmsg(client.raw, &mut messages, MSG_ERRQUEUE, -1);
    trace!("recvmmsg = {ret} {lengths:?}");
}

fn sent_by_other_calls(v: Variant) {
    let (client, server) = pair(v);
    sendmsg(client, &[b"many", b"", b"parts"], MSG_ZEROCOPY);
    await_complete(client, server);
    let mut messages = [sys::Pieces::of_data(&[b"two"]), sys::Pieces::of_data(&[b"messages"])];
    let (ret, lengths) = sys::sendmmsg(client.raw, &mut messages, MSG_ZEROCOPY);
    trace!("sendmmsg = {ret} {lengths:?}");
    await_acknowledged(client, server);
    until("all came", || queued(server) == 20);
    let large = vec![7; 5000];
    trace!("large: {}", sys::send(client.raw, &large, MSG_ZEROCOPY));
    let mut left = 5020;
    while left > 0 {
        left -= sys::recv(server.raw, &mut [0; 8192], 0).size();
    }
    await_acknowledged(client, server);
    std::thread::sleep(std::time::Duration::from_millis(20));
    take(client, 256);
    take(client, 256);
}

fn set_at_any_time(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    for value in [-1, 2, 0, 1] {
        set_option(client, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY", value);
        option(client, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    }
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    option(client, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    option(server, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    take(client, 256);
    for value in [-1, 2, 0, 1] {
        set_option(server, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY", value);
        option(server, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    }
    trace!("short: {}", sys::setsockopt(server.raw, SOL_SOCKET, SO_ZEROCOPY, &[1, 0]));
    trace!("none: {}", sys::setsockopt_at(server.raw, SOL_SOCKET, SO_ZEROCOPY, 0, 4));
    send(server, b"y", MSG_ZEROCOPY);
    await_complete(server, client);
    take(server, 256);
}

fn set_by_the_listener(v: Variant) {
    let listener = v.listener();
    zerocopy(listener);
    let client = v.client();
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    option(server, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    option(client, SOL_SOCKET, SO_ZEROCOPY, "SO_ZEROCOPY");
    send(server, b"inherited", MSG_ZEROCOPY);
    await_complete(server, client);
    take(server, 256);
}

fn before_it_is_accepted(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    zerocopy(client);
    connect(client, &v.address_of(listener));
    send(client, b"early", MSG_ZEROCOPY);
    until("it is complete", || {
        let mut entry = [libc::pollfd { fd: client.raw, events: 0, revents: 0 }];
        sys::poll(&mut entry, 100);
        entry[0].revents & libc::POLLERR != 0
    });
    take(client, 256);
    let server = accept(listener, "server");
    recv(server, 8, 0);
    send(client, b"later", MSG_ZEROCOPY);
    await_complete(client, server);
    take(client, 256);
}

fn shared_by_dup(v: Variant) {
    let (client, server) = pair(v);
    let copy = dup(client, "copy");
    send(client, b"x", MSG_ZEROCOPY);
    send(copy, b"y", MSG_ZEROCOPY);
    await_complete(client, server);
    poll_now(copy);
    close(client);
    while take(copy, 256) {}
    poll_now(copy);
}

fn shared_by_fork(v: Variant) {
    let (client, server) = pair(v);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    let child = sys::fork(|| {
        trace::set_actor("child");
        poll_now(client);
        take(client, 256);
        send(client, b"y", MSG_ZEROCOPY);
        await_complete(client, server);
        0
    });
    trace!("child: {}", sys::wait_for(child));
    poll_now(client);
    take(client, 256);
    send(client, b"z", MSG_ZEROCOPY);
    await_complete(client, server);
    take(client, 256);
}

fn ready_in_a_set(v: Variant) {
    let (client, server) = pair(v);
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN | libc::EPOLLOUT | v.trigger() as i32);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    for _ in 0..2 {
        send(client, b"x", MSG_ZEROCOPY);
        await_complete(client, server);
        epoll_wait(set, 4, 0);
        epoll_wait(set, 4, 0);
    }
    take(client, 256);
    epoll_wait(set, 4, 0);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    send(server, b"answer", 0);
    await_queued(client, 6);
    epoll_wait(set, 4, 0);
    take(client, 256);
    recv(client, 8, 0);
    epoll_wait(set, 4, 0);
}

fn ready_for_errors_alone(v: Variant) {
    let (client, server) = pair(v);
    let set = epoll_create("set");
    epoll_add(set, client, v.trigger() as i32);
    epoll_wait(set, 4, 0);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    take(client, 256);
    epoll_wait(set, 4, 0);
}

/// How long a wait lasts that nothing ends.
const WAIT_MS: i32 = 10_000;

/// Whether a wait was ended, however busy the machine is, and not over.
fn is_early(began: Instant) -> bool {
    began.elapsed() < Duration::from_millis(WAIT_MS as u64 / 2)
}

/// A thread sends while main waits for what may come, and that ends the wait.
fn wakes(v: Variant, wait: fn(Variant, Fd)) {
    let (client, server) = pair(v);
    let thread = once_asleep("thread", move || {
        send(client, b"x", MSG_ZEROCOPY);
        await_acknowledged(client, server);
    });
    let began = Instant::now();
    wait(v, client);
    trace!("ended early: {}", is_early(began));
    let _ = thread.join();
    take(client, 256);
}

fn wait_in_a_set(v: Variant, fd: Fd) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLIN | v.trigger() as i32);
    epoll_wait(set, 4, WAIT_MS);
}

fn wait_in_poll(fd: Fd, events: i16) {
    poll(&[(fd, events)], WAIT_MS);
}

fn wait_in_select(fd: Fd) {
    select(&[fd], &[], &[], i64::from(WAIT_MS));
}

/// Whether a set of edges tells of room; what else it tells of is passed over.
fn hears_of_room(set: Fd, timeout_ms: i32) -> bool {
    loop {
        let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, timeout_ms, None);
        if ret.value <= 0 {
            return false;
        }
        if events.iter().any(|event| event.events & libc::EPOLLOUT as u32 != 0) {
            return true;
        }
    }
}

/// Who was told of completions, leaves them unread and waits for room sleeps until there is some, or a signal comes.
fn unread_while_there_is_no_room(v: Variant) {
    let (client, server) = pair(v);
    let set = epoll_create("set");
    epoll_add(set, client, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    let data = vec![7; 100_000];
    let mut left = 1;
    loop {
        let ret = sys::send(client.raw, &data, MSG_ZEROCOPY | libc::MSG_DONTWAIT);
        if ret.is_ok() {
            left += ret.size();
        } else if !hears_of_room(set, 100) {
            break;
        }
    }
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 300);
    trace!("the wait was busy: {}", sys::thread_cpu_ms() - before > 150);
    sys::sigaction(libc::SIGALRM, super::ignore_signal, 0);
    sys::alarm_ms(20, 20);
    epoll_wait(set, 4, WAIT_MS);
    sys::alarm_ms(0, 0);
    let before = sys::thread_cpu_ms();
    poll(&[(set, libc::POLLIN)], 300);
    trace!("poll was busy: {}", sys::thread_cpu_ms() - before > 150);
    poll_now(client);
    let thread = once_asleep("thread", move || {
        let mut room = vec![0; 1 << 20];
        while left != 0 {
            left -= sys::recv(server.raw, &mut room, 0).size();
        }
    });
    trace!("room is told of: {}", hears_of_room(set, WAIT_MS));
    let _ = thread.join();
}

/// Completions outlive the connection.
fn after_the_end(v: Variant) {
    let (client, server) = pair(v);
    send(client, b"x", MSG_ZEROCOPY);
    await_complete(client, server);
    recv(server, 8, 0);
    close(server);
    await_hangup(client);
    poll_now(client);
    recv(client, 8, 0);
    take(client, 256);
    poll_now(client);
}

//! Who waits for urgent bytes, for others beside them, or for both.

use super::{OOB, await_urgent, look, settle};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub(super) fn readiness(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    select(&[server], &[], &[server], 0);
    poll(&[(server, libc::POLLPRI)], 0);
    poll(&[(server, libc::POLLIN)], 0);
    recv(server, 1, OOB);
    select(&[server], &[], &[server], 0);
    send(client, b"x", 0);
    await_readable(server);
    select(&[server], &[], &[server], 0);
    recv(server, 8, 0);
    select(&[server], &[], &[server], 0);
}

pub(super) fn readiness_by_epoll(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN | libc::EPOLLPRI | v.trigger() as i32);
    epoll_wait(set, 4, 0);
    send(client, b"!", OOB);
    epoll_wait(set, 4, 10_000);
    epoll_wait(set, 4, 0);
    recv(server, 1, OOB);
    epoll_wait(set, 4, 0);
    send(client, b"x", 0);
    epoll_wait(set, 4, 10_000);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    send(client, b"ab?", OOB);
    epoll_wait(set, 4, 10_000);
}

pub(super) fn priority_alone_by_epoll(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLPRI | v.trigger() as i32);
    send(client, b"data", 0);
    await_queued(server, 4);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    send(client, b"!", OOB);
    epoll_wait(set, 4, 10_000);
    recv(server, 1, OOB);
    epoll_wait(set, 4, 0);
}

pub(super) fn wait_by_poll(fd: Fd) {
    poll(&[(fd, libc::POLLPRI)], 10_000);
}

pub(super) fn wait_by_select(fd: Fd) {
    select(&[], &[], &[fd], 10_000);
}

pub(super) fn wait_by_epoll(fd: Fd) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI);
    epoll_wait(set, 4, 10_000);
}

pub(super) fn waits_for_it(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    let sender = once_asleep("sender", move || {
        send(client, b"!", OOB);
    });
    wait(server);
    recv(server, 1, OOB);
    let _ = sender.join();
}

pub(super) fn poll_alone(fd: Fd, timeout_ms: i32) {
    poll(&[(fd, libc::POLLPRI)], timeout_ms);
}

pub(super) fn select_alone(fd: Fd, timeout_ms: i64) {
    select(&[], &[], &[fd], timeout_ms);
}

pub(super) fn epoll_alone(fd: Fd, timeout_ms: i32) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI);
    epoll_wait(set, 4, timeout_ms);
    epoll_wait(set, 4, 0);
}

/// Once: the kernel has two edges for an urgent byte, and whether a wait comes between them is chance.
pub(super) fn edge_alone(fd: Fd, timeout_ms: i32) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLPRI | libc::EPOLLET);
    epoll_wait(set, 4, timeout_ms);
}

/// Nor is who waits for other bytes woken by an urgent one, which is none to read.
pub(super) fn epoll_for_data_sleeps_beside_it(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, libc::EPOLLIN | v.trigger() as i32);
    epoll_wait(set, 4, 0);
    send(client, b"!", OOB);
    await_urgent(server);
    let before = cpu_us();
    epoll_wait(set, 4, 300);
    trace!("idle {}", cpu_us() - before < 50_000);
    let sender = once_asleep("sender", move || {
        send(client, b"data", 0);
    });
    epoll_wait(set, 4, 10_000);
    let _ = sender.join();
}

/// Who waits for urgent bytes alone is not woken by others, neither by those that are there nor by those that come.
pub(super) fn sleeps_beside_data(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    send(client, b"before", 0);
    await_queued(server, 6);
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        for _ in 0..3 {
            await_asleep(main);
            send(client, b"more", 0);
            settle(client);
        }
        await_asleep(main);
        send(client, b"!", OOB);
    });
    wait(server);
    let _ = sender.join();
    recv(server, 1, OOB);
    look(server);
    recv(server, 64, 0);
}

/// Processor time of this process so far, in microseconds.
fn cpu_us() -> i64 {
    // SAFETY: all-zero is a valid value of this plain C struct, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum()
}

pub(super) fn uses_no_cpu_beside_data(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    send(client, b"ordinary", 0);
    await_queued(server, 8);
    let before = cpu_us();
    wait(server);
    trace!("idle {}", cpu_us() - before < 50_000);
}

pub(super) fn poll_beside_data_hears_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ordinary", 0);
    await_queued(server, 8);
    let main = sys::thread_id();
    let closer = std::thread::spawn(move || {
        trace::set_actor("closer");
        await_asleep(main);
        shutdown(client, libc::SHUT_WR);
        await_asleep(main);
        set_linger(client, 1, 0);
        close(client);
    });
    poll(&[(server, libc::POLLPRI)], 10_000);
    let _ = closer.join();
    recv(server, 16, 0);
}

pub(super) fn blocked_recv_throws_it_away(v: Variant) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        await_asleep(main);
        send(client, b"!", OOB);
        settle(client);
        await_asleep(main);
        send(client, b"data", 0);
    });
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
    let _ = sender.join();
}

//! The calls that can wait, each as a function of one descriptor: used wherever something must wake all of them.

use crate::traced::*;
use beeline_testkit::sys::EpollCall;

/// Waits for ever until `fd` is readable (or receives from it), by one traced call.
pub type Waiter = fn(Fd);

/// Names and functions of all waiters, for the macros that make cases.
#[macro_export]
macro_rules! with_all_waiters {
    ($make:ident $($context:tt)*) => {
        $make!($($context)* [
            by_recv by_read by_readv by_recvmsg by_waitall by_peek by_poll by_ppoll by_select by_pselect
            by_epoll_level by_epoll_edge by_epoll_oneshot by_epoll_pwait by_epoll_pwait2 by_nested_epoll
        ])
    };
}

pub fn by_recv(fd: Fd) {
    recv(fd, 64, 0);
}

pub fn by_read(fd: Fd) {
    read(fd, 64);
}

pub fn by_readv(fd: Fd) {
    readv(fd, &[2, 62]);
}

pub fn by_recvmsg(fd: Fd) {
    recvmsg(fd, &[2, 62], 0);
}

pub fn by_waitall(fd: Fd) {
    recv(fd, 4, libc::MSG_WAITALL);
}

pub fn by_peek(fd: Fd) {
    recv(fd, 4, libc::MSG_PEEK);
}

pub fn by_poll(fd: Fd) {
    poll(&[(fd, libc::POLLIN | libc::POLLRDHUP)], -1);
}

pub fn by_ppoll(fd: Fd) {
    ppoll(&[(fd, libc::POLLIN)], -1, None);
}

pub fn by_select(fd: Fd) {
    select(&[fd], &[], &[fd], -1);
}

pub fn by_pselect(fd: Fd) {
    pselect(&[fd], &[], &[], -1, None);
}

fn by_epoll(fd: Fd, events: i32, which: EpollCall) {
    let set = epoll_create("set");
    epoll_add(set, fd, events);
    epoll_wait_by(which, set, 4, -1, None);
}

pub fn by_epoll_level(fd: Fd) {
    by_epoll(fd, libc::EPOLLIN | libc::EPOLLRDHUP, EpollCall::Wait);
}

pub fn by_epoll_edge(fd: Fd) {
    by_epoll(fd, libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET, EpollCall::Wait);
}

pub fn by_epoll_oneshot(fd: Fd) {
    by_epoll(fd, libc::EPOLLIN | libc::EPOLLONESHOT, EpollCall::Wait);
}

pub fn by_epoll_pwait(fd: Fd) {
    by_epoll(fd, libc::EPOLLIN, EpollCall::Pwait);
}

pub fn by_epoll_pwait2(fd: Fd) {
    by_epoll(fd, libc::EPOLLIN, EpollCall::Pwait2);
}

pub fn by_nested_epoll(fd: Fd) {
    let inner = epoll_create("inner");
    epoll_add(inner, fd, libc::EPOLLIN);
    let outer = epoll_create("outer");
    epoll_add(outer, inner, libc::EPOLLIN);
    epoll_wait(outer, 4, -1);
    epoll_wait(inner, 4, 0);
}

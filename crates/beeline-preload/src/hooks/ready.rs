//! Waiting for readiness.

use beeline_sockets::life::bits_looked_at;
use beeline_sockets::{Outcome, calls, epoll};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::real::hooks;

/// Whether a checked form has room for its entries; if not, libc's own ends the program.
fn fits(count: nfds_t, room: usize) -> bool {
    room.checked_div(size_of::<pollfd>()).is_some_and(|room| room >= count as usize)
}

hooks! {
    fn poll | __poll: (fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int [] =>
        calls::poll(fds, count, timeout_ms);

    fn ppoll: (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int [] =>
        calls::ppoll(fds, count, timeout, mask.cast());

    fn __poll_chk: (fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: usize) -> c_int [] =>
        if fits(count, room) { calls::poll(fds, count, timeout_ms) } else { Outcome::Kernel };

    fn __ppoll_chk: (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int [] =>
        if fits(count, room) { calls::ppoll(fds, count, timeout, mask.cast()) } else { Outcome::Kernel };

    fn select | __select: (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int [] => {
        count = bits_looked_at(count, [read, write, except]);
        calls::select(count, read, write, except, timeout)
    };

    fn pselect: (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int [] => {
        count = bits_looked_at(count, [read, write, except]);
        calls::pselect(count, read, write, except, timeout, mask.cast())
    };

    fn epoll_create: (size: c_int) -> c_int [] =>
        if size > 0 { calls::epoll_create(0) } else { Outcome::Kernel };

    fn epoll_create1: (flags: c_int) -> c_int [] => calls::epoll_create(flags);

    fn epoll_ctl: (set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int [] =>
        calls::epoll_ctl(set, operation, fd, event);

    fn epoll_wait: (set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int [at_any_time] =>
        epoll::wait(set, events, room, timeout_ms);

    fn epoll_pwait: (set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int [] =>
        epoll::pwait(set, events, room, timeout_ms, mask.cast());

    fn epoll_pwait2: (set: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int [] =>
        epoll::pwait2(set, events, room, timeout, mask.cast());
}

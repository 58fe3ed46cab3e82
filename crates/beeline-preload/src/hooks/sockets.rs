//! Making, naming and ending connections; options.

use beeline_sockets::{Outcome, io, life, meet, options};
use beeline_stats::Reason;
use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::real::hooks;

/// Nothing new of ours is made when acceleration is off, or in a `vfork` child.
#[inline]
fn allowed(f: impl FnOnce() -> Outcome) -> Outcome {
    if life::may_accelerate() { f() } else { Outcome::Kernel }
}

/// The same for calls that make connections, which are counted if the program has left lanes.
#[inline]
fn allowed_or_counted(f: impl FnOnce() -> Outcome, counted: impl FnOnce(Reason) -> Outcome) -> Outcome {
    if life::may_accelerate() { f() } else { life::stopped().map_or(Outcome::Kernel, counted) }
}

/// `accept(2)` and `accept4(2)`.
///
/// # Safety
/// As for accept4(2).
#[inline]
unsafe fn accept_one(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Outcome {
    // SAFETY: forwarded.
    let lanes = || unsafe { meet::accept4(fd, address, length, flags) };
    // SAFETY: forwarded.
    allowed_or_counted(lanes, |reason| unsafe { meet::accept4_counted(fd, address, length, flags, reason) })
}

hooks! {
    fn socket: (domain: c_int, kind: c_int, protocol: c_int) -> c_int [] =>
        allowed(|| meet::socket(domain, kind, protocol));

    fn bind: (fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int [fd] =>
        allowed(|| meet::bind(fd, address, length));

    fn listen: (fd: c_int, backlog: c_int) -> c_int [fd] =>
        allowed(|| meet::listen(fd, backlog));

    fn connect | __connect: (fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int [fd] =>
        allowed_or_counted(
            || meet::connect(fd, address, length),
            |reason| meet::connect_counted(fd, address, length, reason)
        );

    fn accept: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [fd] =>
        accept_one(fd, address, length, 0);

    fn accept4: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int [fd] =>
        accept_one(fd, address, length, flags);

    fn sockatmark: (fd: c_int) -> c_int [fd] => life::sockatmark(fd);

    fn getsockname: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [] =>
        meet::getsockname(fd, address, length);

    fn getpeername: (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int [] =>
        meet::getpeername(fd, address, length);

    fn shutdown: (fd: c_int, how: c_int) -> c_int [fd] => io::shutdown(fd, how);

    fn getsockopt: (fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int [] =>
        options::getsockopt(fd, level, name, value.cast(), length);

    fn setsockopt: (fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int [fd] =>
        options::setsockopt(fd, level, name, value.cast(), length);
}

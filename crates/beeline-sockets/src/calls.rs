//! The calls that make something of ours, or meet it for the first time: what is asked before, of the process and of
//! its code, and which layer is called then.
//!
//! The layers below do not know what `life` knows: when the process starts, whether its code may have lanes, and what a
//! standard descriptor needs. So these calls begin here, while those on connections that stand (`send`, `recv`,
//! `epoll_wait`) go straight to their layer.

use beeline_shm::sys;
use beeline_stats::Reason;

use crate::app_memory::bogus;
use crate::desc::Kind;
use crate::life::{self, adopt_listener};
use crate::{Outcome, epoll, io, meet, poll, process, table};

/// Nothing new of ours is made when acceleration is off, or in a `vfork` child.
#[inline]
fn allowed(f: impl FnOnce() -> Outcome) -> Outcome {
    if life::may_accelerate() { f() } else { Outcome::Kernel }
}

/// The same for calls that make connections, which are counted if the program has left lanes.
#[inline]
fn allowed_or_counted(f: impl FnOnce() -> Outcome, counted: impl FnOnce(Reason) -> Outcome) -> Outcome {
    if life::may_accelerate() { f() } else { process::reason_to_count().map_or(Outcome::Kernel, counted) }
}

/// `socket(2)`.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome {
    allowed(|| meet::socket(domain, kind, protocol))
}

/// `bind(2)`, wherever to.
pub fn bind(fd: i32) -> Outcome {
    allowed(|| meet::bind(fd))
}

/// `listen(2)`.
pub fn listen(fd: i32, backlog: i32) -> Outcome {
    allowed(|| if life::allow_lanes() { meet::listen(fd, backlog) } else { Outcome::Kernel })
}

/// `connect(2)`.
///
/// # Safety
/// `address` and `length` as for connect(2).
pub unsafe fn connect(fd: i32, address: *const libc::sockaddr, length: u32) -> Outcome {
    allowed_or_counted(
        // SAFETY: forwarded from the caller.
        || unsafe { meet::connect(fd, address, length, life::allow_lanes) },
        // SAFETY: forwarded from the caller.
        |reason| unsafe { meet::connect_counted(fd, address, length, reason) },
    )
}

/// `accept4(2)`; `accept` is the same with no flags.
///
/// # Safety
/// `address` and `length` as for accept(2): null, or valid and writable for `*length` bytes.
pub unsafe fn accept4(fd: i32, address: *mut libc::sockaddr, length: *mut u32, flags: i32) -> Outcome {
    allowed_or_counted(
        // SAFETY: forwarded from the caller.
        || unsafe { accept(fd, address, length, flags) },
        // SAFETY: as above.
        |reason| unsafe { accept_counted(fd, address, length, flags, reason) },
    )
}

/// # Safety
/// As for [`accept4`].
unsafe fn accept(fd: i32, address: *mut libc::sockaddr, length: *mut u32, flags: i32) -> Outcome {
    if !life::allow_lanes() {
        let Some(reason) = process::reason_to_count() else { return Outcome::Kernel };
        // SAFETY: forwarded from the caller.
        return unsafe { accept_counted(fd, address, length, flags, reason) };
    }
    let (accepted, peer) = match meet::accept(fd, flags) {
        None => return Outcome::Kernel,
        Some(Ok(accepted)) => accepted,
        Some(Err(errno)) => return Outcome::Fail(errno),
    };
    life::demote_if_stream(accepted);
    if !address.is_null() {
        let nowhere = bogus(length as usize, size_of::<u32>());
        // SAFETY: the caller guarantees that it is valid, and it is not the null that many pass by mistake.
        let room = if nowhere { 0 } else { unsafe { length.read_unaligned() } };
        if nowhere || room.cast_signed() < 0 || bogus(address as usize, room as usize) {
            // As in the kernel, a connection whose address cannot be told is lost.
            drop_accepted(accepted);
            return Outcome::fail(if room.cast_signed() < 0 { libc::EINVAL } else { libc::EFAULT });
        }
        // SAFETY: the caller guarantees it.
        unsafe { peer.to_app(address, length) };
    }
    Outcome::Done(accepted as isize)
}

fn drop_accepted(fd: i32) {
    if life::close(fd) == Outcome::Kernel {
        let _ = sys::close(fd);
    }
}

/// # Safety
/// As for [`accept4`].
unsafe fn accept_counted(
    fd: i32,
    address: *mut libc::sockaddr,
    length: *mut u32,
    flags: i32,
    reason: Reason,
) -> Outcome {
    if let Some(errno) = life::refusal(fd) {
        return Outcome::Fail(errno);
    }
    // SAFETY: forwarded from the caller.
    unsafe { meet::accept4_counted(fd, address, length, flags, reason) }
}

/// `shutdown(2)`.
pub fn shutdown(fd: i32, how: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Listener => meet::shutdown_listener(desc, how),
        Kind::Orphan => Outcome::fail(libc::ENOTCONN),
        Kind::Lane => io::shutdown(fd, how),
        _ => Outcome::Kernel,
    }
}

/// `poll(2)`.
///
/// # Safety
/// `fds` must point to `count` entries, as for poll(2).
pub unsafe fn poll(fds: *mut libc::pollfd, count: u64, timeout_ms: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { poll::poll(fds, count, timeout_ms, adopt_listener) }
}

/// `ppoll(2)`.
///
/// # Safety
/// `fds` must point to `count` entries; `timeout` and `mask` must be null or valid, as for ppoll(2).
pub unsafe fn ppoll(fds: *mut libc::pollfd, count: u64, timeout: *const libc::timespec, mask: *const u8) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { poll::ppoll(fds, count, timeout, mask, adopt_listener) }
}

/// `select(2)`.
///
/// # Safety
/// The sets must be null or hold `count` bits; `timeout` must be null or valid, as for select(2).
pub unsafe fn select(
    count: i32,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { poll::select(count, [read, write, except], timeout, adopt_listener) }
}

/// `pselect(2)`.
///
/// # Safety
/// As for [`select`]; `mask` must be null or a valid signal set.
pub unsafe fn pselect(
    count: i32,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    mask: *const u8,
) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { poll::pselect(count, [read, write, except], timeout, mask, adopt_listener) }
}

/// `epoll_create1(2)`.
pub fn epoll_create(flags: i32) -> Outcome {
    // SAFETY: plain numbers.
    let make = || unsafe { sys::call(libc::SYS_epoll_create1, [flags as usize, 0, 0, 0, 0, 0]) };
    let before = (process::forks(), process::copies());
    allowed(|| match meet::with_room(make) {
        Ok(fd) => epoll::begin(fd as i32, flags, before),
        Err(errno) => Outcome::Fail(errno),
    })
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// `event` must be null or valid, as for epoll_ctl(2).
pub unsafe fn epoll_ctl(epfd: i32, operation: i32, fd: i32, event: *mut libc::epoll_event) -> Outcome {
    // SAFETY: forwarded from the caller.
    allowed(|| unsafe { epoll::ctl(epfd, operation, fd, event, adopt_listener) })
}

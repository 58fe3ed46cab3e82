//! Sockets before they are connected, and the names of those that are.

use core::sync::atomic::Ordering::Relaxed;

use super::release::with_room;
use crate::app_memory::bogus;
use crate::desc::{DESCS, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{Errno, Outcome, close, ending, follow, guards, table};

/// `socket(2)`.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome {
    // Before there is anything that a fork could copy.
    let born = crate::forks();
    let fd = match with_room(|| kernel::socket(domain, kind, protocol)) {
        Ok(fd) => fd as i32,
        Err(errno) => return Outcome::Fail(errno),
    };
    let _changing = close::changing_reborn(fd);
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let is_tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    // Without a description the socket is simply the kernel's.
    if is_internet
        && is_stream
        && is_tcp
        && let Some(desc) = DESCS.take()
    {
        desc.begin(Kind::Tcp, fd, domain as u32, born);
        if table::set(fd, Some(desc)).is_err() {
            desc.give_if_unused();
        }
    }
    Outcome::Done(fd as isize)
}

/// `bind(2)`, wherever to.
pub(crate) fn bind(fd: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Lane | Kind::Orphan => return Outcome::fail(libc::EINVAL),
        Kind::Tcp => desc.draft.bound.store(true, Relaxed),
        _ => {}
    }
    Outcome::Kernel
}

/// `getsockname(2)`.
///
/// # Safety
/// `address` and `length` as for getsockname(2).
pub unsafe fn getsockname(fd: i32, address: *mut libc::sockaddr, length: *mut u32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { name(fd, address, length, |side| Ok(side.local.get())) }
}

/// `getpeername(2)`.
///
/// # Safety
/// `address` and `length` as for getpeername(2).
pub unsafe fn getpeername(fd: i32, address: *mut libc::sockaddr, length: *mut u32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe {
        name(fd, address, length, |side| {
            // The kernel forgets the peer of a connection that is over: reset, or closed in both directions.
            let over = side.is(state::RESET) || side.is(state::SHUT_WR) && side.is(state::PEER_FIN);
            if over { Err(Errno(libc::ENOTCONN)) } else { Ok(side.remote.get()) }
        })
    }
}

/// # Safety
/// `address` and `length` as for getsockname(2).
unsafe fn name(
    fd: i32,
    address: *mut libc::sockaddr,
    length: *mut u32,
    which: impl FnOnce(&SideState) -> Result<core::net::SocketAddr, Errno>,
) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Lane if follow::follow_if_relayed(fd, desc) => return Outcome::Kernel,
        Kind::Lane => {}
        Kind::Orphan => return Outcome::fail(libc::ENOTCONN),
        _ => return Outcome::Kernel,
    }
    let Some(guard) = guards::lane_rx(fd) else { return Outcome::Kernel };
    ending::observe(desc, guard.side);
    let found = match which(guard.side) {
        Ok(found) => SockAddr::internet(found, guard.side.family.load(Relaxed) as i32),
        Err(errno) => return Outcome::Fail(errno),
    };
    drop(guard);
    // SAFETY: the caller guarantees it; read before it is used for a length.
    unsafe {
        if bogus(length as usize, size_of::<u32>()) || bogus(address as usize, 1) {
            return Outcome::fail(libc::EFAULT);
        }
        if (*length).cast_signed() < 0 {
            return Outcome::fail(libc::EINVAL);
        }
        found.to_app(address, length);
    }
    Outcome::OK
}

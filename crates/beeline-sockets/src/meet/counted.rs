//! Connections of a program that has left lanes, for good: the kernel's alone, but counted with the reason.

use beeline_stats::{Reason, Role};

use crate::kernel::tcp_state;
use crate::kernel::{self, SockAddr};
use crate::linux::TCP_CLOSE;
use crate::{Errno, Outcome, cancel, process, stats};

/// `connect(2)`. Counted is a call that begins a connection, not one that asks after it.
///
/// # Safety
/// `address` and `length` as for connect(2).
pub unsafe fn connect(fd: i32, address: *const libc::sockaddr, length: u32, reason: Reason) -> Outcome {
    // SAFETY: forwarded from the caller.
    let internet = unsafe { SockAddr::from_app(address, length) }.and_then(|address| address.to_internet()).is_some();
    if internet && is_tcp(fd) && tcp_state(fd) == Some(TCP_CLOSE) {
        stats::fell_back(Role::Client, reason);
    }
    Outcome::Kernel
}

/// `accept4(2)`.
///
/// # Safety
/// `address` and `length` as for accept4(2).
pub unsafe fn accept4(fd: i32, address: *mut libc::sockaddr, length: *mut u32, flags: i32, reason: Reason) -> Outcome {
    let args = [fd as usize, address as usize, length as usize, flags as usize, 0, 0];
    // SAFETY: forwarded from the caller.
    let accepted = cancel::point(|| unsafe { process::raw(libc::SYS_accept4, args) });
    if let Outcome::Done(accepted) = accepted {
        let accepted = accepted as i32;
        crate::close::fd_reborn(accepted);
        if is_tcp(accepted) {
            stats::fell_back(Role::Server, reason);
        }
    }
    accepted
}

fn is_tcp(fd: i32) -> bool {
    let protocol: Result<i32, Errno> = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    protocol == Ok(libc::IPPROTO_TCP)
}

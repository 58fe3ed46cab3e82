//! `preadv2` and `pwritev2`: with an offset of -1 they are `readv` and `writev` with flags.
//!
//! A socket has no other offset: the kernel refuses those, on an anchor as on a TCP socket. Which flags it accepts on
//! a socket depends on its version, and it decides that before it asks the socket anything; so it is asked about a
//! socket to which nothing can happen. Among the flags that it accepts only `RWF_NOWAIT` means something to a stream.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use beeline_shm::sys::{self, call};

use super::call::check_iovecs;
use super::receive::{readv, receive_iovecs};
use super::send::{send_iovecs, writev};
use crate::desc::Desc;
use crate::{Errno, Outcome, kernel, table};

/// `preadv2(2)`.
///
/// # Safety
/// `parts` must point to `count` iovecs whose buffers are writable, as for preadv2(2).
pub unsafe fn preadv2(fd: i32, parts: *const libc::iovec, count: i32, offset: i64, flags: i32) -> Outcome {
    static ACCEPTED: AtomicI32 = AtomicI32::new(0);
    let asked = Asked { fd, parts, count, offset, flags, number: libc::SYS_preadv2, accepted: &ACCEPTED };
    // SAFETY: forwarded from the caller.
    unsafe {
        match asked.message_flags() {
            Ok(0) => readv(fd, parts, count),
            Ok(flags) => receive_iovecs(fd, parts, count as usize, flags, |_| ()),
            Err(outcome) => outcome,
        }
    }
}

/// `pwritev2(2)`.
///
/// # Safety
/// `parts` must point to `count` iovecs whose buffers are readable, as for pwritev2(2).
pub unsafe fn pwritev2(fd: i32, parts: *const libc::iovec, count: i32, offset: i64, flags: i32) -> Outcome {
    static ACCEPTED: AtomicI32 = AtomicI32::new(0);
    let asked = Asked { fd, parts, count, offset, flags, number: libc::SYS_pwritev2, accepted: &ACCEPTED };
    // SAFETY: forwarded from the caller.
    unsafe {
        match asked.message_flags() {
            Ok(0) => writev(fd, parts, count),
            Ok(flags) => send_iovecs(fd, parts, count as usize, flags),
            Err(outcome) => outcome,
        }
    }
}

/// The arguments of either call.
struct Asked {
    fd: i32,
    parts: *const libc::iovec,
    count: i32,
    offset: i64,
    flags: i32,
    number: libc::c_long,
    /// Flags that the kernel has accepted last.
    accepted: &'static AtomicI32,
}

impl Asked {
    /// The flags of the call as those of recv(2) and send(2), or the call's outcome.
    ///
    /// # Safety
    /// As for the call.
    unsafe fn message_flags(&self) -> Result<i32, Outcome> {
        if self.offset != -1 || !table::get(self.fd).is_some_and(Desc::is_lane) {
            return Err(Outcome::Kernel);
        }
        if self.flags == 0 {
            return Ok(0);
        }
        // SAFETY: the caller guarantees it; nonsense is refused.
        if unsafe { check_iovecs(self.parts, self.count as usize) }?.1 == 0 {
            return Err(Outcome::OK);
        }
        if self.accepted.load(Relaxed) != self.flags {
            self.probe().map_err(Outcome::Fail)?;
            self.accepted.store(self.flags, Relaxed);
        }
        Ok(if self.flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 })
    }

    /// Whether the kernel accepts the flags on a socket.
    fn probe(&self) -> Result<(), Errno> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = kernel::socket(libc::AF_UNIX, kind, 0)?;
        let mut byte = 0u8;
        let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let args = [socket, (&raw const part) as usize, 1, usize::MAX, usize::MAX, self.flags as u32 as usize];
        // SAFETY: one live iovec of one live byte.
        let result = unsafe { call(self.number, args) };
        let _ = sys::close(socket as i32);
        match result {
            // What the socket itself says: there is nothing to read, and nobody to write to.
            Ok(_) | Err(Errno(libc::EAGAIN | libc::ENOTCONN)) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

//! Anchors without their lanes: inherited over `exec`, or received from another process.
//!
//! The lane is not mapped here, so nothing can be sent or received. Until such an end can be handed over, it
//! fails like a connection that was reset, and above all no byte of the app ever reaches the anchor, where it
//! would be taken for a doorbell.
//!
//! An orphan may be a mere leak: the process that it came from goes on using the connection, and nobody shall
//! notice. But once it is used here, the peer must not take its close for a clean end: it is sent a byte that
//! is no doorbell, which resets the connection ([`orphan_used`]).

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;
use beeline_wire::ConnName;

use crate::desc::{DESCS, Desc, Kind};
use crate::{Errno, kernel, table};

/// Bytes asked of getdents64(2) at a time.
const BUFFER_BYTES: usize = 2048;
/// Anything but [`beeline_wire::BELL`].
const NO_BELL: u8 = !beeline_wire::BELL;

#[repr(C, align(8))]
struct Buffer([u8; BUFFER_BYTES]);

pub(super) fn mark_inherited() {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, c"/proc/self/fd".as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated literal and plain numbers.
    let Ok(directory) = (unsafe { sys::call(libc::SYS_openat, args) }) else { return };
    let mut buffer = Buffer([0; BUFFER_BYTES]);
    loop {
        let args = [directory, (&raw mut buffer.0) as usize, BUFFER_BYTES, 0, 0, 0];
        // SAFETY: a live buffer of the length given.
        let Ok(length) = (unsafe { sys::call(libc::SYS_getdents64, args) }) else { break };
        if length == 0 {
            break;
        }
        let mut rest = buffer.0.get(..length).unwrap_or_default();
        // struct linux_dirent64: u64 inode, u64 offset, u16 length, u8 type, NUL-terminated name.
        while let Some(&[low, high]) = rest.get(16..18) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            if length < 20 {
                break;
            }
            if let Some(fd) = rest.get(19..length).and_then(number)
                && fd as usize != directory
            {
                mark(fd);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    let _ = sys::close(directory as i32);
}

/// Makes `fd` an orphan if it is an anchor. The table has no entry for it.
pub(super) fn mark(fd: i32) {
    if is_anchor(fd)
        && let Some(desc) = DESCS.take()
    {
        desc.begin(Kind::Orphan, fd, 0, 0);
        let _ = table::set(fd, Some(desc));
    }
}

/// An orphan was to be read or written: the peer learns that this end does not work. The error to report.
#[cold]
pub(crate) fn orphan_used(desc: &Desc) -> Errno {
    // `shared` has no other meaning without a lane.
    if !desc.shared.swap(true, Relaxed) {
        let _ = kernel::send(desc.fd.load(Relaxed), &[NO_BELL], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
    Errno(libc::ECONNRESET)
}

/// The decimal number at the start of a NUL-terminated name; `None` for other names.
fn number(name: &[u8]) -> Option<i32> {
    let digits = name.split(|&byte| byte == 0).next()?;
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0i32, |value, &byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(i32::from(digit))
    })
}

/// Whether `fd` is either end of a connection's anchor: one of its names is a connection's.
fn is_anchor(fd: i32) -> bool {
    if kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) != Ok(libc::AF_UNIX) {
        return false;
    }
    let named = |address: Result<kernel::SockAddr, _>| {
        address.is_ok_and(|address| address.abstract_name().is_some_and(|name| ConnName::parse(name).is_some()))
    };
    named(kernel::getsockname(fd)) || named(kernel::getpeername(fd))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn names_that_are_numbers_are_read() {
        assert_eq!(number(b"17\0\0\0"), Some(17));
        assert_eq!(number(b".\0"), None);
        assert_eq!(number(b"\0"), None);
        assert_eq!(number(b"99999999999\0"), None);
    }
}

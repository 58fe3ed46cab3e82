//! Other network namespaces, as the agent finds them: whose they are, and when the process ends that one was found by.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use beeline_shm::sys::call;

use super::own;
use crate::Errno;

/// A descriptor of the user namespace that another namespace belongs to (`NS_GET_USERNS`).
///
/// # Errors
/// `EPERM` where that is none of this process's, nor one below it.
pub fn owner_of(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let args = [namespace.as_raw_fd() as usize, libc::NS_GET_USERNS as usize, 0, 0, 0, 0];
    // SAFETY: a request without an argument.
    unsafe { call(libc::SYS_ioctl, args) }.map(|fd| own(fd as i32))
}

/// A descriptor that is readable when the process with this number has ended (pidfd_open(2)).
///
/// # Errors
/// Those of pidfd_open(2).
pub fn end_of(process: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_pidfd_open, [process as usize, 0, 0, 0, 0, 0]) }.map(|fd| own(fd as i32))
}

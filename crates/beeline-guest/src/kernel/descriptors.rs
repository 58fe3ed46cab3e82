//! `fcntl(2)`: flags and duplicates of descriptors.

use beeline_shm::sys::{SysResult, call};

use crate::Errno;

/// `fcntl(2)` with an integer argument, or none.
///
/// # Safety
/// `command` must not be one that takes a pointer.
pub unsafe fn fcntl(fd: i32, command: i32, argument: usize) -> SysResult {
    // SAFETY: plain numbers, as the caller guarantees.
    unsafe { call(libc::SYS_fcntl, [fd as usize, command as usize, argument, 0, 0, 0]) }
}

fn numbers(fd: i32, command: i32, argument: usize) -> Result<i32, Errno> {
    // SAFETY: called below only, with commands that take an integer or nothing.
    unsafe { fcntl(fd, command, argument) }.map(|answer| answer as i32)
}

/// `O_NONBLOCK` and its kin (`F_GETFL`).
///
/// # Errors
/// Those of fcntl(2).
pub fn status_flags(fd: i32) -> Result<i32, Errno> {
    numbers(fd, libc::F_GETFL, 0)
}

/// Sets those that can be set (`F_SETFL`).
///
/// # Errors
/// Those of fcntl(2).
pub fn set_status_flags(fd: i32, flags: i32) -> Result<(), Errno> {
    numbers(fd, libc::F_SETFL, flags as usize).map(drop)
}

/// Whether calls on `fd` block; not where that is not told.
#[must_use]
pub fn is_blocking(fd: i32) -> bool {
    status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}

/// Whether `fd` is closed by `execve`.
///
/// # Errors
/// `EBADF`: it is not open.
pub fn is_close_on_exec(fd: i32) -> Result<bool, Errno> {
    numbers(fd, libc::F_GETFD, 0).map(|flags| flags & libc::FD_CLOEXEC != 0)
}

/// Decides that. One that is not open stays as it is.
pub fn set_close_on_exec(fd: i32, is: bool) {
    let _ = numbers(fd, libc::F_SETFD, if is { libc::FD_CLOEXEC as usize } else { 0 });
}

/// Another number for what `fd` is, the lowest that is free from `least` on (`F_DUPFD`).
///
/// # Errors
/// Those of fcntl(2): `EMFILE` and `EINVAL` where there is none.
pub fn duplicate(fd: i32, least: usize, close_on_exec: bool) -> Result<i32, Errno> {
    numbers(fd, if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD }, least)
}

/// Whether `fd` is a pipe.
#[must_use]
pub fn is_pipe(fd: i32) -> bool {
    numbers(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Whether `fd` is a file in memory (tmpfs, memfd_create(2), huge pages). Takes no lock, and asks no file system
/// (`F_GET_SEALS`).
#[must_use]
pub fn is_memory_file(fd: i32) -> bool {
    numbers(fd, libc::F_GET_SEALS, 0).is_ok()
}

/// Nobody is signalled for `fd` any more (`F_SETOWN`).
pub fn disown(fd: i32) {
    let _ = numbers(fd, libc::F_SETOWN, 0);
}

//! Descriptors: duplicates, flags, ioctls, pipes.

use super::{Ret, call};

pub fn close(fd: i32) -> Ret {
    // SAFETY: an integer; the tests own the descriptors they close.
    call(|| i64::from(unsafe { libc::close(fd) }))
}

pub fn dup(fd: i32) -> Ret {
    // SAFETY: integers only, here and in the next three.
    call(|| i64::from(unsafe { libc::dup(fd) }))
}

pub fn dup2(fd: i32, to: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::dup2(fd, to) }))
}

pub fn dup3(fd: i32, to: i32, flags: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::dup3(fd, to, flags) }))
}

pub fn fcntl(fd: i32, command: i32, argument: i32) -> Ret {
    // SAFETY: only commands that take an integer are used.
    call(|| i64::from(unsafe { libc::fcntl(fd, command, argument) }))
}

/// An `ioctl` on an int: the value goes in and comes back.
pub fn ioctl(fd: i32, request: u64, value: &mut i32) -> Ret {
    let pointer: *mut i32 = value;
    // SAFETY: only requests that read or write one int are used.
    call(|| i64::from(unsafe { libc::ioctl(fd, request, pointer) }))
}

pub fn pipe2(flags: i32) -> (Ret, [i32; 2]) {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    let ret = call(|| i64::from(unsafe { libc::pipe2(fds.as_mut_ptr(), flags) }));
    (ret, fds)
}

pub fn close_range(first: u32, last: u32) -> Ret {
    // SAFETY: integers only; the tests close what is theirs.
    call(|| i64::from(unsafe { libc::close_range(first, last, 0) }))
}

/// `S_IFMT` part of `fstat`.
pub fn fstat_kind(fd: i32) -> (Ret, u32) {
    // SAFETY: stat is plain data for which zeroes are a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing.
    let ret = call(|| i64::from(unsafe { libc::fstat(fd, &raw mut stat) }));
    (ret, stat.st_mode & libc::S_IFMT)
}

pub fn lseek(fd: i32, offset: i64, whence: i32) -> Ret {
    // SAFETY: integers only.
    call(|| unsafe { libc::lseek(fd, offset, whence) })
}

pub fn set_nonblocking(fd: i32, on: bool) -> Ret {
    let flags = fcntl(fd, libc::F_GETFL, 0).value as i32;
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, wanted)
}

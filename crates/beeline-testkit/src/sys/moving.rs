//! Calls that move bytes between descriptors.

use super::{Ret, call};

fn place<T>(value: Option<&mut T>) -> *mut T {
    value.map_or(std::ptr::null_mut(), |value| value)
}

pub fn sendfile(to: i32, from: i32, offset: Option<&mut i64>, count: usize) -> Ret {
    let offset = place(offset);
    // SAFETY: the offset is NULL or valid.
    call(|| unsafe { libc::sendfile(to, from, offset, count) } as i64)
}

pub fn splice(
    from: i32,
    from_offset: Option<&mut i64>,
    to: i32,
    to_offset: Option<&mut i64>,
    count: usize,
    flags: u32,
) -> Ret {
    let (from_offset, to_offset) = (place(from_offset), place(to_offset));
    // SAFETY: the offsets are NULL or valid.
    call(|| unsafe { libc::splice(from, from_offset, to, to_offset, count, flags) } as i64)
}

pub fn tee(from: i32, to: i32, count: usize, flags: u32) -> Ret {
    // SAFETY: integers only.
    call(|| unsafe { libc::tee(from, to, count, flags) } as i64)
}

pub fn copy_file_range(from: i32, to: i32, count: usize) -> Ret {
    let none = std::ptr::null_mut();
    // SAFETY: the offsets are NULL.
    call(|| unsafe { libc::copy_file_range(from, none, to, none, count, 0) } as i64)
}

pub fn vmsplice(to: i32, data: &[u8]) -> Ret {
    let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: one vector that describes live data, which the call only reads.
    call(|| unsafe { libc::vmsplice(to, &raw const part, 1, libc::SPLICE_F_NONBLOCK) } as i64)
}

/// `syscall(2)` with up to six numbers or addresses.
///
/// # Safety
/// As for the system call.
pub unsafe fn syscall(number: i64, arguments: [usize; 6]) -> Ret {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: forwarded.
    call(|| unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

/// A file without a name that holds `data`, at its beginning.
#[must_use]
pub fn file_with(data: &[u8]) -> i32 {
    // SAFETY: the name is a string; the rest are numbers and live data.
    unsafe {
        let fd = libc::memfd_create(c"semantics".as_ptr(), libc::MFD_CLOEXEC);
        libc::pwrite(fd, data.as_ptr().cast(), data.len(), 0);
        fd
    }
}

//! What calls that send and calls that receive have in common.

use crate::app_memory::bogus;
use crate::desc::{Desc, Kind};
use crate::{Outcome, table};

/// The most that one call moves, as in the kernel (`MAX_RW_COUNT`, read(2)).
pub(super) const TRANSFER_MAX: usize = 0x7FFF_F000;

/// Checks an iovec array as the kernel does: `EINVAL` for a count beyond `IOV_MAX` or lengths beyond `SSIZE_MAX`,
/// `EFAULT` for addresses that cannot be an app's.
///
/// # Safety
/// `parts` must point to `count` iovecs unless it is nonsense.
pub(super) unsafe fn check_iovecs<'a>(
    parts: *const libc::iovec,
    count: usize,
) -> Result<(&'a [libc::iovec], usize), Outcome> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(Outcome::fail(libc::EINVAL));
    }
    if count == 0 {
        return Ok((&[], 0));
    }
    if bogus(parts as usize, 1) {
        return Err(Outcome::fail(libc::EFAULT));
    }
    // SAFETY: the caller guarantees it.
    let parts = unsafe { core::slice::from_raw_parts(parts, count) };
    let mut total = 0usize;
    for part in parts {
        if part.iov_len > isize::MAX as usize {
            return Err(Outcome::fail(libc::EINVAL));
        }
        total = total.saturating_add(part.iov_len).min(TRANSFER_MAX);
        if bogus(part.iov_base as usize, part.iov_len) {
            return Err(Outcome::fail(libc::EFAULT));
        }
    }
    Ok((parts, total))
}

/// # Safety
/// `message` must be valid unless it is nonsense.
pub(super) unsafe fn sane<'a, T>(message: *const T) -> Option<&'a T> {
    if bogus(message as usize, 1) {
        return None;
    }
    // SAFETY: the caller guarantees it.
    unsafe { message.as_ref() }
}

#[cold]
pub(super) fn not_a_lane(desc: &Desc) -> Outcome {
    if desc.kind() == Kind::Orphan { Outcome::Fail(crate::orphan::orphan_used(desc)) } else { Outcome::Kernel }
}

/// The fd no longer leads to the lane for which the call began, of which `done` bytes were moved: started over on TCP,
/// or closed by another thread. Then the number may be that of anything, which this call has nothing to do with.
#[cold]
pub(super) fn left(fd: i32, desc: &'static Desc, done: usize) -> Outcome {
    match done {
        0 if table::leads_to(fd, desc) => Outcome::Kernel,
        0 => Outcome::fail(libc::EBADF),
        _ => Outcome::Done(done as isize),
    }
}

//! What calls that send and calls that receive have in common.

use crate::app_memory::{bogus, is_beyond};
use crate::desc::{Desc, Kind};
use crate::{Outcome, table};

/// The most that one call moves, as in the kernel (`MAX_RW_COUNT`, read(2)).
pub(super) const TRANSFER_MAX: usize = 0x7FFF_F000;

/// Checks an iovec array as the kernel does before anything else: `EINVAL` for a count beyond `IOV_MAX` or lengths
/// beyond `SSIZE_MAX`, `EFAULT` for addresses that cannot be an app's.
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
        if is_beyond(part.iov_base as usize, part.iov_len) {
            return Err(Outcome::fail(libc::EFAULT));
        }
    }
    Ok((parts, total))
}

/// The first of the parts at which nothing can be. The kernel finds that when it comes to it.
#[inline]
pub(super) fn first_bogus(parts: &[libc::iovec], is_bogus: impl Fn(usize, usize) -> bool) -> Option<usize> {
    parts.iter().position(|part| is_bogus(part.iov_base as usize, part.iov_len))
}

/// The lane that `fd` leads to, and the checked iovecs of a call on it.
///
/// # Safety
/// As for [`check_iovecs`].
pub(super) unsafe fn lane_and_iovecs<'a>(
    fd: i32,
    parts: *const libc::iovec,
    count: usize,
) -> Result<(&'static Desc, &'a [libc::iovec], usize), Outcome> {
    let desc = table::get(fd).ok_or(Outcome::Kernel)?;
    if !desc.is_lane() {
        return Err(not_a_lane(desc));
    }
    // SAFETY: the caller guarantees it; nonsense is refused.
    let (parts, total) = unsafe { check_iovecs(parts, count) }?;
    Ok((desc, parts, total))
}

/// Whether readv(2) or writev(2) is to move no bytes over a lane: nothing is asked of the connection then.
///
/// # Safety
/// As for [`check_iovecs`].
pub(super) unsafe fn moves_nothing(fd: i32, parts: *const libc::iovec, count: i32) -> bool {
    // SAFETY: the caller guarantees it; nonsense is refused.
    table::get(fd).is_some_and(Desc::is_lane) && matches!(unsafe { check_iovecs(parts, count as usize) }, Ok((_, 0)))
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

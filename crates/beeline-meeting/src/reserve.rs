//! A number in reserve: whoever has taken a hello must be able to serve the client.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use beeline_shm::{Fd, sys};

use super::pool;
use crate::fd_cell::FdCell;
use crate::{hidden, kernel};

/// A descriptor kept for the moment in which a lane's memfd arrives and all others are in use.
static RESERVE: FdCell = FdCell::empty();

/// New descriptors get the lowest free number, so below this one there is room.
static ROOMY_BELOW: AtomicI32 = AtomicI32::new(0);

/// Whether a client came with a number above it.
static IS_SCARCE: AtomicBool = AtomicBool::new(false);

/// When fewer numbers than this are left below the limit, descriptors count as scarce.
const SCARCE: u64 = 256;

/// Whether numbers were plenty when the last descriptor was given this one.
#[must_use]
pub fn is_roomy(number: i32) -> bool {
    // As many as a door's queue has places count as plenty, and as many more: those may come before the next look.
    number < ROOMY_BELOW.load(Relaxed).saturating_sub(2 * SCARCE as i32)
}

/// How many clients may wait at a door when the last one was accepted as `number`; `None` while numbers are plenty.
pub fn places_left(number: i32) -> Option<i32> {
    if is_roomy(number) {
        pool::FREED.store(0, Relaxed);
        return None;
    }
    // What was given up lies below numbers in use, so `number` says nothing then.
    let freed = pool::FREED.load(Relaxed);
    if freed != 0 {
        let freed = freed.saturating_sub(1).max(1);
        pool::FREED.store(freed, Relaxed);
        // The program takes one for each client, and each client may take as many again for its lane and side.
        return Some((freed / 4).cast_signed());
    }
    let limit = i32::try_from(sys::limit(libc::RLIMIT_NOFILE)).unwrap_or(i32::MAX);
    let hidden = hidden::hidden_count().cast_signed();
    // A part of them only: the program may open something else meanwhile.
    Some(limit.saturating_sub(number).saturating_sub(hidden).max(0) / 2)
}

/// The limit of descriptors changes to `limit`: nothing that was found out about it holds any more. A reserve beyond it
/// would be none, and is moved. Returns whether anything that is hidden lies beyond it.
pub fn change_descriptor_limit(limit: u64) -> bool {
    ROOMY_BELOW.store(0, Relaxed);
    kernel::forget_descriptor_limit();
    let beyond = hidden::next_hidden(u32::try_from(limit).unwrap_or(u32::MAX), u32::MAX).is_some();
    if beyond && RESERVE.get().is_some_and(|reserve| reserve.cast_unsigned() as u64 >= limit) {
        let moved = RESERVE.take().and_then(|reserve| hidden::move_below(reserve, limit as usize));
        RESERVE.set(moved);
    }
    beyond
}

/// Whether there is a number for one descriptor more.
fn is_room(fd: i32) -> bool {
    kernel::duplicate(fd, 0, true).map(Fd::own).is_ok()
}

/// Whether the program, which is about to accept on `fd`, has no number left but those that are hidden. As long as
/// numbers have never been scarce nobody is asked.
pub fn is_full(fd: i32) -> bool {
    IS_SCARCE.load(Relaxed) && !is_room(fd) && {
        pool::release_descriptors();
        !is_room(fd)
    }
}

/// Gives up the reserve. Returns whether there was one.
pub fn release_reserve() -> bool {
    RESERVE.take().map(hidden::close_hidden).is_some()
}

/// Keeps a descriptor in reserve, now that clients may come. A socket of no use is as good as any.
pub fn keep_reserve() {
    if RESERVE.get().is_none()
        && let Ok(reserve) = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
    {
        RESERVE.set(Some(hidden::hide(reserve as i32)));
    }
}

/// Sees to it that a memfd can arrive: a hello whose descriptor finds no room is lost. Returns whether the
/// reserve was given up for it.
pub(super) fn make_room(anchor: i32) -> bool {
    if anchor < ROOMY_BELOW.load(Relaxed) {
        return false;
    }
    let roomy = sys::limit(libc::RLIMIT_NOFILE).saturating_sub(SCARCE).min(1 << 20) as i32;
    ROOMY_BELOW.store(roomy, Relaxed);
    if anchor < roomy {
        return false;
    }
    IS_SCARCE.store(true, Relaxed);
    if is_room(anchor) || pool::release_descriptors() && is_room(anchor) {
        return false;
    }
    release_reserve()
}

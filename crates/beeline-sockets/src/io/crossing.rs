//! Receiving while a connection moves from TCP to its lane: rule 12 of `docs/design/0009-moving.md`.
//!
//! 1. What comes over TCP, up to the peer's seam, comes first. It is read from the holder, under the rx lock, and never waited for there.
//! 2. The crossing is over when the seam is known and all before it was read; or when TCP says that nothing more will come.
//! 3. Whoever sleeps does so on the holder as well, and on the holder alone once the seam is known: the ring may have something by then, which is not
//!    to be read yet.

use beeline_shm::sys::call;
use core::sync::atomic::Ordering::Relaxed;

use crate::desc::{Desc, RxGuard};
use crate::side::{SideState, reset, state};
use crate::{Errno, kernel, stream};
use beeline_meeting::pool::PooledLane;

/// Whether bytes to this end still come over TCP.
#[inline]
pub(crate) fn crosses(side: &SideState) -> bool {
    side.is(state::CROSSING)
}

/// The TCP socket below a lane that crosses.
pub(crate) fn holder(desc: &Desc) -> Option<i32> {
    if crosses(desc.side()) { desc.pooled().and_then(PooledLane::holder) } else { None }
}

/// What a sleep is to be for beside the anchor, and whether the anchor has something to tell: not while there is more to come over TCP for
/// certain. Nobody may have read since that was all.
pub(crate) fn below(desc: &Desc) -> Option<(i32, bool)> {
    let holder = holder(desc)?;
    let seam = desc.lane().seam(desc.end().peer());
    Some((holder, seam.is_none_or(|seam| stream::is_read_up_to(holder, seam))))
}

/// What is unread on TCP.
pub(crate) fn unread(desc: &Desc) -> u32 {
    holder(desc).map_or(0, stream::unread)
}

/// What poll(2) says of what comes over TCP. `None` if the ring is to be asked.
pub(super) fn poll_mask(desc: &Desc) -> Option<i16> {
    let holder = holder(desc)?;
    let asked = libc::POLLIN | libc::POLLRDHUP;
    let found = kernel::poll_now(holder, asked) & (asked | libc::POLLERR | libc::POLLHUP);
    let seam = desc.lane().seam(desc.end().peer());
    if seam.is_some_and(|seam| stream::is_read_up_to(holder, seam)) {
        return None;
    }
    // An end, or an error, is something to read; what it is, reading tells.
    Some(if found == 0 { 0 } else { libc::POLLIN | libc::POLLRDNORM })
}

/// Moves what has come over TCP to where the app wants it, `length` bytes at most, with flags of recv(2). `None` once the ring is to be read.
///
/// # Safety
/// The address must be writable for that many bytes, unless the flags say that nothing is to be written.
pub(super) unsafe fn receive(guard: &RxGuard, address: *mut u8, length: usize, flags: i32) -> Option<usize> {
    let (desc, side) = (guard.desc, guard.side);
    let Some(holder) = holder(desc) else {
        side.cross(false);
        return None;
    };
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // In this order: behind a seam that is known now nothing comes.
        let seam = guard.lane.seam(desc.end().peer());
        let args = [holder as usize, address as usize, length, flags as usize, 0, 0];
        // SAFETY: forwarded from the caller.
        let found = unsafe { call(libc::SYS_recvfrom, args) };
        match found {
            Ok(count @ 1..) => return Some(count),
            Err(Errno(libc::EINTR)) => continue,
            _ => {}
        }
        if seam.is_some_and(|seam| stream::is_read_up_to(holder, seam)) {
            side.cross(false);
            return None;
        }
        if seam.is_none() && guard.lane.seam(desc.end().peer()).is_some() {
            continue;
        }
        match found {
            Err(Errno(libc::EAGAIN)) => return Some(0),
            // The peer has ended on TCP, before or while it moved.
            Ok(_) => {
                side.mark(state::PEER_FIN);
                side.cross(false);
            }
            Err(Errno(errno)) => {
                reset(side, errno);
                side.cross(false);
            }
        }
        return None;
    }
}

/// As [`receive`], into memory of ours.
pub(super) fn receive_into(guard: &RxGuard, bytes: &mut [u8], flags: i32) -> Option<usize> {
    // SAFETY: a live slice.
    unsafe { receive(guard, bytes.as_mut_ptr(), bytes.len(), flags) }
}

/// Waits for a moment until nothing more comes over TCP, for somebody who can read from the ring alone. False if something does, or may. No lock
/// may be held.
#[must_use]
pub(crate) fn is_over_soon(desc: &'static Desc) -> bool {
    /// Milliseconds.
    const PATIENCE: u32 = 10;
    for _ in 0..PATIENCE {
        let ended = desc.lock_rx().is_none_or(|guard| {
            let peer = desc.end().peer();
            let over = holder(desc)
                .is_none_or(|holder| guard.lane.seam(peer).is_some_and(|seam| stream::is_read_up_to(holder, seam)));
            if over && crosses(guard.side) {
                guard.side.cross(false);
            }
            over
        });
        if ended {
            return true;
        }
        kernel::sleep_ms();
    }
    false
}

/// The kernel has said something of holder or anchor: to who waits for edges it is one.
pub(crate) fn note_edge(desc: &Desc) {
    if crosses(desc.side()) {
        desc.side().changes.fetch_add(1, Relaxed);
    }
}

//! Listeners that were not made under our eyes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{allow_lanes, may_accelerate};
use crate::{meet, table};

/// Fds of low number that were looked at once: one bit each.
static SEEN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Whether `fd`, about to be polled, turns out to be a listener inherited from another program. Each number is
/// asked about once; listeners that come later, by `SCM_RIGHTS`, are met at their first `accept`.
pub(crate) fn adopt_listener(fd: i32) -> bool {
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| SEEN.get(fd / 64)) else { return false };
    let bit = 1u64 << (fd & 63);
    if word.load(Relaxed) & bit != 0 || word.fetch_or(bit, Relaxed) & bit != 0 {
        return false;
    }
    is_new_listener(fd) && allow_lanes() && meet::adopt_now(fd).is_some()
}

/// Meets a listener that has just been received from another process.
pub(crate) fn meet_listener(fd: i32) {
    if is_new_listener(fd) && allow_lanes() {
        let _ = meet::adopt_now(fd);
    }
}

/// Whether `fd` is a listener that we do not know and may serve. A program that is under a filter is never asked for
/// it.
fn is_new_listener(fd: i32) -> bool {
    table::get(fd).is_none() && may_accelerate() && meet::listens(fd)
}

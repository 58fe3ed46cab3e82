//! How many descriptors the process may have.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// `RLIMIT_NOFILE`. Asked each time: apps change it.
pub(crate) fn descriptor_limit() -> usize {
    usize::try_from(beeline_shm::sys::limit(libc::RLIMIT_NOFILE)).unwrap_or(usize::MAX)
}

/// The limit that [`recent_descriptor_limit`] tells, and how often more.
static RECENT_LIMIT: AtomicUsize = AtomicUsize::new(0);
static RECENT_LIMIT_USES: AtomicU32 = AtomicU32::new(0);

/// `RLIMIT_NOFILE` as it was a moment ago, for who does without a number that is refused: asked every 64th time, and
/// anew when this program has changed it. Another process that lowers it is noticed late.
pub fn recent_descriptor_limit() -> usize {
    const USES: u32 = 64;
    let take_one = |left: u32| left.checked_sub(1);
    if RECENT_LIMIT_USES.fetch_update(Relaxed, Relaxed, take_one).is_ok() {
        return RECENT_LIMIT.load(Relaxed);
    }
    let limit = descriptor_limit();
    RECENT_LIMIT.store(limit, Relaxed);
    RECENT_LIMIT_USES.store(USES, Relaxed);
    limit
}

/// So many entries poll(2) took when it was asked last; 0 if the limit has changed since.
static ENTRIES_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Whether poll(2) refuses so many entries. Another process that lowers the limit is noticed late, and so is another
/// thread that does in this very moment.
#[must_use]
pub fn refuses_entries(count: usize) -> bool {
    if count <= ENTRIES_TAKEN.load(Relaxed) {
        return false;
    }
    let limit = descriptor_limit();
    ENTRIES_TAKEN.store(limit, Relaxed);
    count > limit
}

/// The program is about to change the limit.
pub fn forget_descriptor_limit() {
    ENTRIES_TAKEN.store(0, Relaxed);
    RECENT_LIMIT_USES.store(0, Relaxed);
}

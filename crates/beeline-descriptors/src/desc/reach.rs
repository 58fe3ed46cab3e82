//! How far the rings of the process reach, as [`crate::reclaim`] counts.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Desc;

/// Granules that the rings of all descriptions reach.
pub(crate) static SUM: AtomicU64 = AtomicU64::new(0);

/// Forgets a description's share: its lane is closed or given away.
pub(crate) fn forget(desc: &Desc) {
    let granules = desc.granules.swap(0, Relaxed);
    SUM.fetch_sub(u64::from(granules), Relaxed);
}

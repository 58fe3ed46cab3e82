//! `SO_LINGER`, as a side and a draft have it.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How long a close waits, in seconds; off when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct LingerCell(AtomicU32);

impl LingerCell {
    /// The seconds; none if it is off.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        self.0.load(Relaxed).checked_sub(1)
    }

    pub fn set(&self, seconds: Option<u32>) {
        self.0.store(seconds.map_or(0, |seconds| seconds.saturating_add(1)), Relaxed);
    }

    /// Whether a close resets the connection: it waits for no time at all.
    #[must_use]
    pub fn aborts(&self) -> bool {
        self.get() == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seconds_are_not_off() {
        let cell = LingerCell::default();
        assert_eq!((cell.get(), cell.aborts()), (None, false));
        for (seconds, aborts) in [(0, true), (1, false), (u32::MAX - 1, false)] {
            cell.set(Some(seconds));
            assert_eq!((cell.get(), cell.aborts()), (Some(seconds), aborts));
        }
        cell.set(None);
        assert_eq!(cell.get(), None);
    }
}

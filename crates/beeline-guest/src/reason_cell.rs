//! Reasons that static data hold.

use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

use beeline_stats::Reason;

/// A reason in an atomic; none when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct ReasonCell(AtomicU16);

impl ReasonCell {
    /// None is held.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU16::new(0))
    }

    /// Whether one is held.
    #[inline]
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Holds this one from now on, unless one is held already.
    pub fn set_first(&self, reason: Reason) {
        let _ = self.0.compare_exchange(0, encode(Some(reason)), Relaxed, Relaxed);
    }

    /// The reason.
    #[must_use]
    pub fn get(&self) -> Option<Reason> {
        decode(self.0.load(Relaxed))
    }

    /// Holds this one, or none, from now on.
    pub fn set(&self, reason: Option<Reason>) {
        self.0.store(encode(reason), Relaxed);
    }

    /// Holds this one, or none, from now on; returns what was held.
    pub fn replace(&self, reason: Option<Reason>) -> Option<Reason> {
        decode(self.0.swap(encode(reason), Relaxed))
    }
}

/// The number of a reason plus one; 0 for none.
#[must_use]
pub const fn encode(reason: Option<Reason>) -> u16 {
    match reason {
        Some(reason) => reason as u16 + 1,
        None => 0,
    }
}

/// The reason in a word that [`encode`] has made; none in any other.
#[must_use]
pub fn decode(word: u16) -> Option<Reason> {
    Reason::from_number(word.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_held_and_none() {
        let cell = ReasonCell::default();
        assert_eq!(cell.get(), None);
        for &reason in Reason::ALL {
            assert!(!cell.is_some());
            cell.set_first(reason);
            cell.set_first(Reason::Disabled);
            assert!(cell.is_some());
            assert_eq!(cell.replace(None), Some(reason));
        }
        assert_eq!(decode(u16::MAX), None);
    }
}

//! Something that is tried as long as it succeeds, and now and then when it does not.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// See the module; what has failed a few times is tried once in `AGAIN` occasions. Valid when zeroed: it is tried.
#[derive(Default)]
#[repr(C)]
pub struct Trial<const AGAIN: u32> {
    /// Failures in a row, and occasions since that were let go.
    vain: AtomicU32,
}

impl<const AGAIN: u32> Trial<AGAIN> {
    /// Failures in a row that are a few.
    pub const FAILURES: u32 = 4;

    /// One that is tried.
    #[must_use]
    pub const fn new() -> Self {
        Self { vain: AtomicU32::new(0) }
    }

    /// Nothing is known any more.
    pub fn begin(&self) {
        self.vain.store(0, Relaxed);
    }

    /// Whether to try it on this occasion.
    pub fn try_now(&self) -> bool {
        let vain = self.vain.load(Relaxed);
        if vain >= Self::FAILURES {
            self.vain.store(if vain < AGAIN { vain + 1 } else { Self::FAILURES - 1 }, Relaxed);
        }
        vain < Self::FAILURES
    }

    /// Whether it is tried only now and then.
    pub fn has_failed(&self) -> bool {
        self.vain.load(Relaxed) >= Self::FAILURES
    }

    /// It was tried, and has succeeded or not.
    pub fn note(&self, succeeded: bool) {
        match succeeded {
            true if self.vain.load(Relaxed) == 0 => {}
            true => self.vain.store(0, Relaxed),
            false => self.vain.store(self.vain.load(Relaxed) + 1, Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_now_and_then_until_it_succeeds() {
        let trial = Trial::<32>::default();
        let tries = |occasions: u32, succeeds: bool| {
            let tried = (0..occasions).filter(|_| trial.try_now()).inspect(|_| trial.note(succeeds));
            tried.count() as u32
        };
        assert_eq!(tries(10, true), 10);
        assert_eq!(tries(Trial::<32>::FAILURES, false), Trial::<32>::FAILURES);
        assert!(trial.has_failed());
        let few = tries(320, false);
        assert!((9..=11).contains(&few), "{few}");
        assert!(tries(64, true) > 32 && !trial.has_failed());
    }
}

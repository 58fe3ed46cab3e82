//! Another way to send a long message, which takes the receiver's part: when it is gone.
//!
//! 1. It is gone at once where an option says so, or only where it is faster ([`crate::trials`]): time is taken of
//!    whole sends. Another connection begins with what the last one of this process found ([`Lessons`]).
//! 2. A receiver that does not take part has something else to do. Each time the sender has waited for it in vain, it
//!    goes the usual way for twice as many messages as before.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::trials::{Found, Terms, Trials};

/// Messages that go the usual way after the first wait in vain, and after many.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// How both ways are tried in a ring of so many bytes.
const fn terms(ring_bytes: u32) -> Terms {
    Terms::of_ring(ring_bytes, 8, 8)
}

/// What the connection that tried last has found: windows before the next trial, and whether the way was faster.
#[derive(Debug)]
pub(crate) struct Lessons {
    pause: AtomicU32,
    it_pays: AtomicBool,
}

impl Lessons {
    /// Nothing was tried yet.
    pub const fn none() -> Self {
        Self { pause: AtomicU32::new(0), it_pays: AtomicBool::new(false) }
    }
}

/// What a sender knows of such a way. Valid when zeroed.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Messages that still go the usual way.
    left: AtomicU32,
    /// How many it were after the last wait in vain.
    pause: AtomicU32,
    trials: Trials,
}

impl Attempts {
    /// Begins anew, for another connection.
    pub fn reset(&self, lessons: &Lessons) {
        self.left.store(0, Relaxed);
        self.pause.store(0, Relaxed);
        let pause = lessons.pause.load(Relaxed).max(terms(0).pause_min);
        self.trials.reset(Found { second: lessons.it_pays.load(Relaxed), pause });
    }

    /// Whether the message that begins goes this way; where that `is_timed`, by what is known of both.
    pub fn takes_message(&self, is_timed: bool) -> bool {
        (!is_timed || self.trials.goes_second()) && self.take_due()
    }

    fn take_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// The receiver was waited for, and has taken part or not.
    pub fn waited(&self, has_taken_part: bool) {
        let pause = match has_taken_part {
            true => 0,
            false => self.pause.load(Relaxed).saturating_mul(2).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        self.pause.store(pause, Relaxed);
        self.left.store(pause, Relaxed);
    }

    /// A message that was to be timed took so long.
    pub fn sent(&self, lessons: &Lessons, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.trials.took(terms(ring_bytes), bytes, ticks);
        let found = self.trials.found();
        if found.pause != lessons.pause.load(Relaxed) || found.second != lessons.it_pays.load(Relaxed) {
            lessons.pause.store(found.pause, Relaxed);
            lessons.it_pays.store(found.second, Relaxed);
        }
    }

    /// What is known of both ways.
    #[cfg(test)]
    pub fn found(&self) -> Found {
        self.trials.found()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_become_rare_and_one_that_is_not_ends_that() {
        let attempts = Attempts::default();
        attempts.reset(&Lessons::none());
        let mut waits = 0;
        for _ in 0..100_000 {
            if attempts.takes_message(false) {
                waits += 1;
                attempts.waited(false);
            }
        }
        assert!((8..=16).contains(&waits), "{waits}");
        while !attempts.takes_message(false) {}
        attempts.waited(true);
        assert!((0..100).all(|_| attempts.takes_message(false)));
    }
}

//! Read pacing: a blocking reader leaves a stream alone for a moment, the *pause*.
//!
//! A stream of small messages is better read in batches: a reader that looks at once takes the cache lines away from
//! the writer for each message (measured with 64 bytes: 5 M/s against 14 M/s on an EPYC). On a Xeon it gave 25 M/s
//! against 21 M/s, in other hours the same, when not only the wait for data had pauses.
//!
//! 1. A stream is recognised in a wait: data came at the first look. From then on each receive begins with a pause.
//! 2. It is longer while it gives small batches, and shorter when it ends before anything came.
//! 3. There is none after a receive that took much or filled its buffer: more is there already.
//! 4. There is none when the program did something else since its last receive: that was a pause of its own.
//! 5. There is none in a conversation: an end that has sent since waits for an answer, for which a pause would only be
//!    late.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::wait::ticks;

/// Longest pause, in `pause` instructions (about 50 ns each on the development machines).
const PAUSES_MAX: u32 = 128;
/// A batch that is worth what it costs, in bytes.
const BATCH_BYTES: usize = 4096;
/// Time between two receives in which a program cannot have done much, in [`ticks`]: a microsecond or two.
const GAP_TICKS: u64 = 4000;
/// Looks after a pause within which data has come early enough for the pause to be right.
const LOOKS_KEPT: u32 = 4;

/// What is known of a connection's pace. Used by whoever has the lock for receiving.
#[derive(Default)]
pub struct ReadPacing {
    /// How long a pause is, in `pause` instructions; 0 outside of a stream.
    pauses: AtomicU32,
    /// What this end had sent, modulo 2^32, when that was set.
    sent: AtomicU32,
    /// Whether the last receive took little although there was room.
    took_little: AtomicBool,
    /// When it ended.
    ended_ticks: AtomicU64,
}

impl ReadPacing {
    /// Forgets a connection.
    pub fn reset(&self) {
        self.pauses.store(0, Relaxed);
    }

    /// Before the first look of a receive of an end that has `sent` bytes.
    #[inline(always)]
    pub fn keep(&self, sent: u32) {
        let pauses = self.pauses.load(Relaxed);
        if pauses == 0 || self.sent.load(Relaxed) != sent || !self.took_little.load(Relaxed) {
            return;
        }
        if ticks().wrapping_sub(self.ended_ticks.load(Relaxed)) < GAP_TICKS {
            for _ in 0..pauses {
                spin_loop();
            }
        }
    }

    /// After a receive of `bytes` into `room`.
    #[inline(always)]
    pub fn took(&self, bytes: usize, room: usize) {
        let pauses = self.pauses.load(Relaxed);
        if pauses == 0 || bytes == 0 {
            return;
        }
        let little = bytes < BATCH_BYTES && bytes < room;
        self.took_little.store(little, Relaxed);
        if little {
            self.pauses.store((pauses * 2).min(PAUSES_MAX), Relaxed);
            self.ended_ticks.store(ticks(), Relaxed);
        }
    }

    /// A wait of an end that has `sent` bytes saw data at the look with this number, from 0.
    #[inline]
    pub fn ended_at(&self, look: u32, sent: u32) {
        let before = if self.sent.load(Relaxed) == sent { self.pauses.load(Relaxed) } else { 0 };
        self.sent.store(sent, Relaxed);
        let pauses = match look {
            0 => before.max(1),
            1..=LOOKS_KEPT => before,
            _ => before / 2,
        };
        self.pauses.store(pauses, Relaxed);
    }
}

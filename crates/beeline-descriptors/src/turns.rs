//! Taking turns: how much a sender puts into the ring before a receiver on its own CPU is to read.
//!
//! Both cannot run at one time. A sender that fills a ring of 4 MiB before it sleeps has pushed the first of it out of the
//! cache when the receiver begins: measured with 2 MiB of second-level cache, messages of 64 KiB to 1 MiB go twice as fast
//! in turns of 512 KiB (17 GB/s against 8). The protocol is that of the lane (`beeline-lane`, *Turns*); here is what a
//! connection knows of it.
//!
//! 1. Only blocking sends of long messages take turns, and only while the peer shows this very CPU.
//! 2. A turn is a quarter of the second-level cache: what is sent, the ring and what is received lie there together.
//! 3. A receiver that does not read when it is its turn has something else to do. Each time the sender has waited in vain it
//!    does without turns for twice as many messages as before.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bounds of a turn. Below, going to sleep and waking up costs more than the caches give; above, there is nothing to win.
const TURN_MIN: u32 = 128 * 1024;
const TURN_MAX: u32 = 1024 * 1024;
/// Where the machine does not tell the size of its caches.
const TURN_UNKNOWN: u32 = 256 * 1024;
/// Messages without turns after the first wait in vain, and after many.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// What a sender knows of its receiver's turns. Valid when zeroed.
#[derive(Debug, Default)]
pub struct Turns {
    /// Messages that still go without.
    left: AtomicU32,
    /// How many it were after the last wait in vain.
    pause: AtomicU32,
}

impl Turns {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(0, Relaxed);
    }

    /// Whether the message that begins may take turns.
    pub fn are_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// The receiver was given a turn, and has read or not.
    pub fn given(&self, has_read: bool) {
        let pause = match has_read {
            true => 0,
            false => self.pause.load(Relaxed).saturating_mul(2).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        self.pause.store(pause, Relaxed);
        self.left.store(pause, Relaxed);
    }
}

/// Bytes of a turn in a ring of `ring_bytes`; 0 if that is hardly more than a turn.
#[must_use]
pub fn turn_bytes(ring_bytes: u32) -> u32 {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let mut turn = TURN.load(Relaxed);
    if turn == 0 {
        // SAFETY: no preconditions; libc has looked at the processor when it was loaded.
        turn = of_cache(unsafe { libc::sysconf(libc::_SC_LEVEL2_CACHE_SIZE) });
        TURN.store(turn, Relaxed);
    }
    if turn <= ring_bytes / 2 { turn } else { 0 }
}

fn of_cache(cache_bytes: i64) -> u32 {
    match u32::try_from(cache_bytes / 4) {
        Ok(0) | Err(_) => TURN_UNKNOWN,
        Ok(quarter) => quarter.clamp(TURN_MIN, TURN_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_a_quarter_of_the_cache_within_bounds() {
        let cases = [
            (2 << 20, 512 << 10),
            (256 << 10, 128 << 10),
            (1 << 40, 256 << 10),
            (1 << 30, 1 << 20),
            (0, 256 << 10),
            (-1, 256 << 10),
        ];
        for (cache, turn) in cases {
            assert_eq!(of_cache(cache), turn, "{cache}");
        }
        let turn = turn_bytes(1 << 24);
        assert!((TURN_MIN..=TURN_MAX).contains(&turn));
        assert_eq!((turn_bytes(turn), turn_bytes(turn * 2 - 1), turn_bytes(turn * 2)), (0, 0, turn));
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_turn_that_is_taken_ends_that() {
        let turns = Turns::default();
        turns.reset();
        let mut waits = 0;
        for _ in 0..100_000 {
            if turns.are_due() {
                waits += 1;
                turns.given(false);
            }
        }
        assert!((8..=16).contains(&waits), "{waits}");
        while !turns.are_due() {}
        turns.given(true);
        assert!((0..100).all(|_| turns.are_due()));
    }
}

//! Taking turns: how much a sender puts into the ring before a receiver on its own CPU is to read.
//!
//! Both cannot run at one time. A sender that fills a ring of 4 MiB before it sleeps has pushed the first of it out of
//! its CPU's own cache when the receiver begins. What that costs, and what it costs to change over more often, is for
//! the machine to say: on a Xeon with 2 MiB of second-level cache, messages of 64 KiB to 1 MiB go twice as fast in
//! turns of 512 KiB (17 GB/s against 8); on an EPYC with a large cache behind 1 MiB, turns of 256 KiB take 1.3 times as
//! long. The protocol is that of the lane (`beeline-lane`, *Turns*); here is what a connection knows of it.
//!
//! 1. Only blocking sends of long messages take turns, and only while the peer shows this very CPU.
//! 2. A turn is a quarter of the second-level cache: what is sent, the ring and what is received lie there together.
//!    The option `turn_bytes` sets another length, or none.
//! 3. With `turn_bytes=auto` both ways, in turns and with the whole ring, are tried ([`crate::trials`]): time is taken
//!    of whole sends. One CPU does the work of both ends, so over several rings' length that is the time of both.
//!    Another connection begins with what the last one of this process found.
//! 4. A receiver that does not read when it is its turn has something else to do. Each time the sender has waited in
//!    vain it does without turns for twice as many messages as before.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use beeline_stats::tunables::{Threshold, option};

use crate::trials::{Found, Terms, Trials};

/// Bounds of a turn. Below, going to sleep and waking up costs more than the caches give; above, there is nothing to
/// win.
const TURN_MIN: u32 = 128 * 1024;
const TURN_MAX: u32 = 1024 * 1024;
/// Where the machine does not tell the size of its caches.
const TURN_UNKNOWN: u32 = 256 * 1024;
/// Messages without turns after the first wait in vain, and after many.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// What the connection that tried last has found: windows before the next trial, and whether turns were faster.
static PAUSE: AtomicU32 = AtomicU32::new(0);
static THEY_PAY: AtomicBool = AtomicBool::new(false);

/// How turns are tried in a ring of so many bytes.
const fn terms(ring_bytes: u32) -> Terms {
    Terms::of_ring(ring_bytes, 8, 8)
}

/// How a message is sent to a receiver on this CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Unread bytes after which the receiver is to have its turn; 0 for never.
    pub turn_bytes: u32,
    /// Whether [`Turns::sent`] is to be told how long it takes.
    pub is_timed: bool,
}

impl Way {
    /// The receiver gets no turns, and nobody asks how long that takes.
    pub const WHOLE: Way = Way { turn_bytes: 0, is_timed: false };
}

/// What a sender knows of its receiver's turns. Valid when zeroed.
#[derive(Debug, Default)]
pub struct Turns {
    /// Messages that still go without.
    left: AtomicU32,
    /// How many it were after the last wait in vain.
    pause: AtomicU32,
    trials: Trials,
}

impl Turns {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(0, Relaxed);
        let pause = PAUSE.load(Relaxed).max(terms(0).pause_min);
        self.trials.reset(Found { second: THEY_PAY.load(Relaxed), pause });
    }

    /// How the message that begins is to be sent, on a lane with rings of `ring_bytes`.
    pub fn way(&self, ring_bytes: u32) -> Way {
        let (wanted, is_timed) = match crate::live(option::turn_bytes) {
            Threshold::Off => (0, false),
            Threshold::Bytes(bytes) => (u32::try_from(bytes).unwrap_or(u32::MAX), false),
            Threshold::Auto => (best_turn(), true),
        };
        // In a ring that is hardly longer than a turn there are none.
        if wanted == 0 || wanted > ring_bytes / 2 {
            return Way::WHOLE;
        }
        let takes_turns = (!is_timed || self.trials.goes_second()) && self.take_due();
        Way { turn_bytes: if takes_turns { wanted } else { 0 }, is_timed }
    }

    /// A message that was to be timed took so long.
    pub fn sent(&self, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.trials.took(terms(ring_bytes), bytes, ticks);
        let found = self.trials.found();
        if found.pause != PAUSE.load(Relaxed) || found.second != THEY_PAY.load(Relaxed) {
            PAUSE.store(found.pause, Relaxed);
            THEY_PAY.store(found.second, Relaxed);
        }
    }

    /// Whether the message that begins may take turns.
    fn take_due(&self) -> bool {
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

/// Bytes of a turn that suit this machine's caches.
fn best_turn() -> u32 {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let mut turn = TURN.load(Relaxed);
    if turn == 0 {
        // SAFETY: no preconditions; libc has looked at the processor when it was loaded.
        turn = of_cache(unsafe { libc::sysconf(libc::_SC_LEVEL2_CACHE_SIZE) });
        TURN.store(turn, Relaxed);
    }
    turn
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
        assert!((TURN_MIN..=TURN_MAX).contains(&best_turn()));
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_turn_that_is_taken_ends_that() {
        let turns = Turns::default();
        turns.reset();
        let mut waits = 0;
        for _ in 0..100_000 {
            if turns.take_due() {
                waits += 1;
                turns.given(false);
            }
        }
        assert!((8..=16).contains(&waits), "{waits}");
        while !turns.take_due() {}
        turns.given(true);
        assert!((0..100).all(|_| turns.take_due()));
    }

    const RING: u32 = 1 << 22;

    /// Sends messages of 64 KiB where one of them costs so much; returns whether the last one went in turns.
    fn send(turns: &Turns, megabytes: u32, whole: u64, in_turns: u64) -> bool {
        let mut way = turns.way(RING);
        for _ in 0..megabytes * 16 {
            assert!(way.is_timed);
            turns.sent(RING, 65_536, if way.turn_bytes == 0 { whole } else { in_turns });
            way = turns.way(RING);
        }
        turns.trials.found().second
    }

    #[test]
    fn the_machine_decides_and_the_next_connection_begins_with_that() {
        let turns = Turns::default();
        turns.reset();
        assert!(!send(&turns, 2000, 5_000, 6_500));
        let another = Turns::default();
        another.reset();
        assert_eq!(another.trials.found(), turns.trials.found());
        assert!(another.trials.found().pause > 8);
        assert!(send(&turns, 9000, 8_000, 4_000));
        let another = Turns::default();
        another.reset();
        assert_eq!(another.way(RING), Way { turn_bytes: best_turn(), is_timed: true });
        assert_eq!(another.way(best_turn() * 2 - 1), Way::WHOLE);
        assert!(!send(&another, 9000, 5_000, 6_500));
    }
}

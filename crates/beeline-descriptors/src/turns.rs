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
//! 3. With `turn_bytes=auto` turns and the whole ring are both tried ([`crate::attempts`]). One CPU does the work of
//!    both ends, so over several rings' length the time of whole sends is that of both.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_stats::tunables::{Threshold, option};

use crate::attempts::{Attempts, Lessons};

/// Bounds of a turn. Below, going to sleep and waking up costs more than the caches give; above, there is nothing to
/// win.
const TURN_MIN: u32 = 128 * 1024;
const TURN_MAX: u32 = 1024 * 1024;
/// Where the machine does not tell the size of its caches.
const TURN_UNKNOWN: u32 = 256 * 1024;
static LESSONS: Lessons = Lessons::none();

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
pub struct Turns(Attempts);

impl Turns {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.0.reset(&LESSONS);
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
        let takes_turns = self.0.takes_message(is_timed);
        Way { turn_bytes: if takes_turns { wanted } else { 0 }, is_timed }
    }

    /// A message that was to be timed took so long.
    pub fn sent(&self, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.0.sent(&LESSONS, ring_bytes, bytes, ticks);
    }

    /// The receiver was given a turn, and has read or not.
    pub fn given(&self, has_read: bool) {
        self.0.waited(has_read);
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

    const RING: u32 = 1 << 22;

    /// Sends messages of 64 KiB where one of them costs so much; returns whether the last one went in turns.
    fn send(turns: &Turns, megabytes: u32, whole: u64, in_turns: u64) -> bool {
        let mut way = turns.way(RING);
        for _ in 0..megabytes * 16 {
            assert!(way.is_timed);
            turns.sent(RING, 65_536, if way.turn_bytes == 0 { whole } else { in_turns });
            way = turns.way(RING);
        }
        turns.0.found().second
    }

    #[test]
    fn the_machine_decides_and_the_next_connection_begins_with_that() {
        let turns = Turns::default();
        turns.reset();
        assert!(!send(&turns, 2000, 5_000, 6_500));
        let another = Turns::default();
        another.reset();
        assert_eq!(another.0.found(), turns.0.found());
        assert!(another.0.found().pause > 8);
        assert!(send(&turns, 9000, 8_000, 4_000));
        let another = Turns::default();
        another.reset();
        assert_eq!(another.way(RING), Way { turn_bytes: best_turn(), is_timed: true });
        assert_eq!(another.way(best_turn() * 2 - 1), Way::WHOLE);
        assert!(!send(&another, 9000, 5_000, 6_500));
    }
}

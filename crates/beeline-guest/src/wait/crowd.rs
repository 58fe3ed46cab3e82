//! Crowds: more threads of this process than it has CPUs wait at one time, each for a short while.
//!
//! 1. A wait that goes on for longer than a moment leaves the time and the CPU in a place of its thread. Threads that
//!    share one are counted as one.
//! 2. A thread looks at those of late on the CPUs that it may use itself. Where they are more than these CPUs, whoever
//!    spun would keep another from running, and from what it has to say to somebody: nobody spins. (Twenty threads that
//!    each connect, ask and close, against a server with one thread, on two CPUs: they spun away 37 % of all CPU time.)
//! 3. A thread that sleeps for long is none of a crowd: a pool of idle workers keeps nobody from spinning.
//! 4. A wait that gave way tells nothing about spinning, so budgets stay as they are.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ticks;
use crate::{kernel, thread};

/// Threads that can be told apart. Where there are as many CPUs, nothing is a crowd.
const PLACES: usize = 64;
/// What is of late: a millisecond or so. Each of twenty that take turns at a busy server waits once in that time.
const LATELY_TICKS: u64 = 3_000_000;
/// A time is written again when it is so old: threads that wait often do not take the lines from each other at each
/// wait.
const FRESH_TICKS: u64 = LATELY_TICKS / 8;
/// The bits of a place in which the CPU stands, modulo their number; the time has the others.
const CPU_BITS: u64 = u64::BITS as u64 - 1;

#[unsafe(link_section = ".fork.written")]
static CROWD: Crowd = Crowd { waited: [const { AtomicU64::new(0) }; PLACES] };

/// A wait of this thread goes on.
pub(super) fn note() {
    CROWD.note(thread::tid(), ticks(), kernel::cpu_by_libc);
}

/// The same. Whether it is one of a crowd.
pub(super) fn note_and_ask() -> bool {
    let now = ticks();
    CROWD.note(thread::tid(), now, kernel::cpu_by_libc);
    let (cpus, count) = thread::with(|thread| thread.allowed.get(now));
    CROWD.waiting(now, cpus) > count as usize
}

/// When, and on which CPU, which threads waited last.
struct Crowd {
    waited: [AtomicU64; PLACES],
}

impl Crowd {
    fn note(&self, tid: u32, now: u64, cpu: impl FnOnce() -> u32) {
        if let Some(place) = self.waited.get(tid as usize % PLACES)
            && now.wrapping_sub(place.load(Relaxed)) > FRESH_TICKS
        {
            place.store(now & !CPU_BITS | u64::from(cpu()) & CPU_BITS, Relaxed);
        }
    }

    /// How many threads have waited of late on one of these CPUs.
    fn waiting(&self, now: u64, cpus: u64) -> usize {
        let is_of_late = |place: &&AtomicU64| {
            let waited = place.load(Relaxed);
            // The clocks of two CPUs may differ a little: a time may lie ahead.
            let distance = now.wrapping_sub(waited).cast_signed().unsigned_abs();
            distance < LATELY_TICKS && cpus & 1 << (waited & CPU_BITS) != 0
        };
        self.waited.iter().filter(is_of_late).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Crowd {
        Crowd { waited: [const { AtomicU64::new(0) }; PLACES] }
    }

    #[test]
    fn only_those_who_wait_of_late_are_a_crowd() {
        let crowd = nobody();
        let now = 1 << 40;
        assert_eq!(crowd.waiting(now, 1), 0);
        for tid in 100..120 {
            crowd.note(tid, now, || 0);
        }
        assert_eq!(crowd.waiting(now, 1), 20);
        crowd.note(100 + PLACES as u32, now, || 0);
        assert_eq!(crowd.waiting(now, 1), 20, "those who share a place are one");
        assert_eq!(crowd.waiting(now - 10, 1), 20, "a clock that lags a little");
        let later = now + LATELY_TICKS;
        crowd.note(100, later, || 0);
        assert_eq!(crowd.waiting(later, 1), 1, "the others sleep on");
    }

    #[test]
    fn those_who_wait_on_other_cpus_are_none_of_a_crowd() {
        let crowd = nobody();
        let now = 1 << 40;
        for tid in 0..8 {
            crowd.note(tid, now, || tid);
        }
        crowd.note(8, now, || CPU_BITS as u32 + 1);
        assert_eq!(crowd.waiting(now, 1 << 3), 1);
        assert_eq!(crowd.waiting(now, 1), 2, "of more CPUs than there are bits some have one in common");
        assert_eq!(crowd.waiting(now, 0b1111), 5);
        assert_eq!(crowd.waiting(now, u64::MAX), 9);
    }
}

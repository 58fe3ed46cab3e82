//! Crowds: more threads of this process wait at one time, each for a short while, than there are CPUs for them.
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
use crate::cpus::Cpus;
use crate::{kernel, thread};

/// Threads that can be told apart. Who may use as many CPUs is in no crowd.
const PLACES: usize = 64;
/// What is of late: a millisecond or so. Each of twenty that take turns at a busy server waits once in that time.
const LATELY_TICKS: u64 = 3_000_000;
/// A time is written again when it is so old: threads that wait often do not take the lines from each other at each
/// wait.
const FRESH_TICKS: u64 = LATELY_TICKS / 8;
/// The bits of a place in which the CPU stands, of 1,024; the time has the others.
const CPU_BITS: u64 = 0x3FF;

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
    let allowed = thread::with(|thread| thread.allowed.get(now));
    CROWD.waiting(now, &allowed) > allowed.count as usize
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
    fn waiting(&self, now: u64, cpus: &Cpus) -> usize {
        let is_of_late = |place: &&AtomicU64| {
            let waited = place.load(Relaxed);
            // The clocks of two CPUs may differ a little: a time may lie ahead.
            let distance = now.wrapping_sub(waited).cast_signed().unsigned_abs();
            distance < LATELY_TICKS && cpus.has((waited & CPU_BITS) as u32)
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
        let (crowd, cpu) = (nobody(), Cpus::of(&[1]));
        let now = 1 << 40;
        assert_eq!(crowd.waiting(now, &cpu), 0);
        for tid in 100..120 {
            crowd.note(tid, now, || 0);
        }
        assert_eq!(crowd.waiting(now, &cpu), 20);
        crowd.note(100 + PLACES as u32, now, || 0);
        assert_eq!(crowd.waiting(now, &cpu), 20, "those who share a place are one");
        assert_eq!(crowd.waiting(now - 10, &cpu), 20, "a clock that lags a little");
        let later = now + LATELY_TICKS;
        crowd.note(100, later, || 0);
        assert_eq!(crowd.waiting(later, &cpu), 1, "the others sleep on");
    }

    #[test]
    fn those_who_wait_on_other_cpus_are_none_of_a_crowd() {
        let crowd = nobody();
        let now = 1 << 40;
        for tid in 0..8 {
            crowd.note(tid, now, || tid);
        }
        crowd.note(8, now, || 64);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[1 << 3])), 1);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[1])), 1);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[0b1111])), 4);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[0, 1])), 1);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[1, 1])), 2);
        assert_eq!(crowd.waiting(now, &Cpus::of(&[u64::MAX, u64::MAX])), 9);
    }
}

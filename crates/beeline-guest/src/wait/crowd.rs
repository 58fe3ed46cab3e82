//! Crowds: more threads of this process than it has CPUs wait at one time, each for a short while.
//!
//! 1. A wait that goes on for longer than a moment leaves the time in a place of its thread. Threads that share one are
//!    counted as one.
//! 2. Where more of these times are of late than the process may use CPUs, whoever spun would keep another from
//!    running, and from what it has to say to somebody: nobody spins. (Twenty threads that each connect, ask and close,
//!    against a server with one thread, on two CPUs: they spun away 37 % of all CPU time.)
//! 3. A thread that sleeps for long is none of a crowd: a pool of idle workers keeps nobody from spinning.
//! 4. A wait that gave way tells nothing about spinning, so budgets stay as they are.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::ticks;
use crate::thread;
use beeline_shm::sys;

/// Threads that can be told apart. Where there are as many CPUs, nothing is a crowd.
const PLACES: usize = 64;
/// What is of late: a millisecond or so. Each of twenty that take turns at a busy server waits once in that time.
const LATELY_TICKS: u64 = 3_000_000;
/// A time is written again when it is so old: threads that wait often do not take the lines from each other at each
/// wait.
const FRESH_TICKS: u64 = LATELY_TICKS / 8;
/// How long the number of CPUs is believed: some tenths of a second.
const BELIEVED_TICKS: u64 = 1 << 30;

#[unsafe(link_section = ".fork.written")]
static CROWD: Crowd = Crowd { waited: [const { AtomicU64::new(0) }; PLACES] };
/// CPUs that the process may use, and when that was found out; 0 for not yet.
#[unsafe(link_section = ".fork.written")]
static CPUS: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".fork.written")]
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// A wait of this thread goes on.
pub(super) fn note() {
    CROWD.note(thread::tid(), ticks());
}

/// The same. Whether it is one of a crowd.
pub(super) fn note_and_ask() -> bool {
    let now = ticks();
    CROWD.note(thread::tid(), now);
    CROWD.waiting(now) > cpus(now) as usize
}

/// When which threads waited last.
struct Crowd {
    waited: [AtomicU64; PLACES],
}

impl Crowd {
    fn note(&self, tid: u32, now: u64) {
        if let Some(place) = self.waited.get(tid as usize % PLACES)
            && now.wrapping_sub(place.load(Relaxed)) > FRESH_TICKS
        {
            place.store(now, Relaxed);
        }
    }

    /// How many threads have waited of late.
    fn waiting(&self, now: u64) -> usize {
        // The clocks of two CPUs may differ a little: a time may lie ahead.
        let distance = |place: &AtomicU64| now.wrapping_sub(place.load(Relaxed)).cast_signed().unsigned_abs();
        self.waited.iter().filter(|place| distance(place) < LATELY_TICKS).count()
    }
}

/// How many CPUs the process may use.
fn cpus(now: u64) -> u32 {
    if CPUS.load(Relaxed) == 0 || now.wrapping_sub(COUNTED.load(Relaxed)) > BELIEVED_TICKS {
        CPUS.store(count_cpus(), Relaxed);
        COUNTED.store(now, Relaxed);
    }
    CPUS.load(Relaxed)
}

/// As many as the calling thread may use; plenty where that cannot be found out.
#[cold]
fn count_cpus() -> u32 {
    let mut mask = MaybeUninit::<libc::cpu_set_t>::zeroed();
    let args = [0, size_of::<libc::cpu_set_t>(), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: room for as many bytes as are told.
    if unsafe { sys::call(libc::SYS_sched_getaffinity, args) }.is_err() {
        return u32::MAX;
    }
    // SAFETY: all zeros are a set, and the kernel has written one.
    let mask = unsafe { mask.assume_init() };
    // SAFETY: a live set.
    unsafe { libc::CPU_COUNT(&mask) }.cast_unsigned().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_wait_of_late_are_a_crowd() {
        let crowd = Crowd { waited: [const { AtomicU64::new(0) }; PLACES] };
        let now = 1 << 40;
        assert_eq!(crowd.waiting(now), 0);
        for tid in 100..120 {
            crowd.note(tid, now);
        }
        assert_eq!(crowd.waiting(now), 20);
        crowd.note(100 + PLACES as u32, now);
        assert_eq!(crowd.waiting(now), 20, "those who share a place are one");
        assert_eq!(crowd.waiting(now - 10), 20, "a clock that lags a little");
        let later = now + LATELY_TICKS;
        crowd.note(100, later);
        assert_eq!(crowd.waiting(later), 1, "the others sleep on");
    }

    #[test]
    fn there_is_a_cpu_to_wait_on() {
        assert_ne!(count_cpus(), 0);
        assert_ne!(count_cpus(), u32::MAX);
    }
}

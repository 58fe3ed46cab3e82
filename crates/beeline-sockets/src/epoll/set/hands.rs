//! Threads that work for a set beside the one that waits on it: a loop hands requests to a pool of them, and they arm
//! the connections anew. Such a thread is no peer, but it needs a CPU as much.
//!
//! 1. Whoever waits leaves its mark. A change by anybody else comes from a hand, and shows on which CPU that runs.
//! 2. A wait on that same CPU does not spin. What has shown itself is good for [`WAITS`] waits: who adds a member once,
//!    when a program begins, is no hand.
//!
//! All of it is a hint: where two threads change it at once, a wait spins that need not, or the reverse.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{kernel, thread};

/// Waits for which a change counts: the one that goes on meanwhile, and the next.
const WAITS: u32 = 2;

/// See the module.
#[derive(Default)]
#[repr(C)]
pub struct Hands {
    /// The thread that waited last.
    waiter: AtomicU32,
    /// The CPU, plus one, on which a hand changed a member last.
    cpu: AtomicU32,
    /// For how many waits that counts.
    waits: AtomicU32,
}

impl Hands {
    /// Forgets everything.
    pub fn begin(&self) {
        self.waiter.store(0, Relaxed);
        self.waits.store(0, Relaxed);
    }

    /// A member is added or changed by this thread.
    #[inline]
    pub fn changed(&self) {
        let waiter = self.waiter.load(Relaxed);
        if waiter != 0 && waiter != thread::identity() {
            self.changed_on(kernel::cpu_by_libc());
        }
    }

    fn changed_on(&self, cpu: u32) {
        self.cpu.store(cpu.wrapping_add(1), Relaxed);
        self.waits.store(WAITS, Relaxed);
    }

    /// This thread is about to wait: whether a hand needs the CPU that it runs on.
    #[inline]
    pub fn need_cpu(&self) -> bool {
        let me = thread::identity();
        if self.waiter.load(Relaxed) != me {
            self.waiter.store(me, Relaxed);
        }
        self.waits.load(Relaxed) != 0 && self.need(kernel::cpu_by_libc())
    }

    fn need(&self, cpu: u32) -> bool {
        let waits = self.waits.load(Relaxed);
        self.waits.store(waits.saturating_sub(1), Relaxed);
        waits != 0 && self.cpu.load(Relaxed) == cpu.wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_needs_its_cpu_for_two_waits_after_each_change() {
        let hands = Hands::default();
        assert!(!hands.need(1), "nobody has changed anything");
        hands.changed_on(1);
        assert!(hands.need(1) && hands.need(1) && !hands.need(1));
        hands.changed_on(1);
        assert!(!hands.need(0), "on another CPU it runs anyway");
    }

    #[test]
    fn who_waits_and_changes_by_turns_is_no_hand() {
        let hands = Hands::default();
        hands.changed();
        assert!(!hands.need_cpu(), "nobody had waited");
        hands.changed();
        assert!(!hands.need_cpu());
        std::thread::scope(|scope| {
            scope.spawn(|| hands.changed());
        });
        assert_eq!(hands.waits.load(Relaxed), WAITS, "another thread is one");
    }
}

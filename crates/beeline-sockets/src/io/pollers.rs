//! How many threads sleep in poll(2) or select(2).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Threads that sleep here, or arm for it.
#[unsafe(link_section = ".fork.written")]
static POLLERS: AtomicU32 = AtomicU32::new(0);

/// How many threads sleep in poll(2) or select(2), on whatever.
pub(crate) fn pollers() -> u32 {
    POLLERS.load(Relaxed)
}

/// In the child of a `fork`: the threads that slept are not here.
pub(super) fn reset_after_fork() {
    if pollers() != 0 {
        POLLERS.store(0, Relaxed);
    }
}

/// A thread that sleeps there, or arms for it.
pub(crate) struct Poller;

impl Poller {
    pub(crate) fn enter() -> Poller {
        POLLERS.fetch_add(1, Relaxed);
        Poller
    }

    /// Runs `sleep`; a thread that does not come back from it is no poller any more.
    pub(crate) fn while_asleep<R>(&self, sleep: impl FnOnce() -> R) -> R {
        crate::cancel::undoing(self, |_| Poller::leave(), sleep)
    }

    fn leave() {
        // A handler may fork in the middle of a sleep, and its child return here uncounted.
        let _ = POLLERS.fetch_update(Relaxed, Relaxed, |pollers| pollers.checked_sub(1));
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        Poller::leave();
    }
}

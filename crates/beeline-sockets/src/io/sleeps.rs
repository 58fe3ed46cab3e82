//! Numbers of sleeps (rule 8 of waking a reader, [`beeline_lane`]), and the thread that sleeps in poll(2) by lanes that
//! it has named one in.
//!
//! 1. A thread that is the only one in poll(2) or select(2) names its sleep in those of its lanes that nobody else
//!    uses, and in no other way hears of them: it has the kernel watch the *alarm*, too, an eventfd. When it is awake
//!    it looks at all its lanes. Where there is no room for the alarm, it names none.
//! 2. Whoever may take bells out of such a lane, or has others do so, says first that it is there, looks behind the
//!    lane's lock whether the lane is named in a sleep, and raises the alarm then ([`alarm_poller`]). The sleeper said
//!    that it sleeps before it named the first.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use beeline_shm::{full_fence, sys};
use libc::{POLLIN, pollfd};

use super::pollers::pollers;
use crate::lazy_fd::LazyFd;
use crate::{hidden, kernel, process};

/// The number of the last sleep. The first is random, so that no other process's is the same.
#[unsafe(link_section = ".fork.written")]
static LAST: AtomicU64 = AtomicU64::new(0);

/// Whether a thread sleeps in poll(2) by lanes that it has named its sleep in, or is about to.
#[unsafe(link_section = ".fork.written")]
static POLLER_SLEEPS: AtomicBool = AtomicBool::new(false);

/// The eventfd that wakes it.
#[unsafe(link_section = ".fork.written")]
static ALARM: LazyFd = LazyFd::new();

/// In the child of a `fork`: its sleeps are others than the parent's, and so is its alarm.
pub(super) fn reset_after_fork() {
    if LAST.load(Relaxed) != 0 {
        LAST.store(0, Relaxed);
    }
    if let Some(parents) = ALARM.take() {
        POLLER_SLEEPS.store(false, Relaxed);
        hidden::close_hidden(parents);
    }
}

/// The number of a sleep that begins; `None` if there is none to be had.
pub(crate) fn next_number() -> Option<u64> {
    if LAST.load(Relaxed) == 0 {
        let [first] = kernel::chance()?;
        let _ = LAST.compare_exchange(0, first, Relaxed, Relaxed);
    }
    // None of 2^64 is that of no sleep, but one.
    Some(LAST.fetch_add(1, Relaxed).wrapping_add(1)).filter(|number| *number != 0)
}

/// A sleep in poll(2) that is named in lanes, from before the first is armed until the thread is awake.
pub(crate) struct PollSleep {
    number: u64,
    alarm: i32,
}

impl PollSleep {
    /// Begins one, unless another thread is in poll(2), too. The caller is counted there.
    pub(crate) fn begin() -> Option<Self> {
        if pollers() != 1 {
            return None;
        }
        let begun = Self { number: next_number()?, alarm: alarm()? };
        POLLER_SLEEPS.store(true, Relaxed);
        // Pairs with that of `poller_sleeps`: either this thread sees who is there, or that one sees this.
        full_fence();
        Some(begun)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What to ask the kernel besides.
    pub(crate) fn alarm(&self) -> pollfd {
        pollfd { fd: self.alarm, events: POLLIN, revents: 0 }
    }

    /// Stops the alarm if that has ended the sleep, as the answer to [`PollSleep::alarm`] says.
    pub(crate) fn heard(&self, answer: &pollfd) {
        if answer.revents != 0 {
            let mut count = 0u64;
            let args = [self.alarm as usize, (&raw mut count) as usize, size_of::<u64>(), 0, 0, 0];
            // SAFETY: room for the count.
            let _ = unsafe { sys::call(libc::SYS_read, args) };
        }
    }
}

/// A thread that does not come back from its sleep leaves it open: then an alarm is raised in vain, and ends one sleep.
impl Drop for PollSleep {
    fn drop(&mut self) {
        POLLER_SLEEPS.store(false, Relaxed);
    }
}

/// Whether somebody may sleep in poll(2) by a lane that names its sleep. The caller has said that it uses one.
#[inline]
pub(crate) fn poller_sleeps() -> bool {
    full_fence();
    POLLER_SLEEPS.load(Relaxed)
}

/// Wakes the thread that sleeps so. Called for a lane that is named in a sleep, with no lock of it held.
#[cold]
pub(crate) fn alarm_poller() {
    // The child of a `vfork` has numbers of its own: there it may be a file.
    if let Some(alarm) = ALARM.get()
        && POLLER_SLEEPS.load(Relaxed)
        && !process::is_guest_of_parent()
    {
        let one = 1u64;
        let args = [alarm as usize, (&raw const one) as usize, size_of::<u64>(), 0, 0, 0];
        // SAFETY: a live number.
        let _ = unsafe { sys::call(libc::SYS_write, args) };
    }
}

fn alarm() -> Option<i32> {
    // What a guest opens is not open in the process whose memory this is, and the other way round.
    if process::is_guest_of_parent() {
        return None;
    }
    ALARM.get_or_make(|| if hidden::has_room() { hidden::keep(kernel::eventfd(0).ok()? as i32) } else { None })
}

//! Who keeps a description: the numbers that lead to it, and the calls that use it.
//!
//! | step | who makes it | under |
//! |---|---|---|
//! | [`Keepers::gain_number`], [`Keepers::lose_number`] | the table | its lock |
//! | [`Keepers::pin`], [`Keepers::unpin`] | any call, by a [`super::Pin`] | nothing: it asks afterwards whether its number still leads here |
//! | [`Keepers::begin_wait`], [`Keepers::end_wait`] | a call that sleeps | its pin |
//! | [`Keepers::linger`] | who closes the last number while calls wait | `changing::changing`, or the change of that number |
//! | [`Keepers::take_lingering`] | the last pin, or who closes a number | `changing::changing` |
//! | [`Keepers::end`] | who has taken the last number away | nothing: no number leads here any more |
//! | [`Keepers::take_end`] | whoever finds no pins then, once | nothing |
//!
//! Pins that count were made while a number led here, so none is added after the last number is gone. A pin that came
//! too late may come and go at any time, even when the description serves again: it finds that no end is due.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};

/// See the module. Valid when zeroed.
#[repr(C)]
pub struct Keepers {
    /// Fds of this process that lead here.
    numbers: AtomicU32,
    /// Operations that need the lane and its side without a lock.
    pins: AtomicU32,
    /// Operations that wait: for those the description is kept open if its last fd is closed.
    waiters: AtomicU32,
    /// The hidden number under which it is kept open, plus one; 0 for none.
    lingering: AtomicI32,
    /// Whether no fd will lead here any more: whoever finds no pins then, and takes this back, ends the description.
    over: AtomicBool,
}

impl Keepers {
    /// For the next use of the description. Pins that came too late may still come and go.
    pub(super) fn begin(&self) {
        self.numbers.store(0, Relaxed);
        self.over.store(false, Relaxed);
        self.lingering.store(0, Relaxed);
    }

    /// One more number leads here.
    pub(crate) fn gain_number(&self) {
        self.numbers.fetch_add(1, Relaxed);
    }

    /// One number leads elsewhere. Returns how many are left.
    pub(crate) fn lose_number(&self) -> u32 {
        self.numbers.fetch_sub(1, AcqRel).wrapping_sub(1)
    }

    /// Whether at most one number leads here.
    pub fn has_last_number(&self) -> bool {
        self.numbers.load(Acquire) <= 1
    }

    /// Whether no number leads here.
    pub(crate) fn has_no_number(&self) -> bool {
        self.numbers.load(Acquire) == 0
    }

    /// One more call uses the description.
    pub(super) fn pin(&self) {
        self.pins.fetch_add(1, SeqCst);
    }

    /// One call less does. Whether it was the last.
    pub(super) fn unpin(&self) -> bool {
        count_down(&self.pins) == 1
    }

    /// How many calls use it.
    pub fn pins(&self) -> u32 {
        self.pins.load(SeqCst)
    }

    /// One of the calls waits from now on.
    pub(super) fn begin_wait(&self) {
        self.waiters.fetch_add(1, Relaxed);
    }

    /// It does not wait any more.
    pub(super) fn end_wait(&self) {
        count_down(&self.waiters);
    }

    /// Whether a call waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiters.load(Relaxed) != 0
    }

    /// Calls that wait keep the description open under this hidden number.
    pub(crate) fn linger(&self, hidden: i32) {
        self.lingering.store(hidden.saturating_add(1), SeqCst);
    }

    /// Whether they do.
    pub(crate) fn lingers(&self) -> bool {
        self.lingering.load(SeqCst) != 0
    }

    /// Whether they do under this number.
    pub(crate) fn lingers_as(&self, fd: i32) -> bool {
        self.lingering.load(Relaxed) == fd.saturating_add(1)
    }

    /// Takes the hidden number out: for closing it.
    pub(crate) fn take_lingering(&self) -> Option<i32> {
        self.lingering.swap(0, SeqCst).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// Nothing will lead here any more.
    pub(super) fn end(&self) {
        self.over.store(true, SeqCst);
    }

    /// Whether the description is to be ended, by the one who asks.
    pub(super) fn take_end(&self) -> bool {
        self.pins.load(SeqCst) == 0 && self.over.swap(false, SeqCst)
    }

    /// In the child of a `fork`: the threads that used it are not here.
    pub(super) fn forget_other_threads(&self) {
        if self.pins.load(Relaxed) != 0 {
            self.pins.store(0, Relaxed);
            self.waiters.store(0, Relaxed);
        }
    }
}

/// Counts down unless nothing is counted: a handler may fork in the middle of a wait, and its child return here
/// uncounted. Returns what was counted before.
fn count_down(count: &AtomicU32) -> u32 {
    count.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1)).unwrap_or(0)
}

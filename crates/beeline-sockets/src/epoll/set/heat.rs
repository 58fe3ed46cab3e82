//! Whether a member is hot, and its place in the list of those that are.
//!
//! | step | who makes it |
//! |---|---|
//! | [`Set::make_hot`] | whoever learns that there may be something to report; at the end of the list |
//! | [`Set::make_cold`] | who has armed it, removes it, or has told of its one shot (`EPOLLONESHOT`) |
//! | [`Heat::look_in_vain`], [`Heat::reset_idle_looks`] | a wait that looks at it |
//!
//! All of them under the set's lock.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};

use super::{Entry, NIL, Set};

/// See the module. Valid when zeroed: cold.
#[derive(Default)]
#[repr(C)]
pub struct Heat {
    /// Whether it is in the hot list.
    pub(super) hot: AtomicBool,
    /// Looks in a row that found nothing.
    idle_looks: AtomicU32,
    /// Neighbours in the list.
    pub(super) next: AtomicI32,
    previous: AtomicI32,
}

impl Heat {
    /// It is in no list, whatever was there before.
    pub(super) fn begin(&self) {
        self.hot.store(false, Relaxed);
    }

    /// Whether it is hot.
    pub fn is_hot(&self) -> bool {
        self.hot.load(Relaxed)
    }

    /// The next hot member's number, or [`NIL`].
    pub fn next(&self) -> i32 {
        self.next.load(Relaxed)
    }

    /// A look has found nothing. Returns how many have so, in a row.
    pub fn look_in_vain(&self) -> u32 {
        let looks = self.idle_looks.load(Relaxed) + 1;
        self.idle_looks.store(looks, Relaxed);
        looks
    }

    /// A look has found something, or nothing is known of looks any more.
    pub fn reset_idle_looks(&self) {
        self.idle_looks.store(0, Relaxed);
    }
}

impl Set {
    /// Puts an entry at the end of the hot list.
    pub fn make_hot(&self, fd: i32, entry: &Entry) {
        entry.heat.reset_idle_looks();
        if entry.heat.is_hot() {
            return;
        }
        self.leave_company(entry);
        entry.heat.hot.store(true, Relaxed);
        self.hot_lanes.store(self.hot_lanes.load(Relaxed).wrapping_add(1), Relaxed);
        let last = self.hot_last.load(Relaxed);
        self.hot_last.store(fd, Relaxed);
        entry.heat.previous.store(last, Relaxed);
        entry.heat.next.store(NIL, Relaxed);
        match self.find(last) {
            Some(before) => before.heat.next.store(fd, Relaxed),
            None => self.hot_first.store(fd, Relaxed),
        }
    }

    /// Takes an entry out of the hot list.
    pub fn make_cold(&self, entry: &Entry) {
        if !entry.heat.is_hot() {
            return;
        }
        entry.heat.hot.store(false, Relaxed);
        self.hot_lanes.store(self.hot_lanes.load(Relaxed).wrapping_sub(1), Relaxed);
        let (previous, next) = (entry.heat.previous.load(Relaxed), entry.heat.next.load(Relaxed));
        match self.find(previous) {
            Some(before) => before.heat.next.store(next, Relaxed),
            None => self.hot_first.store(next, Relaxed),
        }
        match self.find(next) {
            Some(after) => after.heat.previous.store(previous, Relaxed),
            None => self.hot_last.store(previous, Relaxed),
        }
    }
}

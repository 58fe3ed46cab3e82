//! What a set knows of its members that the kernel watches by edges for us ([`super::super::lying`]).

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// See the module.
#[derive(Default)]
#[repr(C)]
pub struct Edged {
    /// Threads that ask the kernel, waiting or not, or have yet to look at what it said; and those that never will,
    /// also in a set that had this place before.
    asking: AtomicU32,
    /// Whether there may be such members.
    pub any: AtomicBool,
    /// Whether there will be none any more.
    pub ended: AtomicBool,
}

impl Edged {
    pub(super) fn begin(&self) {
        self.any.store(false, Relaxed);
        self.ended.store(false, Relaxed);
    }

    /// In the child of a `fork`, where only the thread that forked may go on.
    pub fn begin_in_child(&self) {
        if self.asking.load(Relaxed) != 0 {
            self.asking.store(0, Relaxed);
        }
    }

    /// A thread asks the kernel. Whether somebody else does.
    pub fn asks(&self) -> bool {
        self.asking.fetch_add(1, Relaxed) != 0
    }

    /// A thread that has asked the kernel has looked at what it said, or was told nothing. It is not counted any more
    /// in the child that one of its handlers has forked, which goes on here.
    pub fn has_asked(&self) {
        let _ = self.asking.fetch_update(Relaxed, Relaxed, |asking| asking.checked_sub(1));
    }
}

//! What the kernel was told of a member: whether it has it, what it watches it for, and under which data it reports it.
//!
//! | step | who makes it |
//! |---|---|
//! | [`Registered::note`] | who has had the kernel add or modify it (`registration`) |
//! | [`Registered::forget`] | who has it taken out, or adds the member anew |
//! | [`Registered::restore`] | a member that was parked is added again: the kernel has it still |
//! | [`Registered::doubt`] | others had the set, and may have told the kernel something else of it |
//!
//! All of them under the set's lock, and before or right after the system call.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The kernel has the member, whatever it watches it for. No event has this bit.
const HELD: u32 = 1 << 16;
/// Whether it still does, and for what, is not known.
const DOUBTED: u32 = 1 << 17;

/// See the module. Valid when zeroed: the kernel does not have it.
#[derive(Default)]
#[repr(C)]
pub struct Registered {
    /// What it watches for, with [`HELD`] and perhaps [`DOUBTED`]; 0 if it does not have it.
    word: AtomicU32,
    data: AtomicU64,
}

impl Registered {
    /// What the kernel watches for, as far as is known; `None` if it does not have the member.
    pub fn events(&self) -> Option<u32> {
        match self.word.load(Relaxed) {
            0 => None,
            word => Some(word & !(HELD | DOUBTED)),
        }
    }

    /// Whether it has the member for certain, and reports it under `data`.
    pub fn is_under(&self, data: u64) -> bool {
        self.word.load(Relaxed) != 0 && !self.is_doubted() && self.data.load(Relaxed) == data
    }

    /// Whether all of that is in doubt until the kernel is told again.
    pub fn is_doubted(&self) -> bool {
        self.word.load(Relaxed) & DOUBTED != 0
    }

    /// From now on it is.
    pub fn doubt(&self) {
        let word = self.word.load(Relaxed);
        if word != 0 {
            self.word.store(word | DOUBTED, Relaxed);
        }
    }

    /// The kernel watches it for `events` from now on.
    pub fn note(&self, events: u32, data: u64) {
        self.word.store(events | HELD, Relaxed);
        self.data.store(data, Relaxed);
    }

    /// The kernel does not have it any more.
    pub fn forget(&self) {
        self.word.store(0, Relaxed);
    }

    /// All of it, for [`Registered::restore`].
    pub fn saved(&self) -> (u32, u64) {
        (self.word.load(Relaxed), self.data.load(Relaxed))
    }

    /// What was saved holds again.
    pub fn restore(&self, (word, data): (u32, u64)) {
        self.word.store(word, Relaxed);
        self.data.store(data, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_is_known_again_when_the_kernel_was_told() {
        let registered = Registered::default();
        registered.doubt();
        assert!(!registered.is_doubted(), "the kernel does not have it");
        registered.note(17, 7);
        registered.doubt();
        assert!(registered.is_doubted() && !registered.is_under(7));
        assert_eq!(registered.events(), Some(17));
        let moved = Registered::default();
        moved.restore(registered.saved());
        assert!(moved.is_doubted(), "so it is in another place");
        registered.note(17, 7);
        assert!(!registered.is_doubted() && registered.is_under(7));
    }
}

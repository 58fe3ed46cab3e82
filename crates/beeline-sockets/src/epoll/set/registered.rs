//! What the kernel was told of a member: whether it has it, what it watches it for, and under which data it reports it.
//!
//! | step | who makes it |
//! |---|---|
//! | [`Registered::note`] | who has had the kernel add or modify it (`registration`) |
//! | [`Registered::forget`] | who has it taken out, or adds the member anew |
//! | [`Registered::restore`] | a member that was parked is added again: the kernel has it still |
//!
//! All of them under the set's lock, and before or right after the system call.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The kernel has the member, whatever it watches it for. No event has this bit.
const HELD: u32 = 1 << 16;

/// See the module. Valid when zeroed: the kernel does not have it.
#[derive(Default)]
#[repr(C)]
pub struct Registered {
    /// What it watches for, with [`HELD`]; 0 if it does not have it.
    word: AtomicU32,
    data: AtomicU64,
}

impl Registered {
    /// What the kernel watches for; `None` if it does not have the member.
    pub fn events(&self) -> Option<u32> {
        match self.word.load(Relaxed) {
            0 => None,
            word => Some(word & !HELD),
        }
    }

    /// Whether it has the member, and reports it under `data`.
    pub fn is_under(&self, data: u64) -> bool {
        self.word.load(Relaxed) != 0 && self.data.load(Relaxed) == data
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

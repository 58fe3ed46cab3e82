//! What calls on a connection have seen lately, by which they look at the kernel more or less often.
//!
//! All of it is figures: threads may lose each other's, which costs a look too many or too few. What a call counts it
//! counts with the lock of its direction, if it has one; `heard` and `looked` are also stored by waits that have none.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// See the module. Valid when zeroed.
#[repr(C)]
pub struct Pace {
    /// Sends that were complete at once.
    sends: AtomicU32,
    /// Times a send found the ring full: each is the beginning of an `EPOLLOUT` edge.
    fulls: AtomicU32,
    /// When somebody last asked the kernel, in ticks.
    looked: AtomicU64,
    /// When a wait for several connections last heard of this one, in ticks.
    heard: AtomicU64,
    /// Receives in a row that found nothing.
    eagains: AtomicU32,
    /// Whether poll(2) or select(2) has asked for bytes since the last of these.
    polled: AtomicBool,
}

impl Pace {
    /// Another connection begins.
    pub(super) fn begin(&self) {
        self.sends.store(0, Relaxed);
        self.looked.store(0, Relaxed);
        self.eagains.store(0, Relaxed);
        self.fulls.store(0, Relaxed);
        self.heard.store(0, Relaxed);
        self.polled.store(false, Relaxed);
    }

    /// How many sends were complete at once.
    #[inline(always)]
    pub fn sends(&self) -> u32 {
        self.sends.load(Relaxed)
    }

    /// There are so many now.
    #[inline(always)]
    pub fn count_sends(&self, sends: u32) {
        self.sends.store(sends, Relaxed);
    }

    /// When somebody last asked the kernel.
    #[inline(always)]
    pub fn looked(&self) -> u64 {
        self.looked.load(Relaxed)
    }

    /// Somebody asks it now.
    pub fn look(&self, now_ticks: u64) {
        self.looked.store(now_ticks, Relaxed);
    }

    /// When a wait last heard of the connection.
    pub fn heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }

    /// A wait hears of it now.
    pub fn hear(&self, now_ticks: u64) {
        self.heard.store(now_ticks, Relaxed);
    }

    /// How often a send has found the ring full.
    pub fn fulls(&self) -> u32 {
        self.fulls.load(Relaxed)
    }

    /// A send has found the ring full.
    pub fn count_full(&self) {
        self.fulls.fetch_add(1, Relaxed);
    }

    /// A receive has found nothing. Returns how many have so, in a row.
    pub fn count_empty(&self) -> u32 {
        let eagains = self.eagains.load(Relaxed).wrapping_add(1);
        self.eagains.store(eagains, Relaxed);
        eagains
    }

    /// poll(2) or select(2) asks for bytes.
    #[inline(always)]
    pub fn poll(&self) {
        if !self.polled.load(Relaxed) {
            self.polled.store(true, Relaxed);
        }
    }

    /// Whether they have asked since this was last called.
    pub fn take_polled(&self) -> bool {
        self.polled.load(Relaxed) && self.polled.swap(false, Relaxed)
    }

    /// A receive has found something.
    #[inline(always)]
    pub fn found_some(&self) {
        self.eagains.store(0, Relaxed);
    }
}

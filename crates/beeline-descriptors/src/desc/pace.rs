//! What calls on a connection have seen lately, by which they look at the kernel more or less often.
//!
//! All of it but `asks_signals` is hints: threads may lose each other's, which costs a look or an arming too many or
//! too few. What a call counts it counts with the lock of its direction, if it has one; `heard`, `looked` and `polled`
//! are also stored by waits that have none, `handed_out` under the lock of a set.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_guest::trial::Trial;

/// See the module. Valid when zeroed.
#[repr(C)]
pub struct Pace {
    /// Sends that were complete at once.
    sends: AtomicU32,
    /// Times a send found the ring full: each is the beginning of an `EPOLLOUT` edge.
    fulls: AtomicU32,
    /// When sends last had the kernel asked, and what is below the lane looked at, in ticks.
    looked_by_sends: AtomicU64,
    /// When the kernel was last asked about the anchor, or told of it, in ticks.
    looked: AtomicU64,
    /// When a wait for several connections last heard of this one, in ticks.
    heard: AtomicU64,
    /// Receives in a row that found nothing.
    eagains: AtomicU32,
    /// Whether poll(2) or select(2) has asked for bytes since the last of these, and how many of them it has excused.
    polled: AtomicBool,
    excused: AtomicU32,
    /// Whether the program asks for signals (`O_ASYNC`), which it may wait for instead.
    asks_signals: AtomicBool,
    /// Whether no set tells of bytes until it is asked to again (`EPOLLONESHOT`, or no `EPOLLIN`): the connection is
    /// some thread's to read.
    handed_out: AtomicBool,
    /// Whether it has been worth it that such a thread waits a moment for more, and how many sends there were when that
    /// was asked last.
    pub more: Trial<16>,
    answered: AtomicU32,
    /// Long messages that are not to wait for a reader that is far behind.
    rests: AtomicU32,
}

/// Of so many receives that find nothing and are excused one is not: it looks whether the peer is still there.
const EXCUSED_MAX: u32 = 1024;

impl Pace {
    /// Another connection begins.
    pub(super) fn begin(&self) {
        self.sends.store(0, Relaxed);
        self.looked_by_sends.store(0, Relaxed);
        self.looked.store(0, Relaxed);
        self.eagains.store(0, Relaxed);
        self.fulls.store(0, Relaxed);
        self.heard.store(0, Relaxed);
        self.polled.store(false, Relaxed);
        self.excused.store(0, Relaxed);
        self.asks_signals.store(false, Relaxed);
        self.handed_out.store(false, Relaxed);
        self.more.begin();
        self.answered.store(0, Relaxed);
        self.rests.store(0, Relaxed);
    }

    /// Whether a long message is one of those that do not wait; counts it.
    pub fn rests(&self) -> bool {
        let left = self.rests.load(Relaxed);
        self.rests.store(left.saturating_sub(1), Relaxed);
        left != 0
    }

    /// So many long messages more are not to wait.
    pub fn rest(&self, messages: u32) {
        self.rests.store(messages, Relaxed);
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

    /// When sends last had the kernel asked. What it tells a wait is no substitute: they look below the lane, too.
    #[inline(always)]
    pub fn looked_by_sends(&self) -> u64 {
        self.looked_by_sends.load(Relaxed)
    }

    /// A send has it asked now.
    pub fn look_by_send(&self, now_ticks: u64) {
        self.looked_by_sends.store(now_ticks, Relaxed);
        self.look(now_ticks);
    }

    /// When the kernel was last asked about the anchor, or told of it.
    pub fn looked(&self) -> u64 {
        self.looked.load(Relaxed)
    }

    /// Somebody asks it now, or it tells.
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

    /// The program asks for signals, or not any more.
    pub fn ask_signals(&self, on: bool) {
        self.asks_signals.store(on, Relaxed);
    }

    /// A set has handed the connection out, or tells of it again.
    pub fn hand_out(&self, on: bool) {
        if self.is_handed_out() != on {
            self.handed_out.store(on, Relaxed);
        }
    }

    /// Whether a set has handed the connection out.
    #[inline]
    pub fn is_handed_out(&self) -> bool {
        self.handed_out.load(Relaxed)
    }

    /// Whether anything was sent since this was asked last.
    pub fn take_answer(&self) -> bool {
        let sends = self.sends();
        self.answered.swap(sends, Relaxed) != sends
    }

    /// Whether a receive that has found nothing need not see to it that somebody tells of what comes: poll(2) or
    /// select(2) has asked since the last such receive, so the program waits by them.
    pub fn take_excuse(&self) -> bool {
        if !self.polled.load(Relaxed) {
            return false;
        }
        self.polled.store(false, Relaxed);
        let excused = self.excused.load(Relaxed) + 1;
        self.excused.store(excused % EXCUSED_MAX, Relaxed);
        if excused == EXCUSED_MAX {
            // As the first of a row.
            self.eagains.store(0, Relaxed);
        }
        excused != EXCUSED_MAX && !self.asks_signals.load(Relaxed)
    }

    /// A receive has found something.
    #[inline(always)]
    pub fn found_some(&self) {
        self.eagains.store(0, Relaxed);
    }
}

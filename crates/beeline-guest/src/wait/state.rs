//! What a waiter remembers of its waits, and how they ended of late.
//!
//! 1. A wait ends *soon* if news of a lane ends it within `spin_ns_max`, spinning or asleep; *fairly* if that takes as
//!    long as two probes at most; otherwise if it takes longer, or if a kernel socket, a timer or a pipe ends it.
//! 2. One that ended soon is no reason to spin for the next if most do not: a proxy hears from browsers and from late
//!    servers in turn, and now and then soon. The budget comes back only where three of four of the last waits ended
//!    soon, and probes are made only where as many ended fairly. No lower share will do: what a spin is worth does not
//!    follow from how many are won (nginx, 50 connections and late servers: 47 % were won, and brought 2 % of rate for
//!    45 % of CPU time; 4 connections and servers that answer in 0.1 ms: 27 %, and brought 25 %, because nobody had to
//!    wake up, for as much CPU time).
//! 3. A waiter that begins is taken for one whose waits all end soon, and so is one whose probe was won: two who slept
//!    only because the other did spin from then on.
//! 4. What all of its waits have shown is known at its end, whatever the last of them was ([`SpinState::have_paid`]):
//!    spins have paid if three of four ended with news; if none was made, they would have paid if a sleep ended soon.
//!    One that has not waited for longer than a moment tells nothing.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_stats::tunables::{Tunables, Wait};

use super::Mode;

/// What waits have shown (rule 4): how many spins ended with news, how many in vain, and whether a sleep ended soon.
pub(super) const SPIN_PAID: u32 = 1;
pub(super) const SPIN_FAILED: u32 = 1 << 15;
pub(super) const HEARD_SOON: u32 = 1 << 30;
/// See [`SpinState`].
pub(super) const DOUBLING: u32 = 1 << 16;
/// All of the last waits.
pub(super) const ALL: u32 = 255;
/// Three of four.
pub(super) const MOST: u32 = 192;
/// Where the share of waits that ended fairly begins.
const FAIR: u32 = 1 << 8;
/// All ended soon.
const ALWAYS: u32 = ALL * FAIR + ALL;

/// How a wait ended (rule 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Soon,
    Fair,
    Otherwise,
}

/// What one waiter, a connection, a listener or an epoll set, knows of its spins. Valid when zeroed: then it does not
/// spin.
///
/// Whoever waits stores it, without a lock: threads that wait at one time may spoil each other's figures, and nothing
/// else.
#[repr(C)]
pub struct SpinState {
    /// Present budget in nanoseconds.
    pub(super) ns: AtomicU32,
    /// Waits since the last spin, and how often the number of those between two probes has doubled: the waits are
    /// counted below [`DOUBLING`], and the doublings from it on.
    pub(super) skipped: AtomicU32,
    /// How it waits: a [`Mode`] in one word.
    mode: AtomicU32,
    /// What share of the last waits ended soon, and, from [`FAIR`] on, what share of them fairly.
    shares: AtomicU32,
    /// What its waits have shown since it began: [`SPIN_PAID`] and its like.
    shown: AtomicU32,
}

impl SpinState {
    /// With this budget, and nothing skipped.
    #[must_use]
    pub const fn new(spin_ns: u32) -> Self {
        let mode = Mode::new(Wait::Lazy, Tunables::DEFAULT.spin_ns_max);
        Self {
            ns: AtomicU32::new(spin_ns),
            skipped: AtomicU32::new(0),
            mode: AtomicU32::new(mode.word()),
            shares: AtomicU32::new(ALWAYS),
            shown: AtomicU32::new(0),
        }
    }

    /// Another connection or set begins: with the longest spin.
    pub fn begin(&self, mode: Mode) {
        self.mode.store(mode.word(), Relaxed);
        self.ns.store(mode.spin_ns_max(), Relaxed);
        self.skipped.store(0, Relaxed);
        self.shares.store(ALWAYS, Relaxed);
        self.shown.store(0, Relaxed);
    }

    /// It waits so from now on. What it has learned counts if that is what held before.
    #[inline]
    pub fn follow(&self, mode: Mode) {
        if self.mode() != mode {
            self.begin(mode);
        }
    }

    /// How it waits.
    #[must_use]
    #[inline]
    pub fn mode(&self) -> Mode {
        Mode::of_word(self.mode.load(Relaxed))
    }

    /// The present budget.
    #[inline]
    pub fn ns(&self) -> u32 {
        self.ns.load(Relaxed)
    }

    /// The budget is another from now on.
    pub fn set_ns(&self, spin_ns: u32) {
        self.ns.store(spin_ns, Relaxed);
    }

    /// A wait has shown something. Of tens of thousands the next one would tell nothing new.
    pub(super) fn show(&self, what: u32) {
        let shown = self.shown.load(Relaxed);
        let (paid, failed) = spins_in(shown);
        if what == HEARD_SOON {
            self.shown.store(shown | HEARD_SOON, Relaxed);
        } else if paid.max(failed) < SPIN_FAILED - 1 {
            self.shown.store(shown + what, Relaxed);
        }
    }

    /// Whether its spins have paid, or would have; none if that is not known (rule 4).
    #[must_use]
    pub fn have_paid(&self) -> Option<bool> {
        let shown = self.shown.load(Relaxed);
        match spins_in(shown) {
            (0, 0) => (shown & HEARD_SOON != 0).then_some(true),
            (paid, failed) => Some(paid >= 3 * failed),
        }
    }

    /// One more wait does not spin. Returns how many did not before.
    pub fn skip(&self) -> u32 {
        self.skipped.fetch_add(1, Relaxed)
    }

    /// A wait has ended.
    pub(super) fn note(&self, ended: Ended) {
        let shares = self.shares.load(Relaxed);
        let soon = moved(shares % FAIR, ended == Ended::Soon);
        let fair = moved(shares / FAIR, ended != Ended::Otherwise);
        self.shares.store(fair * FAIR + soon, Relaxed);
    }

    /// Whether all of the last waits ended soon: another one that does tells nothing new.
    #[inline]
    pub(super) fn is_always_soon(&self) -> bool {
        self.shares.load(Relaxed) == ALWAYS
    }

    pub(super) fn is_mostly_soon(&self) -> bool {
        self.shares.load(Relaxed) % FAIR >= MOST
    }

    pub(super) fn is_mostly_fair(&self) -> bool {
        self.shares.load(Relaxed) / FAIR >= MOST
    }

    /// Waits are thought to end soon until they show something else.
    pub(super) fn assume_soon(&self) {
        self.shares.store(ALWAYS, Relaxed);
    }
}

/// How many spins paid, and how many were in vain.
fn spins_in(shown: u32) -> (u32, u32) {
    (shown % SPIN_FAILED, shown / SPIN_FAILED % SPIN_FAILED)
}

/// A share after one more wait, which counts for an eighth.
pub(super) fn moved(share: u32, hit: bool) -> u32 {
    if hit { share + (ALL - share).div_ceil(8) } else { share - share.div_ceil(8) }
}

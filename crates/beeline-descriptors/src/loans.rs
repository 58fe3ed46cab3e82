//! Long messages that go from the sender's memory to the receiver's in one copy: who may, and when it pays.
//!
//! The protocol is that of the lane (`beeline_lane::loan`); here is what a connection knows of it.
//!
//! 1. Only a blocking receive says that it would fetch, and only while it spins: so the sender, which waits for it, is
//!    not kept. Only a blocking send lends, to a receiver on another CPU. (On one CPU [`crate::turns`] do as well.)
//! 2. The option `zcopy_threshold_bytes` of the sender says from which length on it lends, and the receiver's for how
//!    much room it fetches.
//! 3. With `auto` lending and the ring are both tried ([`crate::attempts`]). A wait that was too long counts as one in
//!    vain there.
//! 4. A receiver fetches from the process that has made the other end of the anchor, as the kernel names it, if that
//!    was of the same user: what a peer says of itself could lead it anywhere. Whoever has that end by now is to prove
//!    that it is still that process: with each wait the receiver says another number, by chance, and looks for it there
//!    before anything else. One that has the end of a process, and shares memory with it, can prove that in its name:
//!    so the option is not for connections of servers that keep their workers from their own memory.
//! 5. A receiver that could fetch nothing some times in a row asks no more on this connection, and one that the kernel
//!    has refused the right to look into another process does not in this process.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_stats::Counter;

use crate::attempts::{Attempts, Lessons};
use crate::{Errno, kernel, stats};

/// The shortest message that is lent, and the room for which is fetched, whatever the options say.
pub const LENT_BYTES_MIN: usize = 16 * 1024;
/// The same with `auto`: below, what both ends tell each other costs more than the copy.
pub(crate) const LENT_BYTES_AUTO: usize = 48 * 1024;
/// Waits with nothing lent after which a receive waits in the quick path first, as others do.
const UNLENT_MAX: u32 = 64;
/// Loans in a row of which nothing was fetched, after which none is looked at.
const MISSES_MAX: u32 = 4;

static LESSONS: Lessons = Lessons::none();
/// The kernel does not let this process look into others.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Of [`Loans::lender`]: nobody has asked, and nobody is to be fetched from. Else it is a process.
const UNASKED: i32 = 0;
const NOBODY: i32 = -1;

/// How a message is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// From which length on parts of it are lent; `None` for the ring.
    pub least_bytes: Option<usize>,
    /// Whether [`Loans::sent`] is to be told how long it takes.
    pub is_timed: bool,
}

/// What an end knows of lending and fetching. Valid when zeroed.
#[derive(Debug, Default)]
pub struct Loans {
    /// Whether a message is lent.
    attempts: Attempts,
    /// From whom is fetched.
    lender: AtomicI32,
    /// Whether a receive that waits may be one that fetches: then it does not wait in the quick path.
    fetches: AtomicBool,
    /// Waits since something was fetched.
    unlent: AtomicU32,
    /// Loans since then of which nothing was.
    misses: AtomicU32,
    /// What the last wait has said that it wants to find; 0 if nothing is fetched.
    challenge: AtomicU64,
}

impl Loans {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.attempts.reset(&LESSONS);
        self.lender.store(UNASKED, Relaxed);
        self.wants_no_more();
        self.fetched();
    }

    /// A message that was to be timed took so long.
    pub fn sent(&self, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.attempts.sent(&LESSONS, ring_bytes, bytes, ticks);
    }

    /// Whether the message that begins is lent; where that `is_timed`, by what is known of lending and the ring.
    pub(crate) fn takes_message(&self, is_timed: bool) -> bool {
        self.attempts.takes_message(is_timed)
    }

    /// Something was to be lent, and the receiver has fetched it in time or not.
    pub fn lent(&self, is_fetched: bool) {
        self.attempts.waited(is_fetched);
    }

    /// Whether a receive with so much room that finds nothing may be one that fetches.
    #[inline]
    pub fn may_fetch(&self, room: usize) -> bool {
        room >= LENT_BYTES_MIN && self.fetches.load(Relaxed)
    }

    /// A receive waits that would fetch. What it says that it wants to find; 0 where there is no chance to be had.
    pub(crate) fn begin_wait(&self) -> u64 {
        let challenge = kernel::chance().map_or(0, |[number]: [u64; 1]| number);
        let waits = self.unlent.load(Relaxed).saturating_add(1);
        self.unlent.store(waits, Relaxed);
        self.fetches.store(challenge != 0 && waits < UNLENT_MAX, Relaxed);
        self.challenge.store(challenge, Relaxed);
        challenge
    }

    /// No receive fetches any more, before another wait.
    pub(crate) fn wants_no_more(&self) {
        self.fetches.store(false, Relaxed);
        self.challenge.store(0, Relaxed);
    }

    /// What the wait before this has said that it wants to find, which holds for one look.
    #[must_use]
    pub fn take_challenge(&self) -> Option<u64> {
        Some(self.challenge.swap(0, Relaxed)).filter(|challenge| *challenge != 0)
    }

    /// Something was fetched.
    pub fn fetched(&self) {
        self.unlent.store(0, Relaxed);
        self.misses.store(0, Relaxed);
    }

    /// From whom is fetched. Whoever has the other end, as `ask` finds it out, until nothing could be.
    pub(crate) fn lender(&self, ask: impl FnOnce() -> Option<i32>) -> Option<i32> {
        if REFUSED.load(Relaxed) {
            return None;
        }
        let known = match self.lender.load(Acquire) {
            UNASKED => {
                let lender = ask().unwrap_or(NOBODY);
                self.lender.store(lender, Release);
                lender
            }
            known => known,
        };
        (known != NOBODY).then_some(known)
    }

    /// Nothing could be fetched, as something else was found than what was looked for. That may be chance: another
    /// thread has waited meanwhile, or the sender was slow. Again and again it is not.
    #[cold]
    pub fn missed(&self) {
        let misses = self.misses.load(Relaxed).saturating_add(1);
        self.misses.store(misses, Relaxed);
        if misses >= MISSES_MAX {
            self.failed(None);
        }
    }

    /// Nothing can be fetched.
    #[cold]
    pub fn failed(&self, errno: Option<Errno>) {
        self.lender.store(NOBODY, Release);
        self.wants_no_more();
        if matches!(errno, Some(Errno(libc::EPERM | libc::ENOSYS))) {
            REFUSED.store(true, Relaxed);
        }
        stats::count(Counter::FetchesRefused, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_fetch_nothing_asks_no_more() {
        let loans = Loans::default();
        loans.reset();
        assert!(loans.begin_wait() != 0 && loans.challenge.load(Relaxed) != 0);
        assert!(loans.may_fetch(LENT_BYTES_MIN) && !loans.may_fetch(LENT_BYTES_MIN - 1));
        for _ in 1..MISSES_MAX {
            loans.missed();
            assert!(loans.may_fetch(1 << 20));
        }
        loans.missed();
        assert!(
            !loans.may_fetch(1 << 20)
                && loans.take_challenge().is_none()
                && loans.lender.load(Relaxed) == NOBODY
                && !REFUSED.load(Relaxed)
        );
    }
    #[test]
    fn who_is_lent_nothing_waits_in_the_quick_path_again() {
        let loans = Loans::default();
        loans.reset();
        for _ in 1..UNLENT_MAX {
            assert!(loans.begin_wait() != 0 && loans.may_fetch(LENT_BYTES_MIN));
        }
        assert!(loans.begin_wait() != 0 && !loans.may_fetch(LENT_BYTES_MIN) && loans.take_challenge().is_some());
        loans.fetched();
        assert!(loans.begin_wait() != 0 && loans.may_fetch(LENT_BYTES_MIN));
        assert!(loans.take_challenge().is_some() && loans.take_challenge().is_none());
    }
}

//! Long messages that go from the sender's memory to the receiver's in one copy: who may, and when it pays.
//!
//! The protocol is that of the lane (`beeline_lane::loan`); here is what a connection knows of it.
//!
//! 1. Only a blocking receive says that it would fetch, and only while it spins: so the sender, which waits for it, is
//!    not kept. Only a blocking send lends, to a receiver on another CPU. (On one CPU [`crate::turns`] do as well.)
//! 2. The option `zcopy_threshold_bytes` of the sender says from which length on it lends, and the receiver's for how
//!    much room it fetches.
//! 3. With `auto` both ways are tried ([`crate::trials`]): time is taken of whole sends. Another connection begins with
//!    what the last one of this process found.
//! 4. A receiver fetches from the process that has made the other end of the anchor, as the kernel names it, and that
//!    is of the same user: what a peer says of itself could lead it into the memory of a third process, or of a program
//!    of another user's.
//! 5. A receiver that could fetch nothing once asks no more on this connection, and one that the kernel has refused the
//!    right to look into another process does not in this process.
//! 6. Each time the sender has waited in vain it lends nothing for twice as many messages as before.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_guest::process;
use beeline_meeting::trust;
use beeline_stats::Counter;
use beeline_stats::tunables::{Threshold, option};

use crate::desc::Desc;
use crate::side::state;
use crate::trials::{Found, Terms, Trials};
use crate::{Errno, kernel, stats};

/// The shortest message that is lent, and the room for which is fetched, whatever the options say.
pub const LENT_BYTES_MIN: usize = 16 * 1024;
/// The same with `auto`: below, what both ends tell each other costs more than the copy.
const LENT_BYTES_AUTO: usize = 48 * 1024;
/// Messages by the ring after the first wait in vain, and after many.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1 << 16;

/// What the connection that tried last has found: windows before the next trial, and whether lending was faster.
static PAUSE: AtomicU32 = AtomicU32::new(0);
static IT_PAYS: AtomicBool = AtomicBool::new(false);
/// The kernel does not let this process look into others.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Of [`Loans::lender`]: nobody has asked, and nobody is to be fetched from. Else it is a process.
const UNASKED: u32 = 0;
const NOBODY: u32 = u32::MAX;

/// How both ways are tried in a ring of so many bytes.
const fn terms(ring_bytes: u32) -> Terms {
    Terms::of_ring(ring_bytes, 8, 8)
}

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
    /// Messages that still go by the ring.
    left: AtomicU32,
    /// How many it were after the last wait in vain.
    pause: AtomicU32,
    /// From whom is fetched.
    lender: AtomicU32,
    /// Whether a receive that waits may be one that fetches: then it does not wait in the quick path.
    fetches: AtomicBool,
    trials: Trials,
}

impl Loans {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.left.store(0, Relaxed);
        self.pause.store(0, Relaxed);
        self.lender.store(UNASKED, Relaxed);
        self.fetches.store(false, Relaxed);
        let pause = PAUSE.load(Relaxed).max(terms(0).pause_min);
        self.trials.reset(Found { second: IT_PAYS.load(Relaxed), pause });
    }

    /// A message that was to be timed took so long.
    pub fn sent(&self, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.trials.took(terms(ring_bytes), bytes, ticks);
        let found = self.trials.found();
        if found.pause != PAUSE.load(Relaxed) || found.second != IT_PAYS.load(Relaxed) {
            PAUSE.store(found.pause, Relaxed);
            IT_PAYS.store(found.second, Relaxed);
        }
    }

    /// Whether the message that begins may be lent.
    fn take_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// Something was lent, and the receiver has fetched it or not.
    pub fn lent(&self, is_fetched: bool) {
        let pause = match is_fetched {
            true => 0,
            false => self.pause.load(Relaxed).saturating_mul(2).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        self.pause.store(pause, Relaxed);
        self.left.store(pause, Relaxed);
    }

    /// Whether a receive with so much room that finds nothing may be one that fetches.
    #[inline]
    pub fn may_fetch(&self, room: usize) -> bool {
        room >= LENT_BYTES_MIN && self.fetches.load(Relaxed)
    }

    /// Nothing could be fetched.
    #[cold]
    pub fn failed(&self, errno: Option<Errno>) {
        self.lender.store(NOBODY, Release);
        self.fetches.store(false, Relaxed);
        if matches!(errno, Some(Errno(libc::EPERM | libc::ENOSYS))) {
            REFUSED.store(true, Relaxed);
        }
        stats::count(Counter::FetchesRefused, 1);
    }
}

impl Desc {
    /// How a long message is sent to a receiver on another CPU, by a call that may block.
    #[must_use]
    pub fn lends(&self) -> Way {
        let (least_bytes, is_timed) = match self.tunable(option::zcopy_threshold_bytes) {
            Threshold::Off => return Way { least_bytes: None, is_timed: false },
            Threshold::Bytes(bytes) => (usize::try_from(bytes).unwrap_or(usize::MAX), false),
            Threshold::Auto => (LENT_BYTES_AUTO, true),
        };
        let lends = (!is_timed || self.loans.trials.goes_second())
            && !self.shared.load(Relaxed)
            && !self.side().is(state::OFFERED | state::MET | state::BRIDGED)
            && self.loans.take_due();
        Way { least_bytes: lends.then_some(least_bytes.max(LENT_BYTES_MIN)), is_timed }
    }

    /// How much a receive that waits, and has so much room, says that it would fetch; 0 if it would not.
    #[must_use]
    pub fn wants(&self, fd: i32, room: usize) -> u32 {
        let least_bytes = match self.tunable(option::zcopy_threshold_bytes) {
            Threshold::Off => return 0,
            Threshold::Bytes(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            Threshold::Auto => LENT_BYTES_AUTO,
        };
        let wants = room >= least_bytes.max(LENT_BYTES_MIN) && self.lender(fd).is_some();
        self.loans.fetches.store(wants, Relaxed);
        if wants { u32::try_from(room).unwrap_or(u32::MAX) } else { 0 }
    }

    /// The process from which is fetched what the peer lends.
    #[must_use]
    pub fn lender(&self, fd: i32) -> Option<i32> {
        if self.shared.load(Relaxed) || REFUSED.load(Relaxed) || process::is_sealed() {
            return None;
        }
        let known = match self.loans.lender.load(Acquire) {
            UNASKED => self.ask_lender(fd),
            known => known,
        };
        if known == NOBODY { None } else { i32::try_from(known).ok() }
    }

    #[cold]
    fn ask_lender(&self, fd: i32) -> u32 {
        // An agent or a bridge has made the anchor, and is what the kernel names.
        let is_direct = !self.side().is(state::MET | state::BRIDGED);
        let peer = kernel::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
        let lender = match peer {
            Ok(peer) if is_direct && peer.pid > 0 && peer.uid == trust::euid() => peer.pid.cast_unsigned(),
            _ => NOBODY,
        };
        self.loans.lender.store(lender, Release);
        lender
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_become_rare_and_one_that_is_fetched_ends_that() {
        let loans = Loans::default();
        loans.reset();
        let mut tried = 0;
        for _ in 0..100_000 {
            if loans.take_due() {
                tried += 1;
                loans.lent(false);
            }
        }
        assert!((8..=16).contains(&tried), "{tried}");
        while !loans.take_due() {}
        loans.lent(true);
        assert!((0..100).all(|_| loans.take_due()));
    }

    #[test]
    fn who_could_fetch_nothing_asks_no_more() {
        let loans = Loans::default();
        loans.reset();
        loans.fetches.store(true, Relaxed);
        assert!(loans.may_fetch(LENT_BYTES_MIN) && !loans.may_fetch(LENT_BYTES_MIN - 1));
        loans.failed(None);
        assert!(!loans.may_fetch(1 << 20) && loans.lender.load(Relaxed) == NOBODY && !REFUSED.load(Relaxed));
    }
}

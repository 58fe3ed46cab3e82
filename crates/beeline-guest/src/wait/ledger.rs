//! What a waiter's spins may cost: an account in which won ones pay in, and from which those in vain are paid.
//!
//! 1. A wait is *soon* if news of a lane ended it within `spin_ns_max`, spinning or asleep. It pays in [`SOON_NS`], which is
//!    half or less of what a sleep and its wake-up take of two CPUs. A spin in vain is paid from that, and none is longer
//!    than what is left. So however news comes, what is spun in vain is at most what the account began with and a
//!    part of what soon waits have spared.
//! 2. News that came soon is no reason to spin for the next if most does not. The account knows what share of the last waits were
//!    soon: spins begin where three of four are, and end where hardly more than every second is. A wait that ended for
//!    another reason, a kernel socket or a timer beside lanes, was not: a sleep would have heard of that as soon.
//! 3. Both ends of a conversation may be asleep at each message only because the other is: neither hears within
//!    `spin_ns_max` what takes two wake-ups. Such a wait is *fair*: its news came within [`PROBE_FACTOR`] times as long. It
//!    pays in [`FAIR_NS`]. Where nearly all waits are fair, and the account has as much, a spin of that length is a probe:
//!    it is most likely to end with news. If that news is soon the waiter spins from then on. If not, the probe is paid for,
//!    and fair waits pay in less and less, so that probes are not what the slowest in a hundred messages wait for, and not
//!    what anything costs. Within twice as long the peer may have had to wake up first: the next waits show it.
//! 4. A spin during which something else ran on its CPU is the last, until a wait is soon.
//! 5. A waiter that begins takes over what share of waits were soon in this process of late, and begins
//!    with nothing where that is too small: connections that live for a few messages have no time to learn it.

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::SPIN_NS_MIN;

/// What a soon wait pays in.
pub(super) const SOON_NS: u32 = 10_000;
/// What a fair wait pays in.
pub(super) const FAIR_NS: u32 = 2_000;
/// How many times longer than the longest spin a probe is.
pub(super) const PROBE_FACTOR: u32 = 4;
/// How often probes in vain halve what fair waits pay in.
const HALVINGS: u8 = 4;
/// How many longest spins soon waits pay in beforehand, and an account begins with.
pub(super) const AHEAD: u32 = 2;

/// All of the last waits, as a share of them is counted.
const ALL: u8 = u8::MAX;
/// Spins begin where so many waits are soon: three of four.
const BEGIN: u8 = 192;
/// And end where so few are: a little more than half.
const END: u8 = 144;
/// Probes are made where so many waits are fair: seven of eight.
const FAIR: u8 = 224;

/// How one wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// With news of a lane for which was spun that long.
    Won(u32),
    /// With news of a lane for which was slept, after that long in all.
    Slept(u32),
    /// With something else.
    Otherwise,
}

/// The account of one waiter. All zeros is one that does not spin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ledger {
    /// Nanoseconds that may be spun in vain.
    credit_ns: u32,
    /// Share of the last waits that were soon.
    soon: u8,
    /// Share of the last waits that were fair.
    fair: u8,
    /// How often probes were in vain, as far as it counts.
    halvings: u8,
    /// Whether waits spin.
    spins: bool,
}

impl Ledger {
    /// The account of a waiter that begins, where that share of waits were soon of late and `longest` is the longest spin.
    pub(super) fn new(soon: u8, longest: u32) -> Self {
        let spins = soon >= BEGIN && longest != 0;
        let credit_ns = if spins { longest.saturating_mul(AHEAD) } else { 0 };
        Self { credit_ns, soon, fair: 0, halvings: 0, spins }
    }

    /// How long the next wait may spin.
    pub(super) fn grant(&self, longest: u32) -> u32 {
        let probe = longest.saturating_mul(PROBE_FACTOR);
        match self.spins {
            true => self.credit_ns.min(longest),
            false if self.fair >= FAIR && self.credit_ns >= probe => probe,
            false => 0,
        }
    }

    /// Whether another soon wait would change nothing.
    pub(super) fn is_full(&self, longest: u32) -> bool {
        self.spins && self.credit_ns >= longest.saturating_mul(AHEAD) && self.soon >= ALL - 8
    }

    /// A spin of that length was in vain. How the wait ended is yet to be told, if the wait goes on.
    pub(super) fn spun_in_vain(&mut self, spun_ns: u32, preempted: bool, longest: u32) {
        self.credit_ns = self.credit_ns.saturating_sub(spun_ns);
        if !self.spins {
            self.probed_in_vain();
        }
        if preempted {
            self.credit_ns = self.credit_ns.min(longest.saturating_sub(SOON_NS));
        }
        self.spins &= !preempted && self.credit_ns >= SPIN_NS_MIN;
    }

    fn probed_in_vain(&mut self) {
        self.halvings = self.halvings.saturating_add(1).min(HALVINGS);
    }

    /// A wait has ended. Sleeps of this waiter are worth `extra_ns` more than those of others.
    pub(super) fn ended(&mut self, ended: Ended, longest: u32, extra_ns: u32) {
        let soon_ns = longest.saturating_add(extra_ns);
        let fair_ns = longest.saturating_mul(PROBE_FACTOR).saturating_add(extra_ns);
        match ended {
            Ended::Won(ns) if ns <= soon_ns => {
                if !self.spins {
                    // A probe has shown that both ends slept only because the other did.
                    self.soon = self.soon.max(BEGIN);
                    self.spins = true;
                }
                self.halvings = 0;
                self.is_soon(longest);
            }
            Ended::Won(ns) => {
                self.credit_ns = self.credit_ns.saturating_sub(ns);
                self.probed_in_vain();
                self.is_fair(longest);
                if ns <= soon_ns.saturating_mul(2) {
                    self.soon = self.soon.max(BEGIN);
                }
            }
            Ended::Slept(ns) if ns <= soon_ns => self.is_soon(longest),
            Ended::Slept(ns) if ns <= fair_ns => self.is_fair(longest),
            Ended::Slept(_) | Ended::Otherwise => {
                miss(&mut self.soon);
                miss(&mut self.fair);
            }
        }
        let enough = if self.spins { SPIN_NS_MIN } else { longest };
        let often = if self.spins { END } else { BEGIN };
        self.spins = self.soon >= often && self.credit_ns >= enough.max(SPIN_NS_MIN);
    }

    fn is_soon(&mut self, longest: u32) {
        hit(&mut self.soon);
        hit(&mut self.fair);
        self.pay_in(SOON_NS, longest.saturating_mul(AHEAD));
    }

    fn is_fair(&mut self, longest: u32) {
        miss(&mut self.soon);
        hit(&mut self.fair);
        self.pay_in(FAIR_NS >> self.halvings, longest.saturating_mul(PROBE_FACTOR));
    }

    fn pay_in(&mut self, ns: u32, most: u32) {
        self.credit_ns = self.credit_ns.saturating_add(ns).min(most.max(self.credit_ns));
    }

    pub(super) fn to_bits(self) -> u64 {
        let [a, b, c, d] = self.credit_ns.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, self.soon, self.fair, self.halvings, u8::from(self.spins)])
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, soon, fair, halvings, spins] = bits.to_ne_bytes();
        Self { credit_ns: u32::from_ne_bytes([a, b, c, d]), soon, fair, halvings, spins: spins != 0 }
    }
}

/// One more of the last waits was: each counts for an eighth.
fn hit(share: &mut u8) {
    *share = share.saturating_add((ALL - *share).div_ceil(8));
}

/// One more was not.
fn miss(share: &mut u8) {
    *share = share.saturating_sub(share.div_ceil(8));
}

/// What share of the waits of a process were soon of late, in 65,536ths, less 1: 31 of 32 parts of it are older than one wait.
/// Waits of waiters whose accounts are full are not counted: they say nothing new.
pub(super) struct Lately(AtomicU32);

impl Lately {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0xffff))
    }

    pub(super) fn note(&self, soon: bool) {
        let share = self.0.load(Relaxed);
        let next = if soon { share + (0xffff - share).div_ceil(32) } else { share - share.div_ceil(32) };
        if next != share {
            self.0.store(next, Relaxed);
        }
    }

    pub(super) fn soon(&self) -> u8 {
        (self.0.load(Relaxed) >> 8) as u8
    }
}

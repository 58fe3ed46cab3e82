//! Sleeps of peers that this process has rung for (rule 8 of waking a reader, [`beeline_lane`]).
//!
//! A sleep is known by its number and by the process that sleeps, as the kernel names that: a number alone might be one
//! that a process has seen with another and says for its own, so that the other is not rung. Where the kernel does not
//! tell who is at the other end, each lane is rung.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::desc::Desc;
use crate::kernel;
use crate::side::state;

const PLACES: usize = 64;
/// Spreads what differs in few bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// In [`Desc::peer`]: nobody knows.
const UNKNOWN: u64 = u64::MAX;

/// The last sleeps that were rung for, each in the place that its name gives it. One that is forgotten is rung for
/// again.
static RUNG: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// A sleep of a process.
pub(crate) struct Rung {
    name: u64,
}

impl Rung {
    /// The sleep with this number of the process at the other end of a lane, whose anchor is `fd`. `None` if that is
    /// not known.
    pub(crate) fn of(desc: &Desc, fd: i32, sleep: u64) -> Option<Self> {
        let peer = match desc.peer.load(Relaxed) {
            0 => ask(desc, fd),
            known => known,
        };
        if peer == UNKNOWN {
            return None;
        }
        let secret = secret()?;
        Some(Self::named(secret, peer, sleep))
    }

    fn named(secret: u64, peer: u64, sleep: u64) -> Self {
        Self { name: sleep ^ peer.wrapping_mul(secret) }
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.name != 0 && self.place().is_some_and(|place| place.load(Acquire) == self.name)
    }

    /// A bell of it lies in an anchor.
    pub(crate) fn note(&self) {
        if let Some(place) = self.place() {
            place.store(self.name, Release);
        }
    }

    fn place(&self) -> Option<&'static AtomicU64> {
        let index = self.name.wrapping_mul(SPREAD) >> (u64::BITS - PLACES.ilog2());
        RUNG.get(index as usize)
    }
}

/// What keeps a process from naming its sleep so that it is taken for another one's: an odd number. `None` if the
/// kernel has no chance to give.
fn secret() -> Option<u64> {
    static SECRET: AtomicU64 = AtomicU64::new(0);
    let known = SECRET.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let [fresh] = kernel::chance()?;
    let fresh = fresh | 1;
    Some(SECRET.compare_exchange(0, fresh, Relaxed, Relaxed).map_or_else(|other| other, |_| fresh))
}

impl Desc {
    /// Notes which process the kernel has named at the other end of a lane's anchor; 0 if it has no name here.
    pub fn know_peer(&self, pid: u32) {
        if pid != 0 && !self.side().is(state::MET | state::BRIDGED) {
            self.peer.store(pid.into(), Relaxed);
        }
    }
}

/// Asks the kernel who has the other end, once.
#[cold]
fn ask(desc: &Desc, fd: i32) -> u64 {
    let peer = match kernel::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED) {
        // An agent or a bridge has made the anchor, and is what the kernel names.
        Ok(_) if desc.side().is(state::MET | state::BRIDGED) => UNKNOWN,
        // One in a pid namespace that is not seen from here has no number.
        Ok(peer) if peer.pid > 0 => u64::from(peer.pid.cast_unsigned()),
        _ => UNKNOWN,
    };
    desc.peer.store(peer, Relaxed);
    peer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep_of(peer: u64, sleep: u64) -> Rung {
        Rung::named(secret().unwrap(), peer, sleep)
    }

    #[test]
    fn a_sleep_is_noted_for_its_process_alone_and_until_another_takes_its_place() {
        let (ours, theirs) = (sleep_of(7, 42), sleep_of(8, 42));
        assert!(!ours.is_noted());
        ours.note();
        assert!(ours.is_noted() && sleep_of(7, 42).is_noted() && !theirs.is_noted() && !sleep_of(7, 43).is_noted());
        let same_place = (0..)
            .map(|number| sleep_of(7, number))
            .find(|other| other.name != ours.name && core::ptr::eq(other.place().unwrap(), ours.place().unwrap()));
        same_place.unwrap().note();
        assert!(!ours.is_noted());
    }
}

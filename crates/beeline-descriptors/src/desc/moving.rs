//! What is kept of a connection that began on TCP and may move to a lane (`docs/design/0009-moving.md`, whose rules are cited by
//! number). The description is [`super::Kind::Tcp`] until it has moved.
//!
//! 1. Who makes a call on the socket comes in before it and goes out after it. A call that does not come back, since its thread was cancelled
//!    or has jumped out of it, stays in for ever: such a connection does not move.
//! 2. Who switches sets [`Stage::Switching`], and then looks who is in; who comes in counts itself, and then looks at the stage. Both are
//!    sequentially consistent, so one of the two sees the other.
//! 3. The parts belong to whoever has set [`Stage::Busy`] or [`Stage::Switching`], and to nobody while the stage is another one.
//! 4. Whoever only looks at the words of the lane does so within [`Moving::look`]. They are taken out under the same lock, so what is looked
//!    at is not unmapped, nor another connection's, meanwhile. Nothing is waited for under it.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use beeline_meeting::pool::{PooledLane, Side};

use crate::lock::Lock;
use crate::side::SideState;

/// Messages after which the agent is asked for the first time.
pub const MESSAGES: u32 = 8;

/// Where a connection is on its way to a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stage {
    /// It does not move.
    None = 0,
    /// A client's, of which nobody knows yet.
    Client = 1,
    /// A server's, likewise.
    Server = 2,
    /// A client's, whose lane is at the agent.
    Offered = 3,
    /// A server's, who has taken the lane and goes on over TCP.
    Joined = 4,
    /// Somebody is at the parts.
    Busy = 5,
    /// Somebody puts the lane in the socket's place: whoever comes waits.
    Switching = 6,
}

/// What a call does on the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// It reads, or waits for something to read.
    Reads,
    /// It writes.
    Writes,
}

/// A lane that is ready.
#[derive(Clone, Copy)]
pub struct Parts {
    /// The lane, with the holder.
    pub lane: &'static PooledLane,
    /// The anchor, hidden.
    pub anchor: i32,
    /// The side.
    pub side: Side,
    /// Whether the connection ends when its TCP connection does.
    pub cuts: bool,
}

/// In [`Moving::as_lane`]: the description is a lane that began on TCP.
const MOVED: u32 = 1;
/// In the same: bytes to it may still come over TCP, which the side knows for certain.
const CROSSES: u32 = 2;

/// See the module. Valid when zeroed.
#[repr(C)]
pub struct Moving {
    stage: AtomicU32,
    /// How many calls are in, below the number of the description's use: one that comes out late counts for no other.
    readers: AtomicU64,
    writers: AtomicU64,
    messages: AtomicU32,
    next: AtomicU32,
    /// Of a server: the place of its listener on the agent's page, plus one.
    pub place: AtomicU32,
    cuts: AtomicBool,
    anchor: AtomicI32,
    side_memfd: AtomicI32,
    side: AtomicPtr<SideState>,
    lane: AtomicPtr<PooledLane>,
    /// Rule 4.
    looks: Lock,
    /// What those who have neither a lock nor a pin, and so must not look at the side, are to know of a lane.
    as_lane: AtomicU32,
}

impl Moving {
    /// For the next use of the description, which has this number.
    pub(super) fn clear(&self, begun: u32) {
        for word in [&self.stage, &self.messages, &self.place, &self.as_lane] {
            word.store(0, Relaxed);
        }
        for inside in [&self.readers, &self.writers] {
            inside.store(u64::from(begun) << 32, Relaxed);
        }
        self.next.store(MESSAGES, Relaxed);
        self.lane.store(core::ptr::null_mut(), Relaxed);
    }

    /// In the child of a `fork`: no other thread of this process is at anything, and the connection, which is shared now, does not move.
    #[inline]
    pub(super) fn forget_other_threads(&self) {
        self.looks.reset();
        // A page that nobody writes to stays shared.
        if self.stage.load(Relaxed) != 0 {
            self.stage.store(0, Relaxed);
        }
        for inside in [&self.readers, &self.writers] {
            let word = inside.load(Relaxed);
            if word as u32 != 0 {
                inside.store(word >> 32 << 32, Relaxed);
            }
        }
    }

    /// The description is about to become a lane that began on TCP.
    pub fn begin_lane(&self, crosses: bool) {
        self.as_lane.store(if crosses { MOVED | CROSSES } else { MOVED }, Relaxed);
    }

    /// Whether the description, if it is a lane, began on TCP.
    #[must_use]
    #[inline]
    pub fn has_moved(&self) -> bool {
        self.as_lane.load(Relaxed) & MOVED != 0
    }

    /// Whether bytes to it may still come over TCP.
    #[must_use]
    #[inline]
    pub fn may_cross(&self) -> bool {
        self.as_lane.load(Relaxed) & CROSSES != 0
    }

    /// They do not. The caller has the rx lock.
    pub fn has_crossed(&self) {
        self.as_lane.fetch_and(!CROSSES, Relaxed);
    }

    /// Where the connection is.
    #[must_use]
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            1 => Stage::Client,
            2 => Stage::Server,
            3 => Stage::Offered,
            4 => Stage::Joined,
            5 => Stage::Busy,
            6 => Stage::Switching,
            _ => Stage::None,
        }
    }

    /// Whether it may move, or is at it.
    #[must_use]
    #[inline]
    pub fn is_candidate(&self) -> bool {
        self.stage.load(Relaxed) != 0
    }

    /// From one stage to the next. False if it is not there.
    #[must_use]
    pub fn step(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u32, to as u32, SeqCst, SeqCst).is_ok()
    }

    /// Sets the stage, for whoever has it.
    pub fn set(&self, stage: Stage) {
        self.stage.store(stage as u32, SeqCst);
    }

    /// A call comes in, that found the description in this use. False if that is over.
    #[must_use]
    pub fn come_in(&self, way: Way, begun: u32) -> bool {
        let more = |word: u64| ((word >> 32) as u32 == begun).then(|| word.wrapping_add(1));
        self.count(way).fetch_update(SeqCst, Relaxed, more).is_ok()
    }

    /// It goes out, if that use is not over.
    pub fn go_out(&self, way: Way, begun: u32) {
        let less = |word: u64| ((word >> 32) as u32 == begun && word as u32 != 0).then(|| word.wrapping_sub(1));
        let _ = self.count(way).fetch_update(SeqCst, Relaxed, less);
    }

    /// How many are in.
    #[must_use]
    pub fn inside(&self, way: Way) -> u32 {
        self.count(way).load(SeqCst) as u32
    }

    fn count(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Reads => &self.readers,
            Way::Writes => &self.writers,
        }
    }

    /// Counts a message. Whether there have been so many that the agent is to be asked.
    #[must_use]
    pub fn count_message(&self) -> bool {
        let messages = self.messages.load(Relaxed).wrapping_add(1);
        self.messages.store(messages, Relaxed);
        messages >= self.next.load(Relaxed)
    }

    /// The agent is not asked again before a quarter more messages have gone.
    pub fn put_off(&self) {
        let messages = self.messages.load(Relaxed);
        self.next.store(messages.saturating_add((messages / 4).max(MESSAGES)), Relaxed);
    }

    /// Keeps the parts.
    pub fn keep(&self, parts: &Parts) {
        self.cuts.store(parts.cuts, Relaxed);
        self.anchor.store(parts.anchor, Relaxed);
        self.side.store(core::ptr::from_ref(parts.side.state).cast_mut(), Relaxed);
        self.side_memfd.store(parts.side.memfd.map_or(0, |fd| fd.saturating_add(1)), Relaxed);
        self.lane.store(core::ptr::from_ref(parts.lane).cast_mut(), Release);
    }

    /// Looks at the words of the lane, if there is one (rule 4).
    pub fn look<R>(&self, look: impl FnOnce(&'static PooledLane) -> R) -> Option<R> {
        let _guard = self.looks.lock();
        // SAFETY: null, or what `keep` was given: an object of a slab, which is never unmapped.
        unsafe { self.lane.load(Acquire).as_ref() }.map(look)
    }

    /// Takes the parts, if there are any.
    #[must_use]
    pub fn take(&self) -> Option<Parts> {
        let lane = {
            let _guard = self.looks.lock();
            self.lane.swap(core::ptr::null_mut(), Acquire)
        };
        // SAFETY: as in `look`.
        let lane = unsafe { lane.as_ref() }?;
        // SAFETY: `keep` was given both together.
        let state = unsafe { self.side.load(Relaxed).as_ref() }?;
        let memfd = self.side_memfd.load(Relaxed).checked_sub(1).filter(|fd| *fd >= 0);
        let (anchor, cuts) = (self.anchor.load(Relaxed), self.cuts.load(Relaxed));
        Some(Parts { lane, anchor, side: Side { state, memfd }, cuts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_goes_out_late_counts_for_no_other_use_of_the_description() {
        // SAFETY: all fields are atomics, or made of such, for which zero is valid.
        let moving: Moving = unsafe { core::mem::zeroed() };
        moving.clear(7);
        assert!(moving.come_in(Way::Reads, 7) && !moving.come_in(Way::Writes, 6));
        assert_eq!([moving.inside(Way::Reads), moving.inside(Way::Writes)], [1, 0]);
        moving.clear(8);
        assert!(moving.come_in(Way::Reads, 8));
        moving.go_out(Way::Reads, 7);
        assert_eq!(moving.inside(Way::Reads), 1);
        moving.go_out(Way::Reads, 8);
        moving.go_out(Way::Reads, 8);
        assert_eq!(moving.inside(Way::Reads), 0);
    }

    #[test]
    fn in_the_child_of_a_fork_nothing_moves_and_nobody_is_inside() {
        // SAFETY: as above.
        let moving: Moving = unsafe { core::mem::zeroed() };
        moving.clear(1);
        moving.set(Stage::Joined);
        assert!(moving.come_in(Way::Writes, 1));
        core::mem::forget(moving.looks.lock());
        moving.forget_other_threads();
        assert!(!moving.is_candidate() && moving.inside(Way::Writes) == 0);
        assert!(moving.look(|_| ()).is_none() && moving.come_in(Way::Writes, 1));
    }
}

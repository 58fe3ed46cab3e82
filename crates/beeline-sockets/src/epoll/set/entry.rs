//! One watched fd.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::super::events::{READABLE, WRITABLE};
use super::{Companion, FaultCell, Heat, Registered, Seen};
use crate::desc::Desc;
use crate::static_ref::StaticRef;

/// One watched fd. Changed only under the set's lock.
#[derive(Default)]
#[repr(C)]
pub struct Entry {
    /// Whether the entry is in use.
    pub used: AtomicBool,
    /// `EPOLLONESHOT` has fired.
    pub fired: AtomicBool,
    /// The kernel has told of a member that is its own, and was asked for one shot.
    pub spent: AtomicBool,
    /// The kernel no longer watches the anchor: it is dead and would report so for ever.
    pub dead: AtomicBool,
    /// Both halves of the anchor are shut, and that is no end: the kernel is to tell of it by edges, or it would for
    /// ever.
    pub hung: AtomicBool,
    /// The kernel is to tell of the anchor by edges although the app asked for levels ([`super::super::lying`]).
    pub edged: AtomicBool,
    /// Sleeps upon it by threads that slept on the set alone, until it is told of by edges.
    pub sleeps: AtomicU32,
    /// Whether the kernel watches the anchor for `EPOLLOUT`.
    pub kernel_out: AtomicBool,
    /// Whether it told of room the last time, and of none that was news.
    pub known_room: AtomicBool,
    /// A fault of the peer that nobody has dealt with yet.
    pub fault: FaultCell,
    /// Whether the app has deleted the entry and the kernel still has it. Then it is not in use.
    pub parked: AtomicBool,
    /// What the app asked for.
    pub events: AtomicU32,
    /// What the app wants back.
    pub data: AtomicU64,
    /// What was reported of it.
    pub seen: Seen,
    /// What the fd leads to; nowhere for fds that are the kernel's alone.
    pub desc: StaticRef<Desc>,
    /// The call that reported the entry last.
    pub call: AtomicU32,
    /// The number of its addition to the set.
    pub added: AtomicU32,
    /// Its place among the members that were ready when they were looked at last; 0 for one that was not.
    pub place: AtomicU32,
    /// The number of a ghost.
    pub ghost_of: AtomicI32,
    /// Next in the hash chain.
    pub chain: AtomicI32,
    /// What the kernel was told of it.
    pub registered: Registered,
    /// Whether it is hot.
    pub heat: Heat,
    /// Whether it is cold and named a sleep with others.
    pub companion: Companion,
}

impl Entry {
    /// Whether the app asked to be told of room.
    pub fn asks_for_room(&self) -> bool {
        self.events.load(Relaxed) & WRITABLE != 0
    }

    /// What the fd leads to.
    pub fn desc(&self) -> Option<&'static Desc> {
        self.desc.load(Relaxed)
    }

    pub(super) fn renew(&self, events: u32, data: u64) {
        self.events.store(events, Relaxed);
        self.data.store(data, Relaxed);
        self.fired.store(false, Relaxed);
        self.spent.store(false, Relaxed);
        if let Some(desc) = self.desc() {
            desc.pace.hand_out(events & READABLE == 0);
        }
        self.seen.refresh();
        self.heat.reset_idle_looks();
    }
}

//! Descriptions: what this process knows about an open file description.
//!
//! A [`Desc`] is private to the process; several fds of the process may lead to one (`dup`). What the
//! holders of a connection in different processes must agree on is in the side it points to.
//!
//! # Life
//!
//! 1. `kind` says what the description is. It changes only while both locks are held.
//! 2. An operation takes `tx` or `rx`, then checks that the fd still leads here ([`crate::guards::lane_tx`]).
//!    Holding either lock keeps the lane and the side mapped.
//!    A lock of the side, which other processes wait for, is never waited for with another one held, and is given
//!    back before a system call that a send makes ([`TxGuard::let_others_in`]).
//! 3. An operation that sleeps first pins the description and lets its locks go. After the sleep it checks
//!    again: the description may have become something else, and the fd may have been closed. Then the description has
//!    another, until the operation ends ([`crate::linger`]).
//! 4. Closing the last fd makes the kind `Closed`. When the last pin is gone, too, the lane is given back and the
//!    description returns to its slab.
//! 5. The lane and its side stay mapped for whoever finds a lane here and has one of these: `tx` or `rx`; a pin that
//!    was made while a number led here; a change that keeps out all who might take the last number away
//!    ([`crate::changing`]); the lock of an epoll set with an entry that leads here, as a close takes entries out under
//!    that lock ([`crate::watchers`]) before it retires the lane; the lock of the list of offers that it is in, as
//!    retiring takes it out of that first (`offers` of beeline-sockets). Nobody else calls [`Desc::lane`] or
//!    [`Desc::side`], but who retires them.

mod connectable;
mod draft;
mod edges;
mod guards;
mod keepers;
mod lending;
mod pace;
mod pin;
mod portion;
pub(crate) mod reach;
mod waits;

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_lane::{End, LaneMemory};
use beeline_meeting::paths::TicketCell;
use beeline_meeting::pool::PooledLane;
use beeline_stats::layout::ConnectionSlot;

use crate::fd_cell::FdCell;
use crate::lock::Lock;
use crate::operations::{self, Operations};
use crate::side::{SideState, state};
use crate::slab::{Slab, Stable};
use crate::static_ref::StaticRef;
use crate::wait::SpinState;

pub use connectable::{Connectable, ConnectableCell};
pub use draft::Draft;
pub use edges::{ByEdges, EdgeSet};
pub use guards::{RxGuard, TxGuard, Unlocked};
pub use keepers::Keepers;
pub use pace::Pace;
pub use pin::Pin;
pub use portion::Portion;

/// What a description is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Not in use.
    Free = 0,
    /// A TCP socket that this process made and that may yet become something else.
    Tcp = 1,
    /// A listening TCP socket, perhaps with a door.
    Listener = 2,
    /// A connection over a lane; the fd is its anchor.
    Lane = 3,
    /// An epoll set.
    Epoll = 4,
    /// An anchor whose lane this process cannot use; every operation fails with `ECONNRESET`.
    Orphan = 5,
    /// Closed by the app; some sleeping operation still holds it.
    Closed = 6,
}

/// See the module.
#[repr(C, align(128))]
pub struct Desc {
    kind: AtomicU32,
    /// Whether other processes may hold this end: then the side's locks are taken, too.
    pub shared: AtomicBool,
    /// Which end of the lane this is.
    end: AtomicU8,
    tx_lock: Lock,
    rx_lock: Lock,
    lane: AtomicUsize,
    ring_bytes: AtomicU32,
    /// Whether it pays to spin for the connection.
    pub spin: SpinState,
    /// What holds for this connection alone.
    pub own: crate::own::Own,
    side: AtomicPtr<SideState>,
    /// Where this end's front is, for those who only hint at it.
    front: AtomicPtr<u8>,
    /// When a receive begins without looking.
    pub read_pacing: crate::read_pacing::ReadPacing,
    /// How far the lane's ring reaches, as [`crate::reclaim`] counts.
    pub granules: AtomicU32,
    /// The lane's peer is a bridge.
    pub bridged: AtomicBool,
    /// What calls have seen lately.
    pub pace: Pace,
    /// What is read after an edge before others have their turn.
    pub portion: Portion,
    /// How long messages are copied.
    pub bulk: crate::bulk::Bulk,
    /// Whether they give a receiver on this CPU its turn.
    pub turns: crate::turns::Turns,
    /// Whether they are lent instead, and from whom is fetched.
    pub loans: crate::loans::Loans,
    /// Where the connection's figures go, if it has a slot. That is of this process's file, which stays mapped: the
    /// descriptions of a child have none of their parent's.
    pub slot: StaticRef<ConnectionSlot>,
    /// An fd of this process that leads here.
    pub fd: AtomicI32,
    /// For the client's end of a connection that nobody has taken yet: when that is to be looked at (the lowest bit
    /// tells that it was put off once), and the next such connection (`offers` of beeline-sockets). 0 for any other.
    pub offered_until_ns: AtomicU64,
    pub next_offer: StaticRef<Desc>,
    /// When its hello was said.
    pub offered_ns: AtomicU64,
    /// Whether a thread takes the connection over to TCP.
    pub leaving: AtomicBool,
    /// Whether a thread asks the relay for the connection's socket ([`crate::follow`]).
    pub follows: AtomicBool,
    /// Who keeps the description.
    pub keepers: Keepers,
    /// Entries of epoll sets that lead here.
    pub entries: AtomicU32,
    /// Parked entries of epoll sets that lead here.
    pub parked: AtomicU32,
    /// Which process has the other end of the lane ([`crate::rung`]); 0 as long as nobody has asked.
    pub peer: AtomicU64,
    /// `forks` of the process when the socket was made: a fork since then may share it.
    pub born: AtomicU32,
    /// How often the description has begun, so that one use of it is told from the next.
    begun: AtomicU32,
    /// The number of the `fork` that has counted a holder more last, 0 for none (`life` of beeline-sockets).
    pub counted_by: AtomicU32,
    /// `AF_INET` or `AF_INET6`.
    pub family: AtomicU32,
    /// Options set before the connection.
    pub draft: Draft,
    /// Which measurement the connection belongs to.
    pub ticket: TicketCell,
    /// What the layers above do with the description.
    pub operations: operations::Table,
    /// The listener's state, for [`Kind::Listener`]. This field and the next lead to objects of layers above, and are
    /// read and written by the module of the object's type alone (`Listener::of`). They are not one field, as the
    /// kernel's `private_data` is: who has found a description without a lock may find it to be of another kind a
    /// moment later, and then shall find no object, never one of another type.
    pub listener: AtomicPtr<()>,
    /// The set, for [`Kind::Epoll`].
    pub set: AtomicPtr<()>,
    /// The lane as the pool knows it, for giving it back.
    pooled: StaticRef<PooledLane>,
    /// The side's memfd, hidden, if it is kept.
    side_memfd: FdCell,
    /// By which the only one who sleeps on a lane is told of bells.
    pub edges: EdgeSet,
    /// Of [`Kind::Orphan`], whether the peer was told that this end does not work.
    pub(crate) orphan_told: AtomicBool,
    next_free: StaticRef<Desc>,
}

// SAFETY: every field is an atomic for which zero is valid.
unsafe impl Stable for Desc {
    fn next_free(&self) -> &StaticRef<Self> {
        &self.next_free
    }

    fn forget_other_threads(&self) {
        Desc::forget_other_threads(self);
    }
}

/// All descriptions of the process.
#[unsafe(link_section = ".fork.locked")]
pub static DESCS: Slab<Desc> = Slab::new();

/// A description is its address: two are never the same, whatever is in them.
impl PartialEq for Desc {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Desc {
    /// What the description is.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.kind.load(Acquire) {
            1 => Kind::Tcp,
            2 => Kind::Listener,
            3 => Kind::Lane,
            4 => Kind::Epoll,
            5 => Kind::Orphan,
            6 => Kind::Closed,
            _ => Kind::Free,
        }
    }

    /// Whether it is a lane.
    #[must_use]
    #[inline(always)]
    pub fn is_lane(&self) -> bool {
        self.kind.load(Acquire) == Kind::Lane as u32
    }

    /// Changes what the description is, under both locks.
    pub fn become_kind(&self, kind: Kind) {
        let _tx = self.tx_lock.lock();
        let _rx = self.rx_lock.lock();
        self.kind.store(kind as u32, Release);
    }

    /// Makes the description a lane. Its fields are published with the kind.
    pub fn become_lane(&self, lane: LaneMemory, side: &'static SideState, end: End) {
        let _tx = self.tx_lock.lock();
        let _rx = self.rx_lock.lock();
        self.lane.store(lane.address(), Relaxed);
        self.ring_bytes.store(lane.ring_bytes(), Relaxed);
        self.side.store(core::ptr::from_ref(side).cast_mut(), Relaxed);
        self.end.store(end as u8, Relaxed);
        self.front.store(lane.front_address(end).cast_mut(), Relaxed);
        self.shared.store(false, Relaxed);
        self.counted_by.store(0, Relaxed);
        self.own.begin(end, side);
        self.spin.begin(self.wait_mode());
        self.read_pacing.reset();
        self.bulk.reset();
        self.turns.reset();
        self.loans.reset();
        self.pace.begin();
        self.portion.begin();
        self.bridged.store(side.is(state::BRIDGED), Relaxed);
        self.show_cpu();
        crate::side::mark_linger(&lane, end, side);
        self.kind.store(Kind::Lane as u32, Release);
    }

    /// The lane's memory. Only for lanes.
    #[must_use]
    #[inline(always)]
    pub fn lane(&self) -> LaneMemory {
        // SAFETY: `become_lane` stored the address and size of one mapping, which `end_if_due` alone has unmapped; the
        // caller keeps it in one of the ways of rule 5 of the module.
        unsafe { LaneMemory::from_parts(self.lane.load(Relaxed), self.ring_bytes.load(Relaxed)) }
    }

    /// Asks for this end's front to be ours for writing, as a send is about to do it: the peer that waits for it has
    /// the line, which is on its way while the send is still making up its mind (measured: 100 ns one way without, 85
    /// with). No lock need be held, and this need not be a lane: a hint about an address is harmless wherever that
    /// leads.
    #[inline(always)]
    pub fn prefetch_front(&self) {
        beeline_shm::prefetch_write(self.front.load(Relaxed));
    }

    /// The side. Only for lanes.
    #[must_use]
    #[inline(always)]
    pub fn side(&self) -> &'static SideState {
        // SAFETY: as for `lane`: the reference lives as long as the mapping.
        unsafe { &*self.side.load(Relaxed) }
    }

    /// Which end of the lane this is.
    #[must_use]
    #[inline(always)]
    pub fn end(&self) -> End {
        if self.end.load(Relaxed) & 1 == 0 { End::Client } else { End::Server }
    }

    /// Makes the description `Closed`. Both locks are held.
    pub fn mark_closed(&self) {
        self.kind.store(Kind::Closed as u32, Release);
    }

    /// Makes a lane a plain TCP socket again. Both locks are held; the lane stays mapped until the end.
    pub fn mark_tcp(&self) {
        self.edges.be_over(self.keepers.pins() == 0);
        self.kind.store(Kind::Tcp as u32, Release);
    }

    /// Makes a lane an anchor of no use. Both locks are held; the lane stays mapped until the end.
    pub fn mark_orphan(&self) {
        self.edges.be_over(self.keepers.pins() == 0);
        self.shared.store(false, Relaxed);
        self.orphan_told.store(false, Relaxed);
        self.kind.store(Kind::Orphan as u32, Release);
    }

    /// Whether a lane is mapped, in use or not any more.
    #[must_use]
    pub fn has_lane(&self) -> bool {
        self.lane.load(Relaxed) != 0
    }

    /// The side's memfd, if it is kept.
    #[must_use]
    pub fn side_memfd(&self) -> Option<i32> {
        self.side_memfd.get()
    }

    /// Keeps the side's memfd.
    pub fn keep_side_memfd(&self, fd: Option<i32>) {
        self.side_memfd.set(fd);
    }

    /// Takes the side's memfd out: for closing it.
    pub fn take_side_memfd(&self) -> Option<i32> {
        self.side_memfd.take()
    }

    /// The lane as the pool knows it.
    #[must_use]
    pub fn pooled(&self) -> Option<&'static PooledLane> {
        self.pooled.load(Relaxed)
    }

    /// Notes the lane as the pool knows it.
    pub fn set_pooled(&self, lane: Option<&'static PooledLane>) {
        self.pooled.store(lane, Relaxed);
    }

    /// In the child of a `fork`: no other thread of this process holds locks or pins, whether the description is in
    /// use or not.
    #[unsafe(link_section = ".text.fork")]
    pub fn forget_other_threads(&self) {
        self.tx_lock.reset();
        self.rx_lock.reset();
        for flag in [&self.leaving, &self.follows] {
            if flag.load(Relaxed) {
                flag.store(false, Relaxed);
            }
        }
        self.keepers.forget_other_threads();
        self.edges.end_in_child();
    }

    /// Looks at a lane that nobody else keeps for the caller. `None` if this is not a lane.
    pub fn if_lane<R>(&'static self, look: impl FnOnce() -> R) -> Option<R> {
        let _guard = self.rx_lock.lock();
        self.is_lane().then(look)
    }

    /// The last fd is gone: gives the lane and the description back, or leaves that to the last pin.
    pub fn give_if_unused(&'static self) {
        if self.keepers.has_no_number() {
            self.keepers.end();
            self.end_if_due();
        }
    }

    fn end_if_due(&'static self) {
        if !self.keepers.take_end() {
            return;
        }
        {
            let _both = self.lock_both();
            self.kind.store(Kind::Free as u32, Release);
        }
        if self.lane.load(Relaxed) != 0 {
            reach::forget(self);
            self.edges.end();
            (self.operations.get().retire)(self);
            self.lane.store(0, Relaxed);
        }
        DESCS.give(self);
    }

    /// Prepares a description from the slab for its next use.
    pub fn begin(&self, kind: Kind, fd: i32, family: u32, born: u32) {
        self.shared.store(false, Relaxed);
        self.fd.store(fd, Relaxed);
        self.keepers.begin();
        self.leaving.store(false, Relaxed);
        self.follows.store(false, Relaxed);
        self.entries.store(0, Relaxed);
        self.parked.store(0, Relaxed);
        self.peer.store(0, Relaxed);
        self.born.store(born, Relaxed);
        self.counted_by.store(0, Relaxed);
        self.family.store(family, Relaxed);
        self.draft.clear();
        self.ticket.take();
        self.slot.store(None, Relaxed);
        self.operations.set(&Operations::NONE);
        self.listener.store(core::ptr::null_mut(), Relaxed);
        self.set.store(core::ptr::null_mut(), Relaxed);
        self.pooled.store(None, Relaxed);
        self.side_memfd.set(None);
        self.edges.begin();
        // Last: who knows this number, and then finds the draft unclaimed, claims none of an earlier use.
        self.begun.fetch_add(1, AcqRel);
        self.become_kind(kind);
    }

    /// Which use of the description this is.
    #[must_use]
    pub fn begun(&self) -> u32 {
        self.begun.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_description_that_another_thread_had_locked_and_pinned_is_free_in_the_child_of_a_fork() {
        static SLAB: Slab<Desc> = Slab::new();
        let desc = SLAB.take().unwrap();
        desc.begin(Kind::Tcp, -1, 0, 0);
        let (locked, seen) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // As it stays when only the forking thread goes on.
            core::mem::forget(desc.lock_both());
            core::mem::forget(desc.pin());
            locked.send(()).unwrap();
            let _ = end.recv();
        });
        seen.recv().unwrap();
        SLAB.give(desc);
        SLAB.reset_after_fork();
        let again = SLAB.take().unwrap();
        assert!(core::ptr::eq(desc, again));
        assert_eq!(again.keepers.pins(), 0);
        again.begin(Kind::Tcp, -1, 0, 0);
        drop(done);
        thread.join().unwrap();
    }
}

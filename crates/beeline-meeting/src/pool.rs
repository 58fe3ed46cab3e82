//! Lanes and side pages, made once and used again.
//!
//! A fresh memory file with its mapping and first page faults costs about as much as the rest of a
//! connection, so closed lanes are kept for the next connection between the same two processes.
//!
//! # When a lane may be used again
//!
//! Whoever has a lane mapped can read what passes through it, so a lane never serves a connection with
//! somebody else than the one before: another user, or the program behind another listener.
//!
//! 1. The client made the lane. It keeps the lane's memfd, and offers the lane again only at the door of the
//!    same listener, only after it has closed its own end, and only when the server has marked its end
//!    [`flags::RELEASED`].
//! 2. The server marks its end when its last user is gone, unless the process has forked since it mapped the lane:
//!    then another process may have it mapped. Processes that share a listener may each meet the lane in turn, and
//!    keep it mapped, as long as all who accept are of one user; processes of one user may read each other's memory
//!    anyway.
//! 3. Before a `fork` all idle lanes are unmapped, so that the child has none of them. The same holds for idle sides.
//!    What becomes idle while the fork is made, parent and child unmap after it. Lanes in use keep their memfds, which
//!    the child needs to hand them on. A side that is being made for a connection while the process forks is not used
//!    again if there comes to be none ([`Side::put_back`]); nor is its lane.
//! 4. The memfd travels with every hello. The server recognises a lane that it still has mapped by the
//!    memfd's identity and maps any other, so that neither end depends on what the other has kept.
//! 5. A client uses a lane again under the name of its last connection, if it can. Then a server that knows the lane by
//!    that name, its listener, and its client's process and user by what the kernel says of the anchor, may take it
//!    before there is a hello ([`beeline_lane::offer`], 7 to 9). Whoever is at the other end means this lane: the
//!    kernel keeps the name for one anchor, which is seen to be there after the lane's word is read; and a lane that
//!    was so offered is not used again by a client that has come to the door and has not been served. What remains is
//!    a process of the same user that gets the number and the port of one that was killed between the two: its
//!    connection is reset.
//!
//! A lane may wait for its next connection with both ends' anchors and names: [`standing`].
//!
//! A hostile client may change a lane while the server believes it to be idle, or offer it twice. It spoils
//! its own connections.
//!
//! # Limits
//!
//! At most `pool_lanes_max` lanes of either role are idle, and no more than [`room::idle_max`] says; the oldest are
//! dropped first, and such as have carried a stream are kept only while there are few. The memfds of lanes and sides
//! are kept, as hidden descriptors, as long as there is room ([`hidden::keep`]): the client's for offering the lane
//! again, a server's idle ones so that the next hello's need not be kept, all for handing the connection to another
//! program (`life` of beeline-sockets). A client's lane without its memfd is unmapped when its connection closes.
//! When descriptors run short all of them are closed.

mod list;
mod offer;
mod room;
mod sides;
mod standing;

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_lane::{End, LaneMemory, flags};
use beeline_shm::Fd;
use beeline_shm::memfd::FileId;
use beeline_stats::Counter;
use beeline_stats::tunables::option;
use beeline_wire::ConnName;

use crate::fd_cell::FdCell;
use crate::lock::Lock;
use crate::slab::{Slab, Stable};
use crate::static_ref::StaticRef;
use crate::trust::Peer;
use crate::{hidden, kernel, limits, stats};

use list::{Linked, List};
pub use offer::{Offer, client_lane, lane_of_name};
pub use sides::{Side, has_made_any, side};
pub use standing::{Standing, any_idle, standing, standing_soon};
pub(crate) use standing::{give_up, next_name};

/// A lane that this process has mapped: in use by a connection, or idle.
#[repr(C)]
pub struct PooledLane {
    address: AtomicUsize,
    ring_bytes: AtomicU32,
    /// `forks` of the process when the lane was mapped.
    forks: AtomicU32,
    /// 1 when the lane may be used again, as far as this end is concerned.
    reusable: AtomicU32,
    /// 1 when the lane serves one connection only. Its side may be used again all the same.
    spent: AtomicU32,
    /// Client: 1 when a server has had the lane.
    served: AtomicU32,
    /// 1 when a ring of the lane may have been filled beyond [`SMALL_BYTES`], and keeps that memory.
    large: AtomicU32,
    /// 1 when its rings may hold bytes of a connection to another host, which is over.
    bridged: AtomicU32,
    /// The lane's memfd, hidden, if it is kept.
    memfd: FdCell,
    /// Client: the TCP socket that holds the port of an explicit bind, plus one; 0 for none.
    holder: FdCell,
    /// Cookie of the listener.
    pub cookie: AtomicU64,
    /// Client: the listener's owner, plus one; 0 where nobody has asked.
    pub(super) owner: AtomicU32,
    /// What is known of the ends where they are kept, and the anchor: see [`standing`].
    pub stands: Standing,
    /// Identity of the memory file.
    device: AtomicU64,
    inode: AtomicU64,
    next: StaticRef<PooledLane>,
    next_free: StaticRef<PooledLane>,
}

// SAFETY: every field is an atomic for which zero is valid.
unsafe impl Stable for PooledLane {
    fn next_free(&self) -> &StaticRef<Self> {
        &self.next_free
    }
}

impl Linked for PooledLane {
    fn next(&self) -> &StaticRef<Self> {
        &self.next
    }
}

/// What a ring keeps at most of a connection of short messages.
const SMALL_BYTES: u64 = 256 * 1024;
/// Idle lanes beyond which none is kept whose rings keep more: eight of the largest take as much as all small ones.
const LARGE_MAX: u32 = 16;
#[unsafe(link_section = ".fork.locked")]
static LANES: Slab<PooledLane> = Slab::new();

/// Guards the lists, here and in [`sides`].
#[unsafe(link_section = ".fork.locked")]
static LOCK: Lock = Lock::new();
/// Idle lanes of which this process was the client, the last used first.
#[unsafe(link_section = ".fork.locked")]
static CLIENT: List<PooledLane> = List::new();
/// Idle lanes of which this process was the server, the last used first.
#[unsafe(link_section = ".fork.locked")]
static SERVER: List<PooledLane> = List::new();
/// At most one lane that was made for a connection that then went over TCP. Nobody else has ever seen it.
#[unsafe(link_section = ".fork.locked")]
static SPARE: List<PooledLane> = List::new();

impl PooledLane {
    /// The mapped memory.
    pub fn memory(&self) -> LaneMemory {
        // SAFETY: a record in use or idle describes one live mapping.
        unsafe { LaneMemory::from_parts(self.address.load(Relaxed), self.ring_bytes.load(Relaxed)) }
    }

    /// The inode of the memory file.
    pub(super) fn inode(&self) -> u64 {
        self.inode.load(Relaxed)
    }

    /// The identity of the memory file.
    pub fn id(&self) -> FileId {
        FileId { device: self.device.load(Relaxed), inode: self.inode.load(Relaxed) }
    }

    /// The memory file, if it is kept.
    pub fn memfd(&self) -> Option<i32> {
        self.memfd.get()
    }

    /// The TCP socket that holds the port of an explicit bind.
    pub fn holder(&self) -> Option<i32> {
        self.holder.get()
    }

    /// Keeps the memory file's descriptor, or closes it if there is no room, or one that is kept.
    pub(super) fn keep_memfd(&self, memfd: Fd) {
        if self.memfd().is_none() {
            self.memfd.set(hidden::keep(memfd.give_away()));
        }
    }

    /// Keeps the socket that holds the port of an explicit bind until the lane's end.
    pub fn hold(&self, socket: i32) {
        self.holder.set(Some(socket));
        HELD.fetch_add(1, Relaxed);
    }

    /// So many bytes went one way in the connection that now ends.
    pub fn note_bytes(&self, bytes: u64) {
        if bytes > SMALL_BYTES {
            self.large.store(1, Relaxed);
        }
    }

    /// Whether none of its rings keeps more than short messages leave.
    pub fn is_small(&self) -> bool {
        self.large.load(Relaxed) == 0
    }

    /// A connection to another host is over.
    pub(super) fn note_bridged(&self) {
        self.bridged.store(1, Relaxed);
    }

    /// Whether its rings may hold bytes of a connection to another host, which is over.
    pub(super) fn was_bridged(&self) -> bool {
        self.bridged.load(Relaxed) != 0
    }

    /// The lane must not be used again.
    pub fn spoil(&self) {
        self.reusable.store(0, Relaxed);
    }

    /// The lane serves this connection only, with a peer of whom nothing else is known.
    pub fn spend(&self) {
        self.spent.store(1, Relaxed);
    }

    /// No process but this one has the lane mapped on this end.
    fn is_private(&self) -> bool {
        self.forks.load(Relaxed) == crate::forks()
    }

    /// No process but this one has ever had the lane's present connection, nor its side: no fork comes between the
    /// mapping of the two.
    pub fn is_ours_alone(&self) -> bool {
        self.is_private() && self.reusable.load(Relaxed) == 1
    }

    fn fill(&self, memory: LaneMemory, id: FileId) {
        self.address.store(memory.address(), Relaxed);
        self.ring_bytes.store(memory.ring_bytes(), Relaxed);
        self.forks.store(crate::forks(), Relaxed);
        self.reusable.store(1, Relaxed);
        self.spent.store(0, Relaxed);
        self.served.store(0, Relaxed);
        self.large.store(0, Relaxed);
        self.bridged.store(0, Relaxed);
        self.memfd.set(None);
        self.holder.set(None);
        self.cookie.store(0, Relaxed);
        self.owner.store(0, Relaxed);
        self.stands.clear();
        self.stands.forget();
        self.device.store(id.device, Relaxed);
        self.inode.store(id.inode, Relaxed);
        self.next.store(None, Relaxed);
        limits::lane_begins(memory.ring_bytes());
    }

    /// Closes the memory file's descriptor, if it is kept.
    pub fn close_memfd(&self) {
        if let Some(fd) = self.memfd.take() {
            hidden::close_hidden(fd);
        }
    }

    /// Unmaps the lane and gives the record back.
    fn discard(&'static self) {
        self.stands.close_anchor();
        self.close_memfd();
        limits::lane_ends(self.ring_bytes.load(Relaxed));
        // SAFETY: the lane is in no list and no connection uses it.
        unsafe { self.memory().unmap() };
        LANES.give(self);
    }
}

/// The idle lane of this identity, if this process, as a server, has it mapped.
pub(super) fn server_known(id: FileId, ring_bytes: u32) -> Option<&'static PooledLane> {
    let _guard = LOCK.lock();
    SERVER.take(|lane| {
        lane.inode.load(Relaxed) == id.inode
            && lane.device.load(Relaxed) == id.device
            && lane.ring_bytes.load(Relaxed) == ring_bytes
    })
}

/// The idle lane that this process, as a server, knows by the name and the peer of its last connection to the listener
/// `cookie`. It has its memfd: none comes with it.
pub(super) fn server_named(cookie: u64, name: &ConnName, peer: Peer) -> Option<&'static PooledLane> {
    let _guard = LOCK.lock();
    SERVER.take(|lane| {
        lane.stands.is_known_by(name, peer) && lane.cookie.load(Relaxed) == cookie && lane.memfd().is_some()
    })
}

/// Such a lane is not offered.
pub(super) fn put_back(lane: &'static PooledLane) {
    let surplus = {
        let _guard = LOCK.lock();
        keep_idle(&SERVER, lane, lane.is_ours_alone())
    };
    if let Some(lane) = surplus {
        lane.discard();
    }
}

/// A record for a lane that this process, as a server, has just mapped.
pub(super) fn server_lane(memory: LaneMemory, id: FileId) -> Option<&'static PooledLane> {
    let lane = LANES.take()?;
    lane.fill(memory, id);
    stats::count(Counter::LanesCreated, 1);
    Some(lane)
}

/// Lanes with a socket that they hold, which stays as long as they do.
static HELD: AtomicU32 = AtomicU32::new(0);

/// Whether there is a number for one more socket that a lane holds: they have an eighth of them at most, as they cannot
/// be given up when the program wants theirs.
#[must_use]
pub fn may_hold() -> bool {
    (HELD.load(Relaxed) as usize) < kernel::recent_descriptor_limit() / 8
}

/// A record for a lane in use that this process has taken over from another program, with its hidden memfd and the
/// hidden socket that holds its port.
pub fn adopted_lane(
    memory: LaneMemory,
    id: FileId,
    memfd: Option<i32>,
    holder: Option<i32>,
) -> Option<&'static PooledLane> {
    let lane = LANES.take()?;
    lane.fill(memory, id);
    lane.spoil();
    lane.memfd.set(memfd);
    if let Some(holder) = holder {
        lane.hold(holder);
    }
    Some(lane)
}

/// The connection over this lane is over: keeps the lane or unmaps it. `alone` tells whether no other process
/// ever shared the end.
pub fn retire(lane: &'static PooledLane, end: End, alone: bool) {
    if let Some(holder) = lane.holder.take() {
        let _ = HELD.fetch_update(Relaxed, Relaxed, |held| held.checked_sub(1));
        hidden::close_hidden(holder);
    }
    let keep = alone && lane.is_ours_alone() && lane.spent.load(Relaxed) == 0;
    let surplus = match end {
        End::Client => {
            let _guard = LOCK.lock();
            // Without its memfd a lane cannot be offered again.
            keep_idle(&CLIENT, lane, keep && lane.memfd.get().is_some())
        }
        End::Server => {
            let _guard = LOCK.lock();
            lane.stands.close_anchor();
            lane.stands.clear();
            if SERVER.count.load(Relaxed) >= room::memfds_idle_max() {
                // It comes again with the next hello.
                lane.close_memfd();
            }
            let surplus = keep_idle(&SERVER, lane, keep);
            if surplus.is_none_or(|other| !core::ptr::eq(other, lane)) {
                // Only now: a client that sees it may offer the lane at once.
                let memory = lane.memory();
                memory.set_flags(End::Server, memory.flags(End::Server) & !flags::STANDS | flags::RELEASED);
            }
            surplus
        }
    };
    if let Some(lane) = surplus {
        lane.discard();
    }
}

/// A server gives up the anchor that it has kept of an idle lane. The lane's memory is not touched: it has been
/// released to the client, which may have offered it at the door meanwhile.
pub fn drop_kept_anchor(lane: &'static PooledLane) {
    lane.stands.close_anchor();
    lane.stands.clear();
    put_back(lane);
}

/// Puts `lane` into `list` if it is to be kept. Returns the lane to discard, if any.
fn keep_idle(list: &List<PooledLane>, lane: &'static PooledLane, keep: bool) -> Option<&'static PooledLane> {
    let is_large = lane.large.load(Relaxed) == 1 && list.count.load(Relaxed) >= LARGE_MAX;
    if !keep || is_large || crate::live(option::pool_lanes_max) == 0 {
        return Some(lane);
    }
    let oldest = if list.is_full() { list.take_oldest() } else { None };
    list.push(lane);
    oldest
}

/// Unmaps all idle lanes and side pages: before a `fork`, and in the child.
#[unsafe(link_section = ".text.fork")]
pub fn purge() {
    for list in [&CLIENT, &SPARE, &SERVER] {
        if list.first.load(Relaxed).is_some() {
            drop_idle(list);
        }
    }
    sides::purge();
}

/// Closes all memfds, because descriptors are short. Returns whether there were any.
pub fn release_descriptors() -> bool {
    let before = hidden::hidden_count();
    let any = close_memfds();
    hidden::note_short();
    // They are all that is free now.
    FREED.store(before.saturating_sub(hidden::hidden_count()).max(1), Relaxed);
    any
}

/// How many numbers were free when descriptors had been short, less one for each client accepted since; 0 if they have
/// not.
pub(super) static FREED: AtomicU32 = AtomicU32::new(0);

/// What the pool has done by those who use its lanes, as it knows no connections.
pub struct Users {
    /// Closes the memfds of lanes and sides in use. Whether there were any.
    pub release_memfds: fn() -> bool,
}

static USERS: StaticRef<Users> = StaticRef::none();

/// From now on these are asked: before the first connection has its lane.
pub fn register(users: &'static Users) {
    USERS.store(Some(users), Release);
}

fn close_memfds() -> bool {
    let mut any = drop_idle(&CLIENT) | drop_idle(&SPARE) | sides::purge();
    any |= USERS.load(Acquire).is_some_and(|users| (users.release_memfds)());
    any | drop_idle(&SERVER)
}

/// Unmaps the idle lanes of a list. Returns whether there were any.
fn drop_idle(list: &List<PooledLane>) -> bool {
    let mut any = false;
    while list.first.load(Relaxed).is_some() {
        let lane = {
            let _guard = LOCK.lock();
            list.take(|_| true)
        };
        let Some(lane) = lane else { break };
        lane.discard();
        any = true;
    }
    any
}

/// In the child of a `fork`: nobody holds the locks.
pub fn reset_after_fork() {
    LOCK.reset();
    LANES.reset_after_fork();
    // What other threads gave back since the `purge` before the fork. One may have been about to count.
    purge();
    for count in [&CLIENT.count, &SERVER.count, &SPARE.count, &sides::COUNT] {
        if count.load(Relaxed) != 0 {
            count.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;

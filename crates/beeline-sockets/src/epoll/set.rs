//! The table of an epoll set: which fds it watches, by fd and by the app's data.
//!
//! The kernel holds the truth about a set; this table holds what the kernel cannot know. Entries live in chunks
//! indexed by fd, so that the table grows with the fds in use. The kernel is given the app's own `data`
//! unchanged (processes may share a set whose later members only one of them knows), so events come back by
//! data: a hash chain finds the entries that have it.
//!
//! To the kernel an entry is a file with the number under which it was added, and lives as long as the file: closing
//! the number alone leaves it, unreachable until a duplicate gets that number again. Here such a *ghost* moves to a
//! place beyond all numbers, so that the number is free for another file, and no system call by number can hit a
//! stranger.

mod company;
mod departed;
mod edged;
mod entry;
mod fault_cell;
mod ghosts;
mod hands;
mod heat;
mod holders;
mod marks;
mod parked;
mod registered;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use beeline_shm::sys;

use crate::desc::{Desc, Kind};
use crate::hidden::FDS;
use crate::lock::Lock;
use crate::process;
use crate::slab::{Slab, Stable};
use crate::static_ref::StaticRef;
use crate::table;
use crate::wait::{Budget, Mode, SpinState};

pub use company::{COMPANY_MAX, Companion, Company};
pub use departed::Departed;
pub use edged::{Asking, Edged};
pub use entry::Entry;
pub use fault_cell::FaultCell;
pub use hands::Hands;
pub use heat::Heat;
pub(super) use holders::{is_shared, knows_all_members};
pub use marks::{Marks, Seen, tail};
pub use registered::Registered;

const CHUNK_FDS: usize = 256;
/// All numbers, and the ghosts.
const CHUNKS: usize = FDS / CHUNK_FDS + 1;
const GHOSTS_BEGIN: usize = FDS;
/// The ghosts' chunk, the last one.
const GHOSTS: usize = CHUNKS - 1;
const BUCKETS: usize = 1024;
/// What it costs to arm one lane more, to ring it and to take its bell out, at both ends together.
const SPIN_NS_PER_LANE: u64 = 4_000;
/// More hot lanes do not lengthen a spin.
const HOT_LANES_MAX: u32 = 100;
/// In [`Set::crowded`].
pub(super) const LANES_BEGAN: u8 = 1;
/// In [`Set::crowded`].
pub(super) const KERNEL_BEGAN: u8 = 2;
/// What one edge adds to [`Set::edges`]: so much that what members count, bytes mostly, hardly makes up for it.
const EDGE: u32 = 0x85EB_CA6B;
/// No fd: end of a chain or list.
pub(super) const NIL: i32 = -1;

type Chunk = [Entry; CHUNK_FDS];

/// One epoll set of this process.
#[repr(C)]
pub struct Set {
    /// Serialises everything here; not held in system calls that wait.
    pub lock: Lock,
    /// Threads of this process that sleep in the kernel on this set.
    pub sleepers: AtomicU32,
    /// Members that the kernel watches by edges for us.
    pub edged: Edged,
    /// Whether some entry has a fault to be dealt with.
    pub troubled: AtomicBool,
    /// Whether the waker is a member of the kernel's set.
    pub has_waker: AtomicBool,
    /// Entries whose number was closed while their file stays open.
    pub ghosts: AtomicU32,
    /// Parked entries.
    pub parked: AtomicU32,
    /// Whether the kernel may report what was parked and cannot be reached.
    pub has_strays: AtomicBool,
    /// Whether others may see the kernel's side of the set.
    pub exposed: AtomicBool,
    /// Whether the set is open in programs that this one becomes or starts.
    pub inheritable: AtomicBool,
    /// Whether it is, or was when one was started, or one may have got it by name.
    pub handed_on: AtomicBool,
    /// Copies of this process that had been made before the set was, or since, and are gone ([`process::copies`]).
    pub copies: AtomicU32,
    /// Whether copies that are gone had the set.
    pub had_copies: AtomicBool,
    /// First of the hot list.
    pub hot_first: AtomicI32,
    /// Last of the hot list.
    pub hot_last: AtomicI32,
    /// How many are in the hot list.
    pub hot_lanes: AtomicU32,
    /// Number of the last call that waited.
    pub calls: AtomicU32,
    /// Number of the last call that asked the kernel.
    pub looked: AtomicU32,
    /// Members that were added so far.
    pub additions: AtomicU32,
    /// The last place that was given ([`Entry::place`]).
    pub places: AtomicU32,
    /// Edges of this set, for whoever watches it by edges, that its members' own counts do not show, each counted as
    /// [`EDGE`]: a member that is ready when it is added or changed, and was not before; and a lane that leaves, which
    /// takes its counts out of the sum (`readiness::edge_sum`).
    pub edges: AtomicU32,
    /// Reports of lanes that can be read, by edges.
    pub reports: AtomicU32,
    /// Members that are descriptions: lanes, listeners, other sets, sockets that may become lanes.
    pub known: AtomicU32,
    /// Lanes that were added and not deleted, about.
    pub lanes: AtomicU32,
    /// The last lane that was added to a set that had none.
    pub lone_lane: AtomicI32,
    /// Waits in a row that found hot connections.
    pub busy_waits: AtomicU32,
    /// Whether the kernel had something to tell at once when it was asked last.
    pub tells_at_once: AtomicBool,
    /// Who began to fill the array of the last wait, if it became full: 0 if not, otherwise [`LANES_BEGAN`] or
    /// [`KERNEL_BEGAN`].
    pub crowded: AtomicU8,
    /// Time stamp of the last look at the kernel.
    pub last_look: AtomicU64,
    /// How long a busy set may go without looking at the kernel, in ticks.
    pub look_ticks: AtomicU64,
    /// What the last look of a spin at the kernel took, in the same ticks.
    pub look_price: AtomicU64,
    /// Whether it pays to spin for the set.
    pub spin: SpinState,
    /// The member that was told last when a wait began.
    pub told_last: AtomicI32,
    /// Who works for the set beside whoever waits.
    pub hands: Hands,
    /// Members that have left lately.
    pub departed: Departed,
    /// Members that are named the same sleep.
    pub company: Company,
    buckets: [AtomicI32; BUCKETS],
    chunks: [StaticRef<Chunk>; CHUNKS],
    /// One more than the last chunk of numbers that was ever made: those who go through the set look no further, but at
    /// the ghosts. A new set touches no page of all the others then.
    reach: AtomicUsize,
    owner: StaticRef<Desc>,
    next_free: StaticRef<Set>,
    /// Next of all sets in use.
    pub next_set: StaticRef<Set>,
}

// SAFETY: all fields are atomics for which zero is valid.
unsafe impl Stable for Set {
    fn next_free(&self) -> &StaticRef<Self> {
        &self.next_free
    }

    fn forget_other_threads(&self) {
        self.lock.reset();
    }
}

/// All sets of the process.
#[unsafe(link_section = ".fork.locked")]
pub static SETS: Slab<Set> = Slab::new();

impl Set {
    /// Makes a set from the slab empty.
    pub fn begin(&self, owner: &'static Desc, inheritable: bool) {
        self.owner.store(Some(owner), Relaxed);
        self.for_each_entry(|_, entry| entry.used.store(false, Relaxed));
        self.sleepers.store(0, Relaxed);
        self.edged.begin();
        self.troubled.store(false, Relaxed);
        self.has_waker.store(false, Relaxed);
        self.ghosts.store(0, Relaxed);
        self.parked.store(0, Relaxed);
        self.has_strays.store(false, Relaxed);
        self.exposed.store(false, Relaxed);
        self.inheritable.store(inheritable, Relaxed);
        self.handed_on.store(inheritable, Relaxed);
        self.copies.store(process::copies(), Relaxed);
        self.had_copies.store(false, Relaxed);
        self.hot_first.store(NIL, Relaxed);
        self.hot_last.store(NIL, Relaxed);
        self.hot_lanes.store(0, Relaxed);
        self.busy_waits.store(0, Relaxed);
        self.tells_at_once.store(false, Relaxed);
        self.crowded.store(0, Relaxed);
        self.known.store(0, Relaxed);
        self.lanes.store(0, Relaxed);
        self.last_look.store(0, Relaxed);
        self.look_ticks.store(0, Relaxed);
        self.look_price.store(0, Relaxed);
        self.told_last.store(NIL, Relaxed);
        self.spin.begin(Mode::of_process());
        self.hands.begin();
        self.company.begin();
        self.buckets.iter().for_each(|bucket| bucket.store(NIL, Relaxed));
    }

    /// The set's spin budget, for a wait that begins: how it waits is looked up anew. The next news is most likely to
    /// come from the connection that was told last, so that one's own mode counts, until it has left the set. The set
    /// need not be locked: whoever is found is looked at for a moment.
    pub fn budget_anew(&self) -> Budget<'_> {
        let last = self.hot_last.load(Relaxed);
        if last != NIL {
            self.told_last.store(last, Relaxed);
        }
        let last = self.find(self.told_last.load(Relaxed)).and_then(|entry| entry.desc());
        self.spin.follow(last.filter(|desc| desc.is_lane()).map_or_else(Mode::of_process, Desc::wait_mode));
        self.budget()
    }

    /// The set's spin budget. Before a sleep all hot lanes are armed, and each of them is rung, so with many of them a
    /// longer spin costs less than a sleep.
    pub fn budget(&self) -> Budget<'_> {
        let lanes = u64::from(self.hot_lanes.load(Relaxed).min(HOT_LANES_MAX));
        Budget { state: &self.spin, extra_ns: lanes.saturating_sub(1).saturating_mul(SPIN_NS_PER_LANE) }
    }

    /// Whether only `own` threads sleep on the set. On one that others watch sleep those who watch it. It is locked:
    /// whoever sleeps has said so before it armed the members under that lock.
    pub fn sleep_only(&self, own: u32) -> bool {
        self.sleepers.load(Relaxed) == own && !self.exposed.load(Relaxed)
    }

    /// Whether nothing can come from this set that the kernel does not tell by itself.
    pub fn is_the_kernels(&self) -> bool {
        self.known.load(Relaxed) == 0
    }

    /// The description that stands for the set.
    pub fn owner(&self) -> Option<&'static Desc> {
        self.owner.load(Relaxed)
    }

    /// The entry of `fd`, if it is in use.
    pub fn find(&self, fd: i32) -> Option<&Entry> {
        self.slot(fd).filter(|entry| entry.used.load(Relaxed))
    }

    /// The slot of `fd`, if its chunk exists.
    fn slot(&self, fd: i32) -> Option<&Entry> {
        let fd = usize::try_from(fd).ok()?;
        self.chunks.get(fd / CHUNK_FDS)?.load(Relaxed)?.get(fd % CHUNK_FDS)
    }

    /// Adds `fd`. `None` without memory.
    pub fn insert(&self, fd: i32, events: u32, data: u64, desc: Option<&'static Desc>) -> Option<&Entry> {
        if self.slot(fd).is_none() {
            let index = usize::try_from(fd).ok()? / CHUNK_FDS;
            let room = self.chunks.get(index)?;
            let chunk = sys::map_private(size_of::<Chunk>()).ok()?.cast::<Chunk>();
            // SAFETY: a mapping of that size that stays, and zeroed, which is valid for every field of an entry.
            room.store(unsafe { chunk.as_ref() }, Relaxed);
            if index < GHOSTS {
                self.reach.store(self.reach.load(Relaxed).max(index + 1), Relaxed);
            }
        }
        self.take_parked(fd);
        let entry = self.slot(fd)?;
        entry.heat.begin();
        entry.companion.begin();
        entry.dead.store(false, Relaxed);
        entry.hung.store(false, Relaxed);
        entry.edged.store(false, Relaxed);
        entry.sleeps.store(0, Relaxed);
        entry.kernel_out.store(false, Relaxed);
        entry.known_room.store(false, Relaxed);
        entry.registered.forget();
        entry.fault.set(None);
        entry.place.store(0, Relaxed);
        let added = self.additions.load(Relaxed).wrapping_add(1);
        self.additions.store(added, Relaxed);
        entry.added.store(added, Relaxed);
        entry.desc.store(desc, Relaxed);
        entry.used.store(true, Relaxed);
        entry.renew(events, data);
        self.chain_in(fd, entry);
        if let Some(desc) = desc {
            desc.entries.fetch_add(1, Relaxed);
            self.known.fetch_add(1, Relaxed);
            self.order(fd, desc);
        }
        Some(entry)
    }

    /// The number of one report more, never 0.
    pub fn count_report(&self) -> u32 {
        let report = self.reports.load(Relaxed).wrapping_add(1).max(1);
        self.reports.store(report, Relaxed);
        report
    }

    /// A lane that comes into the set: among several, order matters.
    fn order(&self, fd: i32, desc: &'static Desc) {
        if !desc.is_lane() {
            return;
        }
        let lanes = self.lanes.load(Relaxed).wrapping_add(1);
        self.lanes.store(lanes, Relaxed);
        if lanes == 1 {
            self.lone_lane.store(fd, Relaxed);
            return;
        }
        let ask = |desc: &Desc| desc.side().rx.ask_order(&desc.lane(), desc.end());
        ask(desc);
        if lanes == 2
            && let Some(other) = self.find(self.lone_lane.load(Relaxed)).and_then(Entry::desc)
            && other.is_lane()
        {
            ask(other);
        }
    }

    /// Gives an entry new events and data, as `EPOLL_CTL_MOD` does.
    pub fn modify(&self, fd: i32, entry: &Entry, events: u32, data: u64) {
        self.chain_out(fd, entry);
        if entry.data.load(Relaxed) != data {
            self.departed.note(entry.data.load(Relaxed));
        }
        entry.renew(events, data);
        self.chain_in(fd, entry);
    }

    /// Removes `fd`.
    pub fn remove(&self, fd: i32, entry: &Entry) {
        self.make_cold(entry);
        self.leave_company(entry);
        self.chain_out(fd, entry);
        entry.used.store(false, Relaxed);
        self.departed.note(entry.data.load(Relaxed));
        if let Some(desc) = entry.desc() {
            desc.entries.fetch_sub(1, Relaxed);
            self.known.fetch_sub(1, Relaxed);
            if desc.is_lane() {
                self.count_edge();
                self.lanes.store(self.lanes.load(Relaxed).saturating_sub(1), Relaxed);
            }
        }
        if fd as usize >= GHOSTS_BEGIN {
            self.ghosts.fetch_sub(1, Relaxed);
        }
    }

    /// See [`Set::edges`].
    pub fn count_edge(&self) {
        self.edges.store(self.edges.load(Relaxed).wrapping_add(EDGE), Relaxed);
    }

    /// The place of a member that is ready behind all those that are.
    pub fn next_place(&self) -> u32 {
        let place = self.places.load(Relaxed).wrapping_add(1).max(1);
        self.places.store(place, Relaxed);
        place
    }

    /// Calls `f` for every entry in use with this data.
    pub fn with_data(&self, data: u64, mut f: impl FnMut(i32, &Entry)) {
        let mut fd = self.bucket(data).load(Relaxed);
        while let Some(entry) = self.slot(fd) {
            let next = entry.chain.load(Relaxed);
            if entry.used.load(Relaxed) && entry.data.load(Relaxed) == data {
                f(fd, entry);
            }
            fd = next;
        }
    }

    /// Calls `f` for every place in use.
    pub fn for_each_entry(&self, mut f: impl FnMut(i32, &Entry)) {
        self.for_each_place(|fd, entry| {
            if entry.used.load(Relaxed) {
                f(fd, entry);
            }
        });
    }

    fn for_each_place(&self, mut f: impl FnMut(i32, &Entry)) {
        for index in (0..self.reach.load(Relaxed)).chain([GHOSTS]) {
            let Some(chunk) = self.chunks.get(index) else { continue };
            let Some(chunk) = chunk.load(Relaxed) else { continue };
            for (offset, entry) in chunk.iter().enumerate() {
                f((index * CHUNK_FDS + offset) as i32, entry);
            }
        }
    }

    /// Makes lists and counts anew from the entries: another thread was at work on them when this process forked. What
    /// may have been hot is hot.
    pub fn rebuild(&self) {
        for count in [&self.ghosts, &self.hot_lanes, &self.known] {
            count.store(0, Relaxed);
        }
        self.company.begin();
        for head in self.buckets.iter().chain([&self.hot_first, &self.hot_last]) {
            head.store(NIL, Relaxed);
        }
        self.for_each_entry(|fd, entry| {
            self.chain_in(fd, entry);
            entry.heat.begin();
            entry.companion.begin();
            self.known.fetch_add(entry.desc().is_some().into(), Relaxed);
            if entry.desc().is_some_and(|desc| matches!(desc.kind(), Kind::Lane | Kind::Epoll)) {
                self.make_hot(fd, entry);
            }
            if fd as usize >= GHOSTS_BEGIN {
                self.ghosts.fetch_add(1, Relaxed);
            }
        });
    }

    fn bucket(&self, data: u64) -> &AtomicI32 {
        let hash = data.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        &self.buckets[hash as usize % BUCKETS]
    }

    fn chain_in(&self, fd: i32, entry: &Entry) {
        let bucket = self.bucket(entry.data.load(Relaxed));
        entry.chain.store(bucket.load(Relaxed), Relaxed);
        bucket.store(fd, Relaxed);
    }

    fn chain_out(&self, fd: i32, entry: &Entry) {
        let mut link = self.bucket(entry.data.load(Relaxed));
        while link.load(Relaxed) != fd {
            match self.slot(link.load(Relaxed)) {
                Some(other) => link = &other.chain,
                None => return,
            }
        }
        link.store(entry.chain.load(Relaxed), Relaxed);
    }
}

/// The set that a description of kind `Epoll` stands for.
pub(super) fn set_of(desc: &Desc) -> Option<&'static Set> {
    if desc.kind() != Kind::Epoll {
        return None;
    }
    // SAFETY: `begin` alone has stored it: null or an object of a slab, which is never unmapped.
    unsafe { desc.set.load(Relaxed).cast::<Set>().as_ref() }
}

/// An fd under which the description's anchor is open: the registered one may have been closed while a
/// duplicate keeps the registration alive.
pub(super) fn open_fd(fd: i32, desc: &'static Desc) -> i32 {
    if table::leads_to(fd, desc) { fd } else { desc.fd.load(Relaxed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_set_is_whole_again_when_it_is_rebuilt() {
        let (set, owner) = (SETS.take().unwrap(), crate::desc::DESCS.take().unwrap());
        owner.begin(Kind::Epoll, -1, 0, 0);
        set.begin(owner, false);
        let at = GHOSTS_BEGIN as i32;
        for fd in [3, 4, 5, 700, at] {
            set.insert(fd, 1, 7, (fd != 5).then_some(owner)).unwrap();
        }
        // What the thread left behind that did not come along: an entry in two lists and in none.
        set.make_hot(3, set.find(3).unwrap());
        set.find(3).unwrap().heat.next.store(3, Relaxed);
        set.find(700).unwrap().heat.hot.store(true, Relaxed);
        set.find(3).unwrap().chain.store(3, Relaxed);
        set.rebuild();
        let (mut by_data, mut hot) = (Vec::new(), Vec::new());
        set.with_data(7, |fd, _| by_data.push(fd));
        by_data.sort_unstable();
        assert_eq!(by_data, [3, 4, 5, 700, at]);
        let mut fd = set.hot_first.load(Relaxed);
        while let Some(entry) = set.find(fd) {
            hot.push(fd);
            fd = entry.heat.next();
        }
        assert_eq!(hot, [3, 4, 700, at]);
        assert_eq!(set.known.load(Relaxed), 4);
        assert_eq!(set.hot_lanes.load(Relaxed), 4);
        assert_eq!(set.ghosts.load(Relaxed), 1);
        for fd in [4, 3, at, 700, 5] {
            assert_eq!(set.is_the_kernels(), fd == 5);
            set.remove(fd, set.find(fd).unwrap());
        }
        assert_eq!((set.hot_first.load(Relaxed), set.hot_last.load(Relaxed)), (NIL, NIL));
        assert_eq!((set.ghosts.load(Relaxed), set.hot_lanes.load(Relaxed)), (0, 0));
    }
}

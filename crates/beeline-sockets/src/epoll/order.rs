//! The order of what one wait tells.
//!
//! As the kernel's ready list has it (fs/eventpoll.c, `ep_send_events`):
//!
//! 1. Members that were ready when they were looked at last, and are watched by level, come first, in the order in
//!    which they were told; before them those for which there was no room ([`Entry::place`]). A member that is found
//!    not to be ready loses its place. A member that is ready when it is added or changed has its place from then on.
//! 2. Behind them come the others, in the order in which they became ready. A peer says when its empty ring got
//!    something to read, or its end came ([`beeline_lane::LaneMemory::stamp`]), if there is another lane in the set;
//!    whoever rings a bell says so always. All stamps are of the host's one clock. A peer that lies harms the order
//!    alone, and only within one wait: by rule 1 nobody comes first twice while others are ready.
//! 3. The kernel's own events stay in the order in which the kernel told them, behind the lanes that it told before
//!    them, and before those that it told after them. Lanes that it did not tell of, as they are hot, are before its
//!    own events where neither says which came first. An event that was told by level in the wait before keeps its
//!    place (rule 1).
//! 4. Where an array becomes full, lanes and the kernel's own events begin by turns; so neither starves the other.
//!
//! What another process has not told yet cannot be put in order: a busy set asks the kernel now and then (rule 7 of
//! [`super`]), and what it tells then comes in that wait.

use core::sync::atomic::Ordering::Relaxed;

use libc::epoll_event;

use super::events::{EPOLLET, EPOLLONESHOT};
use super::readiness::readiness;
use super::set::{Entry, NIL};
use super::wait::Call;
use crate::desc::{Desc, Kind};

/// Events of the kernel's own that are put in order; more of them stay before all lanes.
const OWN_MAX: usize = 8;
/// Members that are put in order at a time.
const MEMBERS_MAX: usize = 64;

/// Where something stands, compared field by field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Whether rule 2 puts it in order, by its stamp; rule 1, by its place.
    is_newly_ready: bool,
    at: u64,
    is_kernels: bool,
    /// The later it was added, the less: a wait queue wakes the last to come first.
    added: u32,
}

impl Key {
    const FIRST: Self = Self { is_newly_ready: false, at: 0, is_kernels: false, added: 0 };

    /// Of an event of the kernel's own, or a member, that has this place.
    fn placed(place: u32, is_kernels: bool) -> Self {
        Self { is_newly_ready: false, at: place.into(), is_kernels, added: 0 }
    }
}

/// The kernel's own events at the beginning of the app's array, by their keys.
pub(super) struct KernelEvents {
    pub(super) count: usize,
    keys: [Key; OWN_MAX],
    /// Stamp of the last lane that the kernel told of in this look.
    before: Option<u64>,
}

impl KernelEvents {
    pub(super) const NONE: Self = Self { count: 0, keys: [Key::FIRST; OWN_MAX], before: None };

    /// The kernel has told of a lane with this stamp.
    pub(super) fn lane_at(&mut self, stamp: u64) {
        if self.before.is_none() {
            for key in self.keys.iter_mut().take(self.count).filter(|key| key.at == u64::MAX) {
                key.at = stamp.saturating_sub(1);
            }
        }
        self.before = Some(self.before.unwrap_or(0).max(stamp));
    }
}

/// Whether a member's events are the kernel's own.
fn is_own(entry: &Entry) -> bool {
    !matches!(entry.desc().map(Desc::kind), Some(Kind::Lane | Kind::Epoll))
}

/// A member with something to report, or one of the kernel's own events.
#[derive(Clone, Copy)]
struct Found {
    key: Key,
    /// The member's number; of the kernel's own, the index in the array.
    what: i32,
}

impl Call {
    /// An event of the kernel's own is about to be put into the app's array, before any of ours.
    pub(super) fn note_own(&mut self, event: epoll_event) {
        let own = self.own.get_or_insert(KernelEvents::NONE);
        if self.filled != own.count || self.is_inside {
            return;
        }
        let before = own.before.unwrap_or(u64::MAX);
        let set = self.set;
        let _guard = set.lock.lock();
        self.take_number();
        let number = self.number;
        let mut key = Key { is_newly_ready: true, at: before, is_kernels: true, added: 0 };
        let mut members = 0;
        set.with_data(event.u64, |_, entry| {
            members += 1;
            if !is_own(entry) {
                return;
            }
            let told = entry.call.swap(number, Relaxed);
            let by_level = entry.events.load(Relaxed) & (EPOLLET | EPOLLONESHOT) == 0;
            let place = entry.place.load(Relaxed);
            if by_level && place != 0 && told == set.looked.load(Relaxed) {
                key = Key::placed(place, true);
            }
        });
        if members != 1 {
            key.is_newly_ready = true;
        }
        if let Some(own) = &mut self.own
            && let Some(place) = own.keys.get_mut(own.count)
        {
            *place = key;
            own.count += 1;
        }
    }

    /// As a harvest, where there are several members to report, or events of the kernel's own among which they belong:
    /// `first`, and what is found from `from` on.
    #[inline(never)]
    pub(super) fn harvest_many(&mut self, from: i32, first: Option<i32>) {
        let set = self.set;
        let mut own = [epoll_event { events: 0, u64: 0 }; OWN_MAX];
        let keys = self.own.as_ref().map_or(KernelEvents::NONE.keys, |own| own.keys);
        let own_count = self.take_own(&mut own);
        let last = set.hot_last.load(Relaxed);
        let (mut fd, mut first) = (from, first);
        let mut owns = own_count;
        loop {
            let mut found = [Found { key: Key::FIRST, what: NIL }; MEMBERS_MAX + OWN_MAX];
            let mut count = 0;
            for (index, key) in keys.iter().take(owns).enumerate() {
                found[count] = Found { key: *key, what: index as i32 };
                count += 1;
            }
            if let Some(fd) = first.take() {
                found[count] = Found { key: self.key_of(fd), what: fd };
                count += 1;
            }
            while count < MEMBERS_MAX + owns
                && let Some(entry) = set.find(fd)
            {
                let next = if fd == last { NIL } else { entry.heat.next() };
                // What this call has told already is not told twice.
                if entry.call.load(Relaxed) != self.number {
                    if readiness(set, entry, 0) == 0 {
                        self.found_idle(fd, entry);
                    } else {
                        found[count] = Found { key: self.key_of(fd), what: fd };
                        count += 1;
                    }
                }
                fd = next;
            }
            let found = &mut found[..count];
            // Stable, in place: what is equal stays in the order of the list.
            for sorted in 1..found.len() {
                let mut at = sorted;
                while at > 0 && found[at].key < found[at - 1].key {
                    found.swap(at, at - 1);
                    at -= 1;
                }
            }
            self.tell(found, &own[..owns]);
            owns = 0;
            if count < MEMBERS_MAX || self.filled == self.max {
                return;
            }
        }
    }

    /// Takes the kernel's own events out of the app's array, to be put in again in their turn.
    fn take_own(&mut self, own: &mut [epoll_event; OWN_MAX]) -> usize {
        let count = self.own.take().map_or(0, |own| own.count);
        if count != self.filled {
            return 0;
        }
        for (index, place) in own.iter_mut().take(count).enumerate() {
            // SAFETY: places below `filled` were written by us.
            *place = unsafe { self.events.add(index).read_unaligned() };
        }
        self.filled = 0;
        count
    }

    /// Tells of `found`, which is in order, as far as there is room; the kernel's own, which it will not tell again,
    /// all.
    fn tell(&mut self, found: &[Found], own: &[epoll_event]) {
        let set = self.set;
        let mut room = (self.max - self.filled).saturating_sub(own.len());
        let members = found.iter().filter(|found| !found.key.is_kernels);
        // Those for which there is no room are before all others the next time.
        for found in members.skip(room) {
            if let Some(entry) = set.find(found.what) {
                set.make_cold(entry);
                set.make_hot(found.what, entry);
                entry.place.store(set.next_place(), Relaxed);
            }
        }
        for found in found {
            if found.key.is_kernels {
                let Some(event) = own.get(found.what as usize) else { continue };
                let place = set.next_place();
                set.with_data(event.u64, |_, entry| {
                    if is_own(entry) {
                        entry.place.store(place, Relaxed);
                    }
                });
                self.push(*event);
            } else if room != 0
                && let Some(entry) = set.find(found.what)
            {
                room -= 1;
                self.gather(found.what, entry);
            }
        }
    }

    /// Where a member stands that has something to report.
    fn key_of(&self, fd: i32) -> Key {
        let Some(entry) = self.set.find(fd) else { return Key { is_newly_ready: true, ..Key::FIRST } };
        match entry.place.load(Relaxed) {
            0 => {
                // A set that is a member is told of what its own members tell, after those of this one.
                let lane = entry.desc().filter(|desc| Desc::is_lane(desc));
                let stamp = lane.map_or(u64::MAX, |desc| desc.lane().stamp(desc.end().peer()));
                let added = u32::MAX.wrapping_sub(entry.added.load(Relaxed));
                Key { is_newly_ready: true, at: stamp, is_kernels: false, added }
            }
            place => Key::placed(place, false),
        }
    }
}

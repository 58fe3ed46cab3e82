//! Which members are named the same sleep ([`super::super::company`]).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{Entry, Set};

/// More members are armed by themselves: each of these is looked at before each sleep.
pub const COMPANY_MAX: usize = 64;

/// See the module. Changed only under the set's lock. Valid when zeroed.
#[repr(C)]
pub struct Company {
    /// The sleep that members are armed for just now; 0 while they are armed by themselves.
    pub number: AtomicU64,
    /// The last sleep that was named, if it was.
    pub in_force: AtomicU64,
    /// Whether the thread for which members are armed just now sleeps alone.
    pub alone: AtomicBool,
    count: AtomicU32,
    members: [AtomicI32; COMPANY_MAX],
}

/// What a member knows of it. Valid when zeroed: it is not in.
#[derive(Default)]
#[repr(C)]
pub struct Companion {
    /// One more than its place among the members; 0 if it is not in.
    place: AtomicU32,
    /// The peer's tail when it was armed: what comes later is news.
    pub tail: AtomicU32,
    /// Sleeps since then.
    pub sleeps: AtomicU32,
}

impl Companion {
    pub(super) fn begin(&self) {
        self.place.store(0, Relaxed);
    }

    pub fn is_in(&self) -> bool {
        self.place.load(Relaxed) != 0
    }
}

impl Company {
    pub(super) fn begin(&self) {
        self.number.store(0, Relaxed);
        self.in_force.store(0, Relaxed);
        self.alone.store(false, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// How many are in. A hint without the lock.
    #[inline]
    pub fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    fn member(&self, index: usize) -> Option<&AtomicI32> {
        self.members.get(index)
    }
}

impl Set {
    /// Takes a cold member in, if there is room, whose peer had written so far.
    pub fn join_company(&self, fd: i32, entry: &Entry, tail: u32) -> bool {
        let count = self.company.count();
        let Some(member) = self.company.member(count).filter(|_| !entry.companion.is_in()) else { return false };
        member.store(fd, Relaxed);
        self.company.count.store(count as u32 + 1, Relaxed);
        entry.companion.place.store(count as u32 + 1, Relaxed);
        entry.companion.tail.store(tail, Relaxed);
        entry.companion.sleeps.store(0, Relaxed);
        true
    }

    /// Takes a member out. The last one gets its place.
    pub fn leave_company(&self, entry: &Entry) {
        let place = entry.companion.place.swap(0, Relaxed);
        let Some(last) = self.company.count().checked_sub(1).filter(|_| place != 0) else { return };
        self.company.count.store(last as u32, Relaxed);
        let (Some(to), Some(from)) = (self.company.member(place as usize - 1), self.company.member(last)) else {
            return;
        };
        let moved = from.load(Relaxed);
        if place as usize - 1 != last
            && let Some(other) = self.find(moved)
        {
            to.store(moved, Relaxed);
            other.companion.place.store(place, Relaxed);
        }
    }

    /// Calls `f` for all that are in, from the last one on. It may take that one out.
    pub fn for_each_companion(&self, mut f: impl FnMut(i32, &Entry)) {
        for index in (0..self.company.count()).rev() {
            let fd = self.company.member(index).map(|member| member.load(Relaxed));
            if let Some((fd, entry)) = fd.and_then(|fd| Some((fd, self.find(fd)?))) {
                f(fd, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SETS;
    use super::*;
    use crate::desc::DESCS;

    #[test]
    fn who_leaves_gives_its_place_to_the_last() {
        let set = SETS.take().unwrap();
        set.begin(DESCS.take().unwrap(), false);
        for fd in 0..COMPANY_MAX as i32 + 1 {
            let entry = set.insert(fd, 1, 7, None).unwrap();
            assert_eq!(set.join_company(fd, entry, 5), fd < COMPANY_MAX as i32);
            assert!(!set.join_company(fd, entry, 5));
        }
        let members = || {
            let mut found = Vec::new();
            set.for_each_companion(|fd, entry| {
                assert!(entry.companion.is_in());
                found.push(fd);
            });
            found
        };
        assert_eq!(members(), (0..COMPANY_MAX as i32).rev().collect::<Vec<_>>());
        for fd in 3..COMPANY_MAX as i32 {
            set.leave_company(set.find(fd).unwrap());
        }
        set.leave_company(set.find(0).unwrap());
        set.leave_company(set.find(0).unwrap());
        assert_eq!(members(), [1, 2]);
        set.remove(2, set.find(2).unwrap());
        assert_eq!(members(), [1]);
        // All are visited, each once, if each is taken out.
        set.for_each_companion(|_, entry| set.leave_company(entry));
        assert_eq!(members(), []);
    }
}

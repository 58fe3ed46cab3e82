//! Entries that the app has deleted and the kernel still has ([`super::super::registration`]).
//!
//! A parked entry stays in its place and in its hash chain, and is in no other list. It counts in its set and in its
//! description; nothing else looks at it.

use core::sync::atomic::Ordering::Relaxed;

use super::{Entry, Set};
use crate::desc::Desc;

impl Set {
    /// Removes `fd`, but for what the kernel was told.
    pub fn park(&self, fd: i32, entry: &Entry) {
        self.remove(fd, entry);
        entry.parked.store(true, Relaxed);
        self.chain_in(fd, entry);
        self.parked.fetch_add(1, Relaxed);
        if let Some(desc) = entry.desc() {
            desc.parked.fetch_add(1, Relaxed);
        }
    }

    /// What a parked `fd` leads to.
    pub fn parked_at(&self, fd: i32) -> Option<&'static Desc> {
        if self.parked.load(Relaxed) == 0 {
            return None;
        }
        self.slot(fd).filter(|entry| entry.parked.load(Relaxed))?.desc()
    }

    /// Forgets that `fd` is parked. Returns what the kernel was told of it: events and data.
    pub fn take_parked(&self, fd: i32) -> Option<(u32, u64)> {
        let desc = self.parked_at(fd)?;
        let entry = self.slot(fd)?;
        self.chain_out(fd, entry);
        entry.parked.store(false, Relaxed);
        self.parked.fetch_sub(1, Relaxed);
        desc.parked.fetch_sub(1, Relaxed);
        Some(entry.registered.saved())
    }

    /// Some parked fd of which the kernel reports this data.
    pub fn parked_with_data(&self, data: u64) -> Option<i32> {
        if self.parked.load(Relaxed) == 0 {
            return None;
        }
        let mut fd = self.bucket(data).load(Relaxed);
        loop {
            let entry = self.slot(fd)?;
            if entry.parked.load(Relaxed) && entry.data.load(Relaxed) == data {
                return Some(fd);
            }
            fd = entry.chain.load(Relaxed);
        }
    }

    /// Calls `f` for every parked fd.
    pub fn for_each_parked(&self, mut f: impl FnMut(i32)) {
        if self.parked.load(Relaxed) != 0 {
            self.for_each_place(|fd, entry| {
                if entry.parked.load(Relaxed) {
                    f(fd);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NIL, SETS};
    use super::*;
    use crate::desc::{DESCS, Kind};

    #[test]
    fn a_parked_entry_is_found_by_the_kernels_data_alone() {
        let (set, owner) = (SETS.take().unwrap(), DESCS.take().unwrap());
        owner.begin(Kind::Epoll, -1, 0, 0);
        set.begin(owner, false);
        for (fd, told) in [(3, 17), (4, 18), (5, 19)] {
            let entry = set.insert(fd, 1, 7, Some(owner)).unwrap();
            entry.registered.restore((told, 7));
            set.make_hot(fd, entry);
        }
        set.park(4, set.find(4).unwrap());
        assert!(set.find(4).is_none() && set.parked_at(3).is_none() && set.parked_at(4).is_some());
        assert_eq!((set.parked_with_data(7), set.parked_with_data(8)), (Some(4), None));
        assert_eq!((owner.entries.load(Relaxed), owner.parked.load(Relaxed)), (2, 1));
        let mut used = Vec::new();
        set.with_data(7, |fd, _| used.push(fd));
        used.sort_unstable();
        assert_eq!(used, [3, 5]);
        assert_eq!(set.find(3).unwrap().heat.next(), 5);
        // What takes the place takes it over; what was told is then no secret.
        assert_eq!(set.take_parked(4), Some((18, 7)));
        assert_eq!((set.take_parked(4), set.parked_with_data(7)), (None, None));
        set.park(3, set.find(3).unwrap());
        set.park(5, set.find(5).unwrap());
        let mut parked = Vec::new();
        set.for_each_parked(|fd| {
            set.take_parked(fd);
            parked.push(fd);
        });
        assert_eq!(parked, [3, 5]);
        assert_eq!((set.hot_first.load(Relaxed), owner.parked.load(Relaxed)), (NIL, 0));
    }
}

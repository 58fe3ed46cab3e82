//! Lists of idle lanes.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{PooledLane, room};
use crate::static_ref::StaticRef;

/// A list of lanes; used under [`super::LOCK`].
pub(super) struct List {
    pub(super) first: StaticRef<PooledLane>,
    pub(super) count: AtomicU32,
}

impl List {
    pub(super) const fn new() -> Self {
        Self { first: StaticRef::none(), count: AtomicU32::new(0) }
    }

    pub(super) fn push(&self, lane: &'static PooledLane) {
        lane.next.store(self.first.load(Relaxed), Relaxed);
        self.first.store(Some(lane), Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Takes out the first lane that `wanted` accepts.
    pub(super) fn take(&self, mut wanted: impl FnMut(&'static PooledLane) -> bool) -> Option<&'static PooledLane> {
        let mut link = &self.first;
        while let Some(lane) = link.load(Relaxed) {
            if wanted(lane) {
                link.store(lane.next.load(Relaxed), Relaxed);
                self.count.fetch_sub(1, Relaxed);
                return Some(lane);
            }
            link = &lane.next;
        }
        None
    }

    /// The first lane that `wanted` accepts, which stays.
    pub(super) fn find(&self, mut wanted: impl FnMut(&'static PooledLane) -> bool) -> Option<&'static PooledLane> {
        let mut link = &self.first;
        while let Some(lane) = link.load(Relaxed) {
            if wanted(lane) {
                return Some(lane);
            }
            link = &lane.next;
        }
        None
    }

    pub(super) fn for_each(&self, mut seen: impl FnMut(&'static PooledLane)) {
        let _ = self.take(|lane| {
            seen(lane);
            false
        });
    }

    /// Takes out the oldest lane that `wanted` accepts.
    pub(super) fn take_last(&self, wanted: impl Fn(&'static PooledLane) -> bool) -> Option<&'static PooledLane> {
        let mut last = None;
        self.for_each(|lane| last = if wanted(lane) { Some(lane) } else { last });
        self.take(|lane| last.is_some_and(|last| core::ptr::eq(last, lane)))
    }

    /// Takes out the last, which is the oldest.
    pub(super) fn take_oldest(&self) -> Option<&'static PooledLane> {
        self.take(|lane| lane.next.load(Relaxed).is_none())
    }

    pub(super) fn is_full(&self) -> bool {
        u64::from(self.count.load(Relaxed)) >= room::idle_max()
    }
}

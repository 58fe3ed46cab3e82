//! Lists of what is idle.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::room;
use crate::static_ref::StaticRef;

/// What a list links.
pub(super) trait Linked: Sync + Sized + 'static {
    /// The next one in its list.
    fn next(&self) -> &StaticRef<Self>;
}

/// A list, used under a lock; the last used first.
pub(super) struct List<T: Linked> {
    pub(super) first: StaticRef<T>,
    pub(super) count: AtomicU32,
}

impl<T: Linked> List<T> {
    pub(super) const fn new() -> Self {
        Self { first: StaticRef::none(), count: AtomicU32::new(0) }
    }

    pub(super) fn push(&self, item: &'static T) {
        item.next().store(self.first.load(Relaxed), Relaxed);
        self.first.store(Some(item), Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Takes out the first item that `wanted` accepts.
    pub(super) fn take(&self, mut wanted: impl FnMut(&'static T) -> bool) -> Option<&'static T> {
        let mut link = &self.first;
        while let Some(item) = link.load(Relaxed) {
            if wanted(item) {
                link.store(item.next().load(Relaxed), Relaxed);
                self.count.fetch_sub(1, Relaxed);
                return Some(item);
            }
            link = item.next();
        }
        None
    }

    /// The first item that `wanted` accepts, which stays.
    pub(super) fn find(&self, mut wanted: impl FnMut(&'static T) -> bool) -> Option<&'static T> {
        let mut link = &self.first;
        while let Some(item) = link.load(Relaxed) {
            if wanted(item) {
                return Some(item);
            }
            link = item.next();
        }
        None
    }

    pub(super) fn for_each(&self, mut seen: impl FnMut(&'static T)) {
        let _ = self.take(|item| {
            seen(item);
            false
        });
    }

    /// Takes out the oldest item that `wanted` accepts.
    pub(super) fn take_last(&self, wanted: impl Fn(&'static T) -> bool) -> Option<&'static T> {
        let mut last = None;
        self.for_each(|item| last = if wanted(item) { Some(item) } else { last });
        self.take(|item| last.is_some_and(|last| core::ptr::eq(last, item)))
    }

    /// Takes out the last, which is the oldest.
    pub(super) fn take_oldest(&self) -> Option<&'static T> {
        self.take(|item| item.next().load(Relaxed).is_none())
    }

    pub(super) fn is_full(&self) -> bool {
        u64::from(self.count.load(Relaxed)) >= room::idle_max()
    }
}

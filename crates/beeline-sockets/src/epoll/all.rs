//! All sets of the process, and who is in which.

use core::sync::atomic::Ordering::Relaxed;

use super::set::{Entry, Set};
use crate::desc::Desc;
use crate::lock::Lock;
use crate::static_ref::StaticRef;
use crate::table;

/// All sets in use, linked through `next_set`.
#[unsafe(link_section = ".fork.locked")]
static ALL: StaticRef<Set> = StaticRef::none();

#[unsafe(link_section = ".fork.locked")]
static ALL_LOCK: Lock = Lock::new();

/// Whether the process has a set.
pub(super) fn is_any() -> bool {
    ALL.load(Relaxed).is_some()
}

/// Calls `f` with every set of the process.
pub(super) fn every_set(mut f: impl FnMut(i32, &'static Set)) {
    let _all = ALL_LOCK.lock();
    let mut next = ALL.load(Relaxed);
    while let Some(set) = next {
        let _guard = set.lock.lock();
        if let Some(owner) = set.owner() {
            f(owner.fd.load(Relaxed), set);
        }
        next = set.next_set.load(Relaxed);
    }
}

pub(super) fn is_of(entry: &Entry, desc: &'static Desc) -> bool {
    entry.desc() == Some(desc)
}

/// Calls `f` with every set that watches `fd` as `desc`.
pub(super) fn sets_with(fd: i32, desc: &'static Desc, mut f: impl FnMut(i32, &'static Set, &Entry)) {
    if desc.entries.load(Relaxed) != 0 {
        every_set(|epfd, set| {
            if let Some(entry) = set.find(fd).filter(|entry| is_of(entry, desc)) {
                f(epfd, set, entry);
            }
        });
    }
}

/// Calls `f` with every entry of `desc`: first those under `fd`, then, if there are more, those under other numbers, of
/// which some may be closed while a duplicate keeps the registration alive.
pub(super) fn entries_of(fd: i32, desc: &'static Desc, mut f: impl FnMut(i32, &'static Set, i32, &Entry)) {
    let mut found = 0;
    let entries = desc.entries.load(Relaxed);
    sets_with(fd, desc, |epfd, set, entry| {
        found += 1;
        f(epfd, set, fd, entry);
    });
    if found < entries {
        every_set(|epfd, set| {
            set.for_each_entry(|other, entry| {
                if other != fd && is_of(entry, desc) {
                    f(epfd, set, other, entry);
                }
            });
        });
    }
}

/// Takes a set out of the list of all sets.
pub(super) fn unlink(set: &'static Set) {
    let _guard = ALL_LOCK.lock();
    let mut link = &ALL;
    while let Some(next) = link.load(Relaxed) {
        if core::ptr::eq(next, set) {
            link.store(set.next_set.load(Relaxed), Relaxed);
            return;
        }
        link = &next.next_set;
    }
}

/// A set that was just made is one of them.
pub(super) fn link(set: &'static Set) {
    let _guard = ALL_LOCK.lock();
    set.next_set.store(ALL.load(Relaxed), Relaxed);
    ALL.store(Some(set), Relaxed);
}

/// In the child of a `fork`: sets on which other threads were at work are made whole.
pub(super) fn reset_after_fork() {
    ALL_LOCK.reset();
    let mut next = ALL.load(Relaxed);
    let mut torn = false;
    while let Some(set) = next {
        if set.lock.reset() {
            set.rebuild();
            torn = true;
        }
        if set.sleepers.load(Relaxed) != 0 {
            set.sleepers.store(0, Relaxed);
        }
        set.edged.count_anew();
        next = set.next_set.load(Relaxed);
    }
    if torn {
        table::for_each(|_, desc| desc.entries.store(0, Relaxed));
        every_set(|_, set| {
            set.for_each_entry(|_, entry| {
                if let Some(desc) = entry.desc() {
                    desc.entries.fetch_add(1, Relaxed);
                }
            });
        });
    }
}

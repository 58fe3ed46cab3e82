//! Bells that are left where they lie.
//!
//! To take a bell out before each sleep is a system call for each message that wakes somebody. Who is told of bells by
//! edges is not told of old ones (rule 9 of waking a reader, [`beeline_lane`]), and need not take them out.
//!
//! # Rules
//!
//! 1. Bells are left lying by a thread that sleeps on a set alone ([`super::company::arms_alone`]), in the anchor of a
//!    member that nobody else uses, if the kernel watches it by edges for certain. The lane counts, and takes them out
//!    when there are many.
//! 2. What the app watches by level the kernel watches by level as well until a thread has slept on it alone
//!    [`SLEEPS_MIN`] times. From then on the member is *edged* ([`Entry::edged`]): the kernel watches it by edges,
//!    unless room is awaited, and the app is told what it was told before. So a member that is soon gone costs no call
//!    more.
//! 3. Of an edge the kernel tells once. A thread that has been told and does not come to look at the member has lost it
//!    for all: a handler jumps out of its call, it is cancelled or ends. And a second thread that sleeps is not woken
//!    by what the first was told. So threads that ask the kernel are counted, from before they arm what they will sleep
//!    upon until they have dealt with what it said ([`Set::edged`]). Who finds somebody else there has no member
//!    edged any more, for good ([`begin_asking`]): the kernel looks at each, and tells whoever asks next of those that
//!    are ready.
//! 4. No member is edged, for as long as it lasts, where others may have the set or see it: after a `fork`, for a
//!    program that is started, for another set or poll(2) that looks at it. What becomes of an edge there is not known
//!    here. What has been edged is hot then: who sleeps next takes out the bells that lie there, of which the kernel
//!    would tell for ever.
//! 5. An anchor in which bells lie is readable, which tells nothing while its ring has nothing to tell: of an event
//!    that may be another member's, too, that one is asked.
//!
//! What the app itself watches by edges needs none of rules 2 to 4: so it is told whoever has the set.

use core::sync::atomic::Ordering::Relaxed;

use super::events::EPOLLET;
use super::registration::{EXACT, make_exact, watch_by_level};
use super::set::{Asking, Entry, Set};
use crate::io::{Users, is_alone};

/// Sleeps upon a member that is watched by level before the kernel is told to watch it by edges.
const SLEEPS_MIN: u32 = 8;

/// Whether the bells of a member may be left lying by whoever sleeps on its set alone.
pub(super) fn may_leave_bells(entry: &Entry) -> bool {
    may_be_told_once(entry) && is_told_once(entry)
}

/// Whether it is to be told of by edges: as the app asks for it, or as it is edged.
pub(super) fn may_be_told_once(entry: &Entry) -> bool {
    match entry.events.load(Relaxed) & EXACT {
        0 => entry.edged.load(Relaxed),
        EPOLLET => true,
        _ => false,
    }
}

/// Whether the kernel tells of each bell once, for certain.
pub(super) fn is_told_once(entry: &Entry) -> bool {
    !entry.registered.is_doubted() && entry.registered.events().is_some_and(|told| told & EPOLLET != 0)
}

/// Somebody is about to sleep upon a member, on its set alone: after some such sleeps it is edged. The set is locked.
pub(super) fn note_sleep(epfd: i32, set: &Set, fd: i32, entry: &Entry) {
    if entry.edged.load(Relaxed) || entry.events.load(Relaxed) & EXACT != 0 {
        return;
    }
    let sleeps = entry.sleeps.load(Relaxed).saturating_add(1);
    entry.sleeps.store(sleeps, Relaxed);
    if sleeps >= SLEEPS_MIN && may_be_edged(set, entry) {
        entry.edged.store(true, Relaxed);
        set.edged.any.store(true, Relaxed);
        make_exact(epfd, set, fd, entry);
        if !is_told_once(entry) {
            // By that number the kernel has nothing.
            entry.edged.store(false, Relaxed);
            entry.sleeps.store(0, Relaxed);
        }
    }
}

fn may_be_edged(set: &Set, entry: &Entry) -> bool {
    !set.edged.ended.load(Relaxed)
        && set.is_private()
        && !set.handed_on.load(Relaxed)
        && entry.registered.events().is_some()
        && !entry.kernel_out.load(Relaxed)
        && !entry.hung.load(Relaxed)
        && entry.desc().is_some_and(|desc| is_alone(desc, &Users::MEMBER))
}

/// A thread is about to ask the kernel what it has to tell of a set, without waiting, or to arm its members for a sleep
/// and then to ask. To be followed by [`has_asked`](super::set::Edged::has_asked) when all of what it said has been
/// looked at. The set is not locked.
pub(super) fn begin_asking(epfd: i32, set: &Set) -> Asking {
    let (asking, beside_others) = set.edged.asks();
    if beside_others {
        end_edges_for_good(epfd, set);
    }
    asking
}

/// Somebody else is asking, or was and will not come back.
#[cold]
#[inline(never)]
fn end_edges_for_good(epfd: i32, set: &Set) {
    if !set.edged.ended.load(Relaxed) {
        let _guard = set.lock.lock();
        set.edged.ended.store(true, Relaxed);
        watch_by_level(epfd, set, |_, _| ());
    }
}

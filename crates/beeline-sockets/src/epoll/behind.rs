//! What a thread leaves behind in a set when its wait returns, for those who sleep: what has been told of and not yet
//! dealt with is armed, so that they hear of what comes next.
//!
//! | who may sleep | what is armed |
//! |---|---|
//! | another thread of this process, on the set or on one around it | all that is hot |
//! | another process, on a set that both have since a fork | nothing: few sets have that, and each that a program has filled before it forks once would ring for each message (docs/limits.md) |
//! | anybody, on another set with the same connection, where one of all is woken (`EPOLLEXCLUSIVE`) | what was told |

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Since};

use super::all::entries_of;
use super::limits::ARMINGS;
use super::registration::EPOLLEXCLUSIVE;
use super::set::{Entry, Set, open_fd};
use crate::desc::Desc;
use crate::guards;
use crate::io;

/// Whether a wait on a set that returns leaves armed members behind. Whoever sleeps has said so before it armed the
/// members under the set's lock, which the wait has had since, or has it find what it was told.
#[inline]
pub(super) fn may_somebody_sleep(set: &Set) -> bool {
    set.sleepers.load(Relaxed) != 0 || set.exposed.load(Relaxed) && is_awaited_outside(set)
}

/// Whether somebody may sleep on a set around this one. Who sleeps in poll(2) on this one is woken by each bell, and
/// arms again. The set is not locked.
#[cold]
fn is_awaited_outside(set: &Set) -> bool {
    let Some(owner) = set.owner().filter(|owner| owner.entries.load(Relaxed) != 0) else { return false };
    let mut awaited = false;
    entries_of(owner.fd.load(Relaxed), owner, |_, outer, _, _| {
        awaited |= outer.sleepers.load(Relaxed) != 0 || outer.exposed.load(Relaxed);
    });
    awaited
}

fn is_shared_lane(desc: &Desc) -> bool {
    desc.is_lane() && desc.shared.load(Relaxed)
}

/// Whether a member is a connection that is watched exclusively, and may be a member of another set.
#[inline]
pub(super) fn is_watched_elsewhere(entry: &Entry) -> bool {
    entry.events.load(Relaxed) & EPOLLEXCLUSIVE != 0
        && entry.desc().is_some_and(|desc| desc.is_lane() && (desc.entries.load(Relaxed) > 1 || is_shared_lane(desc)))
}

/// The bell that a wait has told of has woken nobody else who watches the connection exclusively: what comes from now
/// on rings again. What came before the wait returned is told with the first.
#[cold]
pub(super) fn arm_exclusive(set: &Set, call: u32) {
    let _guard = set.lock.lock();
    let mut fd = set.hot_first.load(Relaxed);
    while let Some(entry) = set.find(fd) {
        let next = entry.heat.next();
        if entry.call.load(Relaxed) == call
            && is_watched_elsewhere(entry)
            && let Some(desc) = entry.desc()
        {
            let _ = arm_from_now(open_fd(fd, desc), desc);
        }
        fd = next;
    }
}

/// Arms a lane for what comes after what is there. False if more comes all the time.
pub(super) fn arm_from_now(fd: i32, desc: &'static Desc) -> bool {
    let Some(guard) = guards::rx_of(fd, desc) else { return true };
    (0..ARMINGS).any(|_| {
        let since = Since::Tail(guard.reader().tail());
        // A fault is found again by whoever reads.
        guard.arm(since, &io::Anchor(fd)) != Ok(Armed::Ready)
    })
}

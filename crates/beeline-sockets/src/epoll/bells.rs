//! Bells of members on which nobody sleeps, taken out before the kernel tells of them in vain (rule 8 of [`super`]).
//!
//! | when | of whom |
//! |---|---|
//! | a look finds a bell | a hot member: who is about to sleep on the set has yet to arm it |
//! | a wait that sleeps alone arms ([`super::company::arms_alone`]) | the member, if its ring has been read: there is no bell to count then |
//! | a member is told its one shot (`EPOLLONESHOT`) | that one: who asks for the next shot arms it |
//!
//! In the first two cases not of a member that the kernel tells of by edges ([`super::lying`]).
//!
//! The bell of bytes that are unread stays where others may see the set: nothing else tells of them there. A program
//! that this one becomes, with the set and the connection, is not thought of: it is not told by the set of what was
//! told and not read before.

use core::sync::atomic::Ordering::Relaxed;

use super::faults::note_fault;
use super::set::{Entry, Set, open_fd};
use crate::anchor::Anchor;
use crate::desc::Desc;
use crate::guards;
use crate::io::{self, Next, Users, is_alone, may_have_bells};

/// Takes out the bells of a hot lane that nobody sleeps on.
pub(super) fn drain_bells(set: &Set, fd: i32, desc: &'static Desc) {
    let number = open_fd(fd, desc);
    let Some(_pin) = guards::pin(number, desc) else { return };
    let drained = {
        // As long as the lane is hot whoever is about to sleep on the set has yet to arm it, under this lock. If
        // another thread has made it cold meanwhile, a bell may be all that tells of it.
        let _set = set.lock.lock();
        let is_it = |entry: &&Entry| entry.desc() == Some(desc);
        let hot = set.find(fd).filter(is_it).is_some_and(|entry| entry.heat.is_hot());
        let alone = || set.sleep_only(0) && is_alone(desc, &Users { pins: 1, ..Users::MEMBER });
        // Where others are known to use it, its lock, which they may hold, is not waited for.
        let Some(guard) = (hot && alone()).then(|| guards::rx_of(number, desc)).flatten() else { return };
        if alone() { guard.reader().drain_bells(&Anchor(number)) } else { Ok(()) }
    };
    if let Err(failure) = drained {
        let (Next::Again | Next::Kernel) = io::fault(number, desc, failure, 0);
    }
}

/// Of a member that has been told its one shot: takes out the bell that told of it, as nobody sleeps for it until the
/// next shot is asked for, which arms it. The set is locked.
#[cold]
#[inline(never)]
pub(super) fn drain_fired(set: &Set, fd: i32, entry: &Entry) {
    if set.exposed.load(Relaxed) {
        return;
    }
    let is_alone = |desc: &Desc| is_alone(desc, &Users::MEMBER);
    // Where others are known to use it, its lock, which they may hold, is not waited for.
    let may = |desc: &&Desc| !entry.dead.load(Relaxed) && may_have_bells(desc) && is_alone(desc);
    let Some(desc) = entry.desc().filter(|desc| desc.is_lane()).filter(may) else { return };
    let number = open_fd(fd, desc);
    if let Some(guard) = guards::rx_of(number, desc)
        && is_alone(desc)
        && let Err(fault) = guard.reader().drain_bells(&Anchor(number))
    {
        drop(guard);
        note_fault(set, fd, entry, fault);
    }
}

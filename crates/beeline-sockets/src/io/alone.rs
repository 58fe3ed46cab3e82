//! Bells that lie in an anchor on which nobody sleeps are taken out by one call (rule 7 of waking a reader in
//! [`beeline_lane`]): the arming that follows has none to count.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Fault, Sleeping};

use super::pollers::pollers;
use crate::anchor::Anchor;
use crate::desc::{ByEdges, Desc, RxGuard};

/// Who may sleep on a lane's anchor: as many of them as the one who asks knows to be itself, or awake.
pub(crate) struct Users {
    /// Calls that use the lane, those of poll(2) and select(2) that keep it among them.
    pub pins: u32,
    /// Members of sets that lead to it.
    pub entries: u32,
}

impl Users {
    /// A member of a set, which no call uses.
    pub(crate) const MEMBER: Self = Self { pins: 0, entries: 1 };
}

/// A sleep on a lane that may be the only one: whom it counts for itself, and how it sleeps.
#[derive(Clone, Copy)]
pub(crate) struct Sleeper<'a> {
    pub users: &'static Users,
    pub sleep: Sleeping,
    /// Where the lane's edge set is to be put, by which it sleeps if it gets that.
    pub by_edges: Option<&'a Cell<Option<ByEdges>>>,
}

impl<'a> Sleeper<'a> {
    pub(crate) fn new(users: &'static Users, sleep: Sleeping) -> Self {
        Self { users, sleep, by_edges: None }
    }

    /// A sleep on one lane, by edges if it is alone.
    pub(crate) fn by_edges(users: &'static Users, place: &'a Cell<Option<ByEdges>>) -> Self {
        Self { by_edges: Some(place), ..Self::new(users, Sleeping::default()) }
    }

    /// Takes the lane's edge set, if it is alone and there is one. The lane's rx lock is held.
    pub(super) fn take_edges(mut self, fd: i32, guard: &RxGuard) -> Self {
        let edges = &guard.desc.edges;
        match self.by_edges.filter(|_| is_alone(guard.desc, self.users)) {
            Some(place) => {
                let by_edges = edges.by_edges(fd, guard.desc.begun());
                self.sleep.by_edges = by_edges.as_ref().is_some_and(ByEdges::knows_bells);
                place.set(by_edges);
            }
            None => edges.sleeps_otherwise(),
        }
        self
    }
}

/// Whether nobody else may sleep on a lane's anchor without arming it first. Its rx lock is held; of a member, who
/// sleeps on the set is asked besides, but for threads in poll(2): these keep sets, and not what is in them.
pub(crate) fn is_alone(desc: &Desc, users: &Users) -> bool {
    !desc.shared.load(Relaxed)
        && desc.entries.load(Relaxed) == users.entries
        && desc.keepers.pins() == users.pins
        && (users.entries == 0 || pollers() == 0)
}

/// Whether bells may lie in a lane's anchor. A hint without a lock.
#[inline]
pub(crate) fn may_have_bells(desc: &Desc) -> bool {
    desc.side().rx.may_have_bells(&desc.lane(), desc.end())
}

/// Before an arming by somebody who may be alone: takes out the bells of a ring that has been read, or that holds less
/// than they wait for (`wants_more`), as these would end the sleep at once.
///
/// # Errors
/// A fault of the peer.
#[inline]
pub(crate) fn drain_if_alone(
    fd: i32,
    desc: &Desc,
    guard: &RxGuard,
    wants_more: bool,
    users: &Users,
) -> Result<(), Fault> {
    match may_have_bells(desc) && (wants_more || !guard.reader().has_news()) && is_alone(desc, users) {
        true => guard.reader().drain_bells(&Anchor(fd)),
        false => Ok(()),
    }
}

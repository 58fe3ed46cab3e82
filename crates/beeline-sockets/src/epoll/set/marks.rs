//! What was reported of a member, by which edges are told from what is old (edge-triggered).
//!
//! | step | when |
//! |---|---|
//! | [`Seen::refresh`] | the app adds or modifies the member: whatever is there is an edge |
//! | [`Seen::refresh`] | what it leads to has changed: likewise |
//! | [`Seen::report`] | a wait has reported the member, with the marks that were taken before it looked |
//! | [`Seen::pass`] | arming finds what has come to be nothing to tell: it is no edge any more |
//! | [`Seen::report_room`] | a wait has reported room |
//!
//! All of them under the set's lock.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::desc::Desc;

/// What counts edges, at one moment. It is taken before the mask that is reported: what comes in between is an edge
/// of its own.
pub struct Marks {
    /// The tail up to which each byte was an arrival; the sum of arrivals for a set.
    pub tail: u32,
    /// The side's `changes`.
    pub changes: u32,
    /// The side's `arrivals`.
    pub arrivals: u32,
    /// How often sends had found the ring full.
    pub fulls: u32,
}

/// The marks at the last report. Valid when zeroed.
#[derive(Default)]
#[repr(C)]
pub struct Seen {
    /// Whether the present state has not been reported yet.
    fresh: AtomicBool,
    /// The tail up to which each byte was an arrival; the sum of arrivals for a set.
    tail: AtomicU32,
    /// The side's `arrivals`.
    arrivals: AtomicU32,
    /// How often sends had found the ring full.
    fulls: AtomicU32,
    /// The side's `changes`.
    changes: AtomicU32,
}

impl Seen {
    /// What is there is an edge, whether it was reported or not.
    pub fn refresh(&self) {
        self.fresh.store(true, Relaxed);
    }

    /// Whether nothing was reported since.
    pub fn is_fresh(&self) -> bool {
        self.fresh.load(Relaxed)
    }

    /// The member was reported.
    pub fn report(&self, marks: &Marks) {
        self.fresh.store(false, Relaxed);
        self.tail.store(marks.tail, Relaxed);
        self.changes.store(marks.changes, Relaxed);
        self.arrivals.store(marks.arrivals, Relaxed);
    }

    /// Room was reported when sends had found the ring full so often.
    pub fn report_room(&self, fulls: u32) {
        self.fulls.store(fulls, Relaxed);
    }

    /// What has come up to this tail is no edge.
    pub fn pass(&self, tail: u32) {
        self.tail.store(tail, Relaxed);
    }

    /// The tail that was reported.
    pub fn tail(&self) -> u32 {
        self.tail.load(Relaxed)
    }

    /// The arrivals that were.
    pub fn arrivals(&self) -> u32 {
        self.arrivals.load(Relaxed)
    }

    /// The changes that were.
    pub fn changes(&self) -> u32 {
        self.changes.load(Relaxed)
    }

    /// How often sends had found the ring full.
    pub fn fulls(&self) -> u32 {
        self.fulls.load(Relaxed)
    }

    /// The same of another place, to which the member moves.
    pub(super) fn take_over(&self, from: &Seen) {
        self.fresh.store(from.is_fresh(), Relaxed);
        for (target, source) in [
            (&self.tail, &from.tail),
            (&self.fulls, &from.fulls),
            (&self.changes, &from.changes),
            (&self.arrivals, &from.arrivals),
        ] {
            target.store(source.load(Relaxed), Relaxed);
        }
    }
}

/// The peer's tail.
pub fn tail(desc: &Desc) -> u32 {
    desc.lane().cursor(desc.end().peer()).tail
}

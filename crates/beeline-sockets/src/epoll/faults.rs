//! Faults of peers that are found while sets are locked: noted there, and dealt with when no lock is held.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

use beeline_lane::Fault;

use super::all::every_set;
use super::set::{Entry, Set, open_fd};
use crate::desc::{Desc, Pin};
use crate::io::{self, Next};
use crate::side::state;
use crate::thread::Section;

/// Whether some set may have a fault to be dealt with: one that is inside another is not waited on itself.
#[unsafe(link_section = ".fork")]
static TROUBLED: AtomicBool = AtomicBool::new(false);

/// Faults that somebody has begun to deal with, ever; and those that somebody is dealing with.
pub(super) static ANSWERS_BEGUN: AtomicU32 = AtomicU32::new(0);

#[unsafe(link_section = ".fork.written")]
pub(super) static ANSWERS_OPEN: AtomicU32 = AtomicU32::new(0);

/// Notes a fault of an entry's peer, to be dealt with by [`answer_faults`]. The entry is hot from now on, so that no
/// wait sleeps before. The set is locked.
pub(super) fn note_fault(set: &Set, fd: i32, entry: &Entry, fault: Fault) {
    entry.fault.set(Some(fault));
    if !entry.fired.load(Relaxed) {
        set.make_hot(fd, entry);
    }
    mark_troubled(set);
}

/// Has [`answer_faults`] look at a set.
pub(super) fn mark_troubled(set: &Set) {
    set.troubled.store(true, Relaxed);
    TROUBLED.store(true, Relaxed);
}

/// Whether a set, or one inside it, may have a fault to be dealt with.
pub(super) fn is_troubled(set: &Set) -> bool {
    set.troubled.load(Relaxed) || TROUBLED.load(Relaxed)
}

/// Notes what the kernel says of a lane's anchor, and leaves a fault to [`answer_faults`]. The set is locked, and the
/// locks of sets around it may be held. Of an end that the peer has told, too, there is nothing to be dealt with.
pub(super) fn hear(set: &Set, fd: i32, entry: &Entry, desc: &'static Desc, revents: i16) {
    if let Err(fault) = io::hear(desc, revents)
        && (fault != Fault::Gone || !desc.side().is(state::PEER_CLOSED))
    {
        note_fault(set, fd, entry, fault);
    }
}

/// Deals with the faults of peers that were noted while sets were locked: of `own`, and of those that others watch, be
/// it from within another set. No lock may be held: a fault may start the connection over on TCP, which takes it out of
/// its sets. Whether there were any.
#[inline]
pub(super) fn answer_faults(own: &Set) -> bool {
    is_troubled(own) && answer_all(own)
}

#[cold]
fn answer_all(own: &Set) -> bool {
    fn jumped_out(open: &Cell<bool>) {
        if open.get() {
            end_answer();
        }
    }
    let mut any = false;
    while is_troubled(own) {
        let open = Cell::new(false);
        if !crate::cancel::undoing(&open, jumped_out, || answer_fault(own, &open)) {
            break;
        }
        any = true;
    }
    any
}

/// Deals with one fault, which is `open` meanwhile. False if there is none.
fn answer_fault(own: &Set, open: &Cell<bool>) -> bool {
    TROUBLED.store(false, Relaxed);
    let mut found = None;
    every_set(|_, set| {
        let due = core::ptr::eq(set, own) || set.exposed.load(Relaxed);
        if found.is_none() && due && set.troubled.load(Relaxed) {
            found = take_fault(set, open);
            set.troubled.store(found.is_some(), Relaxed);
        }
    });
    let Some((pin, fd, fault)) = found else { return false };
    // There may be more.
    TROUBLED.store(true, Relaxed);
    if pin.desc().is_lane() {
        let (Next::Again | Next::Kernel) = pin.while_waiting(|| io::fault(fd, pin.desc(), fault, 0));
    }
    let _section = Section::enter();
    open.set(false);
    end_answer();
    true
}

/// A handler may fork in the middle of an answer, and its child return here uncounted.
fn end_answer() {
    let _ = ANSWERS_OPEN.fetch_update(SeqCst, Relaxed, |open| open.checked_sub(1));
}

/// Takes one of the faults that were noted in a set, with the connection and its number. From here on it is being dealt
/// with. The set is locked.
fn take_fault(set: &Set, open: &Cell<bool>) -> Option<(Pin, i32, Fault)> {
    let mut found = None;
    set.for_each_entry(|fd, entry| {
        if found.is_none()
            && let Some(fault) = entry.fault.get()
            && let Some(desc) = entry.desc()
        {
            ANSWERS_OPEN.fetch_add(1, SeqCst);
            ANSWERS_BEGUN.fetch_add(1, SeqCst);
            open.set(true);
            entry.fault.set(None);
            // Pinned: its number may lead elsewhere, and a description that is given back, too.
            found = Some((desc.pin(), open_fd(fd, desc), fault));
        }
    });
    found
}

/// In the child of a `fork`.
pub(super) fn reset_after_fork() {
    // Another thread may have been about to look, or to deal with what it found.
    TROUBLED.store(true, Relaxed);
    if ANSWERS_OPEN.load(Relaxed) != 0 {
        ANSWERS_OPEN.store(0, Relaxed);
    }
}

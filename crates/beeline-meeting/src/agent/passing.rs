//! Descriptors that are ours for the length of a call: carriers, ends of lanes, the socket of a connection that is
//! being made.
//!
//! A `fork` by another thread copies them, and nobody in the child knows them: a connection would not end there while
//! the child lives. So they have slots, which the child empties. Whoever comes back into such a call in a child, out of
//! a signal handler that has forked, finds that it has them no more.

use core::sync::atomic::{
    AtomicI32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use beeline_guest::changing;

use crate::hidden::close_hidden;

/// Threads that are in such calls at one time have two or three each; more of them have to do without lanes.
const SLOTS: usize = 128;
/// The descriptor plus one; 0 for none.
#[unsafe(link_section = ".fork.locked")]
static UNDER_WAY: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];

/// A descriptor that closes itself, in this process and in those that are forked meanwhile.
#[derive(Debug)]
pub struct Passing {
    fd: i32,
    slot: &'static AtomicI32,
}

impl Passing {
    /// Takes care of the descriptor that `make` makes; no fork comes in between. None if it makes none, or there is no
    /// slot.
    pub fn make<E>(make: impl FnOnce() -> Result<i32, E>) -> Result<Option<Passing>, E> {
        let _changing = changing::changing();
        make().map(Self::of)
    }

    /// Takes care of a descriptor, or closes it if there is no slot. The caller holds `changing::changing`.
    #[must_use]
    pub fn of(fd: i32) -> Option<Passing> {
        let word = fd.checked_add(1)?;
        let free =
            |slot: &&AtomicI32| slot.load(Relaxed) == 0 && slot.compare_exchange(0, word, AcqRel, Relaxed).is_ok();
        if let Some(slot) = UNDER_WAY.iter().find(free) {
            return Some(Passing { fd, slot });
        }
        close_hidden(fd);
        None
    }

    /// Its number, while it is ours.
    #[must_use]
    pub fn fd(&self) -> Option<i32> {
        (self.slot.load(Acquire) == self.fd.saturating_add(1)).then_some(self.fd)
    }

    /// The descriptor, for good. The caller holds `changing::changing`.
    #[must_use]
    pub fn keep(self) -> Option<i32> {
        self.take()
    }

    fn take(&self) -> Option<i32> {
        let word = self.fd.saturating_add(1);
        self.slot.compare_exchange(word, 0, AcqRel, Relaxed).ok().map(|_| self.fd)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // No fork sees the slot empty and the descriptor open, nor the other way round.
        let _changing = changing::changing();
        if let Some(fd) = self.take() {
            close_hidden(fd);
        }
    }
}

/// In the child of a `fork`: what its parent's threads have under way is not its.
pub fn reset_after_fork() {
    for slot in &UNDER_WAY {
        // What is free is not written: each child would get a copy of the page.
        if slot.load(Relaxed) == 0 {
            continue;
        }
        let word = slot.swap(0, AcqRel);
        if word > 0 {
            close_hidden(word.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    /// One test, since a child's slots are all slots.
    #[test]
    fn what_is_under_way_is_closed_in_a_child_and_by_whoever_drops_it() {
        let pair = || {
            let (one, two) = UnixStream::pair().unwrap();
            (one, two.into_raw_fd())
        };
        let ((mut one, its), (mut two, kept), (mut three, lost)) = (pair(), pair(), pair());
        let passing = Passing::make::<()>(|| Ok(its)).unwrap().unwrap();
        assert_eq!(passing.fd(), Some(its));
        drop(passing);
        assert_eq!(one.read(&mut [0]).unwrap(), 0);
        let kept = Passing::of(kept).unwrap().keep().unwrap();
        let passing = Passing::of(lost).unwrap();
        reset_after_fork();
        assert_eq!((passing.fd(), three.read(&mut [0]).unwrap()), (None, 0));
        drop(passing);
        let _ = beeline_shm::sys::close(kept);
        assert_eq!(two.read(&mut [0]).unwrap(), 0);
        assert!(Passing::make(|| Err::<i32, i32>(1)).is_err());
        // There are only so many.
        let all: std::vec::Vec<_> = (0..SLOTS).map(|_| Passing::of(pair().1)).collect();
        assert!(all.iter().all(Option::is_some));
        let (mut beyond, its) = pair();
        assert!(Passing::of(its).is_none());
        assert_eq!(beyond.read(&mut [0]).unwrap(), 0);
    }
}

//! The list of the processes that share an end ([`SideState::sharers`]).
//!
//! 1. A process stands there by its [identity](crate::process::identity): two of different pid namespaces may have the
//!    same id.
//! 2. Who closes the end, ends in good order or executes a program that does not get the end takes itself off. One that
//!    is killed stays, until somebody needs its place.
//! 3. Of a process of another pid namespace nobody here can tell whether it lives. So an end that is shared with one
//!    cannot be demoted from here: its relay could not know when to let the program's socket go.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{EXPECTED, SideState, state};
use crate::{process, thread};

impl SideState {
    /// Lists a process that shares the end from now on; [`EXPECTED`] stands for a child that is being made.
    pub fn join(&self, process: u32) {
        // Those of whom one was not to be listed are not looked through each time.
        if process != EXPECTED && self.lists(process) || self.take_place(process) || self.is(state::CROWDED) {
            return;
        }
        self.sweep_sharers();
        if !self.take_place(process) {
            self.mark(state::CROWDED);
        }
    }

    fn take_place(&self, process: u32) -> bool {
        let expected = if process == EXPECTED { None } else { Some(EXPECTED) };
        expected.into_iter().chain(core::iter::once(0)).any(|from| {
            self.sharers.iter().any(|place| {
                // A look first: most places are not free where many share the end.
                place.load(Relaxed) == from && place.compare_exchange(from, process, Relaxed, Relaxed).is_ok()
            })
        })
    }

    /// Takes those off the list that have ended, and children that were expected: most of so many were killed before
    /// they had begun, and one that is being made finds a place.
    fn sweep_sharers(&self) {
        for place in &self.sharers {
            let process = place.load(Relaxed);
            if process == EXPECTED || process != 0 && process::has_ended(process) {
                // Unless it is somebody else's by now.
                let _ = place.compare_exchange(process, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Takes a process off the list.
    pub fn leave(&self, process: u32) {
        for place in &self.sharers {
            if place.load(Relaxed) == process && place.compare_exchange(process, 0, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Whether a process is listed.
    #[must_use]
    pub fn lists(&self, process: u32) -> bool {
        self.sharers.iter().any(|place| place.load(Relaxed) == process)
    }

    /// Whether nobody is listed.
    #[must_use]
    pub fn lists_nobody(&self) -> bool {
        self.sharers.iter().all(|place| place.load(Acquire) == 0)
    }

    /// Whether this process can tell of each that shares the end whether it lives.
    #[must_use]
    pub fn knows_all_sharers(&self) -> bool {
        let knows = |process| process == 0 || process == EXPECTED || thread::is_neighbour(process);
        !self.is(state::CROWDED) && self.sharers.iter().all(|place| knows(place.load(Relaxed)))
    }
}

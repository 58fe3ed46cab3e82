//! The processes that serve a door, among those that share its listener ([`super::listener::Share`]).
//!
//! 1. A process stands there by its [identity](process::identity) from when it begins to serve until it stops, ends in
//!    good order, or executes a program.
//! 2. One that was killed, or has ended without our being asked (daemon(3)), stands there until somebody asks whether
//!    there are others: then the kernel is asked whether they have ended. Nothing is counted beside the list that a
//!    process could leave wrong by dying between two stores.
//! 3. Of a process of another pid namespace nobody here can tell whether it lives: it stays.
//! 4. Those beyond [`PLACES`] are only counted, and stay when they are killed.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed, SeqCst},
    fence,
};

use crate::process;

/// More processes than a crowd has by default (Apache's 256).
const PLACES: usize = 512;

/// See the module. Valid when zeroed.
#[repr(C)]
pub(super) struct Servers {
    places: [AtomicU32; PLACES],
    /// How many have no place.
    others: AtomicU32,
}

impl Servers {
    /// The process serves from now on. The caller keeps its other threads from doing the same.
    pub(super) fn join(&self, us: u32) {
        if self.lists(us) || self.take_place(us) {
            return;
        }
        // Most of so many have ended.
        self.places.iter().for_each(|place| {
            let _ = Self::is_alive(place);
        });
        if !self.take_place(us) {
            self.others.fetch_add(1, AcqRel);
        }
    }

    /// It does not any more. Of two that leave at one time, one at least finds in [`Servers::any_but`] that the other
    /// has left.
    pub(super) fn leave(&self, us: u32) {
        match self.places.iter().find(|place| place.load(Relaxed) == us) {
            Some(place) => place.store(0, Relaxed),
            None => {
                let _ = self.others.fetch_update(AcqRel, Relaxed, |others| others.checked_sub(1));
            }
        }
        // Pairs with that of the other one: between the store above and the loads of `any_but`.
        fence(SeqCst);
    }

    /// Whether another process serves than this one, which does or does not itself. Those that have ended leave.
    pub(super) fn any_but(&self, us: u32, serves: bool) -> bool {
        let is_other = |place: &AtomicU32| place.load(Relaxed) != us && Self::is_alive(place);
        let counted = || u32::from(serves && !self.lists(us));
        self.places.iter().any(is_other) || self.others.load(Relaxed) > counted()
    }

    /// Whether another process stands here than this one, alive or not: no system call is made.
    pub(super) fn lists_another(&self, us: u32) -> bool {
        let is_another = |place: &AtomicU32| ![0, us].contains(&place.load(Relaxed));
        self.places.iter().any(is_another) || self.others.load(Relaxed) != 0
    }

    /// Whether two serve, or more. Those that have ended leave.
    pub(super) fn are_several(&self) -> bool {
        let listed = self.places.iter().filter(|place| Self::is_alive(place)).take(2).count();
        listed.saturating_add(self.others.load(Relaxed) as usize) > 1
    }

    fn lists(&self, us: u32) -> bool {
        self.places.iter().any(|place| place.load(Relaxed) == us)
    }

    fn take_place(&self, us: u32) -> bool {
        self.places
            .iter()
            .any(|place| place.load(Relaxed) == 0 && place.compare_exchange(0, us, AcqRel, Relaxed).is_ok())
    }

    /// Whether somebody stands here who has not ended. Who has is taken off.
    fn is_alive(place: &AtomicU32) -> bool {
        let process = place.load(Relaxed);
        let has_ended = process != 0 && process::has_ended(process);
        if has_ended {
            // Unless it is somebody else's by now.
            let _ = place.compare_exchange(process, 0, AcqRel, Relaxed);
        }
        process != 0 && !has_ended
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn none() -> Box<Servers> {
        Box::new(Servers { places: [const { AtomicU32::new(0) }; PLACES], others: AtomicU32::new(0) })
    }

    /// As the mark of our pid namespace, and the id of another process.
    fn identity_of(child: &Child) -> u32 {
        process::identity() ^ process::owner() ^ child.id()
    }

    #[test]
    fn who_has_ended_serves_no_more_and_who_lives_does() {
        let (servers, us) = (none(), process::identity());
        servers.join(us);
        assert!(!servers.any_but(us, true) && !servers.are_several() && !servers.lists_another(us));
        let mut other = Command::new("sleep").arg("100").spawn().unwrap();
        servers.join(identity_of(&other));
        assert!(servers.any_but(us, true) && servers.are_several() && servers.lists_another(us));
        servers.leave(us);
        assert!(servers.any_but(us, false) && !servers.are_several());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!servers.any_but(us, false));
    }

    #[test]
    fn who_joins_twice_leaves_once() {
        let servers = none();
        servers.join(7);
        servers.join(7);
        servers.leave(7);
        assert!(!servers.any_but(8, false));
    }

    #[test]
    fn places_of_those_that_have_ended_are_taken_and_who_finds_none_is_counted() {
        let (servers, us) = (none(), process::identity());
        let mut other = Command::new("true").spawn().unwrap();
        let ended = identity_of(&other);
        other.wait().unwrap();
        servers.places.iter().for_each(|place| place.store(ended, Relaxed));
        servers.join(us);
        assert!(servers.lists(us) && !servers.lists(ended));
        // Nobody can tell of these.
        servers.places.iter().for_each(|place| place.store(u32::MAX, Relaxed));
        servers.join(us);
        assert_eq!((servers.lists(us), servers.others.load(Relaxed)), (false, 1));
        servers.places.iter().for_each(|place| place.store(0, Relaxed));
        assert!(!servers.any_but(us, true), "the one that is counted is this one");
        assert!(servers.any_but(us, false), "or another one");
        servers.leave(us);
        assert!(!servers.any_but(us, false));
    }
}

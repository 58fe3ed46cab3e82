//! Entries whose number was closed while their file stays open.

use core::sync::atomic::Ordering::Relaxed;

use super::{CHUNK_FDS, Entry, GHOSTS_BEGIN, Set};
use crate::desc::Desc;

impl Set {
    /// The number of an entry was closed and its file was not. Without room the entry stays where it is.
    pub fn make_ghost(&self, fd: i32) {
        let free = |place: &i32| self.find(*place).is_none();
        if let Some(place) = (GHOSTS_BEGIN as i32..(GHOSTS_BEGIN + CHUNK_FDS) as i32).find(free)
            && let Some(ghost) = self.relocate(fd, place)
        {
            ghost.ghost_of.store(fd, Relaxed);
            self.ghosts.fetch_add(1, Relaxed);
        }
    }

    /// A number leads to `desc` again: so does the entry that it had before it was closed.
    pub fn revive_ghost(&self, fd: i32, desc: &'static Desc) -> Option<&Entry> {
        let is_it = |place: &i32| {
            self.find(*place).is_some_and(|ghost| ghost.ghost_of.load(Relaxed) == fd && ghost.desc() == Some(desc))
        };
        if self.ghosts.load(Relaxed) == 0 || self.find(fd).is_some() {
            return None;
        }
        let place = (GHOSTS_BEGIN as i32..(GHOSTS_BEGIN + CHUNK_FDS) as i32).find(is_it)?;
        self.relocate(place, fd)
    }

    /// Moves an entry to another place, with all it knows.
    fn relocate(&self, from: i32, to: i32) -> Option<&Entry> {
        let old = self.find(from)?;
        let new = self.insert(to, old.events.load(Relaxed), old.data.load(Relaxed), old.desc())?;
        for (target, source) in [
            (&new.fired, &old.fired),
            (&new.spent, &old.spent),
            (&new.dead, &old.dead),
            (&new.hung, &old.hung),
            (&new.kernel_out, &old.kernel_out),
        ] {
            target.store(source.load(Relaxed), Relaxed);
        }
        for (target, source) in [(&new.call, &old.call), (&new.place, &old.place), (&new.added, &old.added)] {
            target.store(source.load(Relaxed), Relaxed);
        }
        new.seen.take_over(&old.seen);
        new.fault.set(old.fault.get());
        new.registered.restore(old.registered.saved());
        if old.heat.is_hot() || old.companion.is_in() {
            self.make_hot(to, new);
        }
        self.remove(from, old);
        Some(new)
    }
}

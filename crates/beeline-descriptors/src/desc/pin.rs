//! Pins: operations that need a description without its locks.

use core::cell::Cell;

use super::Desc;

/// A pinned description.
pub struct Pin {
    desc: &'static Desc,
    /// Whether [`Pin::while_waiting`] runs.
    waits: Cell<bool>,
}

impl Pin {
    /// The description.
    pub fn desc(&self) -> &'static Desc {
        self.desc
    }

    /// The number that leads to the description: `fd`, unless that was closed since. It stays so while one of the
    /// description's locks is held.
    pub fn fd(&self, fd: i32) -> i32 {
        crate::table::number_of(self.desc, fd)
    }

    /// Runs `wait`, a spin or a sleep; a thread that is cancelled in it, or jumps out, gives the pin back. Nests: a
    /// call that has to be done as a whole is one wait from its beginning to its end.
    pub fn while_waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        fn undo(desc: &'static Desc) {
            desc.keepers.end_wait();
            unpin(desc);
        }
        if self.waits.replace(true) {
            return wait();
        }
        self.desc.keepers.begin_wait();
        let result = crate::cancel::undoing(self.desc, undo, wait);
        self.desc.keepers.end_wait();
        self.waits.set(false);
        result
    }
}

impl Desc {
    /// Keeps the description, its lane and its side for its holder. Only [`crate::guards::pin`] can tell whether they
    /// were still there to be kept.
    pub fn pin(&'static self) -> Pin {
        self.keepers.pin();
        Pin { desc: self, waits: Cell::new(false) }
    }

    /// Makes a pin that waits from now on into one that whoever has the description gives back by [`Desc::let_go`].
    pub fn hold(pin: Pin) -> &'static Desc {
        let desc = pin.desc;
        core::mem::forget(pin);
        desc.keepers.begin_wait();
        desc
    }

    /// See [`Desc::hold`].
    pub fn let_go(&'static self) {
        self.keepers.end_wait();
        unpin(self);
    }
}

fn unpin(desc: &'static Desc) {
    if desc.keepers.unpin() {
        if desc.keepers.lingers() {
            (desc.operations.get().end_lingering)(desc);
        }
        desc.end_if_due();
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        unpin(self.desc);
    }
}

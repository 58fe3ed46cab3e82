//! Hidden descriptors that are made at first use.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::hidden::close_hidden;

/// A hidden descriptor that all threads use, and the first that needs it makes.
pub struct LazyFd(AtomicI32);

impl Default for LazyFd {
    fn default() -> Self {
        Self::new()
    }
}

impl LazyFd {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicI32::new(-1))
    }

    /// The descriptor, if it was needed before.
    #[must_use]
    pub fn get(&self) -> Option<i32> {
        Some(self.0.load(Relaxed)).filter(|fd| *fd >= 0)
    }

    /// The descriptor; the first time what `make` makes, hidden. Of threads that do so together one keeps its own.
    pub fn get_or_make(&self, make: impl FnOnce() -> Option<i32>) -> Option<i32> {
        if let Some(present) = self.get() {
            return Some(present);
        }
        let made = make()?;
        match self.0.compare_exchange(-1, made, Relaxed, Relaxed) {
            Ok(_) => Some(made),
            Err(other) => {
                close_hidden(made);
                Some(other)
            }
        }
    }

    /// Takes it out: who needs one makes another. An empty one is not written, as in [`crate::fd_cell`].
    pub fn take(&self) -> Option<i32> {
        let present = self.get();
        if present.is_some() {
            self.0.store(-1, Relaxed);
        }
        present
    }
}

//! Descriptors that static data hold.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// A descriptor in an atomic; none when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct FdCell(AtomicI32);

impl FdCell {
    /// Holds none.
    #[must_use]
    pub const fn empty() -> Self {
        Self(AtomicI32::new(0))
    }

    /// The descriptor.
    #[must_use]
    pub fn get(&self) -> Option<i32> {
        self.0.load(Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// Holds this one, or none, from now on.
    pub fn set(&self, fd: Option<i32>) {
        self.0.store(fd.map_or(0, |fd| fd.saturating_add(1)), Relaxed);
    }

    /// Takes it out. An empty one is not written: the child of a fork would get a copy of the page.
    pub fn take(&self) -> Option<i32> {
        self.get()?;
        self.0.swap(0, Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
    }
}

//! The parent's file, which a child of `fork` has mapped and does not use. A child that ends soon, or becomes another
//! program, need not unmap it.

use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use beeline_shm::sys;

use super::{FILE_BYTES_MAX, StatsHeader};

#[unsafe(link_section = ".fork")]
static INHERITED: AtomicPtr<StatsHeader> = AtomicPtr::new(core::ptr::null_mut());

/// This is a child of a `fork`, which does not use what is mapped at `header` any more.
pub(super) fn keep(header: *mut StatsHeader) {
    INHERITED.store(header, Relaxed);
}

/// Unmaps it, where the process has a file of its own or is about to fork in its turn.
pub fn unmap() {
    if INHERITED.load(Relaxed).is_null() {
        return;
    }
    let header = INHERITED.swap(core::ptr::null_mut(), Relaxed);
    if !header.is_null() {
        // SAFETY: what the parent has mapped as a whole; the child's descriptions have lost their slots.
        unsafe { sys::unmap(header.cast(), FILE_BYTES_MAX) };
    }
}

//! Room for as many entries as a call needs, without the heap.

use beeline_shm::sys;
use libc::pollfd;

use crate::{Outcome, cancel};

const ON_STACK: usize = 64;

/// An entry that asks for nothing.
pub(crate) const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// A mapping for many entries.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

/// Runs `body` with room for `length` entries that are `empty`, on the stack or, for many, in a mapping that goes with
/// the call, however it ends. `ENOMEM` without memory.
pub(crate) fn with<T: Copy>(length: usize, empty: T, body: impl FnOnce(&mut [T]) -> Outcome) -> Outcome {
    fn undo(mapping: &Mapping) {
        // SAFETY: the call that used it does not come back.
        unsafe { mapping.unmap() }
    }
    if length <= ON_STACK {
        let mut few = [empty; ON_STACK];
        return body(few.get_mut(..length).unwrap_or_default());
    }
    let bytes = length.saturating_mul(size_of::<T>());
    let Ok(base) = sys::map_private(bytes) else {
        return Outcome::fail(libc::ENOMEM);
    };
    let mapping = Mapping { base: base.cast(), bytes };
    for index in 0..length {
        // SAFETY: entry `index` of a private mapping with room for `length`, which begins at a page.
        unsafe { mapping.base.cast::<T>().add(index).write(empty) };
    }
    // SAFETY: the entries just written, ours alone until they are unmapped.
    let entries = unsafe { core::slice::from_raw_parts_mut(mapping.base.cast::<T>(), length) };
    let outcome = cancel::undoing(&mapping, undo, || body(entries));
    // SAFETY: `body` has ended.
    unsafe { mapping.unmap() };
    outcome
}

impl Mapping {
    /// # Safety
    /// Nobody uses the entries any more.
    unsafe fn unmap(&self) {
        // SAFETY: mapped in `with` with this length; not used, as the caller guarantees.
        unsafe { sys::unmap(self.base.cast(), self.bytes) }
    }
}

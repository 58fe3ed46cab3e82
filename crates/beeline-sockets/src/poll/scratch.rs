//! Room for as many `pollfd`s as a call needs, without the heap.

use beeline_shm::sys;
use libc::pollfd;

use crate::{Outcome, cancel};

const ON_STACK: usize = 64;
const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// A mapping for many entries.
struct Mapping {
    base: *mut pollfd,
    length: usize,
}

/// Runs `body` with room for `length` entries, on the stack or, for many, in a mapping that goes with the call,
/// however it ends. `ENOMEM` without memory.
pub(crate) fn with(length: usize, body: impl FnOnce(&mut [pollfd]) -> Outcome) -> Outcome {
    unsafe extern "C" fn undo(mapping: *mut core::ffi::c_void) {
        // SAFETY: the mapping below; the call that used it does not come back.
        unsafe { (*mapping.cast::<Mapping>()).unmap() }
    }
    if length <= ON_STACK {
        let mut few = [NONE; ON_STACK];
        return body(few.get_mut(..length).unwrap_or_default());
    }
    let Ok(base) = sys::map_private(length.saturating_mul(size_of::<pollfd>())) else {
        return Outcome::fail(libc::ENOMEM);
    };
    let mapping = Mapping { base: base.cast(), length };
    // SAFETY: a private mapping of this many zeroed entries, ours alone until it is unmapped.
    let entries = unsafe { core::slice::from_raw_parts_mut(mapping.base, length) };
    let outcome = cancel::undoing(undo, &mapping, || body(entries));
    // SAFETY: `body` has ended.
    unsafe { mapping.unmap() };
    outcome
}

impl Mapping {
    /// # Safety
    /// Nobody uses the entries any more.
    unsafe fn unmap(&self) {
        // SAFETY: mapped in `with` with this length; not used by the caller's word.
        unsafe { sys::unmap(self.base.cast(), self.length.saturating_mul(size_of::<pollfd>())) }
    }
}

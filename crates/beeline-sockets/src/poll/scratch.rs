//! Room for as many `pollfd`s as a call needs, without the heap.

use core::mem::MaybeUninit;

use beeline_shm::sys;
use libc::pollfd;

const ON_STACK: usize = 64;
const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// An array on the stack, or in a mapping of its own when it is large.
pub(crate) struct Scratch {
    small: [pollfd; ON_STACK],
    large: *mut pollfd,
    length: usize,
}

impl Scratch {
    /// Room for `length` entries; `None` without memory.
    pub(crate) fn new(length: usize) -> Option<Self> {
        let large = if length <= ON_STACK {
            core::ptr::null_mut()
        } else {
            sys::map_private(length * size_of::<pollfd>()).ok()?.cast()
        };
        Some(Self { small: [NONE; ON_STACK], large, length })
    }

    /// The entries.
    pub(crate) fn slice(&mut self) -> &mut [pollfd] {
        if self.large.is_null() {
            return &mut self.small[..self.length];
        }
        // SAFETY: a private mapping of this many zeroed entries, ours alone until drop.
        unsafe { core::slice::from_raw_parts_mut(self.large.cast::<MaybeUninit<pollfd>>().cast(), self.length) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.large.is_null() {
            // SAFETY: mapped in `new` with this length, and not used after drop.
            unsafe { sys::unmap(self.large.cast(), self.length * size_of::<pollfd>()) };
        }
    }
}

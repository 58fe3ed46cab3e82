//! Memory for the bytes that a call moves at a time.
//!
//! 1. A thread may have 16 KiB of stack (`PTHREAD_STACK_MIN`), and a handler of signals half of that. So the bytes lie
//!    in memory of the process's own, of which there is enough for some calls at a time. The others map some for
//!    themselves, or get a little of their stacks where there is nothing to map.
//! 2. A place is claimed and given back by whoever uses it, and nobody waits for one. Nor does a call wait with one for
//!    its connection, but for sendfile(2), whose part has been read. Where a call never comes back, as its thread was
//!    cancelled or a handler jumps out of it, its place is given back all the same. In the child of a `fork` the places
//!    stay taken that other threads had at that moment.
//! 3. It begins with a page, as files want that are read past the cache (`O_DIRECT`); that on a stack does not.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::sys;

use crate::cancel;

/// The most that is moved at a time.
pub(super) const PART_BYTES: usize = 16 * 1024;
/// What is moved at a time on a stack.
const SMALL_BYTES: usize = 1024;
const PLACES: usize = 4;

#[repr(C, align(4096))]
struct Place {
    bytes: UnsafeCell<[u8; PART_BYTES]>,
    is_taken: AtomicBool,
}

// SAFETY: `bytes` is used only by who has set `is_taken`.
unsafe impl Sync for Place {}

static PLACE: [Place; PLACES] =
    [const { Place { bytes: UnsafeCell::new([0; PART_BYTES]), is_taken: AtomicBool::new(false) } }; PLACES];

/// Runs `body` with memory for a part, in which anything may be.
pub(crate) fn with_part<R>(body: impl FnOnce(&mut [u8]) -> R) -> R {
    fn give_back(place: &Place) {
        place.is_taken.store(false, Release);
    }
    let claim = |place: &&Place| {
        let is_free = !place.is_taken.load(Relaxed);
        is_free && place.is_taken.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    };
    let Some(place) = PLACE.iter().find(claim) else { return with_mapped_part(body) };
    // SAFETY: nobody else uses it until it is given back.
    let result = cancel::undoing(place, give_back, || body(unsafe { &mut *place.bytes.get() }));
    give_back(place);
    result
}

#[cold]
fn with_mapped_part<R>(body: impl FnOnce(&mut [u8]) -> R) -> R {
    struct Mapped(*mut u8);
    fn give_back(mapped: &Mapped) {
        // SAFETY: this call's own mapping, which nobody uses any more.
        unsafe { sys::unmap(mapped.0, PART_BYTES) };
    }
    let Ok(base) = sys::map_private(PART_BYTES) else { return with_small_part(body) };
    let mapped = Mapped(base);
    // SAFETY: a fresh mapping of zeroes of that length, which is this call's own.
    let part = unsafe { core::slice::from_raw_parts_mut(base, PART_BYTES) };
    let result = cancel::undoing(&mapped, give_back, || body(part));
    give_back(&mapped);
    result
}

#[inline(never)]
fn with_small_part<R>(body: impl FnOnce(&mut [u8]) -> R) -> R {
    body(&mut [0; SMALL_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_when_all_places_are_taken_gets_as_much() {
        fn parts(depth: usize) -> Vec<(usize, usize)> {
            with_part(|part| {
                let mut all = if depth == 0 { Vec::new() } else { parts(depth - 1) };
                all.push((part.as_ptr() as usize, part.len()));
                all
            })
        }
        let mut all = parts(2 * PLACES);
        assert!(all.iter().all(|(at, length)| at % 4096 == 0 && *length == PART_BYTES));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + PART_BYTES <= pair[1].0), "{all:?}");
    }
}

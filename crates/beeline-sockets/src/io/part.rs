//! Memory for the bytes that a call moves at a time.
//!
//! 1. A thread may have 16 KiB of stack (`PTHREAD_STACK_MIN`), and a handler of signals half of that. So the bytes lie
//!    in memory of the process's own, of which there is enough for some calls at a time, and the others get a little of
//!    their stacks.
//! 2. A place is claimed and given back by whoever uses it, and nobody waits for one. Where a call never comes back, as
//!    its thread was cancelled or a handler jumps out of it, its place is given back all the same. In the child of a
//!    `fork` the places stay taken that other threads had at that moment.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::cancel;

/// The most that is moved at a time.
pub(super) const PART_BYTES: usize = 16 * 1024;
/// What is moved at a time on a stack.
const SMALL_BYTES: usize = 1024;
const PLACES: usize = 4;

struct Place {
    is_taken: AtomicBool,
    bytes: UnsafeCell<[u8; PART_BYTES]>,
}

// SAFETY: `bytes` is used only by who has set `is_taken`.
unsafe impl Sync for Place {}

static PLACE: [Place; PLACES] =
    [const { Place { is_taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; PART_BYTES]) } }; PLACES];

/// Runs `body` with memory for a part, in which anything may be.
pub(crate) fn with_part<R>(body: impl FnOnce(&mut [u8]) -> R) -> R {
    fn give_back(place: &Place) {
        place.is_taken.store(false, Release);
    }
    let claim = |place: &&Place| {
        let is_free = !place.is_taken.load(Relaxed);
        is_free && place.is_taken.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    };
    let Some(place) = PLACE.iter().find(claim) else { return with_small_part(body) };
    // SAFETY: nobody else uses it until it is given back.
    let result = cancel::undoing(place, give_back, || body(unsafe { &mut *place.bytes.get() }));
    give_back(place);
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
    fn who_comes_when_all_places_are_taken_gets_a_little() {
        fn lengths(depth: usize) -> Vec<usize> {
            with_part(|part| {
                let mut all = if depth == 0 { Vec::new() } else { lengths(depth - 1) };
                all.push(part.len());
                all
            })
        }
        // Other tests may have some at the same time.
        let all = lengths(PLACES + 1);
        assert_eq!(&all[..2], [SMALL_BYTES; 2]);
        assert!(all[2..].iter().all(|length| [SMALL_BYTES, PART_BYTES].contains(length)));
    }
}

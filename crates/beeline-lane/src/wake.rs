//! Wake words: see the protocol in the crate's head.

#[cfg(not(loom))]
use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

use beeline_shm::{End, WAKE_ARMED};

use crate::storage::{Storage, Wake};

/// How far the words that [`force_peer_look`] stores are from the generations that the end's reader uses: no swap by
/// the peer is meant for one of those.
const FORCED: u32 = 1 << 30;

/// From one generation of a wake word to the next.
const GENERATION: u32 = 4;

/// The armed wake word of the generation after `wake`. [`beeline_shm::WAKE_ORDER`] stays what it is. None is
/// [`crate::BEGIN_ARMED`] again.
pub(crate) fn next_generation(wake: u32) -> u32 {
    match (wake | WAKE_ARMED).wrapping_add(GENERATION) {
        crate::BEGIN_ARMED => crate::BEGIN_ARMED.wrapping_add(GENERATION),
        next => next,
    }
}

/// Arms the read wake word of `end`, which has just said something by a flag, so that the peer's next send leaves its
/// short way and looks at the flags and at its anchor.
pub fn force_peer_look(storage: &impl Storage, end: End) {
    let armed = storage.wake(end, Wake::Read) | WAKE_ARMED;
    // Pairs with the fence in `Writer::ring_reader`: who has seen the word sees the flag.
    fence(Ordering::Release);
    storage.set_wake(end, Wake::Read, armed.wrapping_add(FORCED));
    storage.full_fence();
}

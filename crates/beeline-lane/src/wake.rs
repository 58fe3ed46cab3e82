//! Wake words: see the protocol in the crate's head.

use beeline_shm::WAKE_ARMED;

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

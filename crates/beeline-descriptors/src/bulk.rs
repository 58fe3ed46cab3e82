//! How long messages are copied into the ring: through the caches or around them.
//!
//! What the reader has just read lies in its cache. Where both CPUs share a cache behind that, fetching the lines from
//! there is the fastest way (34 GB/s against 13 around the caches on an EPYC); between two complexes of one chip it is
//! the slowest (2.4 GB/s against 14), and a virtual machine is moved from one to the other. So both ways are tried
//! while the connection runs ([`crate::trials`]): time is taken of whole sends, with what they wait for room.

use beeline_shm::HAS_COPY_AROUND;

use crate::trials::{Terms, Trials};

/// The shortest message for which there is a choice.
pub const BULK_BYTES: usize = 16 * 1024;

/// How both ways are tried in a ring of so many bytes.
const fn terms(ring_bytes: u32) -> Terms {
    Terms::of_ring(ring_bytes, 4, 4)
}

/// What a sender knows of its ways: through the caches, and around them. Valid when zeroed.
#[derive(Debug, Default)]
pub struct Bulk(Trials);

impl Bulk {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        self.0.reset(terms(0).nothing_found());
    }

    /// Whether the next message is to be copied around the caches.
    #[inline]
    pub fn goes_around(&self) -> bool {
        HAS_COPY_AROUND && self.0.goes_second()
    }

    /// A send of so many bytes took so long, on a lane with rings of `ring_bytes`.
    pub fn sent(&self, ring_bytes: u32, bytes: usize, ticks: u64) {
        self.0.took(terms(ring_bytes), bytes, ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u32 = 1 << 20;
    const MESSAGES: u32 = (4 << 20) / BULK_BYTES as u32;

    /// Sends `windows` windows on a machine where a message costs so much; returns how many in a hundred went around.
    fn run(bulk: &Bulk, windows: u32, through: u64, around: u64) -> u32 {
        let mut went_around = 0;
        for _ in 0..windows * MESSAGES {
            let goes_around = bulk.goes_around();
            went_around += u32::from(goes_around);
            bulk.sent(RING, BULK_BYTES, if goes_around { around } else { through });
        }
        went_around * 100 / (windows * MESSAGES)
    }

    #[test]
    fn the_cheaper_way_is_taken_and_a_move_is_noticed() {
        let bulk = Bulk::default();
        bulk.reset();
        assert!(run(&bulk, 1000, 4_000, 10_000) < 5);
        if HAS_COPY_AROUND {
            // To another complex, and back.
            assert!(run(&bulk, 1000, 60_000, 10_000) > 95);
            assert!(run(&bulk, 1000, 60_000, 10_000) > 95);
            assert!(run(&bulk, 3000, 4_000, 10_000) < 80);
            assert!(run(&bulk, 1000, 4_000, 10_000) < 5);
        }
        // A difference too small to be sure of changes nothing.
        assert!(run(&bulk, 20_000, 4_000, 3_500) < 5);
    }
}

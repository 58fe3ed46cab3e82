//! A lane's ring as memory that a network card reads or writes.

use std::ptr::NonNull;

use beeline_fabric::Memory;
use beeline_meeting::bridge::LaneEnd;

/// One ring of a lane.
pub struct Ring {
    base: NonNull<u8>,
    bytes: usize,
}

impl Ring {
    /// The ring that our end of the lane writes (`written`), or the one it reads.
    ///
    /// # Safety
    /// The lane must not be given back ([`LaneEnd::retire`]) before the rail has said that nothing can touch the
    /// region any more.
    pub unsafe fn of(lane: &LaneEnd, written: bool) -> Option<Ring> {
        let (base, bytes) = lane.ring(written);
        NonNull::new(base).map(|base| Ring { base, bytes })
    }
}

// SAFETY: the range belongs to a mapping that any thread may use; its bytes are reached by raw copies only.
unsafe impl Send for Ring {}
// SAFETY: as for Send; whoever uses a ring's bytes expects that the other end changes them meanwhile.
unsafe impl Sync for Ring {}

// SAFETY: a ring is one range of a shared mapping, which stays as long as the lane is not given back (`Ring::of`); only
// atomics and raw copies reach its bytes.
unsafe impl Memory for Ring {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

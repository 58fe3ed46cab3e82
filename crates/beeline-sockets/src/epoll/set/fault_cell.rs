//! A fault of a member's peer, kept until somebody deals with it.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use beeline_lane::Fault;

/// A fault in an atomic; none when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct FaultCell(AtomicU8);

impl FaultCell {
    pub fn get(&self) -> Option<Fault> {
        match self.0.load(Relaxed) {
            1 => Some(Fault::Gone),
            2 => Some(Fault::CursorBeyondRing),
            3 => Some(Fault::HeadBeyondTail),
            4 => Some(Fault::BadBell),
            _ => None,
        }
    }

    pub fn set(&self, fault: Option<Fault>) {
        let number = match fault {
            None => 0,
            Some(Fault::Gone) => 1,
            Some(Fault::CursorBeyondRing) => 2,
            Some(Fault::HeadBeyondTail) => 3,
            Some(Fault::BadBell) => 4,
        };
        self.0.store(number, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_comes_out_as_it_went_in() {
        let cell = FaultCell::default();
        assert_eq!(cell.get(), None);
        for fault in [Fault::Gone, Fault::CursorBeyondRing, Fault::HeadBeyondTail, Fault::BadBell] {
            cell.set(Some(fault));
            assert_eq!(cell.get(), Some(fault));
        }
        cell.set(None);
        assert_eq!(cell.get(), None);
    }
}

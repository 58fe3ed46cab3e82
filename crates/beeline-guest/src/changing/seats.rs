//! The seats of [`super`]: who changes one number, against who changes all. No system calls, so that loom can explore
//! it (`tests/loom`), which brings its own atomics and its own kernel as `super::basis`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::basis::{AtomicU32, await_owner, fence, wake};

/// Who changes one number at the moment: identities, 0 for an empty seat.
#[repr(C, align(64))]
pub(super) struct Seats<const N: usize> {
    pub(super) taken: [AtomicU32; N],
    /// Threads that wait for a seat to become empty.
    waiters: AtomicU32,
}

/// What becomes of who wants to change one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// He has this seat, and nobody makes a whole change until he gives it back.
    Seated(usize),
    /// Somebody makes a whole change.
    KeptOut,
    /// There is no seat.
    Full,
}

impl<const N: usize> Seats<N> {
    pub(super) const fn new(taken: [AtomicU32; N], waiters: AtomicU32) -> Self {
        Self { taken, waiters }
    }

    /// Takes the first free one of `places`, unless somebody makes a `whole` change.
    pub(super) fn enter(&self, me: u32, mut places: impl Iterator<Item = usize>, whole: impl Fn() -> bool) -> Entered {
        let seat = places.find(|place| {
            let seat = self.taken.get(*place);
            seat.is_some_and(|seat| seat.compare_exchange(0, me, Acquire, Relaxed).is_ok())
        });
        let Some(place) = seat else { return Entered::Full };
        // With the one in `await_all`: either he who makes a whole change sees this seat taken, or we see him.
        fence(SeqCst);
        if whole() {
            self.give(place);
            return Entered::KeptOut;
        }
        Entered::Seated(place)
    }

    /// Gives a seat back.
    pub(super) fn give(&self, place: usize) {
        if let Some(seat) = self.taken.get(place) {
            seat.store(0, Release);
            // Who waits is counted before the kernel looks at the word for him: either he is seen, or sees the seat
            // empty.
            fence(SeqCst);
            if self.waiters.load(Relaxed) != 0 {
                wake(seat);
            }
        }
    }

    /// Waits until each seat has been empty. Whoever calls has shown before that he makes a whole change. Whether the
    /// thread of one was gone, and with it whoever would have given back the number's lock.
    pub(super) fn await_all(&self) -> bool {
        fence(SeqCst);
        let mut abandoned = false;
        for seat in &self.taken {
            if seat.load(Acquire) == 0 {
                continue;
            }
            // One that is gone is told by name: another thread may have the seat by now.
            while let Err(gone) = await_owner(seat, &self.waiters) {
                abandoned = true;
                if seat.compare_exchange(gone, 0, Acquire, Relaxed).is_ok() {
                    break;
                }
            }
        }
        abandoned
    }

    /// Nobody has a seat.
    pub(super) fn reset(&self) {
        for seat in &self.taken {
            if seat.load(Relaxed) != 0 {
                seat.store(0, Relaxed);
            }
        }
        if self.waiters.load(Relaxed) != 0 {
            self.waiters.store(0, Relaxed);
        }
    }
}

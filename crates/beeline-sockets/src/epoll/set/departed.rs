//! Which members have left a set lately, by the data under which the kernel reported them.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// How many are remembered.
const PLACES: usize = 32;

/// See the module. Changed under the set's lock; the count is read by whoever is about to ask the kernel.
#[repr(C)]
pub struct Departed {
    count: AtomicU32,
    data: [AtomicU64; PLACES],
}

impl Departed {
    /// How many members have left so far.
    #[inline]
    pub fn count(&self) -> u32 {
        // Pairs with the store in `note`: what is counted here is out of the kernel's set.
        self.count.load(Acquire)
    }

    /// A member under this data has left, and the kernel's registration is gone.
    pub fn note(&self, data: u64) {
        let count = self.count.load(Relaxed);
        self.data[count as usize % PLACES].store(data, Relaxed);
        self.count.store(count.wrapping_add(1), Release);
    }

    /// Whether a member under this data has left since there were `count`; `unsure` if more have than are remembered.
    pub fn since(&self, count: u32, data: u64, unsure: bool) -> bool {
        let left = self.count.load(Relaxed).wrapping_sub(count);
        if left > PLACES as u32 {
            return unsure;
        }
        (0..left).any(|next| self.data[count.wrapping_add(next) as usize % PLACES].load(Relaxed) == data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departures_are_known_by_data_and_moment() {
        let departed = Departed { count: AtomicU32::new(u32::MAX - 3), data: [const { AtomicU64::new(0) }; PLACES] };
        for data in 1..=8 {
            departed.note(data);
        }
        let now = departed.count();
        let since = |back, data| departed.since(now.wrapping_sub(back), data, true);
        assert!(since(8, 1) && !since(7, 1) && since(1, 8) && !since(0, 8) && !since(0, 9));
        let forgotten = now.wrapping_sub(PLACES as u32 + 1);
        assert!(departed.since(forgotten, 99, true) && !departed.since(forgotten, 1, false));
    }
}

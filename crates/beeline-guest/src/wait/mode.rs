//! How a waiter waits, in a word.

use beeline_stats::tunables::{Wait, option};

/// How a waiter waits: its mode, and its longest spin, which is 0 where it never spins. In one word, so that both are
/// of one moment, and that a wait asks with one load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(u32);

impl Mode {
    /// Bits of the longest spin, which is below a hundredth of a second.
    const SPIN_BITS: u32 = 24;

    /// In this mode, with this longest spin.
    #[must_use]
    pub const fn new(wait: Wait, spin_ns_max: u64) -> Self {
        let most = (1 << Self::SPIN_BITS) - 1;
        let spin = if matches!(wait, Wait::Sleep) {
            0
        } else if spin_ns_max > most {
            most
        } else {
            spin_ns_max
        };
        Self((wait as u32) << Self::SPIN_BITS | spin as u32)
    }

    /// The word that holds it.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// What such a word holds.
    #[must_use]
    #[inline]
    pub const fn of_word(word: u32) -> Self {
        Self(word)
    }

    /// As the process waits at the moment, where nothing else is said.
    #[must_use]
    pub fn of_process() -> Self {
        Self::new(crate::live(option::wait), crate::live(option::spin_ns_max))
    }

    /// The mode itself.
    #[must_use]
    #[inline]
    pub fn wait(self) -> Wait {
        match self.0 >> Self::SPIN_BITS {
            0 => Wait::Lazy,
            1 => Wait::Poll,
            _ => Wait::Sleep,
        }
    }

    /// The longest spin in nanoseconds.
    #[must_use]
    #[inline]
    pub fn spin_ns_max(self) -> u32 {
        self.0 & ((1 << Self::SPIN_BITS) - 1)
    }
}

const _: () = assert!(Wait::Lazy as u32 == 0 && Wait::Poll as u32 == 1 && Wait::Sleep as u32 == 2);

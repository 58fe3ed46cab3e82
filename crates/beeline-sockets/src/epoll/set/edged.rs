//! What a set knows of its members that the kernel watches by edges for us ([`super::super::lying`]).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bits of a count of threads.
const COUNT_BITS: u32 = 32;

/// See the module.
#[derive(Default)]
#[repr(C)]
pub struct Edged {
    /// Threads that ask the kernel, waiting or not, or have yet to look at what it said; and those that never will.
    /// Above [`COUNT_BITS`] the generation: which set has this place, in which process.
    asking: AtomicU64,
    /// Whether there may be such members.
    pub any: AtomicBool,
    /// Whether there will be none any more.
    pub ended: AtomicBool,
}

/// The generation in which a thread asks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Asking(u64);

impl Edged {
    pub(super) fn begin(&self) {
        self.any.store(false, Relaxed);
        self.ended.store(false, Relaxed);
        self.count_anew();
    }

    /// Nobody asks: it is another set from now on, or this is the child of a `fork`, where only the thread that forked
    /// may go on.
    pub fn count_anew(&self) {
        let word = self.asking.load(Relaxed);
        if word != 0 {
            self.asking.store(((word >> COUNT_BITS).wrapping_add(1)) << COUNT_BITS, Relaxed);
        }
    }

    /// A thread asks the kernel. Whether somebody else does.
    pub fn asks(&self) -> (Asking, bool) {
        let word = self.asking.fetch_add(1, Relaxed);
        (Asking(word >> COUNT_BITS), word as u32 != 0)
    }

    /// A thread that has asked the kernel has looked at what it said, or was told nothing.
    pub fn has_asked(&self, asking: Asking) {
        let _ = self.asking.fetch_update(Relaxed, Relaxed, |word| {
            (word >> COUNT_BITS == asking.0 && word as u32 != 0).then(|| word.wrapping_sub(1))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_comes_back_is_counted_in_its_set_alone() {
        let edged = Edged::default();
        let (lost, beside_others) = edged.asks();
        assert!(!beside_others);
        let (asking, beside_others) = edged.asks();
        assert!(beside_others);
        edged.has_asked(asking);
        assert!(edged.asks().1, "the other one is still there");
        edged.begin();
        let (asking, beside_others) = edged.asks();
        assert!(!beside_others);
        // The one of the set before comes back.
        edged.has_asked(lost);
        assert!(edged.asks().1);
        edged.has_asked(asking);
        edged.has_asked(asking);
        edged.has_asked(asking);
        assert!(!edged.asks().1, "it is never less than nobody");
    }
}

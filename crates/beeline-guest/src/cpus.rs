//! The CPUs that a thread may use.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys;

/// How long it is believed: some tenths of a second, a whole one where ticks are nanoseconds.
const BELIEVED_TICKS: u64 = 1 << 30;
/// The numbers of so many CPUs are a block.
const BLOCK: u32 = u64::BITS;
/// The CPUs are not all of one block.
const BLOCKS: u32 = u32::MAX;

/// A set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// A bit for each, by its number in its block.
    bits: u64,
    /// The block of all of them, or [`BLOCKS`].
    block: u32,
    /// How many they are.
    pub(crate) count: u32,
}

impl Cpus {
    /// The set with these blocks.
    pub(crate) fn of(blocks: &[u64]) -> Self {
        let mut cpus = Self { bits: 0, block: BLOCKS, count: 0 };
        for (block, bits) in (0..).zip(blocks).filter(|(_, bits)| **bits != 0) {
            cpus.block = if cpus.count == 0 { block } else { BLOCKS };
            cpus.bits |= bits;
            cpus.count += bits.count_ones();
        }
        cpus
    }

    /// Whether the set has this one; of a set with several blocks, this one or another with its number in its block.
    pub(crate) fn has(&self, cpu: u32) -> bool {
        (self.block == BLOCKS || self.block == cpu / BLOCK) && self.bits & 1 << (cpu % BLOCK) != 0
    }
}

/// What a thread may use, as it found out last. Valid when zeroed: not looked at yet.
#[derive(Default)]
pub(crate) struct Allowed {
    bits: AtomicU64,
    block: AtomicU32,
    count: AtomicU32,
    looked: AtomicU64,
}

impl Allowed {
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) const fn new() -> Self {
        let (bits, looked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bits, block: AtomicU32::new(0), count: AtomicU32::new(0), looked }
    }

    /// What the calling thread, whose this is, may use. Found out again after a while.
    pub(crate) fn get(&self, now: u64) -> Cpus {
        if self.count.load(Relaxed) == 0 || now.wrapping_sub(self.looked.load(Relaxed)) > BELIEVED_TICKS {
            let cpus = find();
            self.bits.store(cpus.bits, Relaxed);
            self.block.store(cpus.block, Relaxed);
            self.count.store(cpus.count, Relaxed);
            self.looked.store(now, Relaxed);
        }
        Cpus { bits: self.bits.load(Relaxed), block: self.block.load(Relaxed), count: self.count.load(Relaxed) }
    }
}

/// What the calling thread may use; plenty where that cannot be found out.
#[cold]
fn find() -> Cpus {
    const BYTES: usize = size_of::<libc::cpu_set_t>();
    let mut mask = MaybeUninit::<[u64; BYTES / size_of::<u64>()]>::zeroed();
    let asked = [0, BYTES, mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: room for as many bytes as are told.
    if unsafe { sys::call(libc::SYS_sched_getaffinity, asked) }.is_err() {
        return Cpus { bits: u64::MAX, block: BLOCKS, count: u32::MAX };
    }
    // SAFETY: any bits are numbers, and the kernel has written what is not zero.
    Cpus::of(&unsafe { mask.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn a_set_has_what_is_in_its_blocks() {
        let all = |cpus: Cpus| (0..192).filter(|cpu| cpus.has(*cpu)).collect::<Vec<_>>();
        assert_eq!(all(Cpus::of(&[0b101, 0, 0])), [0, 2]);
        assert_eq!(all(Cpus::of(&[0, 0b10])), [65], "and not its namesakes in other blocks");
        assert_eq!(all(Cpus::of(&[1, 1])), [0, 64, 128]);
        assert_eq!(Cpus::of(&[0b101, 1]).count, 3);
        assert_eq!(all(Cpus::of(&[0])), []);
    }

    #[test]
    fn each_thread_finds_the_cpus_that_it_may_use_itself() {
        let (ours, now) = (Allowed::default(), 1 << 40);
        let cpus = ours.get(now);
        assert!(cpus.count != 0 && cpus.count != u32::MAX && cpus.has(kernel::cpu_by_libc()));
        let pinned = std::thread::spawn(move || {
            let cpu = kernel::cpu_by_libc();
            let mut mask = [0_u64; size_of::<libc::cpu_set_t>() / size_of::<u64>()];
            mask[(cpu / BLOCK) as usize] = 1 << (cpu % BLOCK);
            let args = [0, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0];
            // SAFETY: a live mask.
            unsafe { sys::call(libc::SYS_sched_setaffinity, args) }.unwrap();
            (Cpus::of(&mask), Allowed::default().get(now))
        });
        let (set, found) = pinned.join().unwrap();
        assert_eq!((set, found.count), (found, 1));
        assert_eq!(ours.get(now), cpus);
        ours.count.store(7, Relaxed);
        assert_eq!(ours.get(now + BELIEVED_TICKS).count, 7);
        assert_eq!(ours.get(now + BELIEVED_TICKS + 1), cpus, "what is old is found out again");
    }
}

//! The CPUs that a thread may use.

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
    Mask::of_thread().map_or(Cpus { bits: u64::MAX, block: BLOCKS, count: u32::MAX }, |mask| Cpus::of(&mask.0))
}

/// CPUs as sched_setaffinity(2) takes them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mask([u64; size_of::<libc::cpu_set_t>() / size_of::<u64>()]);

impl Mask {
    const EMPTY: Self = Self([0; size_of::<libc::cpu_set_t>() / size_of::<u64>()]);
    /// Whatever CPUs there are and may come: the kernel takes those that its cpusets allow.
    const ALL: Self = Self([u64::MAX; size_of::<libc::cpu_set_t>() / size_of::<u64>()]);

    /// These CPUs.
    pub(crate) fn with(cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut mask = Self::EMPTY;
        for cpu in cpus {
            if let Some(block) = mask.0.get_mut((cpu / BLOCK) as usize) {
                *block |= 1 << (cpu % BLOCK);
            }
        }
        mask
    }

    /// What the calling thread may use; `None` where that cannot be found out.
    pub(crate) fn of_thread() -> Option<Self> {
        let mut mask = Self::EMPTY;
        let asked = [0, size_of_val(&mask.0), mask.0.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: room for as many bytes as are told.
        unsafe { sys::call(libc::SYS_sched_getaffinity, asked) }.is_ok().then_some(mask)
    }

    /// Whether this CPU is one of them.
    pub(crate) fn has(&self, cpu: u32) -> bool {
        self.0.get((cpu / BLOCK) as usize).is_some_and(|block| block & 1 << (cpu % BLOCK) != 0)
    }

    /// How many they are.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|block| block.count_ones()).sum()
    }

    /// Has the calling thread use no others. Whether the kernel lets it.
    fn bind(&self) -> bool {
        let asked = [0, size_of_val(&self.0), self.0.as_ptr() as usize, 0, 0, 0];
        // SAFETY: as many bytes as are told.
        unsafe { sys::call(libc::SYS_sched_setaffinity, asked) }.is_ok()
    }
}

/// Moves the calling thread, which may use what `might` says, to one of these CPUs; afterwards it may use all of them
/// again, and the kernel may move it on. Whether it moved. No handler of the app may run meanwhile.
///
/// The kernel takes what it is told for the thread's own choice, and gives it no more if its cpuset grows, unless it
/// chose `all` that there are.
pub(crate) fn move_to(cpu: u32, might: &Mask, all: bool) -> bool {
    if !Mask::with([cpu]).bind() {
        return false;
    }
    let is_as_before = all && Mask::ALL.bind() && Mask::of_thread().as_ref() == Some(might);
    // Of a cpuset that has shrunk meanwhile nothing may be left of what it might use: then that is what it gets.
    let _ = is_as_before || might.bind() || Mask::ALL.bind();
    true
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
            let mask = Mask::with([cpu]);
            assert!(mask.bind());
            (Cpus::of(&mask.0), Allowed::default().get(now))
        });
        let (set, found) = pinned.join().unwrap();
        assert_eq!((set, found.count), (found, 1));
        assert_eq!(ours.get(now), cpus);
        ours.count.store(7, Relaxed);
        assert_eq!(ours.get(now + BELIEVED_TICKS).count, 7);
        assert_eq!(ours.get(now + BELIEVED_TICKS + 1), cpus, "what is old is found out again");
    }

    #[test]
    fn a_mask_has_what_it_was_made_with() {
        let mask = Mask::with([0, 63, 64, 1023, 1024]);
        let all: Vec<_> = (0..2048).filter(|cpu| mask.has(*cpu)).collect();
        assert_eq!((all, mask.count()), (vec![0, 63, 64, 1023], 4));
    }

    #[test]
    fn a_thread_that_moves_may_use_what_it_might_before() {
        let mover = std::thread::spawn(|| {
            let before = Mask::of_thread().unwrap();
            let free = Mask::ALL.bind() && Mask::of_thread().unwrap() == before;
            for cpu in (0..1024).filter(|cpu| before.has(*cpu)) {
                for all in [false, true] {
                    assert!(before.bind() && move_to(cpu, &before, all));
                    assert_eq!(Mask::of_thread().unwrap(), before, "{all}");
                }
            }
            let (cpu, one) = (kernel::cpu_by_libc(), Mask::with([kernel::cpu_by_libc()]));
            assert!(one.bind() && move_to(cpu, &one, true));
            assert_eq!(Mask::of_thread().unwrap(), one, "its own choice is not given up for all there are");
            // There is none of that.
            let gone = Mask::with([1023]);
            if free && !before.has(1023) {
                assert!(before.bind() && !move_to(1023, &before, false) && move_to(cpu, &gone, false));
                assert_eq!(Mask::of_thread().unwrap(), before, "what the cpuset allows");
            }
        });
        mover.join().unwrap();
    }
}

//! The CPUs that a thread may use.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys;

/// How long it is believed: some tenths of a second.
const BELIEVED_TICKS: u64 = 1 << 30;

/// The CPUs that a thread may use, as it found them last. Valid when zeroed: not looked at yet.
#[derive(Default)]
pub(crate) struct Allowed {
    cpus: AtomicU64,
    count: AtomicU32,
    looked: AtomicU64,
}

impl Allowed {
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) const fn new() -> Self {
        Self { cpus: AtomicU64::new(0), count: AtomicU32::new(0), looked: AtomicU64::new(0) }
    }

    /// What the calling thread, whose these are, may use: a bit for each CPU, modulo their number, and how many they are.
    /// Found out again after a while.
    pub(crate) fn get(&self, now: u64) -> (u64, u32) {
        if self.count.load(Relaxed) == 0 || now.wrapping_sub(self.looked.load(Relaxed)) > BELIEVED_TICKS {
            let (cpus, count) = allowed_cpus();
            self.cpus.store(cpus, Relaxed);
            self.count.store(count, Relaxed);
            self.looked.store(now, Relaxed);
        }
        (self.cpus.load(Relaxed), self.count.load(Relaxed))
    }
}

/// What the calling thread may use, as [`Allowed::get`] tells it; plenty where that cannot be found out.
#[cold]
fn allowed_cpus() -> (u64, u32) {
    let mut mask = MaybeUninit::<[u64; size_of::<libc::cpu_set_t>() / size_of::<u64>()]>::zeroed();
    let args = [0, size_of::<libc::cpu_set_t>(), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: room for as many bytes as are told.
    if unsafe { sys::call(libc::SYS_sched_getaffinity, args) }.is_err() {
        return (u64::MAX, u32::MAX);
    }
    // SAFETY: any bits are numbers, and the kernel has written what is not zero.
    let words = unsafe { mask.assume_init() };
    let count = words.iter().map(|word| word.count_ones()).sum::<u32>();
    (words.iter().fold(0, |folded, word| folded | word), count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn each_thread_counts_the_cpus_that_it_may_use_itself() {
        let (ours, now) = (Allowed::default(), 1 << 40);
        let (cpus, count) = ours.get(now);
        assert!(count != 0 && count != u32::MAX && cpus.count_ones() <= count);
        let pinned = std::thread::spawn(move || {
            let cpu = kernel::cpu_by_libc();
            let mut mask = [0_u64; size_of::<libc::cpu_set_t>() / size_of::<u64>()];
            mask[cpu as usize / 64] = 1 << (cpu % 64);
            let args = [0, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0];
            // SAFETY: a live mask.
            unsafe { sys::call(libc::SYS_sched_setaffinity, args) }.unwrap();
            (1 << (cpu % 64), Allowed::default().get(now))
        });
        let (cpu, theirs) = pinned.join().unwrap();
        assert_eq!(theirs, (cpu, 1));
        assert_eq!(ours.get(now), (cpus, count));
        ours.count.store(7, Relaxed);
        assert_eq!(ours.get(now + BELIEVED_TICKS), (cpus, 7));
        assert_eq!(ours.get(now + BELIEVED_TICKS + 1), (cpus, count), "what is old is found out again");
    }
}

//! Locks for sections of some tens of nanoseconds.
//!
//! A lock word holds the thread id of its owner, 0 when free. The same type serves threads of one process
//! and, in a side, processes that share a connection:
//!
//! 1. Taking a free lock is one compare-and-swap; giving it back is one store.
//! 2. A waiter spins briefly and then sleeps on the word with a futex, at most a millisecond at a time.
//!    The bound lets an owner unlock without a fence: a wake-up that it overlooks costs that long.
//! 3. After each such millisecond a waiter asks the kernel whether the owner still lives, and takes the
//!    lock over from a dead one. Sections commit by single stores, so what the dead owner left is
//!    consistent; the new owner is told ([`Taken::Inherited`]) and brings derived state up to date.
//! 4. An owner cannot meet itself: the app's signal handlers do not run inside a section.

use core::sync::atomic::{AtomicU32, Ordering};

use beeline_shm::sys::{call, syscall6};

use crate::thread::{self, Section};

const SPINS: u32 = 200;
const NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A lock word; valid when zeroed.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    owner: AtomicU32,
    waiters: AtomicU32,
}

/// How a lock was got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It was free.
    Free,
    /// Its owner died holding it.
    Inherited,
}

/// A held lock, and the critical section that goes with it.
pub struct Guard<'a> {
    lock: &'a Lock,
    /// How the lock was got.
    pub taken: Taken,
    _section: Section,
}

impl Lock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self { owner: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// Takes the lock, entering a critical section.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        let section = Section::enter();
        let taken = match self.owner.compare_exchange(0, thread::tid(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Taken::Free,
            Err(_) => self.lock_contended(),
        };
        Guard { lock: self, taken, _section: section }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let section = Section::enter();
        self.owner.compare_exchange(0, thread::tid(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: self, taken: Taken::Free, _section: section })
    }

    #[cold]
    fn lock_contended(&self) -> Taken {
        let tid = thread::tid();
        loop {
            for _ in 0..SPINS {
                if self.owner.compare_exchange_weak(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Taken::Free;
                }
                core::hint::spin_loop();
            }
            let owner = self.owner.load(Ordering::Relaxed);
            if owner == 0 {
                continue;
            }
            if !alive(owner) && self.owner.compare_exchange(owner, tid, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Taken::Inherited;
            }
            self.waiters.fetch_add(1, Ordering::Relaxed);
            futex(&self.owner, libc::FUTEX_WAIT, owner, Some(&NAP));
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes the lock free whoever holds it: for memory that is known to have no other user.
    pub fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
        if self.lock.waiters.load(Ordering::Relaxed) != 0 {
            futex(&self.lock.owner, libc::FUTEX_WAKE, 1, None);
        }
    }
}

/// Whether thread `tid` exists. A thread of another user counts as alive: `EPERM` proves it is there.
fn alive(tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let asked = unsafe { call(libc::SYS_kill, [tid as usize, 0, 0, 0, 0, 0]) };
    asked != Err(beeline_shm::Errno(libc::ESRCH))
}

/// `futex(2)` on a word that may be shared between processes.
pub fn futex(word: &AtomicU32, operation: i32, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    let args = [word.as_ptr() as usize, operation as usize, value as usize, timeout as usize, 0, 0];
    // SAFETY: the word and the timeout outlive the call; the kernel only reads them.
    unsafe { syscall6(libc::SYS_futex, args) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn threads_exclude_each_other() {
        let lock = Arc::new(Lock::new());
        let count = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, count) = (lock.clone(), count.clone());
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = lock.lock();
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 80_000);
    }

    #[test]
    fn a_lock_of_a_dead_thread_is_inherited() {
        let lock = Arc::new(Lock::new());
        let other = lock.clone();
        std::thread::spawn(move || core::mem::forget(other.lock())).join().unwrap();
        assert_eq!(lock.lock().taken, Taken::Inherited);
        assert_eq!(lock.lock().taken, Taken::Free);
    }
}

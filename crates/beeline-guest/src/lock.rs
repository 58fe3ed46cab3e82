//! Locks for sections of some tens of nanoseconds.
//!
//! A lock word tells who owns it ([`thread::identity`]), 0 when free. It serves the threads of one process; processes
//! that share a connection have [`shared`] ones:
//!
//! 1. Taking a free lock is one compare-and-swap; giving it back is one store.
//! 2. A waiter spins for a moment ([`Moment`]) and then sleeps on the word with a futex, at most a millisecond at a
//!    time. The bound lets an owner unlock without a fence: a wake-up that it overlooks costs that long.
//! 3. After each such millisecond a waiter asks the kernel whether the owner still lives, and takes the
//!    lock over from a dead one. Sections commit by single stores, so what the dead owner left is
//!    consistent; the new owner is told ([`Taken::Inherited`]) and brings derived state up to date.
//!    A killed process is dead before its parent has reaped it: the parent may be the one who waits here.
//!    Of a thread in another pid namespace nothing can be learned; its lock is never taken over.
//! 4. An owner cannot meet itself: the app's signal handlers do not run inside a section. A handler of a fault does,
//!    which cannot be put off. Whether it has jumped out of a copy from or to the app's memory, or still runs above one
//!    that goes on later, nobody can tell: so a lock is never taken over from its own thread, which waits for ever.

pub mod shared;

use core::sync::atomic::{AtomicU32, Ordering};

use beeline_shm::sys::{call, futex, ticks};

use crate::proc;
use crate::thread::{self, Section};

/// Some 2 us where a tick is that of a time-stamp counter: as long as a system call that is made within a section.
const MOMENT_TICKS: u64 = 5_000;
/// Naps after which an owner that exists is looked at more closely.
const NAPS_TO_DOUBT: u32 = 2;
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

impl Taken {
    /// What the dead owner left is up to date.
    #[inline]
    pub fn settle(&mut self) {
        *self = Self::Free;
    }
}

/// How long it pays to spin for an owner who runs on another CPU. By the clock, as what `PAUSE` takes differs tenfold
/// from processor to processor: an owner who has been kept from its CPU, perhaps by the waiter, comes no sooner for all
/// that.
#[derive(Default)]
struct Moment {
    /// 0 before the first pause.
    began: u64,
}

impl Moment {
    /// Pauses, and tells whether that was the last time. A clock that steps back ends it.
    #[inline]
    fn pause_and_ask(&mut self) -> bool {
        let now = ticks();
        if self.began == 0 {
            self.began = now;
        }
        core::hint::spin_loop();
        now.wrapping_sub(self.began) >= MOMENT_TICKS
    }
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
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_> {
        let section = Section::enter();
        let taken = match self.owner.compare_exchange(0, thread::identity(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Taken::Free,
            Err(_) => self.lock_contended(),
        };
        Guard { lock: self, taken, _section: section }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let section = Section::enter();
        self.owner.compare_exchange(0, thread::identity(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: self, taken: Taken::Free, _section: section })
    }

    #[cold]
    #[inline(never)]
    fn lock_contended(&self) -> Taken {
        let me = thread::identity();
        let mut naps = 0u32;
        loop {
            let mut moment = Moment::default();
            while !moment.pause_and_ask() {
                // Looked at before it is tried: a try takes the line away from the owner, who is about to write it.
                if self.owner.load(Ordering::Relaxed) == 0
                    && self.owner.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return Taken::Free;
                }
            }
            let owner = self.owner.load(Ordering::Relaxed);
            if owner == 0 {
                continue;
            }
            if is_gone(owner, naps)
                && self.owner.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Taken::Inherited;
            }
            naps = naps.saturating_add(1);
            nap(&self.owner, owner, &self.waiters);
        }
    }

    /// Whether somebody has the lock.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.owner.load(Ordering::Acquire) != 0
    }

    /// Waits until nobody has the lock, or somebody else than now, without taking it.
    ///
    /// # Errors
    /// Who has it is gone: somebody is to inherit it.
    pub(crate) fn await_next(&self) -> Result<(), u32> {
        let ended = await_owner(&self.owner, &self.waiters);
        // The wake-up may have been meant for one who takes the lock.
        if self.waiters.load(Ordering::Relaxed) != 0 && self.owner.load(Ordering::Relaxed) == 0 {
            self.wake_one();
        }
        ended
    }

    #[cold]
    #[inline(never)]
    fn wake_one(&self) {
        wake(&self.owner);
    }

    /// Makes the lock free whoever holds it, and tells whether somebody did: for memory that is known to have no other
    /// user. What was not held is not written: a child of a `fork` would get copies of all pages.
    pub fn reset(&self) -> bool {
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.waiters.store(0, Ordering::Relaxed);
        }
        let held = self.owner.load(Ordering::Relaxed) != 0;
        if held {
            self.owner.store(0, Ordering::Relaxed);
        }
        held
    }
}

impl Guard<'_> {
    /// As dropping it, in line: for the paths on which a call costs.
    #[inline(always)]
    pub fn end(self) {
        let this = core::mem::ManuallyDrop::new(self);
        this.give_back();
        this._section.leave();
    }

    #[inline(always)]
    fn give_back(&self) {
        self.lock.owner.store(0, Ordering::Release);
        if self.lock.waiters.load(Ordering::Relaxed) != 0 {
            self.lock.wake_one();
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Sleeps until a word is no longer `owner`, a moment at most.
fn nap(word: &AtomicU32, owner: u32, waiters: &AtomicU32) {
    waiters.fetch_add(1, Ordering::SeqCst);
    futex(word, libc::FUTEX_WAIT, owner, Some(&NAP));
    waiters.fetch_sub(1, Ordering::Relaxed);
}

/// Wakes one who sleeps on a word of an owner.
pub(crate) fn wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, None);
}

/// Waits until a word is no longer its present owner's.
///
/// # Errors
/// The owner, who is gone.
#[cold]
pub(crate) fn await_owner(word: &AtomicU32, waiters: &AtomicU32) -> Result<(), u32> {
    let owner = word.load(Ordering::Acquire);
    let mut naps = 0u32;
    loop {
        let mut moment = Moment::default();
        while !moment.pause_and_ask() {
            if owner == 0 || word.load(Ordering::Acquire) != owner {
                return Ok(());
            }
        }
        if is_gone(owner, naps) {
            return Err(owner);
        }
        naps = naps.saturating_add(1);
        nap(word, owner, waiters);
    }
}

/// Whether an owner for whom somebody has napped so often is dead.
fn is_gone(owner: u32, naps: u32) -> bool {
    naps != 0 && (!exists(owner) || naps >= NAPS_TO_DOUBT && is_zombie(owner))
}

/// Whether the thread of this identity exists, perhaps as a zombie. One of another user does: `EPERM` proves that it
/// is there. So does one of another pid namespace, for all that we can know, and any where nothing may be asked.
pub fn exists(identity: u32) -> bool {
    if thread::SEALED.load(Ordering::Relaxed) || !thread::is_neighbour(identity) {
        return true;
    }
    // SAFETY: signal 0 only asks.
    let asked = unsafe { call(libc::SYS_kill, [thread::tid_of(identity) as usize, 0, 0, 0, 0, 0]) };
    asked != Err(beeline_shm::Errno(libc::ESRCH))
}

/// Whether the thread of this identity has ended and is only waited for by its parent, as far as /proc tells.
fn is_zombie(identity: u32) -> bool {
    if thread::SEALED.load(Ordering::Relaxed) || !thread::is_neighbour(identity) {
        return false;
    }
    matches!(proc::state_of(thread::tid_of(identity)), Some(b'Z' | b'X'))
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
    fn a_moment_ends_by_the_clock_however_long_a_pause_takes() {
        let (begun, mut moment, mut pauses) = (ticks(), Moment::default(), 1u64);
        while !moment.pause_and_ask() {
            pauses += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(pauses == 2 && ticks() - begun >= MOMENT_TICKS, "{pauses}");
    }

    #[test]
    fn a_lock_of_a_dead_thread_is_inherited() {
        let lock = Arc::new(Lock::new());
        let other = lock.clone();
        std::thread::spawn(move || core::mem::forget(other.lock())).join().unwrap();
        assert_eq!(lock.lock().taken, Taken::Inherited);
        assert_eq!(lock.lock().taken, Taken::Free);
    }

    /// A child of this process that has ended and is not yet waited for, and its end status.
    fn zombie(f: impl FnOnce() -> i32) -> (u32, i32) {
        // SAFETY: the child only runs `f`, which makes system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            thread::look_at_namespace();
            thread::reset_after_fork();
            let status = f();
            // SAFETY: a plain number.
            unsafe { libc::_exit(status) };
        }
        // SAFETY: all-zero is a valid value of this plain C struct; a live struct.
        let status = unsafe {
            let mut ended: libc::siginfo_t = core::mem::zeroed();
            libc::waitid(libc::P_PID, child as u32, &raw mut ended, libc::WEXITED | libc::WNOWAIT);
            ended.si_status()
        };
        (child as u32, status)
    }

    fn reap(child: u32) {
        // SAFETY: a child of ours, and no status asked.
        unsafe { libc::waitpid(child as i32, core::ptr::null_mut(), 0) };
    }

    #[test]
    fn a_lock_of_a_killed_child_that_nobody_waited_for_is_inherited() {
        let (memory, _) = beeline_shm::SideMemory::create().unwrap();
        // SAFETY: a lock consists of atomics and is valid when zeroed.
        let lock: &'static Lock = unsafe { memory.as_ref() };
        let (child, _) = zombie(|| {
            core::mem::forget(lock.lock());
            0
        });
        let owner = lock.owner.load(Ordering::Relaxed);
        assert_eq!(thread::tid_of(owner), child);
        assert!(is_zombie(owner) && !is_zombie(thread::identity()));
        assert_eq!(lock.lock().taken, Taken::Inherited);
        reap(child);
        assert!(!exists(owner));
    }

    #[test]
    fn a_thread_has_its_own_identity_whatever_its_child_of_a_vfork_has_asked_for() {
        let (child, status) = zombie(|| {
            // In a process of its own, as other tests ask, too, whose child this is.
            thread::VFORKS.store(1, Ordering::Relaxed);
            thread::OWNER.store(1, Ordering::Relaxed);
            let ours = thread::identity();
            let is_kept = thread::with(thread::Thread::has_identity);
            thread::OWNER.store(beeline_shm::sys::getpid(), Ordering::Relaxed);
            let is_own = thread::identity() == ours && thread::with(thread::Thread::has_identity);
            i32::from(is_kept || !is_own)
        });
        reap(child);
        assert_eq!(status, 0);
    }

    #[test]
    fn an_owner_in_another_pid_namespace_lives() {
        // The child of a process that has left for another namespace tells by its status whether it takes its
        // parent for a neighbour.
        let (helper, status) = zombie(|| {
            // SAFETY: plain numbers.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
                return 2;
            }
            let parent = thread::identity();
            let (_, status) = zombie(|| i32::from(thread::is_neighbour(parent) || !exists(parent)));
            status
        });
        reap(helper);
        assert!(status == 0 || status == 2, "{status}");
        let (child, _) = zombie(|| 0);
        reap(child);
        let here = thread::identity() - thread::tid();
        assert!(!exists(here + child));
        let elsewhere = here ^ 1 << 22;
        assert!(exists(elsewhere + child) && !is_zombie(elsewhere + child));
    }
}

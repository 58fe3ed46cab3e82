//! Locks that processes share: those of a side, and of a listener.
//!
//! A holder may die, be stopped, or be replaced by `execve` at any instruction, in another pid namespace, and where
//! there is no /proc.
//!
//! # The word
//!
//! The lower half is a robust futex as the kernel knows it (linux/futex.h): the holder's thread id in its own pid
//! namespace, 0 when free, [`DIED`] when a holder has died and nobody has settled that. The upper half counts how often
//! the lock was taken.
//!
//! 1. Taking is a compare-and-swap of the whole word. So nobody takes a lock over from another holder than the one it
//!    has found dead. Giving back is a store, if the word still is the holder's own: only a dead one's is changed by
//!    others.
//! 2. While a thread takes or holds a lock, the kernel's list of robust futexes has it as the operation under way
//!    (`list_op_pending` of set_robust_list(2), which libc registers for each of its threads). When the thread ends,
//!    however it does, also in the `execve` of another thread, the kernel itself marks the word. libc uses the place
//!    only within its own robust mutexes; a handler of the app that interrupts those and calls us finds the place as it
//!    was when it returns. Of two locks held at one time only the later one is named.
//! 3. A thread without such a list is asked for as ever ([`super::exists`]), if it is of this pid namespace.
//! 4. What a dead holder leaves is consistent, as sections commit by single stores; the next one is told
//!    ([`Taken::Inherited`]), and whoever comes after it, until one has brought derived state up to date and says so
//!    ([`Taken::settle`]): who only wants others kept out, or finds the end a relay's, gives it back with [`DIED`] in
//!    it, as the kernel does for one that dies before it has settled. Nobody waits for such a lock: no holder is
//!    named in it. One that dies after that store and before it has woken a waiter leaves that to its nap: the kernel
//!    wakes for a dead thread only where the word is its own or 0. Of a lock that keeps nothing derived nobody settles
//!    anything, and the mark stays and says nothing.
//! 5. Who wants such a lock for a send or a receive naps for it with no other one held, and in no section: for a
//!    millisecond at most at a time ([`SharedLock::nap`]), and the app's handlers run meanwhile. Who arms for room, and
//!    who ends or leaves a connection, naps with locks of its own process held, some 20 times at most
//!    ([`SharedLock::lock_within`]; the lock order of beeline-descriptors names the places). One that is killed then
//!    stays counted as a waiter, which costs each holder after it a system call.
//! 6. No system call is made with it held on a path that sends, but for urgent bytes and splices, which copy out of or
//!    into a pipe, announce and ring with it held. What a stopped process keeps from others is a copy, or such a call,
//!    if it was stopped within one: it cannot be replaced then, as the rest of its copy would come late.
//! 7. Two threads of one id in different pid namespaces share a side rarely, and the kernel takes the one for the other
//!    only if it dies between its look at the word and its compare-and-swap, some instructions.

use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_shm::sys::call;

use super::{Moment, NAP, NAPS_TO_DOUBT, Taken, exists, futex, is_zombie};
use crate::thread::{self, Section, Thread};

/// `FUTEX_OWNER_DIED`.
const DIED: u32 = 0x4000_0000;
/// Bits of the lower half that are set only while the lock is held.
const HELD: u32 = DIED - 1;
/// What one more holder adds to the word.
const NEXT: u64 = 1 << 32;

/// See the module; valid when zeroed.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SharedLock {
    word: AtomicU64,
    waiters: AtomicU32,
    /// Identity of the last holder.
    holder: AtomicU32,
}

/// A held lock, and the critical section that goes with it.
pub struct SharedGuard<'a> {
    lock: &'a SharedLock,
    /// The word as it is while this holder is.
    token: u64,
    /// How the lock was got, and is given back.
    pub taken: Taken,
    // Left last.
    _section: Section,
}

/// How long one who waits has waited, and what it has seen.
#[derive(Debug, Default)]
pub struct Wait {
    naps: u32,
    /// The word at the last nap.
    word: u64,
    /// Naps at which it was the same.
    same: u32,
}

impl Wait {
    /// Milliseconds or so.
    #[must_use]
    pub fn naps(&self) -> u32 {
        self.naps
    }

    /// The same, with one holder that has not given the lock back meanwhile.
    #[must_use]
    pub fn naps_for_one(&self) -> u32 {
        self.same
    }
}

#[inline]
fn low(word: u64) -> u32 {
    word as u32
}

impl SharedLock {
    /// Takes the lock, trying for a moment. `None` if somebody else holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<SharedGuard<'_>> {
        let section = Section::enter();
        let (token, taken) = thread::with(|thread| self.take_in_a_moment(thread))?;
        Some(SharedGuard { lock: self, token, taken, _section: section })
    }

    /// Runs `f` with the lock held, if it is to be had within a moment. What others wait for, should this process be
    /// stopped, is `f` and a few instructions: a guard that is passed on is copied about with the lock held. What is
    /// inherited `f` settles, or leaves to the next one.
    #[inline(always)]
    pub fn run<R>(&self, f: impl FnOnce(&mut Taken) -> R) -> Option<R> {
        let section = Section::enter();
        let result = thread::with(|thread| {
            let (token, mut taken) = self.take_in_a_moment(thread)?;
            let result = f(&mut taken);
            self.give_back(thread, token, taken);
            Some(result)
        });
        drop(section);
        result
    }

    /// Takes the word, trying for a moment.
    #[inline(always)]
    fn take_in_a_moment(&self, thread: &Thread) -> Option<(u64, Taken)> {
        let (mut moment, mut is_over) = (Moment::default(), false);
        loop {
            let word = self.word.load(Relaxed);
            if low(word) & HELD == 0
                && let Some(taken) = self.take(thread, word)
            {
                return Some(taken);
            }
            // It is looked at once more after the last pause.
            if is_over {
                return None;
            }
            is_over = moment.pause_and_ask();
        }
    }

    /// Gives the lock back. A plain store will do, and does not wait for those before it as a compare-and-swap would:
    /// nobody takes the lock from a holder that lives. Who begins to wait in that very moment naps once in vain.
    #[inline(always)]
    fn give_back(&self, thread: &Thread, token: u64, taken: Taken) {
        if self.word.load(Relaxed) == token {
            let left = if taken == Taken::Inherited { DIED } else { 0 };
            self.word.store(token & !u64::from(u32::MAX) | u64::from(left), Release);
        }
        conceal(thread, self);
        if self.waiters.load(Relaxed) != 0 {
            futex(self.futex_word(), libc::FUTEX_WAKE, 1, None);
        }
    }

    /// Takes the lock from whom `word` names, if that still is the word.
    #[inline(always)]
    fn take(&self, thread: &Thread, word: u64) -> Option<(u64, Taken)> {
        let count = (word & !(NEXT - 1)).wrapping_add(NEXT);
        let token = count | u64::from(thread::tid());
        announce(thread, self);
        if self.word.compare_exchange(word, token, Acquire, Relaxed).is_err() {
            conceal(thread, self);
            return None;
        }
        self.holder.store(thread::identity(), Relaxed);
        Some((token, if low(word) == 0 { Taken::Free } else { Taken::Inherited }))
    }

    /// Lets some time pass in which the holder may give the lock back, and takes it from one that is dead. Which locks
    /// may be held is rule 5.
    #[cold]
    pub fn nap(&self, wait: &mut Wait) {
        let word = self.word.load(Relaxed);
        if low(word) & HELD == 0 {
            return;
        }
        wait.same = if wait.word == word { wait.same.saturating_add(1) } else { 0 };
        wait.word = word;
        wait.naps = wait.naps.saturating_add(1);
        if self.is_forsaken(wait) {
            // The next one to take it goes on from there, as the kernel's own mark makes it.
            let died = (word & !(NEXT - 1)).wrapping_add(NEXT) | u64::from(DIED);
            let _ = self.word.compare_exchange(word, died, Relaxed, Relaxed);
            return;
        }
        self.waiters.fetch_add(1, Relaxed);
        futex(self.futex_word(), libc::FUTEX_WAIT, low(word), Some(&NAP));
        self.waiters.fetch_sub(1, Relaxed);
    }

    /// The thread that holds the lock, if it is of this pid namespace.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let (tid, holder) = (low(self.word.load(Relaxed)) & HELD, self.holder.load(Relaxed));
        (tid != 0 && thread::tid_of(holder) == tid && thread::is_neighbour(holder)).then_some(tid)
    }

    /// Whether the holder that `wait` knows of will never store anything more that matters.
    fn is_forsaken(&self, wait: &Wait) -> bool {
        let holder = self.holder.load(Relaxed);
        if wait.same < NAPS_TO_DOUBT || thread::tid_of(holder) != low(wait.word) & HELD || !thread::is_neighbour(holder)
        {
            return false;
        }
        !exists(holder) || is_zombie(holder)
    }

    fn futex_word(&self) -> &AtomicU32 {
        // SAFETY: the lower half of the word, which lies first on the little-endian machines this runs on, and is as
        // atomic as the whole.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr().cast()) }
    }

    /// Takes the lock, if it is to be had within so many naps.
    pub fn lock_within(&self, naps: u32) -> Option<SharedGuard<'_>> {
        let mut wait = Wait::default();
        loop {
            let guard = self.try_lock();
            if guard.is_some() || wait.naps >= naps {
                return guard;
            }
            self.nap(&mut wait);
        }
    }

    /// Leaves a lock that this thread seems to hold to whoever comes next, as a dead one's: for a thread that knows
    /// that it holds nothing.
    pub fn disown(&self) {
        let word = self.word.load(Relaxed);
        if low(word) & HELD == thread::tid() && thread::tid_of(self.holder.load(Relaxed)) == thread::tid() {
            let died = word & !u64::from(u32::MAX) | u64::from(DIED);
            let _ = self.word.compare_exchange(word, died, Relaxed, Relaxed);
        }
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        thread::with(|thread| self.lock.give_back(thread, self.token, self.taken));
    }
}

/// `struct robust_list_head` of linux/futex.h, of which libc has one for each thread.
#[repr(C)]
struct RobustHead {
    list: AtomicUsize,
    futex_offset: AtomicUsize,
    list_op_pending: AtomicUsize,
}

/// How far behind our state for a thread libc's list head is, plus one; 0 as long as nobody has asked. Both lie in the
/// thread's static block, so it is the same for all threads.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);
/// There is none, or it is not to be found.
const NOWHERE: usize = usize::MAX;

/// Finds out where threads have their lists of robust futexes.
fn find_robust_list() {
    if DISTANCE.load(Relaxed) != 0 {
        return;
    }
    let (mut head, mut length) = (0usize, 0usize);
    let args = [0, (&raw mut head) as usize, (&raw mut length) as usize, 0, 0, 0];
    // SAFETY: two live words for the results.
    let asked = unsafe { call(libc::SYS_get_robust_list, args) };
    let found = asked.is_ok() && head != 0 && length == size_of::<RobustHead>() && cfg!(target_arch = "x86_64");
    let distance =
        if found { head.wrapping_sub(thread::with(|thread| core::ptr::from_ref(thread).addr())) } else { NOWHERE };
    DISTANCE.store(if distance == NOWHERE { NOWHERE } else { distance.wrapping_add(1) }, Relaxed);
}

#[inline]
fn head(thread: &Thread) -> Option<&RobustHead> {
    match DISTANCE.load(Relaxed) {
        0 => {
            find_robust_list();
            head(thread)
        }
        NOWHERE => None,
        distance => {
            let address = core::ptr::from_ref(thread).addr().wrapping_add(distance - 1);
            // SAFETY: libc's list head of this thread, which lives as long as the thread.
            Some(unsafe { &*core::ptr::with_exposed_provenance(address) })
        }
    }
}

/// What the kernel is to take for the list's entry of a lock.
fn entry(head: &RobustHead, lock: &SharedLock) -> usize {
    lock.word.as_ptr().addr().wrapping_sub(head.futex_offset.load(Relaxed))
}

/// Names the lock to the kernel as one that this thread is about to take.
#[inline]
fn announce(thread: &Thread, lock: &SharedLock) {
    let Some(head) = head(thread) else { return };
    let held = thread.shared_locks.load(Relaxed);
    thread.shared_locks.store(held + 1, Relaxed);
    if held == 0 {
        thread.robust_before.store(head.list_op_pending.load(Relaxed), Relaxed);
    }
    head.list_op_pending.store(entry(head, lock), Relaxed);
    core::sync::atomic::compiler_fence(AcqRel);
}

/// The thread does not hold the lock any more.
#[inline]
fn conceal(thread: &Thread, lock: &SharedLock) {
    core::sync::atomic::compiler_fence(AcqRel);
    let Some(head) = head(thread) else { return };
    let held = thread.shared_locks.load(Relaxed).saturating_sub(1);
    thread.shared_locks.store(held, Relaxed);
    if held == 0 {
        head.list_op_pending.store(thread.robust_before.load(Relaxed), Relaxed);
    } else if head.list_op_pending.load(Relaxed) == entry(head, lock) {
        head.list_op_pending.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A thread takes the lock and ends.
    fn die_with(lock: &Arc<SharedLock>) {
        let held = lock.clone();
        std::thread::spawn(move || core::mem::forget(held.try_lock().unwrap())).join().unwrap();
    }

    fn settle(lock: &SharedLock) {
        lock.run(Taken::settle).unwrap();
    }

    #[test]
    fn whoever_takes_what_a_dead_holder_left_is_told_until_one_has_settled() {
        let lock = Arc::new(SharedLock::default());
        die_with(&lock);
        for _ in 0..2 {
            assert_eq!(lock.try_lock().unwrap().taken, Taken::Inherited);
            assert_eq!(lock.run(|taken| *taken), Some(Taken::Inherited));
            assert_eq!(lock.lock_within(1).unwrap().taken, Taken::Inherited);
        }
        let mut guard = lock.try_lock().unwrap();
        guard.taken.settle();
        drop(guard);
        assert_eq!(lock.try_lock().unwrap().taken, Taken::Free);
        die_with(&lock);
        settle(&lock);
        assert_eq!(lock.run(|taken| *taken), Some(Taken::Free));
    }

    #[test]
    fn one_that_dies_before_it_has_settled_leaves_that_to_the_next() {
        let lock = Arc::new(SharedLock::default());
        die_with(&lock);
        drop(lock.try_lock().unwrap());
        die_with(&lock);
        assert_eq!(lock.run(|taken| *taken), Some(Taken::Inherited));
        settle(&lock);
        assert_eq!(lock.try_lock().unwrap().taken, Taken::Free);
    }

    #[test]
    fn a_lock_that_was_given_back_unsettled_is_nobodys() {
        let lock = Arc::new(SharedLock::default());
        die_with(&lock);
        drop(lock.try_lock().unwrap());
        let mut wait = Wait::default();
        lock.nap(&mut wait);
        assert_eq!((wait.naps(), lock.holder()), (0, None));
        lock.disown();
        assert_eq!(lock.try_lock().unwrap().taken, Taken::Inherited);
    }
}

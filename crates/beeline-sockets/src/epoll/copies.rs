//! Copies of this process (`fork`) that have its sets are followed until the last of them is gone: then it has its sets
//! for itself again.
//!
//! # Rules
//!
//! 1. Each `fork` has a number, that of the copy it makes ([`process::copies`]). Before it a pipe is made, whose ends
//!    are hidden and close-on-exec. After it the parent closes the end for writing. A hang-up of the other end tells it
//!    that nobody has that end any more, neither the child nor a copy of that: all of them have ended, were killed, or
//!    became other programs, which get no set that is closed on `exec`. One that is stopped has its end, and so the
//!    sets, for as long.
//! 2. Who has such an end of a process before it, and is about to have a set of that process go further than the end
//!    does, says so first by a byte ([`tell_those_before`]): where the set stays open on `exec`, gets another number,
//!    is sent, or the process leaves the library. Then the parent does not wait for the hang-up. Whoever says so has
//!    kept the other end, too, so that no signal tells him that his parent has gone.
//! 3. A copy that cannot be followed is *lost*, and with it, for good, each set that had been made before. That is so
//!    with one more than [`PLACES`] at a time, with many in a short time, as servers make that fork for each
//!    connection, without room for descriptors, while there is no set that is known here (another thread may be making
//!    one), with a `fork` by a fork handler in the middle of another one, with one in the memory of a parent (`vfork`),
//!    with a copy that shares the table of descriptors, with one that has thread-local memory of its own, and with one
//!    that was told of. So is, in a child, its parent.
//! 4. A set that was ever open on `exec`, or has two numbers, is left as it is, and so is one that others watch: each
//!    of them is never alone again ([`Set::is_private`]).
//! 5. What copies have made of the kernel's side of a set nobody knows. They may have added members of their own, which
//!    stay unknown ([`super::set::knows_all_members`]). What the kernel was told of the process's own members is in
//!    doubt ([`super::set::Registered::doubt`]): it is told anew before it is relied on, at the next change or arming.
//!    A member that a copy has taken out stays so, and is armed by itself: no bell of others depends on it.
//! 6. A set is renewed under its lock, before a sleep, from a count of copies that was read before the pipes were
//!    looked at, and all under the lock here. A `fork` notes its pipe, or that it is lost, under that lock before it is
//!    counted, and takes the locks of all sets after. So whoever sees the count sees the pipe; who did not is disturbed
//!    by that `fork`, and finds the set shared as soon as it is counted.
//! 7. Ends are closed before a `fork` alone, or after it: then no other thread forks, and no child inherits a number
//!    that is neither hidden nor closed yet.
//!
//! The lock is the last of all. It is not held over a `fork`: a child finds each end where its parent had it.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys;

use super::all;
use super::set::Set;
use crate::lock::Lock;
use crate::wait::ticks;
use crate::{hidden, kernel, process};

/// Forks whose copies are followed at a time, and processes before this one that can be told.
const PLACES: usize = 4;
/// Forks that are followed in each [`WINDOW_NS`].
const FORKS_MAX: u32 = 8;
const WINDOW_NS: u64 = 1_000_000_000;
/// Time between two looks at the pipes: some 10 ms where a tick is that of a time-stamp counter.
const LOOK_TICKS: u64 = 25_000_000;
const NONE: i32 = -1;

/// The copies of one fork.
struct Followed {
    /// The fork's number; 0 for a place that is free.
    number: AtomicU32,
    /// Its pipe's end for reading, perhaps also in a place that is free.
    reading: AtomicI32,
}

/// The pipe of the fork by which this process was made, or one before it.
struct Before {
    reading: AtomicI32,
    writing: AtomicI32,
    /// Whether that process was told, or the place is free.
    told: AtomicBool,
}

struct Copies {
    lock: Lock,
    /// The last fork that came by here.
    known: AtomicU32,
    /// Sets that had been made before the copy of this number are shared for good.
    lost: AtomicU32,
    /// Forks since this window began.
    forks: AtomicU32,
    began_ns: AtomicU64,
    looked: AtomicU64,
    /// The end for writing of the fork that goes on.
    writing: AtomicI32,
    /// Whether the copy that is being made has this process's table of descriptors: the ends are the parent's.
    shares_table: AtomicBool,
    before: [Before; PLACES],
    followed: [Followed; PLACES],
}

#[unsafe(link_section = ".fork.locked")]
static COPIES: Copies = Copies::new();

/// Before a `fork` that is about to be counted. The caller keeps all others out.
pub(crate) fn follow_next() {
    let number = process::copies().wrapping_add(1);
    let may = all::is_any() && !process::is_guest_of_parent();
    let _guard = COPIES.lock.lock();
    COPIES.begin_fork(number, may);
}

/// The copy that is about to be made, and was counted, has this process's table of descriptors.
pub(crate) fn lose_next() {
    let _guard = COPIES.lock.lock();
    COPIES.lose_sharer(process::copies());
}

/// Counts a copy that is about to be made, or was, and cannot be followed. The caller keeps all others out.
pub(crate) fn count_lost_copy() {
    let _guard = COPIES.lock.lock();
    process::count_fork();
    let number = process::copies();
    COPIES.lost.store(number, Relaxed);
    COPIES.known.store(number, Relaxed);
}

/// After a `fork`, in the parent, also if it has failed. The caller still keeps all others out.
pub(crate) fn fork_has_ended() {
    COPIES.end_fork();
    COPIES.shares_table.store(false, Relaxed);
}

/// In the child of a `fork`.
pub(super) fn reset_after_fork() {
    COPIES.lock.reset();
    COPIES.begin_in_child(process::copies());
}

/// Others may have the set from now on that are no copies of this process.
pub(super) fn tell_those_before(set: &Set) {
    // One that was made here nobody before has.
    if is_after(COPIES.lost.load(Relaxed), set.copies.load(Relaxed)) {
        tell_all_before();
    }
}

/// Others may have any set from now on, or this process no longer says who.
pub(crate) fn tell_all_before() {
    if COPIES.before.iter().any(|before| !before.told.load(Relaxed)) {
        let _guard = COPIES.lock.lock();
        COPIES.tell();
    }
}

/// Before a sleep on a set, which is locked: if the copies that had it are gone, it is the process's own again.
#[inline]
pub(super) fn renew(set: &Set) {
    // Read first: of forks that come later nothing is said.
    let made = process::copies();
    if set.copies.load(Relaxed) != made {
        renew_if_gone(set, made);
    }
}

#[cold]
#[inline(never)]
fn renew_if_gone(set: &Set, made: u32) {
    let may_be_alone = !set.exposed.load(Relaxed) && !set.handed_on.load(Relaxed);
    if may_be_alone && COPIES.are_gone_since(set.copies.load(Relaxed), made) {
        set.had_copies.store(true, Relaxed);
        set.for_each_entry(|_, entry| entry.registered.doubt());
        set.copies.store(made, Relaxed);
    }
}

/// Whether the fork of this number made a copy of what there was when `copies` had been made.
fn is_after(number: u32, copies: u32) -> bool {
    number.wrapping_sub(copies).cast_signed() > 0
}

impl Before {
    const fn free() -> Self {
        Self { reading: AtomicI32::new(NONE), writing: AtomicI32::new(NONE), told: AtomicBool::new(true) }
    }
}

impl Copies {
    const fn new() -> Self {
        Self {
            lock: Lock::new(),
            known: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            forks: AtomicU32::new(0),
            began_ns: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            writing: AtomicI32::new(NONE),
            shares_table: AtomicBool::new(false),
            before: [const { Before::free() }; PLACES],
            followed: [const { Followed { number: AtomicU32::new(0), reading: AtomicI32::new(NONE) } }; PLACES],
        }
    }

    /// Follows the fork of this number that is about to be made, or loses it.
    fn begin_fork(&self, number: u32, may: bool) {
        if !may || !self.are_few() || !self.follow(number) {
            self.lost.store(number, Relaxed);
        }
        self.known.store(number, Relaxed);
    }

    /// Does not follow the fork of this number, whose child will have this table: it closes nothing here, and tells
    /// nobody.
    fn lose_sharer(&self, number: u32) {
        self.tell();
        self.lost.store(number, Relaxed);
        self.end_fork();
        let its = self.followed.iter().find(|followed| followed.number.load(Relaxed) == number);
        its.into_iter().for_each(|followed| followed.number.store(0, Relaxed));
        self.close_what_is_over();
        self.shares_table.store(true, Relaxed);
    }

    /// In the child of such a fork.
    fn forget_ends(&self) {
        for followed in &self.followed {
            followed.number.store(0, Relaxed);
            followed.reading.store(NONE, Relaxed);
        }
        for before in &self.before {
            before.reading.store(NONE, Relaxed);
            before.writing.store(NONE, Relaxed);
            before.told.store(true, Relaxed);
        }
    }

    fn end_fork(&self) {
        let writing = self.writing.swap(NONE, Relaxed);
        if writing != NONE {
            hidden::close_hidden(writing);
        }
    }

    /// One fork more. Whether there were few lately.
    fn are_few(&self) -> bool {
        let now_ns = kernel::now_ns();
        if now_ns.wrapping_sub(self.began_ns.load(Relaxed)) > WINDOW_NS {
            self.began_ns.store(now_ns, Relaxed);
            self.forks.store(0, Relaxed);
        }
        self.forks.fetch_add(1, Relaxed) < FORKS_MAX
    }

    fn follow(&self, number: u32) -> bool {
        // In the middle of another fork, whose handler this is.
        if self.writing.load(Relaxed) != NONE {
            return false;
        }
        if self.before.iter().all(|before| before.writing.load(Relaxed) != NONE) {
            // The child would have no place for one more.
            self.tell();
        }
        let is_free = |followed: &&Followed| followed.number.load(Relaxed) == 0;
        if !self.followed.iter().any(|followed| is_free(&followed)) {
            self.look();
        }
        self.close_what_is_over();
        let Some(place) = self.followed.iter().find(is_free) else { return false };
        let Some([reading, writing]) = pipe() else { return false };
        place.reading.store(reading, Relaxed);
        place.number.store(number, Relaxed);
        self.writing.store(writing, Relaxed);
        true
    }

    /// Closes the ends of free places, and those of who was told.
    fn close_what_is_over(&self) {
        let free = self.followed.iter().filter(|followed| followed.number.load(Relaxed) == 0);
        let told = self.before.iter().filter(|before| before.told.load(Relaxed));
        let ends = free.map(|followed| &followed.reading);
        for end in ends.chain(told.flat_map(|before| [&before.reading, &before.writing])) {
            if end.load(Relaxed) != NONE {
                hidden::close_hidden(end.swap(NONE, Relaxed));
            }
        }
    }

    /// In the child of the fork of this number: what there is its parent has, too, which may be told by the pipe.
    fn begin_in_child(&self, number: u32) {
        self.known.store(number, Relaxed);
        self.lost.store(number, Relaxed);
        if self.shares_table.swap(false, Relaxed) {
            return self.forget_ends();
        }
        let writing = self.writing.load(Relaxed);
        for followed in &self.followed {
            let (of, reading) = (followed.number.load(Relaxed), followed.reading.load(Relaxed));
            if of == number
                && writing != NONE
                && let Some(before) = self.before.iter().find(|before| before.writing.load(Relaxed) == NONE)
            {
                before.reading.store(reading, Relaxed);
                before.writing.store(writing, Relaxed);
                before.told.store(false, Relaxed);
                followed.reading.store(NONE, Relaxed);
                self.writing.store(NONE, Relaxed);
            }
            if of != 0 {
                followed.number.store(0, Relaxed);
            }
        }
        self.end_fork();
        self.close_what_is_over();
    }

    /// Tells those before this process that they do not learn who has their sets.
    fn tell(&self) {
        for before in self.before.iter().filter(|before| !before.told.load(Relaxed)) {
            let writing = before.writing.load(Relaxed);
            // The child of a `vfork`, in whose memory this may be, can have put something of its own there.
            if kernel::is_close_on_exec(writing) == Ok(true) {
                let args = [writing as usize, c"!".as_ptr() as usize, 1, 0, 0, 0];
                // SAFETY: a byte of a string.
                let _ = unsafe { sys::call(libc::SYS_write, args) };
            }
            before.told.store(true, Relaxed);
        }
    }

    /// Frees the places of copies that are gone, or lost.
    fn look(&self) {
        self.looked.store(ticks(), Relaxed);
        for followed in self.followed.iter().filter(|followed| followed.number.load(Relaxed) != 0) {
            let told = kernel::poll_now(followed.reading.load(Relaxed), libc::POLLIN);
            if told == 0 {
                continue;
            }
            let number = followed.number.load(Relaxed);
            if told != libc::POLLHUP && is_after(number, self.lost.load(Relaxed)) {
                self.lost.store(number, Relaxed);
            }
            followed.number.store(0, Relaxed);
        }
    }

    /// Whether all copies are gone that have what there was when `copies` had been made, of `made` up to now.
    fn are_gone_since(&self, copies: u32, made: u32) -> bool {
        let is_lost = || is_after(self.lost.load(Relaxed), copies);
        let any = || {
            let numbers = self.followed.iter().map(|followed| followed.number.load(Relaxed));
            numbers.filter(|number| *number != 0).any(|number| is_after(number, copies))
        };
        let is_due = || ticks().wrapping_sub(self.looked.load(Relaxed)) > LOOK_TICKS;
        if is_lost() || any() && !is_due() || process::is_guest_of_parent() {
            return false;
        }
        // Somebody else who has it looks for another set, and is not waited for: a later sleep comes.
        let Some(_guard) = self.lock.try_lock() else { return false };
        if any() {
            self.look();
        }
        self.known.load(Relaxed) == made && !is_lost() && !any()
    }
}

/// A pipe's ends for reading and for writing, hidden; none where there is little room for descriptors.
fn pipe() -> Option<[i32; 2]> {
    let mut ends = [0i32; 2];
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    if !hidden::has_room() {
        return None;
    }
    // SAFETY: room for the two ends.
    unsafe { sys::call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]) }.ok()?;
    match ends.map(hidden::keep) {
        [Some(reading), Some(writing)] => Some([reading, writing]),
        kept => {
            kept.into_iter().flatten().for_each(hidden::close_hidden);
            None
        }
    }
}

#[cfg(test)]
mod tests;

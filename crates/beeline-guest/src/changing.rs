//! Changes of what fd numbers lead to.
//!
//! 1. A change is *whole* ([`changing`]) or *of one number* ([`changing_number`]). A whole one keeps all others out.
//!    One of one number keeps out whole ones and those of the same number; numbers that share a lock are as one. So
//!    threads that connect and close sockets of their own do not wait for each other, and a `fork`, which is a whole
//!    change from before to after, waits for them all: a child never inherits half a change.
//! 2. Both are outermost in the lock order, and nest: what a thread begins in the middle of a change is a part of it.
//!    So in the middle of a change of one number nothing is done that must be whole, and what such a number leads to is
//!    changed only if no other number leads there: a second one comes by a whole change, or by one of the first number.
//!    A `fork` in the middle of one, by a handler of the program's that runs because the change itself has crashed, is
//!    no whole change either: the child inherits what other threads have half done, and no locks; such a child writes a
//!    report and ends.
//! 3. Whoever changes one number takes a *seat*, by his identity, fences, and looks whether somebody has [`CHANGE`].
//!    Then he gives the seat back, waits without it until somebody else has `CHANGE` or nobody, and tries again; at
//!    last, or if the holder is dead, his change is a whole one. Whoever makes a whole change takes `CHANGE`, fences,
//!    and waits until each seat has been empty. The fences are sequentially consistent: of two that come at once one
//!    sees the other.
//! 4. With his seat he takes the number's lock. Whoever has that has a seat already and waits for no `CHANGE`, so no
//!    two wait for each other.
//! 5. Without a free seat the change is whole.
//! 6. Whoever waits for a seat sleeps on its word, a millisecond at most, as for a [lock](crate::lock), and empties it
//!    if its thread is gone. His wake-up is not overlooked, as a lock's may be: many may be waited for, one after the
//!    other. loom explores rules 3 and 6 (`tests/loom`).
//! 7. All of a change is a critical section: no handler of the app runs in the middle of it.

mod seats;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::lock::{Guard, Lock};
use crate::thread::{self, Section};
use basis::AtomicU32;
use seats::{Entered, Seats};

/// What the seats stand on: loom has others.
mod basis {
    pub(super) use crate::lock::{await_owner, wake};
    pub(super) use core::sync::atomic::{AtomicU32, fence};
}

/// Changes of one number at a time.
const SEATS: usize = 64;
/// Locks of numbers: a page of them.
const LOCKS: usize = 512;
/// How often a change of one number waits for whole ones before it becomes one.
const WAITS: usize = 3;

#[unsafe(link_section = ".fork.written")]
static CHANGE: Lock = Lock::new();

/// The thread that holds [`CHANGE`], 0 if none.
#[unsafe(link_section = ".fork.written")]
static CHANGER: AtomicU32 = AtomicU32::new(0);

#[unsafe(link_section = ".fork.written")]
static SEAT: Seats<SEATS> = Seats::new([const { AtomicU32::new(0) }; SEATS], AtomicU32::new(0));

/// Whether a thread is gone that had a seat, and perhaps a number's lock.
#[unsafe(link_section = ".fork")]
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// The locks of numbers.
static NUMBERS: [Lock; LOCKS] = [const { Lock::new() }; LOCKS];

/// Permission to change what fd numbers lead to: all, or one.
#[must_use]
pub struct Changing {
    part: Part,
}

enum Part {
    /// Of a change that has begun before.
    Nested,
    // What is there to be dropped, in this order.
    Whole {
        _guard: Guard<'static>,
    },
    One {
        number: Option<Guard<'static>>,
        seat: usize,
        _section: Section,
    },
}

/// Keeps other changes and forks out for as long as the result lives. Taken before any other lock; nests.
#[unsafe(link_section = ".text.fork")]
pub fn changing() -> Changing {
    if is_changing() {
        return Changing { part: Part::Nested };
    }
    let guard = CHANGE.lock();
    if SEAT.await_all() {
        ABANDONED.store(true, Relaxed);
    }
    CHANGER.store(thread::tid(), Relaxed);
    Changing { part: Part::Whole { _guard: guard } }
}

/// Keeps other changes of `fd` out for as long as the result lives, whole ones, and forks. Taken before any other lock;
/// nests.
pub fn changing_number(fd: i32) -> Changing {
    if is_changing() {
        return Changing { part: Part::Nested };
    }
    let section = Section::enter();
    for _ in 0..WAITS {
        match SEAT.enter(thread::identity(), places(), || CHANGE.is_taken()) {
            Entered::Seated(seat) => {
                thread::with(|thread| thread.changes_number.store(true, Relaxed));
                let number = NUMBERS.get(fd as usize % LOCKS).map(Lock::lock);
                return Changing { part: Part::One { number, seat, _section: section } };
            }
            Entered::KeptOut if CHANGE.await_next().is_ok() => {}
            Entered::KeptOut | Entered::Full => break,
        }
    }
    changing()
}

/// Whether this thread is in the middle of a change.
#[must_use]
pub fn is_changing() -> bool {
    CHANGER.load(Relaxed) == thread::tid() || thread::with(|thread| thread.changes_number.load(Relaxed))
}

impl Drop for Changing {
    #[unsafe(link_section = ".text.fork")]
    fn drop(&mut self) {
        match &mut self.part {
            Part::Nested => {}
            Part::Whole { .. } => CHANGER.store(0, Relaxed),
            Part::One { number, seat, .. } => {
                drop(number.take());
                thread::with(|thread| thread.changes_number.store(false, Relaxed));
                SEAT.give(*seat);
            }
        }
    }
}

/// In the child of a `fork`: its only thread may change.
pub fn reset_after_fork() {
    CHANGE.reset();
    SEAT.reset();
    // Whoever has a number's lock has a seat, and a fork waits until all are empty: the locks are free, unless one was
    // left by a thread that is gone, or the fork came in the middle of a change of one number (rule 2).
    if ABANDONED.load(Relaxed) || thread::with(|thread| thread.changes_number.load(Relaxed)) {
        ABANDONED.store(false, Relaxed);
        for number in &NUMBERS {
            number.reset();
        }
    }
}

/// In the child of a `fork`, after [`reset_after_fork`]: ends what its thread held in the parent, all but the section.
/// Where dropping it leads is not where the rest of what a child runs lies.
#[unsafe(link_section = ".text.fork")]
pub fn end_in_child(held: Changing) {
    let is_whole = matches!(held.part, Part::Whole { .. });
    core::mem::forget(held);
    if is_whole {
        CHANGER.store(0, Relaxed);
    }
}

/// The seats that this thread tries, in turn.
fn places() -> impl Iterator<Item = usize> {
    /// Seats tried.
    const TRIES: usize = 4;
    /// Cache lines of seats.
    const LINES: usize = SEATS * size_of::<AtomicU32>() / 64;
    // Threads that were made one after the other write to one cache line each.
    let tid = thread::tid() as usize;
    let first = tid % LINES * (SEATS / LINES) + tid / LINES;
    (first..first.saturating_add(TRIES)).map(|place| place % SEATS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::mpsc::channel;

    /// What a change is about: counted without atomics, by who is said to be alone with it.
    struct Counts([UnsafeCell<u64>; SEATS]);

    // SAFETY: that nobody else uses it meanwhile is what is tested.
    unsafe impl Sync for Counts {}

    static COUNTS: Counts = Counts([const { UnsafeCell::new(0) }; SEATS]);
    /// Numbers are the process's, and tests run in threads.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn count(place: usize) {
        // SAFETY: a live cell.
        let cell = unsafe { &mut *COUNTS.0[place].get() };
        let seen = *cell;
        std::hint::black_box(&cell);
        *cell = seen + 1;
    }

    #[test]
    fn a_whole_change_is_alone_and_one_of_a_number_is_alone_with_it() {
        let _turn = ONE_AT_A_TIME.lock();
        const ROUNDS: u64 = 30_000;
        let numbers: Vec<_> = (0..4_u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    for round in 0..ROUNDS {
                        // Two threads have each number in turns.
                        let number = (round % 7 + thread / 2) as i32 + SEATS as i32;
                        let _changing = changing_number(number);
                        let _nested = changing();
                        count(number as usize % SEATS);
                    }
                })
            })
            .collect();
        let wholes: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..ROUNDS / 10 {
                        let _changing = changing();
                        let _nested = changing_number(3);
                        (0..SEATS).for_each(count);
                    }
                })
            })
            .collect();
        numbers.into_iter().chain(wholes).for_each(|thread| thread.join().unwrap());
        let _changing = changing();
        // SAFETY: as in `count`.
        let sum: u64 = COUNTS.0.iter().map(|cell| unsafe { *cell.get() }).sum();
        assert_eq!(sum, 4 * ROUNDS + 2 * (ROUNDS / 10) * SEATS as u64);
    }

    #[test]
    fn changes_of_two_numbers_go_on_at_one_time_and_a_whole_one_waits_for_both() {
        let _turn = ONE_AT_A_TIME.lock();
        let first = changing_number(1);
        let (done, is_done) = channel();
        let second = done.clone();
        std::thread::spawn(move || {
            drop(changing_number(2));
            second.send(2).unwrap();
        });
        assert_eq!(is_done.recv(), Ok(2), "another number");
        for whole in [false, true] {
            let done = done.clone();
            std::thread::spawn(move || {
                drop(if whole { changing() } else { changing_number(1) });
                done.send(1).unwrap();
            });
        }
        assert!(is_done.recv_timeout(std::time::Duration::from_millis(20)).is_err(), "the same number, or all");
        drop(first);
        assert_eq!((is_done.recv(), is_done.recv()), (Ok(1), Ok(1)));
    }

    #[test]
    fn a_change_of_one_number_that_has_met_a_whole_one_keeps_no_other_number_out() {
        let _turn = ONE_AT_A_TIME.lock();
        let whole = changing();
        let (began, has_begun) = channel();
        let (end, is_over) = channel::<()>();
        let first = std::thread::spawn(move || {
            let _changing = changing_number(1);
            began.send(1).unwrap();
            let _ = is_over.recv();
        });
        assert!(has_begun.recv_timeout(std::time::Duration::from_millis(20)).is_err(), "it is kept out");
        drop(whole);
        assert_eq!(has_begun.recv(), Ok(1));
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            drop(changing_number(2));
            done.send(2).unwrap();
        });
        assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(10)), Ok(2));
        drop(end);
        first.join().unwrap();
    }

    #[test]
    fn a_whole_change_of_a_thread_that_is_gone_keeps_nobody_out() {
        let _turn = ONE_AT_A_TIME.lock();
        std::thread::spawn(|| core::mem::forget(changing())).join().unwrap();
        drop(changing_number(5));
        assert!(!CHANGE.is_taken() && CHANGER.load(Relaxed) == 0);
        drop(changing());
    }

    #[test]
    fn the_seat_of_a_thread_that_is_gone_is_emptied() {
        let _turn = ONE_AT_A_TIME.lock();
        std::thread::spawn(|| core::mem::forget(changing_number(5))).join().unwrap();
        drop(changing());
        drop(changing_number(5));
        assert!(SEAT.taken.iter().all(|seat| seat.load(Relaxed) == 0));
    }
}

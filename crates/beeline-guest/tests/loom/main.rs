//! loom model of changes of one number against whole ones: `src/changing/seats.rs` itself, with loom's atomics.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p beeline-guest --test loom --release`
//!
//! The kernel's futex is a lock, a condition variable, and a look at the word under the lock. A nap lasts until
//! somebody ends it: one whose end is overlooked is a deadlock, which loom reports.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, unsafe_code, dead_code)]

mod basis;
#[path = "../../src/changing/seats.rs"]
mod seats;

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use basis::AtomicU32;
use seats::{Entered, Seats};

const SEATS: usize = 2;

/// What changes are about: one thing for each number, all of them for a whole change. loom watches who is at them.
struct Process {
    seats: Seats<SEATS>,
    /// `CHANGE`: who makes a whole change.
    whole: AtomicU32,
    things: [UnsafeCell<u32>; SEATS],
}

// SAFETY: loom checks at run time that no two accesses race.
unsafe impl Sync for Process {}
// SAFETY: as above.
unsafe impl Send for Process {}

impl Process {
    fn new() -> Arc<Self> {
        let seats = Seats::new([(); SEATS].map(|()| AtomicU32::new(0)), AtomicU32::new(0));
        Arc::new(Self { seats, whole: AtomicU32::new(0), things: [(); SEATS].map(|()| UnsafeCell::new(0)) })
    }

    fn touch(&self, number: usize) {
        // SAFETY: loom reports whoever has access at the same time.
        self.things[number].with_mut(|thing| unsafe { *thing += 1 });
    }

    /// Changes a number of its own, once, if no whole change keeps it out. Whether it did.
    fn change_one(&self, me: u32, number: usize) -> bool {
        let places = (number..number + SEATS).map(|place| place % SEATS);
        match self.seats.enter(me, places, || self.whole.load(Acquire) != 0) {
            Entered::Seated(seat) => {
                self.touch(number);
                self.seats.give(seat);
                true
            }
            Entered::KeptOut | Entered::Full => false,
        }
    }

    fn change_all(&self, me: u32) {
        if self.whole.compare_exchange(0, me, Acquire, Relaxed).is_err() {
            return;
        }
        self.seats.await_all();
        (0..SEATS).for_each(|number| self.touch(number));
        self.whole.store(0, Release);
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(preemptions));
    builder.check(model);
}

#[test]
fn a_whole_change_is_alone_whoever_changes_a_number() {
    check(3, || {
        let process = Process::new();
        let ones = [0, 1].map(|number| {
            let process = process.clone();
            thread::spawn(move || process.change_one(number as u32 + 1, number))
        });
        process.change_all(9);
        for one in ones {
            one.join().unwrap();
        }
    });
}

#[test]
fn whose_number_is_changed_twice_is_waited_for() {
    check(3, || {
        let process = Process::new();
        let one = {
            let process = process.clone();
            thread::spawn(move || (0..2).filter(|_| process.change_one(1, 0)).count())
        };
        process.change_all(9);
        one.join().unwrap();
    });
}

#[test]
fn two_whole_changes_and_one_of_a_number_keep_each_other_out() {
    check(2, || {
        let process = Process::new();
        let others = [7, 8].map(|me| {
            let process = process.clone();
            thread::spawn(move || process.change_all(me))
        });
        process.change_one(1, 1);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

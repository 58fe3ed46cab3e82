//! A loan is given back or called in, and what was given back is what was lent.

use beeline_lane::loan::{self, State};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use loom::thread;

/// The word, and a program's memory: what it sends, and then, once the send has returned, something else.
struct Lane {
    word: AtomicU32,
    memory: AtomicUsize,
    fetched: AtomicUsize,
}

const MESSAGE: usize = 7;
const SOMETHING_ELSE: usize = 9;

impl Lane {
    fn new() -> Arc<Self> {
        let number = |number| AtomicUsize::new(number);
        Arc::new(Self { word: AtomicU32::new(0), memory: number(MESSAGE), fetched: number(0) })
    }

    /// What the reader has got, if it got something.
    fn read(&self) -> Option<usize> {
        let taken = loan::take(&self.word)?;
        let found = self.memory.load(Relaxed);
        self.fetched.store(1, Relaxed);
        taken.give_back().then_some(found)
    }

    /// Whether the reader has the message. A writer waits no longer than so many looks.
    fn write(&self, looks: usize) -> bool {
        let loan = loan::lend(&self.word);
        let mut left = looks;
        let has_read = loop {
            match loan.state() {
                State::GivenBack => {
                    assert_eq!(self.fetched.load(Relaxed), 1, "it is said before");
                    break true;
                }
                State::Spoilt => panic!("nobody has spoilt it"),
                state if left == 0 && loan.call_in(state) => break false,
                _ => {
                    left = left.saturating_sub(1);
                    thread::yield_now();
                }
            }
        };
        self.memory.store(SOMETHING_ELSE, Relaxed);
        has_read
    }
}

#[test]
fn a_loan_is_given_back_or_called_in() {
    for looks in 0..2 {
        super::check(3, move || {
            let lane = Lane::new();
            let reader = thread::spawn({
                let lane = lane.clone();
                move || lane.read()
            });
            let has_read = lane.write(looks);
            let got = reader.join().unwrap();
            assert_eq!(got, has_read.then_some(MESSAGE));
        });
    }
}

/// The reader may be so slow that its loan was called in, and another one stands.
#[test]
fn what_was_called_in_is_not_given_back_as_the_next_one() {
    super::check(3, || {
        let lane = Lane::new();
        let reader = thread::spawn({
            let lane = lane.clone();
            move || lane.read()
        });
        let first = lane.write(0);
        // The program sends its next message from the same place.
        let second = lane.write(0);
        let got = reader.join().unwrap();
        let expected = if first { Some(MESSAGE) } else { second.then_some(SOMETHING_ELSE) };
        assert_eq!(got, expected);
    });
}

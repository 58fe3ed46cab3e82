//! A message that the reader fetches from the writer's own memory, without the ring: the one word on which both agree.
//!
//! A reader that waits for a long message says how much it waits for. A writer that has one, and finds the ring empty,
//! *lends* it: says where it stands, and waits for the reader to fetch it, for a short time. The writer's memory is its
//! program's again as soon as it returns; so a reader must know, when it has fetched, that the writer was still there.
//! All is decided by compare-and-swap on one word:
//!
//! 1. The writer, under its tx lock and with nothing unread in the ring, says what it lends and where, and then makes
//!    the word [`State::Lent`], with a number that no loan of this lane had lately ([`lend`]). It writes nothing into
//!    the ring while the loan stands.
//! 2. The reader, under its rx lock and when it has read the ring empty, takes the loan by [`take`], reads what and
//!    where, once, and fetches. Then it says how much that was, 0 for nothing at all, and returns it by
//!    [`Taken::give_back`].
//! 3. The writer may call the loan in at any moment ([`Loan::call_in`]), whether it is taken or not. Either that
//!    succeeds, or giving back does, never both. What was fetched of a loan that was called in is thrown away; of one
//!    that was given back, the writer goes on behind what the reader says.
//! 4. A writer that ends in the middle leaves the word. Its memory may be another program's by then, which is why the
//!    reader asks for a proof with the bytes (`beeline_shm::fetch`), and gives back nothing without.
//!
//! Both may write the word, and a peer that does so out of turn spoils its own connection: a reader that is told
//! nonsense fetches what the kernel lets it, from the process that it knows its peer to be; a writer that is told
//! nonsense sends by the ring.

#[cfg(not(loom))]
use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
#[cfg(loom)]
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Of a word: its state. The rest is the loan's number.
const STATE: u32 = 3;
const LENT: u32 = 1;
const TAKEN: u32 = 2;
const GIVEN_BACK: u32 = 3;

/// What became of a loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nobody has taken it.
    Lent,
    /// The reader is fetching.
    Taken,
    /// The reader has said how much it has fetched.
    GivenBack,
    /// The peer has spoilt the word.
    Spoilt,
}

/// A writer's loan.
#[derive(Debug)]
pub struct Loan<'a> {
    word: &'a AtomicU32,
    number: u32,
}

/// A reader's, while it fetches.
#[derive(Debug)]
pub struct Taken<'a> {
    word: &'a AtomicU32,
    number: u32,
}

/// Lends what has been said.
#[must_use]
pub fn lend(word: &AtomicU32) -> Loan<'_> {
    let number = (word.load(Relaxed) & !STATE).wrapping_add(STATE + 1);
    word.store(number | LENT, Release);
    Loan { word, number }
}

/// Whether there is something to take: a hint.
#[must_use]
#[inline]
pub fn is_lent(word: &AtomicU32) -> bool {
    word.load(Relaxed) & STATE == LENT
}

/// Takes what is lent, if anything is.
#[must_use]
pub fn take(word: &AtomicU32) -> Option<Taken<'_>> {
    let seen = word.load(Relaxed);
    let number = seen & !STATE;
    (seen & STATE == LENT && word.compare_exchange(seen, number | TAKEN, AcqRel, Relaxed).is_ok())
        .then_some(Taken { word, number })
}

impl Loan<'_> {
    /// What has become of it.
    #[must_use]
    pub fn state(&self) -> State {
        let seen = self.word.load(Acquire);
        match (seen & !STATE == self.number, seen & STATE) {
            (true, LENT) => State::Lent,
            (true, TAKEN) => State::Taken,
            (true, GIVEN_BACK) => State::GivenBack,
            _ => State::Spoilt,
        }
    }

    /// Takes it back, if it is still in that state.
    #[must_use]
    pub fn call_in(&self, state: State) -> bool {
        let expected = match state {
            State::Lent => self.number | LENT,
            State::Taken => self.number | TAKEN,
            State::GivenBack | State::Spoilt => return false,
        };
        self.word.compare_exchange(expected, self.number, AcqRel, Relaxed).is_ok()
    }
}

impl Taken<'_> {
    /// The reader is done, and has said how much it has fetched. False if the writer has called the loan in.
    #[must_use]
    pub fn give_back(self) -> bool {
        self.word.compare_exchange(self.number | TAKEN, self.number | GIVEN_BACK, AcqRel, Relaxed).is_ok()
    }
}

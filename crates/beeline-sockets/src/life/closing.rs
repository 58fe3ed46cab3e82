//! What lists of actions for `posix_spawn` close in the program.
//!
//! libc closes past any hook there, hidden descriptors as well, and does not tell what is in a list. So it is noted by
//! the list's address when it is put in. A list that is begun anew is empty. Of many lists those that were noted last
//! are known.
//!
//! Some programs close all numbers one by one. What they leave out parts the others into runs, of which a few are
//! known: a number that is not in one may be closed as well.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::hidden;

/// Lists that are known at a time.
const LISTS: usize = 32;
/// Runs of numbers that are known of a list.
const RUNS: usize = 8;

/// A list, by its address.
struct List {
    address: AtomicUsize,
    /// Its runs, each as [`Run::bits`].
    runs: [AtomicU64; RUNS],
    /// What it sweeps, likewise.
    swept: AtomicU64,
}

static CLOSING: [List; LISTS] = [const {
    List {
        address: AtomicUsize::new(0),
        runs: [const { AtomicU64::new(Run::NONE.bits()) }; RUNS],
        swept: AtomicU64::new(Run::NONE.bits()),
    }
}; LISTS];
/// Which place comes next.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Numbers without a gap.
#[derive(Clone, Copy)]
struct Run {
    first: u32,
    last: u32,
}

impl Run {
    const NONE: Self = Self { first: u32::MAX, last: 0 };

    const fn bits(self) -> u64 {
        (self.first as u64) << u32::BITS | self.last as u64
    }

    fn of(bits: &AtomicU64) -> Self {
        let bits = bits.load(Relaxed);
        Self { first: (bits >> u32::BITS) as u32, last: bits as u32 }
    }

    fn is_empty(self) -> bool {
        self.first > self.last
    }

    fn has(self, fd: i32) -> bool {
        (self.first..=self.last).contains(&fd.cast_unsigned())
    }

    /// Whether no number lies between the two.
    fn adjoins(self, other: Self) -> bool {
        !self.is_empty() && self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    fn with(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// Numbers that a program is spawned without.
#[derive(Clone, Copy)]
pub struct Closing {
    runs: [Run; RUNS],
    swept: Run,
}

impl Closing {
    /// Nothing is closed.
    const NOTHING: Self = Self { runs: [Run::NONE; RUNS], swept: Run::NONE };

    /// What a list closes; 0 for none.
    #[must_use]
    pub fn by_list(list: usize) -> Self {
        known(list).map_or(Self::NOTHING, |known| {
            let mut runs = [Run::NONE; RUNS];
            runs.iter_mut().zip(&known.runs).for_each(|(run, bits)| *run = Run::of(bits));
            Self { runs, swept: Run::of(&known.swept) }
        })
    }

    /// Whether it certainly closes this number. What was open there may have got another one before.
    pub(super) fn has(self, fd: i32) -> bool {
        self.runs.iter().any(|run| run.has(fd))
    }

    /// Whether this number lies where it closes whatever there may be: from some number on, or from the first to the
    /// last hidden number that it closes.
    pub(super) fn sweeps(self, fd: i32) -> bool {
        self.swept.has(fd)
    }
}

fn known(list: usize) -> Option<&'static List> {
    if list == 0 { None } else { CLOSING.iter().find(|known| known.address.load(Relaxed) == list) }
}

impl List {
    /// Begins as an empty one.
    fn begin(&self, list: usize) {
        self.runs.iter().chain([&self.swept]).for_each(|bits| bits.store(Run::NONE.bits(), Relaxed));
        self.address.store(list, Relaxed);
    }

    /// Notes a run, with one that it adjoins, or by itself. If there is no place for it, a single number is forgotten,
    /// and anything else takes another run's place.
    fn add(&self, run: Run) {
        let adjoining = || self.runs.iter().find(|bits| Run::of(bits).adjoins(run));
        let empty = || self.runs.iter().find(|bits| Run::of(bits).is_empty());
        let place = adjoining().or_else(empty).or_else(|| self.runs.last().filter(|_| run.first != run.last));
        if let Some(bits) = place {
            let before = Run::of(bits);
            bits.store(if before.adjoins(run) { before.with(run) } else { run }.bits(), Relaxed);
        }
    }
}

/// A list begins, or ends: nothing is in it.
pub fn list_begins(list: usize) {
    if let Some(known) = known(list) {
        known.address.store(0, Relaxed);
    }
}

/// A list closes these numbers.
pub fn list_closes(list: usize, numbers: RangeInclusive<i32>) {
    if *numbers.start() < 0 || numbers.is_empty() {
        return;
    }
    let run = Run { first: numbers.start().cast_unsigned(), last: numbers.end().cast_unsigned() };
    let known = known(list).unwrap_or_else(|| {
        let next = NEXT.fetch_add(1, Relaxed) as usize % LISTS;
        let place = CLOSING.get(next).unwrap_or(&CLOSING[0]);
        place.begin(list);
        place
    });
    known.add(run);
    // A program that closes a hidden number closes whatever there may be.
    if run.first != run.last || hidden::is_hidden(*numbers.start()) {
        known.swept.store(Run::of(&known.swept).with(run).bits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_known_until_it_begins_anew() {
        assert!(!Closing::by_list(0).has(3) && !Closing::by_list(0x1000).has(3));
        list_closes(0x1000, 10..=i32::MAX);
        list_closes(0x1000, 5..=5);
        let closing = Closing::by_list(0x1000);
        assert!(closing.has(5) && !closing.has(9) && closing.has(10) && closing.has(i32::MAX));
        assert!(!closing.sweeps(5) && !closing.sweeps(9) && closing.sweeps(10));
        assert!(!Closing::by_list(0x2000).has(10));
        list_begins(0x1000);
        assert!(!Closing::by_list(0x1000).has(10));
    }

    #[test]
    fn numbers_are_known_that_are_closed_one_by_one() {
        let left_out = |fd: i32| fd % 100 == 50;
        for fd in (3..700).filter(|fd| !left_out(*fd)) {
            list_closes(0x3000, fd..=fd);
        }
        let closing = Closing::by_list(0x3000);
        assert!((3..700).all(|fd| closing.has(fd) != left_out(fd)), "seven left out part eight runs");
        assert!(!closing.has(2) && !closing.has(700) && !closing.sweeps(3));
        // No place is left for more.
        list_closes(0x3000, 900..=900);
        assert!(!Closing::by_list(0x3000).has(900));
        list_closes(0x3000, 901..=i32::MAX);
        let closing = Closing::by_list(0x3000);
        assert!(!closing.has(900) && closing.has(901) && closing.has(3) && closing.sweeps(901));
        list_begins(0x3000);
        for fd in (3..700).rev() {
            list_closes(0x3000, fd..=fd);
        }
        let closing = Closing::by_list(0x3000);
        assert!((3..700).all(|fd| closing.has(fd)) && !closing.has(900), "downwards, and nothing of before");
        list_begins(0x3000);
    }
}

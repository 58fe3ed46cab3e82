//! What lists of actions for `posix_spawn` do in the program: what they close, and what it gets by name
//! (`posix_spawn_file_actions_adddup2`).
//!
//! libc does that past any hook, closes hidden descriptors as well, and does not tell what is in a list. So it is noted
//! by the list's address when it is put in, and holds for each program that is spawned by the list, as long as that is
//! neither begun anew nor destroyed. Of many lists that are not, those that were noted last are known.
//!
//! Some programs close all numbers one by one. What they leave out parts the others into runs, of which a few are
//! known: a number that is not in one may be closed as well.
//!
//! Names are numbers, too: what a number leads to is asked when the program is spawned. Of a list that names more than
//! are known each number may be named: what leads there is made ready for the program, and cut off for nobody.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::hidden;

/// Lists that are known at a time.
const LISTS: usize = 32;
/// Runs of numbers that are known of a list.
const RUNS: usize = 8;
/// Names that are known of a list.
const NAMES: usize = 64;

/// A list, by its address; 0 for a free place.
struct List {
    address: AtomicUsize,
    /// Runs of numbers that it closes, each as [`Run::bits`].
    runs: [AtomicU64; RUNS],
    /// What it sweeps, likewise.
    swept: AtomicU64,
    /// What it names, each as [`Name::bits`].
    names: [AtomicU64; NAMES],
    /// Whether it names more.
    names_more: AtomicBool,
}

static KNOWN: [List; LISTS] = [const {
    List {
        address: AtomicUsize::new(0),
        runs: [const { AtomicU64::new(Run::NONE.bits()) }; RUNS],
        swept: AtomicU64::new(Run::NONE.bits()),
        names: [const { AtomicU64::new(Name::NONE.bits()) }; NAMES],
        names_more: AtomicBool::new(false),
    }
}; LISTS];
/// In [`List::address`]: taken, and not yet a list's.
const CLAIMED: usize = 1;
/// Which place comes next where none is free.
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

/// A number, and what the program has it as.
#[derive(Clone, Copy)]
struct Name {
    from: u32,
    to: u32,
}

impl Name {
    const NONE: Self = Self { from: u32::MAX, to: u32::MAX };

    const fn bits(self) -> u64 {
        (self.from as u64) << u32::BITS | self.to as u64
    }

    fn of(bits: &AtomicU64) -> Self {
        let bits = bits.load(Relaxed);
        Self { from: (bits >> u32::BITS) as u32, to: bits as u32 }
    }

    fn is_none(self) -> bool {
        self.from == u32::MAX
    }
}

/// What a list does with the numbers of a program that is spawned.
#[derive(Clone, Copy)]
pub struct Actions {
    runs: [Run; RUNS],
    swept: Run,
    names: [Name; NAMES],
    names_more: bool,
}

impl Actions {
    /// Nothing is closed or named.
    const NONE: Self =
        Self { runs: [Run::NONE; RUNS], swept: Run::NONE, names: [Name::NONE; NAMES], names_more: false };

    /// What a list does; 0 for none.
    #[must_use]
    pub fn by_list(list: usize) -> Self {
        known(list).map_or(Self::NONE, |known| {
            let mut actions = Self::NONE;
            actions.runs.iter_mut().zip(&known.runs).for_each(|(run, bits)| *run = Run::of(bits));
            actions.names.iter_mut().zip(&known.names).for_each(|(name, bits)| *name = Name::of(bits));
            Self { swept: Run::of(&known.swept), names_more: known.names_more.load(Relaxed), ..actions }
        })
    }

    /// Whether it certainly closes this number. What was open there may have got another one before.
    pub(super) fn closes(&self, fd: i32) -> bool {
        self.runs.iter().any(|run| run.has(fd))
    }

    /// Whether this number lies where it closes whatever there may be: from some number on, or from the first to the
    /// last hidden number that it closes.
    pub(super) fn sweeps(&self, fd: i32) -> bool {
        self.swept.has(fd)
    }

    /// Whether the program certainly gets by name what this number leads to.
    pub(super) fn names(&self, fd: i32) -> bool {
        self.as_numbers(fd).next().is_some()
    }

    /// Whether it may.
    pub(super) fn may_name(&self, fd: i32) -> bool {
        self.names_more || self.names(fd)
    }

    /// Whether the program may get anything by name.
    pub(super) fn names_any(&self) -> bool {
        self.names_more || self.names.iter().any(|name| !name.is_none())
    }

    /// Whether the program gets that as a standard descriptor.
    pub(super) fn names_for_stdio(&self, fd: i32) -> bool {
        self.as_numbers(fd).any(|to| to <= 2)
    }

    fn as_numbers(&self, fd: i32) -> impl Iterator<Item = u32> {
        self.names.iter().filter(move |name| !name.is_none() && name.from == fd.cast_unsigned()).map(|name| name.to)
    }
}

fn known(list: usize) -> Option<&'static List> {
    if list == 0 { None } else { KNOWN.iter().find(|known| known.address.load(Relaxed) == list) }
}

/// A list, which is an empty one if it is not known.
fn known_from_now_on(list: usize) -> &'static List {
    let claim = |place: &&List| place.address.compare_exchange(0, CLAIMED, Relaxed, Relaxed).is_ok();
    known(list).unwrap_or_else(|| {
        let place = KNOWN.iter().find(claim).unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Relaxed) as usize % LISTS;
            KNOWN.get(next).unwrap_or(&KNOWN[0])
        });
        place.begin(list);
        place
    })
}

impl List {
    /// Begins as an empty one.
    fn begin(&self, list: usize) {
        self.runs.iter().chain([&self.swept]).for_each(|bits| bits.store(Run::NONE.bits(), Relaxed));
        self.names.iter().for_each(|bits| bits.store(Name::NONE.bits(), Relaxed));
        self.names_more.store(false, Relaxed);
        self.address.store(list, Relaxed);
    }

    /// What the program has under these numbers is not by any name that came before.
    fn forget_names(&self, of: impl Fn(u32) -> bool) {
        let of_those = |bits: &&AtomicU64| of(Name::of(bits).to);
        self.names.iter().filter(of_those).for_each(|bits| bits.store(Name::NONE.bits(), Relaxed));
    }

    /// Notes a name. What has got its number by name before has one more.
    fn name(&self, from: u32, to: u32) {
        let earlier = self.names.iter().map(Name::of).find(|name| !name.is_none() && name.to == from);
        self.forget_names(|number| number == to);
        let name = Name { from: earlier.map_or(from, |name| name.from), to };
        match self.names.iter().find(|bits| Name::of(bits).is_none()) {
            Some(bits) => bits.store(name.bits(), Relaxed),
            None => {
                self.names_more.store(true, Relaxed);
                // Standard descriptors are known in any case.
                let place = self.names.iter().find(|bits| to <= 2 && Name::of(bits).to > 2);
                place.into_iter().for_each(|bits| bits.store(name.bits(), Relaxed));
            }
        }
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
    let known = known_from_now_on(list);
    known.add(run);
    known.forget_names(|number| (run.first..=run.last).contains(&number));
    // A program that closes a hidden number closes whatever there may be.
    if run.first != run.last || hidden::is_hidden(*numbers.start()) {
        known.swept.store(Run::of(&known.swept).with(run).bits(), Relaxed);
    }
}

/// A list gives the program `fd` as `to`.
pub fn list_names(list: usize, fd: i32, to: i32) {
    if list != 0 && fd >= 0 && to >= 0 {
        known_from_now_on(list).name(fd.cast_unsigned(), to.cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists are the process's, and tests run in threads.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn names_are_a_list_s_own_and_end_with_it() {
        let _turn = ONE_AT_A_TIME.lock();
        list_names(0x4000, 5, 77);
        list_names(0x4000, 6, 1);
        list_names(0x5000, 7, 0);
        let actions = Actions::by_list(0x4000);
        assert!(actions.names(5) && actions.names(6) && !actions.names(7) && !actions.names(77));
        assert!(!actions.names_for_stdio(5) && actions.names_for_stdio(6));
        assert!(!Actions::by_list(0).names(5) && !Actions::by_list(0x6000).names(5));
        list_begins(0x4000);
        assert!(!Actions::by_list(0x4000).names(5) && Actions::by_list(0x5000).names_for_stdio(7));
        list_names(0x4000, 8, 9);
        assert!(!Actions::by_list(0x4000).names(5) && Actions::by_list(0x4000).names(8));
        list_begins(0x4000);
        list_begins(0x5000);
    }

    #[test]
    fn names_are_followed_from_number_to_number() {
        let _turn = ONE_AT_A_TIME.lock();
        list_names(0x7000, 5, 60);
        list_names(0x7000, 60, 0);
        let actions = Actions::by_list(0x7000);
        assert!(actions.names_for_stdio(5) && !actions.names(60), "what 60 was before is another's");
        list_closes(0x7000, 0..=0);
        assert!(Actions::by_list(0x7000).names(5) && !Actions::by_list(0x7000).names_for_stdio(5));
        list_names(0x7000, 6, 60);
        assert!(!Actions::by_list(0x7000).names(5) && Actions::by_list(0x7000).names(6), "it has 60 in its place");
        list_names(0x7000, 8, 8);
        list_closes(0x7000, 9..=i32::MAX);
        assert!(!Actions::by_list(0x7000).names(6) && Actions::by_list(0x7000).names(8));
        for fd in 0..NAMES as i32 {
            assert!(!Actions::by_list(0x7000).may_name(700));
            list_names(0x7000, 500, 600 + fd);
        }
        let actions = Actions::by_list(0x7000);
        assert!(actions.may_name(700) && !actions.names(700) && !actions.names_for_stdio(700));
        list_names(0x7000, 700, 2);
        assert!(Actions::by_list(0x7000).names_for_stdio(700));
        list_begins(0x7000);
    }

    #[test]
    fn a_list_that_is_kept_is_known_however_many_come_and_go() {
        let _turn = ONE_AT_A_TIME.lock();
        list_names(0x8000, 5, 77);
        for list in (0x9000..).step_by(16).take(3 * LISTS) {
            list_names(list, 6, 78);
            list_begins(list);
        }
        assert!(Actions::by_list(0x8000).names(5));
        // Of so many that are kept the last.
        let lists = || (0x9000..).step_by(16).take(2 * LISTS);
        lists().for_each(|list| list_names(list, 6, 78));
        assert_eq!(lists().filter(|list| Actions::by_list(*list).names(6)).count(), LISTS);
        lists().chain([0x8000]).for_each(list_begins);
    }

    #[test]
    fn a_list_is_known_until_it_begins_anew() {
        let _turn = ONE_AT_A_TIME.lock();
        assert!(!Actions::by_list(0).closes(3) && !Actions::by_list(0x1000).closes(3));
        list_closes(0x1000, 10..=i32::MAX);
        list_closes(0x1000, 5..=5);
        let actions = Actions::by_list(0x1000);
        assert!(actions.closes(5) && !actions.closes(9) && actions.closes(10) && actions.closes(i32::MAX));
        assert!(!actions.sweeps(5) && !actions.sweeps(9) && actions.sweeps(10));
        assert!(!Actions::by_list(0x2000).closes(10));
        list_begins(0x1000);
        assert!(!Actions::by_list(0x1000).closes(10));
    }

    #[test]
    fn numbers_are_known_that_are_closed_one_by_one() {
        let _turn = ONE_AT_A_TIME.lock();
        let left_out = |fd: i32| fd % 100 == 50;
        for fd in (3..700).filter(|fd| !left_out(*fd)) {
            list_closes(0x3000, fd..=fd);
        }
        let actions = Actions::by_list(0x3000);
        assert!((3..700).all(|fd| actions.closes(fd) != left_out(fd)), "seven left out part eight runs");
        assert!(!actions.closes(2) && !actions.closes(700) && !actions.sweeps(3));
        // No place is left for more.
        list_closes(0x3000, 900..=900);
        assert!(!Actions::by_list(0x3000).closes(900));
        list_closes(0x3000, 901..=i32::MAX);
        let actions = Actions::by_list(0x3000);
        assert!(!actions.closes(900) && actions.closes(901) && actions.closes(3) && actions.sweeps(901));
        list_begins(0x3000);
        for fd in (3..700).rev() {
            list_closes(0x3000, fd..=fd);
        }
        let actions = Actions::by_list(0x3000);
        assert!((3..700).all(|fd| actions.closes(fd)) && !actions.closes(900), "downwards, and nothing of before");
        list_begins(0x3000);
    }
}

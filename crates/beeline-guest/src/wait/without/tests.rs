//! The rules of [`super`], on a made-up clock, for processes whose connections move what a test says.

use core::cell::Cell;

use super::*;

const HALF: usize = TRIAL as usize / 2;
const WHOLE: usize = ROUND as usize;
/// Windows without spins until a trial ends early.
const CLEAR: usize = PAIRS_CLEAR as usize;
/// When the tests' windows and rounds begin: in a round in which all take part.
const BEGINNING: u64 = (32 * ROUND) << WINDOW_BITS;

/// Of a process that has looked up in the round before how often it was taken a CPU: never until then.
fn begun() -> Without {
    let without = Without::new();
    without.looked_up.store((BEGINNING >> WINDOW_BITS) / ROUND - 1, Relaxed);
    without
}

/// A process whose connections move so much in a sixteenth of a window with this number, with spins or without.
struct Fake<F> {
    rate: F,
    moved: Cell<u64>,
    now: Cell<u64>,
    taken_a_round: u64,
    counts: bool,
    generation: u32,
}

fn fake<F: Fn(u64, bool) -> u64>(rate: F) -> Fake<F> {
    Fake { rate, moved: Cell::new(0), now: Cell::new(0), taken_a_round: TAKEN_LEAST, counts: true, generation: 0 }
}

/// One that gets so much done with spins, and so much without.
fn steady(with: u64, without: u64) -> Fake<impl Fn(u64, bool) -> u64> {
    fake(move |_, is_without| if is_without { without } else { with })
}

impl<F> Work for Fake<F> {
    fn moved(&self) -> Option<u64> {
        self.counts.then(|| self.moved.get())
    }

    fn taken(&self) -> u64 {
        (self.now.get().saturating_sub(BEGINNING) / (ROUND << WINDOW_BITS) + 1) * self.taken_a_round
    }

    fn generation(&self) -> u32 {
        self.generation
    }
}

/// Somebody comes by at the moment, and what gets done until the next does is done.
fn come_by<F: Fn(u64, bool) -> u64>(without: &Without, fake: &Fake<F>, now: u64) -> bool {
    fake.now.set(BEGINNING + now);
    let is_time = without.note_and_ask(BEGINNING + now, fake);
    fake.moved.set(fake.moved.get() + (fake.rate)(now >> WINDOW_BITS, is_time));
    is_time
}

/// Lets these windows go by. Returns how many of them ended without spins.
fn pass<F: Fn(u64, bool) -> u64>(without: &Without, fake: &Fake<F>, windows: core::ops::Range<u64>) -> usize {
    let sixteenth = 1 << (WINDOW_BITS - 4);
    let ends_without = |window: &u64| {
        (0..16).fold(false, |_, part| come_by(without, fake, (window << WINDOW_BITS) + part * sixteenth))
    };
    windows.filter(ends_without).count()
}

/// Lets these rounds go by.
fn rounds<F: Fn(u64, bool) -> u64>(without: &Without, fake: &Fake<F>, rounds: core::ops::Range<u64>) -> usize {
    pass(without, fake, rounds.start * ROUND..rounds.end * ROUND)
}

/// One that has found out that more gets done without spins, in the first round.
fn convinced() -> Without {
    let without = begun();
    rounds(&without, &steady(100, 150), 0..1);
    assert!(without.is_right.load(Relaxed));
    without
}

#[test]
fn what_gets_more_done_becomes_the_usual_way_and_is_tried_again() {
    let without = begun();
    let more = steady(100, 150);
    assert_eq!(pass(&without, &more, 0..TRIAL), HALF);
    assert_eq!(pass(&without, &more, TRIAL..ROUND), WHOLE - TRIAL as usize);
    assert_eq!(rounds(&without, &more, 1..2), WHOLE - HALF);
    let less = steady(150, 100);
    assert_eq!(
        rounds(&without, &less, 2..4),
        CLEAR + CLEAR,
        "it is no longer right after four pairs of the third round"
    );
}

#[test]
fn spins_stay_where_they_get_more_done_or_as_much_and_trials_become_rare() {
    for (with, less, windows) in [(150, 100, CLEAR), (120, 100, HALF), (100, 100, HALF), (100, 105, HALF), (0, 0, HALF)]
    {
        let without = begun();
        // In the rounds 0, 2, 4, 8, 16 and 32.
        assert_eq!(rounds(&without, &steady(with, less), 0..64), 6 * windows, "{with} {less}");
    }
}

#[test]
fn what_grows_or_falls_evenly_or_comes_in_a_burst_is_no_reason() {
    let growing = |window: u64, _| window * 10;
    let falling = |window: u64, _| 10_000 - window * 10;
    let in_a_burst = |window: u64, _| if window == 1 { 100_000 } else { 100 };
    let in_five_of_eight = |window: u64, is_without| if is_without && window % 16 < 10 { 150 } else { 100 };
    for rate in [&growing as &dyn Fn(u64, bool) -> u64, &falling, &in_a_burst, &in_five_of_eight] {
        let without = begun();
        rounds(&without, &fake(rate), 0..4);
        assert!(!without.is_right.load(Relaxed));
        assert_eq!(without.doublings.load(Relaxed), 2);
    }
}

#[test]
fn spins_come_back_where_less_of_them_gets_no_more_done() {
    for (with, less) in [(100, 100), (100, 103), (150, 100), (0, 0)] {
        let without = convinced();
        rounds(&without, &steady(with, less), 1..2);
        assert!(!without.is_right.load(Relaxed), "{with} {less}");
    }
    let without = convinced();
    rounds(&without, &steady(100, 104), 1..2);
    assert!(without.is_right.load(Relaxed));
}

#[test]
fn nobody_tries_who_has_cpus_enough_or_counts_nothing() {
    let has_cpus = Fake { taken_a_round: TAKEN_LEAST - 1, ..steady(100, 150) };
    assert_eq!(rounds(&begun(), &has_cpus, 0..8), 0);
    let counts_nothing = Fake { counts: false, ..steady(100, 150) };
    assert_eq!(rounds(&begun(), &counts_nothing, 0..8), 0);
    let without = Without::new();
    assert_eq!(rounds(&without, &steady(100, 100), 0..1), 0, "what was before the first look is of no time known");
    assert_eq!(rounds(&without, &steady(100, 100), 1..2), HALF);
}

#[test]
fn who_does_without_goes_on_with_trials_and_only_while_there_is_something_to_count() {
    let without = convinced();
    let has_cpus = Fake { taken_a_round: 0, ..steady(100, 150) };
    assert_eq!(rounds(&without, &has_cpus, 1..2), WHOLE - HALF);
    let counts_nothing = Fake { counts: false, ..steady(100, 150) };
    assert_eq!(rounds(&without, &counts_nothing, 2..3), 0);
}

#[test]
fn windows_that_nobody_saw_end_tell_nothing_and_nothing_is_known_after_many_trials() {
    let without = convinced();
    let more = steady(100, 150);
    // Every second window is noticed late: of each the beginning or the end.
    let late = |round: u64| {
        for window in round * ROUND..(round + 1) * ROUND {
            come_by(&without, &more, (window << WINDOW_BITS) + if window % 2 == 1 { LATE_TICKS + 1 } else { 0 });
        }
        assert_eq!(without.evidence.pairs(), 0);
        without.is_right.load(Relaxed)
    };
    let last = u64::from(TRIALS_IN_VAIN);
    assert!((1..last).all(late));
    assert!(late(last));
    assert!(!late(last + 1));
}

#[test]
fn a_trial_ends_at_a_fork_and_where_the_clock_steps_back() {
    // One that begins in the last windows of a trial is none.
    let half = TRIAL - 2;
    let without = begun();
    let more = steady(100, 150);
    pass(&without, &more, 0..half);
    let child = Fake { generation: 1, ..steady(100, 150) };
    assert_eq!(pass(&without, &child, half..ROUND), 0);
    pass(&without, &more, ROUND * 4..ROUND * 4 + half);
    assert_eq!(pass(&without, &more, half..ROUND), 0);
    assert_eq!(pass(&without, &more, ROUND * 5..ROUND * 5 + TRIAL), HALF);
}

#[test]
fn who_comes_by_with_an_older_clock_changes_nothing() {
    let without = begun();
    let more = steady(100, 150);
    pass(&without, &more, 0..5);
    let (window, pairs) = (without.window.load(Relaxed), without.evidence.pairs());
    come_by(&without, &more, (4 << WINDOW_BITS) - 1);
    assert_eq!((without.window.load(Relaxed), without.evidence.pairs()), (window, pairs));
}

#[test]
fn those_who_take_part_seldom_do_so_when_all_do() {
    let (seldom, often) = (begun(), begun());
    let (equal, other) = (steady(100, 100), steady(100, 100));
    rounds(&seldom, &equal, 0..64);
    let mut together = 0;
    for round in 64..128 {
        often.doublings.store(0, Relaxed);
        often.evidence.forget();
        for window in round * ROUND..(round + 1) * ROUND {
            let is_time = come_by(&often, &other, window << WINDOW_BITS);
            if come_by(&seldom, &equal, window << WINDOW_BITS) {
                assert!(is_time);
                together += 1;
            }
        }
    }
    assert_eq!(together, 2 * HALF);
}

#[test]
fn a_process_knows_how_often_it_was_taken_a_cpu() {
    let told = || {
        // SAFETY: all-zero is a valid value of this plain C struct, and getrusage(2) writes one.
        let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: a live local of that type.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
        usage.ru_nivcsw as u64
    };
    let (before, taken, after) = (told(), Process.taken(), told());
    assert!((before..=after).contains(&taken), "{before} {taken} {after}");
}

#[test]
fn a_window_whose_beginning_was_noted_for_another_tells_nothing() {
    let without = begun();
    let more = steady(100, 150);
    pass(&without, &more, 0..3);
    assert_eq!(without.evidence.pairs(), 1);
    without.since.store(BEGINNING + (1 << WINDOW_BITS), Relaxed);
    pass(&without, &more, 3..5);
    assert_eq!(without.evidence.pairs(), 1);
}

#[test]
fn what_is_missing_while_a_connection_closes_is_no_gain_of_the_next_window() {
    let without = begun();
    let more = steady(100, 150);
    pass(&without, &more, 0..3);
    let moved = more.moved.replace(0);
    come_by(&without, &more, 3 << WINDOW_BITS);
    more.moved.set(moved);
    pass(&without, &more, 4..8);
    let [bytes, _] = without.evidence.without.each_ref().map(|figure| figure.load(Relaxed));
    assert!(bytes < 100 * moved, "{bytes} {moved}");
    pass(&without, &more, 8..TRIAL);
    let pairs = without.evidence.pairs.load(Relaxed);
    assert_eq!((pairs % WON, pairs / WON), (14, 14));
}

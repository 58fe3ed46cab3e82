//! Doing without spins, now and then and all at once: whether those who share these CPUs get more done so.
//!
//! A spin that is won shows the spinner what it saved, never what it cost: on shared CPUs it may have kept from running
//! a thread of the very conversation that it waited for. That shows in what gets done, and only where all stop at one
//! time, as two that each gain from the other's spin gain nothing by stopping alone.
//!
//! 1. Time is cut into windows by a clock that the processes of a host have in common, so they agree without a word.
//!    The first windows of a round are a trial: in half of them nobody spins who takes part. Those lie so that what
//!    grows or falls evenly meanwhile favours neither half.
//! 2. A process takes part while it is kept from its CPUs by others, and while it does without spins.
//! 3. What it gets done are the bytes that its connections move. Two windows side by side, of each half one, are a
//!    pair. A window counts if its beginning and its end were noticed soon.
//! 4. [`PAIRS`] pairs are a verdict: those of one trial, or of as many as it takes. To do without spins is right if
//!    more was done so by a sixteenth, and in three of four pairs; it stays right while more is done so by a
//!    thirty-second, and in half of them. Otherwise spins are right, also where nothing is known any more: no verdict
//!    for [`TRIALS_IN_VAIN`] trials. [`PAIRS_CLEAR`] pairs end a trial for spins, where spins won all of them and a
//!    quarter less was done without.
//! 5. A verdict that changes nothing halves how often the process takes part while it is kept from its CPUs: in rounds
//!    whose numbers are multiples of 2, 4, up to 32. So those who take part seldom do so together.
//! 6. A trial does not go on in a child of a fork, nor after a clock has stepped back. A child begins with what its
//!    parent has found out.
//!
//! Where the clock is not the time-stamp counter but the time, processes of different time namespaces do not agree. A
//! bridge and a relay, and whoever polls, know nothing of this. Nor does it help where a quota keeps a process from
//! running: what spins waste of it is missed in windows of both halves.
//!
//! All of it is a choice of speed: threads that come by at one time may spoil each other's figures, and nothing else.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys;

use super::ticks;
use crate::{process, stats};

/// Ticks of a window: some 13 ms, and some slices of the scheduler's.
const WINDOW_BITS: u32 = 25;
/// Windows of a round, and of the trial at its beginning.
const ROUND: u64 = 64;
const TRIAL: u64 = 32;
/// A window's beginning and end may be noticed so late.
const LATE_TICKS: u64 = 1 << (WINDOW_BITS - 3);
/// The beginning of a window that does not count.
const NEVER: u64 = u64::MAX;
/// Pairs of a verdict.
const PAIRS: u32 = 12;
/// The same where it is clear.
const PAIRS_CLEAR: u32 = 4;
/// Trials in a row that give no verdict, after which nothing is known.
const TRIALS_IN_VAIN: u32 = 8;
/// How often verdicts that change nothing halve the number of trials.
const DOUBLINGS: u32 = 5;
/// The same while a process that does without is not kept from its CPUs.
const DOUBLINGS_UNSURE: u32 = 2;
/// Times in a round that a process was taken its CPU: fewer mean that it has enough of them.
const TAKEN_LEAST: u64 = 32;

static WITHOUT: Without = Without::new();

/// Whether nobody who takes part spins at the moment.
pub(super) fn note_and_ask() -> bool {
    // Which windows the unit tests of waits happen to be in must not matter to them.
    !cfg!(test) && WITHOUT.note_and_ask(ticks(), &Process)
}

/// What a trial has to know of the process.
trait Work {
    /// Bytes moved since the process began; none if they are not counted.
    fn moved(&self) -> Option<u64>;
    /// How often others were given a CPU that a thread of it wanted on.
    fn taken(&self) -> u64;
    /// Another number in a child of a fork.
    fn generation(&self) -> u32;
}

/// What was found out since the last verdict, in pairs of windows.
struct Evidence {
    /// Bytes and ticks of the windows with spins, and of those without.
    with: [AtomicU64; 2],
    without: [AtomicU64; 2],
    /// Pairs, and from [`WON`] on those of which the window without spins had more done.
    pairs: AtomicU32,
}

/// One pair that was won by the window without spins.
const WON: u32 = 1 << 16;

impl Evidence {
    const fn new() -> Self {
        Self {
            with: [const { AtomicU64::new(0) }; 2],
            without: [const { AtomicU64::new(0) }; 2],
            pairs: AtomicU32::new(0),
        }
    }

    fn forget(&self) {
        self.with.iter().chain(&self.without).for_each(|figure| figure.store(0, Relaxed));
        self.pairs.store(0, Relaxed);
    }

    fn add(&self, with: Done, without: Done) {
        for (sums, done) in [(&self.with, with), (&self.without, without)] {
            for (sum, figure) in sums.iter().zip([done.bytes, done.ticks]) {
                sum.store(sum.load(Relaxed).saturating_add(figure), Relaxed);
            }
        }
        let won = if without.rate() > with.rate() { WON } else { 0 };
        self.pairs.store(self.pairs.load(Relaxed).wrapping_add(won + 1), Relaxed);
    }

    fn pairs(&self) -> u32 {
        self.pairs.load(Relaxed) % WON
    }

    fn rates(&self) -> [u64; 2] {
        [&self.with, &self.without]
            .map(|[bytes, ticks]| Done { bytes: bytes.load(Relaxed), ticks: ticks.load(Relaxed) }.rate())
    }

    /// Whether it is clear that more was done with spins.
    fn speaks_for_spins(&self) -> bool {
        let (pairs, [with, without]) = (self.pairs.load(Relaxed), self.rates());
        pairs % WON >= PAIRS_CLEAR && pairs / WON == 0 && without < with - with / 4
    }

    /// Whether more was done without spins: by this part of what was done with them, and in so many quarters of the
    /// pairs.
    fn speaks_for_less(&self, part: u64, quarters: u32) -> bool {
        let (pairs, [with, without]) = (self.pairs.load(Relaxed), self.rates());
        without > with.saturating_add(with / part) && pairs / WON * 4 >= pairs % WON * quarters
    }
}

/// What one window has had done.
#[derive(Clone, Copy)]
struct Done {
    bytes: u64,
    ticks: u64,
}

impl Done {
    /// Bytes in 2^32 ticks.
    fn rate(self) -> u64 {
        u64::try_from((u128::from(self.bytes) << 32) / u128::from(self.ticks.max(1))).unwrap_or(u64::MAX)
    }
}

/// Aligned, so that what is written elsewhere does not take the line that every long wait reads.
#[repr(align(128))]
struct Without {
    /// Whether it is right to do without spins.
    is_right: AtomicBool,
    /// The window in which somebody came by last.
    window: AtomicU64,
    /// The round of the present trial, plus one; 0 for none.
    trial: AtomicU64,
    /// The round of the last one.
    tried: AtomicU64,
    /// When the window that is not closed yet was noticed, and what had been moved then.
    since: AtomicU64,
    moved: AtomicU64,
    /// What the first window of a pair has had done; no ticks for none.
    first: [AtomicU64; 2],
    evidence: Evidence,
    /// Trials since the last verdict.
    in_vain: AtomicU32,
    /// It takes part in rounds whose numbers are multiples of 2 to the power of this.
    doublings: AtomicU32,
    /// Whether others keep the process from its CPUs, by how often it had been taken one when that was looked up, and
    /// in which round that was.
    is_kept: AtomicBool,
    taken: AtomicU64,
    looked_up: AtomicU64,
    generation: AtomicU32,
}

impl Without {
    const fn new() -> Self {
        Self {
            is_right: AtomicBool::new(false),
            window: AtomicU64::new(0),
            trial: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            since: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            first: [const { AtomicU64::new(0) }; 2],
            evidence: Evidence::new(),
            in_vain: AtomicU32::new(0),
            doublings: AtomicU32::new(0),
            is_kept: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            looked_up: AtomicU64::new(0),
            generation: AtomicU32::new(0),
        }
    }

    fn note_and_ask(&self, now: u64, work: &impl Work) -> bool {
        let window = now >> WINDOW_BITS;
        let last = self.window.load(Relaxed);
        if last != window {
            self.enter(last, now, work);
        }
        match window % ROUND {
            place @ ..TRIAL if self.trial.load(Relaxed) == window / ROUND + 1 => is_without(place),
            _ => self.is_right.load(Relaxed),
        }
    }

    /// Somebody comes by in another window than the one that was the last.
    #[cold]
    fn enter(&self, last: u64, now: u64, work: &impl Work) {
        let window = now >> WINDOW_BITS;
        // Another thread that has read the clock a moment later may have come by sooner.
        if window + 1 == last || self.window.compare_exchange(last, window, Relaxed, Relaxed).is_err() {
            return;
        }
        let generation = work.generation();
        if self.generation.swap(generation, Relaxed) != generation || window < last {
            self.trial.store(0, Relaxed);
        }
        let (round, place) = (window / ROUND, window % ROUND);
        self.look_up(round, work);
        let trial = self.trial.load(Relaxed);
        if trial != 0 {
            self.close(last, now, work);
            if place >= TRIAL || trial != round + 1 || self.evidence.speaks_for_spins() {
                self.trial.store(0, Relaxed);
                self.judge();
            }
        } else if place < TRIAL && place.is_multiple_of(4) && self.takes_part(round) {
            self.begin(round, now, work);
        }
    }

    /// Whether others keep the process from its CPUs: once in a round. The first time there is nothing to compare with.
    fn look_up(&self, round: u64, work: &impl Work) {
        let before = self.looked_up.swap(round, Relaxed);
        if before == round {
            return;
        }
        let taken = work.taken();
        let more = taken.saturating_sub(self.taken.swap(taken, Relaxed));
        let is_kept = before != 0 && before < round && more / (round - before) >= TAKEN_LEAST;
        self.is_kept.store(is_kept, Relaxed);
    }

    fn takes_part(&self, round: u64) -> bool {
        if self.tried.load(Relaxed) == round {
            return false;
        }
        let doublings = self.doublings.load(Relaxed);
        let doublings = match (self.is_kept.load(Relaxed), self.is_right.load(Relaxed)) {
            (false, false) => return false,
            // The reason to do without may be gone.
            (false, true) => doublings.min(DOUBLINGS_UNSURE),
            (true, _) => doublings,
        };
        round.is_multiple_of(1 << doublings)
    }

    fn begin(&self, round: u64, now: u64, work: &impl Work) {
        match work.moved() {
            Some(moved) => {
                self.moved.store(moved, Relaxed);
                self.since.store(now, Relaxed);
                self.first.iter().for_each(|figure| figure.store(0, Relaxed));
                self.tried.store(round, Relaxed);
                self.trial.store(round + 1, Relaxed);
            }
            None => self.is_right.store(false, Relaxed),
        }
    }

    /// The window `last` of a trial is over.
    fn close(&self, last: u64, now: u64, work: &impl Work) {
        let Some(moved) = work.moved() else { return self.trial.store(0, Relaxed) };
        let bytes = moved.checked_sub(self.moved.swap(moved, Relaxed));
        // While a connection closes it may be missing, and all that it ever moved be in the next window.
        let since = self.since.swap(if bytes.is_some() { now } else { NEVER }, Relaxed);
        let first = self.first.each_ref().map(|figure| figure.swap(0, Relaxed));
        let is_soon = |noticed: u64, window: u64| noticed.wrapping_sub(window << WINDOW_BITS) <= LATE_TICKS;
        let Some(bytes) = bytes.filter(|_| is_soon(since, last) && is_soon(now, last + 1)) else { return };
        let done = Done { bytes, ticks: now.saturating_sub(since) };
        let place = last % ROUND;
        match (place % 2, first) {
            (0, _) => {
                self.first.iter().zip([done.bytes, done.ticks]).for_each(|(first, figure)| first.store(figure, Relaxed))
            }
            (_, [_, 0]) => {}
            (_, [bytes, ticks]) if is_without(place) => self.evidence.add(Done { bytes, ticks }, done),
            (_, [bytes, ticks]) => self.evidence.add(done, Done { bytes, ticks }),
        }
    }

    /// A trial is over.
    fn judge(&self) {
        let is_right = self.is_right.load(Relaxed);
        let verdict = match is_right {
            _ if self.evidence.speaks_for_spins() => false,
            _ if self.evidence.pairs() < PAIRS => {
                if self.in_vain.fetch_add(1, Relaxed) < TRIALS_IN_VAIN {
                    if is_right {
                        // Whether it still is shall be known soon.
                        self.doublings.store(0, Relaxed);
                    }
                    return;
                }
                false
            }
            false => self.evidence.speaks_for_less(16, 3),
            true => self.evidence.speaks_for_less(32, 2),
        };
        self.in_vain.store(0, Relaxed);
        self.evidence.forget();
        self.is_right.store(verdict, Relaxed);
        let doublings = if verdict == is_right { (self.doublings.load(Relaxed) + 1).min(DOUBLINGS) } else { 0 };
        self.doublings.store(doublings, Relaxed);
    }
}

/// Whether nobody spins in this window of a trial: of each four in the middle two.
fn is_without(place: u64) -> bool {
    matches!(place % 4, 1 | 2)
}

/// This process.
struct Process;

impl Work for Process {
    fn moved(&self) -> Option<u64> {
        stats::moved()
    }

    fn taken(&self) -> u64 {
        if process::is_sealed() { 0 } else { sys::involuntary_switches() }
    }

    fn generation(&self) -> u32 {
        process::owner()
    }
}

#[cfg(test)]
mod tests;

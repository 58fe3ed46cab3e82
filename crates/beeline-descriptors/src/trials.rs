//! Two ways to do the same, of which the machine decides which is faster: both are tried while the connection runs.
//!
//! 1. Time is taken of whole calls and added up over windows of so many bytes.
//! 2. Now and then one window goes the other way. If that costs less by a certain part, it is the way from then on; if
//!    not, the next trial comes after twice as many windows, up to a bound. It ends at once when it has cost what a
//!    whole window of the usual way does.
//! 3. A window that costs twice as much as those before it is followed by a trial: something has changed.
//! 4. A ring hides what a way costs the receiver until it is full. So a window is as long as four rings, at whose ends
//!    it is full or empty, which is an eighth of the cost at most where both ends work equally; and after each change
//!    of the way as much as a ring is not counted, because that is read as the other way has left it. (With windows of
//!    an eighth of a ring, messages went around the caches on one CPU of an EPYC, with 12 GB/s instead of 17.)
//!
//! All of it is only a choice of speed: concurrent calls may spoil each other's figures, and nothing else.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// How trials are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub window_bytes: u64,
    /// Bytes that are not counted after a change of the way.
    pub settling_bytes: u64,
    /// The other way must cost less by this part of what the usual way costs: 4 is a quarter.
    pub gain: u64,
    /// Windows between the first trials, and between those that keep failing.
    pub pause_min: u32,
    pub pause_max: u32,
}

impl Terms {
    /// For a lane with rings of so many bytes.
    pub const fn of_ring(ring_bytes: u32, gain: u64, pause_min: u32) -> Self {
        let ring = ring_bytes as u64;
        Self { window_bytes: ring.saturating_mul(4), settling_bytes: ring, gain, pause_min, pause_max: 256 }
    }

    /// What is known before anything was tried.
    pub const fn nothing_found(self) -> Found {
        Found { second: false, pause: self.pause_min }
    }
}

/// What was found so far, for another connection to begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Whether the second way was faster.
    pub second: bool,
    /// Windows before the next trial.
    pub pause: u32,
}

/// What is known of both ways. Valid when zeroed.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Whether the usual way is the second.
    second: AtomicBool,
    /// Whether the present window goes the other way.
    trial: AtomicBool,
    /// Ticks and bytes of the present window.
    ticks: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that are not counted.
    settling: AtomicU64,
    /// What a window of the usual way costs, in ticks; 0 before the first.
    cost: AtomicU64,
    /// Windows before the next trial.
    left: AtomicU32,
    /// Windows between the last trial and the next.
    pause: AtomicU32,
}

impl Trials {
    /// Begins anew with what was found elsewhere.
    pub fn reset(&self, found: Found) {
        self.second.store(found.second, Relaxed);
        self.trial.store(false, Relaxed);
        for figure in [&self.ticks, &self.bytes, &self.settling, &self.cost] {
            figure.store(0, Relaxed);
        }
        self.pause.store(found.pause, Relaxed);
        self.left.store(found.pause, Relaxed);
    }

    /// Whether the next call goes the second way.
    #[inline]
    pub fn goes_second(&self) -> bool {
        self.second.load(Relaxed) != self.trial.load(Relaxed)
    }

    /// What was found so far.
    pub fn found(&self) -> Found {
        Found { second: self.second.load(Relaxed), pause: self.pause.load(Relaxed) }
    }

    /// A call of so many bytes took so long.
    pub fn took(&self, terms: Terms, bytes: usize, ticks: u64) {
        let settling = self.settling.load(Relaxed);
        if settling != 0 {
            return self.settling.store(settling.saturating_sub(bytes as u64), Relaxed);
        }
        let bytes = self.bytes.load(Relaxed).saturating_add(bytes as u64);
        let ticks = self.ticks.load(Relaxed).saturating_add(ticks);
        let is_lost = self.trial.load(Relaxed) && ticks > self.cost.load(Relaxed);
        if bytes < terms.window_bytes && !is_lost {
            self.bytes.store(bytes, Relaxed);
            self.ticks.store(ticks, Relaxed);
            return;
        }
        self.bytes.store(0, Relaxed);
        self.ticks.store(0, Relaxed);
        let cost = (u128::from(ticks) * u128::from(terms.window_bytes) / u128::from(bytes.max(1))) as u64;
        let way = self.goes_second();
        self.window(terms, cost.max(1));
        if self.goes_second() != way {
            self.settling.store(terms.settling_bytes, Relaxed);
        }
    }

    fn window(&self, terms: Terms, cost: u64) {
        let usual = self.cost.load(Relaxed);
        if self.trial.swap(false, Relaxed) {
            let better = cost < usual - usual / terms.gain;
            let pause = match better {
                true => terms.pause_min,
                false => self.pause.load(Relaxed).saturating_mul(2).min(terms.pause_max),
            };
            if better {
                self.second.store(!self.second.load(Relaxed), Relaxed);
                self.cost.store(cost, Relaxed);
            }
            self.pause.store(pause, Relaxed);
            self.left.store(pause, Relaxed);
            return;
        }
        let left = match self.left.load(Relaxed) {
            _ if usual != 0 && cost / 2 > usual => 0,
            left => left.saturating_sub(1),
        };
        self.cost.store(if usual == 0 { cost } else { usual - usual / 8 + cost / 8 }, Relaxed);
        self.left.store(left, Relaxed);
        self.trial.store(left == 0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { window_bytes: 1000, settling_bytes: 250, gain: 8, pause_min: 2, pause_max: 64 };

    /// Sends `windows` windows where a window costs so much; returns how many bytes in a hundred went the second way.
    fn run(trials: &Trials, windows: u32, first: u64, second: u64) -> u32 {
        let mut went = 0;
        for _ in 0..windows * 10 {
            let goes_second = trials.goes_second();
            went += u32::from(goes_second);
            trials.took(TERMS, 100, if goes_second { second } else { first } / 10);
        }
        went * 10 / windows
    }

    #[test]
    fn the_cheaper_way_is_taken_and_found_again_when_the_machine_changes() {
        let trials = Trials::default();
        trials.reset(TERMS.nothing_found());
        assert!(run(&trials, 1000, 10_000, 8_000) > 80);
        assert!(run(&trials, 1000, 10_000, 8_000) > 95);
        assert!(run(&trials, 1000, 8_000, 10_000) < 40);
        assert!(run(&trials, 1000, 8_000, 10_000) < 5);
        assert!(!trials.found().second);
    }

    #[test]
    fn a_small_difference_changes_nothing_and_trials_that_fail_become_rare() {
        let trials = Trials::default();
        for second in [false, true] {
            trials.reset(Found { second, ..TERMS.nothing_found() });
            let went = run(&trials, 2000, 10_000, 9_500);
            assert!(if second { went > 95 } else { went < 5 }, "{went}");
            assert_eq!(trials.found(), Found { second, pause: TERMS.pause_max });
        }
    }

    /// What the first way leaves behind is paid by whoever comes next: it must not decide against the second.
    #[test]
    fn what_the_other_way_left_behind_is_not_counted() {
        let trials = Trials::default();
        trials.reset(TERMS.nothing_found());
        let mut before = false;
        let mut left_behind = 0;
        for _ in 0..1000 {
            let goes_second = trials.goes_second();
            if goes_second && !before {
                left_behind = 2;
            }
            before = goes_second;
            let dear = left_behind != 0;
            left_behind = left_behind.max(1) - 1;
            trials.took(
                TERMS,
                100,
                if dear {
                    5_000
                } else if goes_second {
                    800
                } else {
                    1_000
                },
            );
        }
        assert!(trials.found().second);
    }
}

//! What the bridge itself adds to the trip of a message, apart from the fabric's part in it.
//!
//! A small message's way one way is made of six parts:
//!
//! | part | where | told as |
//! |---|---|---|
//! | the sender's bridge looks at the lane again | its bridge | half of `look`, and half of `ask` |
//! | it takes the bytes and writes them into a message | its bridge | `outward` |
//! | the fabric takes the message | the provider | `send` |
//! | the wire | the network | not seen here |
//! | the receiver's bridge asks the fabric again | its bridge | half of `look`, and half of `ask` |
//! | it puts the bytes into the other lane, and wakes who sleeps there | its bridge | `inward` |
//!
//! `look` is what one round over links and lanes takes when there is nothing new, `ask` what the provider takes to say
//! that it has nothing; for the `tcp` provider that is a system call. The bridge's own share is `outward` + `inward` +
//! `look`. Times are medians, in nanoseconds, of the last [`SAMPLES`] rounds of each kind, while the setting `measure`
//! is 1; each holds one reading of the clock.

use beeline_status::document::Medians;

/// Rounds that are remembered of each kind.
const SAMPLES: usize = 4096;

/// Durations of one kind of work.
#[derive(Debug, Default)]
pub struct Samples {
    kept: Vec<u32>,
    next: usize,
}

impl Samples {
    pub fn add(&mut self, ns: u64) {
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        if self.kept.len() < SAMPLES {
            self.kept.push(ns);
        } else if let Some(place) = self.kept.get_mut(self.next) {
            *place = ns;
        }
        self.next = self.next.wrapping_add(1) % SAMPLES;
    }

    /// The median; `None` without samples.
    pub fn median(&self) -> Option<u32> {
        let mut sorted = self.kept.clone();
        let middle = sorted.len() / 2;
        (!sorted.is_empty()).then(|| *sorted.select_nth_unstable(middle).1)
    }
}

/// The stop-watch of the engine's rounds.
#[derive(Debug, Default)]
pub struct OwnTime {
    on: bool,
    /// When the present part of the round began.
    since_ns: u64,
    /// The provider's time in that part.
    fabric_ns: u64,
    look: Samples,
    ask: Samples,
    outward: Samples,
    send: Samples,
    inward: Samples,
}

/// What the parts of one round took, and whether they found something to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    pub came: Option<(bool, u64)>,
    pub moved: Option<(bool, u64)>,
    pub sent: Option<(bool, u64)>,
}

impl OwnTime {
    /// Switches the stop-watch.
    pub fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// A round begins.
    pub fn begin(&mut self, clock: impl FnOnce() -> u64) {
        if self.on {
            (self.since_ns, self.fabric_ns) = (clock(), 0);
        }
    }

    /// A part of the round is over: what it took without the provider's time.
    pub fn lap(&mut self, found: bool, clock: impl FnOnce() -> u64) -> Option<(bool, u64)> {
        if !self.on {
            return None;
        }
        let now_ns = clock();
        let took = now_ns.saturating_sub(self.since_ns).saturating_sub(self.fabric_ns);
        (self.since_ns, self.fabric_ns) = (now_ns, 0);
        Some((found, took))
    }

    /// Makes a call of the provider, whose time is not the bridge's.
    pub fn outside<T>(&mut self, clock: impl Fn() -> u64, call: impl FnOnce() -> T) -> T {
        if !self.on {
            return call();
        }
        let before_ns = clock();
        let result = call();
        self.fabric_ns = self.fabric_ns.saturating_add(clock().saturating_sub(before_ns));
        result
    }

    /// What the provider has taken of the present part so far.
    pub fn outside_ns(&self) -> u64 {
        self.fabric_ns
    }

    /// A round is over, in which the provider took so long to say what it had.
    pub fn end(&mut self, round: Round, asked_ns: u64) {
        let (Some((came, inward)), Some((moved, outward)), Some((sent, send))) = (round.came, round.moved, round.sent)
        else {
            return;
        };
        if came && !moved {
            self.inward.add(inward);
        }
        if moved && !came {
            self.outward.add(outward);
        }
        if sent {
            self.send.add(send);
        }
        if !came && !moved && !sent {
            self.look.add(inward.saturating_add(outward).saturating_add(send));
            if asked_ns != 0 {
                self.ask.add(asked_ns);
            }
        }
    }

    /// What was found.
    #[must_use]
    pub fn medians(&self) -> Medians {
        let (look, outward, inward) = (self.look.median(), self.outward.median(), self.inward.median());
        let own = look.zip(outward).zip(inward).map(|((a, b), c)| a.saturating_add(b).saturating_add(c));
        Medians { look, ask: self.ask.median(), outward, send: self.send.median(), inward, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A clock that goes on by what it is told.
    fn round(own: &mut OwnTime, inward: (bool, u64, u64), outward: (bool, u64), send: (bool, u64)) {
        let time = Cell::new(1_000_000);
        let clock = || time.get();
        let pass = |ns| time.set(time.get() + ns);
        own.begin(clock);
        own.outside(clock, || pass(inward.1));
        let asked_ns = own.outside_ns();
        pass(inward.2);
        let came = own.lap(inward.0, clock);
        pass(outward.1);
        let moved = own.lap(outward.0, clock);
        pass(send.1);
        let sent = own.lap(send.0, clock);
        own.end(Round { came, moved, sent }, asked_ns);
    }

    #[test]
    fn each_part_is_told_apart() {
        let mut own = OwnTime::default();
        own.set(true);
        round(&mut own, (false, 300, 10), (false, 20), (false, 5));
        round(&mut own, (true, 700, 250), (false, 20), (false, 5));
        round(&mut own, (false, 300, 10), (true, 180), (true, 900));
        let medians = own.medians();
        assert_eq!((medians.look, medians.ask), (Some(35), Some(300)));
        assert_eq!((medians.inward, medians.outward, medians.send), (Some(250), Some(180), Some(900)));
        assert_eq!(medians.own, Some(35 + 250 + 180));
    }

    #[test]
    fn nothing_is_measured_unless_asked_for() {
        let mut own = OwnTime::default();
        round(&mut own, (true, 700, 250), (true, 20), (true, 5));
        assert!(own.medians().own.is_none() && own.medians().send.is_none());
    }

    #[test]
    fn the_median_is_of_the_last_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.median(), None);
        for _ in 0..SAMPLES {
            samples.add(1);
        }
        for ns in 0..SAMPLES as u64 {
            samples.add(ns);
        }
        assert_eq!(samples.median(), Some(SAMPLES as u32 / 2));
        samples.add(u64::MAX);
        assert_eq!(samples.kept.len(), SAMPLES);
    }
}

//! How fast each rail is, and which one would deliver a chunk first.
//!
//! 1. A rail's rate is what was measured while it was busy, averaged with weight 1/4 for the newest sample. A sample is
//!    at least [`SAMPLE_BYTES`], and as much as was in flight when it began, that were acknowledged without the rail
//!    running empty in between: what a rail delivers that has nothing to do says nothing, nor does what is acknowledged
//!    all at once because it waited for another rail. Acknowledgements come in the order of the stream, so bytes of a
//!    rail that was early are acknowledged with those of one that was late, and each rail seems to be as fast as its
//!    share is large, whatever that is. So it is noted which rail each transfer's acknowledgements waited for
//!    ([`Rates::waited_for`]): a rail that was waited for more than others was given too much, and its sample counts up
//!    to an eighth less; one that was waited for less than others, as much more. What the latter delivered is what it
//!    was given, whatever it could, so what was believed of it before counts, if that is more. (Else its share shrinks
//!    without end: what it is given is rounded down to whole chunks, which is more than an eighth where these are few.)
//! 2. Without a sample of the last [`SAMPLE_LIFE_NS`] the nominal speed counts. So a rail that once was slow and was
//!    therefore given nothing is tried again.
//! 3. The next chunk goes to the rail on which it would be there first: (bytes in flight + chunk) / rate. Over a long
//!    transfer the shares are then in proportion to the rates, and no rail ends long after the others.
//!    A rail that is late, because for longer than what it holds should take nothing was acknowledged, is as much later
//!    with the next chunk: one that hangs is passed over before anybody knows that it is dead.
//! 4. If that rail has no room, the chunk waits for it rather than taking one on which it would be there later. The
//!    rail holds bytes, so it has an acknowledgement to come, or goes down, and then the question is asked again.

use super::RailLife;

/// The smallest sample.
const SAMPLE_BYTES: u64 = 1 << 20;
/// How long a sample is believed.
const SAMPLE_LIFE_NS: u64 = 2_000_000_000;

/// The rails towards one peer.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    rails: Vec<State>,
    /// What all rails together were waited for.
    waited_ns: u64,
}

#[derive(Clone, Debug)]
struct State {
    nominal: u64,
    in_flight_max: u64,
    in_flight: u64,
    life: u32,
    is_up: bool,
    measured: Option<Measured>,
    /// When something was acknowledged last, or sent while nothing was in flight.
    moved_ns: u64,
    /// How long acknowledgements waited for this rail.
    waited_ns: u64,
    sample: Option<Sample>,
}

/// A sample that is being taken.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Since when the rail has been busy.
    since_ns: u64,
    /// What was acknowledged since then, and what is to be.
    bytes: u64,
    enough_bytes: u64,
    /// What acknowledgements had waited for then: for this rail, and for all of them.
    waited_ns: u64,
    all_waited_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes_per_s: u64,
    at_ns: u64,
}

impl Rates {
    /// Without rails.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rail, which is up, and returns its first life. `in_flight_bytes_max` is how much it may hold
    /// unacknowledged; one chunk is always allowed.
    pub fn add(&mut self, nominal_mbps: u32, in_flight_bytes_max: u64) -> RailLife {
        self.rails.push(State::new(nominal_mbps, in_flight_bytes_max, 0));
        RailLife { rail: self.rails.len().saturating_sub(1), life: 0 }
    }

    /// Another rail, which is up, takes the place of one that is down: in a new life, and with nothing of the other's.
    /// `None` when that one is not down.
    pub fn replace(&mut self, rail: usize, nominal_mbps: u32, in_flight_bytes_max: u64) -> Option<RailLife> {
        let life = self.rails.get(rail).filter(|state| !state.is_up)?.life.wrapping_add(1);
        *self.rails.get_mut(rail)? = State::new(nominal_mbps, in_flight_bytes_max, life);
        Some(RailLife { rail, life })
    }

    /// How many rails there are and were, without those that others have taken the places of.
    pub fn places(&self) -> usize {
        self.rails.len()
    }

    /// Bytes in flight on a rail.
    pub fn in_flight(&self, rail: usize) -> u64 {
        self.rails.get(rail).map_or(0, |state| state.in_flight)
    }

    /// The rate that was measured last, if it is still believed.
    pub fn measured(&self, rail: usize, now_ns: u64) -> Option<u64> {
        self.rails.get(rail).and_then(|state| state.measured_now(now_ns))
    }

    /// The rail for a chunk, among those allowed (rules 3 and 4); `None` to wait, or if none of them is up.
    pub fn pick(&self, allowed: &[usize], chunk_bytes: u64, now_ns: u64) -> Option<RailLife> {
        let first = allowed
            .iter()
            .filter_map(|&rail| Some((rail, self.rails.get(rail).filter(|state| state.is_up)?)))
            .min_by_key(|(rail, state)| (state.finish_ns(chunk_bytes, now_ns), *rail));
        let (rail, state) = first?;
        let has_room = state.in_flight == 0 || state.in_flight.saturating_add(chunk_bytes) <= state.in_flight_max;
        has_room.then_some(RailLife { rail, life: state.life })
    }

    /// A chunk was given to a rail.
    pub fn sent(&mut self, on: RailLife, bytes: u64, now_ns: u64) {
        let all_waited_ns = self.waited_ns;
        let Some(state) = self.living(on) else { return };
        if state.in_flight == 0 {
            state.moved_ns = now_ns;
        }
        state.in_flight = state.in_flight.saturating_add(bytes);
        let waited_ns = state.waited_ns;
        state.sample.get_or_insert(Sample {
            since_ns: now_ns,
            bytes: 0,
            enough_bytes: SAMPLE_BYTES,
            waited_ns,
            all_waited_ns,
        });
    }

    /// An acknowledgement of a transfer over several rails has come, and the first of its bytes were on this one. So
    /// long is it since that transfer's last one, or its beginning. To be followed by [`Rates::acknowledged`].
    pub fn waited_for(&mut self, on: RailLife, waited_ns: u64) {
        if let Some(state) = self.living(on) {
            state.waited_ns = state.waited_ns.saturating_add(waited_ns);
            self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        }
    }

    /// A chunk was acknowledged. One of an earlier life changes nothing.
    pub fn acknowledged(&mut self, on: RailLife, bytes: u64, now_ns: u64) {
        let all_waited_ns = self.waited_ns;
        let busy = self.rails.iter().filter(|state| state.sample.is_some()).count() as u64;
        let Some(state) = self.living(on) else { return };
        state.in_flight = state.in_flight.saturating_sub(bytes);
        state.moved_ns = now_ns;
        if let Some(mut sample) = state.sample {
            sample.bytes = sample.bytes.saturating_add(bytes);
            if sample.bytes >= sample.enough_bytes && now_ns > sample.since_ns {
                state.take_sample(&sample, all_waited_ns.saturating_sub(sample.all_waited_ns), busy, now_ns);
                let enough_bytes = SAMPLE_BYTES.max(state.in_flight);
                let waited_ns = state.waited_ns;
                sample = Sample { since_ns: now_ns, bytes: 0, enough_bytes, waited_ns, all_waited_ns };
            }
            state.sample = Some(sample);
        }
        if state.in_flight == 0 {
            state.sample = None;
        }
    }

    /// A chunk will not be acknowledged: its transfer was given up. One of an earlier life changes nothing. What the
    /// rail delivered meanwhile says nothing.
    pub fn dropped(&mut self, on: RailLife, bytes: u64) {
        if let Some(state) = self.living(on) {
            state.in_flight = state.in_flight.saturating_sub(bytes);
            state.sample = None;
        }
    }

    /// The rail failed: nothing is sent over it, and what it measured is forgotten.
    pub fn down(&mut self, rail: usize) {
        if let Some(state) = self.rails.get_mut(rail) {
            *state = State { in_flight: 0, is_up: false, measured: None, sample: None, ..state.clone() };
        }
    }

    fn living(&mut self, on: RailLife) -> Option<&mut State> {
        self.rails.get_mut(on.rail).filter(|state| state.is_up && state.life == on.life)
    }
}

impl State {
    /// A rail that is up, of which nothing is known yet.
    fn new(nominal_mbps: u32, in_flight_bytes_max: u64, life: u32) -> Self {
        Self {
            nominal: u64::from(nominal_mbps.max(1)).saturating_mul(125_000),
            in_flight_max: in_flight_bytes_max,
            in_flight: 0,
            life,
            is_up: true,
            measured: None,
            moved_ns: 0,
            waited_ns: 0,
            sample: None,
        }
    }

    fn measured_now(&self, now_ns: u64) -> Option<u64> {
        let measured = self.measured.filter(|measured| now_ns.saturating_sub(measured.at_ns) <= SAMPLE_LIFE_NS)?;
        Some(measured.bytes_per_s)
    }

    /// Never zero.
    fn rate(&self, now_ns: u64) -> u64 {
        self.measured_now(now_ns).unwrap_or(self.nominal).max(1)
    }

    fn finish_ns(&self, chunk_bytes: u64, now_ns: u64) -> u128 {
        let held_ns = self.takes_ns(self.in_flight, now_ns);
        let waited_ns = if self.in_flight > 0 { now_ns.saturating_sub(self.moved_ns) } else { 0 };
        let late_ns = u128::from(waited_ns).saturating_sub(held_ns);
        self.takes_ns(self.in_flight.saturating_add(chunk_bytes), now_ns).saturating_add(late_ns)
    }

    fn takes_ns(&self, bytes: u64, now_ns: u64) -> u128 {
        let scaled = u128::from(bytes).saturating_mul(1_000_000_000);
        scaled.checked_div(self.rate(now_ns).into()).unwrap_or(u128::MAX)
    }

    /// `all_waited_ns` is what acknowledgements waited for meanwhile, whatever rail that was; `busy` counts the rails.
    fn take_sample(&mut self, sample: &Sample, all_waited_ns: u64, busy: u64, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(sample.since_ns);
        let exact = u128::from(sample.bytes).saturating_mul(1_000_000_000).checked_div(elapsed_ns.into()).unwrap_or(0);
        let seen = u64::try_from(exact).unwrap_or(u64::MAX);
        let fair_ns = all_waited_ns.checked_div(busy).unwrap_or(0);
        let own_ns = self.waited_ns.saturating_sub(sample.waited_ns);
        let believed = self.measured_now(now_ns).unwrap_or(0);
        let sample = match all_waited_ns > elapsed_ns / 2 {
            true => {
                let seen = if own_ns < fair_ns { seen.max(believed.min(seen.saturating_mul(2))) } else { seen };
                let corrected = u128::from(seen).saturating_mul(fair_ns.into()).checked_div(own_ns.into());
                let corrected = corrected.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX);
                corrected.clamp(seen.saturating_sub(seen / 8), seen.saturating_add(seen / 8))
            }
            // Transfers over this rail alone.
            false => seen,
        };
        let bytes_per_s = match self.measured_now(now_ns) {
            Some(old) => (old / 4).saturating_mul(3).saturating_add(sample / 4),
            None => sample,
        };
        self.measured = Some(Measured { bytes_per_s, at_ns: now_ns });
    }
}

#[cfg(test)]
mod tests;

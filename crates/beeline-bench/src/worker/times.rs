//! What trips took: a histogram, and those of several programs put together.

use anyhow::Result;
use hdrhistogram::Histogram;

use super::events::Outcome;
use crate::ticks::Ticks;

/// So many trips are noted before they are counted: the histogram costs as much as the clock.
const NOTED: usize = 1 << 16;
/// A histogram counts in tenths of a nanosecond, as a trip of nothing takes some nanoseconds.
const TENTHS: f64 = 10.0;
/// The figures that a histogram gives, in one-way nanoseconds.
const QUANTILES: [(&str, f64); 3] = [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)];

/// What trips took.
pub struct Times {
    ticks: Ticks,
    noted: Vec<u64>,
    histogram: Histogram<u64>,
}

impl Times {
    pub fn new(ticks: Ticks) -> Result<Times> {
        Ok(Times { ticks, noted: Vec::with_capacity(NOTED), histogram: histogram()? })
    }

    /// Notes a trip. Whether it is time to count.
    #[inline]
    pub fn add(&mut self, trip: u64) -> bool {
        self.noted.push(trip);
        self.noted.len() == NOTED
    }

    pub fn count(&mut self) {
        for trip in self.noted.drain(..) {
            self.histogram.saturating_record((self.ticks.ns(trip) / 2.0 * TENTHS) as u64);
        }
    }

    /// The figures, and how often each time came if that is asked for.
    pub fn outcome(&mut self, with_counts: bool) -> Outcome {
        self.count();
        let mut outcome = Outcome::default();
        tell(&self.histogram, &mut outcome);
        if with_counts {
            let counts = self.histogram.iter_recorded();
            outcome.counts = counts.map(|step| (step.value_iterated_to(), step.count_since_last_iteration())).collect();
        }
        outcome
    }
}

/// The figures of all messages of several programs, into what they are put together in.
///
/// # Errors
/// When nothing was counted.
pub fn together(outcomes: &[Outcome], all: &mut Outcome) -> Result<()> {
    let mut histogram = histogram()?;
    for &(time, count) in outcomes.iter().flat_map(|outcome| &outcome.counts) {
        histogram.saturating_record_n(time, count);
    }
    anyhow::ensure!(!histogram.is_empty(), "the programs did not say what their messages took");
    tell(&histogram, all);
    Ok(())
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?)
}

fn tell(histogram: &Histogram<u64>, outcome: &mut Outcome) {
    for (name, quantile) in QUANTILES {
        outcome.values.insert(name.into(), histogram.value_at_quantile(quantile) as f64 / TENTHS);
    }
    outcome.values.insert("mean_ns".into(), histogram.mean() / TENTHS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(one_way_tenths: &[u64]) -> Outcome {
        let mut times = Times::new(Ticks::new()).unwrap();
        one_way_tenths.iter().for_each(|&tenths| times.histogram.saturating_record(tenths));
        times.outcome(true)
    }

    #[test]
    fn quantiles_of_two_programs_are_those_of_all_their_messages() {
        let fast = times(&[1000; 60]);
        let slow = times(&[9000; 40]);
        assert_eq!(times(&[1000; 60]).counts.iter().map(|(_, count)| count).sum::<u64>(), 60);
        let mut all = Outcome::default();
        together(&[fast.clone(), slow.clone()], &mut all).unwrap();
        let near = |name: &str, wanted: f64| (all.values[name] / wanted - 1.0).abs() < 0.01;
        assert!(near("p50_ns", 100.0) && near("p99_ns", 900.0) && near("mean_ns", 420.0), "{all:?}");
        let plain = Outcome { counts: Vec::new(), ..fast };
        assert!(together(&[plain], &mut Outcome::default()).is_err());
    }
}

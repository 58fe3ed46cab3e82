//! What a cell says: Beeline's figure over TCP's, round by round, with an interval.

use serde::Serialize;
use serde_json::{Value, json};

use super::run::{Measured, Sample};
use crate::report::Unit;
use crate::stats::{Interval, median, median_interval};

/// A tail may be so much longer than TCP's.
const P99_MAX: f64 = 1.1;

/// Values of one figure, or ratios: their median, and where it lies.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub interval: Interval,
}

/// The ratios of a cell, Beeline over TCP.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratios {
    pub rate: Ratio,
    pub mean: Option<Ratio>,
    pub p50: Option<Ratio>,
    pub p99: Option<Ratio>,
    pub p999: Option<Ratio>,
    pub stream: Option<Ratio>,
    pub cpu: Option<Ratio>,
}

impl Ratios {
    /// `None` if no round was complete.
    pub fn of(measured: &Measured) -> Option<Self> {
        let ratio = |of: fn(&Sample) -> Option<f64>| {
            let pairs = measured.beeline.iter().zip(&measured.tcp);
            let ratios: Option<Vec<f64>> = pairs.map(|(ours, theirs)| Some(of(ours)? / of(theirs)?)).collect();
            let ratios = ratios.filter(|ratios| ratios.iter().all(|ratio| ratio.is_finite()))?;
            Some(Ratio { median: median(&ratios)?, interval: median_interval(&ratios)? })
        };
        Some(Self {
            rate: ratio(|sample| Some(sample.rate))?,
            mean: ratio(|sample| sample.mean_ns),
            p50: ratio(|sample| sample.p50_ns),
            p99: ratio(|sample| sample.p99_ns),
            p999: ratio(|sample| sample.p999_ns),
            stream: ratio(|sample| sample.stream_bytes_per_second),
            cpu: ratio(|sample| Some(sample.cpu_us)),
        })
    }

    /// Whether Beeline is no slower: rate and mean no worse than TCP's, p99 within a tenth of it.
    pub fn is_no_slower(&self) -> bool {
        let at_most = |ratio: Option<Ratio>, max: f64| ratio.is_none_or(|ratio| ratio.median <= max);
        self.rate.median >= 1.0
            && at_most(self.mean, 1.0)
            && at_most(self.p99, P99_MAX)
            && self.stream.is_none_or(|stream| stream.median >= 1.0)
    }
}

/// The median of one figure of some samples, and where it lies.
pub fn typical(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Option<Ratio> {
    let values: Vec<f64> = samples.iter().filter_map(of).collect();
    Some(Ratio { median: median(&values)?, interval: median_interval(&values)? })
}

/// A figure of a sample.
pub struct Figure {
    /// In the document.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    pub unit: Unit,
    pub of: fn(&Sample) -> Option<f64>,
}

pub const FIGURES: [Figure; 7] = [
    Figure { name: "rate", title: "rate", unit: Unit::PerSecond, of: |sample| Some(sample.rate) },
    Figure { name: "mean_ns", title: "mean", unit: Unit::Nanoseconds, of: |sample| sample.mean_ns },
    Figure { name: "p50_ns", title: "p50", unit: Unit::Nanoseconds, of: |sample| sample.p50_ns },
    Figure { name: "p99_ns", title: "p99", unit: Unit::Nanoseconds, of: |sample| sample.p99_ns },
    Figure { name: "p999_ns", title: "p99.9", unit: Unit::Nanoseconds, of: |sample| sample.p999_ns },
    Figure { name: "cpu_ns", title: "CPU each", unit: Unit::Nanoseconds, of: |sample| Some(sample.cpu_us * 1e3) },
    Figure {
        name: "stream_bytes_per_second",
        title: "stream",
        unit: Unit::BytesPerSecond,
        of: |sample| sample.stream_bytes_per_second,
    },
];

/// Medians and their intervals of both columns, figure by figure.
pub fn summary(measured: &Measured) -> Value {
    let both = FIGURES.iter().filter_map(|figure| {
        let (tcp, beeline) = (typical(&measured.tcp, figure.of)?, typical(&measured.beeline, figure.of)?);
        Some((figure.name.to_owned(), json!({ "tcp": tcp, "beeline": beeline })))
    });
    Value::Object(both.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f64, p99_ns: Option<f64>) -> Sample {
        Sample { rate, mean_ns: None, p50_ns: None, p99_ns, p999_ns: None, stream_bytes_per_second: None, cpu_us: 1.0 }
    }

    #[test]
    fn a_cell_is_judged_by_pairs() {
        let measured = Measured {
            tcp: vec![sample(10.0, Some(100.0)), sample(20.0, Some(100.0)), sample(10.0, Some(100.0))],
            beeline: vec![sample(11.0, Some(105.0)), sample(24.0, Some(105.0)), sample(9.0, Some(105.0))],
            ..Measured::default()
        };
        let ratios = Ratios::of(&measured).unwrap();
        assert!((ratios.rate.median - 1.1).abs() < 1e-9 && ratios.is_no_slower());
        assert!((ratios.rate.interval.low - 0.9).abs() < 1e-9 && (ratios.rate.interval.high - 1.2).abs() < 1e-9);
        assert!(ratios.mean.is_none());
        let summary = summary(&measured);
        assert_eq!(summary["p99_ns"]["beeline"]["median"], 105.0);
        assert_eq!(summary["rate"]["tcp"]["interval"]["high"], 20.0);
        assert!(summary.get("mean_ns").is_none());
        let slow_tail = Measured { beeline: vec![sample(11.0, Some(120.0)); 3], ..measured };
        assert!(!Ratios::of(&slow_tail).unwrap().is_no_slower());
        assert!(Ratios::of(&Measured::default()).is_none());
    }
}

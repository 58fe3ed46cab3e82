//! What the samples of a cell say together: medians, where they lie, and how many times better Beeline's is.

use serde::Serialize;

use super::axis::Hundredths;
use super::cell::Cell;
use super::figure::{Figure, Sample};
use super::store::Measured;
use crate::stats::{Interval, median, median_interval_at};

/// One figure over both.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Both {
    pub tcp: Known,
    pub beeline: Known,
    /// How many times better Beeline's is: the median of the rounds' ratios.
    pub gain: Known,
}

/// A median, and the interval that holds it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Known {
    pub median: f64,
    pub interval: Interval,
}

impl Known {
    pub fn of(values: &[f64], confidence: Hundredths) -> Option<Known> {
        Some(Known { median: median(values)?, interval: median_interval_at(values, confidence.share())? })
    }

    /// The whole width of the interval as a part of the median, if the interval is one of that confidence.
    pub fn width(&self, confidence: Hundredths) -> Option<f64> {
        let Interval { low, high, confidence: reached } = self.interval;
        (reached >= confidence.share()).then(|| (high - low) / self.median.abs())
    }
}

/// A figure's values, round by round.
pub fn values(samples: &[Sample], figure: Figure) -> Vec<f64> {
    samples.iter().filter_map(|sample| sample.get(&figure).copied()).collect()
}

/// A figure of a cell; `None` where there is none.
pub fn both(measured: &Measured, figure: Figure, confidence: Hundredths) -> Option<Both> {
    let (tcp, beeline) = (values(&measured.tcp, figure), values(&measured.beeline, figure));
    let gains: Vec<f64> = beeline.iter().zip(&tcp).map(|(&ours, &theirs)| figure.gain(ours, theirs)).collect();
    Some(Both {
        tcp: Known::of(&tcp, confidence)?,
        beeline: Known::of(&beeline, confidence)?,
        gain: Known::of(&gains, confidence)?,
    })
}

/// Whether both columns' main figures are known as surely as wanted.
pub fn is_sure(cell: &Cell, measured: &Measured, confidence: Hundredths, within: Hundredths) -> bool {
    let Some(both) = both(measured, cell.work.main(), confidence) else { return false };
    let is_narrow = |known: Known| known.width(confidence).is_some_and(|width| width <= within.share());
    is_narrow(both.tcp) && is_narrow(both.beeline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::cell::{Completion, Load, Move, Place, Work};

    fn measured(tcp: &[f64], beeline: &[f64]) -> Measured {
        let samples = |values: &[f64]| values.iter().map(|&value| Sample::from([(Figure::P50, value)])).collect();
        Measured { tcp: samples(tcp), beeline: samples(beeline), ..Measured::default() }
    }

    fn cell() -> Cell {
        Cell {
            table: "t".into(),
            work: Work::Latency,
            program: None,
            bytes: 8,
            streams: 1,
            completion: Completion::Lazy,
            pace: None,
            buffer: None,
            options: String::new(),
            place: Place::Apart,
            load: Load::None,
            moves: Move::Any,
            chunk: None,
            mtu: None,
            coalescing: None,
            rails: None,
            turn: None,
        }
    }

    #[test]
    fn gains_are_those_of_pairs() {
        let both = both(&measured(&[10.0, 40.0, 10.0], &[5.0, 10.0, 1.0]), Figure::P50, Hundredths(9500)).unwrap();
        assert_eq!((both.tcp.median, both.beeline.median, both.gain.median), (10.0, 5.0, 4.0));
        assert!(super::both(&measured(&[1.0], &[1.0]), Figure::Rate, Hundredths(9500)).is_none());
    }

    #[test]
    fn few_samples_are_never_sure_and_nine_alike_are() {
        let (confidence, within) = (Hundredths(9950), Hundredths(500));
        let sure = |tcp: &[f64], ours: &[f64]| is_sure(&cell(), &measured(tcp, ours), confidence, within);
        assert!(!sure(&[10.0; 8], &[1.0; 8]));
        assert!(sure(&[10.0; 9], &[1.0; 9]));
        let wide: Vec<f64> = (0..9).map(|n| 10.0 + f64::from(n)).collect();
        assert!(!sure(&wide, &[1.0; 9]) && !sure(&[1.0; 9], &wide));
    }
}

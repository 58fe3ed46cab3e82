//! What a sample says: named figures, each with its unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::report::Unit;

/// One figure of a sample. CPU time is that of one end, the connection's making and the warm-up included, as are their
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Median time of a message one way: half a trip.
    P50,
    /// Mean time of a message one way, as programs of others tell it: half a trip.
    Mean,
    /// The time that 99 of 100 messages stay below, one way.
    P99,
    /// Bytes that arrive, of all streams, both ways added up.
    Throughput,
    /// Messages, trips or connections a second.
    Rate,
    /// CPU time of the client for a message, a trip or a connection.
    CpuClient,
    /// The same of the server.
    CpuServer,
    /// CPU time of the client for 10^9 bytes.
    CpuGbClient,
    /// The same of the server.
    CpuGbServer,
    /// What part of one CPU the client takes.
    CpuShareClient,
    /// The same of the server.
    CpuShareServer,
    /// Jain's index of the streams' shares: 1 when all get the same.
    Fairness,
    /// What the memory load copied meanwhile.
    Load,
    /// [`Figure::Throughput`] of what all links between the hosts carry, of two ways at once in both of them.
    PeakShare,
    /// [`Figure::Throughput`] after a threshold was turned, and after it was turned back.
    ThroughputTurned,
    ThroughputBack,
    /// The same of [`Figure::CpuGbClient`].
    CpuGbClientTurned,
    CpuGbClientBack,
    /// The same of [`Figure::CpuGbServer`].
    CpuGbServerTurned,
    CpuGbServerBack,
}

/// The parts of a stream while which a threshold is turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Before,
    Turned,
    Back,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Before, Phase::Turned, Phase::Back];

    /// The figure of this part. Those that have no parts are the same in each.
    pub fn of(self, figure: Figure) -> Figure {
        match (figure, self) {
            (Figure::Throughput, Phase::Turned) => Figure::ThroughputTurned,
            (Figure::Throughput, Phase::Back) => Figure::ThroughputBack,
            (Figure::CpuGbClient, Phase::Turned) => Figure::CpuGbClientTurned,
            (Figure::CpuGbClient, Phase::Back) => Figure::CpuGbClientBack,
            (Figure::CpuGbServer, Phase::Turned) => Figure::CpuGbServerTurned,
            (Figure::CpuGbServer, Phase::Back) => Figure::CpuGbServerBack,
            (figure, _) => figure,
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Phase::Before => "before",
            Phase::Turned => "turned",
            Phase::Back => "turned back",
        }
    }
}

/// The figures of one sample.
pub type Sample = BTreeMap<Figure, f64>;

impl Figure {
    pub const ALL: [Figure; 20] = [
        Figure::P50,
        Figure::Mean,
        Figure::P99,
        Figure::Throughput,
        Figure::Rate,
        Figure::CpuClient,
        Figure::CpuServer,
        Figure::CpuGbClient,
        Figure::CpuGbServer,
        Figure::CpuShareClient,
        Figure::CpuShareServer,
        Figure::Fairness,
        Figure::Load,
        Figure::PeakShare,
        Figure::ThroughputTurned,
        Figure::ThroughputBack,
        Figure::CpuGbClientTurned,
        Figure::CpuGbClientBack,
        Figure::CpuGbServerTurned,
        Figure::CpuGbServerBack,
    ];

    /// As it stands at the head of a column.
    pub fn title(self) -> &'static str {
        match self {
            Figure::P50 => "latency p50",
            Figure::Mean => "mean latency",
            Figure::P99 => "latency p99",
            Figure::Throughput => "throughput",
            Figure::Rate => "rate",
            Figure::CpuClient => "client CPU each",
            Figure::CpuServer => "server CPU each",
            Figure::CpuGbClient => "client CPU per GB",
            Figure::CpuGbServer => "server CPU per GB",
            Figure::CpuShareClient => "client's part of a CPU",
            Figure::CpuShareServer => "server's part of a CPU",
            Figure::Fairness => "fairness",
            Figure::Load => "load achieved",
            Figure::PeakShare => "share of the peak",
            Figure::ThroughputTurned => "throughput, turned",
            Figure::ThroughputBack => "throughput, turned back",
            Figure::CpuGbClientTurned => "client CPU per GB, turned",
            Figure::CpuGbClientBack => "client CPU per GB, turned back",
            Figure::CpuGbServerTurned => "server CPU per GB, turned",
            Figure::CpuGbServerBack => "server CPU per GB, turned back",
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Figure::P50
            | Figure::Mean
            | Figure::P99
            | Figure::CpuClient
            | Figure::CpuServer
            | Figure::CpuGbClient
            | Figure::CpuGbServer
            | Figure::CpuGbClientTurned
            | Figure::CpuGbClientBack
            | Figure::CpuGbServerTurned
            | Figure::CpuGbServerBack => Unit::Nanoseconds,
            Figure::Throughput | Figure::Load | Figure::ThroughputTurned | Figure::ThroughputBack => {
                Unit::BytesPerSecond
            }
            Figure::Rate => Unit::PerSecond,
            Figure::Fairness | Figure::CpuShareClient | Figure::CpuShareServer | Figure::PeakShare => Unit::Share,
        }
    }

    /// The word of the plan and of the files of a run.
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
    }

    /// Whether more or less of it is better at all: a load is achieved, not won, and who is faster may take more of a
    /// CPU. Of the peak the share is told; who has more of it is told by the throughput.
    pub fn has_gain(self) -> bool {
        let shares = [Figure::Fairness, Figure::CpuShareClient, Figure::CpuShareServer, Figure::PeakShare];
        self != Figure::Load && !shares.contains(&self)
    }

    /// How many times better `ours` is than `theirs`.
    pub fn gain(self, ours: f64, theirs: f64) -> f64 {
        if self.unit().more_is_better() { ours / theirs } else { theirs / ours }
    }

    /// A value with its unit, as plans give what was published, in this figure's unit: `12 us`, `92 MB/s`,
    /// `9900 Mbit/s`.
    pub fn parse(self, text: &str) -> Result<f64, String> {
        let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
        let factor = match (self.unit(), unit) {
            (Unit::Nanoseconds, "ns") | (Unit::BytesPerSecond, "B/s") | (Unit::PerSecond, "/s") => 1.0,
            (Unit::Nanoseconds, "us") | (Unit::PerSecond, "k/s") => 1e3,
            (Unit::Nanoseconds, "ms") | (Unit::BytesPerSecond, "MB/s") | (Unit::PerSecond, "M/s") => 1e6,
            (Unit::Nanoseconds, "s") | (Unit::BytesPerSecond, "GB/s") => 1e9,
            (Unit::BytesPerSecond, "Mbit/s") => 1e6 / 8.0,
            (Unit::BytesPerSecond, "Gbit/s") => 1e9 / 8.0,
            (Unit::Share, "%") => 0.01,
            _ => return Err(format!("`{text}` is no value for {}: expected {}", self.word(), self.examples())),
        };
        match number.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(number * factor),
            _ => Err(format!("`{number}` is no number: expected {}", self.examples())),
        }
    }

    fn examples(self) -> &'static str {
        match self.unit() {
            Unit::Nanoseconds => "a time such as `12 us` (ns, us, ms, s)",
            Unit::BytesPerSecond => "a rate such as `92 MB/s` (B/s, MB/s, GB/s, Mbit/s, Gbit/s)",
            Unit::Share => "a share such as `98 %`",
            _ => "a rate such as `4216 /s` (/s, k/s, M/s)",
        }
    }
}

/// Jain's index of fairness: (Σx)² / (n Σx²). See Jain, Chiu and Hawe, DEC-TR-301 (1984).
pub fn fairness(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_jains() {
        assert_eq!(fairness(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(fairness(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert!((fairness(&[2.0, 1.0]).unwrap() - 0.9).abs() < 1e-12);
        assert_eq!(fairness(&[0.0, 0.0]), None);
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn published_values_have_units() {
        assert_eq!(Figure::P50.parse("12 us"), Ok(12_000.0));
        assert_eq!(Figure::Throughput.parse("9900 Mbit/s"), Ok(1.2375e9));
        assert_eq!(Figure::Fairness.parse("50 %"), Ok(0.5));
        for wrong in ["12", "12 MB/s", "us", "-1 us", "NaN us", "1e999 us"] {
            assert!(Figure::P50.parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_figure_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<String> = Figure::ALL.iter().map(|figure| figure.word()).collect();
        assert_eq!(words.len(), Figure::ALL.len());
        assert!(words.iter().all(|word| !word.is_empty()));
    }

    #[test]
    fn a_gain_is_above_one_when_ours_is_better() {
        assert_eq!(Figure::P50.gain(1.0, 4.0), 4.0);
        assert_eq!(Figure::Throughput.gain(4.0, 1.0), 4.0);
    }
}

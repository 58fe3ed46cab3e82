//! What was measured: only interactions that ended within the measured interval count. In the open loop it is those
//! that were due within it, whenever they end: a site that stalls at its end would else be spared what it had to do
//! then.

use crate::interaction::Interaction;
use crate::mix::Mix;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest response time that is told apart, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// When the parts of a run begin.
#[derive(Clone, Copy)]
pub struct Phases {
    pub start: Instant,
    pub ramp_up: Duration,
    pub measured: Duration,
    pub ramp_down: Duration,
}

impl Phases {
    pub fn is_measured(&self, at: Instant) -> bool {
        let since = at.saturating_duration_since(self.start);
        at >= self.start && since >= self.ramp_up && since < self.ramp_up + self.measured
    }

    pub fn measured_until(&self) -> Instant {
        self.start + self.ramp_up + self.measured
    }

    pub fn end(&self) -> Instant {
        self.start + self.ramp_up + self.measured + self.ramp_down
    }
}

struct Kind {
    times: Histogram<u64>,
    late: u64,
    late_scaled: u64,
    errors: u64,
}

/// What all browsers saw.
pub struct Stats {
    phases: Phases,
    limit_factor: f64,
    counts_by_due: bool,
    kinds: Vec<Kind>,
    wips: Vec<u32>,
    errors_over_time: Vec<u32>,
    complaints: BTreeMap<String, u64>,
    bytes: u64,
    parts: u64,
    connections: u64,
    asked_again: u64,
    began_late: u64,
}

impl Stats {
    /// `counts_by_due`: for the open loop.
    pub fn new(phases: Phases, limit_factor: f64, counts_by_due: bool) -> Self {
        let seconds = usize::try_from((phases.end() - phases.start).as_secs() + 1).unwrap_or(0);
        let kind = |_| Kind {
            times: Histogram::new_with_bounds(1, LONGEST_US, 3).expect("these bounds are good"),
            late: 0,
            late_scaled: 0,
            errors: 0,
        };
        Stats {
            phases,
            limit_factor,
            counts_by_due,
            kinds: (0..14).map(kind).collect(),
            wips: vec![0; seconds],
            errors_over_time: vec![0; seconds],
            complaints: BTreeMap::new(),
            bytes: 0,
            parts: 0,
            connections: 0,
            asked_again: 0,
            began_late: 0,
        }
    }

    fn second(&self, at: Instant) -> usize {
        let second = at.saturating_duration_since(self.phases.start).as_secs();
        usize::try_from(second).unwrap_or(0).min(self.wips.len() - 1)
    }

    fn is_counted(&self, due: Instant, ended: Instant) -> bool {
        self.phases.is_measured(if self.counts_by_due { due } else { ended })
    }

    pub fn good(&mut self, interaction: Interaction, due: Instant, ended: Instant) {
        let second = self.second(ended);
        self.wips[second] += 1;
        if !self.is_counted(due, ended) {
            return;
        }
        let took = ended.saturating_duration_since(due);
        let kind = &mut self.kinds[interaction.index()];
        let micros = u64::try_from(took.as_micros()).unwrap_or(LONGEST_US).clamp(1, LONGEST_US);
        kind.times.record(micros).expect("the time is within the bounds");
        let limit = interaction.limit_seconds();
        kind.late += u64::from(took.as_secs_f64() > limit);
        kind.late_scaled += u64::from(took.as_secs_f64() > limit * self.limit_factor);
    }

    /// Errors count whenever they happen: there have to be none. Those of the measured interval are late by every
    /// limit, too.
    pub fn bad(&mut self, interaction: Interaction, why: &str, due: Instant, ended: Instant) {
        let second = self.second(ended);
        self.errors_over_time[second] += 1;
        if self.is_counted(due, ended) {
            self.kinds[interaction.index()].errors += 1;
        }
        *self.complaints.entry(format!("{}: {why}", interaction.path())).or_default() += 1;
    }

    pub fn received(&mut self, bytes: usize, parts: usize) {
        if self.phases.is_measured(Instant::now()) {
            self.bytes += bytes as u64;
            self.parts += parts as u64;
        }
    }

    pub fn connected(&mut self, count: u64, asked_again: u64) {
        self.connections += count;
        self.asked_again += asked_again;
    }

    /// In the open loop: an interaction that could not begin when it should, since the one before had not ended.
    pub fn began_late(&mut self, due: Instant) {
        self.began_late += u64::from(self.phases.is_measured(due));
    }

    pub fn report(&self, mix: Mix) -> Report {
        let seconds = self.phases.measured.as_secs_f64();
        let total: u64 = self.kinds.iter().map(|kind| kind.times.len()).sum();
        let mut all = Histogram::<u64>::new_with_bounds(1, LONGEST_US, 3).expect("these bounds are good");
        let mut interactions = BTreeMap::new();
        for (interaction, wanted) in Interaction::ALL.into_iter().zip(mix.shares()) {
            let kind = &self.kinds[interaction.index()];
            all.add(&kind.times).expect("all have the same bounds");
            let count = kind.times.len();
            interactions.insert(
                interaction.path(),
                KindReport {
                    count,
                    share_percent: percent(count, total),
                    share_specified_percent: wanted,
                    limit_s: interaction.limit_seconds(),
                    late_percent: percent(kind.late + kind.errors, count + kind.errors),
                    late_scaled_percent: percent(kind.late_scaled + kind.errors, count + kind.errors),
                    errors: kind.errors,
                    times: Times::of(&kind.times),
                },
            );
        }
        let errors: u64 = self.kinds.iter().map(|kind| kind.errors).sum();
        let late: u64 = self.kinds.iter().map(|kind| kind.late).sum();
        let late_scaled: u64 = self.kinds.iter().map(|kind| kind.late_scaled).sum();
        Report {
            mix,
            measured_s: seconds,
            wips: total as f64 / seconds,
            interactions_total: total,
            errors_measured: errors,
            errors_all: self.complaints.values().sum(),
            late_percent: percent(late + errors, total + errors),
            late_scaled_percent: percent(late_scaled + errors, total + errors),
            limit_factor: self.limit_factor,
            times: Times::of(&all),
            bytes_per_s: self.bytes as f64 / seconds,
            parts_per_s: self.parts as f64 / seconds,
            connections: self.connections,
            asked_again: self.asked_again,
            began_late: self.began_late,
            wips_each_second: self.wips.clone(),
            errors_each_second: self.errors_over_time.clone(),
            complaints: self.complaints.clone(),
            interactions,
        }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Response times in milliseconds.
#[derive(Serialize)]
pub struct Times {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Times {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
        Times {
            mean_ms: times.mean() / 1000.0,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            max_ms: times.max() as f64 / 1000.0,
        }
    }
}

#[derive(Serialize)]
pub struct KindReport {
    pub count: u64,
    pub share_percent: f64,
    pub share_specified_percent: f64,
    pub limit_s: f64,
    pub late_percent: f64,
    pub late_scaled_percent: f64,
    pub errors: u64,
    #[serde(flatten)]
    pub times: Times,
}

#[derive(Serialize)]
pub struct Report {
    pub mix: Mix,
    pub measured_s: f64,
    pub wips: f64,
    pub interactions_total: u64,
    pub errors_measured: u64,
    pub errors_all: u64,
    /// Above the specification's limits, or an error.
    pub late_percent: f64,
    /// Above the limits times `limit_factor`: as think times are shortened, so may be the limits.
    pub late_scaled_percent: f64,
    pub limit_factor: f64,
    #[serde(flatten)]
    pub times: Times,
    pub bytes_per_s: f64,
    pub parts_per_s: f64,
    pub connections: u64,
    pub asked_again: u64,
    pub began_late: u64,
    pub wips_each_second: Vec<u32>,
    pub errors_each_second: Vec<u32>,
    pub complaints: BTreeMap<String, u64>,
    pub interactions: BTreeMap<&'static str, KindReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(start: Instant) -> Phases {
        Phases {
            start,
            ramp_up: Duration::from_secs(1),
            measured: Duration::from_secs(2),
            ramp_down: Duration::from_secs(1),
        }
    }

    fn closed_loop(start: Instant, limit_factor: f64) -> Stats {
        Stats::new(phases(start), limit_factor, false)
    }

    #[test]
    fn only_the_measured_interval_counts() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut stats = closed_loop(start, 0.1);
        let took = Duration::from_millis(400);
        for tenth in [5, 15, 25, 35] {
            let ended = start + Duration::from_millis(tenth * 100);
            stats.good(Interaction::Home, ended - took, ended);
        }
        let ended = start + Duration::from_millis(1500);
        stats.good(Interaction::Home, ended - Duration::from_secs(4), ended);
        let report = stats.report(Mix::Shopping);
        assert_eq!(report.interactions_total, 3);
        assert!((report.wips - 1.5).abs() < 1e-9);
        assert_eq!(report.wips_each_second, [1, 2, 1, 1, 0]);
        let home = &report.interactions["home"];
        assert!((home.late_percent - 100.0 / 3.0).abs() < 1e-9);
        assert!((home.late_scaled_percent - 100.0).abs() < 1e-9, "0.4 s is above a tenth of 3 s");
    }

    #[test]
    fn errors_count_in_all_phases_and_are_late() {
        let start = Instant::now();
        let mut stats = closed_loop(start, 1.0);
        for ended in [start, start + Duration::from_millis(1500)] {
            stats.bad(Interaction::Home, "no end", ended, ended);
            stats.good(Interaction::Home, ended, ended);
        }
        let report = stats.report(Mix::Browsing);
        assert_eq!((report.errors_measured, report.errors_all), (1, 2));
        assert_eq!(report.complaints["home: no end"], 2);
        assert!((report.late_percent - 50.0).abs() < 1e-9);
    }

    #[test]
    fn the_open_loop_counts_what_was_due() {
        let start = Instant::now();
        let at = |tenth: u64| start + Duration::from_millis(tenth * 100);
        let mut stats = Stats::new(phases(start), 1.0, true);
        // Due before the interval and ended in it; due in it and ended after it, and long after the end; due after it.
        for (due, ended) in [(5, 15), (25, 35), (29, 129), (31, 32)] {
            stats.good(Interaction::Home, at(due), at(ended));
            stats.began_late(at(due));
        }
        stats.bad(Interaction::Home, "no answer", at(29), at(200));
        let report = stats.report(Mix::Shopping);
        assert_eq!((report.interactions_total, report.errors_measured, report.began_late), (2, 1, 2));
        assert!((report.late_percent - 200.0 / 3.0).abs() < 1e-9, "10 s and no answer are above 3 s");
    }
}

//! The floors: what Beeline must reach on two cores of one machine, as ratios within the same run wherever possible.

use serde::Serialize;

use crate::report::{Column, Results};

/// One line of `--check`.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    pub what: &'static str,
    pub wanted: String,
    pub measured: Option<f64>,
    pub pass: bool,
}

/// A floor is a figure made of the results, and a bound on it.
struct Floor {
    row: &'static str,
    what: &'static str,
    unit: &'static str,
    bound: Bound,
    figure: Figure,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
            Bound::Below(bound) => value < bound,
        }
    }

    fn show(self, unit: &str) -> String {
        match self {
            Bound::AtLeast(bound) => format!("at least {bound} {unit}"),
            Bound::AtMost(bound) => format!("at most {bound} {unit}"),
            Bound::Below(bound) => format!("under {bound} {unit}"),
        }
    }
}

/// What of the row is compared with the bound.
#[derive(Clone, Copy)]
enum Figure {
    /// Beeline / TCP
    OverTcp,
    /// TCP / Beeline
    TcpOver,
    /// Beeline / the machine's limit
    OverLimit,
    /// Beeline / Beeline in another row
    OverRow(&'static str),
    /// Beeline in units of so much
    In(f64),
}

impl Figure {
    fn of(self, results: &Results, row: &str) -> Option<f64> {
        let beeline = results.median(row, Column::Beeline)?;
        let figure = match self {
            Figure::OverTcp => beeline / results.median(row, Column::Tcp)?,
            Figure::TcpOver => results.median(row, Column::Tcp)? / beeline,
            Figure::OverLimit => beeline / results.median(row, Column::Limit)?,
            Figure::OverRow(other) => beeline / results.median(other, Column::Beeline)?,
            Figure::In(unit) => beeline / unit,
        };
        figure.is_finite().then_some(figure)
    }
}

macro_rules! floor {
    ($row:literal, $what:literal, $figure:expr, $bound:ident $value:literal $unit:literal) => {
        Floor { row: $row, what: $what, unit: $unit, bound: Bound::$bound($value), figure: $figure }
    };
}

#[rustfmt::skip]
const FLOORS: &[Floor] = &[
    floor!("pingpong", "8 B blocking ping-pong, one way", Figure::OverLimit, AtMost 1.5 "x the cache-line hand-over"),
    floor!("pingpong", "8 B blocking ping-pong, one way", Figure::TcpOver, AtLeast 100.0 "x less than TCP"),
    floor!("pingpong-epoll", "8 B ping-pong through epoll", Figure::OverLimit, AtMost 1.5 "x the cache-line hand-over"),
    floor!("stream-64", "64 B sends", Figure::In(1e6), AtLeast 15.0 "M/s"),
    floor!("stream-64", "64 B sends", Figure::OverTcp, AtLeast 40.0 "x TCP"),
    floor!("stream-64k", "64 KiB sends", Figure::OverLimit, AtLeast 0.6 "of memcpy in L2"),
    floor!("stream-64k", "64 KiB sends", Figure::OverTcp, AtLeast 5.0 "x TCP"),
    floor!("stream-1m", "1 MiB sends", Figure::OverTcp, AtLeast 4.0 "x TCP"),
    floor!("connect", "connect, 1 byte each way, close", Figure::OverTcp, AtLeast 4.0 "x TCP"),
    floor!("busy-among", "one busy among 1,000 idle", Figure::OverRow("busy-alone"), AtMost 1.3 "x its latency alone"),
    floor!("idle-user", "resident per idle connection, both ends", Figure::In(1024.0), AtMost 24.0 "KiB"),
    floor!("idle-cpu", "CPU of an idle server in 10 s", Figure::In(1.0), Below 1.0 "ms"),
    floor!("pairs-total", "8 busy pairs on two cores, together", Figure::OverTcp, AtLeast 1.0 "x TCP"),
    // "Starved" is drawn at a quarter of a fair share.
    floor!("pairs-share", "8 busy pairs, the poorest pair", Figure::In(1.0), AtLeast 0.25 "of a fair share"),
    floor!("syscalls-pingpong", "system calls, ping-pong", Figure::In(1.0), Below 0.001 "a message"),
    floor!("syscalls-pingpong-epoll", "system calls, ping-pong through epoll", Figure::In(1.0), Below 0.001 "a message"),
    floor!("syscalls-stream", "system calls, 64 B sends", Figure::In(1.0), Below 0.001 "a message"),
];

/// Between two namespaces of one host, with the `tcp` provider: TCP is underneath, so this bounds what the bridge
/// costs.
#[rustfmt::skip]
const FLOORS_BETWEEN_HOSTS: &[Floor] = &[
    floor!("pingpong", "8 B round trip", Figure::TcpOver, AtLeast 0.9 "of TCP's speed"),
    floor!("stream-64k", "64 KiB sends", Figure::OverTcp, AtLeast 0.9 "x TCP"),
    floor!("connect", "connect, 1 byte each way, close", Figure::OverTcp, AtLeast 0.5 "x TCP"),
];

/// Judges the rows that were measured. A row that was to be measured and gave no figure fails.
pub fn judge(results: &Results, between_hosts: bool) -> Vec<Verdict> {
    let floors = if between_hosts { FLOORS_BETWEEN_HOSTS } else { FLOORS };
    floors
        .iter()
        .filter(|floor| results.row(floor.row).is_some())
        .map(|floor| {
            let measured = floor.figure.of(results, floor.row);
            Verdict {
                what: floor.what,
                wanted: floor.bound.show(floor.unit),
                measured,
                pass: measured.is_some_and(|m| floor.bound.holds(m)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::WORKLOADS;

    #[test]
    fn floors_name_rows_that_exist() {
        let exists = |id: &str| WORKLOADS.iter().any(|w| w.rows.iter().any(|row| row.id == id));
        for floor in FLOORS.iter().chain(FLOORS_BETWEEN_HOSTS) {
            assert!(exists(floor.row), "{}", floor.row);
            if let Figure::OverRow(other) = floor.figure {
                assert!(exists(other), "{other}");
            }
        }
    }

    #[test]
    fn passes_and_fails() {
        let mut results = Results::default();
        results.add("connect", Column::Tcp, 10.0, vec![]);
        results.add("connect", Column::Beeline, 40.0, vec![]);
        results.add("idle-cpu", Column::Beeline, 1.0, vec![]);
        let verdicts = judge(&results, false);
        assert_eq!(verdicts.len(), 2);
        assert!(verdicts[0].pass && !verdicts[1].pass);
    }

    #[test]
    fn a_figure_that_is_missing_fails() {
        let mut results = Results::default();
        results.add_error("connect", Column::Beeline, "hung".into());
        let verdicts = judge(&results, false);
        assert!(!verdicts[0].pass && verdicts[0].measured.is_none());
    }
}

//! Rows, units, and the results collected for them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::acceleration::Carried;
use crate::stats::{median, spread};
use crate::transport::Transport;

#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub id: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    /// What the machine itself can do at best.
    pub limit: Option<Limit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    HandOver,
    Memcpy64K,
    Memcpy1M,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Nanoseconds,
    MessagesPerSecond,
    BytesPerSecond,
    PerSecond,
    RequestsPerSecond,
    TripsPerSecond,
    Bytes,
    MillisecondsPer10s,
    Share,
    PerMessage,
}

impl Unit {
    /// Whether a larger number is the better one.
    pub fn more_is_better(self) -> bool {
        match self {
            Unit::MessagesPerSecond
            | Unit::BytesPerSecond
            | Unit::PerSecond
            | Unit::RequestsPerSecond
            | Unit::TripsPerSecond
            | Unit::Share => true,
            Unit::Nanoseconds | Unit::Bytes | Unit::MillisecondsPer10s | Unit::PerMessage => false,
        }
    }

    /// Whether "so many times better" says something.
    fn has_ratio(self) -> bool {
        !matches!(self, Unit::Share | Unit::MillisecondsPer10s | Unit::PerMessage | Unit::Bytes)
    }

    /// A number for people, about three digits.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")]),
            Unit::MessagesPerSecond => scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")]),
            Unit::BytesPerSecond => scaled(value, &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")]),
            Unit::PerSecond | Unit::RequestsPerSecond | Unit::TripsPerSecond => {
                scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
            }
            Unit::Bytes => scaled(value, &[(1024.0, "KiB"), (1.0, "B")]),
            Unit::MillisecondsPer10s => format!("{value:.2} ms/10 s"),
            Unit::Share => format!("{:.0} %", value * 100.0),
            Unit::PerMessage => match value {
                v if v < 0.1 => format!("{v:.5}"),
                v => format!("{v:.2}"),
            },
        }
    }
}

fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    let fits = scales.iter().find(|(scale, _)| value >= *scale);
    let (scale, unit) = fits.or(scales.last()).copied().unwrap_or((1.0, ""));
    format!("{} {unit}", three_digits(value / scale))
}

/// About three significant digits, without an exponent.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        // Below a tenth two digits tell as much, as long as there are any.
        v if !(5e-6..0.0995).contains(&v) => format!("{value:.2}"),
        v if v >= 0.00995 => format!("{value:.3}"),
        v if v >= 0.000_995 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// A column of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    Tcp,
    Unix,
    Beeline,
    Limit,
    Ring,
    Ucx,
    Libfabric,
}

impl From<Transport> for Column {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Column::Tcp,
            Transport::Unix => Column::Unix,
            Transport::Beeline => Column::Beeline,
        }
    }
}

impl Column {
    pub fn title(self) -> &'static str {
        match self {
            Column::Tcp => "TCP",
            Column::Unix => "AF_UNIX",
            Column::Beeline => "Beeline",
            Column::Limit => "machine's limit",
            Column::Ring => "bare ring",
            Column::Ucx => "UCX (own API)",
            Column::Libfabric => "libfabric shm (own API)",
        }
    }
}

/// All rounds of one cell.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cell {
    pub rounds: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Vec<f64>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

impl Cell {
    pub fn median(&self) -> Option<f64> {
        median(&self.rounds)
    }

    pub fn spread(&self) -> Option<f64> {
        spread(&self.rounds)
    }
}

/// Everything measured, by row and column.
#[derive(Debug, Default)]
pub struct Results {
    /// Why the run ended before its time.
    pub ended_early: Option<String>,
    /// How the connections of each workload's Beeline column were carried.
    pub carried: BTreeMap<&'static str, Carried>,
    cells: BTreeMap<&'static str, BTreeMap<Column, Cell>>,
}

impl Results {
    pub fn add(&mut self, row: &'static str, column: Column, value: f64, samples: Vec<f64>) {
        let cell = self.cell_mut(row, column);
        cell.rounds.push(value);
        if !samples.is_empty() {
            cell.samples.push(samples);
        }
    }

    pub fn add_error(&mut self, row: &'static str, column: Column, error: String) {
        self.cell_mut(row, column).errors.push(error);
    }

    /// Takes over the rows of another run, which comes after this one.
    pub fn append(&mut self, other: Results) {
        self.ended_early = self.ended_early.take().or(other.ended_early);
        self.carried.extend(other.carried);
        self.cells.extend(other.cells);
    }

    fn cell_mut(&mut self, row: &'static str, column: Column) -> &mut Cell {
        self.cells.entry(row).or_default().entry(column).or_default()
    }

    pub fn cell(&self, row: &str, column: Column) -> Option<&Cell> {
        self.cells.get(row)?.get(&column)
    }

    /// Whether an error stands in any of these rows.
    pub fn has_failed(&self, rows: &[Row], column: Column) -> bool {
        rows.iter().filter_map(|row| self.cell(row.id, column)).any(|cell| !cell.errors.is_empty())
    }

    pub fn median(&self, row: &str, column: Column) -> Option<f64> {
        self.cell(row, column)?.median()
    }

    /// How many times better than TCP, for rows where that says something.
    pub fn times_tcp(&self, row: &Row) -> Option<f64> {
        if !row.unit.has_ratio() {
            return None;
        }
        let beeline = self.median(row.id, Column::Beeline)?;
        let tcp = self.median(row.id, Column::Tcp)?;
        Some(if row.unit.more_is_better() { beeline / tcp } else { tcp / beeline })
    }

    /// Columns that hold anything, in their order.
    pub fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> = self.cells.values().flat_map(|row| row.keys().copied()).collect();
        columns.sort();
        columns.dedup();
        columns
    }

    /// Every error once, with its column.
    pub fn errors(&self) -> Vec<(Column, String)> {
        let mut all = Vec::new();
        for row in self.cells.values() {
            for (&column, cell) in row {
                for error in &cell.errors {
                    let entry = (column, error.clone());
                    if !all.contains(&entry) {
                        all.push(entry);
                    }
                }
            }
        }
        all
    }

    pub fn row(&self, row: &str) -> Option<&BTreeMap<Column, Cell>> {
        self.cells.get(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row { id: "r", title: "r", unit: Unit::Nanoseconds, limit: None };

    #[test]
    fn numbers_for_people() {
        assert_eq!(Unit::Nanoseconds.show(115.2), "115 ns");
        assert_eq!(Unit::Nanoseconds.show(21_640.0), "21.6 µs");
        assert_eq!(Unit::MessagesPerSecond.show(240_000.0), "240 k/s");
        assert_eq!(Unit::BytesPerSecond.show(34.12e9), "34.1 GB/s");
        assert_eq!(Unit::Nanoseconds.show(1.332e9), "1.33 s");
        assert_eq!(Unit::BytesPerSecond.show(1579.0), "1.58 kB/s");
        let shown = [12.34, 0.583, 0.0704, 0.0049, 0.000_31, 0.0].map(three_digits);
        assert_eq!(shown, ["12.3", "0.58", "0.070", "0.0049", "0.00031", "0.00"]);
        assert_eq!(Unit::Bytes.show(24.0 * 1024.0), "24.0 KiB");
        assert_eq!(Unit::PerMessage.show(0.00042), "0.00042");
        assert_eq!(Unit::Share.show(0.5), "50 %");
    }

    #[test]
    fn ratio_turns_with_the_unit() {
        let mut results = Results::default();
        results.add("r", Column::Tcp, 200.0, vec![]);
        results.add("r", Column::Beeline, 100.0, vec![]);
        assert_eq!(results.times_tcp(&ROW), Some(2.0));
        let rate = Row { unit: Unit::PerSecond, ..ROW };
        assert_eq!(results.times_tcp(&rate), Some(0.5));
        assert_eq!(results.times_tcp(&Row { unit: Unit::Share, ..ROW }), None);
    }

    #[test]
    fn an_end_before_the_time_is_told_of_both_runs() {
        let ended = |why: Option<&str>| Results { ended_early: why.map(str::to_owned), ..Results::default() };
        for (first, second, both) in [
            (None, None, None),
            (None, Some("b"), Some("b")),
            (Some("a"), None, Some("a")),
            (Some("a"), Some("b"), Some("a")),
        ] {
            let mut results = ended(first);
            results.append(ended(second));
            assert_eq!(results.ended_early.as_deref(), both);
        }
    }

    #[test]
    fn columns_are_those_with_content() {
        let mut results = Results::default();
        results.add("a", Column::Beeline, 1.0, vec![]);
        results.add_error("a", Column::Tcp, "broken".into());
        results.add_error("b", Column::Tcp, "broken".into());
        assert_eq!(results.columns(), [Column::Tcp, Column::Beeline]);
        assert_eq!(results.errors().len(), 1);
    }
}

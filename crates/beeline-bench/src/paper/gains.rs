//! The table of gains: how much more throughput, less latency and less CPU time there is where programs stand
//! otherwise, over TCP and over Beeline alike. A table of a plan asks for it by `gain_over`, the place that the others
//! are compared with.
//!
//! A gain is that of rounds: a round's figure against the same round's, which was measured minutes apart at most; then
//! the median.

use std::collections::BTreeSet;

use super::cell::Cell;
use super::figure::{Figure, Sample};
use super::plan::Table;
use super::store::Run;
use super::summary::{Known, values};

/// The gains of a run, in words.
pub struct Gains {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// What the tables are called together.
pub const TITLE: &str = "Gains";

impl Gains {
    /// Those of all tables; `None` where no cell has what it is compared with.
    pub fn of(run: &Run) -> Option<Gains> {
        let asked = run.plan.tables.iter().filter(|table| table.gain_over.is_some());
        let figures: BTreeSet<Figure> =
            asked.clone().flat_map(Table::columns).filter(|figure| can_gain(*figure)).collect();
        let mut gains = Gains { header: vec![String::new()], rows: Vec::new() };
        for figure in &figures {
            let word = if figure.unit().more_is_better() { "more" } else { "less" };
            gains.header.extend(["TCP", "Beeline"].map(|column| format!("{word} {}: {column}", figure.title())));
        }
        for table in asked {
            let own = run.cells.iter().filter(|cell| cell.table == *table.id.get_ref());
            gains.rows.extend(own.filter_map(|cell| row(run, table, cell, &figures)));
        }
        (!gains.rows.is_empty()).then_some(gains)
    }
}

/// Whether more or less of it is a gain. More load achieved is one: so much less is in its way.
fn can_gain(figure: Figure) -> bool {
    !matches!(figure, Figure::Fairness | Figure::CpuShareClient | Figure::CpuShareServer)
}

fn row(run: &Run, table: &Table, cell: &Cell, figures: &BTreeSet<Figure>) -> Option<Vec<String>> {
    let over = *table.gain_over.as_ref()?.get_ref();
    let other = Cell { place: over, ..cell.clone() };
    let (own, base) = (run.of(cell)?, run.of(&other)?);
    if cell.place == over || own.tcp.is_empty() || base.tcp.is_empty() {
        return None;
    }
    let label = cell.label(&table.told());
    let mut row = vec![format!("{}: {label} over {}", table.id.get_ref(), crate::everyday::cell::word(over))];
    for &figure in figures {
        for (own, base) in [(&own.tcp, &base.tcp), (&own.beeline, &base.beeline)] {
            let gains = of_rounds(own, base, figure);
            let known = Known::of(&gains, run.settings.confidence).filter(|_| table.columns().contains(&figure));
            row.push(known.map_or(String::new(), |known| show(&known, figure == cell.work.main())));
        }
    }
    Some(row)
}

/// How much more, or how much less where less is better, as a part of what it is compared with: positive is better.
fn of_rounds(own: &[Sample], base: &[Sample], figure: Figure) -> Vec<f64> {
    let pairs = values(own, figure).into_iter().zip(values(base, figure));
    let gain = |(own, base): (f64, f64)| match figure.unit().more_is_better() {
        true => own / base - 1.0,
        false => 1.0 - own / base,
    };
    pairs.map(gain).filter(|gain| gain.is_finite()).collect()
}

/// One round knows nothing of how sure it is.
fn show(known: &Known, is_main: bool) -> String {
    let percent = |part: f64| part * 100.0;
    match is_main && known.interval.confidence > 0.0 {
        true => format!(
            "{:+.1} % ({:+.1} to {:+.1})",
            percent(known.median),
            percent(known.interval.low),
            percent(known.interval.high)
        ),
        false => format!("{:+.1} %", percent(known.median)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceleration::Carried;
    use crate::paper::grid::Grid;
    use crate::paper::report;
    use crate::paper::store::tests::settings;
    use crate::paper::store::{Record, Writer};

    const PLAN: &str = "format = 1\nname = \"p\"\ntitle = \"P\"\ndocument = \"D\"\n\
        [[table]]\nid = \"there\"\ntitle = \"T\"\nsource = \"S\"\nwork = \"latency\"\nbytes = [64]\nplace = [\"local\", \"remote\", \"both\"]\n\
        gain_over = \"remote\"\nfigures = [\"p50\", \"cpu-share-client\"]\n\
        [[table]]\nid = \"stream\"\ntitle = \"T\"\nsource = \"S\"\nwork = \"stream\"\nbytes = [\"64K\"]\nplace = [\"local\", \"remote\"]\n\
        gain_over = \"remote\"\nfigures = [\"throughput\", \"cpu-gb-client\", \"load\"]\n";

    /// A cell, two figures, and their values over TCP and over Beeline.
    type Told = (&'static str, [Figure; 2], [[f64; 2]; 2]);

    fn run(cells: &[Told]) -> (tempfile::TempDir, Run) {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN, &settings()).unwrap();
        for round in 0..3 {
            for (cell, figures, [tcp, beeline]) in cells {
                let sample = |values: &[f64; 2]| figures.iter().copied().zip(values.iter().copied()).collect();
                let (cell, tcp, beeline) = ((*cell).to_owned(), sample(tcp), sample(beeline));
                writer
                    .add(&Record::Pair { cell, round, at_s: 0.0, tcp, beeline, carried: Carried::default() })
                    .unwrap();
            }
        }
        let run = Run::read(directory.path()).unwrap();
        (directory, run)
    }

    #[test]
    fn gains_are_more_throughput_less_latency_and_less_cpu_than_over_there() {
        let latency = [Figure::P50, Figure::CpuShareClient];
        let stream = [Figure::Throughput, Figure::CpuGbClient];
        let (directory, run) = run(&[
            ("there/bytes=64/place=remote", latency, [[100.0, 1.0], [50.0, 1.0]]),
            ("there/bytes=64/place=local", latency, [[20.0, 1.0], [60.0, 1.0]]),
            ("stream/bytes=65536/place=remote", stream, [[4e9, 10.0], [8e9, 10.0]]),
            ("stream/bytes=65536/place=local", stream, [[5e9, 4.0], [8e9, 10.0]]),
        ]);
        let gains = Gains::of(&run).unwrap();
        let words = [
            "less latency p50: TCP",
            "less latency p50: Beeline",
            "more throughput: TCP",
            "more throughput: Beeline",
            "less client CPU per GB: TCP",
            "less client CPU per GB: Beeline",
            "more load achieved: TCP",
            "more load achieved: Beeline",
        ];
        assert_eq!(gains.header[1..], words);
        // The layout `both` was not measured, which its table says.
        assert_eq!(gains.rows.len(), 2);
        let [first, second] = [&gains.rows[0], &gains.rows[1]];
        assert_eq!(first[0], "there: 64 B, layout local over remote");
        assert_eq!(first[1..3], ["+80.0 % (+80.0 to +80.0)", "-20.0 % (-20.0 to -20.0)"]);
        assert!(first[3..].iter().all(String::is_empty), "{first:?}");
        assert_eq!(second[3..], ["+25.0 % (+25.0 to +25.0)", "+0.0 % (+0.0 to +0.0)", "+60.0 %", "+0.0 %", "", ""]);
        let grid = Grid::of(&run, &run.plan.tables[0]);
        assert_eq!((grid.rows.len(), grid.missing.len()), (2, 1));
        let html = std::fs::read_to_string(report::write(&run, directory.path()).unwrap()).unwrap();
        let markdown = std::fs::read_to_string(directory.path().join("report.md")).unwrap();
        for text in [&html, &markdown] {
            assert!(text.contains("layout local over remote") && text.contains("+80.0 % (+80.0 to +80.0)"), "{text}");
        }
    }

    #[test]
    fn what_has_nothing_to_be_compared_with_has_no_gain() {
        let latency = [Figure::P50, Figure::CpuShareClient];
        let (_directory, run) = run(&[("there/bytes=64/place=local", latency, [[20.0, 1.0], [60.0, 1.0]])]);
        assert!(Gains::of(&run).is_none());
    }
}

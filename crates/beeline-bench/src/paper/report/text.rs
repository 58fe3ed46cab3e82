//! Markdown, and CSV with a line for each figure of each cell.

use std::fmt::Write;

use anyhow::Result;

use super::parts::Part;
use crate::paper::axis::Beside;
use crate::paper::cell::Cell;
use crate::paper::figure::{Figure, Sample};
use crate::paper::gains::{self, Gains};
use crate::paper::grid::notes;
use crate::paper::store::Run;
use crate::paper::summary::{Known, both, values};

const COLUMNS: [&str; 17] = [
    "table",
    "cell",
    "bytes",
    "streams",
    "figure",
    "unit",
    "rounds",
    "tcp_median",
    "tcp_low",
    "tcp_high",
    "beeline_median",
    "beeline_low",
    "beeline_high",
    "gain_median",
    "gain_low",
    "gain_high",
    "not_measured",
];

pub fn csv(run: &Run) -> Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(COLUMNS)?;
    let fill = |mut line: Vec<String>, reason: &str| {
        line.resize(COLUMNS.len() - 1, String::new());
        line.push(reason.to_owned());
        line
    };
    for cell in &run.cells {
        let head = vec![cell.table.clone(), cell.name(), cell.bytes.to_string(), cell.streams.to_string()];
        let measured = run.of(cell).filter(|measured| !measured.tcp.is_empty());
        let Some(measured) = measured else {
            let known = run.of(cell);
            let absent = known.and_then(|known| known.absent.as_deref().or(known.errors.last().map(String::as_str)));
            csv.write_record(fill(head, absent.unwrap_or("the run did not come to it")))?;
            continue;
        };
        for figure in Figure::ALL {
            let Some(both) = both(measured, figure, run.settings.confidence) else { continue };
            let unit = serde_json::to_value(figure.unit())?.as_str().unwrap_or_default().to_owned();
            let mut line = head.clone();
            line.extend([figure.word(), unit, measured.tcp.len().to_string()]);
            for Known { median, interval } in [both.tcp, both.beeline, both.gain] {
                line.extend([median, interval.low, interval.high].map(|value| value.to_string()));
            }
            csv.write_record(fill(line, ""))?;
        }
    }
    for (cell, by, samples) in beside(run) {
        let figure = cell.work.main();
        let Some(known) = Known::of(&values(samples, figure), run.settings.confidence) else { continue };
        let mut line = vec![cell.table.clone(), format!("{}: {}", cell.name(), by.title())];
        line.extend([cell.bytes.to_string(), cell.streams.to_string(), figure.word()]);
        line.extend([serde_json::to_value(figure.unit())?.as_str().unwrap_or_default().to_owned()]);
        line.extend([samples.len().to_string()]);
        // What is neither TCP nor Beeline stands in TCP's columns: the cell's name says what it is.
        line.extend([known.median, known.interval.low, known.interval.high].map(|value| value.to_string()));
        csv.write_record(fill(line, ""))?;
    }
    for table in run.plan.tables.iter().filter(|_| run.settings.only.is_empty()) {
        if let Some(reason) = &table.not_measured {
            csv.write_record(fill(vec![table.id.get_ref().clone()], reason))?;
        }
    }
    Ok(csv.into_inner()?)
}

/// What was measured by other means, cell by cell.
fn beside(run: &Run) -> impl Iterator<Item = (&Cell, Beside, &[Sample])> {
    let of = |cell| {
        run.of(cell).into_iter().flat_map(move |known| known.beside.iter().map(move |(by, s)| (cell, *by, &s[..])))
    };
    run.cells.iter().flat_map(of)
}

pub fn markdown(run: &Run, parts: &[Part]) -> String {
    let mut text = format!("# {}\n\nTables of: {}\n", run.plan.title, run.plan.document);
    if let Some(machine) = run.machines.last() {
        let _ = writeln!(text, "\n{}. Beeline {}.", machine.line(), run.settings.version);
    }
    for part in parts {
        let table = part.grid.table;
        let _ = writeln!(text, "\n## {}\n\n{}", table.title, table.source);
        if part.svg.is_some() {
            let _ = writeln!(text, "\n![{}](figures/{}.svg)", table.title, table.id.get_ref());
        }
        table_of(&mut text, &part.grid.header, &part.grid.rows);
        let mut lines: Vec<String> = Vec::new();
        lines.extend(part.grid.missing.iter().map(|(what, reason)| format!("Not measured, {what}: {reason}")));
        lines.extend(part.grid.published().into_iter().map(|line| format!("Published, {line}")));
        lines.extend(table.note.clone());
        list(&mut text, &lines);
    }
    if let Some(Gains { header, rows }) = Gains::of(run) {
        let _ = writeln!(text, "\n## {}", gains::TITLE);
        table_of(&mut text, &header, &rows);
    }
    text.push_str("\n## The run\n");
    list(&mut text, &notes(run));
    text
}

fn table_of(text: &mut String, header: &[String], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", row(header));
    let _ = writeln!(text, "|{}", "---|".repeat(header.len()));
    rows.iter().for_each(|cells| {
        let _ = writeln!(text, "{}", row(cells));
    });
}

fn list(text: &mut String, lines: &[String]) {
    if !lines.is_empty() {
        text.push('\n');
    }
    for line in lines {
        let _ = writeln!(text, "- {}", escape(line));
    }
}

fn row(cells: &[String]) -> String {
    cells.iter().fold("|".to_owned(), |line, cell| line + " " + &escape(cell) + " |")
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

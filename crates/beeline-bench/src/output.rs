//! The table for people and the document for programs.

use std::io::IsTerminal;
use std::path::PathBuf;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell as TableCell, CellAlignment, Color, Table};
use serde::Serialize;
use serde_json::{Value, json};

use crate::check::Verdict;
use crate::machine::Machine;
use crate::report::{Column, Results, Row, three_digits};

/// How the run was made.
#[derive(Serialize, Debug)]
pub struct Settings {
    pub version: &'static str,
    pub rounds: u32,
    pub sample_ms: u64,
    pub idle_seconds: u64,
    /// Client and server CPU.
    pub cpus: Option<(usize, usize)>,
    pub library: Option<PathBuf>,
    pub library_options: Option<String>,
}

/// Everything, with raw samples.
pub fn document(
    machine: &Machine,
    settings: &Settings,
    rows: &[Row],
    results: &Results,
    verdicts: &[Verdict],
) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .filter_map(|row| {
            let cells = results.row(row.id)?;
            let columns: serde_json::Map<String, Value> = cells
                .iter()
                .map(|(column, cell)| {
                    let mut value = json!(cell);
                    value["median"] = json!(cell.median());
                    value["spread"] = json!(cell.spread());
                    (column_key(*column), value)
                })
                .collect();
            Some(json!({
                "id": row.id,
                "title": row.title,
                "unit": row.unit,
                "more_is_better": row.unit.more_is_better(),
                "limit": row.limit,
                "times_tcp": results.times_tcp(row),
                "columns": columns,
            }))
        })
        .collect();
    json!({
        "schema": "beeline-bench/1",
        "machine": machine,
        "settings": settings,
        "rows": rows,
        "carried": results.carried,
        "ended_early": results.ended_early,
        "check": verdicts,
    })
}

fn column_key(column: Column) -> String {
    match json!(column) {
        Value::String(key) => key,
        _ => String::new(),
    }
}

/// The table, errors and verdicts on standard output.
pub fn print(heading: &[String], settings: &Settings, rows: &[Row], results: &Results, verdicts: &[Verdict]) {
    heading.iter().for_each(|line| say!("{line}"));
    let pinned = match settings.cpus {
        Some((client, server)) => format!("client on CPU {client}, server on CPU {server}"),
        None => "not pinned".into(),
    };
    say!(
        "Beeline {}; medians of {} alternating rounds of {} ms; {pinned}",
        settings.version,
        settings.rounds,
        settings.sample_ms
    );
    print_results(rows, results);
    for verdict in verdicts {
        say!("{}", verdict_line(verdict, colours()));
    }
}

/// Whether standard output wants colours.
fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// The table with what is to be said about it.
pub fn print_results(rows: &[Row], results: &Results) {
    let colours = colours();
    say!("{}", table(rows, results, colours));
    for (column, error) in results.errors() {
        say!("failed, {}: {error}", column.title());
    }
    if let Some(why) = &results.ended_early {
        say!("the run ended early: {why}");
    }
    for (workload, carried) in &results.carried {
        if let Some(complaint) = carried.complaint() {
            say!("note, {workload}: {complaint}");
        }
    }
}

fn table(rows: &[Row], results: &Results, colours: bool) -> Table {
    let columns = results.columns();
    let with_ratio = columns.contains(&Column::Beeline) && columns.contains(&Column::Tcp);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    if colours {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let mut header = vec![String::new()];
    for &column in &columns {
        header.push(column.title().to_owned());
        if column == Column::Beeline && with_ratio {
            header.push("x TCP".into());
        }
    }
    table.set_header(header);
    for row in rows {
        if results.row(row.id).is_none() {
            continue;
        }
        let mut line = vec![TableCell::new(row.title)];
        for &column in &columns {
            line.push(right(figure(results, row, column)));
            if column == Column::Beeline && with_ratio {
                line.push(ratio(results.times_tcp(row)));
            }
        }
        table.add_row(line);
    }
    table
}

fn figure(results: &Results, row: &Row, column: Column) -> String {
    match results.cell(row.id, column) {
        None => String::new(),
        Some(cell) => match cell.median() {
            // Some rounds failed: the errors are below the table.
            Some(median) if !cell.errors.is_empty() => format!("{} (!)", row.unit.show(median)),
            Some(median) => row.unit.show(median),
            None => "failed".into(),
        },
    }
}

fn ratio(times: Option<f64>) -> TableCell {
    match times {
        None => TableCell::new(""),
        Some(times) => {
            let colour = if times >= 1.0 { Color::Green } else { Color::Red };
            right(three_digits(times)).fg(colour)
        }
    }
}

fn right(text: String) -> TableCell {
    TableCell::new(text).set_alignment(CellAlignment::Right)
}

fn verdict_line(verdict: &Verdict, colours: bool) -> String {
    let word = match (verdict.pass, colours) {
        (true, false) => "pass".to_owned(),
        (false, false) => "FAIL".to_owned(),
        (true, true) => "\x1b[32mpass\x1b[0m".to_owned(),
        (false, true) => "\x1b[31mFAIL\x1b[0m".to_owned(),
    };
    let measured = match verdict.measured {
        Some(value) if value.abs() < 0.01 && value != 0.0 => format!("{value:.5}"),
        Some(value) => three_digits(value),
        None => "nothing".into(),
    };
    format!("{word}  {}: {measured}, wanted {}", verdict.what, verdict.wanted)
}

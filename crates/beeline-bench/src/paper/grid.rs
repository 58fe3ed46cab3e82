//! The tables of a run as text: for the terminal, Markdown and HTML alike.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use comfy_table::ContentArrangement;
use comfy_table::Table as Drawn;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use super::cell::{Cell, Told};
use super::figure::{Figure, Phase};
use super::gains::{self, Gains};
use super::plan::Table;
use super::published::Published;
use super::run::{complaints, unsure};
use super::store::{Measured, Run, WITHIN};
use super::summary::{Both, both, values};
use crate::report::three_digits;
use crate::stats::median;

/// A table, in words.
pub struct Grid<'a> {
    pub table: &'a Table,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What was not measured, and why.
    pub missing: Vec<(String, String)>,
}

impl<'a> Grid<'a> {
    pub fn of(run: &'a Run, table: &'a Table) -> Grid<'a> {
        let columns = table.columns();
        let told = table.told();
        let is_own = |cell: &&Cell| cell.table == *table.id.get_ref();
        let mut grid = Grid { table, header: header(table, &columns), rows: Vec::new(), missing: Vec::new() };
        let mut missing = Vec::new();
        for cell in run.cells.iter().filter(is_own) {
            let row = |phase| row(run, cell, &told, table, (&columns, phase));
            match table.phases().iter().map(row).collect::<Result<Vec<_>, _>>() {
                Ok(rows) => grid.rows.extend(rows),
                Err(reason) => missing.push((cell.label(&told), reason)),
            }
        }
        grid.missing.extend(together(missing, run.cells.iter().filter(is_own).count()));
        grid.missing.extend(no_peak(run, table));
        grid.missing.extend(not_beside(run, table));
        if let Some(reason) = table.not_measured.as_ref().filter(|_| run.settings.only.is_empty()) {
            grid.missing.push(("all".into(), reason.clone()));
        }
        grid
    }

    /// One line for each published figure.
    pub fn published(&self) -> Vec<String> {
        self.table.published.iter().map(Published::line).collect()
    }
}

fn header(table: &Table, columns: &[Figure]) -> Vec<String> {
    let mut header = vec![String::new()];
    for &figure in columns {
        header.extend(["TCP", "Beeline"].map(|column| format!("{}: {column}", figure.title())));
        if figure.has_gain() {
            header.push("times better".to_owned());
        }
    }
    // Beside is only what the work is about.
    let main = table.work.map_or("", |work| work.main().title());
    header.extend(table.beside.iter().map(|by| format!("{main}: {}", by.title())));
    header
}

/// Why there is no share of a peak, where a table asks for one and cells that were measured have none.
fn no_peak(run: &Run, table: &Table) -> Option<(String, String)> {
    let own = run.cells.iter().filter(|cell| cell.table == *table.id.get_ref()).filter_map(|cell| run.of(cell));
    let measured: Vec<_> = own.filter(|measured| !measured.tcp.is_empty()).collect();
    let has = |measured: &&Measured| measured.tcp.iter().any(|sample| sample.contains_key(&Figure::PeakShare));
    let is_asked = table.columns().contains(&Figure::PeakShare) && !measured.is_empty();
    (is_asked && !measured.iter().any(has)).then(|| {
        let reason = match run.settings.hosts {
            Some(_) => "neither the plan nor tc nor the rails say what they carry",
            None => "on one host nothing goes over a link, and the plan names no `peak`",
        };
        (Figure::PeakShare.title().to_owned(), reason.to_owned())
    })
}

/// Each reason once, with all that it is the reason of.
fn together(missing: Vec<(String, String)>, cells: usize) -> Vec<(String, String)> {
    let mut told: Vec<(Vec<String>, String)> = Vec::new();
    for (label, reason) in missing {
        match told.iter_mut().find(|(_, known)| *known == reason) {
            Some((labels, _)) => labels.push(label),
            None => told.push((vec![label], reason)),
        }
    }
    let what = |labels: Vec<String>| if labels.len() == cells { "all".to_owned() } else { labels.join("; ") };
    told.into_iter().map(|(labels, reason)| (what(labels), reason)).collect()
}

/// What does not stand beside cells that were measured: which of them, and why, each reason once.
fn not_beside(run: &Run, table: &Table) -> Vec<(String, String)> {
    let told = table.told();
    let mut missing: Vec<(&'static str, &String, Vec<String>)> = Vec::new();
    let is_own = |cell: &&Cell| cell.table == *table.id.get_ref();
    let known: Vec<_> = run.cells.iter().filter(is_own).filter_map(|cell| Some((cell, run.of(cell)?))).collect();
    for (cell, measured) in &known {
        for (by, reason) in &measured.not_beside {
            let label = cell.label(&told);
            match missing.iter_mut().find(|(title, known, _)| *title == by.title() && *known == reason) {
                Some((.., labels)) => labels.push(label),
                None => missing.push((by.title(), reason, vec![label])),
            }
        }
    }
    let what = |(title, reason, labels): (&str, &String, Vec<String>)| {
        let cells = if labels.len() == known.len() { "all".to_owned() } else { labels.join("; ") };
        (format!("{title} ({cells})"), reason.clone())
    };
    missing.into_iter().map(what).collect()
}

/// A row, of one part of the cell where it has several.
fn row(
    run: &Run,
    cell: &Cell,
    told: &Told,
    table: &Table,
    (columns, phase): (&[Figure], &Phase),
) -> Result<Vec<String>, String> {
    let measured = run.of(cell).ok_or("the run did not come to it")?;
    if let Some(reason) = &measured.absent {
        return Err(reason.clone());
    }
    if measured.tcp.is_empty() {
        return Err(measured
            .errors
            .last()
            .map_or("the run did not come to it".to_owned(), |e| format!("it failed: {e}")));
    }
    let mut row = vec![match table.phases().len() {
        1 => cell.label(told),
        _ => format!("{}, {}", cell.label(told), phase.title()),
    }];
    for &figure in columns {
        let found = both(measured, phase.of(figure), run.settings.confidence);
        let show = |of: fn(&Both) -> f64| found.as_ref().map_or(String::new(), |both| figure.unit().show(of(both)));
        row.extend([show(|both| both.tcp.median), show(|both| both.beeline.median)]);
        if figure.has_gain() {
            row.push(found.map_or(String::new(), |both| {
                let gain = both.gain;
                // One round knows nothing of how sure it is.
                match figure == cell.work.main() && gain.interval.confidence > 0.0 {
                    true => format!(
                        "{} ({} to {})",
                        three_digits(gain.median),
                        three_digits(gain.interval.low),
                        three_digits(gain.interval.high)
                    ),
                    false => three_digits(gain.median),
                }
            }));
        }
    }
    let main = cell.work.main();
    for by in &table.beside {
        let samples = measured.beside.get(by).map(Vec::as_slice).unwrap_or_default();
        row.push(median(&values(samples, main)).map_or(String::new(), |value| main.unit().show(value)));
    }
    Ok(row)
}

/// Sentences about the run as a whole.
pub fn notes(run: &Run) -> Vec<String> {
    let mut notes = Vec::new();
    let confidence = run.settings.confidence;
    notes.push(format!(
        "Medians of {} {} or more, samples of {} ms; intervals of the medians at {confidence} where there are rounds enough.",
        run.settings.rounds,
        if run.settings.rounds == 1 { "round" } else { "rounds" },
        run.settings.sample_ms
    ));
    let has_cpu = |table: &Table| table.columns().iter().any(|f| matches!(f, Figure::CpuClient | Figure::CpuServer));
    if run.plan.tables.iter().any(has_cpu) {
        notes.push("CPU time is each end's, of each message, each trip there and back, or each connection.".into());
    }
    if let Some(cost) = run.own_cost_ns {
        notes.push(format!("{cost:.0} ns of each latency are the instrument's own."));
    }
    if let Some(between) = &run.settings.hosts {
        let hosts = between.hosts.replace(',', " and ");
        notes.push(format!("Between {hosts}, over their bridges, whose own CPU time is not in the figures."));
    }
    if let Some(why) = &run.ended_early {
        notes.push(format!("The run ended early: {why}."));
    }
    for cell in unsure(run) {
        let within = run.settings.within.unwrap_or(WITHIN);
        let rounds = run.of(cell).map_or(0, |measured| measured.tcp.len());
        notes.push(format!("{}: not known within {within} at {confidence} after {rounds} rounds.", cell.name()));
    }
    for (cell, complaint) in complaints(run) {
        notes.push(format!("{cell}: {complaint}."));
    }
    for cell in &run.cells {
        let errors = run.of(cell).map(|measured| measured.errors.iter().collect::<BTreeSet<_>>()).unwrap_or_default();
        notes.extend(errors.into_iter().map(|error| format!("{}: failed: {error}", cell.name())));
    }
    notes
}

/// Columns of a terminal.
const NARROW: u16 = 60;

pub fn new_table() -> Drawn {
    let mut table = Drawn::new();
    table.load_style(UTF8_FULL_CONDENSED);
    // A terminal that is not as wide as a few columns, or that does not know how wide it is, breaks the lines itself.
    let is_narrow = table.width().is_some_and(|width| width < NARROW);
    table.set_content_arrangement(if is_narrow { ContentArrangement::Disabled } else { ContentArrangement::Dynamic });
    if !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some() {
        table.force_no_tty();
    }
    table
}

fn draw(header: &[String], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let mut drawn = new_table();
    drawn.set_header(header.to_vec());
    rows.iter().for_each(|row| {
        drawn.add_row(row.clone());
    });
    say!("{drawn}");
}

/// All tables on standard output.
pub fn print(run: &Run) {
    say!("{}", run.plan.title);
    if let Some(machine) = run.machines.last() {
        say!("{}", machine.line());
    }
    for table in &run.plan.tables {
        let grid = Grid::of(run, table);
        if grid.rows.is_empty() && grid.missing.is_empty() {
            continue;
        }
        say!("\n{}: {} ({})", table.id.get_ref(), table.title, table.source);
        draw(&grid.header, &grid.rows);
        grid.missing.iter().for_each(|(what, reason)| say!("not measured, {what}: {reason}"));
        grid.published().iter().for_each(|line| say!("published, {line}"));
        table.note.iter().for_each(|note| say!("{note}"));
    }
    if let Some(Gains { header, rows }) = Gains::of(run) {
        say!("\n{}", gains::TITLE);
        draw(&header, &rows);
    }
    say!();
    notes(run).iter().for_each(|note| say!("{note}"));
}

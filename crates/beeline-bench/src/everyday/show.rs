//! The matrix for people: a map that shows each cell's ratio, and what lies behind those that are slower.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use clap::ValueEnum;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell as TableCell, CellAlignment, Color, Table};

use super::cell::{Cell, Placement, Style, Work, sentence, word};
use super::run::{EverydayPlan, Matrix, Measured, Sample};
use super::verdict::{FIGURES, Figure, Ratio, Ratios, typical};
use crate::machine::Machine;
use crate::report::{Unit, three_digits};

/// From here on a cell is green.
const CLEARLY_FASTER: f64 = 1.2;
/// Below this it is red.
const CLEARLY_SLOWER: f64 = 0.9;
/// So many cells are shown with all their figures; of more nobody would read them.
const SHOWN_MAX: usize = 60;

/// Everything on standard output.
pub fn print(machine: &Machine, plan: &EverydayPlan, matrix: &Matrix) {
    say!("{}", machine.line());
    if machine.load_before > 0.5 {
        say!("The machine was not quiet before the run (load {:.2}).", machine.load_before);
    }
    say!(
        "CPUs {:?}, {} rounds, {} ms a sample; Beeline over TCP, medians of pairs",
        plan.cpus(),
        plan.rounds(),
        plan.duration().as_millis()
    );
    for &work in Work::value_variants() {
        let cells: Vec<(&Cell, &Measured)> = matrix.cells.iter().filter(|(cell, _)| cell.work == work).collect();
        if !cells.is_empty() {
            say!("\n{}: {} ({}, Beeline / TCP)", word(work), sentence(work), work.counts());
            say!("{}", map(&cells));
        }
    }
    say!();
    for &placement in Placement::value_variants() {
        if matrix.cells.keys().any(|cell| cell.placement == placement) {
            say!("{:>8}: {}", word(placement), sentence(placement));
        }
    }
    match matrix.cells.len() <= SHOWN_MAX {
        true => say!("\nMedians with their intervals, TCP / Beeline\n{}", figures(matrix)),
        false => {
            say!("\n--json and --save have all figures of each cell; --only shows those of up to {SHOWN_MAX} cells.")
        }
    }
    slower(matrix);
    for (cell, measured) in &matrix.cells {
        for error in measured.errors.iter().collect::<BTreeSet<_>>() {
            say!("failed, {}: {error}", cell.name());
        }
        if let Some(complaint) = measured.carried.complaint() {
            say!("note, {}: {complaint}", cell.name());
        }
    }
    if let Some(why) = &matrix.ended_early {
        say!("The run ended early: {why}.");
    }
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table
}

/// Styles down, placements across.
fn map(cells: &[(&Cell, &Measured)]) -> Table {
    let placements: BTreeSet<Placement> = cells.iter().map(|(cell, _)| cell.placement).collect();
    let styles: BTreeSet<Style> = cells.iter().map(|(cell, _)| cell.style).collect();
    let mut table = new_table();
    table.set_header(std::iter::once(String::new()).chain(placements.iter().map(|&placement| word(placement))));
    for style in styles {
        let mut row = vec![TableCell::new(word(style))];
        for &placement in &placements {
            let found = cells.iter().find(|(cell, _)| cell.style == style && cell.placement == placement);
            row.push(found.map_or_else(|| TableCell::new(""), |(_, measured)| shade(measured)));
        }
        table.add_row(row);
    }
    table
}

/// The ratio of rates. A star says that the mean or the tail is worse than TCP's although the rate is not.
fn shade(measured: &Measured) -> TableCell {
    let Some(ratios) = Ratios::of(measured) else {
        return TableCell::new("failed").fg(Color::Magenta);
    };
    let rate = ratios.rate.median;
    let star = if rate >= 1.0 && !ratios.is_no_slower() { "*" } else { "" };
    let colour = match rate {
        rate if rate < CLEARLY_SLOWER => Color::Red,
        rate if rate < 1.0 || !star.is_empty() => Color::Yellow,
        rate if rate >= CLEARLY_FASTER => Color::Green,
        _ => Color::Reset,
    };
    TableCell::new(format!("{}{star}", three_digits(rate))).set_alignment(CellAlignment::Right).fg(colour)
}

/// Every figure of every cell.
fn figures(matrix: &Matrix) -> Table {
    let has = |figure: &&Figure| matrix.cells.values().any(|cell| typical(&cell.tcp, figure.of).is_some());
    let used: Vec<&Figure> = FIGURES.iter().filter(has).collect();
    let mut table = new_table();
    table.set_header(std::iter::once("").chain(used.iter().map(|figure| figure.title)));
    for (cell, measured) in &matrix.cells {
        let mut row = vec![cell.name()];
        for Figure { unit, of, .. } in &used {
            let show = |samples: &[Sample]| {
                typical(samples, of).map_or_else(String::new, |of| {
                    let (low, high) = (unit.show(of.interval.low), unit.show(of.interval.high));
                    format!("{} ({low} to {high})", unit.show(of.median))
                })
            };
            row.push(format!("{}\n{}", show(&measured.tcp), show(&measured.beeline)));
        }
        table.add_row(row);
    }
    table
}

/// The cells that are slower in rate, mean or tail, with figures.
fn slower(matrix: &Matrix) {
    let slower: Vec<(&Cell, &Measured, Ratios)> = matrix
        .cells
        .iter()
        .filter_map(|(cell, measured)| Some((cell, measured, Ratios::of(measured)?)))
        .filter(|(_, _, ratios)| !ratios.is_no_slower())
        .collect();
    let judged = matrix.cells.values().filter(|measured| !measured.tcp.is_empty()).count();
    say!(
        "\n{} of {judged} cells are no slower than TCP in rate, mean and p99 (within a tenth).",
        judged - slower.len()
    );
    if slower.is_empty() {
        return;
    }
    say!("Slower:");
    let mut table = new_table();
    table.set_header(["", "rate", "TCP", "Beeline", "mean", "p99", "TCP", "Beeline", "CPU"]);
    for (cell, measured, ratios) in slower {
        let rate = |samples: &[Sample]| {
            typical(samples, |sample| Some(sample.rate)).map_or_else(String::new, |of| Unit::PerSecond.show(of.median))
        };
        let tail = |samples: &[Sample]| {
            typical(samples, |sample| sample.p99_ns).map_or_else(String::new, |of| Unit::Nanoseconds.show(of.median))
        };
        table.add_row([
            cell.name(),
            with_interval(ratios.rate),
            rate(&measured.tcp),
            rate(&measured.beeline),
            ratios.mean.map_or_else(String::new, |mean| three_digits(mean.median)),
            ratios.p99.map_or_else(String::new, with_interval),
            tail(&measured.tcp),
            tail(&measured.beeline),
            ratios.cpu.map_or_else(String::new, |cpu| three_digits(cpu.median)),
        ]);
    }
    say!("{table}");
}

fn with_interval(ratio: Ratio) -> String {
    let Ratio { median, interval } = ratio;
    format!("{} ({} to {})", three_digits(median), three_digits(interval.low), three_digits(interval.high))
}

//! A plan for people, and what a run measured beside it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use super::model::{Case, Column, Link, Model, Planned, PlannedFlow, cpu_per_byte};
use crate::paper::axis::show_bytes;
use crate::paper::{Figure, Median, medians, new_table};
use crate::report::three_digits;

/// Latencies that are shown of a case with many sizes.
const SIZES_SHOWN: usize = 5;

/// What runs measured, the first that has it.
pub struct Runs(Vec<(PathBuf, Vec<Median>)>);

impl Runs {
    /// # Errors
    /// When one of them is no run.
    pub fn read(directories: &[PathBuf]) -> Result<Runs> {
        let read = |directory: &PathBuf| {
            let medians = medians(directory).with_context(|| format!("{} is not compared", directory.display()))?;
            Ok((directory.clone(), medians))
        };
        directories.iter().map(read).collect::<Result<_>>().map(Runs)
    }

    /// What stands beside a case: of each cell that it names what is planned as well.
    pub fn of(&self, case: &Case, planned: &Planned) -> Vec<Beside> {
        let Some(wanted) = &case.measured else { return Vec::new() };
        let is_of = |cell: &String, median: &&Median| median.cell == *cell;
        // The first run that has it.
        let medians =
            |cell| self.0.iter().map(|(_, medians)| medians).find(|all| all.iter().any(|own| is_of(cell, &own)));
        let beside = |median: &Median| {
            let measured = if wanted.column == Column::Tcp { median.tcp } else { median.beeline };
            let planned = of_plan(median, planned)?;
            Some(Beside { cell: median.cell.clone(), figure: median.figure, measured, planned })
        };
        let of_cell = |cell| medians(cell).into_iter().flatten().filter(move |own| is_of(cell, own)).filter_map(beside);
        wanted.cells.iter().flat_map(of_cell).collect()
    }
}

/// A figure that was measured, and what was planned.
#[derive(Debug, PartialEq, Serialize)]
pub struct Beside {
    pub cell: String,
    pub figure: Figure,
    pub measured: f64,
    pub planned: f64,
}

/// What is planned of a figure, in its unit; `None` where nothing is. A stream has throughput and CPU time for its
/// bytes, a trip has latency: the throughput of trips that wait for each other is not a link's, nor is the latency of a
/// stream a message's.
fn of_plan(median: &Median, planned: &Planned) -> Option<f64> {
    const NS: f64 = 1e9;
    match (median.main, median.figure) {
        (Figure::Throughput, Figure::Throughput) => Some(planned.aggregate_bytes_per_second),
        (Figure::Throughput, Figure::CpuGbClient | Figure::CpuGbServer) => {
            Some(cpu_per_byte(&planned.flows)? * 1e9 * NS)
        }
        (Figure::P50, Figure::P50) | (Figure::Mean, Figure::Mean) => {
            let latencies = &planned.flows.first()?.latencies;
            Some(latencies.iter().find(|(bytes, _)| *bytes == median.bytes)?.1 * NS)
        }
        _ => None,
    }
}

fn rate(value: f64) -> String {
    Figure::Throughput.unit().show(value)
}

fn time(seconds: f64) -> String {
    Figure::Mean.unit().show(seconds * 1e9)
}

pub fn print(model: &Model, planned: &[Planned], streams: &[(u32, Vec<Planned>)], runs: &Runs) {
    say!("{}\nPlanned, not measured: max-min fair rates over links of", model.title);
    for link in &model.links {
        say!("  {}: {}", link.name, describe(link));
    }
    for protocol in &model.protocols {
        let mut words = Vec::new();
        let mut put = |value: f64, word: String| words.extend((value > 0.0).then_some(word));
        put(protocol.latency, format!("{} one way", time(protocol.latency)));
        put(protocol.cpu_per_message, format!("CPU {} a message", time(protocol.cpu_per_message)));
        put(protocol.cpu_per_byte, format!("CPU {} for 10^9 bytes", time(protocol.cpu_per_byte * 1e9)));
        words.extend(protocol.rate.map(|most| format!("a stream at most {}", rate(most))));
        say!("  {}: {}{}", protocol.name, words.join(", "), in_brackets(protocol.source.as_deref()));
    }
    for (at, (case, own)) in model.cases.iter().zip(planned).enumerate() {
        say!("\n{}", own.name);
        say!("{}", table(own));
        say!("aggregate: {}", rate(own.aggregate_bytes_per_second));
        for (count, all) in streams {
            let flows = if *count == 1 { "1 stream".to_owned() } else { format!("{count} streams") };
            let more = all.get(at).map_or(0.0, |planned| planned.aggregate_bytes_per_second);
            say!("aggregate of {flows} each: {}", rate(more));
        }
        ratios(own);
        match own.pays.as_slice() {
            [] => say!("what pays: neither a faster link nor more streams"),
            pays => {
                let pays: Vec<String> =
                    pays.iter().map(|(what, gain)| format!("{what} ({:+.1} %)", gain * 100.0)).collect();
                say!("what pays: {}", pays.join(", "));
            }
        }
        for Beside { cell, figure, measured, planned } in runs.of(case, own) {
            let (unit, title) = (figure.unit(), figure.title());
            let share = three_digits(measured / planned);
            say!("measured: {title} {}, {share} of the planned {} ({cell})", unit.show(measured), unit.show(planned));
        }
    }
}

fn ratios(own: &Planned) {
    let against = own.against.as_deref().unwrap_or_default();
    let published = |text: &Option<String>| {
        if let Some(text) = text {
            say!("published: {text}");
        }
    };
    if let Some(ratio) = own.ratio {
        say!("planned: {} times `{against}`, {:+.1} %", three_digits(ratio), (ratio - 1.0) * 100.0);
    }
    published(&own.published.rate);
    if let Some(saved) = own.latency_saved {
        say!("planned: {:.1} % less latency than `{against}`, on average", saved * 100.0);
    }
    published(&own.published.latency);
    if let Some(saved) = own.cpu_saved {
        say!("planned: {:.1} % less CPU time for a byte", saved * 100.0);
    }
    published(&own.published.cpu);
    if let Some(share) = own.share_of_peak {
        say!("planned: {:.1} % of the peak", share * 100.0);
    }
    published(&own.published.peak);
}

fn describe(link: &Link) -> String {
    let mut text = rate(link.raw_rate);
    if link.rate < link.raw_rate {
        text += &format!(", of which frames leave {}", rate(link.rate));
    }
    if link.latency > 0.0 {
        text += &format!(", {} to cross", time(link.latency));
    }
    text + &in_brackets(link.source.as_deref())
}

fn in_brackets(source: Option<&str>) -> String {
    source.map(|source| format!(" ({source})")).unwrap_or_default()
}

fn table(own: &Planned) -> comfy_table::Table {
    let has_cpu = own.flows.iter().any(|flow| flow.cpus > 0.0);
    let sizes = shown(&own.flows);
    let mut table = new_table();
    let mut header: Vec<String> = ["flow", "rate", "held by"].map(str::to_owned).into();
    header.extend(has_cpu.then(|| "CPUs at each end".to_owned()));
    header.extend(sizes.iter().map(|&(_, bytes)| format!("{} in", show_bytes(bytes))));
    table.set_header(header);
    for flow in &own.flows {
        let name = if flow.counts { flow.name.clone() } else { format!("{} (not counted)", flow.name) };
        let mut row = vec![name, rate(flow.bytes_per_second), flow.held_by.clone()];
        row.extend(has_cpu.then(|| three_digits(flow.cpus)));
        row.extend(sizes.iter().map(|&(at, _)| flow.latencies.get(at).map_or_else(String::new, |of| time(of.1))));
        table.add_row(row);
    }
    table
}

/// The places of some sizes, the first and the last among them.
fn shown(flows: &[PlannedFlow]) -> Vec<(usize, u64)> {
    let Some(first) = flows.first() else { return Vec::new() };
    let last = first.latencies.len().saturating_sub(1);
    let mut places: Vec<usize> = (0..SIZES_SHOWN).map(|index| index * last / (SIZES_SHOWN - 1)).collect();
    places.dedup();
    places.into_iter().filter_map(|at| Some((at, first.latencies.get(at)?.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Source;
    use crate::planner::file;

    const FILE: &str = "format = 1\ntitle = \"T\"\ndocument = \"D\"\n[[link]]\nname = \"a\"\nrate = \"1 GB/s\"\n\
        [[protocol]]\nname = \"p\"\nlatency = \"20 us\"\ncpu_gb = \"250 ms\"\n\
        [[case]]\nname = \"c\"\nbytes = [64]\ncell = [\"s\", \"l\", \"m\"]\ncolumn = \"tcp\"\n\
        flow = [{ name = \"f\", over = [\"a\"], by = \"p\" }]\n";

    #[test]
    fn throughput_latency_and_cpu_time_stand_beside_what_was_planned_of_them() {
        let model = file::read(&Source { name: "f".into(), text: FILE }).unwrap();
        let planned = model.plan();
        let median =
            |cell: &str, bytes, main, figure, tcp| Median { cell: cell.into(), bytes, main, figure, tcp, beeline: 0.0 };
        let first = vec![
            median("s", 65_536, Figure::Throughput, Figure::Throughput, 5e8),
            median("s", 65_536, Figure::Throughput, Figure::CpuGbServer, 5e8),
            median("s", 65_536, Figure::Throughput, Figure::Rate, 7.0),
            median("l", 64, Figure::P50, Figure::P50, 40_000.0),
            median("l", 64, Figure::P50, Figure::Throughput, 1.0),
            // Nothing is planned of this size.
            median("m", 128, Figure::P50, Figure::P50, 1.0),
        ];
        let second = vec![median("s", 65_536, Figure::Throughput, Figure::Throughput, 1.0)];
        let runs = Runs(vec![(PathBuf::new(), first), (PathBuf::new(), second)]);
        let beside = runs.of(&model.cases[0], &planned[0]);
        let told: Vec<(&str, Figure, f64)> = beside.iter().map(|b| (b.cell.as_str(), b.figure, b.measured)).collect();
        let wanted = [("s", Figure::Throughput, 5e8), ("s", Figure::CpuGbServer, 5e8), ("l", Figure::P50, 40_000.0)];
        assert_eq!(told, wanted);
        let near = |at: usize, wanted: f64| (beside[at].planned / wanted - 1.0).abs() < 1e-9;
        // 64 bytes at 1 GB/s are another 64 ns.
        assert!(near(0, 1e9) && near(1, 2.5e8) && near(2, 20_064.0), "{beside:?}");
    }
}

//! What a run consists of, and running it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::acceleration::Carried;
use crate::args::BenchOptions;
use crate::conductor::Launcher;
use crate::foreign::Foreign;
use crate::hosts::{Bridges, Hosts, Layouts};
use crate::interrupt::{self, Second};
use crate::machine::{self, Machine, choose_cpus};
use crate::process::find;
use crate::report::{Column, Limit, Results, Row};
use crate::say::complain;
use crate::suite::{Reading, Suite, Workload, workloads};
use crate::transport::Transport;
use crate::{limits, output};

/// What is going to be run.
pub struct SuitePlan {
    suite: Suite,
    workloads: Vec<&'static Workload>,
    columns: Vec<Transport>,
    foreign: Vec<Foreign>,
    rounds: u32,
    library: Option<PathBuf>,
    options: Option<String>,
    require_accelerated: bool,
    hosts: Option<Hosts>,
    /// Why the layouts of programs and rails are not measured, between two hosts that have none.
    without_layouts: Option<String>,
}

impl SuitePlan {
    pub fn new(options: &BenchOptions, mount: &[&str]) -> Result<Self> {
        let mut columns = options.transports.clone();
        columns.sort();
        columns.dedup();
        let (hosts, bridges) = match &options.hosts {
            Some(hosts) => {
                columns.retain(|&column| column != Transport::Unix);
                let (hosts, bridges) = Hosts::new(options, hosts, &find_beeline(None)?)?;
                (Some(hosts), bridges)
            }
            None => (None, None),
        };
        let layouts = hosts.as_ref().map(|hosts| hosts.layouts(bridges.as_ref()));
        let library = match columns.contains(&Transport::Beeline) && hosts.is_none() {
            true => Some(find_library(options.library.as_deref())?),
            false => None,
        };
        let (rounds, duration, idle) = match options.quick {
            true => (3, 100, 2),
            false => (5, 400, 10),
        };
        let workloads = chosen(options, &columns, layouts.as_ref().and_then(|layouts| layouts.as_ref().ok()));
        let without_layouts = layouts.as_ref().and_then(|layouts| layouts.as_ref().err()).map(|why| format!("{why:#}"));
        if workloads.is_empty() {
            if is_histogram_meant(options) {
                bail!("the histogram takes a pass of its own: give --histogram, too");
            }
            let why = without_layouts.map(|why| format!(" (none of the layouts: {why})")).unwrap_or_default();
            bail!("no workload has such a name{why}; --list shows them");
        }
        let cpus = cpus(options)?;
        let plan = SuitePlan {
            suite: Suite {
                launcher: Launcher::new(mount, library.clone(), options.options.clone(), hosts.clone())?,
                cpus,
                duration: Duration::from_millis(options.duration.unwrap_or(duration)),
                idle_duration: Duration::from_secs(idle),
                carried: RefCell::default(),
                bridges,
                layouts: layouts.and_then(Result::ok),
            },
            workloads,
            columns,
            foreign: match options.no_foreign || hosts.is_some() {
                true => Vec::new(),
                false => Foreign::installed(),
            },
            rounds: options.rounds.unwrap_or(rounds),
            library,
            options: options.options.clone(),
            require_accelerated: options.require_accelerated,
            hosts,
            without_layouts,
        };
        if let Some(hosts) = &plan.hosts {
            interrupt::watch(Second::IsNoted)?;
            plan.suite.reach().with_context(|| {
                format!(
                    "a program of the first of {} cannot reach one of the second at {}",
                    hosts.names(),
                    hosts.server_address()
                )
            })?;
        } else {
            interrupt::watch(Second::Ends)?;
        }
        Ok(plan)
    }

    /// The head of the table.
    pub fn heading(&self, machine: &Machine) -> Vec<String> {
        let Some(hosts) = &self.hosts else {
            let mut lines = vec![machine.line()];
            if machine.load_before > 0.5 {
                lines.push(format!("The machine was not quiet before the run (load {:.2}).", machine.load_before));
            }
            return lines;
        };
        let mut lines = hosts.lines();
        lines.push(format!(
            "Between {}, server at {}; Beeline goes over the bridge",
            hosts.names(),
            hosts.server_address()
        ));
        lines
    }

    /// What is to be said below the table: how the rails shared the work, and what could not be measured.
    pub fn notes(&self) -> Vec<String> {
        let moved = self.suite.bridges.iter().flat_map(Bridges::all_moved);
        let shares = moved.filter_map(|(name, moved)| Some(format!("rails, {name}: {}", moved.shares()?)));
        let without = self.without_layouts.iter().map(|why| format!("no layouts of programs and rails: {why}"));
        shares.chain(without).collect()
    }

    pub fn hosts_document(&self) -> Option<serde_json::Value> {
        Some(self.hosts.as_ref()?.document(self.suite.bridges.as_ref()))
    }

    pub fn settings(&self) -> output::Settings {
        output::Settings {
            version: env!("CARGO_PKG_VERSION"),
            rounds: self.rounds,
            sample_ms: self.suite.duration.as_millis() as u64,
            idle_seconds: self.suite.idle_duration.as_secs(),
            cpus: self.suite.cpus,
            library: self.library.clone(),
            library_options: self.options.clone(),
        }
    }

    pub fn execute(&self) -> Results {
        let mut results = Results::default();
        let bar = progress_bar(self.steps());
        for round in 0..self.rounds {
            for workload in self.workloads.iter().filter(|w| round == 0 || !w.runs_once()) {
                if results.ended_early.is_none() {
                    self.run_workload(workload, round, &bar, &mut results);
                }
            }
        }
        bar.finish_and_clear();
        results
    }

    /// Why nothing more should be measured, if so. A failed sample takes long, so they are not all waited for.
    fn end_of_run(&self, failed: bool) -> Option<String> {
        if interrupt::asked() {
            return Some("it was interrupted".into());
        }
        let bridges = self.suite.bridges.as_ref().filter(|_| failed)?;
        bridges.check().err().map(|e| format!("{e:#}"))
    }

    /// The rows of the report, in order.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.workloads.iter().flat_map(|w| w.rows);
        rows.copied().collect()
    }

    fn steps(&self) -> u64 {
        let each_round = |w: &&&Workload| !w.runs_once();
        let repeated = self.workloads.iter().filter(each_round).count() as u64;
        let once = self.workloads.len() as u64 - repeated;
        u64::from(self.rounds) * repeated + once
    }

    fn run_workload(&self, workload: &'static Workload, round: u32, bar: &ProgressBar, results: &mut Results) {
        let mut order = self.columns.clone();
        order.rotate_left(round as usize % self.columns.len());
        if workload.runs_side_by_side() {
            bar.set_message(workload.name);
            for (column, readings) in self.suite.run_side_by_side(workload, &order) {
                results.ended_early = self.end_of_run(false);
                self.record(workload, column, readings, results);
            }
        } else {
            for column in order {
                // What has failed once is not waited for again.
                let skip = results.has_failed(workload.rows, column.into()) || !workload.is_for(column);
                if skip || results.ended_early.is_some() {
                    continue;
                }
                let limited = column == Transport::Beeline;
                if limited {
                    self.measure_limits(workload, bar, results);
                }
                bar.set_message(format!("{} over {column}", workload.name));
                let readings = self.suite.run(workload, column);
                if limited {
                    self.measure_limits(workload, bar, results);
                }
                results.ended_early = self.end_of_run(readings.is_err());
                self.record(workload, column, readings, results);
            }
        }
        for foreign in &self.foreign {
            for row in workload.rows {
                if results.ended_early.is_some() || results.has_failed(std::slice::from_ref(row), foreign.column()) {
                    continue;
                }
                let Some(reading) = foreign.measure(row.id, self.suite.cpus) else {
                    continue;
                };
                bar.set_message(format!("{} over {}", workload.name, foreign.name()));
                results.ended_early = self.end_of_run(false);
                match reading {
                    Ok(value) => results.add(row.id, foreign.column(), value, Vec::new()),
                    Err(_) if results.ended_early.is_some() => {}
                    Err(e) => results.add_error(row.id, foreign.column(), format!("{e:#}")),
                }
            }
        }
        bar.inc(1);
    }

    fn record(
        &self,
        workload: &'static Workload,
        column: Transport,
        mut readings: Result<Vec<Reading>>,
        results: &mut Results,
    ) {
        let carried = self.suite.take_carried();
        if self.require_accelerated
            && let Some(complaint) = carried.complaint()
            && readings.is_ok()
        {
            readings = Err(anyhow!(complaint));
        }
        if carried != Carried::default() {
            results.carried.entry(workload.name).or_default().add(&carried);
        }
        match readings {
            // Its programs got the signal, too.
            Err(_) if interrupt::asked() => {}
            Ok(readings) => {
                for reading in readings {
                    results.add(reading.row, column.into(), reading.value, reading.samples);
                }
            }
            Err(e) => {
                for row in workload.rows {
                    results.add_error(row.id, column.into(), format!("{}: {e:#}", workload.name));
                }
            }
        }
    }

    /// The machine's limits, just before and after what they are to be compared with: a host moves its guests' CPUs
    /// about, and with them goes what two of them can do.
    fn measure_limits(&self, workload: &Workload, bar: &ProgressBar, results: &mut Results) {
        if self.hosts.is_some() {
            // One host's cache and memory bound nothing here.
            return;
        }
        bar.set_message(format!("the machine's limits for {}", workload.name));
        for limit in [Limit::HandOver, Limit::Memcpy64K, Limit::Memcpy1M] {
            let rows = || workload.rows.iter().filter(|row| row.limit == Some(limit));
            if rows().next().is_none() {
                continue;
            }
            let Some(value) = self.limit(limit).transpose() else {
                continue;
            };
            for row in rows() {
                note_limit(results, row, Column::Limit, &value);
            }
        }
        if let (Some(cpus), Some(block_bytes)) = (self.suite.cpus, workload.fills_a_ring()) {
            let value = limits::ring_bytes_per_second(cpus, block_bytes, self.limit_duration());
            for row in workload.rows {
                note_limit(results, row, Column::Ring, &value);
            }
        }
    }

    fn limit_duration(&self) -> Duration {
        (self.suite.duration / 4).min(Duration::from_millis(500))
    }

    /// `None` for the hand-over where there are no two CPUs to hand over between.
    fn limit(&self, limit: Limit) -> Result<Option<f64>> {
        let duration = self.limit_duration();
        let cpu = match self.suite.cpus {
            Some((first, _)) => first,
            None => *machine::allowed_cpus()?.first().context("no CPU")?,
        };
        match (limit, self.suite.cpus) {
            (Limit::HandOver, None) => Ok(None),
            (Limit::HandOver, Some(cpus)) => limits::hand_over_ns(cpus, duration).map(Some),
            (Limit::Memcpy64K, _) => limits::memcpy_bytes_per_second(cpu, 64 << 10, duration).map(Some),
            (Limit::Memcpy1M, _) => limits::memcpy_bytes_per_second(cpu, 1 << 20, duration).map(Some),
        }
    }
}

/// The workloads that are asked for and can be measured.
fn chosen(options: &BenchOptions, columns: &[Transport], layouts: Option<&Layouts>) -> Vec<&'static Workload> {
    let mut workloads: Vec<_> = workloads(options.hosts.is_some())
        .into_iter()
        .filter(|w| w.layout().is_none_or(|layout| layouts.is_some_and(|layouts| layouts.has(layout))))
        .filter(|w| columns.iter().any(|&column| w.is_for(column)))
        .filter(|w| options.names(w.name))
        .filter(|w| options.histogram || !w.is_histogram())
        .collect();
    // A check without these figures fails, so then they stay in.
    if !options.check && find("strace").is_none() && workloads.iter().any(|w| w.needs_strace()) {
        complain(format_args!("System calls are not counted, because strace is not installed."));
        workloads.retain(|w| !w.needs_strace());
    }
    workloads
}

/// Whether it is only for want of `--histogram` that a workload of this name is left out.
fn is_histogram_meant(options: &BenchOptions) -> bool {
    !options.histogram
        && workloads(options.hosts.is_some()).into_iter().any(|w| w.is_histogram() && options.names(w.name))
}

/// Where the two ends run; `None` where they are left alone.
fn cpus(options: &BenchOptions) -> Result<Option<(usize, usize)>> {
    match options.cpus {
        Some(cpus) => {
            if options.hosts.is_none() {
                machine::ensure_allowed(&[cpus.0, cpus.1])?;
            }
            Ok(Some(cpus))
        }
        // The bridges need CPUs, too, and CPUs of another host are not known here.
        None if options.hosts.is_some() => Ok(None),
        None => choose_cpus(),
    }
}

fn note_limit(results: &mut Results, row: &Row, column: Column, value: &Result<f64>) {
    match value {
        Ok(value) => results.add(row.id, column, *value, Vec::new()),
        Err(e) => results.add_error(row.id, column, format!("{e:#}")),
    }
}

/// A bar on standard error, drawn only on a terminal.
pub fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// The library that belongs to this program: beside it (a build tree) or in `../lib/beeline` (an installation).
pub fn find_library(wanted: Option<&Path>) -> Result<PathBuf> {
    const NAME: &str = "libbeeline.so";
    if let Some(path) = wanted {
        // LD_PRELOAD takes a name without a slash for one to be searched, so the path is made whole.
        return path.canonicalize().with_context(|| format!("there is no library {}", path.display()));
    }
    let program = std::env::current_exe()?;
    let directory = program.parent().context("this program has no directory")?;
    [directory.join(NAME), directory.join("../lib/beeline").join(NAME)]
        .into_iter()
        .find_map(|path| path.canonicalize().ok())
        .with_context(|| {
            format!(
                "{NAME} is neither beside {} nor in ../lib/beeline; give --library PATH, or leave the column out with --transports tcp,unix",
                program.display()
            )
        })
}

/// The `beeline` to run programs with: this program, or the one beside it.
pub fn find_beeline(wanted: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = wanted {
        return path.canonicalize().with_context(|| format!("there is no program {}", path.display()));
    }
    let path = std::env::current_exe()?.with_file_name("beeline");
    path.canonicalize().with_context(|| format!("there is no program {}; give --beeline PATH", path.display()))
}

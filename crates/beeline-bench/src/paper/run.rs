//! Running a plan: rounds over all cells that are still due, each pair written down at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cell::{Cell, Load, Work};
use super::figure::{Figure, Phase};
use super::links;
use super::place::{Between, Places};
use super::plan::{PaperPlan, Table};
use super::programs::{Ran, idle_time, packages};
use super::sample::{Maker, share_of_peak};
use super::store::{Measured, Record, Run, Settings, Writer};
use super::summary::is_sure;
use crate::acceleration::Carried;
use crate::args::BenchOptions;
use crate::hosts::{Host, Hosts};
use crate::interrupt;
use crate::machine::{Machine, ensure_allowed};
use crate::plan::{find_beeline, find_library, progress_bar};
use crate::transport::Transport;
use crate::worker::own_cost_ns;

/// The columns, each round beginning with the other.
const COLUMNS: [Transport; 2] = [Transport::Tcp, Transport::Beeline];
/// A cell that failed so often in a session is left: a failure takes long.
const FAILURES_MAX: usize = 2;
/// What a sample takes beside its duration: two processes, their connection, their end.
const BESIDE: Duration = Duration::from_millis(60);
/// The shortest sample of a program of others, about, and what its launchers take.
const PROGRAM_SAMPLE: Duration = Duration::from_millis(400);
/// The memory of the load, which is touched before it begins.
const LOAD_BEGIN: Duration = Duration::from_millis(150);

/// Makes samples as the settings of a run say.
pub struct Conductor {
    maker: Maker,
    places: Places,
}

/// Why there is no way to the hosts of a run.
#[derive(Debug)]
pub struct NoHosts(String);

impl std::fmt::Display for NoHosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoHosts {}

impl Conductor {
    pub fn new(settings: &Settings, mount: &[&str]) -> Result<Self> {
        let hosts = settings.hosts.as_ref();
        let names = hosts.map(|between| Host::parse_two(&between.hosts).map_err(anyhow::Error::msg)).transpose()?;
        if let (Some((a, b)), None) = (settings.cpus, hosts) {
            ensure_allowed(&[a, b])?;
        }
        let reached = match (hosts, &names) {
            (Some(between), Some(names)) => {
                let options = BenchOptions {
                    library: settings.library.clone(),
                    address: between.address,
                    bridge_sockets: between.bridge_sockets.clone(),
                    patience: between.patience,
                    remote: between.remote.clone(),
                    ..BenchOptions::plain()
                };
                let found = find_beeline(None).and_then(|beeline| Hosts::new(&options, names, &beeline));
                let (hosts, bridges) = found.map_err(|error| NoHosts(format!("{error:#}")))?;
                Some((hosts, bridges.context("the bridges were not asked")?, names.clone()))
            }
            _ => None,
        };
        let between = reached.as_ref().map(|(hosts, bridges, names)| Between {
            hosts: names.clone(),
            nodes: hosts.nodes(),
            layouts: hosts.layouts(Some(bridges)).map_err(|why| format!("{why:#}")),
        });
        let peak = match &reached {
            // A host that has no `tc` has all figures but this one.
            Some((_, bridges, hosts)) => links::peak(hosts, bridges.speeds()).unwrap_or_default(),
            None => None,
        };
        Ok(Self {
            places: Places::new(settings.cpus, between)?,
            maker: Maker {
                mount: mount.iter().map(|&word| word.to_owned()).collect(),
                // Between hosts each has its own, but programs of others begin here.
                library: settings.library.clone().or_else(|| find_library(None).ok()),
                options: settings.options.clone(),
                sample: Duration::from_millis(settings.sample_ms),
                hosts: reached,
                peak,
            },
        })
    }

    /// Measures what is due. The run that is returned has it all.
    pub fn execute(&self, mut run: Run, mut writer: Writer) -> Result<Run> {
        let since = Instant::now();
        let session = Record::Session {
            machine: Machine::describe()?,
            own_cost_ns: own_cost_ns()?,
            libraries: self.libraries(&run.settings),
            packages: packages(run.cells.iter().filter_map(|cell| cell.program.as_deref())),
        };
        note(&mut run, &mut writer, session)?;
        for cell in run.cells.clone() {
            if let Err(reason) = self.places.of(&cell) {
                note(&mut run, &mut writer, Record::Absent { cell: cell.name(), reason })?;
            }
        }
        let bar = progress_bar(0);
        let mut early = None;
        'all: loop {
            let due: Vec<Cell> = run.cells.iter().filter(|cell| is_due(&run, cell)).cloned().collect();
            if due.is_empty() {
                break;
            }
            let left: u64 = run.cells.iter().map(|cell| rounds_left(&run, cell)).sum();
            bar.set_length(bar.position() + left.max(due.len() as u64));
            for cell in due {
                if let Some(minutes) = run.settings.minutes_max.filter(|minutes| since.elapsed() >= minute(*minutes)) {
                    early = Some(format!("the limit of {minutes} min was reached"));
                    break 'all;
                }
                bar.set_message(cell.name());
                let records = self.round(&run, &cell, since);
                if interrupt::asked() {
                    // Half a pair compares nothing, and its programs got the signal, too.
                    early = Some("it was interrupted".to_owned());
                    break 'all;
                }
                let has_failed = matches!(records[0], Record::Failed { .. });
                records.into_iter().try_for_each(|record| note(&mut run, &mut writer, record))?;
                bar.inc(1);
                if has_failed && let Err(why) = self.check() {
                    early = Some(format!("{why:#}"));
                    break 'all;
                }
            }
        }
        bar.finish_and_clear();
        note(&mut run, &mut writer, Record::End { early })?;
        Ok(run)
    }

    /// One round of one cell: both columns, and what stands beside them.
    fn round(&self, run: &Run, cell: &Cell, since: Instant) -> Vec<Record> {
        let mut records = vec![self.pair(run, cell, since)];
        let Record::Pair { round, .. } = records[0] else { return records };
        let table = run.plan.tables.iter().find(|table| *table.id.get_ref() == cell.table);
        for &by in table.map(|table| &table.beside).into_iter().flatten() {
            let is_known = run.of(cell).is_some_and(|measured| measured.not_beside.contains_key(&by));
            let Ok(stand) = self.places.of(cell) else { continue };
            if is_known || interrupt::asked() {
                continue;
            }
            let cell_name = cell.name();
            records.push(match self.maker.beside(cell, by, &stand) {
                Ok(Ran::Measured(sample, _)) => Record::Beside { cell: cell_name, round, by, sample },
                Ok(Ran::Absent(reason)) => Record::NotBeside { cell: cell_name, by, reason },
                Err(error) => Record::NotBeside { cell: cell_name, by, reason: format!("it failed: {error:#}") },
            });
        }
        records
    }

    /// One round of one cell over TCP and over Beeline.
    fn pair(&self, run: &Run, cell: &Cell, since: Instant) -> Record {
        let round = run.of(cell).map_or(0, |measured| measured.tcp.len() as u32);
        let mut columns = COLUMNS;
        columns.rotate_left(round as usize % COLUMNS.len());
        let mut samples = Vec::new();
        for column in columns {
            let stand = match self.places.of(cell) {
                Ok(stand) => stand,
                Err(reason) => return Record::Absent { cell: cell.name(), reason },
            };
            match self.maker.sample(cell, column, &stand) {
                Ok(Ran::Measured(sample, carried)) => samples.push((column, (sample, carried))),
                Ok(Ran::Absent(reason)) => return Record::Absent { cell: cell.name(), reason },
                Err(error) => {
                    return Record::Failed { cell: cell.name(), round, error: format!("{column}: {error:#}") };
                }
            }
            if interrupt::asked() {
                break;
            }
        }
        samples.sort_by_key(|(column, _)| *column);
        let table = run.plan.tables.iter().find(|table| *table.id.get_ref() == cell.table);
        if let Some(peak) = table.and_then(Table::peak).or(self.maker.peak) {
            for (_, (sample, _)) in &mut samples {
                let share = share_of_peak(cell, sample, peak);
                sample.extend(share.map(|share| (Figure::PeakShare, share)));
            }
        }
        let mut samples = samples.into_iter().map(|(_, sample)| sample);
        let (Some((tcp, _)), Some((beeline, carried))) = (samples.next(), samples.next()) else {
            return Record::Failed { cell: cell.name(), round, error: "it was interrupted".into() };
        };
        Record::Pair { cell: cell.name(), round, at_s: since.elapsed().as_secs_f64(), tcp, beeline, carried }
    }

    /// Hashes of the library at each host, as far as they are known.
    pub fn libraries(&self, settings: &Settings) -> Vec<String> {
        match &self.maker.hosts {
            Some((hosts, ..)) => hosts.libraries(),
            None => settings.library_hash.iter().cloned().collect(),
        }
    }

    /// Whether the hosts are still there.
    fn check(&self) -> Result<()> {
        self.maker.hosts.as_ref().map_or(Ok(()), |(_, bridges, _)| bridges.check())
    }
}

fn minute(count: u32) -> Duration {
    Duration::from_secs(60) * count
}

fn note(run: &mut Run, writer: &mut Writer, record: Record) -> Result<()> {
    writer.add(&record)?;
    run.take(record);
    Ok(())
}

fn rounds_left(run: &Run, cell: &Cell) -> u64 {
    let done = run.of(cell).map_or(0, |measured| measured.tcp.len() as u32);
    match is_due(run, cell) {
        true => u64::from(run.settings.rounds.saturating_sub(done)).max(1),
        false => 0,
    }
}

fn is_due(run: &Run, cell: &Cell) -> bool {
    let settings = &run.settings;
    let Some(measured) = run.of(cell) else { return true };
    let Measured { tcp, errors, absent, .. } = measured;
    let done = tcp.len() as u32;
    let is_open = done < settings.rounds || done < settings.rounds_max && !is_sure_enough(settings, cell, measured);
    absent.is_none() && errors.len() < FAILURES_MAX && is_open
}

/// Whether the settings ask for nothing more.
fn is_sure_enough(settings: &Settings, cell: &Cell, measured: &Measured) -> bool {
    settings.within.is_none_or(|within| is_sure(cell, measured, settings.confidence, within))
}

/// The cells that were measured, and whose intervals stayed wider than was asked for.
pub fn unsure(run: &Run) -> Vec<&Cell> {
    let is_unsure = |cell: &&Cell| {
        run.of(cell).is_some_and(|measured| !measured.tcp.is_empty() && !is_sure_enough(&run.settings, cell, measured))
    };
    run.cells.iter().filter(is_unsure).collect()
}

/// `--dry-run`: the cells, and about how long they take.
pub fn describe(plan: &PaperPlan, cells: &[Cell], settings: &Settings, conductor: &Conductor) {
    say!("{}: {}", plan.name.get_ref(), plan.title);
    let mut all = Duration::ZERO;
    for cell in cells {
        match conductor.places.of(cell) {
            Ok(_) => {
                let table = plan.tables.iter().find(|table| *table.id.get_ref() == cell.table);
                let beside = table.map_or(0, |table| table.beside.len()) as u32;
                let pair = pair_takes(settings, cell);
                let took = (pair + pair / 2 * beside) * settings.rounds;
                all += took;
                say!("  {:<60} {:>6.1} s", cell.name(), took.as_secs_f64());
            }
            Err(reason) => say!("  {:<60} not measured: {reason}", cell.name()),
        }
    }
    let is_meant = |table: &&super::plan::Table| settings.only.is_empty() && table.not_measured.is_some();
    for table in plan.tables.iter().filter(is_meant) {
        say!("  {:<60} not measured: {}", table.id.get_ref(), table.not_measured.as_deref().unwrap_or_default());
    }
    let whole = Duration::from_secs(all.as_secs() + 1);
    let until = settings.within.map_or_else(String::new, |within| {
        format!(", and up to {} rounds until {} holds within {within}", settings.rounds_max, settings.confidence)
    });
    let about = humantime::format_duration(whole);
    say!("{} cells, {} rounds: about {about}{until}", cells.len(), settings.rounds);
}

/// Both columns of a cell, once.
fn pair_takes(settings: &Settings, cell: &Cell) -> Duration {
    if cell.work.is_program() {
        // Programs of others do not know short samples, and take a while to start.
        let idle = cell.program.as_deref().map_or(Duration::ZERO, idle_time);
        return 2 * (Duration::from_millis(settings.sample_ms).max(PROGRAM_SAMPLE) + idle);
    }
    // A warm-up of an eighth, and the sender's last quarter.
    let parts = if cell.work == Work::Turned { Phase::ALL.len() as u32 } else { 1 };
    let sample = Duration::from_millis(settings.sample_ms) * 11 / 8 * parts + BESIDE;
    let load = if cell.load == Load::None { Duration::ZERO } else { LOAD_BEGIN };
    2 * (sample + load)
}

/// How the connections of some cells were carried, where not all went over lanes.
pub fn complaints(run: &Run) -> Vec<(String, String)> {
    let complaint = |cell: &Cell| {
        let measured = run.of(cell)?;
        let mut carried: Carried = measured.carried.clone();
        if cell.work.is_program() {
            // Launchers try addresses where nobody listens, which carries nothing.
            carried.fallen_back.remove("no_listener");
        }
        let counted = if run.settings.hosts.is_some() { carried.bridged } else { carried.accelerated };
        let is_unseen = cell.work.is_program() && !measured.beeline.is_empty() && counted == 0;
        let unseen = || is_unseen.then(|| "no connection was seen to go over a lane".to_owned());
        Some((cell.name(), carried.complaint().or_else(unseen)?))
    };
    run.cells.iter().filter_map(complaint).collect()
}

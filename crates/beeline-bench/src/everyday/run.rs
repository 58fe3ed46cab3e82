//! Running the matrix: rounds over all cells, TCP and Beeline alternating within each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::cell::{Cell, Placement, Style, Work};
use super::worker::{EverydayArgs, Part};
use crate::acceleration::Carried;
use crate::args::BenchOptions;
use crate::conductor::{Launcher, Worker};
use crate::interrupt;
use crate::machine::{allowed_cpus, choose_cpus, ensure_allowed};
use crate::plan::{find_library, progress_bar};
use crate::transport::Transport;
use crate::worker::events::Outcome;

/// How long a server has to get into its first `accept` or wait, as one that people run is long before clients come.
const SETTLING: Duration = Duration::from_millis(10);

/// The transports that are compared, each round beginning with the other.
const COLUMNS: [Transport; 2] = [Transport::Tcp, Transport::Beeline];

/// One sample: what a client measured, and what it cost both ends.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Operations a second.
    pub rate: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_bytes_per_second: Option<f64>,
    /// CPU time of both ends, for each operation, in microseconds. What goes before the measured part is in it.
    pub cpu_us: f64,
}

/// Both columns of a cell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    pub tcp: Vec<Sample>,
    pub beeline: Vec<Sample>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    pub carried: Carried,
}

/// All cells of a run.
#[derive(Debug, Default)]
pub struct Matrix {
    pub cells: BTreeMap<Cell, Measured>,
    pub ended_early: Option<String>,
}

/// What is going to be run.
pub struct EverydayPlan {
    cells: Vec<Cell>,
    launcher: Launcher,
    /// The two CPUs that everything happens on, or the only one.
    cpus: Vec<usize>,
    rounds: u32,
    duration: Duration,
    pub library: PathBuf,
    pub options: Option<String>,
    require_accelerated: bool,
}

impl EverydayPlan {
    pub fn new(options: &BenchOptions, mount: &[&str]) -> Result<Self> {
        let cpus = match options.cpus {
            Some((first, second)) => vec![first, second],
            None => match choose_cpus()? {
                Some((first, second)) => vec![first, second],
                None => allowed_cpus()?,
            },
        };
        ensure_allowed(&cpus)?;
        let named = |patterns: &[String], cell: Cell| patterns.iter().any(|pattern| cell.matches(pattern));
        let cells: Vec<Cell> = Cell::all(cpus.len())
            .into_iter()
            .filter(|&cell| options.only.is_empty() || named(&options.only, cell))
            .filter(|&cell| !named(&options.except, cell))
            .collect();
        if cells.is_empty() {
            bail!("no cell has such a name; --everyday --list shows them");
        }
        let library = find_library(options.library.as_deref())?;
        let (rounds, duration_ms) = if options.quick { (3, 60) } else { (5, 150) };
        Ok(Self {
            cells,
            launcher: Launcher::new(mount, Some(library.clone()), options.options.clone(), None)?,
            cpus,
            rounds: options.rounds.unwrap_or(rounds),
            duration: Duration::from_millis(options.duration.unwrap_or(duration_ms)),
            library,
            options: options.options.clone(),
            require_accelerated: options.require_accelerated,
        })
    }

    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    pub fn duration(&self) -> Duration {
        self.duration
    }

    pub fn execute(&self) -> Matrix {
        let mut matrix = Matrix::default();
        let bar = progress_bar(u64::from(self.rounds) * self.cells.len() as u64);
        'all: for round in 0..self.rounds {
            for &cell in &self.cells {
                bar.set_message(cell.name());
                let mut columns = COLUMNS;
                columns.rotate_left(round as usize % COLUMNS.len());
                let mut pair = Vec::new();
                for column in columns {
                    pair.push((column, self.sample(cell, column)));
                    if interrupt::asked() {
                        // Half a pair compares nothing, and its programs got the signal, too.
                        matrix.ended_early = Some("it was interrupted".into());
                        break 'all;
                    }
                }
                matrix.cells.entry(cell).or_default().add(pair);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        matrix
    }

    /// One sample of one cell over one transport.
    fn sample(&self, cell: Cell, column: Transport) -> Result<(Sample, Carried)> {
        let _beside = self.beside(cell.placement)?;
        let [client_cpus, server_cpus] = self.places(cell.placement);
        let args = |part, cpus: &[usize]| EverydayArgs {
            part,
            cpus: cpus.to_vec(),
            style: cell.style,
            work: cell.work,
            address: None,
            duration_ms: self.duration.as_millis() as u64,
        };
        let mut server = self.start(column, &args(Part::Server, &server_cpus))?;
        let address = server.ready()?;
        std::thread::sleep(SETTLING);
        let address = Some(address.parse().context("the server's address")?);
        let mut client = self.start(column, &EverydayArgs { address, ..args(Part::Client, &client_cpus) })?;
        let seen = client.result().map_err(|error| match server.failure() {
            Some(why) => error.context(why),
            None => error,
        })?;
        server.go_on()?;
        let served = server.result()?;
        if self.require_accelerated
            && let Some(complaint) = seen.carried.complaint()
        {
            bail!(complaint);
        }
        Ok((Sample::of(&seen, &served)?, seen.carried))
    }

    fn start(&self, column: Transport, args: &EverydayArgs) -> Result<Worker> {
        let name = format!("{:?} over {column}", args.part).to_lowercase();
        let mut worker = self.launcher.start_program(column, args.to_args(), name, args.part == Part::Client)?;
        worker.add_patience(8 * args.duration());
        Ok(worker)
    }

    /// The CPUs of client and server.
    fn places(&self, placement: Placement) -> [Vec<usize>; 2] {
        let all = || self.cpus.clone();
        let only = |index: usize| self.cpus.get(index).copied().into_iter().collect();
        match placement {
            Placement::Pinned => [only(0), only(1)],
            Placement::One => [only(0), only(0)],
            Placement::Free | Placement::Busy1 | Placement::Busy2 | Placement::Awake => [all(), all()],
        }
    }

    /// What else runs. It ends with what is returned.
    fn beside(&self, placement: Placement) -> Result<Vec<Worker>> {
        let burning = |part, cpus: Vec<usize>| {
            let args = EverydayArgs {
                part,
                cpus,
                style: Style::Threads,
                work: Work::Pingpong,
                address: None,
                duration_ms: self.duration.as_millis() as u64,
            };
            let mut worker = self.start(Transport::Tcp, &args)?;
            worker.reach("burning")?;
            Ok(worker)
        };
        match placement {
            Placement::Pinned | Placement::Free | Placement::One => Ok(Vec::new()),
            Placement::Busy1 => Ok(vec![burning(Part::Hog, self.cpus.clone())?]),
            Placement::Busy2 => (0..2).map(|_| burning(Part::Hog, self.cpus.clone())).collect(),
            Placement::Awake => self.cpus.iter().map(|&cpu| burning(Part::Waker, vec![cpu])).collect(),
        }
    }
}

impl Sample {
    fn of(client: &Outcome, server: &Outcome) -> Result<Self> {
        let figure = |name: &str| client.values.get(name).copied();
        let needed = |name: &str| figure(name).with_context(|| format!("a client did not report {name}"));
        let server_cpu = server.values.get("cpu_seconds").context("a server did not report its CPU time")?;
        let cpu_seconds = needed("cpu_seconds")? + server_cpu;
        Ok(Self {
            rate: needed("rate")?,
            mean_ns: figure("mean_ns"),
            p50_ns: figure("p50_ns"),
            p99_ns: figure("p99_ns"),
            p999_ns: figure("p999_ns"),
            stream_bytes_per_second: figure("stream_bytes_per_second"),
            cpu_us: cpu_seconds * 1e6 / needed("operations")?.max(1.0),
        })
    }
}

impl Measured {
    /// Takes a round in. Where one of the two failed, neither counts: ratios are those of pairs.
    fn add(&mut self, pair: Vec<(Transport, Result<(Sample, Carried)>)>) {
        let mut samples = Vec::new();
        for (column, result) in pair {
            match result {
                Ok((sample, carried)) => {
                    self.carried.add(&carried);
                    samples.push((column, sample));
                }
                Err(error) => self.errors.push(format!("{column}: {error:#}")),
            }
        }
        if samples.len() < COLUMNS.len() {
            return;
        }
        for (column, sample) in samples {
            match column {
                Transport::Beeline => self.beeline.push(sample),
                _ => self.tcp.push(sample),
            }
        }
    }
}

//! One sample of one cell: two fresh processes, and what they and the machine's load say.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::axis::{Beside, Turn};
use super::cell::{Cell, Move, Work};
use super::coalesce;
use super::figure::{Figure, Sample, fairness};
use super::links;
use super::loads::Running;
use super::pairs::{self, Made};
use super::place::Stand;
use super::programs::apart::{Apart, ensure_bridged};
use super::programs::{self, Ran, Way};
use super::turned::{self, QUESTIONS, Turner};
use crate::acceleration::Carried;
use crate::conductor::{Launcher, Pair};
use crate::everyday::cell::word;
use crate::foreign::verbs::Ends;
use crate::foreign::{Foreign, Test};
use crate::hosts::{Bridges, Host, Hosts, Moved};
use crate::transport::Transport;
use crate::worker::args::{Program, WorkerArgs};
use crate::worker::events::Outcome;

/// More messages pushed than pulled, or the reverse, for a sample to be one of the two: the last piece may be smaller
/// than what is pulled.
const MOSTLY: u64 = 10;

/// What samples are made with.
pub struct Maker {
    pub mount: Vec<String>,
    pub library: Option<PathBuf>,
    /// For every cell.
    pub options: Option<String>,
    pub sample: Duration,
    pub hosts: Option<(Hosts, Bridges, [Host; 2])>,
    /// What the links between the hosts carry one way, in bytes a second, where anybody says so.
    pub peak: Option<f64>,
}

impl Maker {
    /// Measures a cell over one transport.
    pub fn sample(&self, cell: &Cell, column: Transport, stand: &Stand) -> Result<Ran> {
        if let Some((between, _, hosts)) = &self.hosts {
            let not_so = || coalesce::objection(cell, hosts, between.server_address());
            if let Some(reason) = links::other_rails(cell, hosts)?.map_or_else(not_so, |reason| Ok(Some(reason)))? {
                return Ok(Ran::Absent(reason));
            }
        }
        if cell.work.is_program() {
            return self.program(cell, column, None, stand);
        }
        self.own(cell, column, stand).map(|made| Ran::Measured(made.sample, made.carried))
    }

    /// Measures a cell by other means than TCP and Beeline.
    pub fn beside(&self, cell: &Cell, beside: Beside, stand: &Stand) -> Result<Ran> {
        if self.hosts.is_some() && beside != Beside::Verbs {
            return Ok(Ran::Absent("on one host only".into()));
        }
        if let Some(program) = &cell.program {
            return match programs::without(program, beside) {
                Some(reason) => Ok(Ran::Absent(reason)),
                None => self.program(cell, Transport::Tcp, Some(beside), stand),
            };
        }
        let bytes = usize::try_from(cell.bytes)?;
        let test = if cell.work == Work::Latency { Test::latency(bytes) } else { Test::stream(bytes) };
        if beside == Beside::Verbs {
            return self.verbs(cell, test, stand);
        }
        let [Some(client), Some(server)] = stand.cpus else {
            return Ok(Ran::Absent("it takes a CPU for each end".into()));
        };
        match Foreign::find(beside) {
            Err(reason) => Ok(Ran::Absent(reason)),
            Ok(foreign) => match foreign.run(test, (client, server)) {
                None => Ok(Ran::Absent("its program has no stream".into())),
                Some(value) => Ok(Ran::Measured(Sample::from([(cell.work.main(), value?)]), Carried::default())),
            },
        }
    }

    fn verbs(&self, cell: &Cell, test: Test, stand: &Stand) -> Result<Ran> {
        let ends = match &self.hosts {
            None => Ends::here(stand.cpus),
            Some((between, _, hosts)) => Ok(Ends {
                hosts: hosts.clone(),
                server: stand.over.as_ref().map_or(between.server_address(), |over| over.address),
                cpus: stand.cpus,
                patience: between.patience(),
            }),
        };
        let ends = ends.and_then(|ends| ends.objection().map_or(Ok(ends), Err));
        match ends {
            Err(reason) => Ok(Ran::Absent(reason)),
            Ok(ends) => Ok(Ran::Measured(Sample::from([(cell.work.main(), ends.run(test)?)]), Carried::default())),
        }
    }

    /// Runs a program of others.
    fn program(&self, cell: &Cell, column: Transport, beside: Option<Beside>, stand: &Stand) -> Result<Ran> {
        let program = cell.program.as_deref().context("which program?")?;
        let options = self.options_of(cell);
        let library = match column {
            Transport::Beeline => Some(self.library.as_deref().context("there is no libbeeline.so")?),
            _ => None,
        };
        let apart = self.hosts.as_ref().map(|(between, _, hosts)| Apart {
            hosts: hosts.clone(),
            server: stand.over.as_ref().map_or(between.server_address(), |over| over.address),
            preloaded: library.map_or(Vec::new(), |_| between.preloaded_at_server(&options)),
            patience: between.patience(),
        });
        let way = Way {
            library: library.map(|path| (path, options.as_str())),
            beside,
            cpus: stand.cpus,
            sample: self.sample,
            apart,
        };
        let loads = if beside.is_none() { &stand.loads[..] } else { &[] };
        let loads = Running::begin(loads, &self.launcher(cell)?, &self.args(Program::Load))?;
        let run = || match self.hosts.as_ref().filter(|_| library.is_some()) {
            None => programs::run(program, cell.bytes, &way),
            Some((_, bridges, _)) => {
                let (ran, moved) = bridges.watch("paper", || programs::run(program, cell.bytes, &way))?;
                if let Ran::Measured(_, carried) = &ran {
                    ensure_bridged(cell, carried, &moved).with_context(|| program.to_owned())?;
                }
                Ok(ran)
            }
        };
        let mut ran = self.as_told(cell, column, stand, run, |ran| match ran {
            Ran::Measured(..) => vec![1.0],
            _ => Vec::new(),
        })?;
        if let Ran::Measured(sample, _) = &mut ran {
            sample.extend(loads.end()?.map(|achieved| (Figure::Load, achieved)));
        }
        if let Ran::Measured(sample, _) = &ran {
            let main = cell.work.main();
            ensure!(sample.contains_key(&main), "{program} gave no {}", main.title());
        }
        Ok(ran)
    }

    fn own(&self, cell: &Cell, column: Transport, stand: &Stand) -> Result<Made> {
        self.as_told(cell, column, stand, || self.loaded(cell, column, stand), |made| made.moved.clone())
    }

    /// Runs something while interfaces and bridges are set as the cell tells, and looks whether it was so. What each
    /// pair moved, `each` tells.
    fn as_told<T>(
        &self,
        cell: &Cell,
        column: Transport,
        stand: &Stand,
        run: impl FnOnce() -> Result<T>,
        each: impl FnOnce(&T) -> Vec<f64>,
    ) -> Result<T> {
        let Some((between, bridges, hosts)) = &self.hosts else { return run() };
        let run = || coalesce::with_coalescing(cell, hosts, between.server_address(), run);
        let run = || links::with_mtu(cell, hosts, run);
        if column != Transport::Beeline {
            return run();
        }
        let run = || pairs::over_their_rails(bridges, cell, stand, run, each);
        let run = || match cell.chunk {
            Some(bytes) => bridges.with_setting("chunk", bytes, run),
            None => run(),
        };
        if let Some(turn) = &cell.turn {
            let turn = Turn::parse(turn).map_err(anyhow::Error::msg)?;
            return bridges.with_setting("pull_over_tcp", 1, || bridges.kept(&turn.key, run));
        }
        const NEVER: u64 = u32::MAX as u64;
        const ALWAYS: u64 = 4096;
        let pull_min = match cell.moves {
            Move::Any => return run(),
            Move::Push => [NEVER; 2],
            Move::Pull => [ALWAYS; 2],
            Move::Mixed => [NEVER, ALWAYS],
        };
        bridges.with_setting("pull_over_tcp", 1, || {
            let watched = || bridges.watch("paper", run);
            let (made, moved) = bridges.with_settings("pull_min", pull_min, watched)?;
            ensure!(is_moved(cell.moves, &moved), "{} pieces were pushed and {} pulled", moved.pushes, moved.pulls);
            Ok(made)
        })
    }

    /// The library's options for a cell.
    fn options_of(&self, cell: &Cell) -> String {
        let mut options: Vec<String> = self.options.iter().cloned().collect();
        options.push(format!("wait={}", word(cell.completion)));
        options.extend(Some(cell.options.clone()).filter(|options| !options.is_empty()));
        options.join(",")
    }

    fn launcher(&self, cell: &Cell) -> Result<Launcher> {
        let mount: Vec<&str> = self.mount.iter().map(String::as_str).collect();
        let hosts = self.hosts.as_ref().map(|(hosts, ..)| hosts.clone());
        Launcher::new(&mount, self.library.clone(), Some(self.options_of(cell)), hosts)
    }

    fn args(&self, program: Program) -> WorkerArgs {
        WorkerArgs { duration_ms: self.sample.as_millis() as u64, ..WorkerArgs::new(program) }
    }

    fn loaded(&self, cell: &Cell, column: Transport, stand: &Stand) -> Result<Made> {
        let launcher = self.launcher(cell)?;
        let loads = Running::begin(&stand.loads, &launcher, &self.args(Program::Load))?;
        let mut made = self.pairs(&launcher, cell, column, stand)?;
        made.sample.extend(loads.end()?.map(|achieved| (Figure::Load, achieved)));
        Ok(made)
    }

    fn pairs(&self, launcher: &Launcher, cell: &Cell, column: Transport, stand: &Stand) -> Result<Made> {
        let program = match cell.work {
            Work::Latency => Program::Pingpong,
            Work::Stream => Program::Stream,
            Work::Both => Program::Duplex,
            Work::Turned => Program::Turned,
            Work::ConnectRequest | Work::ConnectClose => Program::Connect,
            Work::ProgramLatency | Work::ProgramStream => bail!("it is no work of the instrument's own"),
        };
        let args = WorkerArgs {
            message_bytes: if cell.work == Work::ConnectClose { 0 } else { usize::try_from(cell.bytes)? },
            streams: cell.streams,
            buffer_bytes: cell.buffer.map(usize::try_from).transpose()?,
            histogram: cell.work == Work::Latency,
            pace: cell.pace,
            questions: if cell.work == Work::Turned { QUESTIONS } else { 0 },
            start_together: stand.second.is_some(),
            counts: stand.second.is_some(),
            ..self.args(program)
        };
        let mut pairs: Vec<Pair> =
            stand.all().map(|stand| pairs::start(launcher, column, &args, stand)).collect::<Result<_>>()?;
        // The largest messages take longer than a sample is long.
        for worker in pairs.iter_mut().flat_map(|pair| [&mut pair.client, &mut pair.server]) {
            worker.add_patience(8 * self.sample);
        }
        if cell.work == Work::Turned {
            let turner = match (column, &self.hosts) {
                (Transport::Beeline, Some((_, bridges, _))) => Turner::Bridges(bridges),
                (Transport::Beeline, None) => Turner::Library,
                _ => Turner::None,
            };
            let (sample, carried) = turned::conduct(pairs.remove(0), cell, &turner, self.sample)?;
            return Ok(Made { sample, carried, moved: vec![1.0] });
        }
        let ([client, server], moved) = pairs::finish(pairs, cell)?;
        Ok(Made { sample: read(cell, &client, &server)?, carried: client.carried, moved })
    }
}

/// The share of a peak that a sample has.
pub fn share_of_peak(cell: &Cell, sample: &Sample, peak: f64) -> Option<f64> {
    let ways = if cell.work == Work::Both { 2.0 } else { 1.0 };
    cell.work.has(Figure::PeakShare).then(|| sample.get(&Figure::Throughput))?.map(|rate| rate / (ways * peak))
}

/// Whether pieces went as the cell says. Of two ways at once each has its part, though one may have more.
fn is_moved(moves: Move, moved: &Moved) -> bool {
    match moves {
        Move::Any => true,
        Move::Push => moved.pushes > MOSTLY * moved.pulls,
        Move::Pull => moved.pulls > MOSTLY * moved.pushes,
        Move::Mixed => moved.pushes.min(moved.pulls) > moved.pushes.max(moved.pulls) / MOSTLY,
    }
}

fn figure(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.values.get(name).copied().with_context(|| format!("a worker did not report {name}"))
}

/// What both ends reported, as figures.
fn read(cell: &Cell, client: &Outcome, server: &Outcome) -> Result<Sample> {
    let mut sample = Sample::new();
    let bytes = cell.bytes as f64;
    // What was sent or done in all: that is what the CPU time was spent on.
    let messages = match cell.work {
        Work::Latency => {
            sample.insert(Figure::P50, figure(client, "p50_ns")?);
            sample.insert(Figure::P99, figure(client, "p99_ns")?);
            let trips = figure(client, "trips_per_second")?;
            sample.insert(Figure::Rate, trips);
            sample.insert(Figure::Throughput, 2.0 * trips * bytes);
            figure(client, "messages")?
        }
        Work::Stream | Work::Both => {
            let mut rate = figure(server, "bytes_per_second")?;
            let mut moved = figure(client, "bytes_sent")?;
            let mut shares = server.samples.clone();
            if cell.work == Work::Both {
                let [sent, received] = [figure(server, "bytes_sent")?, figure(client, "bytes_received")?];
                ensure!(sent == received, "{sent} bytes were sent to the client and {received} arrived");
                rate += figure(client, "bytes_per_second")?;
                moved += sent;
                shares.extend(&client.samples);
            }
            sample.insert(Figure::Throughput, rate);
            sample.insert(Figure::Rate, rate / bytes);
            // With one stream they are pieces of time, not streams.
            let shares = if cell.streams > 1 || cell.place.pairs() > 1 { shares } else { vec![1.0] };
            sample.insert(Figure::Fairness, fairness(&shares).context("no stream moved anything")?);
            moved / bytes
        }
        Work::ConnectRequest | Work::ConnectClose => {
            sample.insert(Figure::Rate, figure(client, "connections_per_second")?);
            figure(client, "messages")?
        }
        Work::Turned | Work::ProgramLatency | Work::ProgramStream => bail!("their programs do not report so"),
    };
    ensure!(messages > 0.0, "the programs did nothing");
    // A trip is two messages: one each way.
    let gigabytes = messages * bytes * if cell.work == Work::Latency { 2.0 } else { 1.0 } / 1e9;
    let rate = sample.get(&Figure::Rate).copied().context("no rate")?;
    for (outcome, each, per_gb, share) in [
        (client, Figure::CpuClient, Figure::CpuGbClient, Figure::CpuShareClient),
        (server, Figure::CpuServer, Figure::CpuGbServer, Figure::CpuShareServer),
    ] {
        let cpu_ns = figure(outcome, "cpu_seconds")? * 1e9;
        sample.insert(each, cpu_ns / messages);
        sample.insert(share, cpu_ns / messages * rate / 1e9);
        if cell.work.has_messages() {
            sample.insert(per_gb, cpu_ns / gigabytes);
        }
    }
    ensure!(sample.values().all(|value| value.is_finite()), "the programs reported what is no number: {sample:?}");
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::paper::cell::{Completion, Load, Place};

    fn outcome(values: &[(&str, f64)], samples: &[f64]) -> Outcome {
        let values: BTreeMap<String, f64> = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Outcome { values, samples: samples.to_vec(), ..Outcome::default() }
    }

    fn cell(work: Work, bytes: u64, streams: usize) -> Cell {
        Cell {
            table: "t".into(),
            work,
            program: None,
            bytes,
            streams,
            completion: Completion::Lazy,
            pace: None,
            buffer: None,
            options: String::new(),
            place: Place::Apart,
            load: Load::None,
            moves: Move::Any,
            chunk: None,
            mtu: None,
            coalescing: None,
            rails: None,
            turn: None,
        }
    }

    #[test]
    fn cpu_time_is_told_for_what_was_moved_in_all() {
        let client = outcome(&[("bytes_sent", 4e9), ("cpu_seconds", 2.0)], &[]);
        let server = outcome(&[("bytes_per_second", 3e9), ("cpu_seconds", 4.0)], &[2e9, 1e9]);
        let sample = read(&cell(Work::Stream, 1000, 2), &client, &server).unwrap();
        assert_eq!(sample[&Figure::Throughput], 3e9);
        assert_eq!(sample[&Figure::Rate], 3e6);
        assert_eq!((sample[&Figure::CpuClient], sample[&Figure::CpuServer]), (500.0, 1000.0));
        assert_eq!((sample[&Figure::CpuGbClient], sample[&Figure::CpuGbServer]), (5e8, 1e9));
        assert!((sample[&Figure::Fairness] - 0.9).abs() < 1e-12);
    }

    #[test]
    fn both_ways_are_added_up_and_lost_bytes_noticed() {
        let values = [("bytes_sent", 1e9), ("bytes_received", 2e9), ("bytes_per_second", 1e9), ("cpu_seconds", 1.0)];
        let client = outcome(&values, &[]);
        let server = outcome(&[("bytes_sent", 2e9), ("bytes_per_second", 5e8), ("cpu_seconds", 1.0)], &[]);
        let sample = read(&cell(Work::Both, 1, 1), &client, &server).unwrap();
        assert_eq!((sample[&Figure::Throughput], sample[&Figure::Fairness]), (1.5e9, 1.0));
        let lossy = outcome(&[("bytes_sent", 3e9), ("bytes_per_second", 5e8), ("cpu_seconds", 1.0)], &[]);
        assert!(read(&cell(Work::Both, 1, 1), &client, &lossy).is_err());
    }

    #[test]
    fn pieces_go_as_the_cell_says_or_there_is_no_sample() {
        let moved = |pushes, pulls| Moved { pushes, pulls, ..Moved::default() };
        assert!(is_moved(Move::Push, &moved(100, 1)) && !is_moved(Move::Push, &moved(100, 50)));
        assert!(is_moved(Move::Pull, &moved(1, 100)) && !is_moved(Move::Pull, &moved(0, 0)));
        assert!(is_moved(Move::Mixed, &moved(100, 50)) && is_moved(Move::Mixed, &moved(20, 100)));
        assert!(!is_moved(Move::Mixed, &moved(100, 5)) && !is_moved(Move::Mixed, &moved(0, 0)));
    }

    #[test]
    fn a_share_of_the_peak_counts_the_ways() {
        let sample = Sample::from([(Figure::Throughput, 1e9)]);
        let share = |work| share_of_peak(&cell(work, 8, 1), &sample, 1e9);
        assert_eq!((share(Work::Stream), share(Work::Both), share(Work::Latency)), (Some(1.0), Some(0.5), None));
        assert_eq!(share_of_peak(&cell(Work::Stream, 8, 1), &Sample::new(), 1e9), None);
    }

    #[test]
    fn a_trip_is_two_messages() {
        let values =
            [("p50_ns", 5.0), ("p99_ns", 9.0), ("trips_per_second", 10.0), ("messages", 1e6), ("cpu_seconds", 1.0)];
        let sample = read(&cell(Work::Latency, 500, 1), &outcome(&values, &[]), &outcome(&values, &[])).unwrap();
        assert_eq!(sample[&Figure::Throughput], 10_000.0);
        assert_eq!((sample[&Figure::CpuClient], sample[&Figure::CpuGbClient]), (1000.0, 1e9));
        assert!(read(&cell(Work::Latency, 500, 1), &outcome(&values[..4], &[]), &outcome(&values, &[])).is_err());
    }
}

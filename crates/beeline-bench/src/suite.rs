//! How the workloads of the table become readings.
//!
//! A workload runs once a round over each transport; each run gives readings for one or more rows of the report.

mod table;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::acceleration::Carried;
use crate::conductor::{Launcher, Pair, Worker};
use crate::hosts::{Bridges, Layout, Layouts, Load, Moved, Stand};
use crate::interrupt;
use crate::memory::{Resident, cpu_seconds};
use crate::report::{Row, Unit};
use crate::socket::LOOPBACK;
use crate::stats::smallest_share;
use crate::syscalls;
use crate::transport::Transport;
use crate::worker::args::{Program, Role, WorkerArgs};
use crate::worker::events::Outcome;

#[cfg(test)]
pub use table::WORKLOADS;
use table::{Kind, Mover};
pub use table::{Workload, workloads};

/// Messages of the layouts: too small to be striped, and too large for a message between the bridges.
const LAYOUT_BYTES: usize = 65_536;

/// One figure of one run.
#[derive(Debug, Clone)]
pub struct Reading {
    pub row: &'static str,
    pub value: f64,
    pub samples: Vec<f64>,
}

impl Reading {
    fn new(row: &'static str, value: f64) -> Self {
        Reading { row, value, samples: Vec::new() }
    }

    fn with(row: &'static str, value: f64, samples: Vec<f64>) -> Self {
        Reading { row, value, samples }
    }
}

/// What a run needs to know.
pub struct Suite {
    pub launcher: Launcher,
    pub cpus: Option<(usize, usize)>,
    pub duration: Duration,
    pub idle_duration: Duration,
    pub carried: RefCell<Carried>,
    /// For a run between two hosts, if it goes over the bridge.
    pub bridges: Option<Bridges>,
    /// For a run between two hosts, if they have NUMA nodes.
    pub layouts: Option<Layouts>,
}

impl Suite {
    fn args(&self, program: Program) -> WorkerArgs {
        WorkerArgs { duration_ms: self.duration.as_millis() as u64, ..WorkerArgs::new(program) }
    }

    /// Runs a workload over one transport.
    pub fn run(&self, workload: &Workload, column: Transport) -> Result<Vec<Reading>> {
        let Some(bridges) = self.bridges.as_ref().filter(|_| column == Transport::Beeline) else {
            return self.run_one(workload, column);
        };
        let Kind::Moved { by, .. } = workload.kind else {
            let (readings, moved) = bridges.watch(workload.name, || self.run_one(workload, column))?;
            if let Some(layout) = workload.layout() {
                let rates = readings.first().map_or(&[][..], |reading| &reading.samples);
                self.check_rails(layout, rates, &moved)?;
            }
            return Ok(readings);
        };
        let run = || bridges.watch(workload.name, || self.run_one(workload, column));
        bridges.with_setting("pull_over_tcp", 1, || {
            let (readings, moved) = bridges.with_setting("pull_min", by.pull_min(), run)?;
            let (wanted, other) = match by {
                Mover::Push => (moved.pushes, moved.pulls),
                Mover::Pull => (moved.pulls, moved.pushes),
            };
            // The last piece may be smaller than what is pulled.
            ensure!(wanted > 10 * other, "{} pieces were pushed and {} pulled", moved.pushes, moved.pulls);
            Ok(readings)
        })
    }

    fn run_one(&self, workload: &Workload, column: Transport) -> Result<Vec<Reading>> {
        let rows = workload.rows;
        match workload.kind {
            Kind::Latency(program) => {
                let (client, _) = self.run_pair(column, &self.args(program))?;
                let value = figure(&client, "one_way_ns")?;
                Ok(vec![Reading::with(rows[0].id, value, client.samples)])
            }
            Kind::Histogram(program) => {
                let args = WorkerArgs { histogram: true, ..self.args(program) };
                let (client, _) = self.run_pair(column, &args)?;
                let names = ["p50_ns", "p99_ns", "p999_ns"];
                rows.iter().zip(names).map(|(row, name)| Ok(Reading::new(row.id, figure(&client, name)?))).collect()
            }
            Kind::Stream { program, message_bytes } => self.stream(&rows[0], column, program, message_bytes),
            Kind::Moved { message_bytes, .. } => self.stream(&rows[0], column, Program::Stream, message_bytes),
            Kind::Streams { streams, message_bytes } => self.streams(&rows[0], column, streams, message_bytes),
            Kind::Layout { layout, loaded } => self.layout(&rows[0], column, layout, loaded),
            Kind::Connect => {
                let (client, _) = self.run_pair(column, &self.args(Program::Connect))?;
                let value = figure(&client, "connections_per_second")?;
                Ok(vec![Reading::with(rows[0].id, value, client.samples)])
            }
            Kind::Crowd { connections } => {
                let args = WorkerArgs { connections, message_bytes: 64, ..self.args(Program::Crowd) };
                let (client, _) = self.run_pair(column, &args)?;
                let value = figure(&client, "requests_per_second")?;
                Ok(vec![Reading::with(rows[0].id, value, client.samples)])
            }
            Kind::Busy { idle } => self.busy(rows, column, idle),
            Kind::Pairs { pairs } => self.pairs(rows, column, pairs),
            Kind::Idle { connections } => self.idle(rows, &[column], connections).remove(0).1,
            Kind::SystemCalls => syscalls::measure(&self.launcher, self.cpus, column)?
                .into_iter()
                .zip(rows)
                .map(|(value, row)| Ok(Reading::new(row.id, value)))
                .collect(),
        }
    }

    /// Runs a workload of [`Workload::runs_side_by_side`] over all transports at once.
    pub fn run_side_by_side(
        &self,
        workload: &Workload,
        columns: &[Transport],
    ) -> Vec<(Transport, Result<Vec<Reading>>)> {
        match workload.kind {
            Kind::Idle { connections } => self.idle(workload.rows, columns, connections),
            _ => columns.iter().map(|&column| (column, self.run(workload, column))).collect(),
        }
    }

    /// Whether the two ends can talk at all, over TCP.
    pub fn reach(&self) -> Result<()> {
        let args = WorkerArgs { duration_ms: 1, ..WorkerArgs::new(Program::Pingpong) };
        self.run_pair(Transport::Tcp, &args).map(drop)
    }

    /// Starts both ends and waits for their results.
    fn run_pair(&self, column: Transport, args: &WorkerArgs) -> Result<(Outcome, Outcome)> {
        self.finish(self.pair(column, args)?)
    }

    fn finish(&self, pair: Pair) -> Result<(Outcome, Outcome)> {
        let (client, server) = pair.finish()?;
        self.carried.borrow_mut().add(&client.carried);
        Ok((client, server))
    }

    /// How the connections since the last question were carried, as far as the library was loaded.
    pub fn take_carried(&self) -> Carried {
        self.carried.take()
    }

    fn pair(&self, column: Transport, args: &WorkerArgs) -> Result<Pair> {
        self.launcher.pair(column, args, [self.cpus.map(|c| c.0), self.cpus.map(|c| c.1)])
    }

    fn stream(&self, row: &Row, column: Transport, program: Program, message_bytes: usize) -> Result<Vec<Reading>> {
        let args = WorkerArgs { message_bytes, ..self.args(program) };
        let (client, server) = self.run_pair(column, &args)?;
        let mut rate = figure(&server, "bytes_per_second")?;
        let mut samples = server.samples.clone();
        if program == Program::Duplex {
            for (sent, received) in [(&client, &server), (&server, &client)] {
                anyhow::ensure!(
                    figure(sent, "bytes_sent")? == figure(received, "bytes_received")?,
                    "bytes were lost: one end says {sent:?}, the other {received:?}"
                );
            }
            rate += figure(&client, "bytes_per_second")?;
            samples.extend(&client.samples);
        }
        if row.unit == Unit::MessagesPerSecond {
            rate /= message_bytes as f64;
            samples.iter_mut().for_each(|s| *s /= message_bytes as f64);
        }
        Ok(vec![Reading::with(row.id, rate, samples)])
    }

    fn streams(&self, row: &Row, column: Transport, count: usize, message_bytes: usize) -> Result<Vec<Reading>> {
        let args = WorkerArgs { message_bytes, start_together: true, ..self.args(Program::Stream) };
        let mut pairs = self.pairs_of(column, &args, count)?;
        start_together(&mut pairs)?;
        let rates = pairs
            .into_iter()
            .map(|pair| figure(&self.finish(pair)?.1, "bytes_per_second"))
            .collect::<Result<Vec<f64>>>()?;
        Ok(vec![Reading::with(row.id, rates.iter().sum(), rates)])
    }

    fn pairs_of(&self, column: Transport, args: &WorkerArgs, count: usize) -> Result<Vec<Pair>> {
        (0..count).map(|_| self.pair(column, args)).collect()
    }

    fn layout(&self, row: &Row, column: Transport, layout: Layout, loaded: bool) -> Result<Vec<Reading>> {
        let layouts = self.layouts.as_ref().context("the hosts have no layouts")?;
        let pair = |stand: Stand| {
            let args = WorkerArgs {
                message_bytes: LAYOUT_BYTES,
                start_together: true,
                begin_cpu: Some(stand.begin),
                // The bridges take any address; for TCP it says which rail.
                listen: if column == Transport::Tcp { stand.address } else { LOOPBACK },
                ..self.args(Program::Pingpong)
            };
            self.launcher.pair(column, &args, [Some(stand.client), stand.server])
        };
        let mut pairs = layouts.stands(layout).into_iter().map(pair).collect::<Result<Vec<_>>>()?;
        let loads = if loaded { layouts.loads() } else { &[] };
        let mut loads = loads.iter().map(|load| self.load(load)).collect::<Result<Vec<_>>>()?;
        start_together(&mut pairs)?;
        let both_ways = 2.0 * LAYOUT_BYTES as f64;
        let rate = |pair| Ok(figure(&self.finish(pair)?.0, "trips_per_second")? * both_ways);
        let rates = pairs.into_iter().map(rate).collect::<Result<Vec<f64>>>()?;
        for load in &mut loads {
            load.go_on()?;
            ensure!(figure(&load.result()?, "bytes_per_second")? > 0.0, "the load copied nothing");
        }
        Ok(vec![Reading::with(row.id, rates.iter().sum(), rates)])
    }

    fn load(&self, load: &Load) -> Result<Worker> {
        let args = WorkerArgs {
            role: if load.end == 0 { Role::Client } else { Role::Server },
            cpu: Some(load.cpu),
            memory_node: Some(load.memory_node),
            ..self.args(Program::Load)
        };
        let mut worker = self.launcher.start(Transport::Tcp, &args, None)?;
        worker.reach("loading")?;
        Ok(worker)
    }

    /// Whether the bytes of programs with these rates went over the rails of the layout.
    fn check_rails(&self, layout: Layout, rates: &[f64], moved: &Moved) -> Result<()> {
        let layouts = self.layouts.as_ref().context("the hosts have no layouts")?;
        let all: f64 = rates.iter().sum();
        for (stand, rate) in layouts.stands(layout).into_iter().zip(rates) {
            // Programs at two nodes need not be equally fast, and one that is slow goes on for longer.
            let least = if layout == Layout::Both { rate / all / 2.0 } else { 0.9 };
            let rails = stand.rails.each_ref().map(String::as_str);
            for ((way, rail), share) in ["there", "back"].into_iter().zip(rails).zip(moved.shares_of(rails)) {
                let wanted = least * 100.0;
                ensure!(share >= least, "{rail} carried {:.0} % of the bytes {way}, not {wanted:.0}", share * 100.0);
            }
        }
        Ok(())
    }

    fn busy(&self, rows: &[Row], column: Transport, idle: usize) -> Result<Vec<Reading>> {
        let args = WorkerArgs { connections: idle + 1, ..self.args(Program::Busy) };
        let mut pair = self.pair(column, &args)?;
        let pids = [pair.client.pid(), pair.server.pid()];
        pair.client.reach("alone")?;
        let before = Resident::of(&pids)?;
        pair.client.go_on()?;
        pair.client.reach("open")?;
        let each = Resident::of(&pids)?.growth_per(&before, idle);
        pair.client.go_on()?;
        let (client, _) = self.finish(pair)?;
        let values = [figure(&client, "alone_ns")?, figure(&client, "among_ns")?, each.user_bytes, each.kernel_bytes];
        Ok(rows.iter().zip(values).map(|(row, value)| Reading::new(row.id, value)).collect())
    }

    fn pairs(&self, rows: &[Row], column: Transport, count: usize) -> Result<Vec<Reading>> {
        let args = WorkerArgs {
            start_together: true,
            // Long enough for every pair to get several time slices.
            duration_ms: 2 * self.duration.as_millis() as u64,
            ..self.args(Program::Pingpong)
        };
        let mut pairs = self.pairs_of(column, &args, count)?;
        start_together(&mut pairs)?;
        let rates = pairs
            .into_iter()
            .map(|pair| figure(&self.finish(pair)?.0, "trips_per_second"))
            .collect::<Result<Vec<f64>>>()?;
        let share = smallest_share(&rates).context("no pair did anything")?;
        Ok(vec![Reading::with(rows[0].id, rates.iter().sum(), rates), Reading::new(rows[1].id, share)])
    }

    /// CPU time of servers that have nothing to do, over all transports in the same seconds.
    fn idle(&self, rows: &[Row], columns: &[Transport], connections: usize) -> Vec<(Transport, Result<Vec<Reading>>)> {
        let args = WorkerArgs { connections, ..self.args(Program::Idle) };
        let begin = |column: Transport| -> Result<(Pair, f64)> {
            let mut pair = self.pair(column, &args)?;
            pair.client.reach("idle")?;
            Ok((pair, 0.0))
        };
        let mut started: Vec<_> = columns.iter().map(|&c| (c, begin(c))).collect();
        // The last messages may be followed by a bounded spin, which is not idleness yet.
        std::thread::sleep(Duration::from_millis(100));
        for (_, pair) in &mut started {
            if let Ok((pair, used)) = pair {
                *used = cpu_seconds(pair.server.pid()).unwrap_or(f64::NAN);
            }
        }
        let since = Instant::now();
        interrupt::pause(self.idle_duration);
        let end = |pair: Result<(Pair, f64)>| -> Result<Vec<Reading>> {
            let (mut pair, before) = pair?;
            let used = cpu_seconds(pair.server.pid())? - before;
            let each_10s = used * 1e3 * 10.0 / since.elapsed().as_secs_f64();
            pair.client.go_on()?;
            self.finish(pair)?;
            Ok(vec![Reading::new(rows[0].id, each_10s)])
        };
        started.into_iter().map(|(c, pair)| (c, end(pair))).collect()
    }
}

/// Lets clients that wait at their start begin at the same time.
fn start_together(pairs: &mut [Pair]) -> Result<()> {
    for pair in &mut *pairs {
        pair.client.reach("start")?;
    }
    for pair in pairs {
        pair.client.go_on()?;
    }
    Ok(())
}

fn figure(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.values.get(name).copied().with_context(|| format!("a worker did not report {name}"))
}

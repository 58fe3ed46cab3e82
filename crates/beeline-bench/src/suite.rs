//! The table of workloads and how each becomes readings.
//!
//! A workload runs once a round over each transport; each run gives readings for one or more rows of the report.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::acceleration::Carried;
use crate::args::{Program, Role, Transport, WorkerArgs};
use crate::conductor::{Launcher, Pair};
use crate::hosts::Bridges;
use crate::memory::{Resident, cpu_seconds};
use crate::report::{Limit, Row, Unit};
use crate::stats::smallest_share;
use crate::syscalls;
use crate::worker::Outcome;

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

pub struct Workload {
    pub name: &'static str,
    kind: Kind,
    pub rows: &'static [Row],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Latency(Program),
    Histogram(Program),
    Stream {
        program: Program,
        message_bytes: usize,
    },
    Connect,
    Crowd {
        connections: usize,
    },
    Busy {
        idle: usize,
    },
    Pairs {
        pairs: usize,
    },
    Idle {
        connections: usize,
    },
    SystemCalls,
    /// Several one-way streams at once.
    Streams {
        streams: usize,
        message_bytes: usize,
    },
    /// A one-way stream with the bridges' `pull_min` set, over the bridge only.
    Moved {
        message_bytes: usize,
        by: Mover,
    },
}

/// How large pieces go from one bridge to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mover {
    Push,
    Pull,
}

impl Mover {
    /// The setting that leaves nothing to the other.
    fn pull_min(self) -> u64 {
        match self {
            Mover::Push => u32::MAX.into(),
            Mover::Pull => 4096,
        }
    }
}

macro_rules! row {
    ($id:literal, $title:literal, $unit:ident) => {
        Row { id: $id, title: $title, unit: Unit::$unit, limit: None }
    };
    ($id:literal, $title:literal, $unit:ident, $limit:ident) => {
        Row { id: $id, title: $title, unit: Unit::$unit, limit: Some(Limit::$limit) }
    };
}

macro_rules! stream {
    ($id:literal, $title:literal, $unit:ident, $program:ident, $bytes:expr $(, $limit:ident)?) => {
        Workload {
            name: $id,
            kind: Kind::Stream { program: Program::$program, message_bytes: $bytes },
            rows: &[row!($id, $title, $unit $(, $limit)?)],
        }
    };
}

/// All workloads, in the order of the report.
#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "pingpong", kind: Kind::Latency(Program::Pingpong),
        rows: &[row!("pingpong", "8 B ping-pong, blocking, one way", Nanoseconds, HandOver)] },
    Workload { name: "pingpong-epoll", kind: Kind::Latency(Program::PingpongEpoll),
        rows: &[row!("pingpong-epoll", "8 B ping-pong, epoll_wait before recv", Nanoseconds, HandOver)] },
    stream!("stream-64", "64 B sends, one way", MessagesPerSecond, Stream, 64),
    stream!("stream-1k", "1 KiB sends, one way", MessagesPerSecond, Stream, 1024),
    stream!("stream-64k", "64 KiB sends, one way", BytesPerSecond, Stream, 65_536, Memcpy64K),
    stream!("stream-1m", "1 MiB sends, one way", BytesPerSecond, Stream, 1_048_576, Memcpy1M),
    stream!("duplex-64", "64 B sends, both ways (sum)", MessagesPerSecond, Duplex, 64),
    stream!("duplex-1k", "1 KiB sends, both ways (sum)", MessagesPerSecond, Duplex, 1024),
    stream!("duplex-64k", "64 KiB sends, both ways (sum)", BytesPerSecond, Duplex, 65_536, Memcpy64K),
    stream!("duplex-1m", "1 MiB sends, both ways (sum)", BytesPerSecond, Duplex, 1_048_576, Memcpy1M),
    Workload { name: "connect", kind: Kind::Connect,
        rows: &[row!("connect", "connect, 1 B each way, close", PerSecond)] },
    Workload { name: "crowd-50", kind: Kind::Crowd { connections: 50 },
        rows: &[row!("crowd-50", "50 connections, one epoll loop", RequestsPerSecond)] },
    Workload { name: "crowd-1000", kind: Kind::Crowd { connections: 1000 },
        rows: &[row!("crowd-1000", "1,000 connections, one epoll loop", RequestsPerSecond)] },
    Workload { name: "busy", kind: Kind::Busy { idle: 1000 },
        rows: &[
            row!("busy-alone", "8 B through an epoll loop, alone", Nanoseconds, HandOver),
            row!("busy-among", "the same among 1,000 idle connections", Nanoseconds, HandOver),
            row!("idle-user", "resident per idle connection, both ends", Bytes),
            row!("idle-kernel", "kernel memory per idle connection", Bytes),
        ] },
    Workload { name: "pairs", kind: Kind::Pairs { pairs: 8 },
        rows: &[
            row!("pairs-total", "8 busy pairs on two cores, all together", TripsPerSecond),
            row!("pairs-share", "of that the poorest pair, of a fair share", Share),
        ] },
    Workload { name: "histogram", kind: Kind::Histogram(Program::Pingpong),
        rows: &[
            row!("pingpong-p50", "each trip timed, blocking: p50", Nanoseconds),
            row!("pingpong-p99", "p99", Nanoseconds),
            row!("pingpong-p999", "p99.9", Nanoseconds),
        ] },
    Workload { name: "histogram-epoll", kind: Kind::Histogram(Program::PingpongEpoll),
        rows: &[
            row!("pingpong-epoll-p50", "each trip timed, epoll: p50", Nanoseconds),
            row!("pingpong-epoll-p99", "p99", Nanoseconds),
            row!("pingpong-epoll-p999", "p99.9", Nanoseconds),
        ] },
    Workload { name: "idle", kind: Kind::Idle { connections: 100 },
        rows: &[row!("idle-cpu", "CPU of an idle server, 100 connections", MillisecondsPer10s)] },
    Workload { name: "syscalls", kind: Kind::SystemCalls,
        rows: &[
            row!("syscalls-pingpong", "system calls a message: ping-pong", PerMessage),
            row!("syscalls-pingpong-epoll", "ping-pong through epoll", PerMessage),
            row!("syscalls-stream", "64 B sends", PerMessage),
        ] },
];

macro_rules! streams {
    ($id:literal, $title:literal, $streams:expr) => {
        Workload {
            name: $id,
            kind: Kind::Streams { streams: $streams, message_bytes: 65_536 },
            rows: &[row!($id, $title, BytesPerSecond)],
        }
    };
}

macro_rules! moved {
    ($id:literal, $title:literal, $bytes:expr, $by:ident) => {
        Workload {
            name: $id,
            kind: Kind::Moved { message_bytes: $bytes, by: Mover::$by },
            rows: &[row!($id, $title, BytesPerSecond)],
        }
    };
}

/// What is measured between two hosts only.
#[rustfmt::skip]
const BETWEEN_HOSTS: &[Workload] = &[
    streams!("streams-2", "64 KiB sends, 2 streams (sum)", 2),
    streams!("streams-4", "64 KiB sends, 4 streams (sum)", 4),
    streams!("streams-8", "64 KiB sends, 8 streams (sum)", 8),
    moved!("push-8k", "8 KiB sends, all pushed", 8192, Push),
    moved!("pull-8k", "8 KiB sends, all pulled", 8192, Pull),
    moved!("push-64k", "64 KiB sends, all pushed", 65_536, Push),
    moved!("pull-64k", "64 KiB sends, all pulled", 65_536, Pull),
    moved!("push-1m", "1 MiB sends, all pushed", 1_048_576, Push),
    moved!("pull-1m", "1 MiB sends, all pulled", 1_048_576, Pull),
];

/// The workloads of a run, in the order of the report.
pub fn workloads(between_hosts: bool) -> Vec<&'static Workload> {
    match between_hosts {
        false => WORKLOADS.iter().collect(),
        true => WORKLOADS.iter().filter(|w| w.works_between_hosts()).chain(BETWEEN_HOSTS).collect(),
    }
}

impl Workload {
    /// Whether nothing is looked at from outside the workers.
    fn works_between_hosts(&self) -> bool {
        match self.kind {
            Kind::Latency(_) | Kind::Histogram(_) | Kind::Stream { .. } | Kind::Connect | Kind::Crowd { .. } => true,
            Kind::Streams { .. } | Kind::Moved { .. } => true,
            Kind::Busy { .. } | Kind::Pairs { .. } | Kind::Idle { .. } | Kind::SystemCalls => false,
        }
    }

    /// Whether the workload says something of this transport.
    pub fn is_for(&self, column: Transport) -> bool {
        column == Transport::Beeline || !matches!(self.kind, Kind::Moved { .. })
    }

    /// Timing every trip is asked for separately.
    pub fn is_histogram(&self) -> bool {
        matches!(self.kind, Kind::Histogram(_))
    }

    /// Whether one run is enough: what does not vary with the machine's mood.
    pub fn runs_once(&self) -> bool {
        matches!(self.kind, Kind::Idle { .. } | Kind::SystemCalls)
    }

    /// Whether the workload runs under strace.
    pub fn needs_strace(&self) -> bool {
        self.kind == Kind::SystemCalls
    }

    /// Whether all transports can run at the same time without disturbing each other.
    pub fn runs_side_by_side(&self) -> bool {
        matches!(self.kind, Kind::Idle { .. })
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
            return Ok(bridges.watch(workload.name, || self.run_one(workload, column))?.0);
        };
        bridges.with_setting("pull_min", by.pull_min(), || {
            let (readings, moved) = bridges.watch(workload.name, || self.run_one(workload, column))?;
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
        self.launcher.pair(column, args, self.cpus)
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
        let pairs = self.start_together(column, &args, count)?;
        let rates = pairs
            .into_iter()
            .map(|pair| figure(&self.finish(pair)?.1, "bytes_per_second"))
            .collect::<Result<Vec<f64>>>()?;
        Ok(vec![Reading::with(row.id, rates.iter().sum(), rates)])
    }

    fn start_together(&self, column: Transport, args: &WorkerArgs, count: usize) -> Result<Vec<Pair>> {
        let mut pairs = (0..count).map(|_| self.pair(column, args)).collect::<Result<Vec<_>>>()?;
        for pair in &mut pairs {
            pair.client.reach("start")?;
        }
        for pair in &mut pairs {
            pair.client.go_on()?;
        }
        Ok(pairs)
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
        let rates = self
            .start_together(column, &args, count)?
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
        std::thread::sleep(self.idle_duration);
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

fn figure(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.values.get(name).copied().with_context(|| format!("a worker did not report {name}"))
}

/// The fixed-size runs under the tracer.
pub fn fixed(program: Program, messages: u64) -> WorkerArgs {
    WorkerArgs {
        role: Role::Server,
        messages: Some(messages),
        message_bytes: if program == Program::Stream { 64 } else { 8 },
        ..WorkerArgs::new(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_rows_are_unique() {
        let all: Vec<_> = WORKLOADS.iter().chain(BETWEEN_HOSTS).collect();
        let names: HashSet<_> = all.iter().map(|w| w.name).collect();
        assert_eq!(names.len(), all.len());
        let rows: Vec<_> = all.iter().flat_map(|w| w.rows).collect();
        let ids: HashSet<_> = rows.iter().map(|r| r.id).collect();
        assert_eq!(ids.len(), rows.len());
    }
}

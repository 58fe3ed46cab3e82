//! The workloads: what each is called, what it does and which rows of the report it gives.

use crate::hosts::Layout;
use crate::report::{Limit, Row, Unit};
use crate::transport::Transport;
use crate::worker::args::Program;

pub struct Workload {
    pub name: &'static str,
    pub kind: Kind,
    pub rows: &'static [Row],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
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
    /// Messages there and back with programs and rails in a layout, with load between the nodes or without.
    Layout {
        layout: Layout,
        loaded: bool,
    },
    /// A one-way stream with the bridges' `pull_min` set, over the bridge only.
    Moved {
        message_bytes: usize,
        by: Mover,
    },
}

/// How large pieces go from one bridge to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mover {
    Push,
    Pull,
}

impl Mover {
    /// The setting that leaves nothing to the other.
    pub fn pull_min(self) -> u64 {
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

macro_rules! layout {
    ($id:literal, $title:literal, $layout:ident, $loaded:literal) => {
        Workload {
            name: $id,
            kind: Kind::Layout { layout: Layout::$layout, loaded: $loaded },
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
    layout!("layout-local", "64 KiB there and back, 2 programs, local rail (sum)", Local, false),
    layout!("layout-remote", "the same at another node, remote rail", Remote, false),
    layout!("layout-both", "the same at two nodes, each its own rail", Both, false),
    layout!("layout-local-loaded", "local rail, with load between the nodes", Local, true),
    layout!("layout-remote-loaded", "remote rail, with load between the nodes", Remote, true),
    layout!("layout-both-loaded", "two nodes, with load between them", Both, true),
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
            Kind::Streams { .. } | Kind::Moved { .. } | Kind::Layout { .. } => true,
            Kind::Busy { .. } | Kind::Pairs { .. } | Kind::Idle { .. } | Kind::SystemCalls => false,
        }
    }

    /// Whether the workload says something of this transport.
    pub fn is_for(&self, column: Transport) -> bool {
        column == Transport::Beeline || !matches!(self.kind, Kind::Moved { .. })
    }

    /// The size of its messages, if it is a one-way stream of some that are too large to be bound by anything but
    /// copying.
    pub fn fills_a_ring(&self) -> Option<usize> {
        match self.kind {
            Kind::Stream { program: Program::Stream, message_bytes } if message_bytes >= 65_536 => Some(message_bytes),
            _ => None,
        }
    }

    /// How programs and rails must stand for it.
    pub fn layout(&self) -> Option<Layout> {
        match self.kind {
            Kind::Layout { layout, .. } => Some(layout),
            _ => None,
        }
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

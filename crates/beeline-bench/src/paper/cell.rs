//! A cell: one workload with one value of each axis. It is measured over TCP and over Beeline.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::axis::show_bytes;
use super::figure::{Figure, Phase};
use crate::everyday::cell::word;
use crate::hosts::Layout;

/// What the two programs do.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A message there and back, again and again
    Latency,
    /// Messages one way
    Stream,
    /// Messages both ways at once
    Both,
    /// Connect, one byte each way, close
    ConnectRequest,
    /// Connect and close
    ConnectClose,
    /// Messages one way, while a threshold is turned and turned back
    Turned,
    /// A program of others times a message there and back
    ProgramLatency,
    /// A program of others sends as much as it can
    ProgramStream,
}

impl Work {
    /// Whether messages have a size.
    pub fn has_messages(self) -> bool {
        self.is_program() || matches!(self, Work::Latency | Work::Stream | Work::Both | Work::Turned)
    }

    /// Whether programs of others do it.
    pub fn is_program(self) -> bool {
        matches!(self, Work::ProgramLatency | Work::ProgramStream)
    }

    /// Whether it can be done on several connections at once.
    pub fn has_streams(self) -> bool {
        matches!(self, Work::Stream | Work::Both)
    }

    /// The figure that the work is about, to which intervals and ratios belong.
    pub fn main(self) -> Figure {
        match self {
            Work::Latency => Figure::P50,
            Work::ProgramLatency => Figure::Mean,
            Work::Stream | Work::Both | Work::Turned | Work::ProgramStream => Figure::Throughput,
            Work::ConnectRequest | Work::ConnectClose => Figure::Rate,
        }
    }

    /// What there is to show when a table names no figures.
    pub fn figures(self) -> Vec<Figure> {
        let own: &[Figure] = match self {
            Work::Latency => &[Figure::P50, Figure::P99],
            Work::Stream | Work::Both => &[Figure::Throughput, Figure::Rate],
            Work::ConnectRequest | Work::ConnectClose => &[Figure::Rate],
            // What a message costs is not asked of each part of a stream.
            Work::Turned => return vec![Figure::Throughput, Figure::CpuGbClient, Figure::CpuGbServer],
            // Of programs of others nobody knows the processes' time.
            Work::ProgramLatency => return vec![Figure::Mean, Figure::Throughput],
            Work::ProgramStream => return vec![Figure::Throughput],
        };
        [own, &[Figure::CpuClient, Figure::CpuServer]].concat()
    }

    /// Whether a sample of it has the figure.
    pub fn has(self, figure: Figure) -> bool {
        match figure {
            Figure::PeakShare => self.has_streams() || matches!(self, Work::ProgramLatency | Work::ProgramStream),
            _ if self.is_program() => self.figures().contains(&figure),
            _ if self == Work::Turned => {
                let of_phases = || self.figures().into_iter().flat_map(|own| Phase::ALL.map(|phase| phase.of(own)));
                figure == Figure::Load || of_phases().any(|own| own == figure)
            }
            Figure::ThroughputTurned
            | Figure::ThroughputBack
            | Figure::CpuGbClientTurned
            | Figure::CpuGbClientBack
            | Figure::CpuGbServerTurned
            | Figure::CpuGbServerBack => false,
            Figure::P50 | Figure::P99 => self == Work::Latency,
            Figure::Mean => false,
            Figure::Throughput | Figure::CpuGbClient | Figure::CpuGbServer => self.has_messages(),
            Figure::Fairness => self.has_streams(),
            Figure::Rate
            | Figure::CpuClient
            | Figure::CpuServer
            | Figure::CpuShareClient
            | Figure::CpuShareServer
            | Figure::Load => true,
        }
    }
}

/// How Beeline's calls wait: the library's option `wait`. TCP has one way, which is measured beside each.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// Spin on
    Poll,
    /// Sleep at once
    Wait,
    /// Spin while it pays, then sleep
    Lazy,
}

/// Where the two programs run.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// On two cores, of one package where there are two
    Apart,
    /// On two threads of one core
    Siblings,
    /// Between hosts: at the NUMA node of the rail that carries them
    Near,
    /// On cores of two NUMA nodes; between hosts at another node than the rail's
    Far,
    /// Between hosts: two pairs of programs, both at the rail's node
    Local,
    /// Between hosts: two pairs of programs, both at another node than the rail's
    Remote,
    /// Between hosts: two pairs of programs at two nodes, each over the rail of its own
    Both,
    /// On one CPU
    Same,
    /// Wherever the scheduler puts them
    Free,
    /// On two hosts, wherever the schedulers put them
    Hosts,
}

impl Place {
    /// How programs and rails stand to each other, where the place says it.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Place::Near | Place::Local => Some(Layout::Local),
            Place::Far | Place::Remote => Some(Layout::Remote),
            Place::Both => Some(Layout::Both),
            Place::Apart | Place::Siblings | Place::Same | Place::Free | Place::Hosts => None,
        }
    }

    /// How many pairs of programs are measured together. One program cannot be at two nodes.
    pub fn pairs(self) -> usize {
        if matches!(self, Place::Local | Place::Remote | Place::Both) { 2 } else { 1 }
    }
}

/// What else the machine does.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Nothing of ours
    None,
    /// A program copies memory beyond the caches; what it achieves is a figure
    Memory,
    /// On each NUMA node a program copies memory of another one
    BetweenNodes,
}

/// How large pieces go from bridge to bridge. Between hosts only.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// As the bridges' settings say
    Any,
    /// The sender writes into what the receiver granted
    Push,
    /// The receiver reads
    Pull,
    /// What the client sends is written, what the server sends is read
    Mixed,
}

/// The axes whose value is told although it is the usual one: those along which a table's cells differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub completion: bool,
    pub pace: bool,
    pub buffer: bool,
    pub place: bool,
    pub load: bool,
    pub moves: bool,
    pub chunk: bool,
    pub mtu: bool,
    pub coalescing: bool,
    pub rails: bool,
}

/// One combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub table: String,
    pub work: Work,
    /// The program of others that does it.
    #[serde(default)]
    pub program: Option<String>,
    pub bytes: u64,
    pub streams: usize,
    pub completion: Completion,
    /// Messages a second, where they are not sent as fast as they can be.
    #[serde(default)]
    pub pace: Option<u32>,
    pub buffer: Option<u64>,
    pub options: String,
    pub place: Place,
    pub load: Load,
    pub moves: Move,
    /// The largest piece that the bridges move at once.
    #[serde(default)]
    pub chunk: Option<u64>,
    pub mtu: Option<u32>,
    /// When the interfaces interrupt: a setting of ethtool's.
    #[serde(default)]
    pub coalescing: Option<String>,
    /// The rates that the rails between the hosts are limited to.
    #[serde(default)]
    pub rails: Option<String>,
    /// What is turned while it runs.
    #[serde(default)]
    pub turn: Option<String>,
}

impl Cell {
    /// What tells it from all others of its plan: `latency/bytes=8/completion=poll`. Axes at their usual value are left
    /// out, so that it stays the same when a plan gets more axes.
    pub fn name(&self) -> String {
        let mut name = self.table.clone();
        let mut put = |axis: &str, value: String| {
            name.push('/');
            name.push_str(axis);
            name.push('=');
            name.push_str(&value);
        };
        if self.work.has_messages() {
            put("bytes", self.bytes.to_string());
        }
        for (axis, value) in self.axes(&Told::default()) {
            put(axis, value);
        }
        name
    }

    /// The axes that are not at their usual value, and those that are to be told.
    fn axes(&self, told: &Told) -> Vec<(&'static str, String)> {
        let mut axes = Vec::new();
        let mut put = |is_told: bool, axis, value: String| {
            if is_told {
                axes.push((axis, value));
            }
        };
        put(self.program.is_some(), "program", self.program.clone().unwrap_or_default());
        put(self.streams != 1, "streams", self.streams.to_string());
        put(told.completion || self.completion != Completion::Lazy, "completion", word(self.completion));
        let of = |number: Option<u64>, usual: &str| number.map_or(usual.to_owned(), |number| number.to_string());
        put(told.pace || self.pace.is_some(), "pace", of(self.pace.map(u64::from), "full"));
        put(told.buffer || self.buffer.is_some(), "buffer", of(self.buffer, "default"));
        put(!self.options.is_empty(), "options", self.options.clone());
        put(told.place || self.place != Place::Apart, "place", word(self.place));
        put(told.load || self.load != Load::None, "load", word(self.load));
        put(told.moves || self.moves != Move::Any, "move", word(self.moves));
        put(told.chunk || self.chunk.is_some(), "chunk", of(self.chunk, "default"));
        put(told.mtu || self.mtu.is_some(), "mtu", of(self.mtu.map(u64::from), "as-is"));
        let coalescing = self.coalescing.clone().unwrap_or_else(|| "as-is".into());
        put(told.coalescing || self.coalescing.is_some(), "coalescing", coalescing);
        put(told.rails || self.rails.is_some(), "rails", self.rails.clone().unwrap_or_else(|| "as-are".into()));
        put(self.turn.is_some(), "turn", self.turn.clone().unwrap_or_default());
        axes
    }

    /// What a curve has in common: everything but the size.
    pub fn series(&self, told: &Told) -> String {
        let axes: Vec<String> = self.axes(told).into_iter().map(|(axis, value)| say(axis, &value)).collect();
        axes.join(", ")
    }

    /// For people, within its table: `8 B, poll`.
    pub fn label(&self, told: &Told) -> String {
        let mut parts = Vec::new();
        if self.work.has_messages() {
            parts.push(show_bytes(self.bytes));
        }
        let series = self.series(told);
        if !series.is_empty() {
            parts.push(series);
        }
        if parts.is_empty() { "all".to_owned() } else { parts.join(", ") }
    }
}

fn say(axis: &str, value: &str) -> String {
    match axis {
        "streams" => format!("{value} streams"),
        "completion" => value.to_owned(),
        "pace" if value == "full" => "full rate".to_owned(),
        "pace" => format!("{value}/s"),
        "buffer" => match value.parse() {
            Ok(bytes) => format!("buffers of {}", show_bytes(bytes)),
            Err(_) => "usual buffers".to_owned(),
        },
        "place" if matches!(value, "local" | "remote" | "both") => format!("layout {value}"),
        "place" if value == "hosts" => "two hosts".to_owned(),
        "place" => format!("CPUs {value}"),
        "load" if value == "none" => "no load".to_owned(),
        "load" if value == "between-nodes" => "load between nodes".to_owned(),
        "load" => format!("{value} load"),
        "move" if value == "any" => "push or pull".to_owned(),
        "move" if value == "mixed" => "push there, pull back".to_owned(),
        "chunk" => match value.parse() {
            Ok(bytes) => format!("chunks of {}", show_bytes(bytes)),
            Err(_) => "usual chunks".to_owned(),
        },
        "mtu" => format!("MTU {value}"),
        "coalescing" if value == "as-is" => "interrupts as they are".to_owned(),
        "coalescing" => value.replace('=', " "),
        "rails" if value == "as-are" => "rails as they are".to_owned(),
        "rails" => format!("rails of {}", value.replace('+', " and ")),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A cell with every axis at its usual value.
    pub fn usual() -> Cell {
        Cell {
            table: "t".into(),
            work: Work::Stream,
            program: None,
            bytes: 65_536,
            streams: 1,
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
    fn names_tell_the_axes_that_are_not_usual() {
        assert_eq!(usual().name(), "t/bytes=65536");
        assert_eq!(usual().label(&Told::default()), "64 KiB");
        let all = Cell {
            streams: 4,
            completion: Completion::Poll,
            pace: Some(1000),
            buffer: Some(1 << 21),
            options: "ring_bytes=1M".into(),
            place: Place::Same,
            load: Load::Memory,
            moves: Move::Pull,
            chunk: Some(1 << 18),
            mtu: Some(9000),
            coalescing: Some("adaptive-rx=on".into()),
            rails: Some("300mbit+800mbit".into()),
            turn: Some("pull_min=64M..4K".into()),
            ..usual()
        };
        assert_eq!(
            all.name(),
            "t/bytes=65536/streams=4/completion=poll/pace=1000/buffer=2097152/options=ring_bytes=1M/place=same/load=memory/move=pull/chunk=262144/mtu=9000/coalescing=adaptive-rx=on/rails=300mbit+800mbit/turn=pull_min=64M..4K"
        );
        assert_eq!(
            all.label(&Told::default()),
            "64 KiB, 4 streams, poll, 1000/s, buffers of 2 MiB, ring_bytes=1M, CPUs same, memory load, pull, chunks of 256 KiB, MTU 9000, adaptive-rx on, rails of 300mbit and 800mbit, pull_min=64M..4K"
        );
        let told = Told {
            completion: true,
            pace: true,
            buffer: true,
            place: true,
            load: true,
            moves: true,
            chunk: true,
            mtu: true,
            coalescing: true,
            rails: true,
        };
        assert_eq!(
            usual().label(&told),
            "64 KiB, lazy, full rate, usual buffers, CPUs apart, no load, push or pull, usual chunks, MTU as-is, interrupts as they are, rails as they are"
        );
        let connect = Cell { work: Work::ConnectClose, ..usual() };
        assert_eq!((connect.name(), connect.label(&Told::default())), ("t".into(), "all".into()));
    }

    #[test]
    fn the_main_figure_of_a_work_is_one_that_it_has() {
        for &work in Work::value_variants() {
            assert!(work.has(work.main()) && work.figures().iter().all(|&figure| work.has(figure)), "{work:?}");
        }
    }
}

//! The axes of the everyday matrix: how a server is built, where the programs run, and what they do.

use clap::ValueEnum;
use serde::Serialize;

/// How a server is built.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// A thread for each connection, blocking calls
    Threads,
    /// One epoll loop, level-triggered, non-blocking listener
    EpollLevel,
    /// One epoll loop, edge-triggered, non-blocking listener
    EpollEdge,
    /// One epoll loop, level-triggered, blocking listener
    EpollBlockingLevel,
    /// One epoll loop, blocking listener, connections edge-triggered
    EpollBlockingEdge,
    /// One loop around poll
    Poll,
    /// Processes that were forked before, each in a blocking accept
    Prefork,
    /// A process for each connection, forked after accept
    Fork,
    /// An epoll loop that hands each request to a pool of threads, as gRPC and gloo do
    Pool,
}

/// Which CPUs the programs may use, and what else runs there.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Two idle CPUs, one for each end
    Pinned,
    /// Two idle CPUs, both ends free to move
    Free,
    /// One CPU for both ends
    One,
    /// Two CPUs and a busy loop that is free to move, too
    Busy1,
    /// Two CPUs and two busy loops
    Busy2,
    /// Two CPUs that never halt: each has a SCHED_IDLE loop
    Awake,
}

/// What client and server do.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// 64 B there and back on one connection
    Pingpong,
    /// 50 connections in one client loop, one request outstanding on each
    Fifty,
    /// A connection for each request, one client
    Short1,
    /// The same, the client's port bound beforehand
    Short1Bound,
    /// A connection for each request, 20 clients at once
    Short20,
    /// The same, the clients' ports bound beforehand
    Short20Bound,
    /// 64 KiB messages one way on one connection
    Stream,
    /// Ping-pong on one connection beside a stream on another
    Mixed,
}

impl Work {
    /// Connections that are open at a time.
    pub fn connections(self) -> usize {
        match self {
            Work::Pingpong | Work::Short1 | Work::Short1Bound | Work::Stream => 1,
            Work::Mixed => 2,
            Work::Short20 | Work::Short20Bound => 20,
            Work::Fifty => 50,
        }
    }

    /// What its rate counts.
    pub fn counts(self) -> &'static str {
        match self {
            Work::Pingpong | Work::Mixed => "trips/s",
            Work::Fifty => "requests/s",
            Work::Short1 | Work::Short1Bound | Work::Short20 | Work::Short20Bound => "connections/s",
            Work::Stream => "messages/s",
        }
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    pub style: Style,
    pub placement: Placement,
    pub work: Work,
}

impl Cell {
    /// Those that a machine with so many CPUs can have.
    pub fn all(cpus: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &work in Work::value_variants() {
            for &style in Style::value_variants() {
                for &placement in Placement::value_variants() {
                    if cpus >= 2 || placement == Placement::One {
                        cells.push(Cell { style, placement, work });
                    }
                }
            }
        }
        cells
    }

    /// As it is named on the command line and in the report: `epoll-level/one/short1`.
    pub fn name(self) -> String {
        format!("{}/{}/{}", word(self.style), word(self.placement), word(self.work))
    }

    /// Whether a pattern of the command line means it: a part of its name, or of one of its words.
    pub fn matches(self, pattern: &str) -> bool {
        self.name().contains(pattern)
    }
}

/// The word of a variant on the command line.
pub fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The sentence of a variant.
pub fn sentence(value: impl ValueEnum) -> String {
    let help = value.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
    help.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_name_of_its_own() {
        let cells = Cell::all(2);
        let names: std::collections::BTreeSet<String> = cells.iter().map(|cell| cell.name()).collect();
        assert_eq!(names.len(), cells.len());
        assert_eq!(cells.len(), 9 * 6 * 8);
        assert!(Cell::all(1).iter().all(|cell| cell.placement == Placement::One));
    }

    #[test]
    fn every_variant_says_what_it_is() {
        assert!(Style::value_variants().iter().all(|&style| !sentence(style).is_empty()));
        assert!(Placement::value_variants().iter().all(|&placement| !sentence(placement).is_empty()));
        assert!(Work::value_variants().iter().all(|&work| !sentence(work).is_empty()));
    }
}

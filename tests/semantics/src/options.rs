//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Runs small socket programs on kernel TCP and on Beeline and compares what they see.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  semantics                                    all cases, with the libbeeline.so beside this program
  semantics --filter epoll/ --show             the cases whose name contains epoll/, with their traces
  semantics --native-only                      every case twice on kernel TCP: are the cases deterministic?
  semantics random --seed 7 --ops 500          one random sequence of operations
  semantics random --ops-total 1000000         a million operations, in sequences with seeds of their own
  semantics faults --connections 5000          killed, stopped, forked, handed over, short of memory ...
  semantics faults --tcp                       the same on kernel TCP"
)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Run only cases whose name contains this
    #[arg(long, global = true)]
    pub filter: Option<String>,

    /// List the cases that would run
    #[arg(long)]
    pub list: bool,

    /// The library to test [default: BEELINE_LIBRARY, or libbeeline.so beside this program]
    #[arg(long, global = true)]
    pub library: Option<PathBuf>,

    /// Compare kernel TCP with kernel TCP: every case must be deterministic
    #[arg(long, global = true)]
    pub native_only: bool,

    /// Cases that run at the same time
    #[arg(long, global = true, default_value_t = 2)]
    pub jobs: usize,

    /// Seconds after which a case has failed
    #[arg(long, global = true, default_value_t = 60)]
    pub timeout: u64,

    /// Print the kernel's trace of each case
    #[arg(long, global = true)]
    pub show: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare random sequences of operations
    Random {
        /// The first seed [default: from the clock]
        #[arg(long)]
        seed: Option<u64>,
        /// Operations in one sequence
        #[arg(long, default_value_t = 300)]
        ops: usize,
        /// Which calls take part
        #[arg(long, value_enum, default_value = "all")]
        calls: crate::random::Calls,
        /// How many sequences, with seeds that follow one another
        #[arg(long, default_value_t = 1)]
        count: u64,
        /// As many sequences as have so many operations together
        #[arg(long, conflicts_with = "count")]
        ops_total: Option<u64>,
        /// Run only the operations with these numbers, as a shrunk sequence is printed
        #[arg(long, value_delimiter = ',')]
        only: Vec<usize>,
    },
    /// Make many connections with a fault each, and check every byte
    Faults(crate::faults::Faults),
    /// Run one case in this process (used by the runner)
    #[command(hide = true)]
    Child {
        program: String,
        #[arg(long)]
        trace: PathBuf,
        /// For two programs: which of them are interposed
        #[arg(long)]
        interposed: Option<String>,
    },
}

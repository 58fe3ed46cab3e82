//! The commands that look and change nothing: `ss`, `top` and `doctor`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::selection::{Selection, parse_count, parse_interval, parse_selection};

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Shared memory, within a network namespace
    Lane,
    /// Shared memory, to another network namespace of this host
    Namespace,
    /// The bridge, to another host
    Bridge,
    /// Kernel TCP
    Tcp,
}

const SS_EXAMPLES: &str = "\
Examples:
  beeline ss                   all open connections of your processes that run with Beeline, or everybody's if you are root
  beeline ss redis-server      those of one program
  beeline ss --path tcp        those that are on kernel TCP; `beeline stat` tells why
  beeline ss --json | jq '.connections[] | select(.path == \"lane\")'

Paths:
  lane       shared memory, within a network namespace
  namespace  shared memory, to another network namespace of this host
  bridge     by the bridge to another host; only root and the bridge's own user see which these are, others see `lane`
  tcp        kernel TCP";

#[derive(Args, Debug)]
#[command(after_help = SS_EXAMPLES)]
pub struct SsArgs {
    /// A process id, the name of a program, or all
    #[arg(value_name = "PID|PROGRAM", default_value = "all", value_parser = parse_selection)]
    pub selection: Selection,

    /// Only connections that take this path
    #[arg(long, value_enum)]
    pub path: Option<Path>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

const TOP_EXAMPLES: &str = "\
Examples:
  beeline top                  the busiest connections, each second, until q is pressed
  beeline top nginx -d 5       those of one program, every five seconds
  beeline top --count 3        three times, as for a log";

#[derive(Args, Debug)]
#[command(after_help = TOP_EXAMPLES)]
pub struct TopArgs {
    /// A process id, the name of a program, or all
    #[arg(value_name = "PID|PROGRAM", default_value = "all", value_parser = parse_selection)]
    pub selection: Selection,

    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub delay: Duration,

    /// End after so many
    #[arg(short = 'n', long, value_name = "TIMES", value_parser = parse_count)]
    pub count: Option<u32>,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  beeline doctor               what this host offers: a lane is tried, and TCP beside it
  beeline doctor nginx         whether Beeline can be in this program, and how those that run do
  beeline doctor 4711          why connections of this process are not accelerated, and what to do
  beeline doctor --json | jq '.host[] | select(.state != \"good\")'

Exit codes:
  0  nothing stands in the way of lanes
  1  something does
  2  the command line is wrong, or there is no such process
  126  the program cannot be executed
  127  the program was not found";

#[derive(Args, Debug)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// A process id; or a program, by its name or path
    #[arg(value_name = "PID|PROGRAM", value_hint = clap::ValueHint::CommandName)]
    pub subject: Option<OsString>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The library to try (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// A process of the trial: `serve`, or the port to ask
    #[arg(long, hide = true)]
    pub part: Option<String>,
}

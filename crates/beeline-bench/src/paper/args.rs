//! The command lines of `paper`, `compare` and `report`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::axis::{Hundredths, parse_percent};

use crate::hosts::place::Host;
use crate::parse::{cpus, library_options, sockets};

const PAPER_EXAMPLES: &str = "\
Examples:
  beeline bench paper --list                       the plans that come with the program
  beeline bench paper servernet --quick            a first impression, in about a minute
  beeline bench paper vpi --into runs/vpi          the whole plan; Ctrl-C ends it, --resume goes on
  beeline bench paper --resume runs/vpi            what is missing in that run
  beeline bench paper vpi --dry-run                the cells, and how long they take
  beeline bench paper vpi --print-plan > mine.toml a plan to change
  beeline bench paper mine.toml --confidence 99.5 --within 5%
  beeline bench paper --all --quick                all plans, each in a directory of its own";

/// Options of `beeline bench paper`.
#[derive(Args, Clone, Debug)]
#[command(after_help = PAPER_EXAMPLES, group = ArgGroup::new("what").required(true).args(["plan", "all", "list", "resume", "null"]))]
pub struct PaperOptions {
    /// A plan: socket-direct, servernet, vpi, sockets-mx, forty-gig, modes, mpi, or a TOML file
    #[arg(value_name = "NAME|FILE")]
    pub plan: Option<String>,

    /// All plans that come with the program but mpi, which has parts of the others, one after the other
    #[arg(long)]
    pub all: bool,

    /// Show the plans that come with the program and exit
    #[arg(long)]
    pub list: bool,

    /// Go on with the run that is in DIR, as it was begun
    #[arg(long, value_name = "DIR", conflicts_with_all = ["quick", "rounds", "duration", "confidence", "within", "rounds_max",
        "only", "into", "options", "cpus", "hosts", "print_plan", "minutes_max"])]
    pub resume: Option<PathBuf>,

    /// Measure what the instrument itself adds to a sample, without a socket, and exit
    #[arg(long)]
    pub null: bool,

    /// Print the plan, to be changed, and exit
    #[arg(long, requires = "plan")]
    pub print_plan: bool,

    /// Show the cells, those that this host cannot have, and how long the rest takes; measure nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Short samples, three rounds, at most five sizes of each table
    #[arg(long)]
    pub quick: bool,

    /// Only cells whose name contains PATTERN (may be given several times; see --dry-run)
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,

    /// The directory of the run (default: beeline-NAME-DATE; with --all the directory for all of them)
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,

    /// How often each cell is measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// How long one sample takes, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(5..=600_000))]
    pub duration: Option<u64>,

    /// Go on until the main figure of both columns is known with this confidence, in percent
    ///
    /// The interval is that of the median, from the order of the samples, so nothing is assumed of their distribution.
    /// 99.5 takes nine rounds at least.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub confidence: Option<Hundredths>,

    /// How wide that interval may be, in percent of the median (default with --confidence: 5)
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub within: Option<Hundredths>,

    /// With --confidence: give a cell up after so many rounds, and say so (default: 30)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds_max: Option<u32>,

    /// Begin nothing more after so many minutes: what is missing is for --resume
    #[arg(long, value_name = "MIN", value_parser = clap::value_parser!(u32).range(1..))]
    pub minutes_max: Option<u32>,

    /// The two CPUs of client and server where a cell does not say otherwise (default: two cores of one NUMA node)
    #[arg(long, value_name = "A,B", value_parser = cpus)]
    pub cpus: Option<(usize, usize)>,

    /// libbeeline.so to measure (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Options handed to the library in every cell, as BEELINE_OPTIONS
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = library_options)]
    pub options: Option<String>,

    /// Measure between two hosts, TCP against the bridge; hosts as for `beeline bench --hosts`
    #[arg(long, value_name = "A,B", value_parser = Host::parse_two)]
    pub hosts: Option<[Host; 2]>,

    /// With --hosts: the address of B that the server listens on (default: one that B's bridge speaks for)
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,

    /// With --hosts: the bridges' administrator's sockets (default: as their configurations say)
    #[arg(long, value_name = "A,B", value_parser = sockets)]
    pub bridge_sockets: Option<[String; 2]>,

    /// With --hosts: for how many seconds a program or a bridge may say nothing before it is given up
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub patience: u64,

    /// With --hosts: the `beeline` of hosts that are reached by ssh
    #[arg(long, value_name = "PATH", default_value = "beeline")]
    pub remote: String,

    /// Write no report at the end
    #[arg(long)]
    pub no_report: bool,
}

const MPI_EXAMPLES: &str = "\
Examples:
  beeline bench mpi --quick                        three rounds, in about two minutes
  beeline bench mpi --only latency                 the ping-pong of 4 B alone
  beeline bench mpi --confidence 99.5 --within 5%
Nothing is built: the MPIs and their ping-pongs are Debian's packages openmpi-bin, mpich, lam-runtime, netpipe-openmpi,
netpipe-mpich2 and netpipe-lam. What is not installed is a line with the package's name.";

/// Options of `beeline bench mpi`, which is the plan `mpi` of `beeline bench paper`.
#[derive(Args, Clone, Debug)]
#[command(after_help = MPI_EXAMPLES)]
pub struct MpiOptions {
    /// Three rounds
    #[arg(long)]
    pub quick: bool,

    /// Show the cells, those that this host cannot have, and how long the rest takes; measure nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Only cells whose name contains PATTERN (may be given several times; see --dry-run)
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,

    /// The directory of the run, which `beeline bench paper --resume` goes on with (default: beeline-mpi-DATE)
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,

    /// How often each cell is measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// Go on until both columns are known with this confidence, in percent
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub confidence: Option<Hundredths>,

    /// How wide that interval may be, in percent of the median (default with --confidence: 5)
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub within: Option<Hundredths>,

    /// The two CPUs that the programs may use (default: two cores of one NUMA node)
    #[arg(long, value_name = "A,B", value_parser = cpus)]
    pub cpus: Option<(usize, usize)>,

    /// libbeeline.so to measure (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Options handed to the library, as BEELINE_OPTIONS
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = library_options)]
    pub options: Option<String>,

    /// Write no report at the end
    #[arg(long)]
    pub no_report: bool,
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  beeline bench compare runs/monday runs/friday
  beeline bench compare before after --alpha 1% --json
The exit code is 0 when nothing differs, 1 when something does, 2 when they cannot be compared.";

/// Options of `beeline bench compare`.
#[derive(Args, Clone, Debug)]
#[command(after_help = COMPARE_EXAMPLES)]
pub struct CompareOptions {
    /// The directory of one run
    #[arg(value_name = "A")]
    pub first: PathBuf,

    /// The directory of another, of the same plan or one with cells in common
    #[arg(value_name = "B")]
    pub second: PathBuf,

    /// How many of the differences that are told may be none, in percent
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_percent)]
    pub alpha: Hundredths,

    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  beeline bench report runs/vpi                 writes report.html, report.md, report.csv and figures there
  beeline bench report runs/vpi --into /tmp/vpi";

/// Options of `beeline bench report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = REPORT_EXAMPLES)]
pub struct ReportOptions {
    /// The directory of a run, finished or not
    #[arg(value_name = "DIR")]
    pub run: PathBuf,

    /// Where the files go (default: the run's directory)
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
}

//! What can be asked of the instrument on its command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::everyday::worker::EverydayArgs;
use crate::hosts::place::Host;
use crate::paper::args::{CompareOptions, MpiOptions, PaperOptions, ReportOptions};
use crate::parse::{cpus, library_options, sockets};
use crate::transport::Transport;
use crate::worker::args::WorkerArgs;

const EXAMPLES: &str = "\
Examples:
  beeline bench                          everything, five alternating rounds
  beeline bench --quick                  the same rows in about half a minute
  beeline bench --only ping --rounds 9   the ping-pong rows only
  beeline bench --everyday --only /one/  the everyday matrix, where both ends share a CPU
  beeline bench --modes                  poll, wait and lazy: latency and CPU time of a message
  beeline bench --check --save run.json  compare with the floors, keep the raw samples
  beeline bench --hosts alpha,beta       TCP against the bridge, between two hosts
  beeline bench paper servernet --quick  the tables of a paper, with a report
  beeline bench mpi --quick              Open MPI, MPICH and LAM, as far as they are installed";

/// Measure Beeline against TCP loopback, AF_UNIX and the machine's own limits, in one alternating run.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Something else than a plain run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    /// The options of a plain run.
    #[command(flatten)]
    pub options: BenchOptions,
}

/// What the instrument does beside a plain run.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Real programs over TCP and over Beeline: Redis, iperf3, NetPIPE, sockperf and the quick bench
    Demo(DemoOptions),
    /// The tables of the papers that Beeline comes from, TCP beside Beeline, as a plan in a file says
    Paper(Box<PaperOptions>),
    /// MPIs of this host over TCP, over Beeline and through shared memory: 4 B latency, 4 MiB bandwidth, patterns
    Mpi(Box<MpiOptions>),
    /// What differs between two runs of `paper`, and how sure that is
    Compare(CompareOptions),
    /// One HTML file, Markdown, CSV and figures of a run of `paper`
    Report(ReportOptions),
    /// One end of one workload. The instrument starts these itself.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// One process of the everyday matrix. The instrument starts these itself.
    #[command(hide = true)]
    EverydayWorker(EverydayArgs),
    /// Describe this host, as JSON. The instrument asks the hosts of --hosts.
    #[command(hide = true)]
    About(AboutOptions),
}

/// Options of `about`.
#[derive(Args, Clone, Debug)]
pub struct AboutOptions {
    /// The library to be told of (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
}

const DEMO_EXAMPLES: &str = "\
Examples:
  beeline bench demo                     all of them, as `make demo` does
  beeline bench demo --only redis        Redis alone
  beeline bench demo --json > demo.json";

/// Options of the demo.
#[derive(Args, Clone, Debug)]
#[command(after_help = DEMO_EXAMPLES)]
pub struct DemoOptions {
    /// Only these: redis, iperf3, netpipe, sockperf, bench (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,

    /// Leave the choice of CPUs to the scheduler
    #[arg(long)]
    pub no_pin: bool,

    /// The `beeline` to run programs with (default: this program, or the one beside it)
    #[arg(long, value_name = "PATH")]
    pub beeline: Option<PathBuf>,

    /// libbeeline.so to use (default: the one that belongs to `beeline`)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

impl DemoOptions {
    /// The bench that ends the demo.
    pub fn bench(&self) -> BenchOptions {
        BenchOptions {
            quick: true,
            // Counting system calls takes strace, and longer than a demo should.
            except: vec!["syscalls".into()],
            library: self.library.clone(),
            json: self.json,
            ..BenchOptions::plain()
        }
    }
}

/// Options of a plain run.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// Short samples, three rounds: a first impression in about half a minute
    #[arg(long)]
    pub quick: bool,

    /// The everyday matrix instead: servers of every style, on idle, shared and busy CPUs, TCP beside Beeline
    ///
    /// Rate, mean, p50, p99, p99.9 and CPU time of each cell, and a map of the ratios. --only and --except take parts
    /// of names such as epoll-level/one/short1 (see --everyday --list). With --check the exit code is 1 when a cell is
    /// slower than TCP. About half an hour; with --quick about ten minutes.
    #[arg(long, conflicts_with_all = ["hosts", "histogram", "transports"])]
    pub everyday: bool,

    /// How a call waits instead: poll, wait and lazy at 8 B, 64 B and 4 KiB, at full rate and at 1,000 messages a
    /// second
    ///
    /// Latency and CPU time of a message at both ends, TCP beside Beeline. It is the plan `modes` of
    /// `beeline bench paper`, and is kept and reported in a directory as such. A minute and a half.
    #[arg(long, conflicts_with_all = ["hosts", "everyday", "histogram", "transports", "except", "list", "json", "save", "check"])]
    pub modes: bool,

    /// How often each workload is run over each transport
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,

    /// Only workloads whose name contains PATTERN (may be given several times; see --list)
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,

    /// Leave out workloads whose name contains PATTERN
    #[arg(long, value_name = "PATTERN")]
    pub except: Vec<String>,

    /// Show the names of the workloads and exit
    #[arg(long)]
    pub list: bool,

    /// How long one sample takes, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub duration: Option<u64>,

    /// Columns to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = Transport::ALL)]
    pub transports: Vec<Transport>,

    /// libbeeline.so to measure (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Options handed to the library, as BEELINE_OPTIONS
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = library_options)]
    pub options: Option<String>,

    /// The two CPUs to pin the client and the server to (default: two cores of one NUMA node)
    #[arg(long, value_name = "A,B", value_parser = cpus)]
    pub cpus: Option<(usize, usize)>,

    /// Add a pass that times every single round trip and reports p50, p99 and p99.9
    #[arg(long)]
    pub histogram: bool,

    /// Leave out UCX and libfabric even when they are installed
    #[arg(long)]
    pub no_foreign: bool,

    /// Print the results as JSON, with raw samples and the machine's description
    #[arg(long)]
    pub json: bool,

    /// Store the same JSON in FILE
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Compare with what Beeline must reach; exit code 1 when a line fails
    #[arg(long)]
    pub check: bool,

    /// Fail when a Beeline sample was not carried by Beeline, instead of marking it
    #[arg(long)]
    pub require_accelerated: bool,

    /// Measure between two hosts, TCP against the bridge: the client runs on A, the server on B
    ///
    /// A host is an ssh destination (`user@host`; ssh must not have to ask for anything), `netns:NAME` for a network
    /// namespace of this host, or `local`. The same release of Beeline must be on both.
    #[arg(long, value_name = "A,B", value_parser = Host::parse_two)]
    pub hosts: Option<[Host; 2]>,

    /// With --hosts: the address of B that the server listens on (default: one that B's bridge speaks for)
    #[arg(long, value_name = "IP", requires = "hosts")]
    pub address: Option<IpAddr>,

    /// With --hosts: the bridges' administrator's sockets (default: as their configurations say)
    #[arg(long, value_name = "A,B", requires = "hosts", value_parser = sockets)]
    pub bridge_sockets: Option<[String; 2]>,

    /// With --hosts: for how many seconds a program or a bridge may say nothing before it is given up
    #[arg(long, value_name = "S", requires = "hosts", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub patience: u64,

    /// With --hosts: the `beeline` of hosts that are reached by ssh
    #[arg(long, value_name = "PATH", requires = "hosts", default_value = "beeline")]
    pub remote: String,
}

impl BenchOptions {
    /// Whether --only and --except leave a workload of this name in.
    pub fn names(&self, name: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| name.contains(pattern.as_str()));
        (self.only.is_empty() || any(&self.only)) && !any(&self.except)
    }

    /// A run on this host that compares TCP and Beeline, for parts of the instrument that ask for one themselves.
    pub fn plain() -> Self {
        BenchOptions {
            quick: false,
            everyday: false,
            modes: false,
            rounds: None,
            only: Vec::new(),
            except: Vec::new(),
            list: false,
            duration: None,
            transports: vec![Transport::Tcp, Transport::Beeline],
            library: None,
            options: None,
            cpus: None,
            histogram: false,
            no_foreign: true,
            json: false,
            save: None,
            check: false,
            require_accelerated: false,
            hosts: None,
            address: None,
            bridge_sockets: None,
            patience: 20,
            remote: "beeline".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::args::{Program, Role};
    use clap::Parser;
    use std::ffi::OsString;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn worker_arguments_survive_the_command_line() {
        let mut worker = WorkerArgs::new(Program::PingpongEpoll);
        worker.role = Role::Client;
        worker.address = Some("@name".into());
        worker.cpu = Some(1);
        worker.begin_cpu = Some(0);
        worker.memory_node = Some(2);
        worker.messages = Some(7);
        worker.histogram = true;
        worker.streams = 4;
        worker.questions = 6;
        worker.buffer_bytes = Some(65_536);
        let line = std::iter::once(OsString::from("bench")).chain(worker.to_args());
        let parsed = Cli::try_parse_from(line).unwrap().bench;
        let Some(BenchCommand::Worker(parsed)) = parsed.command else {
            panic!("not a worker");
        };
        assert_eq!(parsed, worker);
    }

    #[test]
    fn all_transports_are_measured_by_default() {
        let cli = Cli::try_parse_from(["bench", "--quick"]).unwrap();
        assert_eq!(cli.bench.options.transports, Transport::ALL);
    }
}

//! The command line: what can be asked for. What it means is in the commands' own modules.

mod looks;
mod selection;

use std::ffi::OsString;
use std::path::PathBuf;

use beeline_stats::tunables::{Kind, OptionSpec};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};
pub use looks::{DoctorArgs, Path, SsArgs, TopArgs};
pub use selection::Selection;
use selection::{parse_interval, parse_selection};

/// Sockets at the speed of shared memory, with nothing changed but the command in front.
#[derive(Parser, Debug)]
#[command(name = "beeline", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  beeline run redis-server                 start a server
  beeline run redis-benchmark -t get       and a client: they talk through shared memory
  beeline stat                             which connections are accelerated, and why others are not";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with Beeline
    Run(RunArgs),
    /// Show what processes that run with Beeline are doing, and what the bridge carries to other hosts
    Stat(StatArgs),
    /// List open connections, with the path that each of them takes
    Ss(SsArgs),
    /// Watch the busiest connections
    Top(TopArgs),
    /// Find out what this host offers, and why a program's connections are not accelerated
    Doctor(DoctorArgs),
    /// Change options of running processes, for all they do or for one connection
    Set(SetArgs),
    /// Measure Beeline against TCP, AF_UNIX and the machine's own limits
    Bench(Box<beeline_bench::BenchArgs>),
    /// What links would give that are not here: fair rates of flows that share them
    Plan(beeline_bench::PlanOptions),
    /// Draw this host, its rails to other hosts, and the path that connections take from each CPU
    Topo(TopoArgs),
    /// Carry connections to other hosts: the commands of `beelined`, if the bridge is installed
    Bridge(BridgeArgs),
    /// Write manual pages, shell completions, the reference of options and reasons, or the table of calls
    #[command(hide = true)]
    Generate(GenerateArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  beeline run redis-server --port 7000
  beeline run --profile latency ./server
  beeline run --option wait=poll --option ring_bytes=262144 -- ./server --verbose
  beeline run --option accelerate=off ./client     the same, over kernel TCP

Exit codes:
  The program replaces beeline, so its exit code, its signals and its process id are its own.
  125  Beeline failed before the program was started
  126  the program cannot be executed
  127  the program was not found";

#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES, after_long_help = run_long_help())]
pub struct RunArgs {
    /// A profile: latency, throughput, lowcpu, one of your own, or the path of a TOML file
    #[arg(short, long, value_name = "PROFILE", value_parser = Suggested(&crate::profile::NAMES),
        hide_possible_values = true)]
    pub profile: Option<String>,

    /// Set an option (may be given several times; see --help for the list)
    #[arg(
        short,
        long = "option",
        value_name = "KEY=VALUE",
        long_help = "Set an option (may be given several times; they are listed below)"
    )]
    pub options: Vec<OsString>,

    /// Leave out /etc/beeline/config.toml and the user's own
    #[arg(long)]
    pub no_config: bool,

    /// The library to load (default: the one that belongs to this program)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Do not warn about programs that cannot be accelerated
    #[arg(short, long)]
    pub quiet: bool,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

fn run_long_help() -> String {
    use std::fmt::Write;
    let mut help = String::from("Options of the library:\n");
    for spec in OptionSpec::all() {
        let _ = writeln!(help, "  {}={}", spec.key, spec.default);
        for line in textwrap::wrap(spec.sentence, 86) {
            let _ = writeln!(help, "      {line}");
        }
        if !matches!(spec.kind, Kind::Switch) {
            let _ = writeln!(help, "      ({})", spec.kind);
        }
    }
    help.push_str(
        "\nWhere options come from, the later winning: /etc/beeline/config.toml, ~/.config/beeline/config.toml, the \
         profile,\nthe environment variable BEELINE_OPTIONS (key=value,key=value), --option. Within another run its options come \
         before\nthe profile.\n\n\
         Rules, for some connections only; the first that matches counts, and those of a source that wins come \
         first:\n  [[rule]]                   in a profile or a configuration\n  program = \"redis-*\"        a name, or a path; * and ? \
         stand for any characters\n  role = \"client\"            or \"server\"\n  address = \"10.0.0.0/8\"     the server's: an address or a \
         prefix, IPv4 or IPv6\n  port = 6379                the server's, or a range: \"8000-8099\"\n  path = \"lane\"              or \"tcp\"; and \
         options:\n",
    );
    for key in beeline_stats::tunables::rules::options() {
        let _ = writeln!(help, "  {key} = ...");
    }
    help.push_str("As an option: --option 'rule=role=client;port=6379;wait=poll'.\n\n");
    help + RUN_EXAMPLES
}

const STAT_EXAMPLES: &str = "\
Examples:
  beeline stat                 your processes, or everybody's if you are root
  beeline stat 4711            one process, with its connections
  beeline stat redis-server    all processes of that program, with their connections
  beeline stat --watch         again each second, with rates, until q is pressed
  beeline stat 4711 -w 5       one process, every five seconds
  beeline stat --json | jq '.processes[].reasons'

The bridge answers root and its own user only; its connections, rails and reasons are shown to them.";

#[derive(Args, Debug)]
#[command(after_help = STAT_EXAMPLES)]
pub struct StatArgs {
    /// A process id, the name of a program, or all
    #[arg(value_name = "PID|PROGRAM", default_value = "all", value_parser = parse_selection)]
    pub selection: Selection,

    /// Print JSON instead of a table; with --watch one object a line
    #[arg(long)]
    pub json: bool,

    /// Show it again every SECONDS (1, if none are given), with rates. On a terminal, q ends it
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = parse_interval
    )]
    pub watch: Option<std::time::Duration>,

    /// Show what ended processes have left, too, and remove nothing
    #[arg(long)]
    pub ended: bool,

    /// The socket of the bridge's administrator [default: as the bridge's configuration says]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Where the directories of the users are
    #[arg(long, hide = true, default_value = "/dev/shm")]
    pub root: PathBuf,
}

const SET_EXAMPLES: &str = "\
Examples:
  beeline set 4711 wait=poll                       all waits of a process, from the next one on
  beeline set --name redis-server spin_ns_max=20000
  beeline set 4711 --connection 9 wait=poll        one connection, by the FD that `beeline stat 4711` shows
  beeline set 4711 --connection 127.0.0.1:24000 wait=default
  beeline set 4711 accelerate=off                  new connections go over TCP
  beeline set 4711 --list                          what holds now, where it comes from, what can be changed

What is set holds for the process, for children that it forks later, and for the program that it becomes by exec; not for
programs that are started anew. For a connection the last word counts: a rule's when it begins, then what the program says
with SO_BUSY_POLL, and --connection.

Exit codes:
  0  it is set
  1  there is no such process or connection, or it is not yours
  2  there is no such option, it does not take the value, or cannot be changed while a program runs";

#[derive(Args, Debug)]
#[command(after_help = SET_EXAMPLES, override_usage = "beeline set [OPTIONS] <PID|--name <NAME>> [KEY=VALUE]...")]
pub struct SetArgs {
    /// A process id (not with --name), and what to set: KEY=VALUE, or KEY=default to take back what was set
    #[arg(value_name = "PID|KEY=VALUE")]
    pub words: Vec<String>,

    /// All processes of a program, by its name as `ps` shows it
    #[arg(short, long, value_name = "NAME")]
    pub name: Option<String>,

    /// One open connection: its FD, or its local or remote address, as `beeline stat` shows them
    #[arg(short, long, value_name = "FD|ADDRESS")]
    pub connection: Option<String>,

    /// Show all options as they are now
    #[arg(short, long)]
    pub list: bool,

    /// With --list: print JSON
    #[arg(long, requires = "list")]
    pub json: bool,

    /// Where the directories of the users are
    #[arg(long, hide = true, default_value = "/dev/shm")]
    pub root: PathBuf,
}

const TOPO_EXAMPLES: &str = "\
Examples:
  beeline topo                         this host, as its bridge sees it
  beeline topo --why                   and why each rail was not taken that was not
  beeline topo --xml host.xml          another host, recorded there with `lstopo host.xml`
  beeline topo --near eth2=1           as if eth2 were at node 1, where the firmware says it wrongly
  beeline topo --json | jq '.paths[].from[] | {cpus, rail: .candidates[0].rail}'

Rails are what the bridge says (`beelined rails --json`). Without a bridge, network ports are shown, and
those that are nearest to each CPU.";

#[derive(Args, Debug)]
#[command(after_help = TOPO_EXAMPLES)]
pub struct TopoArgs {
    /// Print JSON instead of a drawing
    #[arg(long)]
    pub json: bool,

    /// Say of each rail that is not taken why it is not
    #[arg(short, long)]
    pub why: bool,

    /// Draw with ASCII alone (as is done where the locale is not UTF-8)
    #[arg(long)]
    pub ascii: bool,

    /// Describe the host in this file, written by hwloc 2 (`lstopo FILE`), instead of this one
    #[arg(long, value_name = "FILE")]
    pub xml: Option<PathBuf>,

    /// Take the rails from this file, written by `beelined rails --json`, instead of asking the bridge
    #[arg(long, value_name = "FILE")]
    pub rails: Option<PathBuf>,

    /// Take a port to be at these NUMA nodes (may be given several times)
    #[arg(long, value_name = "PORT=NODE", value_parser = crate::topo::near::parse_near)]
    pub near: Vec<beeline_topo::host::Override>,

    /// The bridge's program (default: the one beside this command)
    #[arg(long, value_name = "PATH", hide = true)]
    pub bridge: Option<PathBuf>,
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  beeline bridge --help                    what the bridge can do
  beeline bridge status                    the same as `beelined status`";

#[derive(Args, Debug)]
#[command(after_help = BRIDGE_EXAMPLES, disable_help_flag = true)]
pub struct BridgeArgs {
    /// A command of `beelined`, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// The command line as shells complete it: with the bridge's commands, which are those of another program.
pub fn with_bridge_commands() -> clap::Command {
    Cli::command().mut_subcommand("bridge", |bridge| {
        beeline_status::COMMANDS.iter().fold(bridge, |bridge, name| bridge.subcommand(clap::Command::new(*name)))
    })
}

/// A text that can be anything; shells offer these words.
#[derive(Clone)]
struct Suggested(&'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

#[derive(Args, Debug)]
pub struct GenerateArgs {
    #[command(subcommand)]
    pub what: Generate,
}

#[derive(Subcommand, Debug)]
pub enum Generate {
    /// Manual pages, one for each command, into a directory
    Man { directory: PathBuf },
    /// Completions for a shell, to standard output
    Completions { shell: clap_complete::Shell },
    /// Options, reasons and counters as Markdown, to standard output
    Reference,
    /// What becomes of each libc function, flag and option, as Markdown, to standard output
    Semantics,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n"), "{}", command.get_name());
            commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        }
    }

    #[test]
    fn what_follows_the_program_is_the_programs_own() {
        let cli = Cli::parse_from(["beeline", "run", "-p", "latency", "ls", "-p", "--json", "--"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.profile.as_deref(), Some("latency"));
        assert_eq!(run.command, ["ls", "-p", "--json", "--"]);
        let cli = Cli::parse_from(["beeline", "run", "--", "-odd", "--", "x"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.command, ["-odd", "--", "x"]);
    }

    #[test]
    fn a_wrong_option_is_no_program() {
        for line in [&["beeline", "run", "--bogus"][..], &["beeline", "run", "-p", "latency", "--bogus", "ls"]] {
            let error = Cli::try_parse_from(line).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{line:?}");
        }
    }

    #[test]
    fn an_interval_may_follow_its_option() {
        let stat = |line: &[&str]| match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::Stat(stat)) => Some((stat.selection, stat.watch.map(|interval| interval.as_secs_f64()))),
            _ => None,
        };
        assert_eq!(stat(&["beeline", "stat"]), Some((Selection::All, None)));
        assert_eq!(stat(&["beeline", "stat", "-w"]), Some((Selection::All, Some(1.0))));
        assert_eq!(stat(&["beeline", "stat", "-w", "2"]), Some((Selection::All, Some(2.0))));
        assert_eq!(stat(&["beeline", "stat", "4711", "--watch=0.5"]), Some((Selection::Pid(4711), Some(0.5))));
        assert_eq!(stat(&["beeline", "stat", "sshd", "-w"]), Some((Selection::Program("sshd".into()), Some(1.0))));
        for wrong in ["0", "-1", "99999999999", ""] {
            assert_eq!(stat(&["beeline", "stat", "--", wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn shells_offer_profiles_and_commands_of_the_bridge() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut with_bridge_commands(), "beeline", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in crate::profile::NAMES.iter().chain(&beeline_status::COMMANDS) {
                assert!(text.contains(word), "{shell} does not offer {word}");
            }
        }
    }

    #[test]
    fn long_help_names_every_option() {
        let help = run_long_help();
        for spec in OptionSpec::all() {
            assert!(help.contains(spec.key), "{}", spec.key);
        }
    }
}

//! The command line: what can be asked for.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use beelined::config::{self, Config};
use beelined::name::BridgeName;
use beelined::prefix::Prefix;
use beelined::tunables::SPECS;

/// The bridge: carries Beeline's connections to other hosts, over the best fabric that both have
#[derive(Parser, Debug)]
#[command(name = "beelined", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  beelined keygen --address 10.0.0.1       on each host: make its key and certificate
  beelined trust beta.crt                  on each host: trust the other's certificate
  beelined run                             on each host: carry connections (systemd does this)
  beelined agent                           bring this host's containers together
  beelined status                          who is there, and what is carried";

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Carry connections until told to stop (SIGTERM, which lets existing ones end first); SIGHUP reads the trusted
    /// certificates again
    Run(RunArgs),
    /// Bring programs of different network namespaces of this host together, until told to stop (SIGTERM)
    Agent(AgentArgs),
    /// Make a key and its certificate
    Keygen(KeygenArgs),
    /// Trust a peer's certificate
    Trust(TrustArgs),
    /// Trust a peer's certificate no longer
    Distrust(DistrustArgs),
    /// List the trusted certificates
    Trusted(TrustedArgs),
    /// Show what the running bridge does
    Status(StatusArgs),
    /// Change a setting of the running bridge
    Set(SetArgs),
    /// Let the running bridge take no new connections, and stop when the last has ended
    Drain(DrainArgs),
    /// List the fabric ports of this host, and which the configuration admits
    Rails(RailsArgs),
    /// Write manual pages or shell completions
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// Where the configuration is.
#[derive(Args, Debug, Clone)]
pub struct ConfigArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE", default_value = config::PATH)]
    pub config: PathBuf,
}

impl ConfigArgs {
    /// What it says. `None` where there is none at the usual place: what does not need one goes on with what holds
    /// without. A file that was asked for has to be there.
    pub fn read(&self) -> anyhow::Result<Option<Config>> {
        if self.config == Path::new(config::PATH) && !self.config.exists() {
            return Ok(None);
        }
        Config::read(&self.config).map(Some)
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  beelined run                             with /etc/beeline/beelined.toml; the log goes to standard error
  beelined run --config lab.toml           with another configuration";

/// `beelined run`
#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
}

const AGENT_EXAMPLES: &str = "\
Examples:
  beelined agent                           with /etc/beeline/beelined.toml, of which only [namespaces] counts

It needs root, and no key. Programs find it at /run/beeline-agent/agent.sock, or in their own
network namespace, where it listens by itself; mount /run/beeline-agent into containers with a
user namespace of their own, and with `find = false` into all.";

/// `beelined agent`
#[derive(Args, Debug)]
#[command(after_help = AGENT_EXAMPLES)]
pub struct AgentArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
}

const KEYGEN_EXAMPLES: &str = "\
Examples:
  beelined keygen --address 10.0.0.1 --address 10.0.1.1     a host with two addresses
  beelined keygen --address 10.0.0.1 --address 10.244.3.0/24
                                                            a host that also speaks for its containers

The certificate goes to each peer, where `beelined trust` installs it. The key goes nowhere.";

/// `beelined keygen`
#[derive(Args, Debug)]
#[command(after_help = KEYGEN_EXAMPLES)]
pub struct KeygenArgs {
    /// The bridge's name [default: the host's]
    #[arg(short, long)]
    pub name: Option<BridgeName>,

    /// An address of this host, or a prefix, that the bridge speaks for (may be given several times)
    #[arg(short, long = "address", value_name = "IP_OR_PREFIX", required = true)]
    pub addresses: Vec<Prefix>,

    /// How long the certificate is valid
    #[arg(short, long, default_value_t = 3650, value_parser = parse_days)]
    pub days: u32,

    /// Where beelined.key and beelined.crt go
    #[arg(short, long, value_name = "DIR", default_value = "/etc/beeline")]
    pub out: PathBuf,

    /// To whom the key shall belong, if there is such a user and this is root
    #[arg(short, long, default_value = "beeline")]
    pub user: String,

    /// Replace a key that is there, and accept prefixes that look too wide
    #[arg(short, long)]
    pub force: bool,
}

fn parse_days(text: &str) -> Result<u32, String> {
    const DAYS_MAX: u32 = 36_500;
    let days = text.parse().ok().filter(|days| (1..=DAYS_MAX).contains(days));
    days.ok_or_else(|| format!("it must be a number from 1 to {DAYS_MAX}"))
}

const TRUST_EXAMPLES: &str = "\
Examples:
  beelined trust beta.crt                  compare the fingerprint with what `keygen` showed on beta
  beelined trust --force beta.crt          put beta's new certificate in the place of its old one";

/// `beelined trust`
#[derive(Args, Debug)]
#[command(after_help = TRUST_EXAMPLES)]
pub struct TrustArgs {
    /// The peer's certificate
    #[arg(value_name = "CERTIFICATE")]
    pub certificate: PathBuf,

    /// Replace a certificate of the same name, and accept prefixes that look too wide or that others speak for
    #[arg(short, long)]
    pub force: bool,

    #[command(flatten)]
    pub directory: DirectoryArgs,
}

const DISTRUST_EXAMPLES: &str = "\
Examples:
  beelined distrust beta                   the running bridge drops beta at once";

/// `beelined distrust`
#[derive(Args, Debug)]
#[command(after_help = DISTRUST_EXAMPLES)]
pub struct DistrustArgs {
    /// The peer's name
    pub name: BridgeName,

    #[command(flatten)]
    pub directory: DirectoryArgs,
}

const TRUSTED_EXAMPLES: &str = "\
Examples:
  beelined trusted                         names, addresses, validity and fingerprints
  beelined trusted --json";

/// `beelined trusted`
#[derive(Args, Debug)]
#[command(after_help = TRUSTED_EXAMPLES)]
pub struct TrustedArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub directory: DirectoryArgs,
}

/// Where trusted certificates are.
#[derive(Args, Debug, Clone)]
pub struct DirectoryArgs {
    /// The directory of trusted certificates [default: as the configuration says]
    #[arg(long, value_name = "DIR")]
    pub trusted: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Where the running bridge is.
#[derive(Args, Debug, Clone)]
pub struct SocketArgs {
    /// The administrator's socket [default: as the configuration says]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  beelined status                          peers, rails, connections, and reasons for TCP
  beelined status --json | jq .data.share  with `beelined set measure 1`: the bridge's own share of a trip";

/// `beelined status`
#[derive(Args, Debug)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub socket: SocketArgs,
}

const SET_EXAMPLES: &str = "\
Examples:
  beelined set spin_us 0                   sleep as soon as there is no news
  beelined set peer_connections_max 1000";

/// `beelined set`
#[derive(Args, Debug)]
#[command(after_help = settings(), after_long_help = settings())]
pub struct SetArgs {
    /// Which setting
    pub key: String,

    /// Its new value
    pub value: String,

    #[command(flatten)]
    pub socket: SocketArgs,
}

fn settings() -> String {
    let lines = SPECS.iter().map(|spec| {
        let (first, last) = (spec.range.start(), spec.range.end());
        format!("  {}={}\n      {}\n      (a number from {first} to {last})", spec.key, spec.default, spec.sentence)
    });
    let lines: Vec<String> = lines.collect();
    format!(
        "{SET_EXAMPLES}\n\nSettings and their defaults:\n{}\n\nA setting holds until the bridge ends; [tunables] of the \
         configuration is for good.",
        lines.join("\n")
    )
}

const DRAIN_EXAMPLES: &str = "\
Examples:
  beelined drain                           waits until the bridge has ended, and tells how many connections are left
  beelined set drain_s 3600; beelined drain --no-wait
                                           connections may go on for an hour

New connections go by TCP (reason bridge_leaving). What is left after `drain_s` seconds is reset.";

/// `beelined drain`
#[derive(Args, Debug)]
#[command(after_help = DRAIN_EXAMPLES)]
pub struct DrainArgs {
    /// Return at once
    #[arg(long)]
    pub no_wait: bool,

    #[command(flatten)]
    pub socket: SocketArgs,
}

const RAILS_EXAMPLES: &str = "\
Examples:
  beelined rails                           the ports, and those that the configuration leaves out
  beelined rails --json > rails.json       for `beeline topo --rails rails.json`, there or elsewhere";

/// `beelined rails`
#[derive(Args, Debug)]
#[command(after_help = RAILS_EXAMPLES)]
pub struct RailsArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// `beelined generate`
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// What to write.
    #[command(subcommand)]
    pub what: Generate,
}

/// What can be generated.
#[derive(Subcommand, Debug)]
pub enum Generate {
    /// Manual pages, one for each command, into a directory
    Man {
        /// Which
        directory: PathBuf,
    },
    /// Completions for a shell, to standard output
    Completions {
        /// Which
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_are_those_that_beeline_bridge_offers() {
        let cli = Cli::command();
        let names: Vec<_> =
            cli.get_subcommands().filter(|command| !command.is_hide_set()).map(|c| c.get_name()).collect();
        // The agent has nothing to do with bridges.
        let (agent, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == "agent");
        assert_eq!(agent.len(), 1);
        assert_eq!(others, beeline_status::COMMANDS);
    }

    #[test]
    fn every_command_has_examples() {
        let cli = Cli::command();
        for command in std::iter::once(&cli).chain(cli.get_subcommands()).filter(|command| !command.is_hide_set()) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n"), "{}", command.get_name());
        }
    }

    #[test]
    fn days_are_a_number_in_words() {
        assert_eq!(parse_days("3650"), Ok(3650));
        for wrong in ["0", "36501", "x", "-1"] {
            assert_eq!(parse_days(wrong), Err("it must be a number from 1 to 36500".into()), "{wrong}");
        }
    }

    #[test]
    fn help_names_every_setting() {
        let help = settings();
        assert!(SPECS.iter().all(|spec| help.contains(spec.key)));
    }
}

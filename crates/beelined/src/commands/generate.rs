//! `beelined generate`: what packages are made from.

use anyhow::Context;
use beeline_status::manual::{self, Beside, Entry};
use clap::CommandFactory;

use super::output::print;
use crate::cli::{Cli, Generate};

/// Writes it.
pub fn generate(what: &Generate) -> anyhow::Result<()> {
    match what {
        Generate::Man { directory } => manual::write(Cli::command(), directory, &beside)
            .with_context(|| format!("cannot write manual pages into {}", directory.display())),
        Generate::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "beelined", &mut text);
            print(&String::from_utf8_lossy(&text))
        }
    }
}

const FILES: &[Entry] = &[
    ("/etc/beeline/beelined.toml", "the configuration: beelined.toml(5)"),
    ("/etc/beeline/beelined.crt", "this bridge's certificate"),
    ("/etc/beeline/beelined.key", "its private key"),
    ("/etc/beeline/trusted/NAME.crt", "certificates of peers that are trusted"),
    ("/run/beeline/beelined.sock", "where the running bridge answers root and its own user"),
];

const ENVIRONMENT: &[Entry] = &[
    ("NOTIFY_SOCKET", "where the bridge tells systemd that it is ready: sd_notify(3)"),
    ("FI_PROVIDER, FI_TCP_IFACE, ...", "libfabric's own variables: fabric(7)"),
];

const AGENT_FILES: &[Entry] = &[
    ("/etc/beeline/beelined.toml", "the configuration, of which [namespaces] counts: beelined.toml(5)"),
    ("/run/beeline-agent/agent.sock", "where programs find the agent"),
];

const AGENT_ENVIRONMENT: &[Entry] =
    &[("NOTIFY_SOCKET", "where the agent tells systemd that it is ready: sd_notify(3)")];

/// What a manual page has beside what the command line says.
fn beside(page: &str) -> Beside {
    let (files, environment) = match page {
        "beelined" | "beelined-run" => (FILES, ENVIRONMENT),
        "beelined-agent" => (AGENT_FILES, AGENT_ENVIRONMENT),
        _ => (FILES, &[] as &[Entry]),
    };
    let see_also =
        &["beelined(1)", "beelined-run(1)", "beelined-status(1)", "beelined.toml(5)", "beeline(1)", "fabric(7)"];
    Beside { files, environment, see_also }
}

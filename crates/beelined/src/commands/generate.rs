//! `beelined generate`: what packages are made from.

use anyhow::Context;
use clap::CommandFactory;

use super::print;
use crate::cli::{Cli, Generate};

/// Writes it.
pub fn generate(what: &Generate) -> anyhow::Result<()> {
    match what {
        Generate::Man { directory } => std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
            .with_context(|| format!("cannot write manual pages into {}", directory.display())),
        Generate::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "beelined", &mut text);
            print(&String::from_utf8_lossy(&text))
        }
    }
}

//! `beeline generate`: what packages and the documentation are made from.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use beeline_stats::tunables::OptionSpec;
use beeline_stats::{Counter, Poison, Reason};
use clap::CommandFactory;

use crate::cli::{Cli, Generate, GenerateArgs};
use crate::output;

pub fn run(arguments: &GenerateArgs) -> anyhow::Result<ExitCode> {
    match &arguments.what {
        Generate::Man { directory } => manual(directory)?,
        Generate::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "beeline", &mut text);
            output::print(&String::from_utf8_lossy(&text))?;
        }
        Generate::Reference => {
            output::print(&reference())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn manual(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

fn reference() -> String {
    let mut text = String::from(
        "# Options, reasons and counters\n\nWritten by `beeline generate reference` from the library's own tables.\n",
    );
    text.push_str("\n## Options\n\n| option | default | values | what it does |\n|---|---|---|---|\n");
    for spec in OptionSpec::all() {
        let _ = writeln!(text, "| `{}` | `{}` | {} | {} |", spec.key, spec.default, spec.kind, spec.sentence);
    }
    list(&mut text, "Why a connection is on TCP", Reason::ALL, |r| (r.name(), r.sentence()));
    list(&mut text, "Why a connection was reset", Poison::ALL, |p| (p.name(), p.sentence()));
    list(&mut text, "Counters", Counter::ALL, |c| (c.name(), c.sentence()));
    text
}

fn list<T: Copy>(text: &mut String, title: &str, entries: &[T], describe: impl Fn(T) -> (&'static str, &'static str)) {
    let _ = write!(text, "\n## {title}\n\n| name | meaning |\n|---|---|\n");
    for entry in entries {
        let (name, sentence) = describe(*entry);
        let _ = writeln!(text, "| `{name}` | {sentence} |");
    }
}

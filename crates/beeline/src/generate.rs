//! `beeline generate`: what packages and the documentation are made from.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use beeline_stats::semantics::{CALLS, DIFFERENCES, FLAGS, Handling, OPTIONS, REQUESTS, Row};
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
        Generate::Semantics => {
            output::print(&semantics())?;
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

fn semantics() -> String {
    let mut text = String::from(
        "# What becomes of each call\n\n\
         Written by `beeline generate semantics` from the library's own table (`beeline_stats::semantics`).\n\n\
         *accelerated*: done on the connection in shared memory, as kernel TCP does it. *passed through*: the kernel does \
         it. *falls back*: a socket that asks for it before it is connected stays on kernel TCP, for the reason given; \
         asked of a connection in shared memory, it is refused as by a kernel that was built without it.\n\n\
         Each row names the tests that show it: cases of `tests/semantics`, which run on kernel TCP and on Beeline and \
         must see the same, or (`guest:`) of `crates/beeline-preload/tests`. Functions that are not listed are not \
         interposed.\n",
    );
    rows(&mut text, "Functions", CALLS.iter());
    rows(&mut text, "Flags", FLAGS.iter());
    rows(&mut text, "Requests", REQUESTS.iter());
    rows(&mut text, "Options", OPTIONS.iter().map(|option| &option.row));
    text.push_str(
        "\nAn option that is not listed is passed through: the kernel says what it thinks of a value and what it is when \
         nobody has set it, and the connection keeps it.\n\n\
         ## Known differences\n\n| case | difference |\n|---|---|\n",
    );
    for (case, difference) in DIFFERENCES {
        let _ = writeln!(text, "| `{case}` | {difference} |");
    }
    text
}

fn rows<'a>(text: &mut String, title: &str, rows: impl Iterator<Item = &'a Row>) {
    let _ = write!(text, "\n## {title}\n\n| name | on a connection in shared memory | tests |\n|---|---|---|\n");
    let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for row in rows {
        let handling = match row.handling {
            Handling::Accelerated => "accelerated".to_owned(),
            Handling::Passed => "passed through".to_owned(),
            Handling::FallsBack(reason) => format!("falls back (`{}`)", reason.name()),
        };
        let note = if row.note.is_empty() { String::new() } else { format!(": {}", row.note) };
        let _ = writeln!(text, "| {} | {handling}{note} | {} |", quoted(row.names), quoted(row.tests));
    }
}

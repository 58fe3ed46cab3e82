//! `beeline generate`: what packages and the documentation are made from.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use beeline_stats::semantics::{CALLS, DIFFERENCES, FLAGS, Handling, OPTIONS, REQUESTS, Row};
use beeline_stats::tunables::rules::{LIST_BYTES_MAX, RULES_MAX, options};
use beeline_stats::tunables::{ENVIRONMENT, OptionSpec};
use beeline_stats::{Counter, Poison, Reason};
use beeline_status::manual::{self, Beside, Entry};
use clap::CommandFactory;

use crate::cli::{Cli, Generate, GenerateArgs, with_bridge_commands};
use crate::output;

pub fn run(arguments: &GenerateArgs) -> anyhow::Result<ExitCode> {
    match &arguments.what {
        Generate::Man { directory } => manual(directory)?,
        Generate::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut with_bridge_commands(), "beeline", &mut text);
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
    manual::write(Cli::command(), directory, &beside)
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

const STATISTICS: Entry = (
    "/dev/shm/beeline-UID/",
    "statistics of the processes of a user, one file each; and `cleared`, the build ids of libraries and programs whose \
     text was searched for system calls of their own",
);
const PROFILES: [Entry; 2] = [
    (
        "$XDG_CONFIG_HOME/beeline/profiles/NAME.toml",
        "a profile of the user's own (~/.config, if the variable is not set)",
    ),
    ("/etc/beeline/profiles/NAME.toml", "a profile of this host"),
];
const DEFAULTS: [Entry; 2] = [
    ("/etc/beeline/config.toml", "options and rules of this host, for every `beeline run`; of the form of a profile"),
    ("$XDG_CONFIG_HOME/beeline/config.toml", "options and rules of the user, which win over those of the host"),
];
const CONFIGURATION: Entry =
    ("/etc/beeline/beelined.toml", "the bridge's configuration, which says whose bridge is trusted");
const ADMIN_SOCKET: Entry = ("/run/beeline/beelined.sock", "where the bridge answers its administrator");
const PLANNED: Entry = ("FILE.toml", "links and flows; `beeline plan vpi --print-plan` prints one to begin with");
const PAPER_RUN: [Entry; 4] = [
    ("DIR/plan.toml", "the plan of a run, as it was given"),
    ("DIR/settings.json", "what the command line said, and which library was measured"),
    ("DIR/samples.jsonl", "every sample, a JSON object a line, with the machine and how connections were carried"),
    ("DIR/report.html, report.md, report.csv, figures/", "the report"),
];
const OPTIONS_VARIABLE: Entry =
    (ENVIRONMENT, "options of the library, as key=value,key=value; those of the command line win over them");
const PRELOAD: Entry = ("LD_PRELOAD", "what it names is loaded, too, after the library");
const PATH: Entry = ("PATH", "where programs are looked for");
const INTEL_MPI: Entry = ("I_MPI_ROOT", "where Intel's MPI is, with IMB-MPI1 in its bin");
const NO_COLOUR: Entry = ("NO_COLOR", "no colours, if it is set");
const LOCALE: Entry = ("LC_ALL, LC_CTYPE, LANG", "whether lines are drawn with more than ASCII");

/// What a manual page has beside what the command line says.
fn beside(page: &str) -> Beside {
    let (files, environment): (&[Entry], &[Entry]) = match page {
        "beeline-run" => (
            &[DEFAULTS[0], DEFAULTS[1], PROFILES[0], PROFILES[1], CONFIGURATION, STATISTICS],
            &[OPTIONS_VARIABLE, PRELOAD, PATH],
        ),
        "beeline-set" => (&[STATISTICS], &[]),
        "beeline-stat" | "beeline-ss" | "beeline-top" | "beeline-doctor" => {
            (&[STATISTICS, CONFIGURATION, ADMIN_SOCKET], &[])
        }
        "beeline-topo" => (&[CONFIGURATION, ADMIN_SOCKET], &[LOCALE, NO_COLOUR]),
        "beeline-bench" | "beeline-bench-demo" => (&[CONFIGURATION, ADMIN_SOCKET], &[PATH, NO_COLOUR]),
        "beeline-bench-paper" | "beeline-bench-mpi" => {
            (&[PAPER_RUN[0], PAPER_RUN[1], PAPER_RUN[2], PAPER_RUN[3], CONFIGURATION], &[PATH, INTEL_MPI])
        }
        "beeline-plan" => (&[PLANNED], &[]),
        "beeline-bench-compare" => (&[PAPER_RUN[1], PAPER_RUN[2]], &[]),
        "beeline-bench-report" => (&PAPER_RUN, &[]),
        "beeline-bridge" => (&[CONFIGURATION], &[PATH]),
        _ => (&[DEFAULTS[0], DEFAULTS[1], PROFILES[0], PROFILES[1], CONFIGURATION, STATISTICS], &[OPTIONS_VARIABLE]),
    };
    let see_also = &[
        "beeline(1)",
        "beeline-run(1)",
        "beeline-stat(1)",
        "beeline-ss(1)",
        "beeline-top(1)",
        "beeline-doctor(1)",
        "beeline-set(1)",
        "beeline-bench(1)",
        "beeline-plan(1)",
        "beeline-topo(1)",
        "beeline-bridge(1)",
        "beelined(1)",
        "beelined.toml(5)",
        "ld.so(8)",
        "tcp(7)",
    ];
    Beside { files, environment, see_also }
}

fn reference() -> String {
    let mut text = String::from(
        "# Options, reasons and counters\n\nWritten by `beeline generate reference` from the library's own tables.\n",
    );
    text.push_str(
        "\n## Options\n\nEvery option can be said at the start of a program. The column *said* tells where else: *while it \
         runs*, with `beeline set`, for what the program does from then on; *by rule*, for the connections that a rule \
         matches ([below](#rules)); *for one connection* that is open, with `beeline set \
         --connection`.\n\n| option | default | values | said | what it does |\n|---|---|---|---|---|\n",
    );
    for spec in OptionSpec::all() {
        let OptionSpec { key, default, kind, reach, sentence } = spec;
        let _ = writeln!(text, "| `{key}` | `{default}` | {kind} | {} | {sentence} |", reach.sentence());
    }
    rules_of_connections(&mut text);
    list(&mut text, "Why a connection is on TCP", Reason::ALL, |r| (r.name(), r.sentence()));
    list(&mut text, "Why a connection was reset", Poison::ALL, |p| (p.name(), p.sentence()));
    list(&mut text, "Counters", Counter::ALL, |c| (c.name(), c.sentence()));
    text
}

fn rules_of_connections(text: &mut String) {
    let _ = write!(
        text,
        "\n## Rules\n\nA rule is a table `[[rule]]` of a profile or a configuration, or an option \
         `rule=key=value;key=value`. The first rule that matches a connection counts, as a whole. There may be \
         {RULES_MAX}, and {LIST_BYTES_MAX} bytes of options and rules together.\n\n\
         | key | values | what it says |\n|---|---|---|\n"
    );
    for (key, values, sentence) in [
        (
            "program",
            "a name, or a path; `*` and `?`",
            "Only programs of that file's, or script's, name; with a `/` in it, of that path.",
        ),
        ("role", "client or server", "Only connections that the program makes, or those that it accepts."),
        (
            "address",
            "an IPv4 or IPv6 address or prefix",
            "Only connections to that address: the server's, for both roles.",
        ),
        ("port", "a number or a range, `8000-8099`", "Only connections to that port: the server's, for both roles."),
        ("path", "lane or tcp", "Which way the connections go; those on TCP are counted as `disabled`."),
    ] {
        let _ = writeln!(text, "| `{key}` | {values} | {sentence} |");
    }
    for key in options() {
        let _ = writeln!(text, "| `{key}` | as the option | What the option is for these connections. |");
    }
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

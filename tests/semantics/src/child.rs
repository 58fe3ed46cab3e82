//! What runs in a child process: one case, one role of a case of two programs, or one random sequence.
//!
//! A program is named on the command line:
//! - `case:GROUP/NAME@VARIANT`: a case in this process, or the coordinator of its two programs;
//! - `server:GROUP/NAME@VARIANT` and `client:PORT:GROUP/NAME@VARIANT`: one role;
//! - `random:SEED:OPS:CALLS:ONLY`: a random sequence;
//! - the programs of [`crate::hostile`] and [`crate::faults`].

use crate::case::Body;
use crate::cases::{self, Instance};
use crate::traced::Fd;
use crate::variant::port_of;
use crate::{faults, hostile, random, trace};
use anyhow::{Context, Result, bail};
use beeline_testkit::preload;
use beeline_testkit::statistics::Carried;
use beeline_testkit::sys::{self, RawAddress};
use beeline_testkit::watch::{Ending, die_with_parent};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Which of two programs have the library, and where it is; set by the runner for the coordinator.
pub const PAIR_LIBRARY_VARIABLE: &str = "SEMANTICS_LIBRARY";

/// Runs `program` and records it in `trace_file`.
///
/// # Errors
/// When the program is unknown or its processes cannot be started.
pub fn run(program: &str, trace_file: &Path, interposed: Option<&str>) -> Result<()> {
    trace::open(trace_file).context("trace file")?;
    // The Rust runtime ignores SIGPIPE; the programs that Beeline meets do not.
    sys::default_action(libc::SIGPIPE);
    let (kind, name) = program.split_once(':').context("program without a kind")?;
    match kind {
        "case" => {
            let instance = find(name)?;
            match instance.case.body {
                Body::Solo(body) => body(instance.variant),
                Body::Duo { .. } => coordinate(name, trace_file, interposed.unwrap_or("none"))?,
            }
        }
        "server" => {
            let instance = find(name)?;
            let Body::Duo { server, .. } = instance.case.body else { bail!("{name} has one program only") };
            trace::set_actor("server");
            let listener = instance.variant.listener();
            let mut out = std::io::stdout();
            writeln!(out, "{}", port_of(listener))?;
            out.flush()?;
            server(instance.variant, listener);
        }
        "client" => {
            let (port, name) = name.split_once(':').context("client without a port")?;
            let instance = find(name)?;
            let Body::Duo { client, .. } = instance.case.body else { bail!("{name} has one program only") };
            trace::set_actor("client");
            let target = RawAddress::new(instance.variant.target(port.parse()?));
            client(instance.variant, instance.variant.client(), &target);
        }
        "random" => {
            random::run(&random::Plan::parse(name)?);
        }
        kind if hostile::run_program(kind, name)? || faults::run_program(kind, name)? => {}
        other => bail!("unknown kind of program {other:?}"),
    }
    note_statistics();
    Ok(())
}

/// Tells the runner how the connections of this process were carried.
fn note_statistics() {
    if let Some(carried) = Carried::of(std::process::id()) {
        trace::write_note(format_args!("accelerated {}", carried.accelerated));
        for (reason, count) in carried.fallen_back {
            trace::write_note(format_args!("fell back: {reason} {count}"));
        }
        for (poison, count) in carried.poisoned {
            trace::write_note(format_args!("poisoned: {poison} {count}"));
        }
    }
}

fn find(name: &str) -> Result<Instance> {
    cases::instances().into_iter().find(|instance| instance.name == name).with_context(|| format!("no case {name:?}"))
}

/// Starts the server and the client of a case, each with or without the library, and records how they end.
fn coordinate(name: &str, trace_file: &Path, interposed: &str) -> Result<()> {
    let library = std::env::var_os(PAIR_LIBRARY_VARIABLE).map(PathBuf::from);
    let with = |role: &str| library.as_deref().filter(|_| interposed == "both" || interposed == role);
    let mut server = role(&format!("server:{name}"), trace_file, with("server")).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    let out = server.stdout.take().context("the server's output")?;
    BufReader::new(out).read_line(&mut port)?;
    let client = role(&format!("client:{}:{name}", port.trim()), trace_file, with("client")).spawn()?;
    report("client", client)?;
    report("server", server)
}

fn role(program: &str, trace_file: &Path, library: Option<&Path>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["child", program, "--trace"]).arg(trace_file);
    preload::apply(&mut command, library);
    die_with_parent(&mut command);
    command
}

fn report(role: &str, mut child: Child) -> Result<()> {
    let ending: Ending = child.wait()?.into();
    crate::trace!("{role} ended: {ending:?}");
    Ok(())
}

/// A child that runs `program` and records nothing.
#[must_use]
pub fn program(program: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["child", program, "--trace", "/dev/null"]);
    command
}

/// A descriptor that no process has open.
#[must_use]
pub fn bad_fd() -> Fd {
    Fd::new(199, "bad")
}

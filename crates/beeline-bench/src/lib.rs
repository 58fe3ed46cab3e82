//! The instrument: Beeline against TCP loopback, AF_UNIX and the machine's own limits.
//!
//! How a number comes about:
//!
//! 1. Every sample is made by two fresh processes ([`worker`]) that use plain sockets, pinned to one CPU each when
//!    there are two. They are the same program for every column; for Beeline the library is preloaded, nothing else.
//! 2. Rounds go over all workloads and, within a workload, over all transports, beginning with another transport each
//!    round: what the machine does meanwhile hits all columns alike. The limits are measured in every round, too.
//! 3. A round's figure comes from batches of a millisecond or more, timed with CLOCK_MONOTONIC; throughput is measured
//!    where the bytes arrive. The table shows medians over the rounds.
//! 4. Raw samples and the machine's description go into the JSON. A sample that failed is an error in the report and
//!    in the exit code, never a silent gap.
//! 5. `--everyday` is a table of its own ([`everyday`]): ordinary servers where ordinary servers run, on CPUs that are
//!    shared or busy, on short connections. `paper` runs plans from files, with directories that a run can be resumed
//!    from ([`paper`]).
//!
//! What the workloads do exactly: TCP sockets have TCP_NODELAY set; receivers of streams offer a buffer of 64 KiB or
//! one message, whichever is larger; requests in the connection crowds are 64 B, answered by as many.

#![deny(clippy::print_stdout)]

#[macro_use]
mod say;

mod acceleration;
mod args;
mod check;
mod conductor;
mod demo;
mod everyday;
mod foreign;
mod hosts;
mod interrupt;
mod limits;
mod machine;
mod memory;
mod output;
mod paper;
mod parse;
mod plan;
mod planner;
mod poller;
mod process;
mod report;
mod socket;
mod stats;
mod suite;
mod syscalls;
mod ticks;
mod timing;
mod transport;
mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub use planner::{PlanOptions, run as plan_rates};

pub use args::{BenchArgs, BenchCommand, BenchOptions};
pub use transport::Transport;

use hosts::About;
use machine::Machine;
use plan::SuitePlan;
use suite::workloads;

/// Runs `bench`. `mount` holds the words that lead to it on the command line of the program that it is part of
/// (`["bench"]` in the CLI): the instrument starts that program again for its workers.
///
/// The exit code is 0, or 1 when a sample failed or `--check` found a floor that was not reached.
///
/// # Errors
/// When the run cannot begin or its output cannot be written.
pub fn run(args: BenchArgs, mount: &[&str]) -> Result<ExitCode> {
    match &args.command {
        Some(BenchCommand::Worker(worker)) => {
            worker::run(worker)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(BenchCommand::EverydayWorker(worker)) => {
            everyday::worker::run(worker)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(BenchCommand::About(options)) => {
            say!("{}", serde_json::to_string(&About::here(options.library.as_deref())?)?);
            Ok(ExitCode::SUCCESS)
        }
        Some(BenchCommand::Demo(options)) => demo::run(options, mount),
        Some(BenchCommand::Paper(options)) => paper::measure(options, mount),
        Some(BenchCommand::Mpi(options)) => paper::mpi(options, mount),
        Some(BenchCommand::Compare(options)) => paper::compare(options),
        Some(BenchCommand::Report(options)) => paper::report(options),
        None if args.options.modes => paper::modes(&args.options, mount),
        None if args.options.everyday => everyday::measure(&args.options, mount),
        None => measure(&args.options, mount),
    }
}

fn measure(options: &BenchOptions, mount: &[&str]) -> Result<ExitCode> {
    if options.list {
        for workload in workloads(options.hosts.is_some()).into_iter().filter(|workload| options.names(workload.name)) {
            say!("{:<16} {}", workload.name, workload.rows[0].title);
        }
        return Ok(ExitCode::SUCCESS);
    }
    process::ensure_without_library()?;
    options.save.as_deref().map_or(Ok(()), parse::place)?;
    let plan = SuitePlan::new(options, mount)?;
    let machine = Machine::describe()?;
    let results = plan.execute();
    let verdicts = match options.check {
        true => check::judge(&results, options.hosts.is_some()),
        false => Vec::new(),
    };
    let rows = plan.rows();
    let mut document = output::document(&machine, &plan.settings(), &rows, &results, &verdicts);
    if let Some(hosts) = plan.hosts_document() {
        document["hosts"] = hosts;
    }
    if let Some(path) = &options.save {
        let text = serde_json::to_string_pretty(&document)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        say!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        output::print(&plan.heading(&machine), &plan.settings(), &rows, &results, &verdicts);
        plan.notes().iter().for_each(|note| say!("{note}"));
    }
    let failed = results.ended_early.is_some() || !results.errors().is_empty() || verdicts.iter().any(|v| !v.pass);
    Ok(ExitCode::from(u8::from(failed)))
}

//! `beeline`: run unmodified programs over shared memory, and see how they do.
//!
//! Each command is a module that gets its parsed arguments and returns an exit code. Errors travel as
//! [`anyhow::Error`] to this file, which prints them and picks the code: a [`failure::Failure`] carries its own.

mod bridge;
mod cli;
mod configuration;
mod doctor;
mod elf;
mod failure;
mod filters;
mod generate;
mod inherited;
mod library;
mod output;
mod profile;
mod program;
mod run;
mod set;
mod ss;
mod stat;
mod topo;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};
use failure::Failure;

/// Help, or what is wrong with the command line. Of `run` that is a failure of ours, as anything else before the
/// program is started; of other commands it has clap's code.
fn refuse(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    let of_run = std::env::args_os().nth(1).is_some_and(|word| word == "run");
    match (error.exit_code(), printed) {
        (0, Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
            output::complain(format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        (0, _) => ExitCode::SUCCESS,
        _ if of_run => ExitCode::from(Failure::OURS),
        (code, _) => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let (result, default_code) = match cli.command {
        Command::Run(arguments) => match run::run(&arguments) {
            Ok(never) => match never {},
            Err(error) => (Err(error), Failure::OURS),
        },
        Command::Stat(arguments) => (stat::run(&arguments), 1),
        Command::Ss(arguments) => (ss::run(&arguments), 1),
        Command::Top(arguments) => (ss::top(&arguments), 1),
        Command::Doctor(arguments) => (doctor::run(&arguments), 1),
        Command::Set(arguments) => (set::run(&arguments), 1),
        Command::Bench(arguments) => (beeline_bench::run(*arguments, &["bench"]), 2),
        Command::Plan(options) => (beeline_bench::plan_rates(&options), 2),
        Command::Topo(arguments) => (topo::run(&arguments), 1),
        Command::Bridge(arguments) => match bridge::run(&arguments) {
            Ok(never) => match never {},
            Err(error) => (Err(error), 1),
        },
        Command::Generate(arguments) => (generate::run(&arguments), 1),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::complain(format_args!("{error:#}"));
            let code = error.downcast_ref::<Failure>().map_or(default_code, |failure| failure.code);
            ExitCode::from(code)
        }
    }
}

//! `beelined`: the bridge, and the commands that set it up and ask it.

mod cli;
mod commands;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use beelined::log;
use clap::Parser;

/// Help, or what is wrong with the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match (error.exit_code(), printed) {
        (0, Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
            log::line(format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        (code, _) => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match commands::run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            log::line(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

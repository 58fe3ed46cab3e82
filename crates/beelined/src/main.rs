//! `beelined`: the bridge, and the commands that set it up and ask it.

mod cli;
mod commands;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(&cli::Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("beelined: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! The commands, one function each. Errors travel to `main`, which prints them.

mod generate;
mod keys;
mod rails;
mod running;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::Command;
use beelined::config::Config;

/// Does what was asked for.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(arguments) => beelined::serve::run(&Config::read(&arguments.config.config)?)?,
        Command::Agent(arguments) => beelined::agent::run(&Config::read(&arguments.config.config)?)?,
        Command::Keygen(arguments) => keys::generate(arguments)?,
        Command::Trust(arguments) => keys::trust(arguments)?,
        Command::Distrust(arguments) => keys::distrust(arguments)?,
        Command::Trusted(arguments) => keys::list(arguments)?,
        Command::Status(arguments) => running::status(arguments)?,
        Command::Set(arguments) => running::set(arguments)?,
        Command::Rails(arguments) => rails::list(arguments)?,
        Command::Generate(arguments) => generate::generate(&arguments.what)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output. Whoever reads it may stop when they have seen enough, which is no error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot be said in JSON")?;
    print(&(text + "\n"))
}

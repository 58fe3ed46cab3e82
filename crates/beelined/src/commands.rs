//! The commands, one function each. Errors travel to `main`, which prints them.

mod generate;
mod keys;
mod output;
mod rails;
mod running;

use std::process::ExitCode;

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
        Command::Drain(arguments) => running::drain(arguments)?,
        Command::Rails(arguments) => rails::list(arguments)?,
        Command::Generate(arguments) => generate::generate(&arguments.what)?,
    }
    Ok(ExitCode::SUCCESS)
}

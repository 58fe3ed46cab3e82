//! What the commands say.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Writes to standard output. Whoever reads it may stop when they have seen enough, which is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot be said in JSON")?;
    print(&(text + "\n"))
}

/// Says to standard error how far something is. That nobody can read it is no reason to stop.
pub fn report(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

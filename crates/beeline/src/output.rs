//! Writing to standard output, and complaints.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How long a line may be: the terminal's width, and anything where there is none.
pub fn width() -> usize {
    if io::stdout().is_terminal() { textwrap::termwidth() } else { usize::MAX }
}

/// Writes text to standard output. Whoever reads it may stop when they have seen enough (`| head`),
/// which is no error: the result is whether anybody still reads.
pub fn print(text: &str) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}

/// Says to standard error what is wrong. That nobody can read it is no reason to stop, least of all before a program is
/// run: `eprintln!` would end this one.
pub fn complain(what: impl Display) {
    let _ = writeln!(io::stderr(), "beeline: {what}");
}

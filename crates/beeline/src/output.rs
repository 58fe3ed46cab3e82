//! Writing to standard output.

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

//! What the instrument prints.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// `println!`, for readers who stop when they have seen enough (`| head`): what they do not read is no error, and a run
/// that stores its results goes on.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($words:tt)*) => { $crate::say::line(format_args!($($words)*)) };
}

/// Prints a line, or ends the program if it cannot be written for another reason: a table with gaps is worse than none.
pub fn line(words: Arguments<'_>) {
    match writeln!(std::io::stdout().lock(), "{words}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain(format_args!("beeline: cannot write to standard output: {error}"));
            std::process::exit(2);
        }
        _ => {}
    }
}

/// `eprintln!`, which would end the program where nobody can read it.
pub fn complain(words: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{words}");
}

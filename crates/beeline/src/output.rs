//! Writing to standard output, and complaints.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use textwrap::core::display_width;

/// How long a line may be: the terminal's width, and anything where there is none.
pub fn width() -> usize {
    if io::stdout().is_terminal() { textwrap::termwidth() } else { usize::MAX }
}

/// Sentences, which go on below between two words where the terminal ends.
pub fn prose(text: &str) -> String {
    textwrap::fill(text, textwrap::Options::new(width()).break_words(false))
}

/// Lines of a screen whose height is not known.
const LINES: usize = 24;

/// How many lines a screen has, with one for the cursor.
pub fn height() -> usize {
    terminal_size::terminal_size().map_or(LINES, |(_, height)| usize::from(height.0))
}

/// A text on a screen that is cleared first: what is too wide does not go on below, and what is too long does not push
/// the beginning out. So many lines are `kept` for what follows, and one for the cursor.
pub fn screen(text: &str, kept: usize) -> String {
    // Cursor home, clear to the end of the screen.
    format!("\x1b[H\x1b[2J{}", cut(text, width(), height().saturating_sub(kept + 1).max(1)))
}

fn cut(text: &str, columns: usize, lines: usize) -> String {
    let mut fitting = String::new();
    for line in text.lines().take(lines) {
        let mut column = 0;
        fitting.extend(line.chars().take_while(|character| {
            column += display_width(character.encode_utf8(&mut [0; 4]));
            column <= columns
        }));
        fitting.push('\n');
    }
    fitting
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_a_screen_is_cut_off() {
        assert_eq!(cut("PID  NAME\n  1  initial\n\n  2  second\n", 9, 3), "PID  NAME\n  1  init\n\n");
        assert_eq!(cut("one\ntwo", 80, 24), "one\ntwo\n");
        // As wide as they are shown, of which half is not.
        assert_eq!(cut("\u{65e5}\u{672c}\u{8a9e}\n", 5, 24), "\u{65e5}\u{672c}\n");
        assert_eq!(cut("", 80, 24), "");
    }
}

//! Plain lines to standard error, where systemd or a person reads them.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Writes a line. Nobody reading is no reason to stop.
pub fn line(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "beelined: {what}");
}

/// What others said, fit for a line of a log: short, and without characters that move the cursor.
pub fn plain(text: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    text.chars().take(CHARACTERS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// How often strangers can make the log longer.
const STRANGERS_INTERVAL: Duration = Duration::from_secs(10);

static STRANGERS: Mutex<Option<(Instant, u64)>> = Mutex::new(None);

/// Writes a line about somebody who may not be entitled to fill our disk: one now and then, with the number left out.
pub fn about_strangers(what: impl Display) {
    let Ok(mut last) = STRANGERS.lock() else { return };
    let now = Instant::now();
    match &mut *last {
        Some((at, left_out)) if now.saturating_duration_since(*at) < STRANGERS_INTERVAL => *left_out += 1,
        Some((_, left_out @ 1..)) => {
            line(format_args!("{what} (and {left_out} more since the last such line)"));
            *last = Some((now, 0));
        }
        _ => {
            line(what);
            *last = Some((now, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_stays_on_its_line() {
        assert_eq!(plain("a\nb\x1b[2J\u{85}ä"), "a?b?[2J?ä");
        assert_eq!(plain(&"ä".repeat(1000)), "ä".repeat(300));
        assert_eq!(plain(&plain("a\n")), plain("a\n"));
    }
}

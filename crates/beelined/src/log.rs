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

/// How often lines of one kind are written.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lines of one kind that others can cause as often as they like: one now and then, with the number left out.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<(Instant, u64)>>);

impl Seldom {
    /// A kind of which nothing was said yet.
    pub const fn new() -> Seldom {
        Seldom(Mutex::new(None))
    }

    /// Writes a line, or counts it.
    pub fn line(&self, what: impl Display) {
        match self.left_out(Instant::now()) {
            None => {}
            Some(0) => line(what),
            Some(left_out) => line(format_args!("{what} (and {left_out} more since the last such line)")),
        }
    }

    /// Whether it is time for a line, and how many were left out since the last one.
    fn left_out(&self, now: Instant) -> Option<u64> {
        let mut last = self.0.lock().ok()?;
        match &mut *last {
            Some((at, left_out)) if now.saturating_duration_since(*at) < INTERVAL => {
                *left_out += 1;
                None
            }
            _ => last.replace((now, 0)).map_or(Some(0), |(_, left_out)| Some(left_out)),
        }
    }
}

/// Writes a line about somebody who may not be entitled to fill our disk.
pub fn about_strangers(what: impl Display) {
    static STRANGERS: Seldom = Seldom::new();
    STRANGERS.line(what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_stands_for_those_that_came_meanwhile() {
        let (kind, now) = (Seldom::new(), Instant::now());
        assert_eq!(kind.left_out(now), Some(0));
        assert_eq!((0..5).filter_map(|_| kind.left_out(now)).count(), 0);
        assert_eq!(kind.left_out(now + INTERVAL), Some(5));
        assert_eq!(kind.left_out(now + 2 * INTERVAL), Some(0));
    }

    #[test]
    fn what_others_say_stays_on_its_line() {
        assert_eq!(plain("a\nb\x1b[2J\u{85}ä"), "a?b?[2J?ä");
        assert_eq!(plain(&"ä".repeat(1000)), "ä".repeat(300));
        assert_eq!(plain(&plain("a\n")), plain("a\n"));
    }
}

//! Showing where two traces part.

use crate::trace::Trace;
use std::fmt::Write;

/// Lines shown before the first difference.
const CONTEXT: usize = 16;

/// Lines shown from the first difference on.
const AFTER: usize = 6;

/// Lines longer than this are hard to compare by eye.
const LONG: usize = 150;

/// The first difference with what led to it, or nothing when the traces are equal.
#[must_use]
pub fn difference(left_name: &str, left: &Trace, right_name: &str, right: &Trace) -> Option<String> {
    let at = left.first_difference(right)?;
    let mut text = String::new();
    for line in left.lines.iter().take(at).skip(at.saturating_sub(CONTEXT)) {
        let _ = writeln!(text, "      {line}");
    }
    for (mark, name, trace) in [('-', left_name, left), ('+', right_name, right)] {
        if at >= trace.lines.len() {
            let _ = writeln!(text, "    {mark} {name} ends here");
        }
        for line in trace.lines.iter().skip(at).take(AFTER) {
            let _ = writeln!(text, "    {mark} {line}");
        }
    }
    if let (Some(one), Some(other)) = (left.lines.get(at), right.lines.get(at))
        && one.len().max(other.len()) > LONG
    {
        let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let _ = writeln!(text, "    they part at: {} | {}", excerpt(one, same), excerpt(other, same));
    }
    Some(text)
}

/// What surrounds a place in a long line. (Traces are ASCII.)
fn excerpt(line: &str, at: usize) -> &str {
    line.get(at.saturating_sub(30)..line.len().min(at + 40)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_traces_have_no_difference() {
        let trace = Trace::parse("main\ta\n");
        assert_eq!(difference("kernel", &trace, "beeline", &trace.clone()), None);
    }

    #[test]
    fn a_trace_that_ends_early_differs() {
        let (long, short) = (Trace::parse("main\ta\nmain\tb\n"), Trace::parse("main\ta\n"));
        let text = difference("kernel", &long, "beeline", &short).unwrap_or_default();
        assert!(text.contains("- main: b") && text.contains("beeline ends here"), "{text}");
    }
}

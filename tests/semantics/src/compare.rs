//! Showing where two traces part.

use crate::trace::Trace;
use std::fmt::Write;

/// Lines shown before the first difference.
const CONTEXT: usize = 12;

/// Lines shown from the first difference on.
const AFTER: usize = 6;

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
    Some(text)
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

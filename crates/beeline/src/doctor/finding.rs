//! One thing that was looked at.

use std::fmt::Write;
use std::path::Path;

use beeline_status::layout::harmless;
use serde::Serialize;

use super::{documents, remedy};
use crate::output;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Good,
    /// It is as it is, and somebody may wonder.
    Note,
    /// Because of it connections stay on TCP.
    Problem,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub what: String,
    pub state: State,
    /// What was found.
    pub says: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Whether it leaves open if something stands in the way.
    #[serde(skip)]
    pub is_open: bool,
}

/// Where what was found begins: after the state and what was looked at.
const INDENT: usize = 27;

impl Finding {
    pub fn good(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { what: what.into(), state: State::Good, says: says.into(), remedy: None, is_open: false }
    }

    pub fn note(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::good(what, says) }
    }

    pub fn problem(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { state: State::Problem, ..Self::good(what, says) }
    }

    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// With what can be done about a reason, if there is something.
    pub fn with_remedy_of(self, reason: &str) -> Self {
        Self { remedy: remedy::of(reason).map(str::to_owned), ..self }
    }

    /// Names documents by where they are. Remedies are our own words; what was found may be a user's path.
    pub fn name_documents(&mut self, directory: &Path) {
        self.remedy = self.remedy.as_deref().map(|remedy| documents::named(remedy, directory));
    }

    /// For people: one line, and what to do below it.
    pub fn write_to(&self, text: &mut String) {
        let state = match self.state {
            State::Good => "ok",
            State::Note => "note",
            State::Problem => "problem",
        };
        let start = format!("  {state:<8} {:<15} ", harmless(&self.what));
        wrapped(text, &start, &harmless(&self.says));
        if let Some(remedy) = &self.remedy {
            wrapped(text, &format!("{:>INDENT$}", "-> "), &harmless(remedy));
        }
    }
}

/// Writes a line, what goes beyond the terminal's width below it.
fn wrapped(text: &mut String, start: &str, words: &str) {
    let indent = " ".repeat(INDENT);
    let options =
        textwrap::Options::new(output::width().max(INDENT + 20)).initial_indent(start).subsequent_indent(&indent);
    textwrap::wrap(words, options).iter().for_each(|line| {
        let _ = writeln!(text, "{line}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_looked_for_in_remedies_alone() {
        let mut finding = Finding::good("program", "docs/app in docs/").with_remedy("see docs/limits.md");
        finding.name_documents(Path::new("/x"));
        assert_eq!(
            (finding.says.as_str(), finding.remedy.as_deref()),
            ("docs/app in docs/", Some("see /x/docs/limits.md"))
        );
    }

    #[test]
    fn a_finding_steers_no_terminal_and_its_remedy_stands_below() {
        let mut text = String::new();
        Finding::note("a\x1b[2J", "it\nis").with_remedy("do").write_to(&mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  note     a?[2J           it?is");
        assert_eq!(lines[1].trim_end(), format!("{:>INDENT$}do", "-> "));
        assert_eq!(lines.len(), 2);
    }
}

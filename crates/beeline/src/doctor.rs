//! `beeline doctor`: what this host offers, and what stands in the way of lanes; likewise of a program or a process.
//!
//! The proof of the host is a trial: a server and a client under Beeline, which say whether a lane came about and how
//! long a round trip takes. The rest says why not, and what to do.

mod documents;
mod finding;
mod host;
mod remedy;
mod subject;
mod trial;

use std::fmt::Write;
use std::process::ExitCode;

use finding::{Finding, State};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::output;

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    /// Of this document's form.
    version: u32,
    /// Whether nothing stands in the way.
    good: bool,
    host: Vec<Finding>,
    /// Of the program or process that was asked for.
    subject: Vec<Finding>,
}

impl Document {
    /// Whether it is known that a lane came about, and what was asked for left nothing open.
    fn is_tried(&self) -> bool {
        self.host.iter().any(|finding| finding.what == host::TRIAL && finding.state == State::Good)
            && !self.subject.iter().any(|finding| finding.is_open)
    }
}

pub fn run(arguments: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if let Some(part) = &arguments.part {
        trial::play(part)?;
        return Ok(ExitCode::SUCCESS);
    }
    let subject = arguments.subject.as_deref().map(|subject| subject::look(subject, arguments)).transpose()?;
    let document = {
        let (mut host, mut subject) = (host::look(arguments), subject.unwrap_or_default());
        if let Some(directory) = std::env::current_exe().ok().and_then(|program| documents::directory(&program)) {
            host.iter_mut().chain(&mut subject).for_each(|finding| finding.name_documents(&directory));
        }
        let good = host.iter().chain(&subject).all(|finding| finding.state != State::Problem);
        Document { version: 1, good, host, subject }
    };
    let text =
        if arguments.json { serde_json::to_string_pretty(&document)? + "\n" } else { render(&document, arguments) };
    output::print(&text)?;
    Ok(ExitCode::from(u8::from(!document.good)))
}

fn render(document: &Document, arguments: &DoctorArgs) -> String {
    let mut text = String::from("This host\n");
    document.host.iter().for_each(|finding| finding.write_to(&mut text));
    if let Some(subject) = &arguments.subject {
        let _ = writeln!(text, "\n{}", beeline_status::layout::harmless(&subject.to_string_lossy()));
        document.subject.iter().for_each(|finding| finding.write_to(&mut text));
    }
    let problems = document.host.iter().chain(&document.subject).filter(|finding| finding.state == State::Problem);
    let _ = match problems.count() {
        0 if document.is_tried() => writeln!(text, "\nNothing stands in the way of lanes."),
        0 => writeln!(text, "\nNothing is known to stand in the way of lanes."),
        1 => writeln!(text, "\n1 problem stands in the way of lanes."),
        more => writeln!(text, "\n{more} problems stand in the way of lanes."),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stands_in_the_way_only_where_nothing_is_left_open() {
        let is_tried = |trial: Finding, subject: &[Finding]| {
            Document { version: 1, good: true, host: vec![trial], subject: subject.to_vec() }.is_tried()
        };
        let (good, note) = (Finding::good(host::TRIAL, "a lane"), Finding::note("process 1", "5 times no_door"));
        let open = Finding { is_open: true, ..Finding::note("process 1", "not yours to look at") };
        assert!(is_tried(good.clone(), &[]) && is_tried(good.clone(), std::slice::from_ref(&note)));
        assert!(!is_tried(good, &[note, open]));
        assert!(!is_tried(Finding::note(host::TRIAL, "not known"), &[]));
    }
}

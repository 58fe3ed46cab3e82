//! The bridge's part: what it carries to other hosts, or why that is not known.

use std::path::Path;

use beeline_status::document::ConnectionStatus;
use beeline_status::number::plural;
use beeline_status::{Document, Problem, ask, people};
use serde::Serialize;

use super::process::Process;
use crate::cli::Selection;
use crate::output::prose;

/// The bridge of this host. In JSON a `state`, with the `status` of a running bridge, or else the reason (`why`).
#[derive(Serialize)]
#[serde(untagged)]
pub enum Bridge {
    /// It runs, and has told everything.
    Running(Running),
    /// It does not run, or does not tell.
    Unknown(Problem),
}

#[derive(Serialize)]
#[serde(tag = "state", rename = "running")]
pub struct Running {
    status: Box<Document>,
}

impl Running {
    /// In one line.
    pub fn summary(&self) -> String {
        let (hosts, rails) = (self.status.peers.len() as u64, self.status.data.rails.len() as u64);
        format!("it runs, with {} and {}", plural(hosts, "other host"), plural(rails, "rail"))
    }

    /// Whether it can carry nothing.
    pub fn has_no_rail(&self) -> bool {
        self.status.data.rails.is_empty()
    }

    /// Whether it carries the connection with these ends.
    pub fn carries(&self, local: &str, remote: &str) -> bool {
        self.status.data.connections.iter().any(|carried| has_ends(carried, local, remote))
    }
}

impl Bridge {
    /// Asks it.
    pub fn ask(socket: &Path) -> Self {
        match ask::status(socket) {
            Ok(document) => Self::Running(Running { status: Box::new(document) }),
            Err(problem) => Self::Unknown(problem),
        }
    }

    /// That of whoever has no question about it.
    pub fn left_out() -> Self {
        Self::Unknown(Problem::NotRunning("the bridge was not asked".into()))
    }

    /// Asks it once more, unless it did not answer the last time: a bridge that is stopped would hold up each look.
    pub fn again(&self, socket: &Path) -> Self {
        match self {
            Self::Unknown(problem @ Problem::Failed(_)) => Self::Unknown(problem.clone()),
            _ => Self::ask(socket),
        }
    }

    /// For people: everything, or, of one process, how its connections to other hosts go.
    pub fn render(&self, selection: &Selection, processes: &[Process]) -> String {
        match (selection, self) {
            (Selection::All, Self::Running(Running { status })) => format!("\nThe bridge: {}", people::render(status)),
            (Selection::All, Self::Unknown(problem)) => format!("\n{}\n", prose(&sentence(problem))),
            (Selection::Pid(_) | Selection::Program(_), Self::Running(Running { status })) => {
                connections_of(status, processes)
            }
            (Selection::Pid(_) | Selection::Program(_), Self::Unknown(_)) => String::new(),
        }
    }
}

/// Whether a connection has these ends, from whichever of them it is seen.
fn has_ends(carried: &ConnectionStatus, local: &str, remote: &str) -> bool {
    let (client, server) = (carried.client.as_str(), carried.server.as_str());
    [(client, server), (server, client)].contains(&(local, remote))
}

fn sentence(problem: &Problem) -> String {
    match problem {
        Problem::NotRunning(_) => format!("Connections to other hosts are kernel TCP: {problem}."),
        _ => format!("What goes to other hosts is not known: {problem}."),
    }
}

/// A connection of a process is the bridge's if it has the same ends.
fn connections_of(status: &Document, processes: &[Process]) -> String {
    let is_own = |carried: &&ConnectionStatus| {
        let mut open = processes.iter().flat_map(|process| &process.connections);
        open.any(|open| has_ends(carried, &open.local, &open.remote))
    };
    let carried = status.data.connections.iter().filter(is_own);
    let carried: Vec<_> = carried.cloned().collect();
    if carried.is_empty() {
        return String::new();
    }
    format!("\nTo other hosts, by the bridge:{}", people::connections(&carried))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_that_did_not_answer_is_not_asked_again() {
        let nobody = Path::new("/nonexistent/socket");
        let silent = Bridge::Unknown(Problem::Failed("it is silent".into()));
        let Bridge::Unknown(problem) = silent.again(nobody) else { panic!() };
        assert_eq!(problem.to_string(), "it is silent");
        let Bridge::Unknown(problem) = Bridge::left_out().again(nobody) else { panic!() };
        assert!(problem.to_string().contains("/nonexistent/socket"), "{problem}");
    }
}

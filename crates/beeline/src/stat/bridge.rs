//! The bridge's part: what it carries to other hosts, or why that is not known.

use std::path::Path;

use beeline_status::document::ConnectionStatus;
use beeline_status::number::plural;
use beeline_status::{Document, Problem, ask, people};
use serde::Serialize;

use super::process::Process;
use crate::cli::Selection;

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

    /// Whether it carries the connection with these ends.
    pub fn carries(&self, local: &str, remote: &str) -> bool {
        let ends = |carried: &ConnectionStatus| {
            let (client, server) = (carried.client.as_str(), carried.server.as_str());
            [(client, server), (server, client)].contains(&(local, remote))
        };
        self.status.data.connections.iter().any(ends)
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

    /// For people: everything, or, of one process, how its connections to other hosts go.
    pub fn render(&self, selection: &Selection, processes: &[Process]) -> String {
        match (selection, self) {
            (Selection::All, Self::Running(Running { status })) => format!("\nThe bridge: {}", people::render(status)),
            (Selection::All, Self::Unknown(problem)) => format!("\n{}\n", sentence(problem)),
            (Selection::Pid(_) | Selection::Program(_), Self::Running(Running { status })) => {
                connections_of(status, processes)
            }
            (Selection::Pid(_) | Selection::Program(_), Self::Unknown(_)) => String::new(),
        }
    }
}

fn sentence(problem: &Problem) -> String {
    match problem {
        Problem::NotRunning(_) => format!("Connections to other hosts are kernel TCP: {problem}."),
        _ => format!("What goes to other hosts is not known: {problem}."),
    }
}

/// A connection of a process is the bridge's if it has the same ends.
fn connections_of(status: &Document, processes: &[Process]) -> String {
    let is_own = |client: &str, server: &str| {
        let mut open = processes.iter().flat_map(|process| &process.connections);
        open.any(|open| [(client, server), (server, client)].contains(&(open.local.as_str(), open.remote.as_str())))
    };
    let carried = status.data.connections.iter().filter(|carried| is_own(&carried.client, &carried.server));
    let carried: Vec<_> = carried.cloned().collect();
    if carried.is_empty() {
        return String::new();
    }
    format!("\nTo other hosts, by the bridge:{}", people::connections(&carried))
}

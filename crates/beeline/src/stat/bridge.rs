//! The bridge's part: what it carries to other hosts, or why that is not known.

use std::collections::{HashMap, HashSet};
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
    /// The ends of the connections that it carries, as seen from each of them: from here to there.
    #[serde(skip)]
    ends: HashMap<String, HashSet<String>>,
}

impl Running {
    fn of(status: Document) -> Self {
        let mut ends = HashMap::<String, HashSet<String>>::new();
        for ConnectionStatus { client, server, .. } in &status.data.connections {
            for (here, there) in [(client, server), (server, client)] {
                ends.entry(here.clone()).or_default().insert(there.clone());
            }
        }
        Self { status: Box::new(status), ends }
    }

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
        self.ends.get(local).is_some_and(|ends| ends.contains(remote))
    }
}

impl Bridge {
    /// Asks it.
    pub fn ask(socket: &Path) -> Self {
        match ask::status(socket) {
            Ok(document) => Self::Running(Running::of(document)),
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
            (Selection::All, Self::Running(Running { status, .. })) => {
                format!("\nThe bridge: {}", people::render(status))
            }
            (Selection::All, Self::Unknown(problem)) => format!("\n{}\n", prose(&sentence(problem))),
            (Selection::Pid(_) | Selection::Program(_), Self::Running(Running { status, .. })) => {
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
    let open = processes.iter().flat_map(|process| &process.connections);
    let open: HashSet<(&str, &str)> = open.map(|open| (open.local.as_str(), open.remote.as_str())).collect();
    let is_own = |carried: &&ConnectionStatus| {
        let (client, server) = (carried.client.as_str(), carried.server.as_str());
        open.contains(&(client, server)) || open.contains(&(server, client))
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

    #[test]
    fn a_connection_is_the_bridges_from_both_of_its_ends() {
        let connection = |client: &str| {
            serde_json::json!({
                "client": client, "server": "10.0.0.2:80", "client_is_here": true, "peer": "beta", "state": "open", "cpu": 1,
                "paths": [], "bytes_sent": 1, "bytes_received": 2, "age_s": 3
            })
        };
        let status = serde_json::json!({
            "version": "1", "pid": 7, "name": "alpha", "instance": 9, "insecure": false, "listen": [], "speaks_for": [],
            "certificate_days": 300, "control_ends": {}, "tunables": {}, "peers": [],
            "data": {
                "uptime_s": 100, "rails": [], "links": [],
                "connections": [connection("10.0.0.1:1025"), connection("10.0.0.1:1026")], "refusals": {}, "totals": {},
                "share": {"look": null, "ask": null, "outward": null, "send": null, "inward": null, "own": null}
            }
        });
        let running = Running::of(serde_json::from_value(status).unwrap());
        for client in ["10.0.0.1:1025", "10.0.0.1:1026"] {
            assert!(running.carries(client, "10.0.0.2:80") && running.carries("10.0.0.2:80", client));
        }
        assert!(!running.carries("10.0.0.1:1027", "10.0.0.2:80"));
        assert!(!running.carries("10.0.0.1:1025", "10.0.0.1:1026") && !running.carries("10.0.0.2:80", "10.0.0.2:80"));
    }
}

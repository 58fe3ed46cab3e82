//! One open connection of one process.

use std::collections::HashSet;

use serde::Serialize;

use super::tcp;
use crate::cli::Path;
use crate::stat::bridge::Bridge;
use crate::stat::collect::Collected;
use crate::stat::process::{OpenConnection, Peer, Process};

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Namespace => "namespace",
            Self::Bridge => "bridge",
            Self::Tcp => "tcp",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub path: Path,
    pub pid: u32,
    pub program: String,
    /// If that is another one than the command's, and known.
    pub network_namespace: Option<String>,
    pub fd: i32,
    pub local: String,
    pub remote: String,
    /// Who has the other end, if that is a process that runs with Beeline.
    pub peer: Option<Peer>,
    /// Of TCP Beeline does not know them.
    pub bytes_sent: Option<u64>,
    pub bytes_received: Option<u64>,
}

/// By what a connection is known again.
pub type Key = (u32, i32, String, String, Path);

impl Row {
    pub fn key(&self) -> Key {
        (self.pid, self.fd, self.local.clone(), self.remote.clone(), self.path)
    }

    /// Bytes sent and received, where they are known.
    pub fn carried(&self) -> Option<(u64, u64)> {
        self.bytes_sent.zip(self.bytes_received)
    }

    pub fn total(&self) -> u64 {
        self.carried().map_or(0, |(sent, received)| sent.saturating_add(received))
    }

    fn of(process: &Process, open: &OpenConnection, bridge: &Bridge) -> Self {
        let path = match (open.path, bridge) {
            (Some("agent"), _) => Path::Namespace,
            (_, Bridge::Running(running)) if running.carries(&open.local, &open.remote) => Path::Bridge,
            _ => Path::Lane,
        };
        Self {
            path,
            pid: process.pid,
            program: process.program.clone(),
            network_namespace: process.network_namespace.clone(),
            fd: open.fd,
            local: open.local.clone(),
            remote: open.remote.clone(),
            peer: open.peer.clone(),
            bytes_sent: Some(open.bytes_sent),
            bytes_received: Some(open.bytes_received),
        }
    }

    fn of_tcp(process: &Process, socket: tcp::Socket) -> Self {
        Self {
            path: Path::Tcp,
            pid: process.pid,
            program: process.program.clone(),
            network_namespace: process.network_namespace.clone(),
            fd: socket.fd,
            local: socket.local.to_string(),
            remote: socket.remote.to_string(),
            peer: None,
            bytes_sent: None,
            bytes_received: None,
        }
    }
}

/// All of them, those of a process together.
pub fn all(collected: &Collected) -> Vec<Row> {
    let mut tables = tcp::Tables::default();
    let mut rows = Vec::new();
    for process in collected.processes.iter().filter(|process| !process.ended) {
        rows.extend(process.connections.iter().map(|open| Row::of(process, open, &collected.bridge)));
        if process.is_known_here() {
            let sockets = tables.of(process.pid).into_iter().map(|socket| Row::of_tcp(process, socket));
            // A lane to another namespace keeps the TCP connection by which it was made.
            let kept: HashSet<(&str, &str)> =
                process.connections.iter().map(|open| (open.local.as_str(), open.remote.as_str())).collect();
            rows.extend(sockets.filter(|row| !kept.contains(&(row.local.as_str(), row.remote.as_str()))));
        }
    }
    rows
}

//! Whether the Beeline column was carried by Beeline: what the library's own statistics of a process say.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use beeline_stats::layout::{FILE_BYTES_MAX, FileName, file_path, start_ticks_from_proc_stat};
use beeline_stats::{Counter, Reason, Role, Snapshot};
use nix::unistd::{Pid, geteuid};
use serde::Serialize;

/// How connections were carried.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Carried {
    /// Over a lane.
    pub accelerated: u64,
    /// Over TCP, by reason.
    pub fallen_back: BTreeMap<&'static str, u64>,
    /// Processes that had the library preloaded and left no statistics.
    pub without_statistics: u64,
}

impl Carried {
    /// Asks for a client that has the library preloaded and still lives.
    pub fn of_client(pid: Pid) -> Carried {
        Carried::of(pid, Role::Client)
    }

    /// Asks for a server that has the library preloaded and still lives.
    pub fn of_server(pid: Pid) -> Carried {
        Carried::of(pid, Role::Server)
    }

    fn of(pid: Pid, role: Role) -> Carried {
        let unknown = Carried { without_statistics: 1, ..Carried::default() };
        read(pid)
            .and_then(|bytes| Some(Carried::from_snapshot(&Snapshot::parse(&bytes).ok()?, role)))
            .unwrap_or(unknown)
    }

    fn from_snapshot(snapshot: &Snapshot, role: Role) -> Carried {
        let accelerated = match role {
            Role::Client => Counter::ConnectionsAcceleratedClient,
            Role::Server => Counter::ConnectionsAcceleratedServer,
        };
        let fallen_back = Reason::ALL
            .iter()
            .map(|&reason| (reason.name(), snapshot.reason(role, reason)))
            .filter(|&(_, count)| count > 0)
            .collect();
        Carried { accelerated: snapshot.counter(accelerated), fallen_back, without_statistics: 0 }
    }

    pub fn add(&mut self, other: &Carried) {
        self.accelerated += other.accelerated;
        self.without_statistics += other.without_statistics;
        for (reason, count) in &other.fallen_back {
            *self.fallen_back.entry(reason).or_default() += count;
        }
    }

    /// What is wrong when not every connection was accelerated.
    pub fn complaint(&self) -> Option<String> {
        if self.without_statistics > 0 {
            return Some(format!(
                "without statistics in {} processes, so it is not known what carried them",
                self.without_statistics
            ));
        }
        let fallen_back: u64 = self.fallen_back.values().sum();
        if fallen_back == 0 {
            return None;
        }
        let reasons: Vec<String> = self.fallen_back.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        Some(format!(
            "{fallen_back} of {} connections used TCP ({})",
            fallen_back + self.accelerated,
            reasons.join(", ")
        ))
    }
}

/// A counter of a process, when it has statistics.
pub fn counter_of(pid: Pid, counter: Counter) -> Option<u64> {
    Some(Snapshot::parse(&read(pid)?).ok()?.counter(counter))
}

/// A copy of the statistics file of a process.
fn read(pid: Pid) -> Option<Vec<u8>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name = FileName { pid: u32::try_from(pid.as_raw()).ok()?, start_ticks: start_ticks_from_proc_stat(&stat)? };
    let path = file_path(geteuid().as_raw(), name);
    let mut bytes = Vec::new();
    File::open(Path::new(path.as_str())).ok()?.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_accelerated_is_no_complaint() {
        let carried = Carried { accelerated: 3, ..Carried::default() };
        assert_eq!(carried.complaint(), None);
    }

    #[test]
    fn fallbacks_are_told_with_their_reasons() {
        let mut carried = Carried { accelerated: 3, ..Carried::default() };
        carried.add(&Carried { fallen_back: BTreeMap::from([("door_full", 2)]), ..Carried::default() });
        assert_eq!(carried.complaint().as_deref(), Some("2 of 5 connections used TCP (door_full 2)"));
    }

    #[test]
    fn a_process_without_the_library_has_no_statistics() {
        assert_eq!(Carried::of_client(Pid::this()).without_statistics, 1);
    }
}

//! Whether the Beeline column was carried by Beeline: what the library's own statistics of a process say.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Result, ensure};
use beeline_stats::layout::{FILE_BYTES_MAX, FileName, file_path, start_ticks_from_proc_stat};
use beeline_stats::{Counter, Reason, Role, Snapshot, Text};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};

use crate::transport::Transport;

/// How connections were carried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// Over a lane.
    pub accelerated: u64,
    /// Of these, to or from another host, by the bridges.
    pub bridged: u64,
    /// Over TCP, by reason.
    pub fallen_back: BTreeMap<String, u64>,
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
        read(pid, geteuid().as_raw())
            .and_then(|bytes| Some(Carried::from_snapshot(&Snapshot::parse(&bytes).ok()?, role)))
            .unwrap_or(unknown)
    }

    fn from_snapshot(snapshot: &Snapshot, role: Role) -> Carried {
        let (accelerated, bridged) = match role {
            Role::Client => (Counter::ConnectionsAcceleratedClient, Counter::ConnectionsBridgedClient),
            Role::Server => (Counter::ConnectionsAcceleratedServer, Counter::ConnectionsBridgedServer),
        };
        let fallen_back = Reason::ALL
            .iter()
            .map(|&reason| (reason.name().to_owned(), snapshot.reason(role, reason)))
            .filter(|&(_, count)| count > 0)
            .collect();
        Carried {
            accelerated: snapshot.counter(accelerated),
            bridged: snapshot.counter(bridged),
            fallen_back,
            without_statistics: 0,
        }
    }

    pub fn add(&mut self, other: &Carried) {
        self.accelerated += other.accelerated;
        self.bridged += other.bridged;
        self.without_statistics += other.without_statistics;
        for (reason, count) in &other.fallen_back {
            *self.fallen_back.entry(reason.clone()).or_default() += count;
        }
    }

    /// For a client whose server is on another host: what makes its figures no figures of the `column`.
    ///
    /// # Errors
    /// When a connection went by a way that is neither the column's nor a counted fallback.
    pub fn between_hosts(&self, column: Transport) -> Result<()> {
        let loaded = self.without_statistics == 0;
        match column {
            Transport::Tcp | Transport::Unix => {
                ensure!(!loaded, "the library was loaded into a program that was to use TCP")
            }
            Transport::Beeline if loaded => {
                let all = self.accelerated + self.fallen_back.values().sum::<u64>();
                ensure!(all > 0, "the library saw no connection");
                ensure!(
                    self.accelerated == self.bridged,
                    "{} of {all} connections were made within one host: the two are the same",
                    self.accelerated - self.bridged
                );
            }
            // Told with the results.
            Transport::Beeline => {}
        }
        Ok(())
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

/// The statistics of a process, kept open: they tell how its connections were carried also when it has ended, and its
/// file is gone.
pub struct Kept {
    file: File,
    /// Tells the file from that of another program that the same process became.
    pub inode: u64,
}

impl Kept {
    /// Of a process that may be another user's; `None` for one that has no statistics.
    pub fn of(pid: Pid, owner: u32) -> Option<Kept> {
        Kept::open(Path::new(path_of(pid, owner)?.as_str()))
    }

    /// `None` for a file that is no more.
    pub fn open(path: &Path) -> Option<Kept> {
        let file = File::open(path).ok()?;
        let inode = file.metadata().ok()?.ino();
        Some(Kept { file, inode })
    }

    /// What they say now of the process's connections as a client.
    pub fn carried(&self) -> Option<Carried> {
        let mut bytes = vec![0; FILE_BYTES_MAX];
        let mut count = 0;
        while let Ok(more @ 1..) = self.file.read_at(bytes.get_mut(count..)?, count as u64) {
            count += more;
        }
        bytes.truncate(count);
        Some(Carried::from_snapshot(&Snapshot::parse(&bytes).ok()?, Role::Client))
    }
}

/// A counter of a process, when it has statistics.
pub fn counter_of(pid: Pid, counter: Counter) -> Option<u64> {
    Some(Snapshot::parse(&read(pid, geteuid().as_raw())?).ok()?.counter(counter))
}

/// A copy of the statistics file of a process.
fn read(pid: Pid, owner: u32) -> Option<Vec<u8>> {
    let path = path_of(pid, owner)?;
    let mut bytes = Vec::new();
    File::open(Path::new(path.as_str())).ok()?.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn path_of(pid: Pid, owner: u32) -> Option<Text<128>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name = FileName { pid: u32::try_from(pid.as_raw()).ok()?, start_ticks: start_ticks_from_proc_stat(&stat)? };
    Some(file_path(owner, name))
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
        carried.add(&Carried { fallen_back: BTreeMap::from([("door_full".to_owned(), 2)]), ..Carried::default() });
        assert_eq!(carried.complaint().as_deref(), Some("2 of 5 connections used TCP (door_full 2)"));
    }

    #[test]
    fn between_hosts_only_the_bridge_and_counted_fallbacks_will_do() {
        let bridged = Carried { accelerated: 3, bridged: 3, ..Carried::default() };
        assert!(bridged.between_hosts(Transport::Beeline).is_ok());
        assert!(bridged.between_hosts(Transport::Tcp).is_err());
        let fallen = Carried { fallen_back: BTreeMap::from([("bridge_no_peer".to_owned(), 1)]), ..Carried::default() };
        assert!(fallen.between_hosts(Transport::Beeline).is_ok() && fallen.complaint().is_some());
        let one_host = Carried { bridged: 1, ..bridged };
        assert!(one_host.between_hosts(Transport::Beeline).is_err());
        assert!(Carried::default().between_hosts(Transport::Beeline).is_err());
        let plain = Carried { without_statistics: 1, ..Carried::default() };
        assert!(plain.between_hosts(Transport::Tcp).is_ok());
    }

    #[test]
    fn a_process_without_the_library_has_no_statistics() {
        assert_eq!(Carried::of_client(Pid::this()).without_statistics, 1);
    }
}

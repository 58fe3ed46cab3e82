//! What the library counted about a process: see `beeline_stats::layout` for the file.

use beeline_stats::layout::{FILE_BYTES_MAX, FileName, file_path, start_ticks_from_proc_stat};
use beeline_stats::{Counter, Poison, Reason, Role, Snapshot};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;

/// Where the connections of a process went.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Carried {
    /// Connections over lanes, made and accepted.
    pub accelerated: u64,
    /// Connections over TCP, by reason.
    pub fallen_back: BTreeMap<&'static str, u64>,
    /// Connections that were reset because the peer lied, by what it did.
    pub poisoned: BTreeMap<&'static str, u64>,
}

impl Carried {
    /// Reads the statistics of a living process of this user; none when it does not run the library.
    #[must_use]
    pub fn of(process: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
        let name = FileName { pid: process, start_ticks: start_ticks_from_proc_stat(&stat)? };
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let mut bytes = Vec::new();
        File::open(file_path(user, name).as_str()).ok()?.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
        let snapshot = Snapshot::parse(&bytes).ok()?;
        let mut carried = Self {
            accelerated: snapshot.counter(Counter::ConnectionsAcceleratedClient)
                + snapshot.counter(Counter::ConnectionsAcceleratedServer),
            ..Self::default()
        };
        for reason in Reason::ALL {
            for role in [Role::Client, Role::Server] {
                *carried.fallen_back.entry(reason.name()).or_default() += snapshot.reason(role, *reason);
            }
        }
        for poison in Poison::ALL {
            carried.poisoned.insert(poison.name(), snapshot.poison(*poison));
        }
        carried.fallen_back.retain(|_, count| *count > 0);
        carried.poisoned.retain(|_, count| *count > 0);
        Some(carried)
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "accelerated {}", self.accelerated)?;
        for (reason, count) in &self.fallen_back {
            write!(out, ", fell back: {reason} {count}")?;
        }
        for (poison, count) in &self.poisoned {
            write!(out, ", poisoned: {poison} {count}")?;
        }
        Ok(())
    }
}

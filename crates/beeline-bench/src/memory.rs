//! What connections cost in memory.
//!
//! The user side is what the two processes hold themselves (anonymous pages, each counted by its share) and all shared
//! memory of the system, mapped or not: ring memory lives in memfds. Pages of program files are left out, because they
//! do not grow with connections. The kernel side is unreclaimable slab and page tables. Both system-wide numbers also
//! see what other processes do meanwhile; a thousand connections are far above that.

use std::fs;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::machine::{kib_field, meminfo_bytes};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    pub user_bytes: f64,
    pub kernel_bytes: f64,
}

impl Resident {
    /// Takes stock of two processes and the system.
    pub fn of(pids: &[Pid]) -> Result<Self> {
        let mut user = 0;
        for pid in pids {
            let path = format!("/proc/{pid}/smaps_rollup");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            user += kib_field(&text, "Pss_Anon").with_context(|| format!("{path}: no Pss_Anon"))?;
        }
        let system = |name| meminfo_bytes(name).with_context(|| format!("meminfo: no {name}"));
        Ok(Resident {
            user_bytes: (user + system("Shmem")?) as f64,
            kernel_bytes: (system("SUnreclaim")? + system("PageTables")?) as f64,
        })
    }

    /// The growth since `before`, divided among connections. Never negative.
    pub fn growth_per(&self, before: &Resident, connections: usize) -> Resident {
        let part = |now: f64, then: f64| (now - then).max(0.0) / connections as f64;
        Resident {
            user_bytes: part(self.user_bytes, before.user_bytes),
            kernel_bytes: part(self.kernel_bytes, before.kernel_bytes),
        }
    }
}

/// CPU time that a process has used, in seconds.
pub fn cpu_seconds(pid: Pid) -> Result<f64> {
    let clock: ClockId = clock_getcpuclockid(pid).with_context(|| format!("CPU clock of {pid}"))?;
    let time = clock.now()?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_and_time_can_be_read() {
        let me = Pid::this();
        let now = Resident::of(&[me]).unwrap();
        assert!(now.user_bytes > 0.0 && now.kernel_bytes > 0.0);
        assert!(cpu_seconds(me).unwrap() > 0.0);
    }

    #[test]
    fn growth_is_shared_out() {
        let before = Resident { user_bytes: 1000.0, kernel_bytes: 50.0 };
        let after = Resident { user_bytes: 3000.0, kernel_bytes: 40.0 };
        let each = after.growth_per(&before, 10);
        assert_eq!(each, Resident { user_bytes: 200.0, kernel_bytes: 0.0 });
    }
}

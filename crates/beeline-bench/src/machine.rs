//! What machine this is: stored with each run, because a number without its machine says nothing.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Machine {
    pub date: String,
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    pub kernel: String,
    pub architecture: String,
    pub hypervisor: bool,
    /// Frequency governor of the first CPU, where the kernel shows one.
    pub governor: Option<String>,
    pub l2_cache: Option<String>,
    pub memory_bytes: u64,
    /// Load average of the last minute before the run: more than about 0.5 means that the machine was not quiet.
    pub load_before: f64,
}

impl Machine {
    pub fn describe() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let names = nix::sys::utsname::uname()?;
        let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Ok(Machine {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            cpu_model: field(&cpuinfo, "model name")
                .or_else(|| field(&cpuinfo, "CPU part"))
                .unwrap_or("unknown")
                .to_owned(),
            cpus: allowed_cpus()?.len(),
            kernel: names.release().to_string_lossy().into_owned(),
            architecture: names.machine().to_string_lossy().into_owned(),
            hypervisor: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            l2_cache: line_of("/sys/devices/system/cpu/cpu0/cache/index2/size"),
            memory_bytes: meminfo_bytes("MemTotal").unwrap_or(0),
            load_before: loads.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(f64::NAN),
        })
    }

    /// One line for the head of a table.
    pub fn line(&self) -> String {
        let mut parts = vec![
            self.cpu_model.clone(),
            format!("{} CPUs", self.cpus),
            format!("Linux {} {}", self.kernel, self.architecture),
        ];
        if self.hypervisor {
            parts.push("virtual machine".into());
        }
        if let Some(l2) = &self.l2_cache {
            parts.push(format!("L2 {l2}"));
        }
        if let Some(governor) = &self.governor {
            parts.push(format!("governor {governor}"));
        }
        parts.push(self.date.clone());
        parts.join(", ")
    }
}

/// The CPUs this process may run on.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Refuses CPUs that this process may not run on.
pub fn ensure_allowed(cpus: &[usize]) -> Result<()> {
    let allowed = allowed_cpus()?;
    if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        let list = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        bail!("CPU {cpu} is not one that this program may run on: those are {list}");
    }
    Ok(())
}

/// Two CPUs to run the two ends on: different cores, the same package if possible. `None` with one CPU.
pub fn choose_cpus() -> Result<Option<(usize, usize)>> {
    let allowed = allowed_cpus()?;
    let Some((&first, rest)) = allowed.split_first() else {
        return Ok(None);
    };
    let core = |cpu: usize| topology(cpu, "core_id");
    let package = |cpu: usize| topology(cpu, "physical_package_id");
    let another_core = |&&cpu: &&usize| (core(cpu), package(cpu)) != (core(first), package(first));
    let near = |cpu: &&usize| another_core(cpu) && package(**cpu) == package(first);
    let second = rest.iter().find(near).or_else(|| rest.iter().find(another_core)).or_else(|| rest.first());
    Ok(second.map(|&cpu| (first, cpu)))
}

fn topology(cpu: usize, what: &str) -> Option<String> {
    line_of(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}"))
}

fn line_of(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A line of /proc/meminfo, in bytes.
pub fn meminfo_bytes(name: &str) -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// The value of `name:   123 kB`, in bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The value of `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// FNV-1a of a file: to tell two of them apart, against nobody's will.
pub fn hash(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    Ok(format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files() {
        let text = "MemTotal:  2048 kB\nShmem:         12 kB\nmodel name\t: Some CPU\n";
        assert_eq!(kib_field(text, "MemTotal"), Some(2048 * 1024));
        assert_eq!(kib_field(text, "Shmem"), Some(12 * 1024));
        assert_eq!(kib_field(text, "Slab"), None);
        assert_eq!(field(text, "model name"), Some("Some CPU"));
    }

    #[test]
    fn this_machine_can_be_described() {
        let machine = Machine::describe().unwrap();
        assert!(machine.cpus >= 1);
        assert!(machine.line().contains("Linux"));
    }

    #[test]
    fn chosen_cpus_differ() {
        if let Some((a, b)) = choose_cpus().unwrap() {
            assert_ne!(a, b);
        }
    }
}

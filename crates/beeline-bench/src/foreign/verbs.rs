//! RDMA verbs, raw: `ib_send_lat` and `ib_send_bw` of perftest. One end runs at each host of a run between two, or both
//! on this one, which then talks to itself through its adapter.
//!
//! Connections are made by the RDMA connection manager (`-R`), which finds the device by an address: that of the
//! server's host, or one of this host's own devices.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Test;
use crate::hosts::Host;
use crate::process::{Guard, find, free_port};

const DEVICES: &str = "/sys/class/infiniband";
const LATENCY: &str = "ib_send_lat";
const BANDWIDTH: &str = "ib_send_bw";
/// Messages of a latency, there and back each, and the most of a stream.
const TRIPS: u32 = 1000;
const MESSAGES: u32 = 5000;
/// What a stream is worth.
const STREAM_BYTES: usize = 256 << 20;
/// perftest's MB.
const MIB: f64 = 1_048_576.0;
/// Until a server listens.
const AGAIN: Duration = Duration::from_millis(200);

/// Where its two ends run.
pub struct Ends {
    pub hosts: [Host; 2],
    pub server: IpAddr,
    pub cpus: [Option<usize>; 2],
    pub patience: Duration,
}

impl Ends {
    /// Both on this host.
    ///
    /// # Errors
    /// Why it has none.
    pub fn here(cpus: [Option<usize>; 2]) -> Result<Ends, String> {
        let server = own_address(Path::new(DEVICES), |netdev| {
            let words = ["ip", "-4", "-o", "address", "show", "dev", netdev];
            let output = Guard::start(Host::Local.command(words.into_iter()), true)?.output(Duration::from_secs(10))?;
            Ok(output.text)
        })?;
        Ok(Ends { hosts: [Host::Local, Host::Local], server, cpus, patience: Duration::from_secs(30) })
    }

    /// Why they cannot be measured, if they cannot. Of another host nobody knows before it is tried.
    pub fn objection(&self) -> Option<String> {
        let is_remote = self.hosts[0].is_remote();
        let missing =
            || find(LATENCY).is_none().then(|| format!("{LATENCY} is not installed (Debian package: perftest)"));
        (!is_remote).then(|| no_device(Path::new(DEVICES)).or_else(missing)).flatten()
    }

    /// The figure of a test: nanoseconds one way, or bytes a second.
    pub fn run(&self, test: Test) -> Result<f64> {
        let (program, bytes, count) = match test {
            Test::Latency { bytes, .. } => (LATENCY, bytes, TRIPS),
            Test::Stream { bytes, .. } => (BANDWIDTH, bytes, messages(bytes)),
        };
        let port = free_port()?.to_string();
        let (size, count) = (bytes.to_string(), count.to_string());
        let options = [program, "-R", "-F", "-p", &port, "-s", &size, "-n", &count];
        let server = self.server.to_string();
        let command = |end: usize, more: Option<&str>| {
            let cpu = self.cpus[end].map(|cpu| cpu.to_string());
            let pinned = cpu.iter().flat_map(|cpu| ["taskset", "-c", cpu.as_str()]);
            // At another host it ends with its connection.
            let dying = self.hosts[end].is_remote().then_some(["setpriv", "--pdeathsig", "KILL"]);
            let words = dying.iter().flatten().copied().chain(pinned).chain(options).chain(more);
            self.hosts[end].command(words)
        };
        let deadline = Instant::now() + self.patience;
        let mut other = Guard::start(command(1, None), false)?;
        loop {
            let output = Guard::start(command(0, Some(&server)), true)?.output(self.patience)?;
            if output.status.success() {
                return read(test, &output.text).with_context(|| format!("{program} said {:?}", output.text));
            }
            other.still_runs().with_context(|| format!("{program} at {}", self.hosts[1]))?;
            if Instant::now() > deadline {
                bail!("{program}: {output}");
            }
            std::thread::sleep(AGAIN);
        }
    }
}

fn messages(bytes: usize) -> u32 {
    u32::try_from(STREAM_BYTES / bytes.max(1)).unwrap_or(MESSAGES).clamp(100, MESSAGES)
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    names.sort();
    names
}

fn no_device(devices: &Path) -> Option<String> {
    names(devices).is_empty().then(|| "this host has no RDMA device".to_owned())
}

/// An address of an interface that belongs to a device. `ask` says what `ip` says of an interface.
fn own_address(devices: &Path, ask: impl Fn(&str) -> Result<String>) -> Result<IpAddr, String> {
    if let Some(reason) = no_device(devices) {
        return Err(reason);
    }
    for device in names(devices) {
        // The table has entries that are empty, and cannot be read.
        for entry in names(&device.join("ports/1/gid_attrs/ndevs")) {
            let Ok(netdev) = std::fs::read_to_string(entry) else { continue };
            let told = ask(netdev.trim()).unwrap_or_default();
            let address = told.split_whitespace().skip_while(|word| *word != "inet").nth(1);
            let address = address.and_then(|address| address.split('/').next()?.parse::<Ipv4Addr>().ok());
            if let Some(address) = address {
                return Ok(address.into());
            }
        }
    }
    Err("no RDMA device of this host has an interface with an address".to_owned())
}

/// The figures behind the size and the count: least, most, typical of latencies in microseconds; peak and average of
/// rates.
fn read(test: Test, text: &str) -> Option<f64> {
    let (Test::Latency { bytes, .. } | Test::Stream { bytes, .. }) = test;
    let size = bytes.to_string();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = words.into_iter().find(|words| words.first() == Some(&size.as_str()) && words.len() >= 5)?;
    match test {
        Test::Latency { .. } => line[4].parse::<f64>().ok().map(|us| us * 1e3),
        Test::Stream { .. } => line[3].parse::<f64>().ok().map(|rate| rate * MIB),
    }
    .filter(|value| value.is_finite() && *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perftest_prints() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n 4       1000          1.20           5.30         1.25               1.27        0.12            1.40                   5.30\n";
        assert_eq!(read(Test::latency(4), text), Some(1250.0));
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      1000             1051.49            1000.00            0.016824\n";
        assert_eq!(read(Test::stream(65_536), text), Some(1000.0 * MIB));
        for nothing in ["", " 65536 1000\n", " 4 1000 1 2 3\n", " 65536 1000 nan nan nan\n"] {
            assert_eq!(read(Test::stream(65_536), nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_device_is_found_by_its_interface_or_there_is_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let ask = |netdev: &str| Ok(format!("2: {netdev}    inet 10.9.0.1/24 scope global {netdev}\n"));
        assert!(own_address(directory.path(), ask).unwrap_err().contains("no RDMA device"));
        let table = directory.path().join("rxe0/ports/1/gid_attrs/ndevs");
        std::fs::create_dir_all(&table).unwrap();
        assert!(own_address(directory.path(), ask).unwrap_err().contains("no RDMA device of this host has"));
        std::fs::write(table.join("0"), "d0\n").unwrap();
        assert_eq!(own_address(directory.path(), ask), Ok([10, 9, 0, 1].into()));
        assert!(own_address(directory.path(), |_| Ok(String::new())).is_err());
    }

    #[test]
    fn a_stream_is_long_enough_and_not_too_long() {
        assert_eq!([messages(64), messages(65_536), messages(64 << 20)], [5000, 4096, 100]);
    }
}

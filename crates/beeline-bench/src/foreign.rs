//! Other ways through shared memory, for scale, where they are installed. They are reached through their own API, so
//! they are not what an unmodified program gets; the column says so.
//!
//! - UCX: `ucx_perftest`, tag-matching API, POSIX shared memory (`UCX_TLS=posix`).
//! - libfabric: `fi_pingpong`, message API on the `shm` provider. It has no one-way stream.
//! - [`verbs`]: perftest, where there is an RDMA device; in plans only.

pub mod verbs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::paper::axis::Beside;
use crate::process::{Guard, find, free_port, run_on, wait_for_listener};
use crate::report::Column;

#[derive(Debug, Clone, PartialEq)]
pub enum Foreign {
    Ucx(PathBuf),
    Libfabric(PathBuf),
}

/// What is measured for a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Test {
    Latency { bytes: usize, trips: u32 },
    Stream { bytes: usize, messages: u32, in_messages: bool },
}

/// Messages there and back of a latency, when they are small.
const TRIPS: usize = 200_000;
/// What a stream is worth, and the most messages of it.
const STREAM_BYTES: usize = 4 << 30;
const STREAM_MESSAGES: usize = 500_000;
const PATIENCE: Duration = Duration::from_secs(15);

impl Foreign {
    pub fn installed() -> Vec<Foreign> {
        let ucx = find("ucx_perftest").map(Foreign::Ucx);
        let libfabric = find("fi_pingpong").map(Foreign::Libfabric);
        ucx.into_iter().chain(libfabric).collect()
    }

    pub fn name(&self) -> &'static str {
        match self {
            Foreign::Ucx(_) => "UCX",
            Foreign::Libfabric(_) => "libfabric",
        }
    }

    pub fn column(&self) -> Column {
        match self {
            Foreign::Ucx(_) => Column::Ucx,
            Foreign::Libfabric(_) => Column::Libfabric,
        }
    }

    /// The row's figure by this means; `None` when it has nothing comparable.
    pub fn measure(&self, row: &str, cpus: Option<(usize, usize)>) -> Option<Result<f64>> {
        self.run(Test::of(row)?, cpus?)
    }

    /// What stands beside a cell of a plan.
    ///
    /// # Errors
    /// Why this host cannot have it.
    pub fn find(beside: Beside) -> Result<Foreign, String> {
        let program = |name: &str, package: &str| {
            find(name).ok_or_else(|| format!("{name} is not installed (Debian package: {package})"))
        };
        match beside {
            Beside::Ucx => program("ucx_perftest", "ucx-utils").map(Foreign::Ucx),
            Beside::Libfabric => program("fi_pingpong", "libfabric-bin").map(Foreign::Libfabric),
            // They have ends of their own.
            Beside::Verbs | Beside::SharedMemory => Err("the instrument's own work has none".into()),
        }
    }

    /// Runs a test; `None` when there is nothing comparable.
    pub fn run(&self, test: Test, cpus: (usize, usize)) -> Option<Result<f64>> {
        match self {
            Foreign::Ucx(program) => Some(ucx(program, test, cpus)),
            Foreign::Libfabric(program) => match test {
                Test::Latency { bytes, trips } => Some(libfabric(program, bytes, trips, cpus)),
                Test::Stream { .. } => None,
            },
        }
    }
}

impl Test {
    /// Some tenths of a second, from small messages to large.
    pub fn latency(bytes: usize) -> Test {
        Test::Latency { bytes, trips: (TRIPS / (1 + bytes / 1024)).max(50) as u32 }
    }

    /// The same one way.
    pub fn stream(bytes: usize) -> Test {
        Test::Stream {
            bytes,
            messages: (STREAM_BYTES / bytes.max(1)).clamp(100, STREAM_MESSAGES) as u32,
            in_messages: false,
        }
    }

    fn of(row: &str) -> Option<Test> {
        let stream = |bytes, messages, in_messages| Test::Stream { bytes, messages, in_messages };
        match row {
            "pingpong" => Some(Test::Latency { bytes: 8, trips: 300_000 }),
            "stream-64" => Some(stream(64, 1_000_000, true)),
            "stream-1k" => Some(stream(1024, 500_000, true)),
            "stream-64k" => Some(stream(65_536, 50_000, false)),
            "stream-1m" => Some(stream(1_048_576, 4_000, false)),
            _ => None,
        }
    }
}

fn ucx(program: &Path, test: Test, cpus: (usize, usize)) -> Result<f64> {
    let port = free_port()?;
    let command = |cpu: usize| {
        let mut command = Command::new(program);
        command.env("UCX_TLS", "posix,self");
        command.args(["-p", &port.to_string(), "-c", &cpu.to_string()]);
        command
    };
    let mut client = command(cpus.0);
    let (name, bytes, count) = match test {
        Test::Latency { bytes, trips } => ("tag_lat", bytes, trips),
        Test::Stream { bytes, messages, .. } => ("tag_bw", bytes, messages),
    };
    client.args(["127.0.0.1", "-f", "-t", name]);
    client.args(["-s", &bytes.to_string(), "-n", &count.to_string()]);
    let text = run_pair(command(cpus.1), client, port)?;
    let last = parse_ucx(&text).with_context(|| format!("ucx_perftest said {text:?}"))?;
    Ok(match test {
        // Microseconds, one way.
        Test::Latency { .. } => last.latency_us * 1e3,
        Test::Stream { in_messages: true, .. } => last.messages_per_second,
        Test::Stream { bytes, .. } => last.messages_per_second * bytes as f64,
    })
}

fn libfabric(program: &Path, bytes: usize, trips: u32, cpus: (usize, usize)) -> Result<f64> {
    let port = free_port()?;
    let command = |cpu: usize, flag: &str| -> Result<Command> {
        let mut command = Command::new(program);
        command.args(["-p", "shm", "-e", "rdm", "-I", &trips.to_string()]);
        command.args(["-S", &bytes.to_string(), flag, &port.to_string()]);
        run_on(&mut command, cpu)?;
        Ok(command)
    };
    let mut client = command(cpus.0, "-P")?;
    client.arg("127.0.0.1");
    let text = run_pair(command(cpus.1, "-B")?, client, port)?;
    let us = parse_pingpong(&text).with_context(|| format!("fi_pingpong said {text:?}"))?;
    Ok(us * 1e3)
}

/// Starts the server, waits until it listens, and returns what the client prints.
fn run_pair(server: Command, client: Command, port: u16) -> Result<String> {
    let mut server = Guard::start(server, false)?;
    wait_for_listener(&mut server, port, PATIENCE)?;
    let output = Guard::start(client, true)?.output(PATIENCE)?;
    ensure!(output.status.success(), "{output}");
    Ok(output.text)
}

#[derive(Debug, PartialEq)]
struct UcxLine {
    latency_us: f64,
    messages_per_second: f64,
}

/// The last line of `ucx_perftest -f`: iterations, latency (50 %, average, overall), bandwidth (2), rate (2).
fn parse_ucx(text: &str) -> Option<UcxLine> {
    text.lines().rev().find_map(|line| {
        let words: Vec<f64> = line
            .trim_start_matches("Final:")
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        match words[..] {
            [_, _, _, latency_us, _, _, _, messages_per_second] => Some(UcxLine { latency_us, messages_per_second }),
            _ => None,
        }
    })
}

/// `usec/xfer` of the last line of `fi_pingpong`: bytes, sent, acknowledged, total, time, MB/sec, usec/xfer,
/// Mxfers/sec.
fn parse_pingpong(text: &str) -> Option<f64> {
    let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
    let words: Vec<&str> = last.split_whitespace().collect();
    match words[..] {
        [_, _, _, _, _, _, us, _] => us.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_output() {
        let text =
            "| Test | # iterations |\nFinal:    300000   0.656   0.693   0.700   11.00   12.00   1442125   1442126\n";
        let line = parse_ucx(text).unwrap();
        assert_eq!(line, UcxLine { latency_us: 0.7, messages_per_second: 1_442_126.0 });
        assert_eq!(parse_ucx("nothing"), None);
    }

    #[test]
    fn pingpong_output() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n8       100k    =100k    1.5m        0.08s     19.05       0.42       2.38\n";
        assert_eq!(parse_pingpong(text), Some(0.42));
        assert_eq!(parse_pingpong(""), None);
    }
}

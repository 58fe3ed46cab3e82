//! System calls per message, counted by strace from outside.
//!
//! Two runs with different numbers of messages are compared, so start-up and end do not count. The tracer slows each
//! system call but nothing else: a path without system calls runs at its own speed, which is the case to be shown.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::conductor::{Launcher, Pair, Tracer};
use crate::process::find;
use crate::transport::Transport;
use crate::worker::args::{Program, Role, WorkerArgs};

/// System calls of both ends per message, for ping-pong, ping-pong through epoll, and 64 B sends.
pub fn measure(launcher: &Launcher, cpus: Option<(usize, usize)>, column: Transport) -> Result<[f64; 3]> {
    let strace = find("strace").context("strace is not installed")?;
    // Only the accelerated path is quick under the tracer.
    let many = match column {
        Transport::Beeline => 1_000_000,
        Transport::Tcp | Transport::Unix => 2_000,
    };
    let mut figures = [0.0; 3];
    let programs = [Program::Pingpong, Program::PingpongEpoll, Program::Stream];
    for (figure, program) in figures.iter_mut().zip(programs) {
        let count = |messages| total(launcher, cpus, column, fixed(program, messages), &strace);
        let (few, more) = (many / 10, many);
        let (low, high) = (count(few)?, count(more)?);
        // A round trip is two messages.
        let each_way = if program == Program::Stream { 1 } else { 2 };
        *figure = high.saturating_sub(low) as f64 / (each_way * (more - few)) as f64;
    }
    Ok(figures)
}

/// The fixed-size runs under the tracer.
fn fixed(program: Program, messages: u64) -> WorkerArgs {
    WorkerArgs {
        role: Role::Server,
        messages: Some(messages),
        message_bytes: if program == Program::Stream { 64 } else { 8 },
        ..WorkerArgs::new(program)
    }
}

fn total(
    launcher: &Launcher,
    cpus: Option<(usize, usize)>,
    column: Transport,
    args: WorkerArgs,
    strace: &Path,
) -> Result<u64> {
    let directory = tempfile::tempdir()?;
    let (at_client, at_server) = (directory.path().join("c"), directory.path().join("s"));
    let start = |args: &WorkerArgs, summary: &PathBuf| {
        let tracer = Tracer { strace, summary };
        let mut worker = launcher.start(column, args, Some(&tracer))?;
        worker.set_patience(Duration::from_secs(60));
        anyhow::Ok(worker)
    };
    let server_args = WorkerArgs { cpu: cpus.map(|c| c.1), ..args.clone() };
    let mut server = start(&server_args, &at_server)?;
    let client_args = WorkerArgs { role: Role::Client, cpu: cpus.map(|c| c.0), address: Some(server.ready()?), ..args };
    let client = start(&client_args, &at_client)?;
    Pair { client, server }.finish()?;
    let calls = |path: &PathBuf| -> Result<u64> {
        parse_summary(&fs::read_to_string(path).context("strace wrote no summary")?)
    };
    Ok(calls(&at_client)? + calls(&at_server)?)
}

/// The sum of the calls in `strace -c -U name,calls` output.
fn parse_summary(text: &str) -> Result<u64> {
    let mut sum = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, count] = words[..]
            && name != "total"
            && let Ok(count) = count.parse::<u64>()
        {
            sum = Some(sum.unwrap_or(0) + count);
        }
    }
    match sum {
        Some(sum) => Ok(sum),
        None => bail!("the summary of strace holds no calls"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_added_up_without_its_total() {
        let text = "\
syscall              calls
---------------- ---------
sendto                 200
recvfrom               201
---------------- ---------
total                  401
";
        assert_eq!(parse_summary(text).unwrap(), 401);
        assert!(parse_summary("").is_err());
    }
}

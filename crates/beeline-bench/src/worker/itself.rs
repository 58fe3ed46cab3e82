//! What a worker does with itself, and how it connects, as its arguments want it.

use std::net::TcpStream;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;

use super::args::WorkerArgs;
use crate::socket;

/// A connection to the server, as the arguments want it.
pub fn open(args: &WorkerArgs, address: &str) -> Result<TcpStream> {
    match args.buffer_bytes {
        None => socket::connect(address),
        Some(bytes) => socket::connect_with_buffers(address, bytes),
    }
}

/// CPU time of this process, or of its children that have ended.
pub fn cpu_seconds(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Moves a client that has connected to where it is to be measured.
pub fn move_on(args: &WorkerArgs) -> Result<()> {
    match (args.begin_cpu, args.cpu) {
        (Some(_), Some(cpu)) => pin(cpu),
        _ => Ok(()),
    }
}

/// A thousand connections need more than the usual soft limit of 1,024 leaves; servers raise it like this.
pub fn raise_fd_limit() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(65_536);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(())
}

pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

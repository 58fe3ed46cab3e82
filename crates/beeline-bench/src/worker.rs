//! A worker: one end of one workload, in a process of its own.
//!
//! The worker is an ordinary socket program. It knows TCP and AF_UNIX and nothing of Beeline; for the Beeline column
//! the conductor starts the TCP program with `LD_PRELOAD`. It talks to the conductor with lines: one JSON [`Event`] a
//! line on standard output, an empty line on standard input for "go on".

mod connect;
mod crowd;
mod echo;
mod load;
mod pingpong;
mod stream;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::acceleration::Carried;
use crate::args::{Program, Role, WorkerArgs};
use crate::socket::{self, Listener};

/// What a worker tells the conductor.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A server listens here.
    Ready { address: String },
    /// A point has been reached; the worker waits for a line.
    At { point: String },
    /// What was measured. The last event.
    Result(Outcome),
}

/// Figures of one worker.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Named figures.
    pub values: BTreeMap<String, f64>,
    /// The pieces that the main figure is the median or mean of.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// What the library's statistics said at the end; added by the conductor, or told by a worker of another host.
    #[serde(default)]
    pub carried: Carried,
}

impl Outcome {
    pub fn of(name: &str, value: f64, samples: Vec<f64>) -> Self {
        Outcome { values: BTreeMap::from([(name.to_owned(), value)]), samples, carried: Carried::default() }
    }
}

/// Runs the worker to its end.
pub fn run(args: &WorkerArgs) -> Result<()> {
    // Also when a tracer stands between the conductor and this process.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    raise_fd_limit()?;
    if let Some(cpu) = args.begin_cpu.or(args.cpu) {
        pin(cpu)?;
    }
    let before = cpu_seconds(UsageWho::RUSAGE_SELF)?;
    let mut outcome = match args.role {
        _ if args.program == Program::Load => load::drive(args)?,
        Role::Server => serve(args)?,
        Role::Client => drive(args)?,
    };
    outcome.values.insert("cpu_seconds".into(), cpu_seconds(UsageWho::RUSAGE_SELF)? - before);
    if args.tell_carried {
        outcome.carried = match args.role {
            Role::Client => Carried::of_client(Pid::this()),
            Role::Server => Carried::of_server(Pid::this()),
        };
    }
    tell(&Event::Result(outcome))?;
    // The library's statistics are looked at before the process ends.
    wait_for_word().map(|_| ())
}

fn serve(args: &WorkerArgs) -> Result<Outcome> {
    let listener = Listener::bind(args.transport, args.listen)?;
    if let Some(bytes) = args.buffer_bytes {
        listener.set_buffers(bytes)?;
    }
    listener.look()?;
    tell(&Event::Ready { address: listener.address()? })?;
    match args.program {
        Program::Pingpong => pingpong::serve(args, &listener),
        Program::Stream => stream::serve(args, &listener),
        Program::Duplex => stream::serve_duplex(args, &listener),
        Program::Connect => connect::serve(args, &listener),
        Program::PingpongEpoll | Program::Crowd | Program::Busy | Program::Idle => echo::serve(args, &listener),
        Program::Load => bail!("it talks to nobody"),
    }
}

fn drive(args: &WorkerArgs) -> Result<Outcome> {
    let address = args.address.as_deref().context("a client needs --address")?;
    match args.program {
        Program::Pingpong => pingpong::drive(args, address),
        Program::PingpongEpoll => pingpong::drive_epoll(args, address),
        Program::Stream => stream::drive(args, address),
        Program::Duplex => stream::drive_duplex(args, address),
        Program::Connect => connect::drive(args, address),
        Program::Crowd => crowd::drive(args, address),
        Program::Busy => crowd::drive_busy(args, address),
        Program::Idle => crowd::drive_idle(args, address),
        Program::Load => bail!("it talks to nobody"),
    }
}

/// Says one line to the conductor.
pub(crate) fn tell(event: &Event) -> Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Reports a point and waits until the conductor says to go on.
fn pause(point: &str) -> Result<()> {
    tell(&Event::At { point: point.to_owned() })?;
    if !wait_for_word()? {
        bail!("the conductor is gone");
    }
    Ok(())
}

/// A connection to the server, as the arguments want it.
fn open(args: &WorkerArgs, address: &str) -> Result<TcpStream> {
    match args.buffer_bytes {
        None => socket::connect(address),
        Some(bytes) => socket::connect_with_buffers(address, bytes),
    }
}

/// CPU time of this process, or of its children that have ended.
pub(crate) fn cpu_seconds(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// What reading the clock adds to each latency that is timed by itself.
pub(crate) fn own_cost_ns() -> Result<f64> {
    let args = WorkerArgs { duration_ms: 20, ..WorkerArgs::new(Program::Pingpong) };
    let outcome = pingpong::measure_each(&args, || Ok(()))?;
    outcome.values.get("mean_ns").copied().context("nothing was measured")
}

/// Moves a client that has connected to where it is to be measured.
fn move_on(args: &WorkerArgs) -> Result<()> {
    match (args.begin_cpu, args.cpu) {
        (Some(_), Some(cpu)) => pin(cpu),
        _ => Ok(()),
    }
}

/// Waits for a line from the conductor. `false` when it has closed the pipe.
pub(crate) fn wait_for_word() -> Result<bool> {
    let mut line = String::new();
    Ok(std::io::stdin().lock().read_line(&mut line)? > 0)
}

/// A thousand connections need more than the usual soft limit of 1,024 leaves; servers raise it like this.
pub(crate) fn raise_fd_limit() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(65_536);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(())
}

pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instrument_knows_its_own_cost() {
        let cost = own_cost_ns().unwrap();
        assert!(cost > 0.0 && cost.is_finite(), "{cost}");
    }

    #[test]
    fn events_survive_the_pipe() {
        let events = [
            Event::Ready { address: "127.0.0.1:1".into() },
            Event::At { point: "idle".into() },
            Event::Result(Outcome::of("ns", 12.5, vec![1.0])),
        ];
        for event in events {
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }
}

//! A worker: one end of one workload, in a process of its own.
//!
//! The worker is an ordinary socket program. It knows TCP and AF_UNIX and nothing of Beeline; for the Beeline column
//! the conductor starts the TCP program with `LD_PRELOAD`. It talks to the conductor with lines: one JSON
//! [`events::Event`] a line on standard output, an empty line on standard input for "go on".

pub mod args;
mod connect;
mod crowd;
mod echo;
pub mod events;
pub mod itself;
mod load;
mod pingpong;
mod stream;
pub mod times;
pub mod turned;

use anyhow::{Context, Result, bail};
use nix::sys::resource::UsageWho;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::acceleration::Carried;
use crate::socket::Listener;
use args::{Program, Role, WorkerArgs};
use events::{Event, Outcome, tell, wait_for_word};
use itself::{cpu_seconds, pin, raise_fd_limit};

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
        Program::Turned => turned::serve(args, &listener),
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
        Program::Turned => turned::drive(args, address),
        Program::Connect => connect::drive(args, address),
        Program::Crowd => crowd::drive(args, address),
        Program::Busy => crowd::drive_busy(args, address),
        Program::Idle => crowd::drive_idle(args, address),
        Program::Load => bail!("it talks to nobody"),
    }
}

/// A sample is a round trip, a latency half of one.
pub const SAMPLE_TRIPS: f64 = 2.0;
/// The instrument's own cost is the median of so many measurements: a CPU that was idle is slow in the first of them.
const OWN_COST_MEASUREMENTS: usize = 9;

/// What reading the clock adds to each latency that is timed by itself.
pub fn own_cost_ns() -> Result<f64> {
    let costs: Vec<f64> = (0..OWN_COST_MEASUREMENTS).map(|_| own_cost_once_ns()).collect::<Result<_>>()?;
    crate::stats::median(&costs).context("nothing was measured")
}

/// Times trips of nothing.
fn own_cost_once_ns() -> Result<f64> {
    let args = WorkerArgs { duration_ms: 20, ..WorkerArgs::new(Program::Pingpong) };
    let outcome = pingpong::measure_each(&args, || Ok(()))?;
    outcome.values.get("mean_ns").copied().context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticks::Ticks;

    #[test]
    fn the_instrument_knows_its_own_cost() {
        let cost = own_cost_ns().unwrap();
        assert!(cost > 0.0 && cost.is_finite(), "{cost}");
    }

    /// What is not the clock's in a sample is less than half of it: a ratio, as one processor's counter takes 8 ns to
    /// read and another's 17. Where there is no counter, or nothing is optimised, it is what it is, and told below each
    /// report's tables.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "a figure of optimised code")]
    fn a_sample_costs_less_than_twice_its_reading_of_the_clock() {
        /// Pairs of measurements: what others do on the machine is in some of them, never in all.
        const TRIES: u32 = 200;
        let ticks = Ticks::new();
        if !ticks.has_counter() {
            return;
        }
        let (mut sample, mut reading) = (f64::MAX, f64::MAX);
        for _ in 0..TRIES {
            reading = reading.min(ticks.reading_ns());
            sample = sample.min(SAMPLE_TRIPS * own_cost_once_ns().unwrap());
            if sample < 2.0 * reading {
                return;
            }
        }
        panic!("{sample} ns, of which {reading} are the clock's");
    }
}

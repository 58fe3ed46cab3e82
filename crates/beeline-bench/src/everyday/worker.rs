//! One process of the everyday matrix: a server, a client, or a busy loop. An ordinary program, which the conductor
//! starts with the library for the Beeline column, and talks to as to every worker.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::UsageWho;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::cell::{Style, Work, word};
use super::{client, server};
use crate::worker::events::{Event, Outcome, tell, wait_for_word};
use crate::worker::itself::{self, raise_fd_limit};

/// Which part of a cell the process plays.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Answers until it is told to end
    Server,
    /// Asks, and measures
    Client,
    /// Uses a CPU until it is told to end
    Hog,
    /// The same, only while nobody else wants that CPU
    Waker,
}

/// The command line of such a process.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct EverydayArgs {
    #[arg(long)]
    pub part: Part,
    /// The CPUs that it may use
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<usize>,
    #[arg(long, default_value = "threads")]
    pub style: Style,
    #[arg(long, default_value = "pingpong")]
    pub work: Work,
    /// Where the server listens
    #[arg(long)]
    pub address: Option<SocketAddrV4>,
    #[arg(long, default_value_t = 100)]
    pub duration_ms: u64,
}

impl EverydayArgs {
    /// The arguments that parse back into `self`.
    pub fn to_args(&self) -> Vec<OsString> {
        let cpus: Vec<String> = self.cpus.iter().map(ToString::to_string).collect();
        let mut words = vec![
            "everyday-worker".to_owned(),
            format!("--part={}", word(self.part)),
            format!("--cpus={}", cpus.join(",")),
            format!("--style={}", word(self.style)),
            format!("--work={}", word(self.work)),
            format!("--duration-ms={}", self.duration_ms),
        ];
        words.extend(self.address.map(|address| format!("--address={address}")));
        words.into_iter().map(OsString::from).collect()
    }

    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }
}

/// Runs the process to its end.
pub fn run(args: &EverydayArgs) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    raise_fd_limit()?;
    let mut set = CpuSet::new();
    for &cpu in &args.cpus {
        set.set(cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on CPUs {:?}", args.cpus))?;
    match args.part {
        Part::Server => serve(args),
        Part::Client => drive(args),
        Part::Hog => burn(),
        Part::Waker => {
            yield_to_everybody()?;
            burn()
        }
    }
}

/// Serves in this thread. Another one waits for the word to end, and tells what CPU time it took.
fn serve(args: &EverydayArgs) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let address = listener.local_addr()?.to_string();
    let before = cpu_seconds()?;
    std::thread::spawn(move || {
        let ended = wait_for_word().and_then(|_| {
            end_children();
            tell(&Event::Result(Outcome::of("cpu_seconds", cpu_seconds()? - before, Vec::new())))?;
            wait_for_word()
        });
        std::process::exit(i32::from(ended.is_err()));
    });
    tell(&Event::Ready { address })?;
    server::serve(args.style, listener, args.work.connections())
}

fn drive(args: &EverydayArgs) -> Result<()> {
    let address = args.address.context("a client needs --address")?;
    let before = cpu_seconds()?;
    let mut outcome = client::drive(args.work, address, args.duration())?;
    outcome.values.insert("cpu_seconds".into(), cpu_seconds()? - before);
    tell(&Event::Result(outcome))?;
    // The library's statistics are looked at before the process ends.
    wait_for_word().map(|_| ())
}

/// CPU time of this process and of its children that have ended.
fn cpu_seconds() -> Result<f64> {
    Ok(itself::cpu_seconds(UsageWho::RUSAGE_SELF)? + itself::cpu_seconds(UsageWho::RUSAGE_CHILDREN)?)
}

/// Ends the processes of a server that forks, and waits for them, so that their time is counted.
fn end_children() {
    let Ok(children) = std::fs::read_to_string(format!("/proc/self/task/{}/children", Pid::this())) else { return };
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw) {
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(pid, None);
    }
}

/// From now on this process runs where nobody else wants to.
fn yield_to_everybody() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is live and only read.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    nix::errno::Errno::result(result).context("sched_setscheduler")?;
    Ok(())
}

/// Uses its CPU until it is told to end.
fn burn() -> Result<()> {
    std::thread::spawn(|| {
        let _ = wait_for_word();
        std::process::exit(0);
    });
    tell(&Event::At { point: "burning".into() })?;
    loop {
        std::hint::spin_loop();
    }
}

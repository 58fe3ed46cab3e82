//! A server and a client of one connection, each a process of its own that `beeline run` has started: what happens to
//! the programs of whoever asks.
//!
//! 1. The server polls its listener before it says its port, so that the door stands when the client comes.
//! 2. The client says how long a round trip took in the middle, and waits to be let go, so that its statistics can be
//!    read.
//! 3. Both end with the one who started them, whatever becomes of it: the client when its standard input ends, and the
//!    server when that or its client does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use beeline_stats::Reason;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cli::{DoctorArgs, Selection};
use crate::stat::absent::Absence;
use crate::stat::bridge::Bridge;
use crate::stat::collect::{Collected, SHARED_MEMORY};
use crate::stat::process::Process;

/// How long either has to say what it is asked for.
const PATIENCE: Duration = Duration::from_secs(10);
const ROUND_TRIPS: usize = 2_000;
const MESSAGE: [u8; 8] = *b"8 bytes!";
/// What the server's part is called; the client's is its port.
const SERVE: &str = "serve";

/// How a trial ended.
pub struct Outcome {
    /// Of one round trip, in the middle.
    pub median: Duration,
    pub lane: Lane,
}

/// Whether the connection of a trial was a lane.
#[derive(Debug, PartialEq, Eq)]
pub enum Lane {
    Stood,
    /// The name of the reason, where there is one, and a sentence.
    Missing(Option<&'static str>, String),
    /// The client has no statistics: a sentence, and what to do.
    NotKnown(String, Option<&'static str>),
}

/// Makes a trial, with the caller's own options and these.
pub fn make(arguments: &DoctorArgs, options: &[&str]) -> anyhow::Result<Outcome> {
    let mut server = Part::start(arguments, options, SERVE)?;
    let port = server.says().context("the server")?;
    let mut client = Part::start(arguments, options, &port)?;
    let median = client.says().context("the client")?;
    let median = Duration::from_nanos(median.parse().with_context(|| format!("the client said {median:?}"))?);
    Ok(Outcome { median, lane: lane_of(client.child.id(), server.child.id()) })
}

/// Whether the connection of a client to a server is a lane, or why not.
fn lane_of(client: u32, server: u32) -> Lane {
    let find = |pid| Collected::of(Path::new(SHARED_MEMORY), Bridge::left_out(), &Selection::Pid(pid), true);
    let found = match find(client) {
        Ok(found) => found,
        Err(error) => return Lane::NotKnown(format!("{error:#}"), None),
    };
    let Some(of_client) = found.processes.first() else { return without_statistics(client, &Absence::of(client)) };
    let of_server = find(server).ok().and_then(|mut found| found.processes.pop());
    judged(&Counts::of(of_client), of_server.as_ref().map(Counts::of).as_ref())
}

fn without_statistics(pid: u32, absence: &Absence) -> Lane {
    match absence {
        Absence::NotLoaded => Lane::Missing(None, absence.sentence(pid)),
        Absence::Silent(Some(obstacle)) if let Some(reason) = obstacle.reason() => {
            missing(reason.name(), reason.sentence())
        }
        _ => Lane::NotKnown(absence.sentence(pid), absence.remedy()),
    }
}

fn missing(name: &'static str, sentence: &str) -> Lane {
    Lane::Missing(Some(name), sentence.into())
}

/// What counts of a process's statistics: names of reasons with their sentences.
struct Counts {
    accelerated: u64,
    stopped: Option<(&'static str, &'static str)>,
    reasons: Vec<(&'static str, &'static str)>,
}

impl Counts {
    fn of(process: &Process) -> Self {
        Self {
            accelerated: process.accelerated,
            stopped: process.stopped.as_ref().map(|stop| (stop.name, stop.sentence)),
            reasons: process.reasons.iter().map(|cause| (cause.name, cause.sentence)).collect(),
        }
    }

    /// Why it takes part in no lane, if it is the reason: not what its other end lacks.
    fn own_reason(&self) -> Option<(&'static str, &'static str)> {
        let follows = [Reason::NoDoor.name(), Reason::CameOverTcp.name()];
        self.stopped.or_else(|| self.reasons.iter().find(|(name, _)| !follows.contains(name)).copied())
    }
}

fn judged(client: &Counts, server: Option<&Counts>) -> Lane {
    if client.accelerated > 0 {
        return Lane::Stood;
    }
    // That there is no door has a reason of its own: the server's, or what holds for both.
    let others = || client.reasons.first().copied().or(client.stopped);
    let reason = match client.reasons.first() {
        Some((name, _)) if *name == Reason::NoDoor.name() => {
            server.and_then(Counts::own_reason).or(client.stopped).or_else(others)
        }
        _ => others(),
    };
    match reason {
        Some((name, sentence)) => missing(name, sentence),
        None => Lane::Missing(None, "The client counted no connection.".into()),
    }
}

/// One of the two. It is ended and waited for when this is dropped.
struct Part {
    child: Child,
    words: BufReader<ChildStdout>,
}

impl Part {
    fn start(arguments: &DoctorArgs, options: &[&str], part: &str) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this executable")?;
        let mut command = Command::new(&program);
        command.args(["run", "--quiet"]);
        if let Some(library) = &arguments.library {
            command.arg("--library").arg(library);
        }
        options.iter().for_each(|option| {
            command.args(["--option", option]);
        });
        let mut part_option = OsString::from("--part=");
        part_option.push(part);
        command.arg("--").arg(&program).arg("doctor").arg(part_option);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start a program")?;
        let words = BufReader::new(child.stdout.take().context("it has no output")?);
        Ok(Self { child, words })
    }

    /// The next line that it says.
    fn says(&mut self) -> anyhow::Result<String> {
        let mut fds = [PollFd::new(self.words.get_ref().as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, patience)? == 0 {
            bail!("said nothing in {} seconds", PATIENCE.as_secs());
        }
        let mut line = String::new();
        self.words.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => bail!("ended without a word"),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the two processes do.
pub fn play(part: &str) -> anyhow::Result<()> {
    if part == SERVE {
        return serve();
    }
    ask(part.parse().context("a part is `serve`, or a port")?)
}

fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)?;
    say(&listener.local_addr()?.port().to_string())?;
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE)?;
    if fds[0].any() != Some(true) {
        // Whoever started it is gone, and no client comes.
        return Ok(());
    }
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut message = MESSAGE;
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

fn ask(port: u16) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let mut answer = [0; MESSAGE.len()];
        let since = Instant::now();
        stream.write_all(&MESSAGE)?;
        stream.read_exact(&mut answer)?;
        times.push(since.elapsed());
        if answer != MESSAGE {
            bail!("another message came back than was sent");
        }
    }
    times.sort_unstable();
    say(&times[ROUND_TRIPS / 2].as_nanos().to_string())?;
    // Until this is read no more, or whoever started it is gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::absent::Obstacle;

    fn of(accelerated: u64, stopped: Option<Reason>, reasons: &[Reason]) -> Counts {
        let pair = |reason: Reason| (reason.name(), reason.sentence());
        Counts { accelerated, stopped: stopped.map(pair), reasons: reasons.iter().copied().map(pair).collect() }
    }

    fn name(lane: &Lane) -> &str {
        match lane {
            Lane::Missing(Some(name), _) => name,
            _ => "",
        }
    }

    #[test]
    fn that_there_is_no_door_has_a_reason_of_the_servers() {
        let client = of(0, None, &[Reason::NoDoor]);
        let server = |stopped, reasons: &[Reason]| of(0, stopped, reasons);
        let came = [Reason::CameOverTcp];
        let of_server = |server: &Counts| name(&judged(&client, Some(server))).to_owned();
        assert_eq!(of_server(&server(Some(Reason::AddressSpaceLimited), &came)), "address_space_limited");
        assert_eq!(of_server(&server(None, &[came[0], Reason::MemoryLocked])), "memory_locked");
        assert_eq!(of_server(&server(None, &came)), "no_door");
        assert_eq!(name(&judged(&client, None)), "no_door");
        let limited = of(0, Some(Reason::AddressSpaceLimited), &[Reason::NoDoor]);
        assert_eq!(name(&judged(&limited, Some(&server(None, &came)))), "address_space_limited");
    }

    #[test]
    fn other_reasons_are_the_clients_own() {
        let server = of(0, Some(Reason::AddressSpaceLimited), &[]);
        assert_eq!(judged(&of(1, None, &[Reason::NoDoor]), Some(&server)), Lane::Stood);
        assert_eq!(name(&judged(&of(0, None, &[Reason::PolicyStrict]), Some(&server))), "policy_strict");
        assert_eq!(name(&judged(&of(0, Some(Reason::Disabled), &[]), None)), "disabled");
        assert_eq!(name(&judged(&of(0, None, &[]), None)), "");
    }

    #[test]
    fn without_statistics_nothing_is_known_but_where_it_says_that_there_is_no_lane() {
        let silent = |obstacle| without_statistics(7, &Absence::Silent(obstacle));
        assert!(matches!(silent(Some(Obstacle::ReadOnly)), Lane::NotKnown(_, Some(_))));
        assert!(matches!(silent(None), Lane::NotKnown(_, None)));
        assert_eq!(name(&silent(Some(Obstacle::Disabled))), "disabled");
        assert_eq!(name(&silent(Some(Obstacle::FileSizeLimited))), "file_size_limited");
        assert!(matches!(without_statistics(7, &Absence::NotLoaded), Lane::Missing(None, _)));
    }
}

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
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cli::{DoctorArgs, Selection};
use crate::stat::absent;
use crate::stat::collect::{Collected, SHARED_MEMORY};

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
    /// `Err`: the name of the reason, where there is one, and a sentence.
    pub lane: Result<(), (Option<&'static str>, String)>,
}

/// Makes a trial, with the caller's own options and these.
pub fn make(arguments: &DoctorArgs, options: &[&str]) -> anyhow::Result<Outcome> {
    let mut server = Part::start(arguments, options, SERVE)?;
    let port = server.says().context("the server")?;
    let mut client = Part::start(arguments, options, &port)?;
    let median = client.says().context("the client")?;
    let median = Duration::from_nanos(median.parse().with_context(|| format!("the client said {median:?}"))?);
    Ok(Outcome { median, lane: lane_of(client.child.id()) })
}

/// Whether the connection of a client is a lane, or why not.
fn lane_of(pid: u32) -> Result<(), (Option<&'static str>, String)> {
    // A bridge has no part in it.
    let found = Collected::of(Path::new(SHARED_MEMORY), Path::new("/"), &Selection::Pid(pid), true);
    let found = found.map_err(|error| (None, format!("{error:#}")))?;
    let Some(process) = found.processes.first() else { return Err((None, absent::sentence(pid).trim_end().into())) };
    match (process.accelerated, process.reasons.first(), &process.stopped) {
        (1.., _, _) => Ok(()),
        (0, Some(cause), _) => Err((Some(cause.name), cause.sentence.into())),
        (0, None, Some(stop)) => Err((Some(stop.name), stop.sentence.into())),
        (0, None, None) => Err((None, "The client counted no connection.".into())),
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

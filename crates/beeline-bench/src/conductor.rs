//! Starts workers, follows what they report, and gets rid of them whatever happens.
//!
//! A worker dies with the conductor: the kernel kills it (`PR_SET_PDEATHSIG`) when the thread that started it ends, so
//! workers are started from the main thread only. A worker that stops reporting is killed after a time limit, and the
//! failure becomes a line of the report instead of a hang.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use beeline_stats::tunables::ENVIRONMENT;
use nix::unistd::Pid;

use crate::acceleration::Carried;
use crate::hosts::Hosts;
use crate::process::die_with_parent;
use crate::transport::Transport;
use crate::worker::args::{Role, WorkerArgs};
use crate::worker::events::{Event, Outcome};

const PRELOAD: &str = "LD_PRELOAD";
/// How long a worker that has closed its output has to end.
const LAST_MOMENTS: Duration = Duration::from_secs(2);

/// How this program is started again as a worker.
#[derive(Clone, Debug)]
pub struct Launcher {
    program: PathBuf,
    /// The words before `worker`: `bench` when mounted in the CLI.
    prefix: Vec<String>,
    /// What is preloaded for the Beeline column.
    library: Option<PathBuf>,
    /// BEELINE_OPTIONS for the Beeline column.
    options: Option<String>,
    /// Where workers are started, if not on this host.
    hosts: Option<Hosts>,
}

/// A tool that watches a worker's system calls.
pub struct Tracer<'a> {
    pub strace: &'a Path,
    pub summary: &'a Path,
}

impl Launcher {
    pub fn new(
        prefix: &[&str],
        library: Option<PathBuf>,
        options: Option<String>,
        hosts: Option<Hosts>,
    ) -> Result<Self> {
        Ok(Launcher {
            program: std::env::current_exe().context("cannot find this program's own file")?,
            prefix: prefix.iter().map(|&word| word.to_owned()).collect(),
            library,
            options,
            hosts,
        })
    }

    /// Starts a worker for a column of the report.
    pub fn start(&self, column: Transport, args: &WorkerArgs, tracer: Option<&Tracer>) -> Result<Worker> {
        let mut args = args.clone();
        // The Beeline column is the TCP program.
        args.transport = match column {
            Transport::Unix => Transport::Unix,
            Transport::Tcp | Transport::Beeline => Transport::Tcp,
        };
        let name = format!("{:?} {:?} over {column}", args.program, args.role).to_lowercase();
        if let Some(hosts) = &self.hosts {
            let mut command = hosts.worker(column, &mut args, self.options.as_deref());
            // On this host `beeline run` would add them.
            command.env_remove(ENVIRONMENT);
            let account = if args.role == Role::Client { Account::Told(column) } else { Account::Unasked };
            let mut worker = Worker::start(command, name, account)?;
            worker.patience = hosts.patience() + 4 * args.duration();
            return Ok(worker);
        }
        let command = self.command(column, args.to_args(), tracer)?;
        let account = Account::of(column, args.role == Role::Client && tracer.is_none());
        let mut worker = Worker::start(command, name, account)?;
        worker.patience += 4 * args.duration();
        Ok(worker)
    }

    /// Starts this program with other words than a worker's, on this host.
    pub fn start_program(
        &self,
        column: Transport,
        words: Vec<OsString>,
        name: String,
        is_client: bool,
    ) -> Result<Worker> {
        Worker::start(self.command(column, words, None)?, name, Account::of(column, is_client))
    }

    /// The command of a worker on this host. What is preloaded is its column's affair alone, and so are options: those
    /// that whoever starts the instrument has exported would change the figures, and no record would say so.
    fn command(&self, column: Transport, words: Vec<OsString>, tracer: Option<&Tracer>) -> Result<Command> {
        let environment = self.environment(column)?;
        let mut command = match tracer {
            None => Command::new(&self.program),
            Some(tracer) => {
                let mut command = Command::new(tracer.strace);
                command.args(["-f", "-c", "-U", "name,calls", "-o"]);
                command.arg(tracer.summary);
                for (name, value) in &environment {
                    command.arg("-E").arg(format!("{name}={value}"));
                }
                command.arg("--").arg(&self.program);
                command
            }
        };
        command.args(&self.prefix).args(words).env_remove(PRELOAD).env_remove(ENVIRONMENT);
        if tracer.is_none() {
            command.envs(environment);
        }
        Ok(command)
    }

    /// What a worker of a column has in its environment.
    fn environment(&self, column: Transport) -> Result<Vec<(&'static str, String)>> {
        let mut environment = Vec::new();
        if column == Transport::Beeline {
            let library = self.library.as_ref().context("there is no libbeeline.so")?;
            environment.push((PRELOAD, library.display().to_string()));
            if let Some(options) = &self.options {
                environment.push((ENVIRONMENT, options.clone()));
            }
        }
        Ok(environment)
    }

    /// Runs the two ends of a workload: the server first, then a client that is told its address. The CPUs are the
    /// client's and the server's.
    pub fn pair(&self, column: Transport, args: &WorkerArgs, cpus: [Option<usize>; 2]) -> Result<Pair> {
        let server_args = WorkerArgs { role: Role::Server, cpu: cpus[1], begin_cpu: None, ..args.clone() };
        let mut server = self.start(column, &server_args, None)?;
        let client_args =
            WorkerArgs { role: Role::Client, cpu: cpus[0], address: Some(server.ready()?), ..args.clone() };
        let client = self.start(column, &client_args, None)?;
        Ok(Pair { client, server })
    }
}

/// Two workers that talk to each other.
pub struct Pair {
    pub client: Worker,
    pub server: Worker,
}

impl Pair {
    /// Waits for the results of both.
    pub fn finish(mut self) -> Result<(Outcome, Outcome)> {
        let client = self.client.result();
        // The client's error is the cause when it fails; the server then only misses it.
        let client = client.map_err(|e| match self.server.failure() {
            Some(server) => anyhow!("{e}; {server}"),
            None => e,
        })?;
        Ok((client, self.server.result()?))
    }
}

/// Who tells what carried a worker's connections.
enum Account {
    /// Nobody: it is no client, has no library loaded, or is hidden behind a tracer.
    Unasked,
    /// The library's statistics on this host.
    Statistics,
    /// The worker, a client of another host's server: what it tells must confirm its column.
    Told(Transport),
}

impl Account {
    /// That of a worker on this host: `is_client` if the process that is started is the client itself, and no tracer.
    fn of(column: Transport, is_client: bool) -> Self {
        if column == Transport::Beeline && is_client { Account::Statistics } else { Account::Unasked }
    }
}

/// A worker process. Killed and collected when dropped.
pub struct Worker {
    name: String,
    account: Account,
    child: Child,
    /// Closed to let the worker end.
    input: Option<ChildStdin>,
    events: Receiver<Event>,
    complaint: Receiver<String>,
    patience: Duration,
}

impl Worker {
    fn start(mut command: Command, name: String, account: Account) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let input = Some(child.stdin.take().context("no pipe")?);
        let output = child.stdout.take().context("no pipe")?;
        let mut errors = child.stderr.take().context("no pipe")?;
        let (event_out, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
                // Lines that are no events are not ours: a tool in between may talk.
                if let Ok(event) = serde_json::from_str(&line)
                    && event_out.send(event).is_err()
                {
                    break;
                }
            }
        });
        let (complaint_out, complaint) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            let _ = complaint_out.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        Ok(Worker {
            name,
            account,
            child,
            input,
            events,
            complaint,
            // Samples without an event in between are well below this, unless a user asks for longer ones.
            patience: Duration::from_secs(10),
        })
    }

    /// Allows more time between two events.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The same, on top of what there is.
    pub fn add_patience(&mut self, more: Duration) {
        self.patience += more;
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The address of a server, once it listens.
    pub fn ready(&mut self) -> Result<String> {
        match self.event()? {
            Event::Ready { address } => Ok(address),
            other => bail!("{}: {other:?} instead of an address", self.name),
        }
    }

    /// Waits until the worker has reached a point.
    pub fn reach(&mut self, wanted: &str) -> Result<()> {
        match self.event()? {
            Event::At { point } if point == wanted => Ok(()),
            other => bail!("{}: {other:?} instead of {wanted}", self.name),
        }
    }

    /// Lets the worker go on from the point it reached.
    pub fn go_on(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("the worker was let go")?;
        input.write_all(b"\n").with_context(|| format!("{} is gone", self.name))
    }

    /// The last event, what the library's statistics say then, and the end of the process.
    pub fn result(&mut self) -> Result<Outcome> {
        let mut outcome = match self.event()? {
            Event::Result(outcome) => outcome,
            other => bail!("{}: {other:?} instead of a result", self.name),
        };
        match self.account {
            Account::Unasked => outcome.carried = Carried::default(),
            Account::Statistics => outcome.carried = Carried::of_client(self.pid()),
            Account::Told(column) => {
                outcome.carried.between_hosts(column)?;
                if column != Transport::Beeline {
                    outcome.carried = Carried::default();
                }
            }
        }
        drop(self.input.take());
        // Standard error ends with the process: waiting for it is waiting for the end, with a limit.
        let complaint = match self.complaint.recv_timeout(self.patience) {
            Err(RecvTimeoutError::Timeout) => bail!("{} does not end", self.name),
            received => received.unwrap_or_default(),
        };
        let status = self.child.wait()?;
        if !status.success() {
            bail!("after its result, {}", self.describe_end(&status.to_string(), &complaint));
        }
        Ok(outcome)
    }

    /// What went wrong if the worker has ended by itself with an error.
    pub fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        (!status.success()).then(|| self.explain_end())
    }

    fn event(&mut self) -> Result<Event> {
        match self.events.recv_timeout(self.patience) {
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} said nothing for {} s", self.name, self.patience.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{}", self.explain_end()),
        }
    }

    /// Why a worker has ended that should not have. It has closed its output; if it goes on nevertheless, it is killed.
    fn explain_end(&mut self) -> String {
        let deadline = Instant::now() + LAST_MOMENTS;
        let complaint = self.complaint.recv_timeout(LAST_MOMENTS);
        // A process that ends closes its pipes first: on a busy machine it can be seen in between.
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                status => break status,
            }
        };
        let status = match status {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => {
                let _ = self.child.kill();
                "it closed its output and went on".to_owned()
            }
            Err(e) => e.to_string(),
        };
        self.describe_end(&status, &complaint.unwrap_or_default())
    }

    fn describe_end(&self, status: &str, complaint: &str) -> String {
        match complaint.lines().rev().find(|l| !l.trim().is_empty()) {
            Some(line) => format!("{}: {} ({status})", self.name, line.trim()),
            None => format!("{}: {status}", self.name),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn options_are_those_of_the_run_whatever_is_exported() {
        for (options, column, expected) in [
            (None, Transport::Tcp, None),
            (None, Transport::Beeline, None),
            (Some("wait=wait"), Transport::Tcp, None),
            (Some("wait=wait"), Transport::Beeline, Some("wait=wait")),
        ] {
            let launcher = Launcher {
                program: "program".into(),
                prefix: Vec::new(),
                library: Some("/libbeeline.so".into()),
                options: options.map(str::to_owned),
                hosts: None,
            };
            let command = launcher.command(column, Vec::new(), None).unwrap();
            let of = |name: &str| command.get_envs().find(|(key, _)| *key == name).map(|(_, value)| value);
            // What is there without a value is taken away.
            assert_eq!(of(ENVIRONMENT), Some(expected.map(OsStr::new)), "{options:?} {column}");
            let library = (column == Transport::Beeline).then(|| OsStr::new("/libbeeline.so"));
            assert_eq!(of(PRELOAD), Some(library), "{column}");
        }
    }

    #[test]
    fn a_worker_that_fails_tells_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no luck' >&2; exit 3"]);
        let mut worker = Worker::start(command, "tester".into(), Account::Unasked).unwrap();
        let error = worker.result().unwrap_err().to_string();
        assert!(error.contains("tester: no luck"), "{error}");
        assert!(error.contains('3'), "{error}");
    }

    #[test]
    fn a_worker_that_closes_its_output_and_stays_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec >&-; exec sleep 600"]);
        let mut worker = Worker::start(command, "sleeper".into(), Account::Unasked).unwrap();
        let error = worker.result().unwrap_err().to_string();
        assert!(error.contains("went on"), "{error}");
    }

    #[test]
    fn a_silent_worker_is_given_up() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let mut worker = Worker::start(command, "sleeper".into(), Account::Unasked).unwrap();
        worker.set_patience(Duration::from_millis(20));
        let error = worker.result().unwrap_err().to_string();
        assert!(error.contains("said nothing"), "{error}");
    }

    #[test]
    fn strange_lines_are_passed_over() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"echo hello; echo '{"event":"ready","address":"a:1"}'; read x; echo '{"event":"result","values":{}}'"#,
        ]);
        let mut worker = Worker::start(command, "talker".into(), Account::Unasked).unwrap();
        assert_eq!(worker.ready().unwrap(), "a:1");
        worker.go_on().unwrap();
        assert_eq!(worker.result().unwrap(), Outcome::default());
    }
}

//! Processes of other programs: started so that they end with this one, watched with a time limit.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

const GLANCE: Duration = Duration::from_millis(5);
/// For what is still in the pipes of a process that has ended.
const LEFT_OVERS: Duration = Duration::from_secs(2);

/// Fails in a process that has Beeline's library in it, as in a shell under `beeline run`: whatever it starts has it,
/// too, and every comparison would be one of Beeline with itself.
pub fn ensure_without_library() -> Result<()> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    ensure!(
        !beeline_stats::library::is_mapped(&maps),
        "this runs under Beeline, and TCP's side of the comparison would, too: start it outside of `beeline run`"
    );
    Ok(())
}

/// Makes the kernel kill the command when the thread that starts it dies.
pub fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let set = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above.
        if getppid() != parent {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// Lets the command run on one CPU only.
pub fn run_on(command: &mut Command, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
    let pin = move || Ok(sched_setaffinity(Pid::from_raw(0), &set)?);
    // SAFETY: the closure runs between fork and exec; it makes one system call and allocates nothing.
    unsafe { command.pre_exec(pin) };
    Ok(())
}

/// A process that ends when this value goes.
pub struct Guard {
    child: Child,
    name: String,
}

impl Guard {
    /// Starts a command that has nothing to read. What it writes can be had by [`Guard::output`], or goes nowhere.
    pub fn start(mut command: Command, keep_output: bool) -> Result<Guard> {
        let target = || match keep_output {
            true => Stdio::piped(),
            false => Stdio::null(),
        };
        command.stdin(Stdio::null());
        command.stdout(target()).stderr(target());
        command.env_remove("LD_PRELOAD");
        die_with_parent(&mut command);
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Guard { child, name })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits for the end of the process and returns what it printed.
    pub fn output(mut self, patience: Duration) -> Result<Output> {
        // Read beside the waiting: a full pipe would keep the process from ending.
        let text = read_beside(self.child.stdout.take().context("no pipe")?);
        let complaint = read_beside(self.child.stderr.take().context("no pipe")?);
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {} s", self.name, patience.as_secs());
            }
            std::thread::sleep(GLANCE);
        };
        // What it has left running, as ssh may, can hold the pipes open for ever.
        let text = text.recv_timeout(LEFT_OVERS);
        let text = text.with_context(|| format!("{} has ended, but something holds its output", self.name))?;
        Ok(Output { text, complaint: complaint.recv_timeout(LEFT_OVERS).unwrap_or_default(), status })
    }

    /// Fails when the process has ended.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended with {status}", self.name),
            None => Ok(()),
        }
    }

    /// Asks the process to end, so that it can tidy up after itself.
    pub fn end(mut self) {
        let _ = kill(self.pid(), Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(GLANCE);
        }
    }
}

fn read_beside(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (text_out, text) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = text_out.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    text
}

/// What a process has left behind. Displayed: the last thing it said, and how it ended.
pub struct Output {
    pub text: String,
    pub complaint: String,
    pub status: ExitStatus,
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut lines = self.text.lines().chain(self.complaint.lines());
        match lines.rfind(|line| !line.trim().is_empty()) {
            Some(line) => write!(f, "{} ({})", line.trim(), self.status),
            None => write!(f, "{}", self.status),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until some socket listens on the port, without connecting: some servers serve one client only.
pub fn wait_for_listener(server: &mut Guard, port: u16, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_listening(port) {
        server.still_runs()?;
        if Instant::now() > deadline {
            bail!("{} does not listen on port {port}", server.name);
        }
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| listens(line, port))
    })
}

/// Whether a line of /proc/net/tcp is a listener (state 0A) on the port.
fn listens(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let (local, state) = (words.next(), words.nth(1));
    let hex_port = local.and_then(|l| l.rsplit(':').next());
    state == Some("0A") && hex_port.is_some_and(|p| u16::from_str_radix(p, 16) == Ok(port))
}

/// Looks for a program in PATH.
pub fn find(program: impl AsRef<OsStr>) -> Option<std::path::PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program.as_ref()))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_lines() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert!(listens(line, 0x1F90));
        assert!(!listens(line, 80));
        assert!(!listens(&line.replace(" 0A ", " 01 "), 0x1F90));
    }

    #[test]
    fn an_own_listener_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        // A program that another test is starting holds a copy until it is executed.
        let is_gone = |_| {
            std::thread::sleep(Duration::from_millis(20));
            !is_listening(port)
        };
        assert!((0..250).any(is_gone));
    }

    #[test]
    fn output_larger_than_a_pipe_comes_whole() {
        let mut command = Command::new("head");
        command.args(["-c", "300000", "/dev/zero"]);
        let guard = Guard::start(command, true).unwrap();
        let output = guard.output(Duration::from_secs(20)).unwrap();
        assert_eq!(output.text.len(), 300_000);
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; sleep 20 >/dev/null & exit 0"]);
        let output = Guard::start(command, true).unwrap().output(Duration::from_secs(20)).unwrap();
        assert_eq!((output.text.as_str(), output.complaint.as_str()), ("one\n", ""));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 20 & exit 0"]);
        let error = Guard::start(command, true).unwrap().output(Duration::from_secs(20)).err().unwrap();
        assert!(error.to_string().contains("holds its output"), "{error}");
    }

    #[test]
    fn a_failing_program_is_described() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 4"]);
        let guard = Guard::start(command, true).unwrap();
        let output = guard.output(Duration::from_secs(20)).unwrap();
        assert_eq!(output.to_string(), "two (exit status: 4)");
    }
}

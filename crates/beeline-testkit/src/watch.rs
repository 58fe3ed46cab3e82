//! Children with a deadline.
//!
//! A test child gets a process group of its own. When its deadline passes, or when it ends and leaves members behind,
//! the whole group is killed: nothing that a test starts outlives it. Only groups made here are ever signalled. When
//! the test itself is killed, the kernel kills its children after it ([`die_with_parent`]).

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Has the kernel kill the child of `command` when the thread that starts it ends, by whatever way.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and takes integers here.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// How a watched child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exit(i32),
    Signal(i32),
    Deadline,
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// A child at the head of its own process group; killed with its group when dropped.
#[derive(Debug)]
pub struct Group {
    child: Child,
    reaped: bool,
}

impl Group {
    /// Starts `command` in a new process group.
    ///
    /// # Errors
    /// The error of `fork` or `exec`.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        die_with_parent(command);
        Ok(Self { child: command.process_group(0).spawn()?, reaped: false })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipes that the command asked for. (The child itself stays private: whoever reaped it would free the id of
    /// the group.)
    pub fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// Sends `signal` to the child alone.
    pub fn signal(&self, signal: i32) {
        let id = libc::pid_t::try_from(self.child.id()).unwrap_or(0);
        if id > 1 && !self.reaped {
            // SAFETY: kill takes two integers; the child is not reaped, so the id is its own.
            unsafe { libc::kill(id, signal) };
        }
    }

    /// Waits until the child ends or `limit` has passed, then kills what is left of the group.
    ///
    /// # Errors
    /// The error of `waitpid`.
    pub fn finish(mut self, limit: Duration) -> io::Result<Ending> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_micros(200);
        while !self.has_ended()? {
            if Instant::now() >= deadline {
                return Ok(Ending::Deadline);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        // The unreaped child still holds the group's id, so this cannot hit a stranger.
        self.kill();
        self.reaped = true;
        Ok(self.child.wait()?.into())
    }

    /// Whether the child has ended, without reaping it.
    fn has_ended(&self) -> io::Result<bool> {
        // SAFETY: siginfo_t is plain data for which zeroes are a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is valid for writing; the other arguments are integers.
        let result = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut info, options) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.si_signo != 0)
    }

    fn kill(&self) {
        let group = libc::pid_t::try_from(self.child.id()).unwrap_or(0);
        if group > 1 {
            // SAFETY: kill takes two integers.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

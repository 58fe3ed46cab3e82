//! Commands with a pipe (popen(3)), which are started one at a time.
//!
//! An end of a pipe is inherited by every program unless it is closed there by name. So whoever starts a command has to
//! know the ends that the process has, from when it writes them down to when the command runs, and in between none may
//! be made inheritable, or get another file: libc holds a lock of its own likewise, as long as it spawns the command.
//!
//! The program's handlers do not run meanwhile, so that one that starts a command does not meet its own thread here.

use crate::changing;
use crate::lock::{Guard, Lock};

#[unsafe(link_section = ".fork")]
static COMMANDS: Lock = Lock::new();

/// Keeps others from starting commands for as long as the result lives, and from forgetting pipes. None to wait for
/// where the thread forks: a handler of the program's for that, which runs in the middle of our own change, may find
/// somebody here who waits for the change.
#[must_use]
pub fn one_command() -> Option<Guard<'static>> {
    if changing::is_changing() { COMMANDS.try_lock() } else { Some(COMMANDS.lock()) }
}

/// In the child of a `fork`.
pub(super) fn reset_after_fork() {
    COMMANDS.reset();
}

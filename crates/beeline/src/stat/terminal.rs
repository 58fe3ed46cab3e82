//! The keyboard, while something is shown again and again.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;

const CONTROL_D: u8 = 4;
/// In place of a key: there is none (`_POSIX_VDISABLE`, termios(3)).
const NO_KEY: libc::cc_t = 0;

/// What ends a program that does not ask for it: Ctrl-C and Ctrl-\, whoever sends one (`timeout`, a session's end), and
/// a panic.
const ENDS: [libc::c_int; 5] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGABRT, libc::SIGTERM];

/// The terminal as it was, for a handler of signals.
static BEFORE: OnceLock<libc::termios> = OnceLock::new();

/// A terminal that gives each key at once and does not show it, until this is dropped, or a signal ends the program.
/// Ctrl-C is such a signal, as keys are not read while the program looks, which may take seconds. Ctrl-Z does nothing:
/// the shell would get a terminal that shows no keys.
pub struct Keys {
    before: Termios,
}

impl Keys {
    /// `None` where there is nobody to press a key.
    pub fn watch() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() || !std::io::stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        if let Some(key) = raw.control_chars.get_mut(SpecialCharacterIndices::VSUSP as usize) {
            *key = NO_KEY;
        }
        // Before there is anything to set back.
        if BEFORE.set(before.clone().into()).is_ok() {
            ENDS.into_iter().for_each(handle);
        }
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).ok()?;
        Some(Self { before })
    }

    /// Waits for so long; whether somebody wants it to end meanwhile.
    pub fn end_within(&self, interval: Duration) -> bool {
        let stdin = std::io::stdin();
        let since = Instant::now();
        while let Some(left) = interval.checked_sub(since.elapsed()) {
            let timeout = PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, timeout).is_ok_and(|count| count == 0) {
                continue;
            }
            let mut keys = [0; 64];
            match read(&stdin, &mut keys) {
                // The terminal is gone.
                Ok(0) | Err(nix::errno::Errno::EIO) => return true,
                Ok(count) if ends(keys.get(..count).unwrap_or_default()) => return true,
                _ => {}
            }
        }
        false
    }
}

fn ends(keys: &[u8]) -> bool {
    keys.iter().any(|key| matches!(*key, b'q' | b'Q' | CONTROL_D))
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Lets a signal set the terminal back before it ends the program; not one that the program was started to ignore.
fn handle(signal: libc::c_int) {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; the pointer is to a whole sigaction.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    if asked != 0 || action.sa_sigaction != libc::SIG_DFL {
        return;
    }
    action.sa_sigaction = set_back as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESETHAND;
    // SAFETY: a live set, which is filled; a whole action, whose handler makes only calls that a handler may make.
    unsafe {
        // SIGTTOU among them, which would stop a program that touches its terminal from the background.
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn set_back(signal: libc::c_int) {
    // SAFETY: plain numbers; whole terminal settings. Each of these calls may be made by a handler (signal-safety(7)).
    unsafe {
        // While this program is not in the foreground the terminal is a shell's, or another program's. No group is that
        // of a terminal that controls nobody.
        let foreground = libc::tcgetpgrp(libc::STDIN_FILENO);
        if let Some(before) = BEFORE.get()
            && (foreground < 0 || foreground == libc::getpgrp())
        {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, before);
        }
        // It has its own effect again, as soon as this handler returns.
        libc::raise(signal);
    }
}

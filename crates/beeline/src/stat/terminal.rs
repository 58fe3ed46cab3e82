//! The keyboard, while something is shown again and again.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;

const CONTROL_C: u8 = 3;
const CONTROL_D: u8 = 4;

/// A terminal that gives each key at once and does not show it, until this is dropped. Ctrl-C is a key like others, so
/// that the terminal is set back after it, too.
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
        raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
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
    keys.iter().any(|key| matches!(*key, b'q' | b'Q' | CONTROL_C | CONTROL_D))
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

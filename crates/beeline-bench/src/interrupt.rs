//! Signals that ask a run to end. It ends after the sample that is being taken, whose programs the terminal's signal
//! has ended, too; what was measured before is shown and saved. Asked a second time, a run on one host ends at once.
//! One between two hosts does not: it changes settings of their bridges, which must be set back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Between two looks of a pause.
const GLANCE: Duration = Duration::from_millis(50);

extern "C" fn note(_: c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// What a second signal does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Second {
    /// It ends the program, as it does without us.
    Ends,
    /// It is noted like the first.
    IsNoted,
}

/// From now on Ctrl-C and its like are noted. Programs that are started keep the ordinary meaning.
pub fn watch(second: Second) -> Result<()> {
    let mut flags = SaFlags::SA_RESTART;
    if second == Second::Ends {
        flags |= SaFlags::SA_RESETHAND;
    }
    let action = SigAction::new(SigHandler::Handler(note), flags, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a signal handler may do.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot watch for {signal}"))?;
    }
    Ok(())
}

/// Whether the end was asked for.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Sleeps for so long, or until the end is asked for.
pub fn pause(duration: Duration) {
    let since = Instant::now();
    while !asked()
        && let Some(left) = duration.checked_sub(since.elapsed())
    {
        std::thread::sleep(left.min(GLANCE));
    }
}

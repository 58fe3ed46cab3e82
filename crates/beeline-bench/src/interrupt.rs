//! Signals that ask a run to end. A run between two hosts changes settings of their bridges, which must be set back: so
//! it ends between two steps, and not in the middle of one.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on Ctrl-C and its like are noted. Programs that are started keep the ordinary meaning.
pub fn watch() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
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

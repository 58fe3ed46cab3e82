//! Random sequences of operations on a few connections, both ends in this process.
//!
//! 1. Everything is non-blocking and nothing waits, so a sequence is a pure function of its seed, provided that each
//!    operation has had its effect before the next begins. On kernel TCP that takes a moment: [`Model::settle`] waits
//!    for the effect that is due, by asking for it.
//! 2. The model knows just enough to say what is due: how much lies unread, who has shut or closed what, who was
//!    reset. What calls return is not predicted; that is what the two traces are compared for.
//! 3. No ring or socket buffer ever fills, because where fullness begins is no business of programs.
//! 4. Choices depend on the seed and the model only, never on results, so both runs make the same choices.

mod model;
mod steps;
pub mod story;

use crate::trace;
use model::Model;

/// Which calls take part in a sequence: fewer make a difference easier to understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Calls {
    /// Data, closing, duplicates, options, poll and select
    Data,
    /// Also epoll, level-triggered
    Level,
    /// Also edge-triggered and oneshot epoll
    All,
}

impl Calls {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Level => "level",
            Self::All => "all",
        }
    }
}

/// Runs the sequence of `seed`.
pub fn run(seed: u64, ops: usize, calls: Calls) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut model = Model::new(seed, calls);
    for step in 0..ops {
        model.step(step);
    }
    trace!("end");
    if model.vain > 0 {
        trace::write_note(format_args!("settling waited in vain {} times", model.vain));
    }
}

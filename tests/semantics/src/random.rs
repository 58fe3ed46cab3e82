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

use crate::trace;
use model::Model;

/// Runs the sequence of `seed`.
pub fn run(seed: u64, ops: usize) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let mut model = Model::new(seed);
    for step in 0..ops {
        model.step(step);
    }
    trace!("end");
    if model.vain > 0 {
        trace::write_note(format_args!("settling waited in vain {} times", model.vain));
    }
}

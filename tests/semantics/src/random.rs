//! Random sequences of operations on a few connections, both ends in this process.
//!
//! 1. Everything is non-blocking or known not to block, so a sequence is a pure function of its plan, provided that
//!    each operation has had its effect before the next begins. On kernel TCP that takes a moment: [`Model::settle`]
//!    waits until both ends are in the state that is due. That holds for wake-ups, too: edge-triggered sets count
//!    those.
//! 2. The model knows just enough to say what is due: how much lies unread, who has shut or closed what, who was
//!    reset. What calls return is not predicted; that is what the two traces are compared for.
//! 3. No ring or socket buffer ever fills, because where fullness begins is no business of programs.
//! 4. Choices depend on the seed, the number of the operation and the model only, so both runs make the same choices,
//!    and so does a sequence out of which others were left.

mod bytes;
mod life;
mod model;
mod plan;
mod shrink;
mod steps;
mod watch;

pub use plan::{Calls, Plan};
pub use shrink::shrink;

use crate::trace;
use model::Model;

/// Runs a sequence.
pub fn run(plan: &Plan) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    crate::traced::ANY_ORDER.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut model = Model::new(plan.seed, plan.calls);
    for step in plan.steps() {
        model.step(step);
    }
    trace!("end");
    if model.vain > 0 {
        trace::write_note(format_args!("settling waited in vain {} times", model.vain));
    }
}

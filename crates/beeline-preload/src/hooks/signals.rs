//! Installing signal handlers.

use beeline_sockets::{Outcome, config, signals};
use libc::c_int;

use crate::real::{Function, fail, hooks};

/// Without acceleration nothing has to be known about signals.
fn wrapped(f: impl FnOnce() -> Outcome) -> Outcome {
    if !config().accelerate {
        return Outcome::Kernel;
    }
    resolve();
    f()
}

/// Tells the signal code where libc's `sigaction` is.
pub fn resolve() {
    if let Some(real) = reals::sigaction.get() {
        signals::set_real_sigaction(real);
    }
}

hooks! {
    fn sigaction | __sigaction: (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int [] =>
        wrapped(|| signals::sigaction(signal, new, old));

    fn signal | ssignal | bsd_signal: (signal: c_int, handler: usize) -> usize [] =>
        wrapped(|| signals::signal(signal, handler, signals::Style::Bsd));

    fn sysv_signal | __sysv_signal: (signal: c_int, handler: usize) -> usize [] =>
        wrapped(|| signals::signal(signal, handler, signals::Style::SystemV));

    fn sigset: (signal: c_int, handler: usize) -> usize [] => wrapped(|| signals::sigset(signal, handler));
}

// SAFETY: libc's function of this name has this type.
static SIGINTERRUPT: Function<unsafe extern "C" fn(c_int, c_int) -> c_int> = unsafe { Function::new(c"siginterrupt") };

/// siginterrupt(3): libc changes the kernel's registration under our hands, and we note what it did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let Some(siginterrupt) = SIGINTERRUPT.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: plain numbers.
    let result = unsafe { siginterrupt(signal, interrupts) };
    if result == 0 {
        signals::note_siginterrupt(signal, interrupts != 0);
    }
    result
}

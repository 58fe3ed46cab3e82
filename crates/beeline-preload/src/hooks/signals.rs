//! Installing signal handlers, and how threads are to be cancelled.

use beeline_sockets::{Outcome, cancel, config, signals};
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
    if let Some(real) = SET_CANCEL_TYPE.get() {
        cancel::set_real_set_type(real);
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

// SAFETY: libc's function of this name has this type.
static SET_CANCEL_TYPE: Function<cancel::RealSetType> = unsafe { Function::new(c"pthread_setcanceltype") };

/// pthread_setcanceltype(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    let Some(set) = SET_CANCEL_TYPE.get() else { return libc::ENOSYS };
    // SAFETY: the app's arguments, passed on.
    let result = unsafe { set(kind, old) };
    if result == 0 && config().accelerate {
        cancel::note_type(kind);
    }
    result
}

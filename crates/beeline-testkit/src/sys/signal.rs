//! Signals and timers.

use super::{Ret, call};

pub type Handler = extern "C" fn(i32);

/// `sigaction` with a handler and flags (`SA_RESTART` or 0).
pub fn sigaction(signal: i32, handler: Handler, flags: i32) -> Ret {
    // SAFETY: sigaction is plain data for which zeroes are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the action is valid; handlers of the tests only store to atomics or make system calls.
    call(|| i64::from(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }))
}

/// Gives a signal its default action.
pub fn default_action(signal: i32) {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// `SIGALRM` after `first_ms`, then every `every_ms` (once when zero); both zero disarms.
pub fn alarm_ms(first_ms: i64, every_ms: i64) {
    let of = |ms: i64| libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let timer = libc::itimerval { it_interval: of(every_ms), it_value: of(first_ms) };
    // SAFETY: the value is valid, the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

/// A POSIX timer that sends `signal` every `every_ms`.
pub fn posix_timer_ms(signal: i32, every_ms: i64) {
    // SAFETY: sigevent is plain data for which zeroes are a valid value.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = signal;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    let period = super::timespec_of_ms(every_ms);
    let spec = libc::itimerspec { it_interval: period, it_value: period };
    // SAFETY: all pointers are valid; the timer lives until the process ends.
    unsafe {
        libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        libc::timer_settime(timer, 0, &raw const spec, std::ptr::null_mut());
    }
}

/// A set with these signals.
#[must_use]
pub fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset initialises it and the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Blocks or unblocks signals for this thread.
pub fn block_signals(signals: &[i32], block: bool) {
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let set = signal_set(signals);
    // SAFETY: the set is valid, the old one is not asked for.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}

/// The signals of `candidates` that are pending.
#[must_use]
pub fn pending_signals(candidates: &[i32]) -> Vec<i32> {
    // SAFETY: sigpending fills the set.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut set);
        set
    };
    // SAFETY: the set is valid and the numbers are signals.
    candidates.iter().copied().filter(|signal| unsafe { libc::sigismember(&raw const set, *signal) } == 1).collect()
}

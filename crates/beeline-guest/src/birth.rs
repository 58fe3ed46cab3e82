//! What it takes to make a process of ours beside the app: relays, and whoever closes what a stranger has sent.

use beeline_shm::sys::{self, call};

/// Whether children of dead processes become this process's.
#[must_use]
pub fn adopts_orphans() -> bool {
    let mut subreaper = 0i32;
    let args = [libc::PR_GET_CHILD_SUBREAPER as usize, (&raw mut subreaper) as usize, 0, 0, 0, 0];
    // SAFETY: room for an int.
    let _ = unsafe { call(libc::SYS_prctl, args) };
    subreaper != 0 || sys::getpid() == 1
}

/// Calls `f` with all signals blocked: no handler may run where the thread is not the app's, or is one of a copy.
pub fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    let all = u64::MAX;
    let mut before = 0u64;
    let change = |new: *const u64, old: *mut u64| {
        let args = [libc::SIG_SETMASK as usize, new as usize, old as usize, 8, 0, 0];
        // SAFETY: null or live kernel signal sets of 8 bytes.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
    };
    change(&raw const all, &raw mut before);
    let result = f();
    change(&raw const before, core::ptr::null_mut());
    result
}

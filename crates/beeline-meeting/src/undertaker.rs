//! Closing what may take as long as a stranger likes, in a process that nobody waits for.
//!
//! 1. The app makes a *midwife*, a copy of itself that has the very same descriptors, makes the *undertaker*, and ends,
//!    which closes nothing. The app sleeps until then (`CLONE_VFORK`). Neither reports its end by a signal, and wait(2)
//!    finds them only if asked for such children (`__WCLONE`). An app that orphans come to gets the undertaker for such
//!    a child.
//! 2. The undertaker gives back copies of all descriptors but those that are to be closed, and all memory but what it
//!    stands on, so that nothing of the app's lives on. The midwife waits for that, but not for long: a file of the
//!    app's may be one whose close takes its time. What is put aside for that reason ([`beeline_guest::aside`]) the
//!    undertaker keeps until it ends.
//! 3. The undertaker waits until the app has closed its own numbers. So it is the last one that has these files, and
//!    the kernel lets nobody but it wait. It may do so for ever, and not even SIGKILL ends it then.
//! 4. As with relays libc learns nothing, and all signals are blocked.
//! 5. Whose children are in another pid namespace has none: the first process there is one that may not end.

use core::sync::atomic::{
    AtomicI32, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_guest::birth::{adopts_orphans, with_signals_blocked};
use beeline_guest::{Errno, kernel, proc, shed};
use beeline_shm::sys::{self, call};

/// Descriptors that one of them closes.
pub(crate) const FDS_MAX: usize = 64;

const PAGE_BYTES: usize = 4096;
/// Bytes of the stack that midwife and undertaker keep on either side of where they stand.
const STACK_BYTES: usize = 64 * 1024;
/// How long an undertaker waits for the app: it may have been killed, or stopped by whoever may do that.
const PATIENCE_MS: u32 = 60_000;
/// How often the midwife looks whether the undertaker has given back what is the app's, after so long each time. Mostly
/// that takes a millisecond.
const SHED_LOOKS: u32 = 20_000;
const SHED_PAUSE_NS: i64 = 100_000;

/// What app, midwife and undertaker share, at the beginning of a page.
struct Shared {
    /// The undertaker, as its midwife tells.
    made: AtomicI32,
    /// Whether it has given back what is the app's.
    shed: AtomicU32,
    /// Whether the app has closed its numbers.
    closed: AtomicU32,
}

/// Undertakers that are children of this process.
static CHILDREN: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Closes descriptors elsewhere; here they are closed when this returns. They must be of files whose close does nothing
/// unless it is the last one: sockets. False if there is no undertaker that has them: then they are as they were.
#[cold]
pub(crate) fn bury(fds: &[i32]) -> bool {
    let Some(fds) = fds.get(..fds.len().min(FDS_MAX)).filter(|fds| !fds.is_empty()) else { return true };
    if !proc::forks_into_own_pid_namespace() {
        return false;
    }
    let Ok(page) = sys::map_shared_anonymous(PAGE_BYTES) else { return false };
    // SAFETY: a fresh page of zeroes, which makes valid atomics; it stays mapped as long as this is used.
    let shared = unsafe { &*page.cast::<Shared>() };
    let adopts = adopts_orphans();
    with_signals_blocked(|| make_midwife(fds, shared, adopts));
    let made = shared.made.load(Acquire);
    // One that has not come so far may have been killed: its copies would be no more.
    let has_them = made > 0 && shared.shed.load(Acquire) != 0;
    if has_them {
        for fd in fds {
            // In the child of a vfork none of them is hidden: what is said of numbers there is its parent's.
            if !beeline_guest::process::is_guest_of_parent() {
                beeline_guest::hidden::hidden_remove(*fd);
            }
            let _ = sys::close(*fd);
        }
        shared.closed.store(1, Release);
    }
    if made > 0 && adopts {
        remember(made);
    }
    // SAFETY: nobody here uses it any more.
    unsafe { sys::unmap(page, PAGE_BYTES) };
    has_them
}

/// Reaps the undertakers among this process's children that have ended, and remembers one more.
fn remember(undertaker: i32) {
    for place in &CHILDREN {
        let child = place.load(Relaxed);
        if child != 0 && reap(child, libc::WNOHANG) {
            let _ = place.compare_exchange(child, 0, Relaxed, Relaxed);
        }
    }
    let _ = CHILDREN.iter().find(|place| place.compare_exchange(0, undertaker, Relaxed, Relaxed).is_ok());
}

/// Whether this child of ours has ended, or is none.
fn reap(child: i32, flags: i32) -> bool {
    // SAFETY: no status is asked for.
    (unsafe { call(libc::SYS_wait4, [child as usize, 0, (libc::__WCLONE | flags) as usize, 0, 0, 0]) }) != Ok(0)
}

/// clone(2) of a copy of this process that reports its end by no signal.
fn copy(flags: i32) -> Option<i32> {
    // SAFETY: memory and descriptors are copies; the child goes on here as from fork(2), and never returns to the app.
    unsafe { call(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0]) }.ok().map(|pid| pid as i32)
}

fn make_midwife(fds: &[i32], shared: &Shared, adopts: bool) {
    let app = sys::getpid();
    match copy(libc::CLONE_VFORK | libc::CLONE_FILES) {
        Some(0) => midwife(fds, shared, adopts, app),
        Some(midwife) => {
            reap(midwife, 0);
        }
        None => {}
    }
}

fn midwife(fds: &[i32], shared: &Shared, adopts: bool, app: u32) -> ! {
    let made = copy(if adopts { libc::CLONE_PARENT } else { 0 });
    if made == Some(0) {
        undertaker(fds, shared, app);
    }
    shared.made.store(made.unwrap_or(-1), Release);
    if let Some(undertaker) = made {
        for _ in 0..SHED_LOOKS {
            if shared.shed.load(Acquire) != 0 || !adopts && reap(undertaker, libc::WNOHANG) {
                break;
            }
            kernel::sleep_ns(SHED_PAUSE_NS);
        }
    }
    end()
}

fn undertaker(fds: &[i32], shared: &Shared, app: u32) -> ! {
    // Negative numbers stand for none.
    let mut own = [-1; FDS_MAX];
    own.iter_mut().zip(fds).for_each(|(own, fd)| *own = *fd);
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_setsid, [0; 6]) };
    let name = c"beeline-close".as_ptr() as usize;
    // SAFETY: a NUL-terminated literal.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0]) };
    // SAFETY: a NUL-terminated literal. No file system of the app's stays busy.
    let _ = unsafe { call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) };
    shed::descriptors(&mut own);
    let stack = (core::ptr::from_ref(&own) as usize).saturating_sub(STACK_BYTES);
    shed::memory(&[(stack, 2 * STACK_BYTES), (core::ptr::from_ref(shared) as usize, PAGE_BYTES)]);
    shared.shed.store(1, Release);
    // SAFETY: signal 0 only asks. The app may have become somebody else's meanwhile.
    let app_lives = || unsafe { call(libc::SYS_kill, [app as usize, 0, 0, 0, 0, 0]) } != Err(Errno(libc::ESRCH));
    for _ in 0..PATIENCE_MS {
        if shared.closed.load(Acquire) != 0 || !app_lives() {
            break;
        }
        kernel::sleep_ms();
    }
    for fd in own.iter().filter(|fd| **fd >= 0) {
        let _ = sys::close(*fd);
    }
    end()
}

fn end() -> ! {
    loop {
        // SAFETY: ends this process, which has one thread.
        let _ = unsafe { call(libc::SYS_exit_group, [0; 6]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_buried_is_closed_by_somebody_else_and_no_child_is_left() {
        let (mut ours, buried) = UnixStream::pair().unwrap();
        let number = buried.as_raw_fd();
        assert!(bury(&[buried.into_raw_fd()]));
        // Nothing is open under that number, unless another test has it by now.
        ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "{number} is closed");
        // Another test may have a midwife at the moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let flags = (libc::__WCLONE | libc::WNOHANG) as usize;
        // SAFETY: no status is asked for.
        while unsafe { call(libc::SYS_wait4, [usize::MAX, 0, flags, 0, 0, 0]) } != Err(Errno(libc::ECHILD)) {
            assert!(std::time::Instant::now() < until, "a child is left");
            kernel::sleep_ms();
        }
    }
}

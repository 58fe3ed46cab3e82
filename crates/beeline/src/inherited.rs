//! What Rust's start-up changes in the process, undone before the program takes over.
//!
//! Before `main`, std ignores SIGPIPE and opens `/dev/null` on those of the descriptors 0 to 2 that are
//! closed. Both survive `exec`. A program under `beeline run` must see what it would have seen
//! without: a service manager that ignores SIGPIPE on purpose, a shell that closed stdin. So a function
//! in `.init_array`, which runs before std's own start-up, notes how things were.

use std::sync::atomic::{AtomicBool, Ordering};

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static WAS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn note() {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; the pointer is to a whole sigaction.
    if unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) } == 0 {
        SIGPIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    for (fd, closed) in (0..).zip(&WAS_CLOSED) {
        // SAFETY: no pointers are passed; a closed descriptor is an error code.
        closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0, Ordering::Relaxed);
    }
}

// SAFETY: the loader calls each pointer in `.init_array` once, before `main`, as a C function. The
// function touches nothing that start-up has yet to make: it allocates nothing and uses no std state.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Puts things back. Only a failing `exec` comes after this.
pub fn restore() {
    if !SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: SIG_DFL is a valid disposition, and no pointers are passed.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    for (fd, closed) in (0..).zip(&WAS_CLOSED) {
        // exec itself closes them, so that a failing exec leaves everything as std wants it.
        if closed.load(Ordering::Relaxed) {
            // SAFETY: no pointers are passed; the descriptor is std's replacement, whose owner is nobody.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

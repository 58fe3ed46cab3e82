//! `system` and `popen`: libc starts the shell behind every hook, with the environment as the program sees it. That is
//! without the library ([`beeline_sockets::life::environment`]), and to put the library there meanwhile would show it
//! to other threads, for as long as the command runs. So both are done here, as libc does them, by way of
//! `posix_spawn`.
//!
//! 1. `system` (system(3p)): SIGINT and SIGQUIT are ignored while any thread is in it, SIGCHLD is blocked for the
//!    thread, the command gets all three as they were. A thread that is cancelled in it kills the command.
//! 2. `popen`: the stream is one of libc's own on a pipe. [`OPENED`] remembers which process belongs to it. Ends of
//!    earlier pipes are closed in the command, for which commands are started one at a time ([`life::one_command`]).
//!    `pclose`, and `fclose` as in libc, wait for the process.
//! 3. A stream for which there is no place in [`OPENED`] is made by libc, and its command runs without the library. So
//!    are all where there is nothing to hand on, and nobody to free our locks in a child.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_sockets::lock::Lock;
use beeline_sockets::{cancel, life};
use libc::{FILE, c_int, pid_t};

use super::exec::{self, Text};
use crate::real::{fail, reals};

reals! {
    fn popen(command: Text, mode: Text) -> *mut FILE;
    fn pclose(stream: *mut FILE) -> c_int;
    fn fclose(stream: *mut FILE) -> c_int;
}

const SHELL: &CStr = c"/bin/sh";

/// Threads in `system`, and what SIGINT and SIGQUIT did before the first of them.
struct Ignoring {
    lock: Lock,
    threads: AtomicUsize,
    actions: [core::cell::UnsafeCell<MaybeUninit<libc::sigaction>>; 2],
}

// SAFETY: `actions` is used under `lock` alone.
unsafe impl Sync for Ignoring {}

static IGNORING: Ignoring = Ignoring {
    lock: Lock::new(),
    threads: AtomicUsize::new(0),
    actions: [const { core::cell::UnsafeCell::new(MaybeUninit::uninit()) }; 2],
};

const IGNORED: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

/// Ignores both signals. Returns which of them were not ignored.
fn ignore() -> [bool; 2] {
    let _guard = IGNORING.lock.lock();
    let first = IGNORING.threads.fetch_add(1, Relaxed) == 0;
    let mut handled = [false; 2];
    for ((signal, place), handled) in IGNORED.into_iter().zip(&IGNORING.actions).zip(&mut handled) {
        // SAFETY: the lock is held; all-zero is a valid action, and what the first thread has written one, too.
        unsafe {
            let place = (*place.get()).as_mut_ptr();
            if first {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = libc::SIG_IGN;
                place.write(core::mem::zeroed());
                libc::sigaction(signal, &raw const action, place);
            }
            *handled = (*place).sa_sigaction != libc::SIG_IGN;
        }
    }
    handled
}

fn heed_again() {
    let _guard = IGNORING.lock.lock();
    if IGNORING.threads.fetch_sub(1, Relaxed) == 1 {
        for (signal, place) in IGNORED.into_iter().zip(&IGNORING.actions) {
            // SAFETY: the lock is held, and the first thread has written it.
            unsafe { libc::sigaction(signal, (*place.get()).as_ptr(), core::ptr::null_mut()) };
        }
    }
}

fn wait(pid: pid_t) -> c_int {
    let mut status = 0;
    loop {
        // SAFETY: a live place for the status.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended == pid {
            return status;
        }
        // SAFETY: libc's per-thread errno.
        if ended != -1 || unsafe { *libc::__errno_location() } != libc::EINTR {
            return -1;
        }
    }
}

/// What is left to do when a thread is cancelled while its command runs.
fn cancelled(pid: &pid_t) {
    let pid = *pid;
    // SAFETY: plain numbers, and a live place for the old state.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        let mut old = 0;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old);
        wait(pid);
        pthread_setcancelstate(old, &raw mut old);
    }
    heed_again();
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn gnu_get_libc_version() -> Text;
}

/// Whether this libc ends the shell's options before the command: from 2.38 on it does.
fn ends_options() -> bool {
    // SAFETY: libc gives a string that lives for ever.
    let version = unsafe { CStr::from_ptr(gnu_get_libc_version()) }.to_bytes();
    let minor = version.split(|byte| *byte == b'.').nth(1).unwrap_or_default();
    minor.iter().fold(0u32, |number, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit.wrapping_sub(b'0'))))
        >= 38
}

/// Runs a command in the shell.
///
/// # Safety
/// `command` must be a string; the others as for posix_spawn(3).
unsafe fn spawn(pid: &mut pid_t, command: Text, actions: *const c_void, attributes: *const c_void) -> c_int {
    let mut arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command, core::ptr::null()];
    if !ends_options() {
        arguments = [c"sh".as_ptr(), c"-c".as_ptr(), command, core::ptr::null(), core::ptr::null()];
    }
    // SAFETY: the caller guarantees it; libc's own list of variables.
    unsafe { exec::posix_spawn(pid, SHELL.as_ptr(), actions, attributes, arguments.as_ptr(), exec::environ) }
}

/// system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: Text) -> c_int {
    // SAFETY: the app's string, or our own.
    unsafe {
        if command.is_null() {
            return c_int::from(run(c"exit 0".as_ptr()) == 0);
        }
        run(command)
    }
}

/// # Safety
/// `command` must be a string.
unsafe fn run(command: Text) -> c_int {
    let handled = ignore();
    // SAFETY: all-zero is a valid value of these plain C structs; libc's functions get live ones.
    unsafe {
        let (mut chld, mut mask, mut default): (libc::sigset_t, libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigemptyset(&raw mut chld);
        libc::sigaddset(&raw mut chld, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const chld, &raw mut mask);
        libc::sigemptyset(&raw mut default);
        for (signal, _) in IGNORED.into_iter().zip(handled).filter(|(_, handled)| *handled) {
            libc::sigaddset(&raw mut default, signal);
        }
        let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::uninit();
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        libc::posix_spawnattr_setsigmask(attributes.as_mut_ptr(), &raw const mask);
        libc::posix_spawnattr_setsigdefault(attributes.as_mut_ptr(), &raw const default);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(attributes.as_mut_ptr(), flags as _);
        let mut pid = 0;
        let failure = spawn(&mut pid, command, core::ptr::null(), attributes.as_ptr().cast());
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        // As if the shell had ended with 127, system(3p).
        let status = if failure == 0 { cancel::undoing(&pid, cancelled, || wait(pid)) } else { 127 << 8 };
        heed_again();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, core::ptr::null_mut());
        if failure != 0 {
            fail(failure);
        }
        status
    }
}

/// A stream of `popen`.
struct Opened {
    /// Null: this place is free. `CLAIMED`: it is being filled.
    stream: AtomicPtr<FILE>,
    pid: AtomicI32,
    fd: AtomicI32,
}

static OPENED: [Opened; 64] = [const {
    Opened { stream: AtomicPtr::new(core::ptr::null_mut()), pid: AtomicI32::new(0), fd: AtomicI32::new(-1) }
}; 64];

/// No stream is there.
const CLAIMED: *mut FILE = core::ptr::without_provenance_mut(1);

impl Opened {
    fn claim() -> Option<&'static Opened> {
        let free = core::ptr::null_mut();
        OPENED.iter().find(|place| place.stream.compare_exchange(free, CLAIMED, Acquire, Relaxed).is_ok())
    }

    fn free(&self) {
        self.fd.store(-1, Relaxed);
        self.stream.store(core::ptr::null_mut(), Release);
    }

    /// Which process belongs to a stream, which from now on is none of `popen`'s. What is still to be written to it may
    /// take its time: no command that others start meanwhile gets the pipe, though none is told of it any more.
    fn take(stream: *mut FILE) -> Option<pid_t> {
        let place = OPENED.iter().find(|place| place.stream.load(Acquire) == stream)?;
        let pid = place.pid.load(Relaxed);
        place.stream.compare_exchange(stream, CLAIMED, AcqRel, Relaxed).ok()?;
        let _guard = life::one_command();
        let own = place.fd.load(Relaxed);
        if own >= 0 {
            // SAFETY: plain numbers.
            unsafe { libc::fcntl(own, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        place.free();
        Some(pid)
    }
}

/// popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: Text, mode: Text) -> *mut FILE {
    // SAFETY: the app's string.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let has = |letter| letters.contains(&letter);
    if has(b'r') == has(b'w') || letters.iter().any(|letter| !b"rwe".contains(letter)) {
        fail(libc::EINVAL);
        return core::ptr::null_mut();
    }
    let Some(place) = life::frees_locks().then(Opened::claim).flatten() else {
        let Some(popen) = reals::popen.get() else {
            fail(libc::ENOSYS);
            return core::ptr::null_mut();
        };
        // SAFETY: the app's arguments, passed on.
        return unsafe { popen(command, mode) };
    };
    // SAFETY: the app's command.
    let stream = unsafe { open(place, command, has(b'r'), has(b'e')) };
    if stream.is_null() {
        place.free();
    } else {
        place.stream.store(stream, Release);
    }
    stream
}

/// Starts a command with a pipe. Null with errno set if that fails.
///
/// # Safety
/// `command` must be a string.
unsafe fn open(place: &Opened, command: Text, reads: bool, close_on_exec: bool) -> *mut FILE {
    let mut pipe = [-1; 2];
    // SAFETY: room for two descriptors; live structs for libc's functions; the descriptors are ours to close.
    unsafe {
        if libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return core::ptr::null_mut();
        }
        let (own, childs, to) = if reads { (pipe[0], pipe[1], 1) } else { (pipe[1], pipe[0], 0) };
        let stream = super::stdio::open_plain(own, if reads { c"r".as_ptr() } else { c"w".as_ptr() });
        if stream.is_null() {
            libc::close(own);
            libc::close(childs);
            return stream;
        }
        let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        // As it is now: a signal that comes while the lock is held is put off, and others are blocked until then.
        let mut mask: libc::sigset_t = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask);
        let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::uninit();
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        libc::posix_spawnattr_setsigmask(attributes.as_mut_ptr(), &raw const mask);
        libc::posix_spawnattr_setflags(attributes.as_mut_ptr(), libc::POSIX_SPAWN_SETSIGMASK as _);
        let guard = life::one_command();
        let mut failure = libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), childs, to);
        for earlier in OPENED.iter().map(|place| place.fd.load(Relaxed)).filter(|fd| *fd >= 0 && *fd != to) {
            failure |= libc::posix_spawn_file_actions_addclose(actions.as_mut_ptr(), earlier);
        }
        let mut pid = 0;
        if failure == 0 {
            failure = spawn(&mut pid, command, actions.as_ptr().cast(), attributes.as_ptr().cast());
        }
        if failure == 0 && !close_on_exec {
            libc::fcntl(own, libc::F_SETFD, 0);
            // What is closed on exec needs nobody to close it.
            place.fd.store(own, Relaxed);
        }
        drop(guard);
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        libc::close(childs);
        if failure != 0 {
            close(stream);
            fail(failure);
            return core::ptr::null_mut();
        }
        place.pid.store(pid, Relaxed);
        stream
    }
}

/// libc's fclose(3).
///
/// # Safety
/// As for fclose(3).
unsafe fn close(stream: *mut FILE) -> c_int {
    let Some(fclose) = reals::fclose.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: forwarded.
    unsafe { fclose(stream) }
}

/// Closes a stream and waits for the process that belongs to it.
///
/// # Safety
/// As for pclose(3).
unsafe fn close_opened(stream: *mut FILE, pid: pid_t) -> c_int {
    // SAFETY: forwarded. What could not be written does not matter to pclose(3).
    unsafe { close(stream) };
    wait(pid)
}

/// pclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    if let Some(pid) = Opened::take(stream) {
        // SAFETY: the app's stream.
        return unsafe { close_opened(stream, pid) };
    }
    let Some(pclose) = reals::pclose.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: the app's stream, passed on.
    unsafe { pclose(stream) }
}

/// fclose(3): libc lets it do for a stream of `popen` what `pclose` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the app's stream.
    unsafe {
        match Opened::take(stream) {
            Some(pid) => close_opened(stream, pid),
            None => close(stream),
        }
    }
}

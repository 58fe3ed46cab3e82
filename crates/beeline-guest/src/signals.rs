//! Signal handlers of the app: when they run, and how a call of ours learns that one has.
//!
//! Every handler that the app installs is wrapped: the kernel is given [`trampoline`], and the app's handler
//! stands in a table. An app that asks is told of its own handler. Synchronous faults (`SIGSEGV` and the
//! like) are not wrapped: they cannot be put off, and they are the app's own. `SIGABRT` is wrapped, as others send it
//! to programs that take too long; but that of abort(3) is not put off.
//!
//! 1. In a critical section the handler must not run. The trampoline sends the signal to its thread again,
//!    returns into the section with all signals blocked, and the end of the section restores the mask
//!    ([`thread`]): then the kernel delivers.
//! 2. Otherwise it counts the signal for a call that waits, and ends a sleep that is about to begin
//!    (see [`crate::thread`]), *before* it calls the handler, which may never return. The handler finds the thread
//!    as if it were in no sleep: it may sleep in calls of ours itself, or jump out.
//! 3. One word of the table holds handler and flags together, so that a delivery in another thread never
//!    pairs an old one with a new one.
//! 4. Changes are made in a section under one lock, so that the table and the kernel agree afterwards.
//!
//! The mask, `SA_NODEFER`, `SA_RESTART`, `SA_ONSTACK` are left to the kernel. `SA_RESETHAND` is done here:
//! the kernel would forget the handler when a delivery is merely put off.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use beeline_shm::sys::{self, call};
use beeline_stats::Counter;

use crate::lock::Lock;
use crate::thread::{self, Thread};
use crate::{Errno, Outcome, process, stats};

const SIGNALS: usize = 65;

/// Signals that a fault of the program raises in itself.
const SYNCHRONOUS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

// A table entry: the handler's address with flags in bits that no user address has.
const SIGINFO: u64 = 1 << 63;
const RESTART: u64 = 1 << 62;
const RESETHAND: u64 = 1 << 61;
const ADDRESS: u64 = RESETHAND - 1;

static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
/// Signals for which siginterrupt(3) asked that calls be interrupted; `signal` heeds it.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".fork")]
static LOCK: Lock = Lock::new();

/// libc's `sigaction`.
pub type RealSigaction = unsafe extern "C" fn(i32, *const libc::sigaction, *mut libc::sigaction) -> i32;

static REAL: AtomicUsize = AtomicUsize::new(0);

/// Says where libc's own `sigaction` is, which adds the return trampoline that the kernel wants.
pub fn set_real_sigaction(real: RealSigaction) {
    REAL.store(real as usize, Release);
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

/// Calls libc's `sigaction`.
///
/// # Safety
/// As for sigaction(2).
unsafe fn real(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> Result<(), Errno> {
    let real = REAL.load(Acquire);
    if real == 0 {
        return Err(Errno(libc::ENOSYS));
    }
    // SAFETY: stored by `set_real_sigaction` from a function of this type.
    let real: RealSigaction = unsafe { core::mem::transmute(real) };
    // SAFETY: the pointers are valid for sigaction(2), as the caller guarantees. libc's errno is this thread's own; the
    // app's value is put back.
    unsafe {
        let errno = __errno_location();
        let kept = *errno;
        let result = real(signal, new, old);
        let failed = *errno;
        *errno = kept;
        if result == 0 { Ok(()) } else { Err(Errno(failed)) }
    }
}

fn entry(signal: i32) -> Option<&'static AtomicU64> {
    HANDLERS.get(usize::try_from(signal).ok()?)
}

fn is_wrapped_kind(signal: i32) -> bool {
    (1..SIGNALS as i32).contains(&signal) && !SYNCHRONOUS.contains(&signal)
}

fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

fn trampoline_address() -> usize {
    trampoline as unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize
}

fn pack(action: &libc::sigaction) -> u64 {
    let mut packed = action.sa_sigaction as u64 & ADDRESS;
    for (flag, bit) in [(libc::SA_SIGINFO, SIGINFO), (libc::SA_RESTART, RESTART), (libc::SA_RESETHAND, RESETHAND)] {
        if action.sa_flags & flag != 0 {
            packed |= bit;
        }
    }
    packed
}

/// Turns what the kernel says into what the app has installed.
fn unwrap_action(signal: i32, action: &mut libc::sigaction, packed: u64) {
    if action.sa_sigaction != trampoline_address() || !is_wrapped_kind(signal) {
        return;
    }
    action.sa_sigaction = (packed & ADDRESS) as usize;
    action.sa_flags &= !(libc::SA_SIGINFO | libc::SA_RESETHAND);
    if packed & SIGINFO != 0 {
        action.sa_flags |= libc::SA_SIGINFO;
    }
    if packed & RESETHAND != 0 {
        action.sa_flags |= libc::SA_RESETHAND;
    }
}

/// `sigaction(2)`.
///
/// # Safety
/// `new` and `old` must be null or valid, as for sigaction(2).
pub unsafe fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> Outcome {
    let Some(entry) = entry(signal).filter(|_| is_wrapped_kind(signal)) else { return Outcome::Kernel };
    if REAL.load(Acquire) == 0 {
        return Outcome::Kernel;
    }
    if process::is_sealed() || process::is_guest_of_parent() {
        // Sealed, nothing of ours is interrupted any more. In the child of a `vfork` the dispositions are this
        // process's own, and the table is the parent's.
        // SAFETY: forwarded.
        let result = unsafe { real(signal, new, old) };
        if result.is_ok() && !old.is_null() {
            // SAFETY: valid, as the caller guarantees.
            unwrap_action(signal, unsafe { &mut *old }, entry.load(SeqCst));
        }
        return finish(result);
    }
    let _guard = LOCK.lock();
    let before = entry.load(SeqCst);
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut was: libc::sigaction = unsafe { core::mem::zeroed() };
    let result = if new.is_null() {
        // SAFETY: live or null pointers.
        unsafe { real(signal, core::ptr::null(), &raw mut was) }
    } else {
        // SAFETY: valid, as the caller guarantees.
        let wanted = unsafe { new.read() };
        let mut given = wanted;
        if is_handler(wanted.sa_sigaction) {
            given.sa_sigaction = trampoline_address();
            given.sa_flags = (given.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
            // Before the kernel learns of it: a delivery under the old registration may run the new
            // handler, never an old one under the new registration.
            entry.store(pack(&wanted), SeqCst);
        }
        // SAFETY: live pointers.
        let result = unsafe { real(signal, &raw const given, &raw mut was) };
        if result.is_err() {
            entry.store(before, SeqCst);
        }
        result
    };
    if result.is_ok() && !old.is_null() {
        unwrap_action(signal, &mut was, before);
        // SAFETY: valid, as the caller guarantees.
        unsafe { old.write(was) };
    }
    finish(result)
}

fn finish(result: Result<(), Errno>) -> Outcome {
    match result {
        Ok(()) => Outcome::OK,
        Err(errno) => Outcome::Fail(errno),
    }
}

/// The ways of installing a handler without `struct sigaction`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `signal` as BSD has it: the signal is blocked in its handler, calls restart.
    Bsd,
    /// `sysv_signal`: once, unblocked, calls are interrupted.
    SystemV,
}

/// `signal(2)`, `bsd_signal(3)`, `sysv_signal(3)`. The value is the old handler.
#[must_use]
pub fn signal(signal: i32, handler: usize, style: Style) -> Outcome {
    if handler == libc::SIG_ERR || !(1..SIGNALS as i32).contains(&signal) {
        return Outcome::fail(libc::EINVAL);
    }
    if !is_wrapped_kind(signal) {
        return Outcome::Kernel;
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    match style {
        Style::Bsd => {
            // SAFETY: a live set and a valid number.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
            if INTERRUPTING.load(Relaxed) & bit(signal) == 0 {
                action.sa_flags = libc::SA_RESTART;
            }
        }
        Style::SystemV => action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT,
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: live structs.
    match unsafe { sigaction(signal, &raw const action, &raw mut old) } {
        Outcome::Done(_) => Outcome::Done(old.sa_sigaction as isize),
        outcome => outcome,
    }
}

/// A flag without meaning in today's kernels, which libc's `sysv_signal` sets (bits/sigaction.h).
const SA_INTERRUPT: i32 = 0x2000_0000;
/// `sigset`'s disposition and answer "blocked" (signal.h).
const SIG_HOLD: usize = 2;

fn bit(signal: i32) -> u64 {
    1u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0)
}

/// `sigset(3)`. The value is the old handler, or `SIG_HOLD` if the signal was blocked.
#[must_use]
pub fn sigset(signal: i32, handler: usize) -> Outcome {
    if !is_wrapped_kind(signal) || handler == libc::SIG_ERR {
        return Outcome::Kernel;
    }
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    let (new, how) =
        if handler == SIG_HOLD { (core::ptr::null(), libc::SIG_BLOCK) } else { (&raw const action, libc::SIG_UNBLOCK) };
    // SAFETY: live structs or null.
    match unsafe { sigaction(signal, new, &raw mut old) } {
        Outcome::Done(_) => {}
        outcome => return outcome,
    }
    match thread::change_mask(how, bit(signal)) {
        Ok(mask) if mask & bit(signal) != 0 => Outcome::Done(SIG_HOLD as isize),
        Ok(_) => Outcome::Done(old.sa_sigaction as isize),
        Err(errno) => Outcome::Fail(errno),
    }
}

/// Notes that siginterrupt(3) has succeeded: libc has changed `SA_RESTART` in the kernel's registration.
pub fn note_siginterrupt(signal: i32, interrupts: bool) {
    let Some(entry) = entry(signal).filter(|_| is_wrapped_kind(signal)) else { return };
    if interrupts {
        INTERRUPTING.fetch_or(bit(signal), Relaxed);
        entry.fetch_and(!RESTART, SeqCst);
    } else {
        INTERRUPTING.fetch_and(!bit(signal), Relaxed);
        entry.fetch_or(RESTART, SeqCst);
    }
}

/// Called before a handler runs on a thread that waits for something, with [`Thread::waits_for`].
static BEFORE_HANDLERS: AtomicUsize = AtomicUsize::new(0);

/// From now on `told` is called before a handler runs on a thread that [`Thread::waits_for`] something: a handler may
/// take its time, or never come back.
pub fn before_handlers(told: fn(usize)) {
    BEFORE_HANDLERS.store(told as usize, Relaxed);
}

#[cold]
fn tell_waiter(waits_for: usize) {
    let told = BEFORE_HANDLERS.load(Relaxed);
    if told != 0 {
        // SAFETY: `before_handlers` alone has stored it.
        let told: fn(usize) = unsafe { core::mem::transmute(told) };
        told(waits_for);
    }
}

/// Whether abort(3) has sent this, which means to end the process, and does so another way where the signal is blocked:
/// it may find in the middle of a section that memory is broken. One that another thread of the process sends to this
/// one looks the same.
///
/// # Safety
/// `info` must be what the kernel gives a handler of the signal.
unsafe fn is_of_abort(signal: i32, info: *const libc::siginfo_t) -> bool {
    if signal != libc::SIGABRT {
        return false;
    }
    // SAFETY: the caller guarantees it; a signal of that code has a sender.
    unsafe { (*info).si_code == libc::SI_TKILL && (*info).si_pid().cast_unsigned() == process::owner() }
}

/// What stands before each handler of the app.
unsafe extern "C" fn trampoline(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let deferred = thread::with(|thread| {
        // SAFETY: the kernel's own arguments.
        let is_due = thread.depth.load(Relaxed) != 0 && !unsafe { is_of_abort(signal, info) };
        if is_due {
            // SAFETY: as above.
            unsafe { defer(thread, signal, info, context) };
        }
        is_due
    });
    if deferred {
        return;
    }
    let Some(entry) = entry(signal) else { return };
    let packed = entry.load(SeqCst);
    let handler = (packed & ADDRESS) as usize;
    if !is_handler(handler) {
        return;
    }
    if packed & RESETHAND != 0 {
        // As the kernel does: the disposition goes before the handler runs; flags and mask stay.
        // SAFETY: all-zero is a valid value of this plain C struct, and means SIG_DFL.
        let mut default: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: live structs.
        unsafe {
            if real(signal, core::ptr::null(), &raw mut default).is_ok() {
                default.sa_sigaction = libc::SIG_DFL;
                let _ = real(signal, &raw const default, core::ptr::null_mut());
            }
        }
    }
    let interrupted = thread::with(|thread| {
        bump(&thread.handled);
        if packed & RESTART == 0 {
            bump(&thread.interrupted);
        }
        thread.interrupt()
    });
    // Only now: a thread that is cancelled holds no lock.
    let waits_for = thread::with(|thread| thread.waits_for.load(Relaxed));
    if waits_for != 0 {
        tell_waiter(waits_for);
    }
    // The kernel passes all three arguments to any handler, and one that takes only the first ignores the rest.
    // SAFETY: what the app installed as a handler for this signal.
    unsafe {
        let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = core::mem::transmute(handler);
        handler(signal, info, context);
    }
    thread::with(|thread| thread.resume(interrupted));
}

fn bump(counter: &core::sync::atomic::AtomicU32) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

/// All signals that can be put off. Those that libc uses itself and those that faults raise are not among
/// them: a blocked fault kills.
fn deferrable() -> u64 {
    let kept = SYNCHRONOUS.iter().fold(bit(32) | bit(33), |bits, &signal| bits | bit(signal));
    !kept
}

/// Sends the signal to this thread again and leaves the interrupted section with signals blocked.
///
/// # Safety
/// The arguments are the kernel's to a handler.
unsafe fn defer(thread: &Thread, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // Another signal may interrupt this very function and be put off before it. Once all are blocked that is
    // over; then the outermost delivery, whose context holds the section's own mask, writes last.
    let _ = thread::change_mask(libc::SIG_BLOCK, deferrable());
    // SAFETY: the kernel's context; its signal set begins with the 64 bits that the kernel uses.
    unsafe {
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        thread.mask.get().write(mask.read_unaligned());
        mask.write_unaligned(mask.read_unaligned() | deferrable());
    }
    thread.is_masked.store(true, Relaxed);
    thread.deferred.store(true, Relaxed);
    let (process, tid) = (sys::getpid() as usize, sys::gettid() as usize);
    let args = [process, tid, signal as usize, info as usize, 0, 0];
    // SAFETY: the kernel's own siginfo. To one's own thread any si_code may be sent.
    if unsafe { call(libc::SYS_rt_tgsigqueueinfo, args) }.is_err() {
        // Too many are queued: the signal counts more than what came with it.
        // SAFETY: plain numbers.
        let _ = unsafe { call(libc::SYS_tgkill, [process, tid, signal as usize, 0, 0, 0]) };
    }
    stats::count_if_open(Counter::SignalsDeferred);
}

/// In the child of a `fork`: nobody holds the lock.
pub fn reset_after_fork() {
    LOCK.reset();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{self, Patience, Woken};
    use crate::{cancel, kernel};
    use std::sync::atomic::AtomicI32;

    static CANCEL_TYPE: AtomicI32 = AtomicI32::new(-1);

    /// A handler that sleeps itself.
    extern "C" fn naps(_: i32) {
        CANCEL_TYPE.store(cancel::defer(), Relaxed);
        // SAFETY: plain numbers.
        let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) };
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // The kernel leaves what remains of the time.
        let woken = wait::sleep(&mut fds, Some(kernel::now_ns() + 60_000_000_000), None);
        assert_eq!(woken, Woken::Ready(1));
        let _ = sys::close(fd);
    }

    #[test]
    fn a_handler_that_sleeps_ends_the_sleep_that_it_interrupts() {
        set_real_sigaction(libc::sigaction);
        assert_ne!(signal(libc::SIGUSR2, naps as extern "C" fn(i32) as usize, Style::Bsd), Outcome::Kernel);
        let mut patience = Patience::until(None);
        let woken = patience.sleep_with(|timeout| {
            // SAFETY: a signal of ours; it is delivered before the call returns.
            unsafe { libc::raise(libc::SIGUSR2) };
            // SAFETY: this thread's own timeout.
            let timeout = unsafe { timeout.read_volatile() };
            assert_eq!((timeout.tv_sec, timeout.tv_nsec), (0, 0));
            Ok(0)
        });
        assert_eq!(woken, Woken::Signal { restart: true });
        assert_eq!(CANCEL_TYPE.load(Relaxed), 0, "deferred while the handler runs");
        assert!(thread::with(|thread| !thread.sleeping.load(Relaxed)));
        assert_eq!(cancel::defer(), 0);
    }
}

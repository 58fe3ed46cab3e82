//! What we keep for each thread.
//!
//! A signal handler runs on the thread it interrupts, so these fields are shared between a thread and its
//! own handlers only: relaxed atomics, ordered by program order.
//!
//! *Sections.* While `depth` is not zero the app's handlers must not run. The wrapper that stands before
//! each of them ([`crate::signals`]) then blocks all signals in the interrupted context, sends the signal to
//! the thread again, and sets `is_masked` and `deferred`; the section's end restores the mask, and the kernel delivers.
//!
//! *Sleeps.* A handler that runs just before the thread enters a blocking system call must make that call
//! return, as it would have interrupted the kernel's. So each sleep uses the thread's own `timeout`: the
//! wrapper sets it to zero while `sleeping` is set, and the kernel, which reads it on entry, returns at once.
//! The handler may itself sleep, with the same `timeout`: so the wrapper does this once more when the handler returns.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use beeline_shm::sys;

use crate::cpus::Allowed;
use crate::{Errno, cancel, proc};

/// One thread's state.
pub struct Thread {
    /// At hand for [`identity`], but of a thread that may be cancelled wherever it is.
    identity: AtomicU32,
    /// The same of any thread that has been asked.
    asked: AtomicU32,
    /// Critical sections entered.
    pub(crate) depth: AtomicU32,
    /// Whether something is to be done at the end of the section.
    pub(crate) deferred: AtomicBool,
    /// Whether a signal was put off and its mask must be restored.
    pub(crate) is_masked: AtomicBool,
    /// Whether the thread is to be asynchronous again ([`cancel::hold_section`]).
    pub(crate) is_held_in_section: AtomicBool,
    /// Handlers that have run on this thread.
    pub handled: AtomicU32,
    /// Handlers among them that were installed without `SA_RESTART`.
    pub(crate) interrupted: AtomicU32,
    /// Whether the thread is about to sleep with `timeout`.
    pub(crate) sleeping: AtomicBool,
    /// Whether the thread withdraws a connection's hello (`offers` of beeline-sockets).
    pub at_offers: AtomicBool,
    /// The connection that the thread takes over to TCP (`late` of beeline-sockets), by the address of its description;
    /// else 0.
    pub takes_over: AtomicUsize,
    /// Since when.
    pub takes_over_ns: AtomicU64,
    /// Whether the thread changes what one number leads to ([`crate::changing`]).
    pub(crate) changes_number: AtomicBool,
    /// Whether the thread is in [`cancel::point`].
    pub(crate) at_cancellation_point: AtomicBool,
    /// Whether the app has asked that the thread be cancelled wherever it is ([`cancel::hold`]).
    pub(crate) is_asynchronous: AtomicBool,
    /// Calls that it is in nevertheless without being so.
    pub(crate) holds: AtomicU32,
    /// What the thread waits for, if handlers that run meanwhile are to be told of
    /// ([`crate::signals::before_handlers`]); else 0.
    pub waits_for: AtomicUsize,
    /// The fork that the thread has called for (`life` of beeline-sockets).
    pub forking: AtomicU32,
    /// Locks held that processes share ([`crate::lock::shared`]).
    pub(crate) shared_locks: AtomicU32,
    /// What libc's list of robust futexes had as the operation under way before.
    pub(crate) robust_before: AtomicUsize,
    /// The CPUs that it may wait on.
    pub(crate) allowed: Allowed,
    /// How often the thread has found a peer on its own CPU, as far as that is counted ([`crate::wait`]), and whether
    /// it was at a server's end last.
    pub(crate) near_finds: AtomicU32,
    pub(crate) is_near_server: AtomicBool,
    /// The timeout of the present sleep.
    pub(crate) timeout: UnsafeCell<libc::timespec>,
    /// The signal mask to restore after a deferral (the kernel's 64-bit form).
    pub(crate) mask: UnsafeCell<u64>,
}

// The state lies in the static thread-local block, at an offset that the dynamic linker puts into one word of
// ours (the initial-exec model): its address is two instructions away. Rust's `thread_local!` in a shared
// library calls `__tls_get_addr`, which may allocate after a `dlopen` elsewhere; we run in signal handlers and
// under allocators. It also costs: 81 ns against 76 for an 8-byte write and read in one process. Like all
// thread-local memory the block begins zeroed, which is a valid state.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss.beeline_thread,\"awT\",@nobits",
    ".p2align 6",
    ".globl beeline_thread",
    ".hidden beeline_thread",
    ".type beeline_thread, @tls_object",
    ".size beeline_thread, {bytes}",
    "beeline_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const size_of::<Thread>(),
);

#[cfg(target_arch = "x86_64")]
#[inline]
fn state() -> &'static Thread {
    let address: *const Thread;
    // SAFETY: the psABI's initial-exec sequence; the thread pointer's own address stands at fs:0. The result is
    // the same for as long as the thread runs, so the compiler may reuse it.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + beeline_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: the block of this thread, which is zeroed when the thread begins and lives as long as it; it
    // consists of atomics and cells. The reference does not leave `with`.
    unsafe { &*address }
}

#[cfg(not(target_arch = "x86_64"))]
thread_local! {
    static THREAD: Thread = const {
        Thread {
            identity: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            deferred: AtomicBool::new(false),
            is_masked: AtomicBool::new(false),
            is_held_in_section: AtomicBool::new(false),
            handled: AtomicU32::new(0),
            interrupted: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
            at_offers: AtomicBool::new(false),
            takes_over: AtomicUsize::new(0),
            takes_over_ns: AtomicU64::new(0),
            changes_number: AtomicBool::new(false),
            at_cancellation_point: AtomicBool::new(false),
            is_asynchronous: AtomicBool::new(false),
            holds: AtomicU32::new(0),
            waits_for: AtomicUsize::new(0),
            forking: AtomicU32::new(0),
            shared_locks: AtomicU32::new(0),
            robust_before: AtomicUsize::new(0),
            allowed: Allowed::new(),
            near_finds: AtomicU32::new(0),
            is_near_server: AtomicBool::new(false),
            timeout: UnsafeCell::new(libc::timespec { tv_sec: 0, tv_nsec: 0 }),
            mask: UnsafeCell::new(0),
        }
    };
}

/// Runs `f` with the calling thread's state.
#[inline]
pub fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        f(state())
    }
    // The state has no destructor, so it is there for as long as the thread is.
    #[cfg(not(target_arch = "x86_64"))]
    THREAD.with(f)
}

/// Bits of an identity that hold the thread id: the kernel's ids are smaller (`PID_MAX_LIMIT` in linux/threads.h).
const TID_BITS: u32 = 22;
/// Marks of pid namespaces are below.
const MARKS: u32 = 509;
/// The mark of a namespace that could not be found out: it is nobody's neighbour, not even its own.
const UNKNOWN: u32 = MARKS + 1;

/// The mark of this process's pid namespace; 0 before anybody asked.
#[unsafe(link_section = ".fork")]
static MARK: AtomicU32 = AtomicU32::new(0);

/// Who the calling thread is to others that share memory with it: its id, and a mark of the pid namespace in which
/// that is its id.
#[inline]
pub fn identity() -> u32 {
    with(|thread| match thread.identity.load(Ordering::Relaxed) {
        0 => find_identity(thread),
        identity => identity,
    })
}

/// The same, if somebody has asked for it: `None` in the child of a `vfork` whose parent's thread has not been here.
#[must_use]
pub fn known_identity() -> Option<u32> {
    let known = with(|thread| thread.identity.load(Ordering::Relaxed));
    (known != 0).then_some(known)
}

/// Where the calling thread's state lies, in one word that is no [`identity`]'s: the child of a `vfork` has that of its
/// parent's thread.
#[must_use]
pub fn place() -> u32 {
    with(made_up)
}

/// `vfork` and `clone` calls so far. Counted by the stubs of `beeline-preload`, in assembly.
pub static VFORKS: AtomicU32 = AtomicU32::new(0);

/// The process that the tables in this memory describe ([`crate::process`]).
#[unsafe(link_section = ".fork")]
pub(crate) static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether nothing may be asked of the kernel any more ([`crate::process::seal`]).
#[unsafe(link_section = ".fork")]
pub(crate) static SEALED: AtomicBool = AtomicBool::new(false);

/// Whether the calling thread's state is another's: the child of a `vfork` runs on that of its parent's thread, which
/// would have the child's id for its own from then on, and be taken for dead by whoever waits for its locks.
fn is_borrowed() -> bool {
    VFORKS.load(Ordering::Relaxed) != 0
        && !SEALED.load(Ordering::Relaxed)
        && sys::getpid() != OWNER.load(Ordering::Relaxed)
}

/// Out of line, once for each thread; each time for one that may be cancelled wherever it is, and in the child of a
/// `vfork` whose parent's thread has not been here.
#[cold]
#[inline(never)]
#[unsafe(link_section = ".text.fork")]
fn find_identity(thread: &Thread) -> u32 {
    let is_borrowed = is_borrowed();
    let identity = match thread.asked.load(Ordering::Relaxed) {
        asked if asked != 0 && !is_borrowed => asked,
        _ if SEALED.load(Ordering::Relaxed) => made_up(thread),
        _ => sys::gettid() | mark() << TID_BITS,
    };
    if !is_borrowed {
        thread.asked.store(identity, Ordering::Relaxed);
    }
    if thread.is_asynchronous.load(Ordering::Relaxed) {
        cancel::hold_section(thread);
    } else if !is_borrowed {
        thread.identity.store(identity, Ordering::Relaxed);
    }
    identity
}

/// The identity of a thread that may not ask for its id: made of where its state lies, and higher than any that was
/// asked for. It is nobody's neighbour; among the threads of its process no two have the same, but by a rare chance.
#[cold]
fn made_up(thread: &Thread) -> u32 {
    const UNASKED: u32 = 1 << 31;
    const { assert!(UNKNOWN < UNASKED >> TID_BITS) };
    /// 2^64 by the golden ratio: multiplied by it, numbers lie far from each other in the upper bits.
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    let spread = (core::ptr::from_ref(thread) as u64).wrapping_mul(SPREAD);
    (spread >> 32) as u32 | UNASKED
}

/// The thread id in an identity.
#[must_use]
pub fn tid_of(identity: u32) -> u32 {
    identity & ((1 << TID_BITS) - 1)
}

/// The identity of the first thread of a process of this namespace, by which others know the process.
#[unsafe(link_section = ".text.fork")]
pub(crate) fn identity_of_process(id: u32) -> u32 {
    id | mark() << TID_BITS
}

/// Whether the thread id in an identity means something here. Two namespaces may have the same mark, if there are
/// very many.
#[must_use]
pub fn is_neighbour(identity: u32) -> bool {
    identity >> TID_BITS == mark() && mark() != UNKNOWN
}

/// The kernel's id of the calling thread.
#[inline]
pub fn tid() -> u32 {
    tid_of(identity())
}

/// The mark of this process's pid namespace: from its inode number, which all in the namespace see alike.
#[unsafe(link_section = ".text.fork")]
fn mark() -> u32 {
    match MARK.load(Ordering::Relaxed) {
        0 => {
            let found = match proc::pid_namespace() {
                0 => UNKNOWN,
                inode => inode % MARKS + 1,
            };
            MARK.store(found, Ordering::Relaxed);
            found
        }
        mark => mark,
    }
}

/// What a handler has interrupted, as [`Thread::resume`] needs it.
#[derive(Clone, Copy)]
pub(crate) struct Interrupted {
    sleep: bool,
    cancel_type: Option<i32>,
}

impl Thread {
    #[cfg(test)]
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.load(Ordering::Relaxed) != 0
    }

    /// It is looked for when it is next needed.
    pub(crate) fn forget_identity(&self) {
        self.identity.store(0, Ordering::Relaxed);
    }

    /// A handler of the app is about to run on this thread: a sleep that is about to begin ends, and what was done
    /// to the thread for the sleep's sake is undone while the handler runs, which may jump out of it.
    pub(crate) fn interrupt(&self) -> Interrupted {
        let cancel_type = self.at_cancellation_point.load(Ordering::Relaxed).then(cancel::defer);
        self.at_cancellation_point.store(false, Ordering::Relaxed);
        let sleep = self.sleeping.load(Ordering::Relaxed);
        self.end_sleep(sleep);
        self.sleeping.store(false, Ordering::Relaxed);
        Interrupted { sleep, cancel_type }
    }

    /// The handler has returned.
    pub(crate) fn resume(&self, interrupted: Interrupted) {
        self.end_sleep(interrupted.sleep);
        self.sleeping.store(interrupted.sleep, Ordering::Relaxed);
        if let Some(kind) = interrupted.cancel_type {
            self.at_cancellation_point.store(true, Ordering::Relaxed);
            cancel::restore(kind);
        }
    }

    fn end_sleep(&self, sleep: bool) {
        if sleep {
            // SAFETY: only this thread and its own handlers use its timeout, and the interrupted code has written it
            // before it set `sleeping`.
            unsafe { self.timeout.get().write_volatile(libc::timespec { tv_sec: 0, tv_nsec: 0 }) };
        }
    }
}

/// In the child of a `fork`, which is perhaps in a new pid namespace.
#[unsafe(link_section = ".text.fork")]
pub(crate) fn look_at_namespace() {
    // A parent in another namespace has no id here. Otherwise the mark stays: /proc may be out of sight by now.
    if sys::getppid() == 0 {
        MARK.store(0, Ordering::Relaxed);
    }
}

/// In the child of a `fork`: this thread has a new id, and holds nothing that it held in the parent. It stays in the
/// section that it is in, if it is in one ([`leave_sections_in_child`]).
pub fn reset_after_fork() {
    with(|thread| {
        thread.identity.store(0, Ordering::Relaxed);
        thread.asked.store(0, Ordering::Relaxed);
        thread.shared_locks.store(0, Ordering::Relaxed);
        thread.at_offers.store(false, Ordering::Relaxed);
        thread.takes_over.store(0, Ordering::Relaxed);
        thread.changes_number.store(false, Ordering::Relaxed);
        thread.near_finds.store(0, Ordering::Relaxed);
    });
}

/// In the child of a `fork`, when nobody holds any lock: this thread is in no section, and what was put off comes.
#[unsafe(link_section = ".text.fork")]
pub fn leave_sections_in_child() {
    compiler_fence(Ordering::SeqCst);
    with(|thread| {
        thread.depth.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if thread.deferred.load(Ordering::Relaxed) {
            deliver_deferred(thread);
        }
    });
}

/// A critical section: from `enter` to drop, no handler of the app runs on this thread.
#[must_use]
pub struct Section(());

impl Section {
    /// Enters a section. Sections nest.
    #[inline]
    pub fn enter() -> Section {
        with(|thread| {
            let depth = thread.depth.load(Ordering::Relaxed);
            thread.depth.store(depth + 1, Ordering::Relaxed);
        });
        compiler_fence(Ordering::SeqCst);
        Section(())
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

impl Section {
    /// What its end does. At most once, instead of dropping it.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        compiler_fence(Ordering::SeqCst);
        with(|thread| {
            let depth = thread.depth.load(Ordering::Relaxed).wrapping_sub(1);
            thread.depth.store(depth, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            if depth == 0 && thread.deferred.load(Ordering::Relaxed) {
                deliver_deferred(thread);
            }
        });
    }
}

/// Lets signals through that were put off in a section which has just ended, and requests to be cancelled.
#[cold]
#[inline(never)]
fn deliver_deferred(thread: &Thread) {
    thread.deferred.store(false, Ordering::Relaxed);
    if thread.is_masked.load(Ordering::Relaxed) {
        // SAFETY: signals are blocked, so no handler writes it meanwhile.
        let mask = unsafe { *thread.mask.get() };
        thread.is_masked.store(false, Ordering::Relaxed);
        let _ = change_mask(libc::SIG_SETMASK, mask);
    }
    if thread.is_held_in_section.load(Ordering::Relaxed) {
        cancel::let_go_of_section(thread);
    }
}

/// `rt_sigprocmask(2)`; returns the old mask.
pub(crate) fn change_mask(how: i32, mask: u64) -> Result<u64, Errno> {
    let mut old = 0u64;
    let args = [how as usize, (&raw const mask) as usize, (&raw mut old) as usize, 8, 0, 0];
    // SAFETY: live masks of the kernel's size.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, args) }.map(|_| old)
}

//! What we keep for each thread.
//!
//! A signal handler runs on the thread it interrupts, so these fields are shared between a thread and its
//! own handlers only: relaxed atomics, ordered by program order.
//!
//! *Sections.* While `depth` is not zero the app's handlers must not run. The wrapper that stands before
//! each of them ([`crate::signals`]) then blocks all signals in the interrupted context, sends the signal to
//! the thread again, and sets `deferred`; the section's end restores the mask, and the kernel delivers.
//!
//! *Sleeps.* A handler that runs just before the thread enters a blocking system call must make that call
//! return, as it would have interrupted the kernel's. So each sleep uses the thread's own `timeout`: the
//! wrapper sets it to zero while `sleeping` is set, and the kernel, which reads it on entry, returns at once.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

use beeline_shm::sys;

/// One thread's state.
pub struct Thread {
    tid: AtomicU32,
    /// Critical sections entered.
    pub(crate) depth: AtomicU32,
    /// Whether a signal was put off and its mask must be restored.
    pub(crate) deferred: AtomicBool,
    /// Handlers that have run on this thread.
    pub(crate) handled: AtomicU32,
    /// Handlers among them that were installed without `SA_RESTART`.
    pub(crate) interrupted: AtomicU32,
    /// Whether the thread is about to sleep with `timeout`.
    pub(crate) sleeping: AtomicBool,
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
            tid: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            deferred: AtomicBool::new(false),
            handled: AtomicU32::new(0),
            interrupted: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
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

/// The kernel's id of the calling thread.
#[inline]
pub fn tid() -> u32 {
    with(|thread| match thread.tid.load(Ordering::Relaxed) {
        0 => {
            let tid = sys::gettid();
            thread.tid.store(tid, Ordering::Relaxed);
            tid
        }
        tid => tid,
    })
}

/// In the child of a `fork`: this thread has a new id and is in no section.
pub fn reset_after_fork() {
    with(|thread| {
        thread.tid.store(0, Ordering::Relaxed);
        thread.depth.store(0, Ordering::Relaxed);
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
        compiler_fence(Ordering::SeqCst);
        with(|thread| {
            let depth = thread.depth.load(Ordering::Relaxed).wrapping_sub(1);
            thread.depth.store(depth, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            if depth == 0 && thread.deferred.load(Ordering::Relaxed) {
                crate::signals::deliver_deferred(thread);
            }
        });
    }
}

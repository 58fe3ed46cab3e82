//! Who the process is, and what it may do.
//!
//! 1. [`OWNER`] is the process that the tables in this memory describe. A `vfork` child runs in that memory
//!    with fds of its own, so a call that would change the tables is made by the kernel alone there
//!    ([`is_guest_of_parent`]). To ask for the process id costs a system call, which only processes that
//!    have ever called `vfork` or `clone` pay.
//! 2. A process stops accelerating once, for one reason, and never begins again. What is accelerated already stays so
//!    until somebody demotes it.

pub mod environment;

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::{Fd, sys};
use beeline_stats::tunables::rules::{Rule, Rules};
use beeline_stats::tunables::said as said_in;
use beeline_stats::{Reason, Tunables};

use crate::lock::Lock;
use crate::reason_cell::ReasonCell;
use crate::thread::OWNER;
pub use crate::thread::VFORKS;
use crate::{Errno, Outcome, kernel, thread};

/// Forks of every kind so far. Counted by the `vfork` stub of `beeline-preload`, too, in assembly.
///
/// Most of what every fork writes or looks at, in parent or child, lies together in this section: each page written is
/// a fault and a copy, and even one that is only read has to be found anew by the child's CPU. All of it is read far
/// more often than written: what threads write all the time has a section of its own beside it, `.fork.written`, and so
/// have locks with what they guard, `.fork.locked`. All three lie on one page (`layout.ld` of `beeline-preload`). What
/// every child runs lies together in `.text.fork`, for the same reason, and what one runs that serves a connection and
/// ends in `.text.served`, or behind it (`layout.ld`).
#[unsafe(link_section = ".fork")]
pub static FORKS: AtomicU32 = AtomicU32::new(0);

/// See [`copies`].
#[unsafe(link_section = ".fork")]
static COPIES: AtomicU32 = AtomicU32::new(0);

/// See [`generation`].
#[unsafe(link_section = ".fork")]
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Why nothing more may be accelerated; none as long as it may.
static STOPPED: ReasonCell = ReasonCell::new();

struct Config {
    ready: AtomicBool,
    begun: UnsafeCell<Begun>,
}

/// What the process was told when it began.
struct Begun {
    tunables: Tunables,
    /// Which options it was told.
    said: u64,
    rules: Rules,
}

// SAFETY: `begun` is written once, under [`READING`] and before `ready` is stored, and only read afterwards.
unsafe impl Sync for Config {}

static CONFIG: Config = Config {
    ready: AtomicBool::new(false),
    begun: UnsafeCell::new(Begun { tunables: Tunables::DEFAULT, said: 0, rules: Rules::NONE }),
};

/// Guards the reading of [`CONFIG`]. Not a part of it: the child of a `fork` would have one page more to look at.
#[unsafe(link_section = ".fork")]
static READING: Lock = Lock::new();

#[inline]
fn begun_with() -> &'static Begun {
    if !CONFIG.ready.load(Acquire) {
        read_config();
    }
    // SAFETY: `ready` was seen, so nobody writes any more.
    unsafe { &*CONFIG.begun.get() }
}

/// The options that this process began with. Read from the environment once: the app may clear it later. What may be
/// set while it runs is asked with [`crate::live`].
#[must_use]
#[inline]
pub fn config() -> &'static Tunables {
    &begun_with().tunables
}

/// Which options the process was told when it began, as [`beeline_stats::tunables::said`] counts.
#[must_use]
pub fn said() -> u64 {
    begun_with().said
}

/// The rules that are for this program.
#[must_use]
#[inline]
pub fn rules() -> &'static Rules {
    &begun_with().rules
}

#[cold]
fn read_config() {
    let _guard = READING.lock();
    if !CONFIG.ready.load(Relaxed) {
        let list = environment::options().or_else(|| environment::variable(b"BEELINE_OPTIONS="));
        if let Some(list) = list {
            // SAFETY: the lock is held and nobody reads before `ready` is stored.
            let begun = unsafe { &mut *CONFIG.begun.get() };
            begun.tunables = Tunables::parse_env(list).0;
            begun.said = said_in(list);
            begun.rules.read(list, is_for_this_program);
        }
        CONFIG.ready.store(true, Release);
    }
}

/// Whether a rule is for the program that runs in this process.
fn is_for_this_program(rule: &Rule<'_>) -> bool {
    /// `TASK_COMM_LEN`, with the zero.
    const NAME_BYTES: usize = 16;
    if rule.program.is_none() {
        return true;
    }
    let mut path = [0u8; libc::PATH_MAX as usize];
    let link = c"/proc/self/exe";
    let args = [libc::AT_FDCWD as usize, link.as_ptr() as usize, path.as_mut_ptr() as usize, path.len(), 0, 0];
    // SAFETY: a NUL-terminated string, and a live buffer of the length given.
    let length = unsafe { sys::call(libc::SYS_readlinkat, args) }.unwrap_or(0);
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: the kernel writes sixteen bytes, for which there is room. The thread that starts a program has its name.
    let _ = unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    rule.is_for_program(path.get(..length).unwrap_or_default(), name)
}

/// Nothing is accelerated in this process from now on. What is already is not touched. The statistics are to be told.
pub(crate) fn stop(reason: Reason) {
    STOPPED.set_first(reason);
}

/// Why nothing is accelerated in this process any more.
pub(crate) fn stopped_because() -> Option<Reason> {
    STOPPED.get()
}

pub fn has_stopped() -> bool {
    STOPPED.is_some()
}

/// Forks, vforks and spawns of the process so far.
#[must_use]
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Those of them after which a child goes on with a copy of what this process knows, and of its listeners' doors. What
/// is spawned, or made by `vfork`, has no door once it is another program, and takes none before.
#[must_use]
#[inline]
pub fn copies() -> u32 {
    COPIES.load(Relaxed)
}

/// Counts a child that is about to be made and gets a copy of this memory. Returns its number.
pub fn count_fork() -> u32 {
    COPIES.fetch_add(1, Relaxed);
    count_spawn()
}

/// Counts a process that is about to be made by libc, behind our back, and becomes another program (`posix_spawn`,
/// `system`, `popen`). Returns its number.
pub fn count_spawn() -> u32 {
    FORKS.fetch_add(1, Relaxed).wrapping_add(1)
}

/// The process that the tables describe.
pub fn owner() -> u32 {
    OWNER.load(Relaxed)
}

/// The process that the tables describe, to others that share memory with it: its id, with a mark of the pid namespace
/// in which that is its id.
#[must_use]
pub fn identity() -> u32 {
    thread::identity_of_process(owner())
}

/// Whether the process of this [`identity`] has ended, and is not merely out of sight.
#[must_use]
pub fn has_ended(identity: u32) -> bool {
    if !thread::is_neighbour(identity) {
        return false;
    }
    // SAFETY: plain numbers.
    match unsafe { sys::call(libc::SYS_pidfd_open, [thread::tid_of(identity) as usize, 0, 0, 0, 0, 0]) } {
        Ok(process) => {
            let process = Fd::own(process as i32);
            kernel::poll_now(process.get(), libc::POLLIN) & libc::POLLIN != 0
        }
        Err(errno) => errno == Errno(libc::ESRCH),
    }
}

/// A child of `fork` has one more than its parent: what stands in memory with this number was written by this very
/// process and not inherited, so nothing need be written there in the child. Never 0.
#[must_use]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Whether this is a `vfork` child (or a `clone` that no fork handler saw), which must not touch the tables. Those of a
/// sealed process are empty, and a question might be its end.
#[must_use]
#[inline]
pub fn is_guest_of_parent() -> bool {
    VFORKS.load(Relaxed) != 0 && !is_sealed() && sys::getpid() != owner()
}

/// The kernel's own answer to a system call, for an entry point that has decided to pass it on.
///
/// # Safety
/// As for [`sys::call`].
pub unsafe fn raw(number: libc::c_long, args: [usize; 6]) -> Outcome {
    // SAFETY: forwarded.
    unsafe { sys::call(number, args) }.into()
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Whether the process has started, and goes on with lanes or may come by some.
pub fn is_active() -> bool {
    STARTED.load(Acquire) && !is_sealed()
}

/// Why a connection that is made here and now is the kernel's, if the process has stopped accelerating: it is to be
/// counted. `None` where that must not be done: sealed, where nothing can be asked about it, in a `vfork` child, or
/// where nothing was to be accelerated.
#[must_use]
#[cold]
pub fn reason_to_count() -> Option<Reason> {
    if config().accelerate { reason_left() } else { None }
}

/// Why the process has left lanes; `None` also where lanes that come cannot be left.
pub fn reason_left() -> Option<Reason> {
    let reason = stopped_because()?;
    (!is_sealed() && !is_guest_of_parent()).then_some(reason)
}

/// Whether everything goes to the kernel as it comes, for good.
#[inline]
pub fn is_sealed() -> bool {
    thread::SEALED.load(Relaxed)
}

/// This process is the one that the tables describe.
pub fn become_owner() {
    OWNER.store(sys::getpid(), Relaxed);
}

/// Everything goes to the kernel as it comes from now on, for good.
pub fn seal() {
    thread::SEALED.store(true, Relaxed);
}

/// Whether the process has started, for good or ill.
#[inline]
pub fn has_started() -> bool {
    STARTED.load(Acquire)
}

/// The process has started.
pub fn note_started() {
    STARTED.store(true, Release);
}

/// In the child of a `fork`. One that is sealed asks nothing, not even for its own id.
pub fn reset_after_fork() {
    if !is_sealed() {
        become_owner();
        thread::look_at_namespace();
    }
    GENERATION.fetch_add(1, Relaxed);
    READING.reset();
}

/// Whether anything is to be accelerated in this process, which has started.
#[inline]
pub fn accelerates() -> bool {
    config().accelerate && !has_stopped() && !is_guest_of_parent()
}

//! Life in the app's process: start, options, forks, and what happens to fd numbers.
//!
//! # Who the process is
//!
//! 1. [`start`] runs once, from the library's constructor or from the first call that makes something of
//!    ours, whichever is earlier: another library's constructor may open sockets before ours has run.
//! 2. `OWNER` is the process that the tables in this memory describe. A `vfork` child runs in that memory
//!    with fds of its own, so a call that would change the tables is made by the kernel alone there
//!    ([`is_guest_of_parent`]). To ask for the process id costs a system call, which only processes that
//!    have ever called `vfork` or `clone` pay.
//!
//! # Changes
//!
//! What leads from fd numbers to descriptions changes under [`changing`]: it is outermost in the lock order,
//! and a `fork` holds it from before to after, so that a child never inherits half a change.

mod adopt;
mod code;
mod control;
pub mod environment;
mod fds;
mod fork;
mod handover;
mod hidden;
pub mod image;
mod linger;
pub mod objects;
mod open_fds;
mod orphan;
pub(crate) mod relay;
mod rights;
mod rings;
mod sandbox;
mod stranger;
mod text;

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::sys;
use beeline_stats::{Reason, Tunables};

use self::image::{Image, Program};
use crate::desc::{Desc, Kind};
use crate::lock::Lock;
use crate::{Errno, Outcome, stats, table};

pub use code::{allow_lanes, code_is_loaded};
pub use control::{fcntl, ioctl, sockatmark};
pub(crate) use fds::within_limit;
pub use fds::{close, close_range, closefrom, dup, dup2, dup3};
pub use fork::{
    Changing, around_fork, around_fork_child, around_fork_parent, around_fork_prepare, changing, forked, leave,
};
pub use handover::{Loan, after_spawn, before_exec, before_spawn, exec_failed, named_in_spawn};
pub(crate) use hidden::hidden_count;
pub use hidden::{hidden_add, hidden_remove, is_hidden};
pub(crate) use linger::end_lingering;
pub(crate) use orphan::orphan_used;
pub use relay::{demote, has_left_lanes, leave_lanes};
pub use rights::{brings_rights, passes_sockets, receive, send};
pub use rings::know_ring;
pub use sandbox::{before_filter, before_limit};
pub(crate) use stranger::serve_streams;

/// Forks of every kind so far. Counted by the `vfork` stub of `beeline-preload`, too, in assembly.
pub static FORKS: AtomicU32 = AtomicU32::new(0);
/// `vfork` and `clone` calls so far, counted likewise.
pub static VFORKS: AtomicU32 = AtomicU32::new(0);

static OWNER: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
/// Why nothing more may be accelerated, plus one; 0 as long as it may.
static STOPPED: AtomicU16 = AtomicU16::new(0);
static STARTING: Lock = Lock::new();

struct Config {
    ready: AtomicBool,
    lock: Lock,
    tunables: UnsafeCell<Tunables>,
}

// SAFETY: `tunables` is written once, under `lock` and before `ready` is stored, and only read afterwards.
unsafe impl Sync for Config {}

static CONFIG: Config =
    Config { ready: AtomicBool::new(false), lock: Lock::new(), tunables: UnsafeCell::new(Tunables::DEFAULT) };

/// The options of this process. Read from the environment once: the app may clear it later.
#[must_use]
#[inline]
pub fn config() -> &'static Tunables {
    if !CONFIG.ready.load(Acquire) {
        read_config();
    }
    // SAFETY: `ready` was seen, so nobody writes any more.
    unsafe { &*CONFIG.tunables.get() }
}

#[cold]
fn read_config() {
    let _guard = CONFIG.lock.lock();
    if !CONFIG.ready.load(Relaxed) {
        let list = environment::options().or_else(|| environment(b"BEELINE_OPTIONS="));
        let tunables = list.map_or(Tunables::DEFAULT, |list| Tunables::parse_env(list).0);
        // SAFETY: the lock is held and nobody reads before `ready` is stored.
        unsafe { CONFIG.tunables.get().write(tunables) };
        CONFIG.ready.store(true, Release);
    }
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// The value of an environment variable; `name` ends in `=`. The list is walked by hand because `getenv` may
/// be interposed by the app, as shells do.
fn environment(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: libc's variable; its value is null or a null-terminated array of strings, which nobody changes
    // while the process starts.
    unsafe {
        let mut entry = environ;
        if entry.is_null() {
            return None;
        }
        while !(*entry).is_null() {
            let text = core::ffi::CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = text.strip_prefix(name) {
                return Some(value);
            }
            entry = entry.add(1);
        }
    }
    None
}

/// Prepares the process: options, fork handlers, anchors inherited over `exec`. Later calls do nothing.
pub fn start() {
    if !STARTED.load(Acquire) {
        start_now();
    }
}

#[cold]
fn start_now() {
    {
        let _guard = STARTING.lock();
        if STARTED.load(Relaxed) {
            return;
        }
        OWNER.store(sys::getpid(), Relaxed);
        let _ = config();
        if !sandbox::begin() {
            adopt::inherited();
        }
        STARTED.store(true, Release);
    }
    if sandbox::is_sealed() {
        return;
    }
    // Outside the lock, too: the statistics start the process themselves.
    stats::succeed();
    stats::open_slots();
    let mut has_lanes = false;
    table::for_each(|_, desc| has_lanes |= desc.is_lane());
    if config().accelerate || has_lanes {
        // Outside the lock: pthread_atfork allocates, and an allocator may call us.
        fork::install_handlers();
    }
    if has_lanes {
        // They were inherited by a program that may not be fit for them.
        code::settle_lanes();
    }
    if config().accelerate {
        code::look_at_program();
    }
}

/// Whether anything is to be accelerated here and now; starts the process if that has not happened yet.
/// False in a `vfork` child. To be asked before something of ours is made: a socket, a listener, an epoll set.
#[must_use]
#[inline]
pub fn may_accelerate() -> bool {
    start();
    config().accelerate && !has_stopped() && !is_guest_of_parent()
}

/// Nothing is accelerated in this process from now on. What is already is not touched.
pub(crate) fn stop_accelerating(reason: Reason) {
    // The first reason stays.
    let _ = STOPPED.compare_exchange(0, (reason as u16).saturating_add(1), Relaxed, Relaxed);
    stats::stopped();
}

/// Why nothing is accelerated in this process any more.
pub(crate) fn stopped_because() -> Option<Reason> {
    let index = STOPPED.load(Relaxed).checked_sub(1)?;
    Reason::ALL.get(usize::from(index)).copied()
}

fn has_stopped() -> bool {
    STOPPED.load(Relaxed) != 0
}

/// Why a connection that is made here and now is the kernel's, if the process has stopped to accelerate: it is to be
/// counted. `None` where that must not be done: sealed, where nothing can be asked about it, in a `vfork` child, or where
/// nothing was to be accelerated.
#[must_use]
#[cold]
pub fn stopped() -> Option<Reason> {
    if config().accelerate { left_because() } else { None }
}

/// Why the process has left lanes; `None` also where lanes that come cannot be left.
fn left_because() -> Option<Reason> {
    let reason = stopped_because()?;
    (!sandbox::is_sealed() && !is_guest_of_parent()).then_some(reason)
}

/// Looks at a program that is about to be executed or spawned.
#[must_use]
pub fn look(program: Program<'_>) -> Image {
    if has_started() { image::inspect(program, environment(b"PATH=")) } else { Image::Takes }
}

/// Whether the process has started, and goes on with lanes or may come by some.
fn has_started() -> bool {
    STARTED.load(Acquire) && !sandbox::is_sealed()
}

/// Forks, vforks and spawns of the process so far.
#[must_use]
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Counts a process that libc is about to make behind our back (`posix_spawn`, `system`, `popen`).
pub fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// The process that the tables describe.
pub(crate) fn owner() -> u32 {
    OWNER.load(Relaxed)
}

/// Whether this is a `vfork` child (or a `clone` that no fork handler saw), which must not touch the tables.
#[must_use]
#[inline]
pub fn is_guest_of_parent() -> bool {
    VFORKS.load(Relaxed) != 0 && sys::getpid() != owner()
}

/// What the kernel must not be asked to do with `fd`, although nobody claimed the call: an anchor never
/// sees an app's bytes. No lock may be held.
#[must_use]
#[inline]
pub fn refusal(fd: i32) -> Option<Errno> {
    refusal_of(fd, table::get(fd)?)
}

#[cold]
fn refusal_of(fd: i32, desc: &'static Desc) -> Option<Errno> {
    match desc.kind() {
        // Another holder has demoted it; if this one cannot follow it is an orphan now.
        Kind::Lane if relay::follow_if_relayed(fd, desc) && desc.kind() == Kind::Orphan => Some(orphan_used(desc)),
        Kind::Orphan => Some(orphan_used(desc)),
        // The moment between the end of a lane and the close of its anchor, seen by another thread.
        Kind::Closed => Some(Errno(libc::EBADF)),
        _ => None,
    }
}

/// The kernel's own answer to a system call, for an entry point that has decided to pass it on.
///
/// # Safety
/// As for [`sys::call`].
pub(crate) unsafe fn raw(number: libc::c_long, args: [usize; 6]) -> Outcome {
    // SAFETY: forwarded.
    unsafe { sys::call(number, args) }.into()
}

//! `fork`: what parent and child must agree on.
//!
//! Before: every lane is marked as shared, so that from now on its operations take the side's locks as well,
//! and the side counts one holder more. After, in the child: locks that other threads of the parent held are
//! free, because those threads do not exist here; locks in sides stay as they are, because their owners do.
//!
//! The forking thread holds [`CHANGE`] meanwhile. Fork handlers of the app may run between ours and call us:
//! they find that the thread is the one that forks, and pass.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

use beeline_shm::sys;
use beeline_stats::Counter;

use super::{CONFIG, FORKS, OWNER, STARTING, relay};
use crate::desc::{DESCS, Desc, Kind};
use crate::lock::{Guard, Lock};
use crate::side::EXPECTED;
use crate::{epoll, io, meet, signals, stats, table, thread};

static CHANGE: Lock = Lock::new();
/// The thread that holds [`CHANGE`], 0 if none.
static CHANGER: AtomicU32 = AtomicU32::new(0);

struct Held(UnsafeCell<Option<Changing>>);

// SAFETY: used by the thread that holds `CHANGE` for a fork, and by nobody else.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Permission to change what fd numbers lead to.
#[must_use]
pub struct Changing {
    guard: Option<Guard<'static>>,
}

/// Keeps other changes and forks out for as long as the result lives. Taken before any other lock; nests.
pub fn changing() -> Changing {
    let tid = thread::tid();
    if CHANGER.load(Relaxed) == tid {
        return Changing { guard: None };
    }
    let guard = CHANGE.lock();
    CHANGER.store(tid, Relaxed);
    Changing { guard: Some(guard) }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.guard.is_some() {
            CHANGER.store(0, Relaxed);
        }
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
}

unsafe extern "C" fn prepare() {
    around_fork_prepare();
}

unsafe extern "C" fn parent() {
    around_fork_parent();
}

unsafe extern "C" fn child() {
    around_fork_child();
}

pub(super) fn install_handlers() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, AcqRel) {
        // SAFETY: the handlers are functions of a library that is never unloaded (it has TLS in use and is
        // preloaded).
        unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

/// Before a `fork`.
pub fn around_fork_prepare() {
    stats::count_if_open(Counter::Forks);
    super::code::before_fork();
    meet::before_fork();
    let mut guard = meet::changing_to_share();
    while super::code::is_being_searched() {
        drop(guard);
        super::code::before_fork();
        guard = meet::changing_to_share();
    }
    // Only now: what was made while we waited is copied, and must not look as if it were made after the fork.
    FORKS.fetch_add(1, Relaxed);
    epoll::before_fork();
    meet::purge_pools();
    table::for_each(|fd, desc| {
        // Once for each description, not for each fd.
        if desc.kind() != Kind::Lane || desc.fd.load(Relaxed) != fd || relay::follow_if_relayed(fd, desc) {
            return;
        }
        let _both = desc.lock_both();
        if desc.is_lane() {
            let side = desc.side();
            desc.shared.store(true, Relaxed);
            side.holders.fetch_add(1, AcqRel);
            side.join(super::owner());
            side.join(EXPECTED);
        }
    });
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some(guard) };
}

/// Before the process ends without a word (_exit(2)): ends that it shares with other processes have a holder
/// less, so that the others need not lock each other out any more. A process that is killed stays counted,
/// which costs the others that, and no more. Ends that it holds alone are left to the kernel, as for a kill.
pub fn leave() {
    if super::is_guest_of_parent() {
        return;
    }
    meet::before_end();
    let _changing = changing();
    table::for_each(|fd, desc| {
        if desc.is_lane() && desc.shared.load(Relaxed) && desc.fd.load(Relaxed) == fd {
            io::close_lane(desc);
        }
    });
}

/// After a `fork`, in the parent; also when it has failed.
pub fn around_fork_parent() {
    // SAFETY: this thread holds the lock since `around_fork_prepare`.
    let guard = unsafe { (*HELD.0.get()).take() };
    meet::purge_pools_again();
    drop(guard);
}

/// After a `fork`, in the child.
pub fn around_fork_child() {
    OWNER.store(sys::getpid(), Relaxed);
    CHANGE.reset();
    CONFIG.lock.reset();
    STARTING.reset();
    table::reset_after_fork();
    DESCS.reset_after_fork(Desc::forget_other_threads);
    table::for_each(|fd, desc| {
        desc.forget_other_threads();
        desc.slot.store(core::ptr::null_mut(), Relaxed);
        if desc.is_lane() && desc.fd.load(Relaxed) == fd {
            desc.side().join(super::owner());
        }
    });
    // Ends the section, and delivers a signal that was put off in it: its mask must not stay.
    // SAFETY: this thread held the lock in the parent, and no other thread exists.
    drop(unsafe { (*HELD.0.get()).take() });
    thread::reset_after_fork();
    signals::reset_after_fork();
    stats::reset_after_fork();
    meet::reset_after_fork();
    epoll::reset_after_fork();
    super::linger::end_all_in_child();
    super::code::forked();
}

//! `fork`: what parent and child must agree on.
//!
//! Before: every lane is marked as shared, so that from now on its operations take the side's locks as well,
//! and the side counts one holder more. After, in the child: locks that other threads of the parent held are
//! free, because those threads do not exist here; locks in sides stay as they are, because their owners do.
//!
//! The forking thread holds [`changing`] meanwhile. Fork handlers of the app may run between ours and call us:
//! they find that the thread is the one that forks, and pass.
//!
//! A sealed process ([`super::sandbox`]) has nothing to agree on: its child finds our locks free, and that is all.
//!
//! # A fork that fails
//!
//! Its prepared holders never come. Fork handlers are not told, so whoever called for the fork undoes it ([`forked`]),
//! when the change has long been given back: to keep it until then would make the app's own handlers wait with it.
//!
//! 1. The holder that a fork has counted at an end is noted with the description, by the fork's number, under both
//!    locks. Another fork that counts there meanwhile, of another thread, takes the note's place: then the first one's
//!    stays counted, should it fail. That costs a shared lock; a holder too few would cost bytes.
//! 2. Only he takes the holder back who finds his own number, under both locks, with the description still a lane. One
//!    that was closed meanwhile, and perhaps serves again, has no such note.
//! 3. This process is a holder as long as its description is a lane, so the count does not fall below one. If it falls
//!    to one, nobody else has the end, and none of our threads is in the side's locks: the end is ours alone again. If
//!    other processes hold it, too, nothing changes for them, as each looks for itself ([`Desc`], `try_shared`).
//! 4. Until then operations take the side's locks for nothing. The peer sees none of it, nor who holds an end, and
//!    whoever closes the end meanwhile takes himself for one of several: then it ends as if he had been killed, which
//!    the peer judges by the cursors.
//! 5. A child that was listed as expected is taken off the list. If that was another fork's, its child finds a free
//!    place.
//! 6. The number that a thread's `fork` has got is kept with the thread, for handlers know nothing of the call they
//!    belong to. If a handler forks past our `fork`, inside libc, nobody can tell whose number it is, and nothing is
//!    undone.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::Counter;

use crate::changing::{self, Changing, changing};
use crate::desc::{DESCS, Desc, Kind};
use crate::ending::stand_no_more;
use crate::side::{EXPECTED, state};
use crate::{epoll, follow, linger, meet, process, signals, slab, stats, table, thread};

/// In a thread's `forking`: libc's `fork` was called, and its handlers have not run yet.
const CALLED: u32 = u32::MAX;
/// More than one fork has run its handlers since.
const UNCERTAIN: u32 = u32::MAX - 1;

struct Held(UnsafeCell<Option<Changing>>);

// SAFETY: used by the thread that holds `CHANGE` for a fork, and by nobody else.
unsafe impl Sync for Held {}

#[unsafe(link_section = ".fork")]
static HELD: Held = Held(UnsafeCell::new(None));

unsafe extern "C" {
    /// What pthread_atfork(3) calls, with whose handlers they are: nobody's, they stay.
    fn __register_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        library: *mut libc::c_void,
    ) -> i32;
}

unsafe extern "C" fn prepare() {
    let number = around_fork_prepare();
    thread::with(|thread| {
        let known = thread.forking.load(Relaxed);
        if known != 0 {
            thread.forking.store(if known == CALLED { number } else { UNCERTAIN }, Relaxed);
        }
    });
}

unsafe extern "C" fn parent() {
    around_fork_parent();
}

/// It and what it calls lie together: a child begins with none of our code in its page tables.
#[unsafe(link_section = ".text.fork")]
unsafe extern "C" fn child() {
    around_fork_child();
}

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether a child of a `fork` finds locks as free as they are there: the handlers that see to it are installed, in a
/// process that has or may have lanes.
#[must_use]
pub fn frees_locks() -> bool {
    super::start();
    INSTALLED.load(Relaxed)
}

pub(super) fn install_handlers() {
    if !INSTALLED.swap(true, AcqRel) {
        // SAFETY: the handlers are functions of a library that is never unloaded (`build.rs` of `beeline-preload`).
        unsafe { __register_atfork(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) };
    }
}

/// Before a `fork`. Returns its number.
pub fn around_fork_prepare() -> u32 {
    if process::is_sealed() {
        return 0;
    }
    stats::count_if_open(Counter::Forks);
    stats::unmap_inherited();
    super::code::before_fork();
    meet::send_visitors_on();
    meet::before_fork();
    follow::with_all();
    let mut guard = meet::changing_to_share();
    while super::code::is_being_searched() {
        drop(guard);
        super::code::before_fork();
        guard = meet::changing_to_share();
    }
    // Another thread may have sealed the process while this one waited; from here on nobody can.
    if process::is_sealed() {
        return 0;
    }
    // Only now: what was made while we waited is copied, and must not look as if it were made after the fork.
    epoll::follow_next();
    let number = process::count_fork();
    stats::keep_for_child();
    epoll::before_fork();
    meet::purge_pools();
    table::for_each(|fd, desc| {
        // Once for each description, not for each fd.
        if desc.kind() != Kind::Lane || desc.fd.load(Relaxed) != fd || follow::follow_if_relayed(fd, desc) {
            return;
        }
        let both = desc.lock_both();
        if desc.is_lane() {
            let side = desc.side();
            desc.shared.store(true, Relaxed);
            stand_no_more(fd, desc);
            side.holders.fetch_add(1, AcqRel);
            side.join(process::identity());
            side.join(EXPECTED);
            desc.counted_by.store(number, Relaxed);
        }
        drop(both);
        epoll::disturb_over(fd, desc);
    });
    // SAFETY: this thread holds the lock.
    unsafe { *HELD.0.get() = Some(guard) };
    number
}

/// As [`around_fork_prepare`], before a clone(2) with these flags that gets a copy of this memory.
pub fn around_clone_prepare(flags: u64) -> u32 {
    let number = around_fork_prepare();
    if flags & libc::CLONE_FILES as u64 != 0 && !process::is_sealed() {
        epoll::lose_next();
    }
    number
}

/// Before the process ends without a word (_exit(2)): ends that it shares with other processes have a holder
/// less, so that the others need not lock each other out any more. A process that is killed stays counted,
/// which costs the others that, and no more. Ends that it holds alone are left to the kernel, as for a kill.
#[unsafe(link_section = ".text.fork")]
pub fn leave() {
    leave_but(|_| false);
}

/// The same before a process ends in good order (exit(3)): libc has yet to write what is in its streams, so ends with a
/// number that is used so are left to the kernel, too.
#[unsafe(link_section = ".text.fork")]
pub fn leave_but(is_used: impl Fn(i32) -> bool) {
    if process::is_guest_of_parent() {
        return;
    }
    meet::before_end();
    let is_shared = |fd, desc: &Desc| desc.is_lane() && desc.shared.load(Relaxed) && desc.fd.load(Relaxed) == fd;
    let mut any = false;
    table::for_each(|fd, desc| {
        meet::stop_serving(desc);
        any |= is_shared(fd, desc);
    });
    if !any {
        return;
    }
    let _changing = changing();
    table::for_each(|fd, desc| {
        if is_shared(fd, desc) {
            let mut is_kept = false;
            table::each_fd(fd, desc, |fd| is_kept |= is_used(fd));
            if !is_kept {
                meet::close_lane(desc);
            }
        }
    });
}

/// Before a child is made that gets a copy of this memory and cannot make anything of it: its calls are the kernel's.
/// It has all that is open, sets among it, whose kernel side it may change, and is told of; but no idle lanes, through
/// which others' bytes may go. Returns whether that was done behind the locks.
pub fn before_strange_copy() -> bool {
    process::VFORKS.fetch_add(1, Relaxed);
    let may_lock = !process::is_sealed() && !process::is_guest_of_parent();
    if may_lock {
        let _changing = changing();
        epoll::count_lost_copy();
        epoll::before_fork();
        meet::purge_pools_again();
    } else {
        process::count_fork();
    }
    may_lock
}

/// Runs `make`, which makes such a child, in which it may return.
pub fn around_strange_copy<R: Copy + Into<i64>>(make: impl FnOnce() -> R) -> R {
    let may_lock = before_strange_copy();
    let made = make();
    // Another thread may have made a set meanwhile that the child has, too. That may have come back to here, and has no
    // thread-local memory of ours.
    if made.into() > 0 && may_lock {
        let _changing = changing();
        epoll::count_lost_copy();
        meet::purge_pools_again();
    } else if made.into() > 0 {
        process::count_fork();
    }
    made
}

/// After a `fork`, in the parent; also when it has failed.
pub fn around_fork_parent() {
    if process::is_sealed() {
        return;
    }
    // SAFETY: this thread holds the lock since `around_fork_prepare`.
    let guard = unsafe { (*HELD.0.get()).take() };
    meet::purge_pools_again();
    epoll::fork_has_ended();
    drop(guard);
}

/// Calls libc's `fork`, which runs the handlers above, and undoes them if it fails.
pub fn around_fork(fork: impl FnOnce() -> i32) -> i32 {
    // A handler of the app may fork in the middle of this one.
    let before = thread::with(|thread| thread.forking.swap(CALLED, Relaxed));
    let child = fork();
    let number = thread::with(|thread| thread.forking.swap(before, Relaxed));
    if child < 0 && number != CALLED && number != UNCERTAIN {
        forked(number, i64::from(child));
    }
    child
}

/// After [`around_fork_parent`], with what the call for the fork of this number has returned.
pub fn forked(number: u32, child: i64) {
    if child >= 0 || process::is_guest_of_parent() {
        return;
    }
    let _changing = changing();
    table::for_each(|fd, desc| {
        if desc.fd.load(Relaxed) == fd && desc.counted_by.load(Relaxed) == number {
            take_back(desc, number);
        }
    });
}

/// Takes back the holder that the fork of this number has counted.
fn take_back(desc: &'static Desc, number: u32) {
    let _both = desc.lock_both();
    let is_ours = desc.counted_by.compare_exchange(number, 0, Relaxed, Relaxed).is_ok();
    if !is_ours || !desc.is_lane() || desc.side().is(state::RELAYED) {
        return;
    }
    let side = desc.side();
    side.leave(EXPECTED);
    if side.holders.fetch_sub(1, AcqRel) == 2 {
        desc.shared.store(false, Relaxed);
    }
}

/// After a `fork`, in the child.
#[unsafe(link_section = ".text.fork")]
pub fn around_fork_child() {
    process::reset_after_fork();
    changing::reset_after_fork();
    super::start::reset_after_fork();
    super::commands::reset_after_fork();
    slab::reset_after_fork();
    table::reset_after_fork();
    DESCS.reset_after_fork();
    // Whoever seals the process is kept out from before a fork to after it.
    if process::is_sealed() {
        thread::reset_after_fork();
        signals::reset_after_fork();
        thread::leave_sections_in_child();
        return;
    }
    table::for_each(|fd, desc| {
        desc.forget_other_threads();
        // Of what is no lane none is written, for each page is a copy.
        if desc.counted_by.load(Relaxed) != 0 {
            desc.counted_by.store(0, Relaxed);
        }
        if desc.slot.load(Relaxed).is_some() {
            desc.slot.store(None, Relaxed);
        }
        if desc.is_lane() && desc.fd.load(Relaxed) == fd {
            desc.side().join(process::identity());
        }
    });
    super::handover::reset_after_fork();
    // From here on locks are taken as the child's.
    thread::reset_after_fork();
    signals::reset_after_fork();
    stats::reset_after_fork();
    meet::reset_after_fork();
    epoll::reset_after_fork();
    linger::end_all_in_child();
    super::code::forked();
    // SAFETY: this thread held the lock in the parent, and no other thread exists.
    if let Some(held) = unsafe { (*HELD.0.get()).take() } {
        changing::end_in_child(held);
    }
    // Last of all: a signal that was put off meanwhile comes now, and its handler may use whatever a thread of the
    // parent's held.
    thread::leave_sections_in_child();
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc::channel;

    use beeline_testkit::sys::{is_asleep, thread_id};

    use super::*;

    /// Runs itself once more, as a process that does nothing else: it is sealed for good.
    #[test]
    fn a_fork_that_waits_while_the_process_is_sealed_holds_nothing() {
        const NAME: &str = "life::fork::tests::a_fork_that_waits_while_the_process_is_sealed_holds_nothing";
        const ALONE: &str = "BEELINE_TEST_IS_SEALED";
        static WAITS: AtomicBool = AtomicBool::new(false);
        if std::env::var_os(ALONE).is_none() {
            let mut again = Command::new(std::env::current_exe().unwrap());
            let output = again.args([NAME, "--exact"]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            return;
        }
        let forking = thread_id();
        let (is_changing, change) = channel();
        let sealing = std::thread::spawn(move || {
            let changing = changing();
            is_changing.send(()).unwrap();
            while !WAITS.load(SeqCst) || !is_asleep(forking) {
                std::thread::yield_now();
            }
            process::seal();
            drop(changing);
        });
        change.recv().unwrap();
        WAITS.store(true, SeqCst);
        assert_eq!(around_fork_prepare(), 0, "nothing is counted, and there is nothing to undo");
        // SAFETY: nobody else forks here.
        assert!(unsafe { (*HELD.0.get()).is_none() });
        around_fork_parent();
        sealing.join().unwrap();
        std::thread::spawn(|| drop(changing())).join().unwrap();
    }
}

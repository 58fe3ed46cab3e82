//! One process of a crowd at a time, and where the crowd sleeps.
//!
//! Processes that share a blocking listener must not sit in the TCP `accept` while the door has a client, and there is
//! no `accept` that does not block on a blocking listener. So a process looks whether the TCP queue has a connection,
//! and takes it, with nobody else between the two: it takes the accept lock, which lies in memory that parent and
//! children share ([`Share`]) and which the kernel takes from a holder that dies ([`crate::lock::shared`]).
//!
//! 1. Nobody waits with the accept lock. It is held from the look at the queue to the `accept` that finds what the look
//!    has seen: two system calls, neither of which sleeps. The listener's own lock keeps the threads of a process apart
//!    meanwhile.
//! 2. Nobody waits for it for longer than a moment, either. Who finds it taken leaves the queue to its holder for a
//!    millisecond at most.
//! 3. The crowd sleeps in one epoll set, made before the first `fork` and shared by all: an event wakes one sleeper,
//!    and the kernel wakes the next one when that one has returned and the event is still there. So a connection wakes
//!    few, as `accept` on a TCP listener does, and a process that is stopped, killed or busy in a handler after it was
//!    woken keeps no connection from the others. A process that has more to watch sleeps in poll(2) on its own.
//! 4. A process may be stopped between its two calls. There are several locks, and [`Share::turn`] says which one
//!    counts. Whoever has found it taken for a while, by a thread that is seen to be stopped, makes the next one the
//!    lock; so does, after a second, who cannot see its state. What the stopped process does when it goes on is an
//!    `accept` of its own, perhaps in vain: then it waits for the next TCP client.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::listener::{Listener, Queues, Share};
use crate::lock::Guard;
use crate::lock::shared::{SharedGuard, SharedLock, Wait};
use crate::{Errno, hidden, kernel, proc, thread, wait};

/// This thread has the accept lock, or there is none.
#[must_use]
pub(super) struct Held<'a> {
    _crowd: Option<SharedGuard<'a>>,
    // Given back last.
    _threads: Guard<'a>,
}

/// Takes the accept lock of a listener, if that is shared. `None` if another process has it.
pub(super) fn try_take(listener: &'static Listener) -> Option<Held<'static>> {
    let threads = listener.lock.lock();
    let crowd = match share_of(listener) {
        Some(share) => Some(lock_of(share, share.turn.load(Acquire))?.try_lock()?),
        None => None,
    };
    Some(Held { _crowd: crowd, _threads: threads })
}

fn share_of(listener: &'static Listener) -> Option<&'static Share> {
    listener.shared_state().filter(|_| listener.is_shared())
}

fn lock_of(share: &'static Share, turn: u32) -> Option<&'static SharedLock> {
    share.accept_locks.get(turn as usize % share.accept_locks.len())
}

/// A process that has found the lock taken, again and again.
#[derive(Default)]
pub(super) struct Kept {
    turn: u32,
    wait: Wait,
}

/// Naps after which the state of the holder is looked at, and after which it is passed by whatever it is.
const NAPS_TO_DOUBT: u32 = 20;
const NAPS_MAX: u32 = 1_000;

impl Kept {
    /// Leaves the queue to the holder for a moment; passes one by that is stopped. No lock may be held, and the
    /// description is pinned by who waits: it keeps the memory.
    pub(super) fn leave(&mut self, listener: &'static Listener) {
        let Some(share) = share_of(listener) else { return };
        let turn = share.turn.load(Acquire);
        if turn != self.turn {
            *self = Self { turn, wait: Wait::default() };
        }
        let Some(lock) = lock_of(share, turn) else { return };
        lock.nap(&mut self.wait);
        let naps = self.wait.naps_for_one();
        if naps == 0 || !naps.is_multiple_of(NAPS_TO_DOUBT) {
            return;
        }
        let is_stopped = lock.holder().is_some_and(|holder| matches!(proc::state_of(holder), Some(b'T' | b't')));
        if is_stopped || naps >= NAPS_MAX {
            let _ = share.turn.compare_exchange(turn, turn.wrapping_add(1), AcqRel, Relaxed);
        }
    }
}

/// What the crowd's set calls its two members.
const TCP: u64 = 0;
const DOOR: u64 = 1;

/// Makes the set in which the crowd sleeps, before the first `fork` that shares the listener `fd`. Without one each
/// process sleeps on its own. The caller holds the listener's lock.
pub(super) fn make_set(listener: &Listener, fd: i32) {
    let Some(door) = listener.door.get() else { return };
    let Ok(set) = kernel::epoll_create() else { return };
    let set = hidden::hide(set);
    let add = |fd, name| {
        let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name };
        kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, Some(event)).is_ok()
    };
    if add(fd, TCP) && add(door, DOOR) {
        listener.set.set(Some(set));
        listener.set_door.set(Some(door));
    } else {
        hidden::close_hidden(set);
    }
}

/// The set in which this process may sleep: if it has nothing to watch but what all have.
pub(super) fn set_of(listener: &Listener) -> Option<i32> {
    let set = listener.set.get()?;
    let same_door = listener.door.get().is_some_and(|door| listener.set_door.get() == Some(door));
    (listener.is_shared() && same_door && !listener.lobby.may_speak()).then_some(set)
}

/// Sleeps with the crowd. Tells which queue has somebody.
pub(super) fn sleep(set: i32, patience: &mut wait::Patience) -> (wait::Woken, Queues) {
    let mut events = [libc::epoll_event { events: 0, u64: u64::MAX }; 2];
    let handled = || thread::with(|thread| thread.handled.load(Relaxed));
    let before = handled();
    let woken = patience.sleep_with(|timeout| {
        // SAFETY: room for two events; the timeout is this thread's own, and no mask.
        match unsafe { kernel::epoll_sleep(set, events.as_mut_ptr(), 2, timeout, core::ptr::null()) } {
            // A process that was stopped and goes on comes back from this call, and not from accept(2): signal(7).
            Err(Errno(libc::EINTR)) if handled() == before => Ok(1),
            result => result,
        }
    });
    let count = if let wait::Woken::Ready(count) = woken { count } else { 0 };
    let has = |name| events.iter().take(count).any(|event| event.u64 == name);
    (woken, Queues { over_tcp: has(TCP), at_door: has(DOOR) })
}

/// Whether this process may look again and again before it sleeps: one of a crowd does at a time. `ns` is how long at
/// most.
pub(super) fn may_spin(listener: &'static Listener, ns: u64) -> bool {
    let Some(share) = share_of(listener) else { return true };
    let (now, until) = (kernel::now_ns(), share.spinning_until_ns.load(Relaxed));
    // A time that nobody can have meant is no time.
    let free = until <= now || until - now > ns.saturating_mul(2);
    free && share.spinning_until_ns.compare_exchange(until, now.saturating_add(ns), Relaxed, Relaxed).is_ok()
}

/// The spin is over.
pub(super) fn end_spin(listener: &'static Listener) {
    if let Some(share) = share_of(listener) {
        share.spinning_until_ns.store(0, Relaxed);
    }
}

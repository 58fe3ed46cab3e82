//! One process of a crowd at a time.
//!
//! Processes that share a blocking listener must not sit in the TCP `accept` while the door has a client, and there is
//! no `accept` that does not block on a blocking listener. So a process looks whether the TCP queue has a connection,
//! and takes it, with nobody else between the two: it takes the accept lock, which lies in memory that parent and
//! children share ([`Share`]) and which the kernel takes from a holder that dies ([`crate::lock::shared`]).
//!
//! 1. Nobody waits with the accept lock. It is held from the look at the queue to the `accept` that finds what the look
//!    has seen: two system calls, neither of which sleeps. The listener's own lock keeps the threads of a process apart
//!    meanwhile; those that wait in the kernel's `accept`, where it keeps nobody out, went there as there was no door.
//!    Without a door nobody takes a client this way, and nobody makes one as long as others may wait there
//!    ([`Listener::goes_to_kernel`]).
//! 2. Nobody waits for it for longer than a moment, either. Who finds it taken leaves the queue to its holder for a
//!    millisecond at most.
//! 3. A process may be stopped between its two calls. There are several locks, and [`Share::turn`] says which one
//!    counts. Whoever has found it taken for a while, by a thread that is seen to be stopped, makes the next one the
//!    lock; so does, after a second, who cannot see its state. What the stopped process does when it goes on is an
//!    `accept` of its own, perhaps in vain: then it waits for the next TCP client.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::listener::{Listener, Share};
use crate::lock::Guard;
use crate::lock::shared::{SharedGuard, SharedLock, Wait};
use crate::{kernel, proc};

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
pub(super) struct Contender {
    turn: u32,
    wait: Wait,
}

/// Naps after which the state of the holder is looked at, and after which it is passed by whatever it is.
const NAPS_TO_DOUBT: u32 = 20;
const NAPS_MAX: u32 = 1_000;

impl Contender {
    /// Leaves the queue to the holder for a moment; passes one by that is stopped. No lock may be held, and the
    /// description is pinned by who waits: it keeps the memory.
    pub(super) fn back_off(&mut self, listener: &'static Listener) {
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

//! One process of a crowd at a time, and where the crowd sleeps.
//!
//! Processes that share a blocking listener must not sit in the TCP `accept` while the door has a client, and
//! there is no `accept` that does not block on a blocking listener. So a process looks whether the TCP queue
//! has a connection, and takes it, with nobody else between the two: it takes the accept lock, which is a
//! record lock (fcntl(2), `F_SETLK`) on a memory file that parent and children share. The kernel gives the
//! lock back when its holder dies.
//!
//! 1. Nobody waits with the accept lock. It is held from the look at the queue to the `accept` that finds what the look
//!    has seen: two system calls, neither of which sleeps. Record locks belong to a process, so the listener's own lock
//!    keeps its threads apart meanwhile.
//! 2. Nobody waits for it, either. Who finds it taken leaves the queue to its holder for a millisecond.
//! 3. The crowd sleeps in one epoll set, made before the first `fork` and shared by all: an event wakes one sleeper, and
//!    the kernel wakes the next one when that one has returned and the event is still there. So a connection wakes few,
//!    as `accept` on a TCP listener does, and a process that is stopped, killed or busy in a handler after it was
//!    woken keeps no connection from the others. A process that has more to watch sleeps in poll(2) on its own.
//! 4. A process may be stopped between its two calls. The record lock is on one byte, [`Share::turn`] says which.
//!    Whoever has found it taken for a while, by a process that is seen to be stopped, makes the next byte the
//!    lock; so does, after a second, who cannot see its state. What the stopped process does when it goes on is an
//!    `accept` of its own, perhaps in vain: then it waits for the next TCP client.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use beeline_shm::sys::{SysResult, call};

use super::listener::{Listener, Share};
use crate::lock::Guard;
use crate::{Errno, hidden, kernel, proc, thread, wait};

/// This thread has the accept lock, or there is none.
#[must_use]
pub(super) struct Held<'a> {
    /// The file and the byte that is locked.
    locked: Option<(i32, u32)>,
    // Given back last.
    _threads: Guard<'a>,
}

/// Takes the accept lock of a listener, if that is shared. `None` if another process has it.
pub(super) fn try_take(listener: &'static Listener) -> Option<Held<'static>> {
    let threads = listener.lock.lock();
    let Some((file, share)) = file_of(listener) else { return Some(Held { locked: None, _threads: threads }) };
    let byte = share.turn.load(Acquire);
    match record_lock(file, libc::F_SETLK, libc::F_WRLCK, byte).1 {
        Ok(_) => Some(Held { locked: Some((file, byte)), _threads: threads }),
        Err(Errno(libc::EAGAIN | libc::EACCES)) => None,
        // No lock to be had (ENOLCK, or the file is gone): then there are no turns.
        Err(_) => Some(Held { locked: None, _threads: threads }),
    }
}

fn file_of(listener: &'static Listener) -> Option<(i32, &'static Share)> {
    listener.accept_lock.get().filter(|_| listener.is_shared()).zip(listener.shared_state())
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some((file, byte)) = self.locked {
            let _ = record_lock(file, libc::F_SETLK, libc::F_UNLCK, byte);
        }
    }
}

/// A process that has found the lock taken, again and again.
#[derive(Default)]
pub(super) struct Kept {
    byte: u32,
    times: u32,
}

/// Times after which the state of the holder is looked at, and after which it is passed by whatever it is.
const TIMES_TO_DOUBT: u32 = 20;
const TIMES_MAX: u32 = 1_000;

impl Kept {
    /// Leaves the queue to the holder for a moment; passes one by that is stopped. No lock may be held.
    pub(super) fn leave(&mut self, listener: &'static Listener) {
        const ELSEWHERE_NS: u64 = 1_000_000;
        let until = Some(kernel::now_ns().saturating_add(ELSEWHERE_NS));
        let _ = wait::sleep(&mut [], until, None);
        let Some((file, share)) = file_of(listener) else { return };
        let byte = share.turn.load(Acquire);
        if byte != self.byte {
            *self = Self { byte, times: 0 };
        }
        self.times = self.times.saturating_add(1);
        if !self.times.is_multiple_of(TIMES_TO_DOUBT) {
            return;
        }
        let (holder, asked) = record_lock(file, libc::F_GETLK, libc::F_WRLCK, byte);
        let Some(holder) = holder.filter(|_| asked.is_ok()) else {
            // Nobody holds it any more.
            self.times = 0;
            return;
        };
        let stopped = holder != 0 && matches!(proc::state_of(holder), Some(b'T' | b't'));
        if stopped || self.times >= TIMES_MAX {
            let _ = share.turn.compare_exchange(byte, byte.wrapping_add(1) & BYTE_MASK, AcqRel, Relaxed);
        }
    }

    /// The accept lock was free.
    pub(super) fn forget(&mut self) {
        self.times = 0;
    }
}

/// Bytes of the file that are used in turn: offsets are signed.
const BYTE_MASK: u32 = u32::MAX >> 1;

/// fcntl(2) with a lock on one byte of the file. The first result is who holds a lock that is in the way, 0 for one whom
/// this process cannot see.
fn record_lock(file: i32, command: i32, kind: i32, byte: u32) -> (Option<u32>, SysResult) {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = i64::from(byte);
    lock.l_len = 1;
    // SAFETY: a live lock description.
    let result = unsafe { call(libc::SYS_fcntl, [file as usize, command as usize, (&raw mut lock) as usize, 0, 0, 0]) };
    let holder = (i32::from(lock.l_type) != libc::F_UNLCK).then(|| u32::try_from(lock.l_pid).unwrap_or(0));
    (holder, result)
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

/// Sleeps with the crowd. Tells whether the TCP queue and the door have something.
pub(super) fn sleep(set: i32, patience: &mut wait::Patience) -> (wait::Woken, bool, bool) {
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
    (woken, has(TCP), has(DOOR))
}

/// Whether this process may look again and again before it sleeps: one of a crowd does at a time. `ns` is how long at
/// most.
pub(super) fn may_spin(listener: &'static Listener, ns: u64) -> bool {
    let Some((_, share)) = file_of(listener) else { return true };
    let (now, until) = (kernel::now_ns(), share.spinning_until_ns.load(Relaxed));
    // A time that nobody can have meant is no time.
    let free = until <= now || until - now > ns.saturating_mul(2);
    free && share.spinning_until_ns.compare_exchange(until, now.saturating_add(ns), Relaxed, Relaxed).is_ok()
}

/// The spin is over.
pub(super) fn has_spun(listener: &'static Listener) {
    if let Some((_, share)) = file_of(listener) {
        share.spinning_until_ns.store(0, Relaxed);
    }
}

//! Where those sleep who wait for one listener's clients.
//!
//! Each client wakes all who sleep in poll(2): of sixteen threads that wait for a listener sixteen, of which one
//! accepts. Of those who sleep in one epoll set an event wakes one, and the kernel wakes the next one when that one has
//! returned and the event is still there. So a client wakes few, as `accept` on a TCP listener does, and whoever is
//! stopped, killed, cancelled or busy in a handler after it was woken keeps no client from the others. That holds for
//! levels: an edge would be told to one alone, who may not come to accept it.
//!
//! 1. A thread that waits alone sleeps in poll(2). From the second one on that comes while another one sleeps so, those
//!    of a process that has the listener alone sleep in a set of TCP's queue, door and lobby ([`of_threads`]). It stays
//!    while the listener does, and a door that is made anew comes into it ([`door_opens`]): who sleeps hears of that.
//! 2. The processes of a crowd share one, made before the first `fork` in the place of what threads had
//!    ([`make_for_crowd`]). The lobby, of which each has its own, is not in it. A process that has more to watch sleeps
//!    in poll(2).
//! 3. Where there is no number for a set everybody sleeps in poll(2).

use core::sync::atomic::Ordering::Relaxed;

use super::listener::{Listener, Queues};
use crate::desc::Pin;
use crate::wait::{Patience, Woken};
use crate::{Errno, changing, hidden, kernel, table, thread};

/// What a set calls its members.
const TCP: u64 = 0;
const DOOR: u64 = 1;
const LOBBY: u64 = 2;
const MEMBERS: usize = 3;

/// The set in which this thread may sleep, of a process that has the listener alone. `fd` leads to the listener. None
/// if it waits alone; then it sleeps as [`alone`] has it.
pub(super) fn of_threads(pin: &Pin, fd: i32, listener: &'static Listener) -> Option<i32> {
    if let Some(set) = as_it_is(listener) {
        return Some(set);
    }
    let sleeper = listener.sleeper.load(Relaxed);
    if sleeper == 0 || sleeper == thread::tid() { None } else { make_for_threads(pin, fd, listener) }
}

/// The set, if it has the door and the lobby that are there now.
fn as_it_is(listener: &Listener) -> Option<i32> {
    let set = listener.set.get()?;
    let has_door = listener.set_door.get() == listener.door.get();
    (has_door && listener.set_lobby.get() == listener.lobby.fd()).then_some(set)
}

#[cold]
fn make_for_threads(pin: &Pin, given: i32, listener: &'static Listener) -> Option<i32> {
    if !hidden::has_room() {
        return None;
    }
    // Until the set has its members, their numbers lead where they do now, and no `fork` copies it.
    let _changing = changing::changing();
    let _guard = listener.lock.lock();
    let (desc, fd) = (pin.desc(), pin.fd(given));
    if !listener.is_of(desc) || listener.is_shared() || !listener.serves() || !table::leads_to(fd, desc) {
        return None;
    }
    if listener.set.get().is_none() {
        listener.set.set(Some(hidden::keep(kernel::epoll_create().ok()?)?));
        if !add(listener, Some(fd), TCP) || !add_door(listener) {
            end(listener);
        }
    }
    as_it_is(listener)
}

/// Sleeps in poll(2), which `sleep` does, on a listener that other threads may come to wait for.
pub(super) fn alone<R>(listener: &Listener, sleep: impl FnOnce() -> R) -> R {
    // Of a thread that does not come back the next one finds its own number, or makes a set for nothing.
    let ours = thread::tid();
    listener.sleeper.store(ours, Relaxed);
    let slept = sleep();
    let _ = listener.sleeper.compare_exchange(ours, 0, Relaxed, Relaxed);
    slept
}

/// Makes the set in which the crowd sleeps, before the first `fork` that shares the listener `fd`. Without one each
/// process sleeps on its own. The caller holds the listener's lock.
pub(super) fn make_for_crowd(listener: &Listener, fd: i32) {
    end(listener);
    let Some(door) = listener.door.get() else { return };
    let Ok(set) = kernel::epoll_create() else { return };
    listener.set.set(Some(hidden::hide(set)));
    if add(listener, Some(fd), TCP) && add(listener, Some(door), DOOR) {
        listener.set_door.set(Some(door));
    } else {
        end(listener);
    }
}

/// The set in which this process may sleep, of a crowd: if it has nothing to watch but what all have.
pub(super) fn of_crowd(listener: &Listener) -> Option<i32> {
    let set = listener.set.get()?;
    let same_door = listener.door.get().is_some_and(|door| listener.set_door.get() == Some(door));
    (listener.is_shared() && same_door && !listener.lobby.may_speak()).then_some(set)
}

/// The door of this process is open from now on. The caller holds the listener's lock.
pub(super) fn door_opens(listener: &Listener) {
    let is_threads = listener.set.get().is_some() && !listener.is_shared();
    if is_threads && listener.set_door.get().is_none() && !add_door(listener) {
        end(listener);
    }
}

/// The door, with the lobby, is about to be closed: another one may be made under the same number. The caller holds the
/// listener's lock.
pub(super) fn door_closes(listener: &Listener) {
    let (door, lobby) = (listener.set_door.take(), listener.set_lobby.take());
    // What a crowd shares others may still use.
    if let Some(set) = listener.set.get().filter(|_| !listener.is_shared()) {
        for member in [door, lobby].into_iter().flatten() {
            let _ = kernel::epoll_ctl(set, libc::EPOLL_CTL_DEL, member, None);
        }
    }
}

/// Nobody of this process sleeps in the set any more who does not yet. Whether there was one. The caller holds the
/// listener's lock.
pub(super) fn end(listener: &Listener) -> bool {
    listener.set_door.set(None);
    listener.set_lobby.set(None);
    listener.set.take().map(hidden::close_hidden).is_some()
}

fn add_door(listener: &Listener) -> bool {
    let (door, lobby) = (listener.door.get(), listener.lobby.fd());
    listener.set_door.set(door);
    listener.set_lobby.set(lobby);
    add(listener, door, DOOR) && add(listener, lobby, LOBBY)
}

fn add(listener: &Listener, fd: Option<i32>, name: u64) -> bool {
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name };
    let add = |set, fd| kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, Some(event)).is_ok();
    match (listener.set.get(), fd) {
        (Some(set), Some(fd)) => add(set, fd),
        (set, None) => set.is_some(),
        (None, _) => false,
    }
}

/// Sleeps in a set. Tells which queue has somebody.
pub(super) fn sleep(set: i32, patience: &mut Patience) -> (Woken, Queues) {
    let mut events = [libc::epoll_event { events: 0, u64: u64::MAX }; MEMBERS];
    let handled = || thread::with(|thread| thread.handled.load(Relaxed));
    let (before, is_bounded) = (handled(), patience.is_bounded());
    let woken = patience.sleep_with(|timeout| {
        // SAFETY: room for so many events; the timeout is this thread's own, and no mask.
        match unsafe { kernel::epoll_sleep(set, events.as_mut_ptr(), MEMBERS as i32, timeout, core::ptr::null()) } {
            // A process that was stopped and goes on comes back from this call, and from accept(2) only if that waits
            // for a limited time: signal(7).
            Err(Errno(libc::EINTR)) if !is_bounded && handled() == before => Ok(1),
            result => result,
        }
    });
    let count = if let Woken::Ready(count) = woken { count } else { 0 };
    let has = |name| events.iter().take(count).any(|event| event.u64 == name);
    (woken, Queues { over_tcp: has(TCP), at_door: has(DOOR), in_lobby: has(LOBBY) })
}

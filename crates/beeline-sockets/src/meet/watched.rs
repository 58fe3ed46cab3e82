//! Listeners that a program watches and leaves to another one.
//!
//! A super-server (inetd with `wait`, Dovecot's master, whoever activates services by their sockets) waits for a
//! client, and then starts a program that accepts. That program has the TCP listener and not the door, so clients at
//! the door would wait for nobody. Only a program that accepts may have a door:
//!
//! 1. A process that is told of a client and has not accepted since has been *told* ([`Listener::told_ns`]). Its child
//!    counts as told by rule 2, as it may be about to start a program, and not by rule 3.
//! 2. If one that was told starts a program that gets the listener, the door is shut, in whatever process that is seen:
//!    its clients begin again over TCP at once, where the new program finds them ([`pass_on`]). Not if several
//!    processes serve the door.
//! 3. One that was told, and [`TOLD_NS`] later waits again while somebody is still at the door, gives it up: in the
//!    thread that was told, as that of another loop may be busy and accept yet, or in any after [`BUSY_NS`]. So it does
//!    when it finds that the door was shut. From then on it is told of clients in TCP's queue only, which is the truth.
//!    Not while clients of its own are there: it is to take them itself, and what it has closed or shared could not
//!    begin again.
//! 4. Watching alone does not open a door again that was given up; accepting does.
//! 5. Clients of whoever breaks this unseen withdraw ([`super::offers`]).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_stats::Reason;

use super::door;
use super::listener::{self, Listener};
use super::{lobby, offers, retreat};
use crate::desc::Desc;
use crate::{changing, kernel, process, table, thread};

/// How long a program that was told of a client may take to accept it.
const TOLD_NS: u64 = 10_000_000;
/// The same where another thread was told of it.
const BUSY_NS: u64 = 1_000_000_000;

/// The cookie of the listener that was visited, 0 for none, [`SEVERAL`]: finding a listener costs.
static VISITED: AtomicU64 = AtomicU64::new(0);
const SEVERAL: u64 = u64::MAX;

/// The app is about to be told of a client that may be at the door. Whether this process leaves the door instead.
pub(super) fn leaves_it(desc: &'static Desc, listener: &'static Listener) -> bool {
    // A door that is left because of a limit is readable until `accept` has closed it.
    if listener.is_leaving() {
        return false;
    }
    let now_ns = kernel::now_ns();
    let told_ns = listener.told_ns.load(Relaxed);
    if told_ns == 0 || !is_told_itself(listener) {
        return false;
    }
    let Some(door) = listener.door.get() else { return false };
    let events = kernel::poll_now(door, libc::POLLIN);
    let visits = listener.visited.load(Relaxed) != 0 || offers::any_at(listener.cookie.load(Relaxed));
    let waits = !visits
        && (events & libc::POLLIN != 0 || lobby::any_spoken(listener) != lobby::Who::Nobody)
        && now_ns.saturating_sub(told_ns) >= patience_ns(listener);
    if waits || events & libc::POLLHUP != 0 {
        give_up(desc, listener);
        return true;
    }
    false
}

/// How long who was told may take, as the calling thread sees it.
fn patience_ns(listener: &Listener) -> u64 {
    if listener.told_by.load(Relaxed) == this_thread() { TOLD_NS } else { BUSY_NS }
}

/// As [`Listener::told_by`] has it.
fn this_thread() -> u64 {
    u64::from(process::generation()) << 32 | u64::from(thread::tid())
}

/// Whether who was told is a thread of this process.
fn is_told_itself(listener: &Listener) -> bool {
    listener.told_by.load(Relaxed) >> 32 == u64::from(process::generation())
}

/// The app is told of a client now: rule 1.
pub(super) fn note_told(listener: &Listener) {
    let told_ns = listener.told_ns.load(Relaxed);
    let is_news = told_ns == 0 || !is_told_itself(listener);
    if is_news && listener.told_ns.compare_exchange(told_ns, kernel::now_ns().max(1), Relaxed, Relaxed).is_ok() {
        listener.told_by.store(this_thread(), Relaxed);
    }
}

/// This process serves the door no more.
pub(super) fn give_up(desc: &'static Desc, listener: &'static Listener) {
    let _changing = changing::changing();
    if listener.is_leaving() {
        retreat::if_empty(desc, listener);
        return;
    }
    door::leave_door(desc, listener, Reason::ListenerOnlyWatched);
}

/// A program is about to be started; `gets` tells which listeners of this process it gets, by number. Runs in a child
/// of `vfork`, too.
pub(crate) fn pass_on(mut gets: impl FnMut(i32, &'static Desc) -> bool) {
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && listener.told_ns.load(Relaxed) != 0
            && gets(fd, desc)
        {
            shut(listener);
        }
    });
}

/// Shuts a door for everybody. Nothing of this process's memory changes: it may be that of a parent.
fn shut(listener: &Listener) {
    let Some(door) = listener.door.get() else { return };
    if listener.is_served_by_several() {
        return;
    }
    let _ = kernel::shutdown(door, libc::SHUT_RDWR);
    door::send_queue_away(door);
    // Those that were put aside are told, and closed by their own process.
    listener.lobby.hang_up();
}

/// Whether this process serves the door of the listener with this cookie.
pub(super) fn serves(cookie: u64) -> bool {
    served(cookie).is_some()
}

/// The same; where it does, a client of its own stays there from now on, whatever happens.
pub(super) fn keeps_visitor(cookie: u64) -> bool {
    served(cookie).is_some_and(|listener| {
        listener.visited.store(1, Relaxed);
        match VISITED.compare_exchange(0, cookie, Relaxed, Relaxed) {
            Err(visited) if visited != cookie => VISITED.store(SEVERAL, Relaxed),
            _ => {}
        }
        true
    })
}

/// Whether a client of this process that stays there, and is no offer any more, may lie at the listener's door.
pub(super) fn may_have_visitor(cookie: u64) -> bool {
    let has = |listener: &Listener| {
        listener.visited.load(Relaxed) != 0
            && listener.door.get().is_some_and(|door| kernel::poll_now(door, libc::POLLIN) & libc::POLLIN != 0)
    };
    let visited = VISITED.load(Relaxed);
    (visited == cookie || visited == SEVERAL) && served(cookie).is_some_and(has)
}

fn served(cookie: u64) -> Option<&'static Listener> {
    listener::find(cookie).and_then(Listener::of).filter(|listener| listener.serves())
}

/// Whether `fd` is the TCP socket of a listener, whatever the table says of the number.
pub(crate) fn is_listener(fd: i32, desc: &'static Desc) -> bool {
    let cookie = kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
    Listener::of(desc).is_some_and(|listener| Ok(listener.cookie.load(Relaxed)) == cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_parent_was_told_its_child_is_told_anew() {
        let listener = listener::blank();
        note_told(&listener);
        assert!(is_told_itself(&listener) && patience_ns(&listener) == TOLD_NS);
        let told_ns = listener.told_ns.swap(1, Relaxed);
        note_told(&listener);
        assert!(told_ns != 0 && listener.told_ns.load(Relaxed) == 1, "it was told at first");
        // As a child finds it.
        listener.told_by.fetch_sub(1 << 32, Relaxed);
        assert!(!is_told_itself(&listener));
        note_told(&listener);
        assert!(listener.told_ns.load(Relaxed) >= told_ns && patience_ns(&listener) == TOLD_NS);
    }
}

//! Leaving the door while it is served, because a limit is near ([`crate::limits`]).
//!
//! Clients whose hello is in the door's queue have been promised a server, so they are served. Nobody else is let in:
//!
//! 1. The door is shut down for reading: connecting is refused from then on (unix_stream_connect() looks at
//!    `RCV_SHUTDOWN`), so clients use TCP at once, while what is queued can still be accepted.
//! 2. Whoever finds the queue empty closes the door. The listener has the limit for its reason.
//! 3. Where other processes serve the same door it is theirs, with its queue, and this process only leaves it.
//! 4. A later `accept` or poll makes the door anew when the limit is no longer near ([`super::door`]).
//!
//! When there is no descriptor left for the program, doors at which nobody waits are closed at once, with what else is
//! hidden. Where clients wait the door stays, although it is in the way of one descriptor: a client of this very
//! process would find no number either with which to begin again over TCP. A process that only inherited a door which
//! another serves leaves it in any case.

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Reason;

use super::listener::Listener;
use super::reserve;
use super::{door, lobby, pool, sleepers, untended};
use crate::desc::Desc;
use crate::{changing, kernel, limits, table};

/// A lane was mapped for a client: if that was one of the last that there is room for, doors let nobody in any more.
/// The caller holds `changing::changing`.
pub(super) fn if_near_a_limit() {
    if let Err(reason) = limits::may_serve() {
        from_all_doors(reason);
    }
}

/// No door of this process lets anybody in any more. The caller holds `changing::changing`.
pub(crate) fn from_all_doors(reason: Reason) {
    each_listener(|desc, listener| {
        begin_now(desc, listener, reason);
    });
}

/// The limit of descriptors is about to become `limit`. Where it is lowered below numbers of ours, these serve as
/// before, but to give one up gains the program none. So doors are made anew, below the limit, where there is room for
/// them ([`super::door`]); until then clients come over TCP. The caller holds `changing::changing`.
pub(crate) fn descriptor_limit_changes(limit: u64) {
    if reserve::change_descriptor_limit(limit) {
        from_all_doors(Reason::DescriptorsShort);
    }
}

fn each_listener(mut f: impl FnMut(&'static Desc, &'static Listener)) {
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && desc.fd.load(Relaxed) == fd
        {
            f(desc, listener);
        }
    });
}

/// Lets nobody in at a door any more. Returns whether this process still has clients to take from it, perhaps. No epoll
/// set may be locked. The caller holds `changing::changing`.
pub(super) fn begin_now(desc: &'static Desc, listener: &'static Listener, reason: Reason) -> bool {
    if listener.serves() && !listener.serves_alone() && listener.door.get().is_some() {
        door::leave_door(desc, listener, reason);
        return false;
    }
    let _guard = listener.lock.lock();
    let Some(open) = listener.door.get().filter(|_| listener.serves()) else { return false };
    lobby::give_up_kept(&listener.lobby);
    if listener.leaving.replace(Some(reason)).is_none() {
        let _ = kernel::shutdown(open, libc::SHUT_RD);
    }
    true
}

/// The door's queue was found empty: closes the door if nobody is let in any more. No epoll set may be locked.
pub(super) fn if_empty(desc: &'static Desc, listener: &'static Listener) {
    if listener.is_leaving() {
        finish(desc, listener);
    }
}

#[cold]
fn finish(desc: &'static Desc, listener: &'static Listener) {
    let _changing = changing::changing();
    // Another thread may have been faster, and the door may be a new one.
    let Some(reason) = listener.leaving.get() else { return };
    door::unwatch_for_all(desc, listener);
    let _guard = listener.lock.lock();
    listener.leaving.set(None);
    if let Some(door) = listener.door.get() {
        // Nobody else serves it, but others may hold it, and with it the clients that are still there.
        door::send_queue_away(door);
    }
    door::close(listener, false);
    listener.set_open(false);
    listener.tried_ns.store(kernel::now_ns(), Relaxed);
    listener.set_doorless(reason);
}

/// The program has no descriptor left, and none of those that are only there for speed: gives up the last ones.
/// The caller holds `changing::changing`.
pub(super) fn give_up_descriptors() -> bool {
    let mut any = pool::release_descriptors() | reserve::release_reserve();
    each_listener(|desc, listener| {
        let guard = listener.lock.lock();
        any |= lobby::give_up_kept(&listener.lobby);
        // In the queue of a door that is shut there are fillers alone.
        let nobody_waits = |door: i32| {
            !listener.is_open() || kernel::poll_now(door, libc::POLLIN) == 0 && !listener.lobby.is_occupied()
        };
        let is_served_elsewhere = || !listener.serves() && !listener.serves_alone();
        let is_idle = listener.door.get().is_some_and(|door| nobody_waits(door) || is_served_elsewhere());
        drop(guard);
        if is_idle {
            door::leave_door(desc, listener, Reason::DescriptorsShort);
            any = true;
        }
        let _guard = listener.lock.lock();
        // Threads that sleep in a set of their own would not hear there of a door that is made anew.
        any |= listener.is_shared() && sleepers::end(listener);
        any |= untended::end(listener);
    });
    any
}

//! A door of another program that nobody serves any more, while this one accepts.
//!
//! A program that is started with a listener, or receives one, finds the door's name taken as long as the program that
//! had the listener before keeps it. That one may accept no more: it drains, or its workers were killed and their
//! master only waits. Its door stands open, nobody can close it from outside, and each client's hello would lie there
//! for as long as clients are patient ([`super::offers`]), although this program accepts what they send over TCP then.
//!
//! 1. A program that looks for clients and has no door for that reason sends a client of its own to the other one, that
//!    has hung up already: who serves the door closes its end at once. A server that blocks is not told of it; one that
//!    does not is, as of any client that has not spoken yet, and is told `EAGAIN` then.
//! 2. One that nobody has closed for [`UNTENDED_NS`] shows that the door is not served. Then its queue is filled
//!    ([`door::fill_queue`]), and clients that find it full go by TCP. Who serves the door after all takes the fillers
//!    away, and clients come again: nothing has to be taken back.
//! 3. Only a door of the program's own user, or of root, is asked: others may have taken the name, and accept for ever.
//! 4. It is asked for again while clients come: [`PAUSE_NS`] after an answer, [`UNTENDED_NS`] without one.

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;
use beeline_stats::Reason;

use super::listener::Listener;
use super::{door, trust};
use crate::{hidden, kernel};

/// How long a client that has hung up lies at a door that is served, at most, as far as other clients want to wait.
const UNTENDED_NS: u64 = 40_000_000;
/// How long nothing is asked after an answer.
const PAUSE_NS: u64 = 200_000_000;

/// Looks whether the door that has the listener's name is served, if it is another program's. Cheap when it is not time
/// for that.
pub(super) fn look(listener: &Listener) {
    if listener.doorless.get() == Some(Reason::DoorNameTaken) && kernel::now_ns() >= listener.asks_ns.load(Relaxed) {
        ask(listener);
    }
}

#[cold]
fn ask(listener: &Listener) {
    let _guard = listener.lock.lock();
    let now_ns = kernel::now_ns();
    // Another thread may have been faster.
    if now_ns < listener.asks_ns.load(Relaxed) || listener.door.get().is_some() {
        return;
    }
    let pause_ns = match listener.asker.get() {
        Some(asker) if kernel::poll_now(asker, 0) & libc::POLLHUP == 0 => {
            door::fill_queue(listener);
            UNTENDED_NS
        }
        Some(_) => {
            end(listener);
            PAUSE_NS
        }
        None => {
            listener.asker.set(hung_up_at_door(listener));
            if listener.asker.get().is_some() { UNTENDED_NS } else { PAUSE_NS }
        }
    };
    listener.asks_ns.store(now_ns.saturating_add(pause_ns), Relaxed);
}

/// A client at the door that says nothing, and that whoever accepts it finds gone. None at a door that is shut or full,
/// or somebody else's.
fn hung_up_at_door(listener: &Listener) -> Option<i32> {
    if !hidden::has_spare() {
        return None;
    }
    let client = door::client_of(listener)?;
    if !trust::peer_uid(client).is_some_and(|uid| uid == 0 || uid == trust::euid()) {
        let _ = sys::close(client);
        return None;
    }
    let _ = kernel::shutdown(client, libc::SHUT_WR);
    Some(hidden::hide(client))
}

/// Asks no more. The caller holds the listener's lock. Whether that gives a descriptor back.
pub(super) fn end(listener: &Listener) -> bool {
    listener.asker.take().map(hidden::close_hidden).is_some()
}

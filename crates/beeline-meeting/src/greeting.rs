//! A client at a door: whose door it is, and the hello.

use core::net::SocketAddr;

use beeline_shm::{Fd, socket_pair};
use beeline_stats::{Counter, Reason};
use beeline_wire::{ConnName, DoorName, Held, Hello};

use super::lookup::{self, Target};
use super::pool::{Offer, PooledLane};
use super::trust::{OwnUser, Peer};
use super::{hello_io, trust};
use crate::kernel::{self, SockAddr};
use crate::{Errno, calibrate, process, stats};

/// Whether the door of a listener seems to be open, or full. The server hears nothing of the question: the kernel finds
/// the door, and then that who asks is connected already. Where it cannot be asked the answer is yes.
#[must_use]
pub fn is_open(cookie: u64) -> bool {
    let Some(door) = SockAddr::abstract_unix(DoorName::encode(cookie).as_bytes()) else { return true };
    let Ok([probe, _peer]) = socket_pair() else { return true };
    kernel::connect(probe.get(), &door) != Err(Errno(libc::ECONNREFUSED))
}

/// Connects to the door.
///
/// # Errors
/// Why it is not entered.
pub fn enter_door(anchor: &Fd, destination: SocketAddr, target: Target) -> Result<(), Reason> {
    calibrate::small_send_buffer()?;
    trust::refuse_rights(anchor.get());
    let door = SockAddr::abstract_unix(DoorName::encode(target.cookie).as_bytes()).ok_or(Reason::Internal)?;
    match kernel::connect(anchor.get(), &door) {
        Ok(_) => Ok(()),
        Err(Errno(libc::EAGAIN)) => Err(Reason::DoorFull),
        Err(Errno(libc::EPERM | libc::EACCES)) => Err(Reason::SystemCallDenied),
        Err(_) => {
            lookup::note_doorless(destination);
            Err(Reason::NoDoor)
        }
    }
}

/// Proves that the door that was entered is the listener's own. Returns who opened it.
///
/// # Errors
/// Why it is left again.
pub fn who_opened(
    anchor: &Fd,
    name: &ConnName,
    destination: SocketAddr,
    target: Target,
    ours: &OwnUser,
) -> Result<Peer, Reason> {
    // The next client would find the same, and wake the server for nothing.
    let barred = |reason| {
        lookup::note_barred(destination, target.cookie, reason);
        reason
    };
    let peer = trust::peer(anchor.get()).ok_or_else(|| barred(Reason::DoorNotTrusted))?;
    let uid = peer.uid;
    if !ours.may_share(uid) {
        return Err(barred(Reason::ForeignUser));
    }
    // A remembered answer is a little old. It will do for our own user and for root, who could do to us what
    // they like; anybody else must own the port now that the connection stands.
    let owner = if ours.believes(uid) {
        target.uid
    } else {
        let now = lookup::listener_now(destination, name.client.address())?;
        if now.cookie != target.cookie {
            return Err(Reason::DoorNotTrusted);
        }
        now.uid
    };
    if trust::may_serve(uid, owner) { Ok(peer) } else { Err(barred(Reason::DoorNotTrusted)) }
}

/// Says hello, with the lane that is offered, unless the server has it already.
///
/// # Errors
/// Why the server will not have heard it; the lane goes back to the pool.
pub fn say_hello(anchor: i32, offer: Offer, held: Option<Held>) -> Result<&'static PooledLane, Reason> {
    if !offer.is_to_be_said() {
        stats::count(Counter::HellosUnsaid, 1);
        return Ok(offer.sent());
    }
    let hello = Hello {
        reuse: false,
        ring_bytes: offer.lane.memory().ring_bytes(),
        generation: 0,
        pid_hint: process::owner(),
        lane_inode: offer.lane.inode(),
        held,
    };
    match hello_io::send(anchor, &hello, offer.memfd) {
        Ok(()) => Ok(offer.sent()),
        Err(errno) => {
            offer.withdraw();
            Err(match errno.0 {
                libc::ETOOMANYREFS => Reason::RightsShort,
                libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Reason::DoorDied,
                libc::EPERM | libc::EACCES => Reason::SystemCallDenied,
                _ => Reason::Internal,
            })
        }
    }
}

//! What the kernel, or the lane itself, says of the peer's end, and what that means for the connection.

use beeline_lane::{Fault, flags};
use beeline_stats::Poison;

use super::readiness::room_is_untold;
use crate::desc::Desc;
use crate::ending::{Next, hear, observe};
use crate::operations::Fallback;
use crate::side::{reset, state};

/// The anchor reported that the peer's end is closed. `just_sent` bytes of ours were published by the call
/// that noticed, so they do not count as left unread by a peer that died before.
///
/// No lock may be held.
#[cold]
pub(crate) fn gone(fd: i32, desc: &'static Desc, just_sent: u32) -> Next {
    // A handler that runs meanwhile may close it.
    let pin = desc.pin();
    let side = desc.side();
    observe(desc, side);
    if !side.is(state::TAKEN) && desc.end() == beeline_lane::End::Client && !side.is(state::PEER_CLOSED) {
        // The door died before anybody took the hello: nothing we sent was read.
        match pin.while_waiting(|| (desc.operations.get().begin_anew)(fd, desc)) {
            Fallback::OverTcp => return Next::Kernel,
            Fallback::Kept => return Next::Again,
            // The server has taken it and died before it could say so.
            Fallback::Lost if side.is(state::TAKEN) => {}
            Fallback::Lost => {
                reset(side, libc::ECONNRESET);
                return Next::Again;
            }
        }
    }
    if !side.is(state::PEER_CLOSED) {
        // Closed without a word: killed, or the last of several holders did not know that it was the last. TCP would
        // have sent RST if the peer had left bytes unread, or lingered for no time with the connection unfinished.
        let lane = desc.lane();
        let unread = side.tx.tail().wrapping_sub(lane.head(desc.end().peer()));
        let theirs = lane.flags(desc.end().peer());
        let finished = theirs & flags::FIN != 0 && side.is(state::SHUT_WR);
        if unread > just_sent || side.is(state::BRIDGED) || theirs & flags::ABORTS != 0 && !finished {
            reset(side, libc::ECONNRESET);
        } else {
            side.mark(state::PEER_FIN | state::PEER_CLOSED);
        }
    }
    Next::Again
}

/// What a kernel look at an anchor said. No lock may be held.
pub(crate) fn kernel_said(fd: i32, desc: &'static Desc, revents: i16) -> Next {
    match hear(desc, revents) {
        Ok(()) => Next::Again,
        Err(found) => fault(fd, desc, found, 0),
    }
}

/// Whether `revents`, with which the kernel ended a sleep, tell nothing and would end each sleep at once: of halves
/// that are shut down, or of room that there is not. Whoever waits all the same looks every millisecond.
pub(crate) fn tells_nothing(desc: &Desc, revents: i16) -> bool {
    revents & libc::POLLHUP != 0 && !desc.side().is(state::PEER_CLOSED | state::RESET)
        || revents == libc::POLLOUT && room_is_untold(desc)
}

/// Answers a fault of the peer found while `desc` was locked; the locks are dropped before.
#[cold]
pub(crate) fn fault(fd: i32, desc: &'static Desc, fault: Fault, just_sent: u32) -> Next {
    let poison = match fault {
        Fault::Gone => return gone(fd, desc, just_sent),
        Fault::CursorBeyondRing => Poison::CursorBeyondRing,
        Fault::HeadBeyondTail => Poison::HeadBeyondTail,
        Fault::BadBell => Poison::BadBellByte,
    };
    crate::ending::poison(desc, poison);
    Next::Again
}

//! Sending and receiving on lanes, and how a connection ends.
//!
//! # Errors in TCP's terms
//!
//! | what happened | `recv` after the data is read | `send` |
//! |---|---|---|
//! | peer shut down or closed, all of our bytes read | 0 | goes on; after a close the first one still succeeds, then `EPIPE` |
//! | peer closed with our bytes unread, or aborted | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//! | peer killed | as closed, judged by the cursors | the same |
//! | bridge killed | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//! | the peer broke the protocol | `ECONNRESET` once, then 0 | `ECONNRESET` once, then `EPIPE` |
//!
//! The anchor only ever says "gone"; what that means is computed from the fronts ([`gone`]).

mod arm;
mod blocking;
mod dead;
mod flagged;
mod low_water;
mod messages;
mod peeked;
mod pipe;
mod pollers;
mod quiet;
mod receive;
mod send;
mod shutdown;
mod transfer;
mod urgent;

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Fault, flags};
use beeline_stats::Poison;

pub(crate) use crate::anchor::{Anchor, disarm, disarm_rights};
pub(crate) use crate::calibrate::small_send_buffer;
pub use crate::ending::poison;
pub(crate) use crate::ending::{DEAF, Next, TELLING, hear, observe, tell_linger, tells_of_end};
pub(crate) use crate::side::{look_here, reset};
pub(crate) use arm::arm_lane;
pub use flagged::{preadv2, pwritev2};
pub(crate) use low_water::{count_arrivals, low_water, set_low_water};
pub use messages::{recvmmsg, recvmsg, sendmmsg, sendmsg};
pub(crate) use pollers::{Poller, reset_after_fork, somebody_polls};
pub use receive::{read, read_in_full, readv, recv, recv_at_once, recv_in_full, recvfrom};
pub use send::{send, send_at_once, send_in_full, sendto, writev};
pub(crate) use shutdown::shutdown;
pub use transfer::{sendfile, splice};
pub(crate) use urgent::{at_mark, own, set_inline, unread as unread_bytes};

use crate::desc::Desc;
use crate::operations::Begun;
use crate::side::{SideState, state};
use crate::{follow, kernel};

/// The anchor reported that the peer's end is closed. `just_sent` bytes of ours were published by the call
/// that noticed, so they do not count as left unread by a peer that died before.
///
/// No lock may be held.
#[cold]
pub(crate) fn gone(fd: i32, desc: &'static Desc, just_sent: u32) -> Next {
    let side = desc.side();
    observe(desc, side);
    if !side.is(state::TAKEN) && desc.end() == beeline_lane::End::Client && !side.is(state::PEER_CLOSED) {
        // The door died before anybody took the hello: nothing we sent was read.
        match (desc.operations.get().begin_anew)(fd, desc) {
            Begun::Anew => return Next::Kernel,
            Begun::Not => return Next::Again,
            // The server has taken it and died before it could say so.
            Begun::Never if side.is(state::TAKEN) => {}
            Begun::Never => {
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
        Err(fault) => self::fault(fd, desc, fault, 0),
    }
}

/// After a sleep that the kernel ended with `revents`: halves that are shut down end every sleep at once, and whoever
/// waits all the same looks every millisecond.
pub(crate) fn pace(desc: &Desc, revents: i16) {
    if revents & libc::POLLHUP != 0 && !desc.side().is(state::PEER_CLOSED | state::RESET) {
        kernel::sleep_ms();
    }
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
    self::poison(desc, poison);
    Next::Again
}

/// Whether the receiving half is over, once the ring is empty.
#[inline]
pub(crate) fn receive_over(side: &SideState) -> bool {
    side.is(state::PEER_FIN | state::RESET | state::SHUT_RD)
}

/// Unread bytes without the lock: a hint, as another reader may be at work. Nonsense counts as some.
#[inline]
pub(crate) fn unread_hint(desc: &Desc, side: &SideState) -> u32 {
    let cursor = desc.lane().cursor(desc.end().peer());
    ((cursor >> 32) as u32).wrapping_sub(side.rx.head())
}

/// Whether `send` would take bytes, without the lock.
#[inline]
pub(crate) fn writable_hint(desc: &Desc, side: &SideState) -> bool {
    let lane = desc.lane();
    let ring = lane.ring_bytes();
    let most = ring - (ring >> 2);
    // What this end knows will do in most cases, and leaves the peer's head in the peer's cache.
    if side.tx.unread_known() <= most {
        return true;
    }
    let used = side.tx.tail().wrapping_sub(lane.head(desc.end().peer()));
    used <= most || used > ring
}

/// Whether there is something to read, if there is nothing else to tell but that and room: the most frequent answers of
/// [`poll_mask`], from one look at the peer's front.
#[inline]
pub(crate) fn plainly_readable(desc: &Desc) -> Option<bool> {
    let (side, lane, peer) = (desc.side(), desc.lane(), desc.end().peer());
    let readable = (lane.cursor(peer) >> 32) as u32 != side.rx.head();
    let plain = lane.flags(peer) & TELLING == 0
        && !side.is(state::PEER_FIN | state::RESET | state::SHUT_RD | state::SHUT_WR | state::RELAYED)
        && side.error.load(Relaxed) == 0
        && (!readable || side.receives_plainly());
    plain.then_some(readable)
}

/// Spins at a lane that has just had nothing to report until its peer says something, or all `looks` are taken.
#[inline]
pub(crate) fn rest_at(desc: &Desc, looks: &mut impl Iterator) {
    let (lane, peer, head) = (desc.lane(), desc.end().peer(), desc.side().rx.head());
    loop {
        core::hint::spin_loop();
        let quiet = (lane.cursor(peer) >> 32) as u32 == head && lane.flags(peer) & TELLING == 0;
        if !quiet || looks.next().is_none() {
            return;
        }
    }
}

/// poll(2)'s events of a lane, as tcp_poll() computes them (Linux net/ipv4/tcp.c). None for an end that another holder
/// has demoted: the caller catches up before it sleeps.
pub(crate) fn poll_mask(desc: &Desc) -> i16 {
    let side = desc.side();
    if side.is(state::RELAYED) {
        follow::fall_behind();
        return 0;
    }
    observe(desc, side);
    let mut mask = 0;
    if side.error.load(Relaxed) != 0 {
        mask |= libc::POLLERR;
    }
    let receive_shut = side.is(state::PEER_FIN | state::RESET | state::SHUT_RD);
    let send_shut = side.is(state::SHUT_WR | state::RESET);
    if receive_shut && send_shut {
        mask |= libc::POLLHUP;
    }
    let urgent = desc.lane().flags(desc.end().peer()) & flags::URGENT != 0;
    if urgent {
        mask |= urgent::poll_mask(desc, side);
    }
    if receive_shut {
        mask |= libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
    } else if !urgent && unread_hint(desc, side) >= low_water(desc, side) {
        mask |= libc::POLLIN | libc::POLLRDNORM;
    }
    if send_shut || writable_hint(desc, side) {
        mask |= libc::POLLOUT | libc::POLLWRNORM;
    }
    mask
}

/// Events that poll(2) reports whether asked or not.
pub(crate) const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

//! Whether a lane is readable, writable or at an end, as poll(2) and epoll(7) would say of a TCP socket.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_lane::flags;

use super::low_water::low_water;
use super::urgent;
use crate::desc::Desc;
use crate::ending::{TELLING, observe};
use crate::follow;
use crate::side::{SideState, state};
use crate::untaken;

/// Events that poll(2) reports whether asked or not.
pub(crate) const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
/// Events that say of a connection that there are bytes, or its end: poll(2) has two bits for them.
pub(crate) const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
/// Likewise that there is room.
pub(crate) const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// Whether the receiving half is over, once the ring is empty. Pairs with [`SideState::mark`] of whichever thread has
/// learnt of the end: a look at the ring that follows finds the last bytes before it.
#[inline]
pub(crate) fn receive_over(side: &SideState) -> bool {
    side.state.load(Acquire) & (state::PEER_FIN | state::RESET | state::SHUT_RD) != 0
}

/// Unread bytes without the lock: a hint, as another reader may be at work. Nonsense counts as some, for whoever looks
/// whether there is anything; how much it says is told to nobody.
#[inline]
pub(crate) fn unread_hint(desc: &Desc, side: &SideState) -> u32 {
    desc.lane().cursor(desc.end().peer()).tail.wrapping_sub(side.rx.head())
}

/// Whether `send` would take bytes, without the lock.
#[inline]
pub(crate) fn writable_hint(desc: &Desc, side: &SideState) -> bool {
    let lane = desc.lane();
    let ring = lane.ring_bytes();
    let in_use = ring.saturating_sub(untaken::held_back(desc, side));
    let most = in_use - (in_use >> 2);
    // What this end knows will do in most cases, and leaves the peer's head in the peer's cache.
    if side.tx.unread_known() <= most {
        return true;
    }
    let used = side.tx.tail().wrapping_sub(lane.head(desc.end().peer()));
    used <= most || used > ring
}

/// Whether there is no room, and the kernel may say that there is: bells lie nowhere at a peer that reads no more, and
/// plug nothing (rule 6 of waking a writer, [`beeline_lane`]). Whoever waits looks again a moment later.
pub(crate) fn room_is_untold(desc: &Desc) -> bool {
    let side = desc.side();
    desc.lane().flags(desc.end().peer()) & flags::SHUT_RD != 0
        && !side.is(state::SHUT_WR | state::PEER_CLOSED | state::RESET)
        && !writable_hint(desc, side)
}

/// Bits of the state that have something else to tell.
const TELLING_STATE: u32 =
    state::PEER_FIN | state::RESET | state::SHUT_RD | state::SHUT_WR | state::RELAYED | state::COMPLETED;

/// Whether there is something to read, if there is nothing else to tell but that and room: the most frequent answers of
/// [`poll_mask`], from one look at the peer's front.
#[inline]
pub(crate) fn plainly_readable(desc: &Desc) -> Option<bool> {
    let (side, lane, peer) = (desc.side(), desc.lane(), desc.end().peer());
    let readable = lane.cursor(peer).tail != side.rx.head();
    let plain = lane.flags(peer) & TELLING == 0
        && !side.is(TELLING_STATE)
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
        let quiet = lane.cursor(peer).tail == head && lane.flags(peer) & TELLING == 0;
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
    if side.error.load(Relaxed) != 0 || side.has_completions() {
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
        mask |= READABLE | libc::POLLRDHUP;
    } else if !urgent && unread_hint(desc, side) >= low_water(desc, side) {
        mask |= READABLE;
    }
    if send_shut || writable_hint(desc, side) {
        mask |= WRITABLE;
    }
    mask
}

//! `SO_RCVLOWAT`: how much is to lie unread before anybody is told of it.
//!
//! An edge-triggered poller is told of each arrival. As long as every byte is one, the peer's tail counts them. With a
//! mark above one, what counts is what tcp_data_ready() and its callers tell (Linux net/ipv4/tcp_input.c, tcp.c):
//!
//! 1. bytes that leave at least the mark unread;
//! 2. an urgent byte, whatever lies unread (tcp_urg());
//! 3. the mark being set, if it finds as much unread (tcp_set_rcvlowat()).
//!
//! Those are counted in [`SideState::arrivals`] by whoever is about to look at the connection or to take bytes from it.
//! Bytes that were too few when they came never count, not even when the mark is lowered afterwards. So while the mark
//! is above one the count of bytes stands still at [`SideState::low_water_tail`], and so it does when the mark is
//! lowered, until the next byte comes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use beeline_lane::flags;

use super::readiness::unread_hint;
use super::urgent;
use crate::desc::Desc;
use crate::ending::observe;
use crate::side::{LOWERED, SideState, state};

/// Counts what has arrived. Returns the tail up to which each byte was an arrival; `arrivals` counts the others.
#[inline]
pub(crate) fn count_arrivals(desc: &Desc, side: &SideState) -> u32 {
    let tail = desc.lane().cursor(desc.end().peer()).tail;
    match side.rcv_lowat() {
        0 => tail,
        LOWERED => count_since_lowered(side, tail),
        _ => count_by_mark(desc, side, tail),
    }
}

#[cold]
fn count_since_lowered(side: &SideState, tail: u32) -> u32 {
    if side.counted_tail.load(Acquire) == tail {
        return side.low_water_tail.load(Relaxed);
    }
    // Lost to somebody who sets the mark meanwhile.
    side.end_lowered();
    tail
}

#[cold]
fn count_by_mark(desc: &Desc, side: &SideState, tail: u32) -> u32 {
    if side.counted_tail.load(Acquire) != tail {
        let urgent = urgent::note_last(desc, side);
        if urgent || unread(desc, side) >= low_water(desc, side) {
            side.arrivals.fetch_add(1, Relaxed);
        }
        // After the count: whoever finds this tail counted must find that, too. Two who count the same tell of it
        // twice.
        side.counted_tail.store(tail, Release);
    }
    side.low_water_tail.load(Relaxed)
}

/// Unread bytes, without those that a later urgent byte made pass.
fn unread(desc: &Desc, side: &SideState) -> u32 {
    match desc.lane().flags(desc.end().peer()) & flags::URGENT {
        0 => unread_hint(desc, side),
        _ => urgent::view(desc, side).unread,
    }
}

/// Sets the mark of a connection.
pub(crate) fn set_low_water(desc: &'static Desc, bytes: u32) {
    let side = desc.side();
    // What came before counts by the mark so far.
    let tail = count_arrivals(desc, side);
    match (side.rcv_lowat(), bytes) {
        (0 | LOWERED, 0..=1) => {}
        (_, 0..=1) => side.set_rcv_lowat(LOWERED),
        (before, _) => {
            if before == 0 {
                urgent::note_last(desc, side);
                side.counted_tail.store(tail, Relaxed);
                side.low_water_tail.store(tail, Relaxed);
            }
            side.set_rcv_lowat(bytes);
        }
    }
    observe(desc, side);
    if side.is(state::PEER_FIN) || unread(desc, side) >= low_water(desc, side) {
        side.arrivals.fetch_add(1, Relaxed);
        crate::watchers::notify(desc.fd.load(Relaxed), desc);
    }
}

/// The mark, no more than half the ring, as TCP bounds it by half the buffer.
pub(crate) fn low_water(desc: &Desc, side: &SideState) -> u32 {
    side.rcv_lowat().clamp(1, desc.lane().ring_bytes() / 2)
}

//! How far a stream runs ahead of a loop by edges.
//!
//! A loop whose set tells of edges reads what lies there before it turns to the next connection. Where a stream fills
//! a ring of 4 MiB each time, the others wait for that: half a millisecond, where TCP's sender would not have come so
//! far.
//!
//! 1. A reader to whose set others report as well ([`crate::desc::Portion`]) says that it wants no more than
//!    [`AHEAD_BYTES`] to lie unread ([`wish`]).
//! 2. A call that may block waits for that before it sends a long message to a reader on another CPU, which it does
//!    spinning and not for long ([`fall_back`]). Then it sends as ever. So nothing else changes: the ring is full when
//!    it is full, and a reader that pauses finds as much as it always would.
//! 3. Who is not to spin (`wait=wait`, `spin_ns_max=0`) does not wait. Who has waited in vain does not for the next
//!    [`RESTS`] messages: its reader is at something else.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::flags as lane_flags;

use crate::desc::{Desc, TxGuard};
use crate::wait::ticks;

/// What TCP takes over loopback however slow its reader is.
const AHEAD_BYTES: u32 = 3 << 19;
/// How long a sender waits, in ticks: some 100 us. A reader comes down from a message too much in a tenth of that.
const WAIT_TICKS: u64 = 250_000;
/// Messages that do not wait, after one that did so in vain.
const RESTS: u32 = 256;

/// Says how much this end, as a reader, wants to lie unread.
pub(crate) fn wish(desc: &Desc, has_company: bool) {
    let lane = desc.lane();
    let (said, wanted) = (lane.ahead(desc.end()), if has_company { AHEAD_BYTES } else { 0 });
    if said.load(Relaxed) != wanted {
        said.store(wanted, Relaxed);
    }
}

/// Whether a long message to this peer, by a call that may block, is to wait.
pub(super) fn is_unwished(desc: &Desc) -> bool {
    desc.lane().ahead(desc.end().peer()).load(Relaxed) != 0 && desc.wait_mode().spin_ns_max() != 0 && !desc.pace.rests()
}

/// Waits for the reader to have no more unread than it wants, but not for long.
#[cold]
pub(super) fn fall_back(guard: &TxGuard) {
    let (lane, peer, tail) = (guard.lane, guard.desc.end().peer(), guard.side.tx.tail());
    let began = ticks();
    while tail.wrapping_sub(lane.head(peer)) > AHEAD_BYTES {
        if lane.flags(peer) & (lane_flags::CLOSED | lane_flags::SHUT_RD) != 0 {
            return;
        }
        if ticks().wrapping_sub(began) > WAIT_TICKS {
            guard.desc.pace.rest(RESTS);
            return;
        }
        core::hint::spin_loop();
    }
}

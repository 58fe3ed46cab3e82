//! A sender gives a receiver on its own CPU a turn (`beeline-descriptors`, `turns`).

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys::futex;
use beeline_stats::Counter;

use crate::desc::{Desc, Pin, TxGuard};
use crate::side::{SideState, state};
use crate::stats;
use crate::turns::Way;

/// The longest that a sender waits for the receiver to have its turn: some ten times what it takes to read one.
const TURN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How a long message to a receiver on this CPU is sent; `None` if that is on another one.
pub(super) fn of(desc: &Desc, side: &SideState, flags: i32) -> Option<Way> {
    if !desc.peer_is_near() {
        return None;
    }
    // Nobody has a turn to take at an end that nobody has taken.
    let is_alone = !desc.shared.load(Relaxed) && !side.is(state::OFFERED);
    let may_wait = flags & libc::MSG_OOB == 0 && side.may_block(flags);
    Some(if is_alone && may_wait { desc.turns.way(desc.lane().ring_bytes()) } else { Way::WHOLE })
}

/// Waits for the receiver to have its turn, but not for long. Whether it has read. The lock is given back before.
pub(super) fn give(pin: &Pin, guard: TxGuard, turn: u32) -> bool {
    let desc = pin.desc();
    let (lane, peer) = (guard.lane, desc.end().peer());
    let head = lane.head(peer);
    let waits = guard.writer().ask_for_turn(turn);
    drop(guard);
    stats::count(Counter::Turns, 1);
    if waits {
        let word = lane.turn(desc.end());
        pin.while_waiting(|| futex(word, libc::FUTEX_WAIT, 1, Some(&TURN)));
        word.store(0, Relaxed);
    }
    let has_read = !waits || lane.head(peer) != head;
    desc.turns.given(has_read);
    has_read
}

//! Ending a connection in one direction or both.
//!
//! 1. The kernel is told of it, and tells everybody who sleeps at either end. It never forgets, so the anchor is of no
//!    use to another connection after that.
//! 2. So between two ends that stand (`meet::standing`) the end of what is sent is said as their close is: by a flag, a
//!    fence and a bell to a peer that is armed. Who goes to sleep and is not to be rung takes its own `STANDS` back,
//!    fences, looks at the flags, and tells the kernel what they say ([`stand_no_more`]): without `STANDS` the kernel
//!    knows which halves are over. But for who sleeps for room: where one may, the kernel is told.
//! 3. None of this end's own threads sleeps on the anchor then: a call would have a pin, and sets are told by
//!    [`crate::watchers`]. A call that comes later pins first, arms, and finds what the side says behind that fence.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Bells, WAKE_ARMED, Writer, flags};

use crate::anchor::{Anchor, Hasty};
use crate::desc::{Desc, TxGuard};
use crate::ending::{observe, stand_no_more};
use crate::side::{force_peer_look, stamp_if_all_read, state};
use crate::{Outcome, guards, kernel};

/// `shutdown(2)` of a lane.
pub(crate) fn shutdown(fd: i32, how: i32) -> Outcome {
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Outcome::fail(libc::EINVAL);
    }
    let Some(mut guard) = guards::lane_tx(fd) else { return Outcome::Kernel };
    let (desc, side) = (guard.desc, guard.side);
    observe(desc, side);
    // Also when it fails: inet_shutdown() wakes whoever waits, whatever became of the call.
    side.changes.fetch_add(1, Relaxed);
    if side.is(state::RESET) || side.is_finished() {
        drop(guard);
        crate::watchers::notify(fd, desc);
        return Outcome::fail(libc::ENOTCONN);
    }
    let end = desc.end();
    if how != libc::SHUT_WR && side.mark(state::SHUT_RD) != 0 {
        guard.lane.set_flags(end, guard.lane.flags(end) | flags::SHUT_RD);
        force_peer_look(&guard.lane, end);
    }
    let ends_sending = how != libc::SHUT_RD && side.mark(state::SHUT_WR) != 0;
    if ends_sending {
        stamp_if_all_read(&guard.lane, end, side);
        guard.lane.set_flags(end, guard.lane.flags(end) | flags::FIN);
        force_peer_look(&guard.lane, end);
    }
    let is_rung = || can_be_rung(&guard) && ring_of_end(desc, &Hasty::new(Anchor(fd)));
    let is_said = how == libc::SHUT_WR && (!ends_sending || is_rung());
    let is_known = !is_said && stand_no_more(fd, desc);
    // What follows is system calls on the number, which nobody in this process can close meanwhile.
    guard.let_others_in();
    if ends_sending && !is_said {
        // After the flag: whoever the kernel wakes finds it.
        if !is_known {
            let _ = kernel::shutdown(fd, libc::SHUT_WR);
        }
        // Senders of our own side that sleep for room are to find that they may not send.
        Anchor(fd).unplug();
    }
    // Waiters of our own side must look again, as kernel TCP wakes them: the kernel reports it to all of them.
    if how != libc::SHUT_WR {
        let _ = kernel::shutdown(fd, libc::SHUT_RD);
    }
    drop(guard);
    crate::watchers::notify(fd, desc);
    Outcome::OK
}

/// Whether a bell can tell the peer, behind the flag and its fence, that no byte follows: rule 2.
fn can_be_rung(guard: &TxGuard) -> bool {
    let (desc, lane, end) = (guard.desc, guard.lane, guard.desc.end());
    let (ours, theirs) = (lane.flags(end), lane.flags(end.peer()));
    ours & theirs & flags::STANDS != 0
        && (ours | theirs) & (flags::URGENT | flags::SIGNALLED | flags::RESET) == 0
        && !desc.shared.load(Relaxed)
        && desc.keepers.pins() == 0
        // Who sleeps for room sleeps on an anchor without any.
        && lane.write_wake(end).load(Relaxed) == 0
        && lane.write_wake(end.peer()).load(Relaxed) & WAKE_ARMED == 0
}

/// Rings a peer that stands and is armed, behind a flag and its fence that tell of this end. One that has closed and
/// keeps its anchor needs no bell. False if the kernel is to tell it. The caller holds the lock for sending.
pub(crate) fn ring_of_end(desc: &Desc, bells: &impl Bells) -> bool {
    let (lane, side, end) = (desc.lane(), desc.side(), desc.end());
    let has_closed = || lane.flags(end.peer()) & (flags::CLOSED | flags::STANDS) == flags::CLOSED | flags::STANDS;
    // It may close while it is rung.
    has_closed() || Writer::new(lane, end, &side.tx, &side.rx).tell_reader(bells).is_ok() || has_closed()
}

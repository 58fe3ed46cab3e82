//! Ending a connection in one direction or both.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Bells, flags};

use crate::anchor::Anchor;
use crate::ending::observe;
use crate::side::{clear_stands, force_peer_look, stamp_if_all_read, state};
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
    // The kernel is told of it, and never forgets.
    clear_stands(&guard.lane, end);
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
    // What follows is system calls on the number, which nobody in this process can close meanwhile.
    guard.let_others_in();
    if ends_sending {
        // After the flag: whoever the kernel wakes finds it.
        let _ = kernel::shutdown(fd, libc::SHUT_WR);
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

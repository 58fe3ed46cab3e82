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

mod anchor;
mod blocking;
mod bulk;
mod calibrate;
mod dead;
mod flagged;
mod low_water;
mod lull;
mod messages;
mod peeked;
mod pipe;
mod quiet;
mod receive;
mod send;
mod transfer;
mod urgent;

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_lane::{Bells, Fault, Storage, Wake, flags};
use beeline_stats::Poison;

pub use anchor::Anchor;
pub(crate) use anchor::{Hasty, disarm, disarm_rights};
pub use bulk::Bulk;
pub(crate) use calibrate::small_send_buffer;
pub use flagged::{preadv2, pwritev2};
pub(crate) use low_water::{count_arrivals, low_water, set_low_water};
pub use lull::Lull;
pub use messages::{recvmmsg, recvmsg, sendmmsg, sendmsg};
pub use receive::{read, read_in_full, readv, recv, recv_at_once, recv_in_full, recvfrom};
pub use send::{send, send_at_once, send_in_full, sendto, writev};
pub use transfer::{sendfile, splice};
pub(crate) use urgent::{at_mark, own, set_inline, unread as unread_bytes};

use crate::desc::{Desc, Kind};
use crate::life::relay;
use crate::meet::Begun;
use crate::side::{SideState, state};
use crate::{Outcome, kernel, stats, table};

/// Flags by which a peer says more than how far it has written.
const TELLING: u32 = flags::FIN | flags::CLOSED | flags::RESET | flags::URGENT;

/// Flags of a peer that has shut down both halves.
pub(crate) const DEAF: u32 = flags::FIN | flags::SHUT_RD;

/// What a blocked or failing operation does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Look at the connection again.
    Again,
    /// The connection is now a plain TCP socket under the same fd.
    Kernel,
}

/// Adopts what the peer's front says about its end: FIN, close, reset. Cheap: the flag word shares a line with
/// the peer's cursor.
#[inline]
pub(crate) fn observe(desc: &Desc, side: &SideState) {
    let lane = desc.lane();
    let theirs = lane.flags(desc.end().peer());
    if theirs & (flags::FIN | flags::CLOSED | flags::RESET) != 0 {
        adopt(side, theirs);
    }
    if theirs & flags::TAKEN != 0 && !side.is(state::TAKEN) {
        side.mark(state::TAKEN);
        side.state.fetch_and(!state::OFFERED, AcqRel);
    }
}

#[cold]
fn adopt(side: &SideState, theirs: u32) {
    if side.is(state::RESET) {
        return;
    }
    // In the order of TCP's segments: a FIN comes before a reset.
    if theirs & flags::FIN != 0 {
        side.mark(state::PEER_FIN);
    }
    if theirs & flags::RESET != 0 && !side.is_finished() {
        reset(side, libc::ECONNRESET);
    } else if theirs & flags::CLOSED != 0 {
        side.mark(state::PEER_FIN | state::PEER_CLOSED);
    }
}

/// Resets the connection: both directions are dead, and `errno` is pending. As in TCP, a reset that follows
/// the peer's FIN is `EPIPE`.
pub(crate) fn reset(side: &SideState, errno: i32) {
    let fin = side.is(state::PEER_FIN);
    if side.mark(state::RESET | state::PEER_CLOSED) & state::RESET != 0 {
        side.error.store(if fin { libc::EPIPE } else { errno }, Relaxed);
    }
}

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
        match crate::meet::late_fallback(fd, desc) {
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

/// Notes what a kernel look at an anchor said.
///
/// # Errors
/// The fault of the peer that it tells of, to be answered when no lock is held.
pub(crate) fn hear(desc: &'static Desc, revents: i16) -> Result<(), Fault> {
    let side = desc.side();
    if revents & libc::POLLIN != 0 {
        side.rx.note_bell();
    }
    observe(desc, side);
    if tells_of_end(desc, revents) {
        return Err(Fault::Gone);
    }
    if revents & libc::POLLRDHUP != 0 && !side.is(state::SHUT_RD | state::RESET) {
        side.mark(state::PEER_FIN);
    }
    Ok(())
}

/// Whether what the kernel says about an anchor means that the peer's end is closed. Both halves shut down, each by
/// whichever end, read as `POLLHUP`, too; an error is only left by a close.
pub(crate) fn tells_of_end(desc: &Desc, revents: i16) -> bool {
    let side = desc.side();
    let theirs = desc.lane().flags(desc.end().peer());
    let shut = (side.is(state::SHUT_RD) || theirs & flags::FIN != 0)
        && (side.is(state::SHUT_WR) || theirs & flags::SHUT_RD != 0);
    revents & libc::POLLERR != 0 || revents & libc::POLLHUP != 0 && !shut
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

/// Ends a connection whose peer did something impossible, for this end and visibly for the peer. No lock may be held.
#[cold]
pub fn poison(desc: &'static Desc, poison: Poison) {
    // The number may be another's by now, unless the lock is held.
    let _ = desc.glance(|| poison_locked(desc, poison));
}

/// [`poison`] for one who holds a lock of the lane.
#[cold]
pub(crate) fn poison_locked(desc: &'static Desc, poison: Poison) {
    let side = desc.side();
    if side.mark(state::POISONED) == 0 {
        return;
    }
    stats::poisoned(poison);
    reset(side, libc::ECONNRESET);
    let lane = desc.lane();
    let end = desc.end();
    lane.set_flags(end, lane.flags(end) & flags::TAKEN | flags::CLOSED | flags::RESET);
    let _ = kernel::shutdown(desc.fd.load(Relaxed), libc::SHUT_RDWR);
}

/// Ends a connection from outside: what is in the rings is lost, as when TCP gives a connection up.
pub(crate) fn cut(desc: &'static Desc, errno: i32) {
    let side = desc.side();
    reset(side, errno);
    let (lane, end) = (desc.lane(), desc.end());
    lane.set_flags(end, lane.flags(end) & flags::TAKEN | flags::CLOSED | flags::RESET);
    let _ = kernel::shutdown(desc.fd.load(Relaxed), libc::SHUT_RDWR);
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
        relay::fall_behind();
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

/// `shutdown(2)`.
pub fn shutdown(fd: i32, how: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Listener => return crate::meet::shutdown_listener(desc, how),
        Kind::Orphan => return Outcome::fail(libc::ENOTCONN),
        Kind::Lane => {}
        _ => return Outcome::Kernel,
    }
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Outcome::fail(libc::EINVAL);
    }
    let Some(mut guard) = table::lane_tx(fd) else { return Outcome::Kernel };
    let (desc, side) = (guard.desc, guard.side);
    observe(desc, side);
    // Also when it fails: inet_shutdown() wakes whoever waits, whatever became of the call.
    side.changes.fetch_add(1, Relaxed);
    if side.is(state::RESET) || side.is_finished() {
        drop(guard);
        crate::epoll::stir(fd, desc);
        return Outcome::fail(libc::ENOTCONN);
    }
    let end = desc.end();
    if how != libc::SHUT_WR && side.mark(state::SHUT_RD) != 0 {
        guard.lane.set_flags(end, guard.lane.flags(end) | flags::SHUT_RD);
        look_here(&guard.lane, end);
    }
    let ends_sending = how != libc::SHUT_RD && side.mark(state::SHUT_WR) != 0;
    if ends_sending {
        say_when(&guard.lane, end, side);
        guard.lane.set_flags(end, guard.lane.flags(end) | flags::FIN);
        look_here(&guard.lane, end);
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
    crate::epoll::stir(fd, desc);
    Outcome::OK
}

/// Before the flag of an end: where nothing is left to read before it, it is what comes first.
fn say_when(lane: &beeline_lane::LaneMemory, end: beeline_lane::End, side: &SideState) {
    if side.tx.tail() == lane.head(end.peer()) {
        lane.set_stamp(end);
    }
}

/// Arms the read wake word, so that the peer's next send leaves its fast path and looks at this end's flags and at
/// its anchor.
pub(crate) fn look_here(lane: &beeline_lane::LaneMemory, end: beeline_lane::End) {
    let armed = lane.wake(end, Wake::Read) | 1;
    // Far from the generations that this end's reader will use: no swap by the peer is meant for one of those.
    lane.set_wake(end, Wake::Read, armed.wrapping_add(1 << 30));
    lane.full_fence();
}

/// Tells the peer what it means if this end vanishes: to be called when `SO_LINGER` may have changed. No lock may be
/// held.
pub(crate) fn tell_linger(desc: &'static Desc) {
    let _both = desc.lock_both();
    if desc.is_lane() {
        mark_linger(&desc.lane(), desc.end(), desc.side());
    }
}

/// [`tell_linger`] for one who holds both locks.
pub(crate) fn mark_linger(lane: &beeline_lane::LaneMemory, end: beeline_lane::End, side: &SideState) {
    let ours = lane.flags(end);
    let meant = if side.linger.load(Relaxed) == 1 { ours | flags::ABORTS } else { ours & !flags::ABORTS };
    if meant != ours {
        lane.set_flags(end, meant);
    }
}

/// Naps for which a close waits for another holder of the end.
const CLOSE_NAPS: u32 = 20;

/// Tells the peer that this process gives up the end, and makes the description `Closed`. Called when the last
/// fd is about to be closed; the anchor is still open. If another process holds the end, only this process's
/// use of it ends, and nothing else if that is a relay's.
pub fn close_lane(desc: &'static Desc) {
    let both = desc.lock_both();
    if !desc.is_lane() {
        return;
    }
    let (lane, side, end) = (desc.lane(), desc.side(), desc.end());
    let shared = desc.shared.load(Relaxed);
    // A holder that is stopped does not keep this process from closing its end. What the lock is for is that nobody
    // demotes the end meanwhile, and who does that is not stopped for long.
    let sharing = if shared { side.tx_lock.lock_within(CLOSE_NAPS) } else { None };
    if shared {
        side.leave(crate::life::owner());
        if side.is(state::RELAYED) {
            desc.mark_closed();
            drop((sharing, both));
            return relay::left(side);
        }
    }
    if side.holders.fetch_sub(1, AcqRel) <= 1 {
        crate::meet::note_end(desc);
        observe(desc, side);
        let unread = unread_hint(desc, side) != 0;
        // A reset is no FIN: only one that was sent before it is seen before it.
        let resets = (unread || side.linger.load(Relaxed) == 1) && !side.is_finished();
        let last = if resets { flags::RESET } else { flags::FIN };
        say_when(&lane, end, side);
        lane.set_flags(end, lane.flags(end) | flags::CLOSED | last);
        look_here(&lane, end);
        if desc.pins.load(Relaxed) != 0 {
            // Threads that sleep on the connection find it closed.
            let fd = desc.fd.load(Relaxed);
            let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
            Anchor(fd).unplug();
        }
    } else {
        // Who seems to hold it, too, may have been killed, and then nobody comes after us.
        mark_linger(&lane, end, side);
    }
    desc.mark_closed();
    drop((sharing, both));
}

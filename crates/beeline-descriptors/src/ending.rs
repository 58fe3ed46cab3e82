//! What an end knows of its peer's end, and how a connection ends.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

pub use beeline_lane::flags::SHUT_BOTH;
use beeline_lane::{Fault, flags};
use beeline_stats::Poison;

use crate::desc::Desc;
use crate::side::{SideState, clear_stands, mark_linger, reset, state};
use crate::wait::ticks;
use crate::{kernel, stats};

/// Flags by which a peer says more than how far it has written.
pub const TELLING: u32 = flags::FIN | flags::CLOSED | flags::RESET | flags::URGENT;

/// What a blocked or failing operation does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Look at the connection again.
    Again,
    /// The connection is now a plain TCP socket under the same fd.
    Kernel,
}

/// Adopts what the peer's front says about its end: FIN, close, reset. Cheap: the flag word shares a line with
/// the peer's cursor.
#[inline]
pub fn observe(desc: &Desc, side: &SideState) {
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

/// Whether the peer has closed its end, or sends no more, and that is news. A peer that keeps its anchor sets the flag,
/// fences, and rings who has armed; who has armed and fenced looks here. The kernel tells nothing then.
#[inline]
pub fn hears_of_end(desc: &Desc, side: &SideState) -> bool {
    let theirs = desc.lane().flags(desc.end().peer());
    let is_new = |flag, known| theirs & flag != 0 && !side.is(known | state::RESET);
    let is_news = is_new(flags::CLOSED, state::PEER_CLOSED) || is_new(flags::FIN, state::PEER_FIN);
    if is_news {
        observe(desc, side);
    }
    is_news
}

/// This end keeps no anchor, and from now on the kernel tells it of all that becomes of the peer's: what both have said
/// without it until now it is told here. Whether that was so of this end's FIN. For one who holds the lock for sending,
/// with the anchor under `fd`; a look at the peer's flags comes after.
pub fn stand_no_more(fd: i32, desc: &Desc) -> bool {
    let (lane, end) = (desc.lane(), desc.end());
    if lane.flags(end) & flags::STANDS == 0 {
        return false;
    }
    clear_stands(&lane, end);
    let known = desc.side().origin.anchor_cookie.load(Relaxed);
    // The number may be another file's by now.
    let is_ours = || kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(known);
    // A peer whose flag is not seen behind the fence tells the kernel itself, which has the same to say at both ends
    // whichever of them shuts a direction.
    let tell = |end, half| lane.flags(end) & flags::FIN != 0 && is_ours() && kernel::shutdown(fd, half).is_ok();
    tell(end.peer(), libc::SHUT_RD);
    tell(end, libc::SHUT_WR)
}

/// Notes what a kernel look at an anchor said.
///
/// # Errors
/// The fault of the peer that it tells of, to be answered when no lock is held.
pub fn hear(desc: &'static Desc, revents: i16) -> Result<(), Fault> {
    let side = desc.side();
    desc.pace.look(ticks());
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
pub fn tells_of_end(desc: &Desc, revents: i16) -> bool {
    let side = desc.side();
    let theirs = desc.lane().flags(desc.end().peer());
    let shut = (side.is(state::SHUT_RD) || theirs & flags::FIN != 0)
        && (side.is(state::SHUT_WR) || theirs & flags::SHUT_RD != 0);
    revents & libc::POLLERR != 0 || revents & libc::POLLHUP != 0 && !shut
}

/// Ends a connection whose peer did something impossible, for this end and visibly for the peer. No lock may be held.
#[cold]
pub fn poison(desc: &'static Desc, poison: Poison) {
    with_nobody_sending(desc, || poison_locked(desc, poison));
}

/// [`poison`] for one who holds a lock of the lane. If that is not the one for sending, a send that is under way may
/// undo what the peer is told by flags; it is told by the shut anchor, too.
#[cold]
pub(crate) fn poison_locked(desc: &'static Desc, poison: Poison) {
    let side = desc.side();
    if side.mark(state::POISONED) == 0 {
        return;
    }
    stats::poisoned(poison);
    abort_locked(desc, desc.fd.load(Relaxed), libc::ECONNRESET);
}

/// Ends a connection from outside: what is in the rings is lost, as when TCP gives a connection up. No lock may be
/// held.
#[cold]
pub fn cut(desc: &'static Desc, errno: i32) {
    cut_at(desc.fd.load(Relaxed), desc, errno);
}

/// The same, where the anchor is under `fd`.
#[cold]
pub fn cut_at(fd: i32, desc: &'static Desc, errno: i32) {
    with_nobody_sending(desc, || abort_locked(desc, fd, errno));
}

/// The connection is over at both ends, for this one with `errno`. The anchor is under `fd`. The caller holds a lock of
/// the lane.
fn abort_locked(desc: &Desc, fd: i32, errno: i32) {
    reset(desc.side(), errno);
    let (lane, end) = (desc.lane(), desc.end());
    lane.set_flags(end, lane.flags(end) & flags::TAKEN | flags::CLOSED | flags::RESET);
    let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
}

/// Runs `tell`, which changes this end's flags, while nobody sends: a send writes their word as a whole. A process that
/// shares the end and stands still in a send is not waited for longer than a moment. Nothing happens if this is no lane
/// any more. What a holder left that died in a send stays so for the next one that sends. No lock may be held.
fn with_nobody_sending(desc: &'static Desc, tell: impl FnOnce()) {
    const NAPS: u32 = 20;
    // The number may be another's by now, unless a lock is held.
    let _both = desc.lock_both();
    if desc.is_lane() {
        let is_shared = desc.shared.load(Relaxed);
        let _sharing = if is_shared { desc.side().tx_lock.lock_within(NAPS) } else { None };
        // The end may be a relay's by now, which takes no lock.
        if !(is_shared && desc.side().is(state::RELAYED)) {
            tell();
        }
    }
}

/// Tells the peer what it means if this end vanishes: to be called when `SO_LINGER` may have changed. No lock may be
/// held.
pub fn tell_linger(desc: &'static Desc) {
    with_nobody_sending(desc, || mark_linger(&desc.lane(), desc.end(), desc.side()));
}

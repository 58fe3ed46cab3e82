//! Urgent data: `MSG_OOB`, `SO_OOBINLINE`, `SIOCATMARK`, `POLLPRI` and `SIGURG`.
//!
//! How urgent bytes travel is written in `beeline_lane::urgent`; here is what the calls make of them.
//!
//! `SIGURG` is the kernel's to send: an end that has an owner (`F_SETOWN`) says so in its front, and its peer sends a
//! bell out of band on the anchor before an urgent byte, which signals the owner. The anchor takes such bells in line,
//! so that they are counted and taken out like others.

use beeline_lane::urgent::{Mark, View};
use beeline_lane::{Bells, Reader, Sink, flags};
use beeline_shm::LaneMemory;
use core::sync::atomic::Ordering::Relaxed;

use super::faults::fault;
use super::low_water::low_water;
use super::peeked;
use super::readiness::READABLE;
use crate::anchor::Anchor;
use crate::desc::{Desc, TxGuard};
use crate::ending::{Next, observe};
use crate::side::{SideState, extra, state};
use crate::{Outcome, guards, kernel};

/// Bytes of unread bells in the kernel, with what each costs it, above which no more are sent out of band: a signal
/// that nobody has answered is pending already.
const BELLS_WAITING_MAX: i32 = 32 * 1024;

/// Longest time from mark to byte that a receiver waits for.
const ARRIVAL_NS: u64 = 100_000_000;
/// After this the sender is not running, and is left the CPU.
const ARRIVAL_SPIN_NS: u64 = 20_000;

/// Looks of one call at marks that each give way to the next: a peer may go on so for ever.
pub(super) const LOOKS_MAX: u32 = 8;

/// What an end sees, without its lock.
pub(super) fn view(desc: &Desc, side: &SideState) -> View {
    let lane: LaneMemory = desc.lane();
    Reader::new(lane, desc.end(), &side.rx, &side.tx).view()
}

/// Whether an urgent byte has arrived since this was asked last.
pub(super) fn note_last(desc: &Desc, side: &SideState) -> bool {
    let lane: LaneMemory = desc.lane();
    if lane.flags(desc.end().peer()) & flags::URGENT == 0 {
        return false;
    }
    let last = Reader::new(lane, desc.end(), &side.rx, &side.tx).last_urgent();
    last.is_some_and(|number| side.counted_urgent.swap(number, Relaxed) != number)
}

/// The urgent byte is the next one to read.
fn stands_at(mark: Mark) -> bool {
    mark.distance == 0
}

/// What poll(2) reports of a connection that has urgent bytes, as tcp_poll().
#[cold]
pub(super) fn poll_mask(desc: &Desc, side: &SideState) -> i16 {
    let view = view(desc, side);
    let mut mask = 0;
    let mut target = low_water(desc, side);
    if let Some(mark) = view.mark {
        if mark.arrived && !mark.taken {
            mask |= libc::POLLPRI;
        }
        target += u32::from(stands_at(mark) && !view.inline);
    }
    if view.unread >= target {
        mask |= READABLE;
    }
    mask
}

/// `FIONREAD`, as tcp_inq(): only what comes before an urgent byte.
pub(crate) fn unread(desc: &Desc, side: &SideState) -> u32 {
    if desc.lane().flags(desc.end().peer()) & flags::URGENT == 0 {
        let unread = super::readiness::unread_hint(desc, side);
        // More than a ring holds is what the peer claims, which the next read finds, or another reader was at work.
        return if unread <= desc.lane().ring_bytes() { unread } else { 0 };
    }
    let view = view(desc, side);
    match view.mark {
        Some(mark) if mark.arrived && !view.inline => mark.distance,
        _ => view.unread,
    }
}

/// What `TCP_INQ` tells, if it is set. The caller keeps the description.
#[inline]
pub(super) fn left_to_read(desc: &Desc) -> Option<i32> {
    (desc.is_lane() && desc.side().has_extra(extra::INQ)).then(|| inq_hint(desc, desc.side()))
}

/// As tcp_inq_hint(): all that is unread, and one more where the end of the stream has come.
#[cold]
fn inq_hint(desc: &Desc, side: &SideState) -> i32 {
    observe(desc, side);
    let unread = view(desc, side).unread;
    i32::try_from(unread.saturating_add(u32::from(side.is(state::PEER_FIN)))).unwrap_or(i32::MAX)
}

/// `SIOCATMARK`.
pub(crate) fn at_mark(desc: &Desc, side: &SideState) -> bool {
    desc.lane().flags(desc.end().peer()) & flags::URGENT != 0 && view(desc, side).mark.is_some_and(stands_at)
}

/// `SO_OOBINLINE` was set on a connection.
pub(crate) fn set_inline(desc: &'static Desc, inline: bool) {
    if let Some(guard) = desc.lock_rx() {
        // A fault is found again by the next read.
        let _ = guard.reader().set_inline(inline, &Anchor(desc.fd.load(Relaxed)));
    }
}

/// A signal is sent between mark and byte, so a handler may ask for a byte that comes in a moment.
fn await_arrival(fd: i32, desc: &'static Desc) {
    let Some(_pin) = guards::pin(fd, desc) else { return };
    let begin = kernel::now_ns();
    while desc.is_lane() && view(desc, desc.side()).mark.is_some_and(|mark| !mark.arrived) {
        match kernel::now_ns() - begin {
            0..ARRIVAL_SPIN_NS => core::hint::spin_loop(),
            ARRIVAL_SPIN_NS..ARRIVAL_NS => kernel::sleep_ms(),
            _ => return,
        }
    }
}

/// What `recv` with `MSG_OOB` takes.
pub(super) struct Taken {
    /// What the call returns.
    pub outcome: Outcome,
    /// What it adds to `msg_flags`.
    pub flags: i32,
}

/// `recv` with `MSG_OOB`, as tcp_recv_urg(). It never waits.
#[cold]
pub(super) fn receive<'a>(
    fd: i32,
    desc: &'static Desc,
    flags: i32,
    mut sinks: impl Iterator<Item = Sink<'a>>,
) -> Taken {
    let fail = |errno| Taken { outcome: Outcome::fail(errno), flags: 0 };
    await_arrival(fd, desc);
    let Some(guard) = guards::rx_of(fd, desc) else { return Taken { outcome: Outcome::Kernel, flags: 0 } };
    let side = guard.side;
    observe(desc, side);
    let (keep, mut byte) = (flags & libc::MSG_PEEK != 0, [0]);
    let mut taken = Ok(None);
    // A mark that is there at one look may have given way to a later one at the next, whose byte is still to come. That
    // of a peer that goes on so has not arrived.
    for _ in 0..LOOKS_MAX {
        let view = guard.reader().view();
        let Some(mark) = view.mark.filter(|mark| !mark.taken && !view.inline) else { return fail(libc::EINVAL) };
        if side.is(state::RESET) && !side.is(state::PEER_FIN) {
            return fail(libc::ENOTCONN);
        }
        if !mark.arrived {
            let over = side.is(state::PEER_FIN | state::RESET | state::SHUT_RD);
            return if over { Taken { outcome: Outcome::OK, flags: 0 } } else { fail(libc::EAGAIN) };
        }
        taken = guard.reader().take_urgent(keep, &mut byte);
        if taken != Ok(None) {
            break;
        }
    }
    match taken {
        Ok(Some(count)) => peeked::urgent(side, count, keep, &mut byte),
        Ok(None) => return fail(libc::EAGAIN),
        Err(failure) => {
            drop(guard);
            let (Next::Again | Next::Kernel) = fault(fd, desc, failure, 0);
            return fail(libc::EINVAL);
        }
    }
    match sinks.find(|sink| !sink.is_empty()) {
        None => Taken { outcome: Outcome::OK, flags: libc::MSG_OOB | libc::MSG_TRUNC },
        Some(mut sink) => {
            if flags & libc::MSG_TRUNC == 0 {
                sink.fill_from(&byte);
            }
            Taken { outcome: Outcome::Done(1), flags: libc::MSG_OOB }
        }
    }
}

/// Before an urgent byte is written: tells a peer that wants a signal, which TCP sends before the byte can be read,
/// too. The connection is locked.
pub(super) fn announce(fd: i32, guard: &TxGuard) {
    if guard.lane.flags(guard.desc.end().peer()) & flags::SIGNALLED == 0 {
        return;
    }
    let mut waiting = 0;
    let asked = kernel::ioctl_int(fd, libc::TIOCOUTQ, &mut waiting);
    if asked.is_ok() && waiting < BELLS_WAITING_MAX {
        // A peer that is gone is found by whoever sends, waits or reads next.
        let _ = kernel::send(fd, &[beeline_wire::hello::BELL], libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// The connection has an owner now, who is to get signals.
pub(crate) fn own(fd: i32) {
    let Some(guard) = guards::lane_tx(fd) else { return };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32);
    let end = guard.desc.end();
    guard.lane.set_flags(end, guard.lane.flags(end) | flags::SIGNALLED);
    guard.desc.draft.owned.store(true, Relaxed);
}

/// Goes past the urgent byte that a reader stands at. `false` if it stands at none.
pub(super) fn pass(guard: &crate::desc::RxGuard, anchor: &impl Bells) -> bool {
    // A fault is found again by the next read.
    guard.reader().pass(anchor).unwrap_or(false)
}

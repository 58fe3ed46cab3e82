//! Arming a lane for what a wait of several asks of it.

use beeline_lane::{Armed, Fault, Since, Sleeping, flags};
use libc::POLLPRI;

use super::alone::{Sleeper, drain_if_alone, is_alone};
use super::low_water::low_water;
use super::readiness::{ALWAYS, READABLE, WRITABLE, poll_mask};
use crate::anchor::Anchor;
use crate::desc::{Desc, RxGuard};
use crate::ending::{hears_of_end, stand_no_more};
use crate::guards;

/// Before a sleep for `events` on an anchor: one that asks for no bytes is not rung, and hears of the peer's end by the
/// kernel alone. Whether the peer has closed, or sends no more, already, and that is news.
pub(crate) fn await_end(fd: i32, desc: &'static Desc, events: i16) -> bool {
    if events & (READABLE | POLLPRI) != 0 {
        return false;
    }
    if desc.lane().flags(desc.end()) & flags::STANDS != 0
        && let Some(_guard) = guards::tx_of(fd, desc)
    {
        stand_no_more(fd, desc);
    }
    hears_of_end(desc, desc.side())
}

/// Arms a lane for bytes, more than there are if it `wants_more`. `alone` as for [`arm_lane`].
///
/// # Errors
/// A fault of the peer.
pub(crate) fn arm_reader(
    fd: i32,
    guard: &RxGuard,
    since: Since,
    wants_more: bool,
    alone: Option<Sleeper<'_>>,
) -> Result<Armed, Fault> {
    let desc = guard.desc;
    let alone = match alone {
        Some(sleeper) => Some(sleeper.take_edges(fd, guard)),
        None => {
            desc.edges.sleeps_otherwise();
            None
        }
    };
    let leaves_bells = |sleeper: &Sleeper| sleeper.sleep.by_edges && guard.reader().may_leave_bells();
    if let Some(sleeper) = alone.filter(|sleeper| !leaves_bells(sleeper)) {
        drain_if_alone(fd, desc, guard, wants_more, sleeper.users)?;
    }
    let is_special = |sleeper: &Sleeper| sleeper.sleep != Sleeping::default() && is_alone(desc, sleeper.users);
    guard.arm_for(since, alone.filter(is_special).map_or(Sleeping::default(), |sleeper| sleeper.sleep), &Anchor(fd))
}

/// Arms one lane for `events`. The caller keeps the lane: by a pin, or by the lock of a set that it is in. Where it may
/// be the only one who sleeps on it, it says so by `alone`: then bells that nobody else would hear are taken out first,
/// or left where they lie, and the lane may be named the sleep.
///
/// # Errors
/// A fault of the peer, for the caller to handle when it holds no lock.
pub(crate) fn arm_lane(fd: i32, desc: &'static Desc, events: i16, alone: Option<Sleeper<'_>>) -> Result<Armed, Fault> {
    let side = desc.side();
    if await_end(fd, desc, events) {
        return Ok(Armed::Ready);
    }
    if events & (READABLE | POLLPRI) != 0 {
        // Below the low-water mark there is data that is no news, and to somebody who asks for urgent bytes any is.
        let by_level = events & READABLE != 0 && low_water(desc, side) <= 1;
        let Some(guard) = guards::rx_of(fd, desc) else { return Ok(Armed::Ready) };
        let since = if by_level { Since::Read } else { Since::Tail(guard.reader().tail()) };
        if arm_reader(fd, &guard, since, !by_level, alone)? == Armed::Ready {
            return Ok(Armed::Ready);
        }
    }
    if events & WRITABLE != 0 && arm_writer(fd, desc)? == Armed::Ready {
        return Ok(Armed::Ready);
    }
    let news = poll_mask(desc) & (events | ALWAYS) != 0;
    Ok(if news { Armed::Ready } else { Armed::Sleep })
}

/// As [`arm_lane`] for room alone, for a member of a set that tells of edges: an error that stays, such as a completion
/// that nobody has read ([`super::zerocopy`]), is none. A new one is told by who brings it about, or by the kernel.
///
/// # Errors
/// Those of [`arm_lane`].
pub(crate) fn arm_for_room(fd: i32, desc: &'static Desc) -> Result<Armed, Fault> {
    if await_end(fd, desc, WRITABLE) || arm_writer(fd, desc)? == Armed::Ready {
        return Ok(Armed::Ready);
    }
    Ok(if poll_mask(desc) & WRITABLE != 0 { Armed::Ready } else { Armed::Sleep })
}

fn arm_writer(fd: i32, desc: &'static Desc) -> Result<Armed, Fault> {
    guards::tx_of(fd, desc).map_or(Ok(Armed::Ready), |mut guard| guard.arm(&Anchor(fd)))
}

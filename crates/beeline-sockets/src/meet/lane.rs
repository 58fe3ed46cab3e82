//! Making a description a lane, and what is done with it then that the layers below leave to this one.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_lane::{Bells, End, LaneMemory, flags};
use beeline_meeting::paths::Ended;
use beeline_shm::memfd::FileId;
use beeline_stats::Reason;
use beeline_stats::tunables::option;
use beeline_wire::Endpoint;

use super::agent::end_if_cut;
use super::brief::Life;
use super::late::late_fallback;
use super::pool::{self, PooledLane};
use super::{lookup, offers, standing};
use crate::anchor::Anchor;
use crate::desc::{Desc, Draft};
use crate::ending::observe;
use crate::linger::end_lingering;
use crate::operations::Operations;
use crate::side::{MAGIC, SideState, clear_stands, force_peer_look, mark_linger, stamp_if_all_read, state};
use crate::wait::fresh::{self, Origin};
use crate::{follow, hidden, io, kernel, process, table};

/// See [`crate::operations`].
static LANE: Operations = Operations {
    close: close_lane,
    end_lingering,
    retire,
    begin_anew: late_fallback,
    look_below: end_if_cut,
    ..Operations::NONE
};

/// See [`pool::Users`].
static USERS: pool::Users = pool::Users { release_memfds };

/// Makes a description a lane that is in no pool.
pub fn begin_bare(desc: &'static Desc, memory: LaneMemory, side: &'static SideState, end: End) {
    desc.operations.set(&LANE);
    desc.become_lane(memory, side, end);
}

pub(super) fn retire(desc: &'static Desc) {
    offers::remove(desc);
    retire_lane(desc);
}

/// Makes a description a lane, and notes in the side where a later holder finds the parts. The caller holds
/// `changing::changing`, or that of all numbers that lead there.
pub fn begin_lane(desc: &'static Desc, anchor: i32, lane: &'static PooledLane, side: pool::Side, end: End) {
    pool::register(&USERS);
    let origin = &side.state.origin;
    let cookie = |fd| kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0);
    origin.magic.store(MAGIC, Relaxed);
    origin.anchor_cookie.store(lane.stands.cookie().unwrap_or_else(|| cookie(anchor)), Relaxed);
    origin.lane_device.store(lane.id().device, Relaxed);
    origin.lane_inode.store(lane.id().inode, Relaxed);
    origin.holder_cookie.store(lane.holder().map_or(0, cookie), Relaxed);
    origin.ring_bytes.store(lane.memory().ring_bytes(), Relaxed);
    origin.end.store(end as u32, Relaxed);
    desc.set_pooled(Some(lane));
    desc.keep_side_memfd(side.memfd);
    begin_bare(desc, lane.memory(), side.state, end);
    if origin_of(side.state, end).is_some_and(|origin| !fresh::may_spin(origin)) {
        desc.spin.set_ns(0);
    }
    if !side.state.is(state::BRIDGED) {
        offers::add(desc);
    }
}

/// Makes a description a lane that another program has lent: the descriptors of side and lane, and of the socket
/// that holds the port, are copied to hidden ones.
pub(crate) fn adopt_lane(
    desc: &'static Desc,
    memory: LaneMemory,
    id: FileId,
    side: &'static SideState,
    [side_fd, lane_fd]: [i32; 2],
    holder: Option<i32>,
    end: End,
) {
    // Whoever waits for room plugs the anchor, and may have no numbers left to measure by then.
    let _ = io::small_send_buffer();
    let copy = |fd| kernel::duplicate(fd, 0, true).ok().map(hidden::hide);
    let lane = pool::adopted_lane(memory, id, copy(lane_fd), holder.and_then(copy));
    pool::register(&USERS);
    desc.set_pooled(lane);
    desc.keep_side_memfd(copy(side_fd));
    begin_bare(desc, memory, side, end);
    if side.is(state::OFFERED) {
        offers::add(desc);
    }
}

/// Closes the memfds of lanes and sides in use, because descriptors are short. Whether there were any. No lock of a
/// description may be held.
fn release_memfds() -> bool {
    let mut any = false;
    table::for_each(|_, desc| {
        // Meanwhile it stays in use: an idle lane, or the next connection's, needs its own.
        let _ = desc.if_lane(|| {
            any |= desc.edges.release(desc.keepers.pins() == 0);
            if let Some(lane) = desc.pooled() {
                any |= lane.memfd().is_some();
                lane.close_memfd();
            }
            if let Some(fd) = desc.take_side_memfd() {
                hidden::close_hidden(fd);
                any = true;
            }
        });
    });
    any
}

/// The lane of a connection must not be used again.
pub(crate) fn spoil_lane(desc: &'static Desc) {
    if let Some(lane) = desc.pooled() {
        lane.spoil();
    }
}

/// None where a bridge or another namespace is between the ends: those take their own time.
fn origin_of(side: &SideState, end: End) -> Option<Origin> {
    if side.is(state::BRIDGED | state::MET) {
        return None;
    }
    Some(match end {
        End::Client => Origin::Made(side.remote.get().port()),
        End::Server => Origin::Accepted(side.local.get().port()),
    })
}

/// The last user of a lane in this process is gone: pools or unmaps the lane and its side.
fn retire_lane(desc: &'static Desc) {
    let side = desc.side();
    let lane = desc.pooled();
    desc.set_pooled(None);
    // Not judged by the side alone: a holder that has dropped its privileges may put into it what it likes, and keep it
    // mapped.
    let alone =
        lane.is_some_and(PooledLane::is_ours_alone) && !desc.shared.load(Relaxed) && side.holders.load(Relaxed) <= 1;
    if let (Some(origin), Some(have_paid)) = (origin_of(side, desc.end()), desc.spin.have_paid()) {
        fresh::note(origin, have_paid);
    }
    if let Some(lane) = lane {
        lane.note_bytes(side.tx.bytes().max(side.rx.bytes()));
        if side.is(state::POISONED)
            || desc.end() == End::Client && lane.memory().flags(End::Client) & flags::CLOSED == 0
        {
            lane.spoil();
        }
        if !(alone && desc.end() == End::Server && !side.is(state::POISONED) && standing::park(lane)) {
            pool::retire(lane, desc.end(), alone);
        }
    }
    pool::Side { state: side, memfd: desc.take_side_memfd() }.retire(alone);
}

/// Hands over to a connection what was set on the socket before.
pub(super) fn carry_draft(draft: &Draft, side: &SideState) {
    side.rcv_timeout_ns.store(draft.rcv_timeout_ns.load(Relaxed), Relaxed);
    side.snd_timeout_ns.store(draft.snd_timeout_ns.load(Relaxed), Relaxed);
    side.set_rcv_lowat(match draft.rcv_lowat.load(Relaxed) {
        ..=1 => 0,
        bytes => bytes,
    });
    side.linger.set(draft.linger.get());
    for (target, source) in side.options.iter().zip(&draft.options) {
        target.value.store(source.value.load(Relaxed), Relaxed);
        target.key.store(source.key.load(Relaxed), Relaxed);
    }
    for (level, name) in [(libc::SOL_SOCKET, libc::SO_ZEROCOPY), (libc::IPPROTO_TCP, libc::TCP_INQ)] {
        side.note_extra(level, name, side.option(level, name).unwrap_or(0));
    }
    side.rx.set_urgent_inline(side.option(libc::SOL_SOCKET, libc::SO_OOBINLINE) == Some(1));
}

/// Naps for which a close waits for another holder of the end.
const CLOSE_NAPS: u32 = 20;

/// Tells the peer that this process gives up the end, and makes the description `Closed`. Called when the last
/// fd is about to be closed; the anchor is still open. If another process holds the end, only this process's
/// use of it ends, and nothing else if that is a relay's.
pub(crate) fn close_lane(desc: &'static Desc) {
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
        side.leave(process::identity());
        if side.is(state::RELAYED) {
            desc.mark_closed();
            drop((sharing, both));
            return follow::left(side);
        }
    }
    if side.holders.fetch_sub(1, AcqRel) <= 1 {
        end_for_all(desc, &lane, side);
    } else {
        note_end(desc, false);
        // Who seems to hold it, too, may have been killed, and then nobody comes after us.
        mark_linger(&lane, end, side);
    }
    desc.mark_closed();
    drop((sharing, both));
}

/// The last holder of an end tells the peer that it is closed. The caller holds both locks.
fn end_for_all(desc: &'static Desc, lane: &LaneMemory, side: &SideState) {
    let end = desc.end();
    note_end(desc, true);
    observe(desc, side);
    let unread = io::unread_hint(desc, side) != 0;
    // A reset is no FIN: only one that was sent before it is seen before it.
    let resets = (unread || side.linger.aborts()) && !side.is_finished();
    let last = if resets { flags::RESET } else { flags::FIN };
    let stands = !unread && !resets && standing::may_stand(desc, lane, side);
    let ours = if stands { lane.flags(end) } else { lane.flags(end) & !flags::STANDS };
    stamp_if_all_read(lane, end, side);
    lane.set_flags(end, ours | flags::CLOSED | last);
    force_peer_look(lane, end);
    if stands && !standing::keep(desc, lane, side) {
        clear_stands(lane, end);
    }
    if desc.keepers.pins() != 0 {
        // Threads that sleep on the connection find it closed.
        let fd = desc.fd.load(Relaxed);
        let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
        Anchor(fd).unplug();
    }
}

/// A connection is closed here, as a whole or by one of its holders: how a client used it tells what the next ones to
/// the same place want.
fn note_end(desc: &Desc, whole: bool) {
    let ticket = desc.ticket.take();
    if desc.end() != End::Client {
        return;
    }
    let side = desc.side();
    let moved = [side.tx.bytes(), side.rx.bytes(), side.lent.load(Relaxed), side.fetched.load(Relaxed)];
    let moved = moved.into_iter().fold(0, u64::saturating_add);
    let life = Life { sends: desc.pace.sends(), bytes: moved };
    let comes_from_afar = desc.is_bridged() || side.is(state::MET);
    match ticket {
        Some(ticket) if whole && !comes_from_afar => lookup::ended(ticket, Ended::Lane(life)),
        Some(ticket) => lookup::abandoned(ticket),
        None => {}
    }
    if whole && comes_from_afar && !crate::live(option::bridge_short_lived) {
        let left_as = if side.is(state::MET) { Reason::AgentShortLived } else { Reason::BridgeShortLived };
        lookup::note_life(Endpoint::new(side.remote.get()).address(), life, left_as);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{DESCS, Kind};

    #[test]
    fn a_side_that_a_fork_may_have_copied_is_not_kept_whatever_it_says() {
        for forked in [false, true] {
            pool::purge();
            let lane = pool::client_lane(11).unwrap().sent();
            let desc = DESCS.take().unwrap();
            desc.begin(Kind::Tcp, -1, libc::AF_INET as u32, crate::forks());
            let side = pool::side().unwrap();
            desc.set_pooled(Some(lane));
            desc.keep_side_memfd(side.memfd);
            begin_bare(desc, lane.memory(), side.state, End::Client);
            if forked {
                crate::process::count_fork();
            }
            // As another holder may leave it.
            side.state.holders.store(1, Relaxed);
            retire_lane(desc);
            assert_eq!(pool::release_descriptors(), !forked, "of what is kept");
        }
    }
}

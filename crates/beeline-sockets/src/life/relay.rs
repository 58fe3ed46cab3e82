//! Relays: a real TCP socket for holders that cannot use lanes.
//!
//! A program that knows nothing of lanes (statically linked, set-uid, of another architecture, driving io_uring) may
//! come to hold a connection: over `exec`, as its standard input, in a message. Before that happens the description is
//! *demoted* ([`demote`]): what its fds lead to becomes a plain TCP connection within this host, and a process of
//! ours, the relay, holds the other end of that and this end of the lane, and moves the bytes. The lane's peer notices
//! nothing.
//!
//! # Rules
//!
//! 1. A description is demoted once, for all its holders, and never back.
//! 2. The demoter holds `changing::changing` and both locks of its description, and the side's when others share it. So
//!    nobody is in the middle of an operation; what was sent is in the ring, and what was not yet received is there for
//!    the relay to find. Several holders may begin at once: who has the locks first looks at the list of sharers and
//!    makes the gate only then, and the others, who stand on that list, follow.
//! 3. The TCP connection has the addresses that the app has seen, as far as the kernel can be made to agree ([`pair`]).
//! 4. The relay is nobody's child, keeps none of the app's descriptors and memory, takes no signals and ends by itself
//!    ([`process`], [`pump`]).
//! 5. Other processes that hold the description go over to the TCP connection when they next use it
//!    ([`crate::follow`]). So does the parent of a `vfork` whose child has demoted it ([`guest`]).
//! 6. If a relay cannot be made, nothing has changed, but that children who were expected to share the end, and have
//!    not come by then, are expected no more.

mod gate;
pub(super) mod guest;
mod pair;
mod process;
mod pump;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use beeline_lane::{Bells, End};
use beeline_shm::{Fd, lane_bytes, sys};
use beeline_stats::{Counter, Reason, Role};

use self::gate::Attendance;
use self::pair::Pair;
use self::process::Task;
use self::pump::Relay;
use crate::desc::{Desc, Kind, RxGuard, TxGuard};
use crate::ending::stand_no_more;
use crate::follow::{self, follow_if_relayed};
use crate::io::Anchor;
use crate::process::{identity, is_guest_of_parent};
use crate::side::{SideState, state};
use crate::{changing, epoll, kernel, meet, slots, stats, table, watchers};

/// Naps of a millisecond for which the other holders of an end are waited for, as it is done in the middle of a change:
/// one that has lost its CPU while it copies goes on in that time, and one that is stopped there holds nobody up.
const NAPS: u32 = (follow::BRIEF_NS / 1_000_000) as u32;

/// Bytes of a side's page.
const SIDE_BYTES: usize = 4096;

/// Puts a TCP connection with a relay in the place of a lane, under all fds of this process. Nothing happens if `fd` is
/// a TCP socket already.
///
/// No lock may be held. Blocks for as long as it takes to make a process.
pub(crate) fn demote(fd: i32, desc: &'static Desc) -> Result<(), Reason> {
    if is_guest_of_parent() {
        return Err(Reason::VforkChild);
    }
    // What another holder has demoted is gone for after, without keeping others from their changes.
    let _ = follow_if_relayed(fd, desc);
    let demoted = demote_here(fd, desc);
    if demoted.is_err() {
        // Another holder may have been first.
        let _ = follow_if_relayed(fd, desc);
        if desc.kind() == Kind::Tcp {
            return Ok(());
        }
    }
    demoted
}

fn demote_here(fd: i32, desc: &'static Desc) -> Result<(), Reason> {
    let _changing = changing::changing();
    if !table::leads_to(fd, desc) || !desc.is_lane() {
        return if desc.kind() == Kind::Tcp { Ok(()) } else { Err(Reason::RelayFailed) };
    }
    if follow_if_relayed(fd, desc) {
        return if desc.kind() == Kind::Tcp { Ok(()) } else { Err(Reason::RelayFailed) };
    }
    let side = desc.side();
    let pair = pair::connect(side.local.get(), side.remote.get(), side.family.load(Relaxed) as i32)?;
    let switched = watchers::while_out(fd, desc, || switch(fd, desc, &pair));
    if switched.is_ok() {
        slots::close_slot(desc);
        stats::count(Counter::Relays, 1);
    }
    switched
}

/// Sees to it that `fd` is the kernel's alone: a lane is demoted, anything else is left as it is.
///
/// # Errors
/// Why it still is a lane.
pub fn demote_number(fd: i32) -> Result<(), Reason> {
    match table::get(fd) {
        Some(desc) if desc.is_lane() => demote(fd, desc),
        _ => Ok(()),
    }
}

/// The process is about to use sockets past libc, for this reason: all its lanes are demoted, and nothing is
/// accelerated any more.
///
/// # Errors
/// Why one of them still is a lane.
pub fn leave_lanes(reason: Reason) -> Result<(), Reason> {
    stats::stop_accelerating(reason);
    epoll::tell_all_before();
    LEFT.store(false, Relaxed);
    follow::with_all();
    let _changing = changing::changing();
    meet::leave_doors(reason);
    let mut result = Ok(());
    table::for_each(|fd, desc| {
        if desc.is_lane() {
            let role = if desc.end() == End::Client { Role::Client } else { Role::Server };
            match demote(fd, desc) {
                Ok(()) => stats::fell_back(role, reason),
                failed => result = failed,
            }
        }
    });
    LEFT.store(result.is_ok(), Relaxed);
    result
}

/// Whether all lanes have been left, for good.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether [`leave_lanes`] has been here, and all is done. What arrives later is given up where it arrives.
#[must_use]
pub fn has_left_lanes() -> bool {
    LEFT.load(Relaxed)
}

/// Starts the relay and puts the app's end of the pair in the anchor's place.
fn switch(fd: i32, desc: &'static Desc, pair: &Pair) -> Result<(), Reason> {
    if !table::may_be_put_under(fd, desc, pair.app.get()) {
        return Err(Reason::RelayFailed);
    }
    if desc.shared.load(Relaxed) {
        gate::await_children(desc.side());
    }
    let both = begin(fd, desc, pair)?;
    // From here on the end is the relay's, and so is this process's part in it.
    desc.shared.store(true, Relaxed);
    table::put_under(fd, desc, pair.app.get());
    meet::spoil_lane(desc);
    desc.draft.connectable.settle();
    desc.mark_tcp();
    drop(both);
    Ok(())
}

/// Starts the relay: from then on the end is the relay's alone. Both directions are locked for the caller.
fn begin(fd: i32, desc: &'static Desc, pair: &Pair) -> Result<(TxGuard, RxGuard), Reason> {
    let Some((tx, rx)) = desc.lock_tx_and_rx_within(NAPS) else { return Err(Reason::RelayFailed) };
    let side = tx.side;
    // Threads that sleep on the anchor could miss that it is not theirs any more: the relay takes bells meant for them.
    if desc.keepers.pins() != 0 || side.is(state::POISONED) {
        return Err(Reason::RelayFailed);
    }
    stand_no_more(fd, desc);
    let others_may_come = start_with_gate(fd, desc, side, pair)?;
    // Signals come from the socket now.
    kernel::disown(fd);
    if others_may_come {
        // Writers of other processes that wait for room.
        Anchor(fd).unplug();
    }
    Ok((tx, rx))
}

/// Starts the relay, with a gate if there are other holders. Whether there is one. Both directions are locked.
fn start_with_gate(fd: i32, desc: &'static Desc, side: &'static SideState, pair: &Pair) -> Result<bool, Reason> {
    let gate = gate(desc, side)?;
    let attendance = Attendance::at(gate.as_ref(), &pair.app);
    prepare(fd, side, pair.app.get());
    side.mark(state::RELAYED);
    if let Err(reason) = start(fd, desc, side, pair.ours.get(), attendance) {
        side.state.fetch_and(!state::RELAYED, Relaxed);
        if desc.shared.load(Relaxed) {
            side.join(identity());
        }
        return Err(reason);
    }
    Ok(attendance.is_open())
}

/// Where other holders can come for the app's end of the pair, if there are any. This process leaves their list, unless
/// it is the child of a `vfork`: then it is its parent that stands there, and follows.
fn gate(desc: &'static Desc, side: &SideState) -> Result<Option<Fd>, Reason> {
    let is_guest = is_guest_of_parent();
    if !is_guest && !desc.shared.load(Relaxed) {
        return Ok(None);
    }
    if !side.knows_all_sharers() {
        return Err(Reason::RelayFailed);
    }
    if !is_guest {
        side.leave(identity());
    }
    // A copy may be on its way, to somebody who lists himself when he receives it.
    if !gate::has_loans(side) && side.lists_nobody() {
        return Ok(None);
    }
    gate::make_gate(side).map(Some).inspect_err(|_| side.join(identity()))
}

/// Gives the socket what the app has set on the connection.
fn prepare(anchor: i32, side: &SideState, app: i32) {
    meet::carry_options(side, app);
    meet::carry_owner(anchor, app);
    if let Ok(mode) = kernel::status_flags(anchor) {
        let _ = kernel::set_status_flags(app, mode);
    }
    if side.is(state::SHUT_WR) {
        let _ = kernel::shutdown(app, libc::SHUT_WR);
    }
    if side.is(state::SHUT_RD) {
        let _ = kernel::shutdown(app, libc::SHUT_RD);
    }
}

/// Starts the process that serves `anchor` and `ours`.
fn start(
    anchor: i32,
    desc: &'static Desc,
    side: &'static SideState,
    ours: i32,
    attendance: Attendance,
) -> Result<(), Reason> {
    let _ = kernel::setsockopt(ours, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
    // So that the program's urgent bytes come in their turn, where they are seen to stand at the mark.
    let _ = kernel::setsockopt(ours, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32);
    let set = Relay::watch(anchor, ours).map_err(|_| Reason::DescriptorsShort)?;
    let lane = desc.lane();
    let relay = Relay {
        lane,
        side,
        end: desc.end(),
        anchor,
        socket: ours,
        set,
        attendance,
        spin_ns_max: u64::from(desc.wait_mode().spin_ns_max()),
    };
    let task = Task {
        fds: [anchor, ours, set, attendance.gate, attendance.app],
        memory: [(lane.address(), lane_bytes(lane.ring_bytes())), (core::ptr::from_ref(side) as usize, SIDE_BYTES)],
        relay,
    };
    let started = process::start(task);
    let _ = sys::close(set);
    started
}

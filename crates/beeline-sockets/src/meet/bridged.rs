//! Connecting to another host, through this host's bridge.
//!
//! The bridge is a door like others, with three differences:
//!
//! 1. Its user is not the listener's but the one who is trusted to run bridges ([`trust::may_bridge`]).
//! 2. Whether there is a door at the other end is not known before it was asked there. So the client waits for the
//!    bridge's [`Verdict`], for a bounded time, and its TCP socket stays untouched until that is yes.
//! 3. While it waits it holds no lock. A `fork` that comes in between copies the anchor, and the connection is left to
//!    TCP: the bridge is told by the anchor being shut down, since the child may keep its copy open.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, offer};
use beeline_shm::Fd;
use beeline_stats::{Counter, Reason};
use beeline_wire::{ConnName, Held, Verdict, bridge};

use super::client::{self, Holder};
use super::connecting::Connecting;
use super::pool::{self, PooledLane};
use super::route::{Reserved, Route, reserve_name};
use super::{greeting, lookup, trust};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::state;
use crate::wait;
use crate::{Errno, changing, io, limits, process, stats, table};

/// How long a blocking `connect` waits for the verdict.
const PATIENCE_NS: u64 = 500_000_000;
/// How long one that must not block does. TCP would have answered at once, so this is no more than a round trip may
/// take on a network worth a bridge.
const BRIEF_PATIENCE_NS: u64 = 20_000_000;
/// How long the answer of a bridge that has taken the hello may be under way.
const ANSWER_NS: u64 = 100_000_000;
/// In the pool of lanes the bridge stands for one listener, with a cookie that the kernel gives to none.
const BRIDGE_COOKIE: u64 = u64::MAX;

/// Connects through the bridge.
///
/// # Errors
/// Why the kernel has to.
pub(super) fn attempt(ours: Connecting, route: &Route, nonblocking: bool) -> Result<(), Reason> {
    let Connecting { fd, desc, .. } = ours;
    if route.is_privileged_in_vain() {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let Reserved { anchor, name, held } = reserve_name(route, |_| Ok(()))?;
    if !table::may_be_put_under(fd, desc, anchor.get()) {
        return Err(Reason::DescriptorsShort);
    }
    let uid = enter(&anchor, route)?;
    if route.bound_port.is_some() && !route.ours.is_believed_by(uid) {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let offered = say_hello(desc, &anchor, (&name, held), nonblocking)?;
    let verdict = await_verdict(&anchor, offered.lane, if nonblocking { BRIEF_PATIENCE_NS } else { PATIENCE_NS });
    if let Err(reason) = verdict {
        // Room may come at any time: see `retry`.
        if reason != Reason::BridgeFull {
            lookup::note_refused(route.destination, reason);
        }
        return give_up(&anchor, offered, reason);
    }
    let _changing = changing::changing();
    // Bound anew behind `_changing`, and so dropped before it: its number is closed before the change ends, as a fork
    // that waits for that is not to copy it.
    let anchor = anchor;
    if !ours.still() || !process::accelerates() {
        return give_up(&anchor, offered, process::reason_to_count().unwrap_or(Reason::Internal));
    }
    if desc.born.load(Relaxed) != crate::forks() {
        return give_up(&anchor, offered, Reason::SharedBeforeConnect);
    }
    if let Err(reason) = client::catch_up(desc, offered.side.state) {
        return give_up(&anchor, offered, reason);
    }
    let holder = match Holder::of(fd, route.explicit) {
        Ok(holder) => holder,
        Err(reason) => return give_up(&anchor, offered, reason),
    };
    let Offered { lane, side, .. } = offered;
    if let Some(holder) = holder {
        holder.keep_with(lane);
    }
    client::install(fd, desc, anchor.get(), lane, side, nonblocking, None)?;
    stats::count(Counter::ConnectionsBridgedClient, 1);
    Ok(())
}

/// A lane that the bridge was offered.
struct Offered {
    lane: &'static PooledLane,
    side: pool::Side,
    /// The forks of this process when both were made.
    born: u32,
}

/// Offers the bridge a lane.
fn say_hello(
    desc: &Desc,
    anchor: &Fd,
    (name, held): (&ConnName, Option<Held>),
    nonblocking: bool,
) -> Result<Offered, Reason> {
    // No fork comes between side and lane.
    let _changing = changing::changing();
    let born = crate::forks();
    let side = pool::side().map_err(limits::memory_reason)?;
    side.state.mark(state::BRIDGED);
    let lane = client::prepare(side.state, desc, name, BRIDGE_COOKIE, nonblocking).and_then(|offer| {
        client::arm_server(offer.lane.memory());
        // The bridge takes the network port that is nearest to it.
        offer.lane.memory().cpu(End::Client).store(kernel::cpu().wrapping_add(1), Relaxed);
        greeting::say_hello(anchor.get(), offer, held)
    });
    match lane {
        Ok(lane) => Ok(Offered { lane, side, born }),
        Err(reason) => {
            side.put_back(born);
            Err(reason)
        }
    }
}

/// Connects to the bridge's door, and proves that it is a bridge's. Returns the bridge's user.
fn enter(anchor: &Fd, route: &Route) -> Result<u32, Reason> {
    io::small_send_buffer()?;
    trust::refuse_rights(anchor.get());
    let door = SockAddr::abstract_unix(bridge::DOOR).ok_or(Reason::Internal)?;
    let refused = match kernel::connect(anchor.get(), &door) {
        Ok(_) => match trust::peer_uid(anchor.get()).filter(|uid| trust::may_bridge(*uid)) {
            Some(uid) => return Ok(uid),
            None => Reason::BridgeNotTrusted,
        },
        Err(Errno(libc::EAGAIN)) => return Err(Reason::BridgeFull),
        Err(Errno(libc::EPERM | libc::EACCES)) => Reason::SystemCallDenied,
        // There is no bridge on this host.
        Err(_) => Reason::NotLocal,
    };
    lookup::note_refused(route.destination, refused);
    Err(refused)
}

/// Waits for the bridge's answer. Handlers of the app may run meanwhile; the wait goes on.
///
/// Who loses patience withdraws the hello. If the bridge has taken it in that very moment, its answer is under way.
fn await_verdict(anchor: &Fd, lane: &PooledLane, patience_ns: u64) -> Result<(), Reason> {
    let mut deadline = kernel::now_ns().saturating_add(patience_ns);
    let mut withdrawn = false;
    loop {
        let mut byte = [0];
        match kernel::recv(anchor.get(), &mut byte, libc::MSG_DONTWAIT) {
            Ok(1) => break reason_of(byte[0]),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            // Gone without a word: it ended, or was killed.
            _ => break Err(Reason::BridgeSilent),
        }
        if wait::for_events(anchor.get(), libc::POLLIN, deadline) != 0 {
            continue;
        }
        if core::mem::replace(&mut withdrawn, true) || offer::withdraw(lane.memory().offer()) {
            break Err(Reason::BridgeSilent);
        }
        deadline = kernel::now_ns().saturating_add(ANSWER_NS);
    }
}

fn reason_of(byte: u8) -> Result<(), Reason> {
    match Verdict::from_byte(byte) {
        Some(Verdict::Yes) => Ok(()),
        Some(Verdict::NoPeer) => Err(Reason::BridgeNoPeer),
        Some(Verdict::NoDoor) => Err(Reason::BridgeNoDoor),
        Some(Verdict::NoRail) => Err(Reason::BridgeNoRail),
        Some(Verdict::Full) => Err(Reason::BridgeFull),
        Some(Verdict::Slower) => Err(Reason::BridgeSlower),
        Some(Verdict::Leaving) => Err(Reason::BridgeLeaving),
        Some(Verdict::Rejected) | None => Err(Reason::BridgeRejected),
    }
}

/// Leaves the connection to TCP. The bridge may have the lane still in use.
fn give_up(anchor: &Fd, Offered { lane, side, born }: Offered, reason: Reason) -> Result<(), Reason> {
    let _ = kernel::shutdown(anchor.get(), libc::SHUT_RDWR);
    lane.spoil();
    pool::retire(lane, End::Client, false);
    side.put_back(born);
    Err(reason)
}

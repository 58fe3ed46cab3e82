//! The server's part of meeting through the agent: rules 11 to 14 of the design.

use core::sync::atomic::Ordering::Relaxed;

use beeline_meeting::agent::{Carrier, Said, is_there, page, why_unmet};
use beeline_shm::Fd;
use beeline_stats::{Poison, Reason, Role};
use beeline_wire::agent::{Answer, Question};
use beeline_wire::{ConnName, Endpoint};

use super::super::hello_io::Refusal;
use super::super::listener::Listener;
use super::super::pool::{self, PooledLane};
use super::super::{admit, strangers, taking, trust};
use super::{keep_alive, may_serve, mode_of};
use crate::desc::Desc;
use crate::kernel;
use crate::side::state;
use crate::thread::Section;
use crate::{changing, hidden, stats};

/// How long an `accept` waits for the agent's answer.
const PATIENCE_NS: u64 = 100_000_000;

/// A connection came over TCP. Makes it a lane if the agent has one for it.
///
/// # Errors
/// Why it stays on TCP.
pub(in crate::meet) fn came_over_tcp(
    desc: &'static Desc,
    listener: &'static Listener,
    accepted: i32,
    flags: i32,
) -> Result<(), Reason> {
    let place = listener.place.load(Relaxed).checked_sub(1);
    // In this order: who asks whether there is an agent finds the page of a new one.
    let is_there = is_there();
    if !place.is_some_and(page::tells_of) || !may_serve(listener) {
        return Err(Reason::CameOverTcp);
    }
    if !is_there {
        // It would have been asked, and may be one that was silent.
        return Err(why_unmet(Reason::CameOverTcp));
    }
    ask(desc, accepted, flags)
}

#[cold]
fn ask(desc: &'static Desc, accepted: i32, flags: i32) -> Result<(), Reason> {
    // A handler that jumped out of here would take the connection with it, which the app has not seen yet.
    let _section = Section::enter();
    let name = name_of(accepted).ok_or(Reason::Internal)?;
    let (local, remote) = (name.server.address(), name.client.address());
    let carrier = Carrier::open()?;
    carrier.say(Question::Ask { socket: accepted.cast_unsigned(), local, remote })?;
    let Said { answer, besides, descriptor } = carrier.answer_soon(PATIENCE_NS, mode_of(Role::Server, local))?;
    let (Answer::Lane, Some(parcel)) = (answer, descriptor) else { return Err(Reason::CameOverTcp) };
    let _changing = changing::changing();
    let parcel = parcel.keep().ok_or(Reason::CameOverTcp)?;
    let taken = match may_take(besides.own_user) {
        Ok(()) => take(desc, accepted, flags, &name, parcel, besides.cuts),
        Err(reason) => Err(reason),
    };
    match taken {
        // The connection has it under the app's number.
        Ok(()) => drop(Fd::own(parcel)),
        Err(_) => strangers::close(parcel),
    }
    taken
}

/// Whether this process may have the lane that there is. Looked at late: its client waits for somebody to ask about it,
/// and goes on over TCP as soon as its parcel is closed.
fn may_take(is_own_user: bool) -> Result<(), Reason> {
    if !is_own_user && !trust::may_share_with_anybody() {
        return Err(Reason::ForeignUser);
    }
    if pool::may_hold() { Ok(()) } else { Err(Reason::DescriptorsShort) }
}

/// Puts a lane in the place of an accepted connection. The caller holds `changing::changing`.
fn take(
    desc: &'static Desc,
    accepted: i32,
    flags: i32,
    name: &ConnName,
    parcel: i32,
    cuts: bool,
) -> Result<(), Reason> {
    let lane = match admit::lane_of(parcel, false) {
        Ok((lane, None)) => lane,
        Ok((lane, Some(_))) => {
            taking::give_back(lane);
            return Err(broken(Poison::HelloNameMismatch));
        }
        Err(Refusal::Poison(poison)) => return Err(broken(poison)),
        // Counted there, or withdrawn: the client goes on over TCP.
        Err(_) => return Err(Reason::CameOverTcp),
    };
    lane.spend();
    let taken = put_in_place(accepted, flags, parcel, lane).and_then(|twin| {
        let path = state::MET | if cuts { state::CUTS } else { 0 };
        admit::establish(desc, accepted, flags, name, (lane, path), admit::Origin::default()).inspect_err(|_| {
            // The accepted socket goes back to its place.
            put(twin, accepted, flags);
        })?;
        if cuts {
            keep_alive(twin);
        }
        Ok(())
    });
    if taken.is_err() {
        taking::give_back(lane);
    }
    taken
}

/// Puts the parcel under the accepted socket's number, and that socket below the lane, as its holder.
fn put_in_place(accepted: i32, flags: i32, parcel: i32, lane: &'static PooledLane) -> Result<i32, Reason> {
    let twin = hidden::hidden_twin(accepted).ok_or(Reason::DescriptorsShort)?;
    lane.hold(twin);
    let mode = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    let _ = kernel::set_status_flags(parcel, mode);
    if put(parcel, accepted, flags) { Ok(twin) } else { Err(Reason::DescriptorOutOfRange) }
}

fn put(file: i32, number: i32, flags: i32) -> bool {
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    kernel::dup3(file, number, cloexec).is_ok()
}

/// A client whose parcel breaks the rules stays on TCP: the connection that the kernel has made is none of the
/// parcel's.
fn broken(poison: Poison) -> Reason {
    stats::poisoned(poison);
    Reason::PeerRefused
}

/// What the kernel calls the ends of an accepted connection.
fn name_of(accepted: i32) -> Option<ConnName> {
    let client = kernel::getpeername(accepted).ok()?.to_internet()?;
    let server = kernel::getsockname(accepted).ok()?.to_internet()?;
    Some(ConnName { client: Endpoint::new(client), server: Endpoint::new(server) })
}

//! The server's part of meeting through the agent: rules 9 to 13 of the design.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::{Poison, Reason, Role};
use beeline_wire::agent::{Answer, Kind};
use beeline_wire::{ConnName, Endpoint};

use super::super::hello_io::Refusal;
use super::super::listener::Listener;
use super::super::pool::PooledLane;
use super::super::route::Anchor;
use super::super::{admit, trust};
use super::{Carrier, Said, about, is_there, keep_alive, page};
use crate::desc::Desc;
use crate::kernel;
use crate::side::state;
use crate::{io, life, stats};

/// How long an `accept` waits for the agent's answer.
const PATIENCE_NS: u64 = 100_000_000;
/// How long a page is believed to be that of the agent that runs now.
const ATTACHED_NS: u64 = 1_000_000_000;

const TCP_SAVE_SYN: i32 = 27;

/// [`Listener::enrolled`]: the app saves SYNs for itself, so its clients stay on TCP.
const BELONGS_TO_APP: u32 = 2;
const ENROLLED: u32 = 1;

/// When this process asked the agent for its page last.
static ATTACHED_AT_NS: AtomicU64 = AtomicU64::new(0);

/// The program serves a listener: its clients' SYNs are kept from now on, and the agent is told (rules 9 and 19).
#[inline]
pub(in crate::meet) fn enroll(desc: &'static Desc, listener: &'static Listener) {
    if !is_there() {
        return;
    }
    if listener.enrolled.load(Relaxed) == 0 {
        save_syns(desc, listener);
    }
    if listener.enrolled.load(Relaxed) == ENROLLED {
        attach(desc);
    }
}

#[cold]
fn save_syns(desc: &'static Desc, listener: &'static Listener) {
    let fd = desc.fd.load(Relaxed);
    let saved = kernel::getsockopt::<i32>(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN);
    // Other processes that share the listener, with their own notes, find that one of them has done it.
    let by_us = listener.is_shared();
    let is_ours = match saved {
        Ok(0) => kernel::setsockopt(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32).is_ok(),
        Ok(_) => by_us,
        Err(_) => false,
    };
    listener.enrolled.store(if is_ours { ENROLLED } else { BELONGS_TO_APP }, Relaxed);
}

/// Gets the page of the agent that runs now, and announces the listener to it: once a second at most, since an agent may
/// have been started again.
fn attach(desc: &'static Desc) {
    let now_ns = kernel::now_ns();
    let last_ns = ATTACHED_AT_NS.load(Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) >= ATTACHED_NS;
    if is_due && ATTACHED_AT_NS.compare_exchange(last_ns, now_ns, AcqRel, Relaxed).is_ok() {
        let _ = ask_for_page(desc);
    }
}

#[cold]
fn ask_for_page(desc: &'static Desc) -> Result<(), Reason> {
    let carrier = Carrier::open()?;
    carrier.say(about(Kind::Announce), Some(desc.fd.load(Relaxed)))?;
    carrier.answer(PATIENCE_NS)?.descriptor.into_iter().for_each(io::disarm);
    carrier.say(about(Kind::Attach), None)?;
    if let Some(memfd) = carrier.answer(PATIENCE_NS)?.descriptor {
        page::take(memfd);
        io::disarm(memfd);
    }
    Ok(())
}

/// A connection came over TCP. Makes it a lane if the agent has one for it. Whether it has.
pub(in crate::meet) fn came_over_tcp(
    desc: &'static Desc,
    listener: &'static Listener,
    accepted: i32,
    flags: i32,
) -> bool {
    if listener.enrolled.load(Relaxed) != ENROLLED || !page::tells_of_offers() || !is_there() {
        return false;
    }
    match ask(desc, accepted, flags) {
        Ok(is_lane) => is_lane,
        Err(reason) => {
            stats::fell_back(Role::Server, reason);
            false
        }
    }
}

#[cold]
fn ask(desc: &'static Desc, accepted: i32, flags: i32) -> Result<bool, Reason> {
    let carrier = Carrier::open()?;
    carrier.say(about(Kind::Ask), Some(accepted))?;
    let Said { answer, cuts, descriptor } = carrier.answer(PATIENCE_NS)?;
    let (Answer::Lane, Some(parcel)) = (answer, descriptor) else { return Ok(false) };
    let parcel = Anchor(parcel);
    let _changing = life::changing();
    take(desc, accepted, flags, &parcel, cuts).map(|()| true)
}

/// Puts a lane in the place of an accepted connection. The caller holds `life::changing`.
fn take(desc: &'static Desc, accepted: i32, flags: i32, parcel: &Anchor, cuts: bool) -> Result<(), Reason> {
    let name = name_of(accepted).ok_or(Reason::Internal)?;
    if !trust::may_share_with_brought(parcel.0) {
        return Err(Reason::ForeignUser);
    }
    let lane = match admit::lane_of(parcel.0) {
        Ok((lane, None)) => lane,
        Ok((lane, Some(_))) => {
            admit::give_back(lane);
            return Err(broken(Poison::HelloNameMismatch));
        }
        Err(Refusal::Poison(poison)) => return Err(broken(poison)),
        // Counted there, or withdrawn: the client goes on over TCP.
        Err(_) => return Err(Reason::CameOverTcp),
    };
    lane.spoil();
    let taken = put_in_place(accepted, flags, parcel, lane).and_then(|twin| {
        let path = state::MET | if cuts { state::CUTS } else { 0 };
        admit::establish(desc, accepted, flags, &name, lane, path).inspect_err(|_| {
            // The accepted socket goes back to its place.
            put(twin, accepted, flags);
        })?;
        if cuts {
            keep_alive(twin);
        }
        Ok(())
    });
    if taken.is_err() {
        admit::give_back(lane);
    }
    taken
}

/// Puts the parcel under the accepted socket's number, and that socket below the lane, as its holder.
fn put_in_place(accepted: i32, flags: i32, parcel: &Anchor, lane: &'static PooledLane) -> Result<i32, Reason> {
    let twin = kernel::hidden_twin(accepted).ok_or(Reason::DescriptorsShort)?;
    lane.hold(twin);
    let mode = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    let _ = kernel::fcntl(parcel.0, libc::F_SETFL, mode as usize);
    if put(parcel.0, accepted, flags) { Ok(twin) } else { Err(Reason::DescriptorOutOfRange) }
}

fn put(file: i32, number: i32, flags: i32) -> bool {
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    kernel::dup3(file, number, cloexec).is_ok()
}

/// A client whose parcel breaks the rules stays on TCP: the connection that the kernel has made is none of the parcel's.
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

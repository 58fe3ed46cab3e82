//! `connect(2)`.
//!
//! The app's TCP socket stays untouched until a lane stands ready beside it; only then the anchor is put under
//! the app's fd, in all its duplicates at once. Every condition that is not met, and every failure before, is a
//! [`Reason`], and the kernel connects the TCP socket.
//!
//! # What the app sees
//!
//! As on loopback TCP: a blocking call returns 0; a non-blocking one fails with `EINPROGRESS`, the socket is
//! writable at once, a second call returns 0 and a third fails with `EISCONN`.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_guest::may_begin;
use beeline_meeting::agent::why_unmet;
use beeline_stats::tunables::rules::Path;
use beeline_stats::tunables::{Policy, Standing, option};
use beeline_stats::{Counter, Reason, Role};
use beeline_wire::Endpoint;

use super::agent::{self, Made, Unmet};
use super::client::{self, Holder};
use super::connecting::{Claim, Connecting, claim, leave_to_kernel};
use super::lookup::{self, Afar, Target};
use super::pool::{self, Offer, PooledLane};
use super::route::{Reserved, Route, Way, reserve_name};
use super::trust::Peer;
use super::{bridged, greeting, ports, retry, standing, trust};
use crate::close::changing_of;
use crate::desc::{Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::operations::Operations;
use crate::side::state;
use crate::{Outcome, guards, limits, linux, process, stats, table};
use beeline_meeting::paths::{Ended, Port, Ticket};

/// `connect(2)`. `allow_lanes` tells whether the program's code may have lanes, and is asked only for a socket that
/// might.
///
/// # Safety
/// `address` and `length` as for connect(2).
pub(crate) unsafe fn connect(
    fd: i32,
    address: *const libc::sockaddr,
    length: u32,
    allow_lanes: fn() -> bool,
) -> Outcome {
    let Some(desc) = table::get(fd) else {
        // SAFETY: forwarded from the caller.
        unsafe { count_stranger(fd, address, length) };
        return Outcome::Kernel;
    };
    match desc.kind() {
        Kind::Tcp => {}
        // SAFETY: forwarded from the caller.
        Kind::Lane => return unsafe { again(fd, desc, address, length) },
        Kind::Orphan => return Outcome::fail(libc::EISCONN),
        _ => return Outcome::Kernel,
    }
    // SAFETY: forwarded from the caller.
    let destination = unsafe { SockAddr::from_app(address, length) }.and_then(|address| address.to_internet());
    let Some(destination) = destination.filter(|destination| suits(desc, destination)) else {
        // Whatever is wrong with it, or AF_UNSPEC: the kernel knows.
        return Outcome::Kernel;
    };
    if !process::accelerates() {
        return process::reason_to_count().map_or(Outcome::Kernel, |reason| settle(desc, reason));
    }
    let ours = match claim(fd, desc) {
        Claim::Ours(ours) => ours,
        Claim::Settled => return Outcome::Kernel,
        Claim::Blocked(reason) => return settle(desc, reason),
    };
    let rule = process::rules().of(Role::Client, destination);
    if !may_begin() || rule.is_some_and(|rule| rule.path() == Path::Tcp) {
        return settle(desc, Reason::Disabled);
    }
    let known_as = Endpoint::new(destination);
    if !crate::live(option::bridge_short_lived)
        && let Some(reason) = lookup::left_to_tcp(known_as.address())
    {
        return settle(desc, reason);
    }
    let always =
        rule.and_then(|rule| option::short_lived_lanes.read_word(rule.word(option::short_lived_lanes.index())));
    let always = always.unwrap_or_else(|| crate::live(option::short_lived_lanes));
    let ticket = if always { Ticket::default() } else { lookup::begin(known_as, || port_of(fd, desc)) };
    if ticket.tcp {
        return leave_to_tcp(ours, ticket);
    }
    match retry::patiently(fd, known_as.address(), || attempt(ours, destination, ticket, allow_lanes)) {
        Ok(Made::Lane { nonblocking }) => {
            stats::count(Counter::ConnectionsAcceleratedClient, 1);
            if nonblocking || client::waits_for_nothing(desc) { Outcome::fail(libc::EINPROGRESS) } else { Outcome::OK }
        }
        Ok(Made::Answered(reason, errno)) => {
            abandon(ours, ticket);
            let _ = settle(desc, reason);
            Outcome::fail(errno)
        }
        // Another thread has closed the number while this one waited: whatever it leads to now is not to be connected.
        Err(_) if !ours.is_there() => {
            lookup::abandoned(ticket);
            Outcome::fail(libc::EBADF)
        }
        Err(reason) => {
            abandon(ours, ticket);
            settle(desc, reason)
        }
    }
}

/// Who has chosen the port of a socket that is to be connected, as far as its number tells: bind(2) may have had the
/// kernel choose one.
fn port_of(fd: i32, desc: &Desc) -> Port {
    let named = || kernel::getsockname(fd).ok().and_then(|name| name.to_internet());
    let is_chosen = |name: SocketAddr| name.port() != 0 && !ports::is_handed_out(name.port());
    if desc.draft.bound.load(Relaxed) && named().is_some_and(is_chosen) { Port::Programs } else { Port::Kernels }
}

/// Leaves the socket to the kernel, because that makes short-lived connections faster.
fn leave_to_tcp(ours: Connecting, ticket: Ticket) -> Outcome {
    let desc = ours.desc;
    let _changing = changing_of(ours.fd, desc);
    if !ours.note(ticket) {
        lookup::abandoned(ticket);
        return Outcome::fail(libc::EBADF);
    }
    desc.operations.set(&LEFT_TO_TCP);
    settle(desc, Reason::ShortLived)
}

/// The connection did not come about over a lane.
fn abandon(ours: Connecting, ticket: Ticket) {
    if ticket.is_void() && ours.desc.ticket.is_empty() {
        return;
    }
    let _changing = changing_of(ours.fd, ours.desc);
    if ours.still() {
        ours.end_before(ours.desc.ticket.take(), ticket);
    }
    lookup::abandoned(ticket);
}

/// Of a socket that goes by TCP because that makes short-lived connections faster: how long it is open is wanted.
static LEFT_TO_TCP: Operations = Operations { close: note_left, ..Operations::NONE };

fn note_left(desc: &'static Desc) {
    let Some(ticket) = desc.ticket.take() else { return };
    let fd = desc.fd.load(Relaxed);
    let state = kernel::tcp_state(fd);
    if state == Some(linux::TCP_CLOSE) && kernel::never_was_connected(fd) {
        return lookup::failed(ticket);
    }
    // Who closes first has the port in TIME_WAIT. Another process may have this end, and it yet to close.
    let server_closed_first = matches!(state, Some(linux::TCP_CLOSE_WAIT | linux::TCP_LAST_ACK));
    let port_is_free = server_closed_first && desc.born.load(Relaxed) == crate::forks();
    lookup::ended(ticket, Ended::Tcp { port_is_free });
}

/// Leaves the socket to the kernel for good.
fn settle(desc: &Desc, reason: Reason) -> Outcome {
    leave_to_kernel(desc);
    stats::fell_back(Role::Client, reason);
    Outcome::Kernel
}

/// Counts a TCP connection over a socket that we do not know.
///
/// # Safety
/// `address` and `length` as for connect(2).
unsafe fn count_stranger(fd: i32, address: *const libc::sockaddr, length: u32) {
    // SAFETY: forwarded from the caller.
    let internet = unsafe { SockAddr::from_app(address, length) }.and_then(|address| address.to_internet()).is_some();
    if internet && kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) {
        stats::fell_back(Role::Client, Reason::UnknownSocket);
    }
}

/// A call on a socket that is connected over a lane.
///
/// # Safety
/// `address` and `length` as for connect(2).
unsafe fn again(fd: i32, desc: &'static Desc, address: *const libc::sockaddr, length: u32) -> Outcome {
    // SAFETY: readable, as the caller guarantees.
    let family = if address.is_null() || length < 2 { -1 } else { i32::from(unsafe { (*address).sa_family }) };
    if family == libc::AF_UNSPEC {
        return super::late::disconnect(fd, desc);
    }
    let Some(guard) = guards::lane_tx(fd) else { return Outcome::Kernel };
    crate::io::observe(desc, guard.side);
    if guard.side.state.fetch_and(!state::CONNECTING, AcqRel) & state::CONNECTING == 0 {
        return Outcome::fail(libc::EISCONN);
    }
    guard.side.take_error().map_or(Outcome::OK, Outcome::Fail)
}

/// Whether the kernel would take this destination for a socket of this family.
fn suits(desc: &Desc, destination: &SocketAddr) -> bool {
    let is_v4 = desc.family.load(Relaxed) == libc::AF_INET as u32;
    is_v4 == destination.is_ipv4() && destination.port() != 0
}

/// Whether a socket is non-blocking, if it may have a lane at all.
///
/// # Errors
/// Why it may not.
fn admit(ours: Connecting, allow_lanes: fn() -> bool) -> Result<bool, Reason> {
    let Connecting { fd, desc, .. } = ours;
    if crate::config().policy == Policy::Strict {
        return Err(Reason::PolicyStrict);
    }
    if desc.born.load(Relaxed) != crate::forks() {
        return Err(Reason::SharedBeforeConnect);
    }
    if (0..=2).contains(&fd) {
        return Err(Reason::StdioDescriptor);
    }
    let mode = kernel::status_flags(fd).map_err(|_| Reason::Internal)?;
    if mode & libc::O_ASYNC != 0 {
        return Err(Reason::AsyncIo);
    }
    if !allow_lanes() {
        return Err(process::reason_to_count().unwrap_or(Reason::Internal));
    }
    Ok(mode & libc::O_NONBLOCK != 0)
}

/// Connects over a lane, or as far as a server in another namespace has answered.
fn attempt(
    ours: Connecting,
    destination: SocketAddr,
    ticket: Ticket,
    allow_lanes: fn() -> bool,
) -> Result<Made, Reason> {
    let Connecting { fd, desc, .. } = ours;
    let nonblocking = admit(ours, allow_lanes)?;
    let known_as = Endpoint::new(destination).address();
    if lookup::is_known_doorless(known_as) {
        return Err(Reason::NoDoor);
    }
    if limits::is_known_strict() {
        return Err(Reason::OvercommitStrict);
    }
    // One that could have no lane anyway has not looked for the others.
    lookup::looked_again(known_as);
    let route = Route::find(fd, desc.family.load(Relaxed), destination)?;
    match route.way {
        Way::Here => {}
        Way::Bridge => {
            let bridged = bridged::attempt(ours, &route, nonblocking).map_err(why_unmet);
            return bridged.map(|()| Made::Lane { nonblocking });
        }
        Way::Afar => return attempt_afar(ours, &route, nonblocking),
    }
    if route.is_privileged_in_vain() {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let mut untaken = None;
    if let Some(again) = standing::connect(ours, &route, nonblocking, ticket, &mut untaken) {
        return again.map(|()| Made::Lane { nonblocking });
    }
    let (reserved, target) = reserve(&route, untaken)?;
    if route.bound_port.is_some() && !route.ours.is_believed_by(target.uid) {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let _changing = changing_of(fd, desc);
    // Bound anew behind `_changing`, and so dropped before it: its number is closed before the change ends, as a fork
    // that waits for that is not to copy it.
    let reserved = reserved;
    let anchor = &reserved.anchor;
    if let Some(reason) = ours.hindrance(ticket, anchor.get()) {
        return Err(reason);
    }
    let holder = Holder::of(fd, route.explicit)?;
    // Everything is at hand before the server learns of us: between connecting to its door and saying hello
    // there is as little as can be.
    let side = pool::side().map_err(limits::memory_reason)?;
    let offer = client::prepare(side.state, desc, &reserved.name, target.cookie, nonblocking);
    let (lane, peer) = match offer.and_then(|offer| at_door(offer, &reserved, &route, target)) {
        Ok(made) => made,
        Err(reason) => {
            side.retire(true);
            return Err(reason);
        }
    };
    if let Some(holder) = holder {
        holder.keep_with(lane);
    }
    client::install(fd, desc, anchor.get(), lane, side, nonblocking, Some(peer.pid))
        .map(|()| Made::Lane { nonblocking })
}

/// Goes to the listener's door with a lane, and says hello if that must be said. Returns the lane, and who opened the
/// door.
fn at_door(
    mut offer: Offer,
    reserved: &Reserved,
    route: &Route,
    target: Target,
) -> Result<(&'static PooledLane, Peer), Reason> {
    let Reserved { anchor, name, held } = reserved;
    let may_be_known = held.is_none() && crate::live(option::standing) != Standing::Off;
    if let Some(peer) = offer.known_to().filter(|_| may_be_known) {
        // Most likely it is the same again.
        standing::offer(&offer, route, name, Some(peer));
        offer.leave_unsaid(name);
    }
    if let Err(reason) = greeting::enter_door(anchor, route.destination, target) {
        offer.withdraw();
        return Err(reason);
    }
    match greeting::who_opened(anchor, name, route.destination, target, &route.ours) {
        Ok(peer) => {
            offer.know_owner(target.uid);
            standing::offer(&offer, route, name, held.is_none().then_some(peer));
            greeting::say_hello(anchor.get(), offer, *held).map(|lane| (lane, peer))
        }
        Err(reason) => {
            offer.give_up();
            Err(reason)
        }
    }
}

/// Connects to an address that is not this namespace's own: of another one of this host perhaps, else of another host.
fn attempt_afar(ours: Connecting, route: &Route, nonblocking: bool) -> Result<Made, Reason> {
    let Afar { met, bridged } = lookup::afar(route.destination);
    let unmet = match met.map_err(Unmet::from).and_then(|()| agent::attempt(ours, route, nonblocking)) {
        Ok(made) => return Ok(made),
        // The kernel was asked to connect, and what became of that is what the app is to see.
        Err(Unmet { reason, is_begun: true }) => return Err(reason),
        Err(Unmet { reason, .. }) => reason,
    };
    if !crate::live(option::bridge) {
        return Err(unmet);
    }
    match bridged.and_then(|()| bridged::attempt(ours, route, nonblocking)) {
        // There is no bridge, or it is left alone for the same reason: what the agent has said tells more.
        Err(Reason::NotLocal | Reason::BridgeShortLived) => Err(unmet),
        bridged => bridged.map(|()| Made::Lane { nonblocking }),
    }
}

/// Finds the listener, and reserves an address. `untaken` is what [`lookup::is_untaken`] has answered, if it was asked.
fn reserve(route: &Route, mut untaken: Option<bool>) -> Result<(Reserved, Target), Reason> {
    let mut target = None;
    let reserved = reserve_name(route, |client| {
        let found = lookup::listener(route.destination, client)?;
        match lookup::why_not_enter(route.destination, found.cookie) {
            // Who has no number for a client's port needs none for this one's.
            Some(Reason::AddressInUse) if route.bound_port.is_some() || !ports::is_handed_out(client.port()) => {}
            Some(reason) => return Err(reason),
            None => {}
        }
        // Whose door it is is known when it has been entered, which wakes the server for nothing then.
        let is_foreign = !route.ours.may_share(found.uid);
        // Before all that a first connection has made for itself.
        if (is_foreign || !pool::has_made_any()) && !greeting::is_open(found.cookie) {
            lookup::note_doorless(route.destination);
            return Err(Reason::NoDoor);
        }
        if is_foreign {
            let is_nobody = found.uid == trust::overflow_uid();
            let reason = if is_nobody { Reason::DoorNotTrusted } else { Reason::ForeignUser };
            lookup::note_barred(route.destination, found.cookie, reason);
            return Err(reason);
        }
        // Not before it is known that there is a door: most programs meet none.
        if limits::counts_memory_strictly() {
            return Err(Reason::OvercommitStrict);
        }
        if *untaken.get_or_insert_with(|| lookup::is_untaken(route.destination)) {
            return Err(Reason::HelloNotTaken);
        }
        target = Some(found);
        Ok(())
    })?;
    Ok((reserved, target.ok_or(Reason::Internal)?))
}

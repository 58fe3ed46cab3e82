//! Admitting a client that has come through the door.
//!
//! 1. The client's anchor must be bound to the name of a connection to this listener. The kernel keeps that
//!    name unique, so it reserves the client's address; both addresses in it must be of this host, except that the
//!    bridge speaks for clients on other hosts. Without a name the addresses stand in the hello. What else a client
//!    may not claim is in [`super::claims`].
//! 2. The client must be somebody to share memory with ([`super::trust`]), and no rule may want the connection to go
//!    over TCP.
//! 3. The hello must be there, or need not be said: the lane is known by the name ([`taking::unsaid`]).
//! 4. The lane is mapped, or found among those mapped before.
//! 5. Everything that can fail has been done when the hello is taken ([`beeline_lane::offer`]); from then on the
//!    connection never changes its path. A client that is sent away before begins again over TCP, and one that has not
//!    waited for us has done so already.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;

use beeline_guest::may_begin;
use beeline_lane::{Bells, End, Since, Storage as _, flags, offer};
use beeline_stats::tunables::rules::Path;
use beeline_stats::{Counter, Poison, Reason, Role};
use beeline_wire::{ConnName, Endpoint, Held};

use super::accepting::Accepting;
use super::claims::{self, Naming};
use super::hello_io::Refusal;
use super::listener::Listener;
use super::lobby::Again;
use super::pool::{self, PooledLane};
use super::route::new_anchor;
use super::taking::{self, give_back, name_of, refused};
use super::trust::{OwnUser, Peer};
use super::{lookup, retreat, standing, strangers, trust};
use crate::anchor::Anchor;
use crate::desc::{DESCS, Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{guards, hidden, io, limits, process, slots, stats, table, wait};

/// A client as far as it is known before it has said anything.
pub(super) struct Visitor {
    /// What its anchor is named for, and whether that comes from another host.
    named: Option<(ConnName, bool)>,
    peer: Option<Peer>,
    is_of_ours: bool,
    /// Who we are to it.
    ours: OwnUser,
}

impl Visitor {
    /// The user, unless it is nobody that this process can tell from others.
    pub(super) fn user(&self) -> Option<u32> {
        self.peer.map(|peer| peer.uid)
    }
}

/// Makes a connection of a client's anchor. The caller holds `changing::changing`, and closes the anchor if this
/// fails.
pub(super) fn take(call: &mut Accepting, anchor: i32) -> Result<(), Refusal> {
    let visitor = judge(call, anchor, None)?;
    take_hello(call, anchor, &visitor)
}

/// Finds out who has come. What the anchor tells is judged before the client has said anything, and only once. Its name
/// is asked for unless it is `told`.
///
/// # Errors
/// Why it is sent away, never [`Refusal::Silence`].
pub(super) fn judge(call: &Accepting, anchor: i32, told: Option<&SockAddr>) -> Result<Visitor, Refusal> {
    may_admit(call)?;
    let bound = name_of(anchor, told)?;
    let peer = trust::peer(anchor);
    let uid = peer.map(|peer| peer.uid);
    let may_bridge = uid.is_some_and(trust::may_bridge);
    let checked = |name| check_addresses(call.listener, &name, may_bridge).map(|bridged| (name, bridged));
    let named = bound.map(checked).transpose().map_err(|refusal| in_place(anchor, refusal))?;
    let bridged = named.is_some_and(|(_, bridged)| bridged);
    let ours = OwnUser::default();
    if !bridged && !uid.is_some_and(|uid| ours.may_share(uid)) {
        return Err(refused(Reason::ForeignUser));
    }
    Ok(Visitor { named, peer, is_of_ours: uid.is_some_and(|uid| ours.believes(uid)), ours })
}

/// Whether clients may have lanes at the moment. Where they may not, no more come to the door.
fn may_admit(&Accepting { desc, listener, .. }: &Accepting) -> Result<(), Refusal> {
    let reason = match (may_begin(), limits::had_hostile_clients()) {
        (false, _) => Reason::Disabled,
        (true, true) => Reason::HostileClients,
        (true, false) => return Ok(()),
    };
    retreat::begin_now(desc, listener, reason);
    Err(refused(reason))
}

/// The second part of [`take`], which may be tried again of a client that was silent.
pub(super) fn take_hello(call: &mut Accepting, anchor: i32, visitor: &Visitor) -> Result<(), Refusal> {
    let Accepting { desc, listener, flags, .. } = *call;
    let Visitor { named, peer, is_of_ours, ref ours } = *visitor;
    may_admit(call)?;
    let uid = visitor.user();
    let bridged = named.is_some_and(|(_, bridged)| bridged);
    let unsaid = match (named, peer) {
        (Some((ref name, false)), Some(peer)) => taking::unsaid(anchor, listener.cookie.load(Relaxed), name, peer),
        _ => None,
    };
    let (lane, held) = match unsaid {
        Some(lane) => (lane, None),
        None => lane_of(anchor, is_of_ours)?,
    };
    if !listener.is_of_one_user(ours) {
        lane.spoil();
    }
    let proven = match (named, held) {
        (Some((name, true)), None) => Ok((name, None)),
        (Some((name, false)), None) => {
            claims::prove(&name, Naming::Plain, uid, ours, anchor).map(|holder| (name, holder))
        }
        (None, Some(_)) if !pool::may_hold() => Err(Refusal::Reason(Reason::DescriptorsShort)),
        (None, Some(held)) => {
            let name = held.to_port(listener.local.get().port());
            let checked = check_addresses(listener, &name, false).map_err(|refusal| in_place(anchor, refusal));
            checked.and_then(|_| claims::prove(&name, Naming::Held, uid, ours, anchor)).map(|holder| (name, holder))
        }
        (None, None) => Err(Refusal::Poison(Poison::HelloUnnamed)),
        (Some(_), Some(_)) => Err(Refusal::Poison(Poison::HelloNameMismatch)),
    };
    let proven = proven.and_then(|(name, holder)| match process::rules().path(Role::Server, name.server.address()) {
        Path::Lane => Ok((name, holder)),
        Path::Tcp => {
            drop(holder);
            Err(Refusal::Reason(Reason::Disabled))
        }
    });
    let name = match proven {
        Ok((name, holder)) => {
            holder.into_iter().for_each(|holder| lane.hold(hidden::hide(holder.give_away())));
            name
        }
        Err(refusal) => {
            give_back(lane);
            return Err(if let Refusal::Reason(reason) = refusal { refused(reason) } else { refusal });
        }
    };
    let path = if bridged { state::BRIDGED } else { 0 };
    if path == 0 {
        standing::welcome(listener, lane, &name, peer, ours);
    }
    if path != 0 || named.is_none() {
        lane.stands.forget();
    }
    match establish(desc, anchor, flags, &name, (lane, path), Origin { peer, is_of_ours }) {
        Ok(family) => {
            call.peer = SockAddr::internet(name.client.address(), family);
            Ok(())
        }
        Err(reason) => {
            give_back(lane);
            // A client that is on its way over TCP is counted there.
            Err(if reason == Reason::HelloNotTaken { Refusal::Gone } else { refused(reason) })
        }
    }
}

/// Makes a connection of an anchor whose client has said hello again ([`standing`]), over the lane that came with it
/// once. The caller holds `changing::changing`, and closes the anchor if this fails.
pub(super) fn take_again(call: &mut Accepting, anchor: i32, Again { lane, client }: Again) -> Result<(), Refusal> {
    let Accepting { desc, listener, flags, .. } = *call;
    let (known, who, ours) = (lane.stands.name(), lane.stands.peer(), OwnUser::default());
    let name = ConnName { client, ..known };
    let refusal = if !may_begin() || process::rules().path(Role::Server, name.server.address()) == Path::Tcp {
        Some(refused(Reason::Disabled))
    } else if !ours.may_share(who.uid) {
        Some(refused(Reason::ForeignUser))
    } else if name != known {
        check_claim(listener, &name, who.uid, &ours, anchor).err()
    } else {
        None
    };
    if let Some(refusal) = refusal {
        give_back(lane);
        return Err(refusal);
    }
    if !listener.is_of_one_user(&ours) {
        lane.spoil();
    }
    standing::welcome(listener, lane, &known, Some(who), &ours);
    lane.stands.begin_again();
    // Whether it is of ours was asked when it came first.
    match establish(desc, anchor, flags, &name, (lane, 0), Origin { peer: Some(who), is_of_ours: false }) {
        Ok(family) => {
            stats::count(Counter::LanesReused, 1);
            listener.seats.note_claimed();
            call.peer = SockAddr::internet(name.client.address(), family);
            Ok(())
        }
        Err(reason) => {
            give_back(lane);
            Err(if reason == Reason::HelloNotTaken { Refusal::Gone } else { refused(reason) })
        }
    }
}

/// Whether a client of this user may have another address than the name of its anchor has.
fn check_claim(listener: &Listener, name: &ConnName, uid: u32, ours: &OwnUser, anchor: i32) -> Result<(), Refusal> {
    let proven = check_addresses(listener, name, false).and_then(|_| {
        // Nobody holds it for a client that is to be believed.
        claims::prove(name, Naming::Plain, Some(uid), ours, anchor).map(|_| ())
    });
    proven.map_err(|refusal| in_place(anchor, refusal))
}

/// Whether the name is a connection to this listener that its maker may claim. Returns whether it comes from another
/// host.
fn check_addresses(listener: &Listener, name: &ConnName, bridge: bool) -> Result<bool, Refusal> {
    let ours = Endpoint::new(listener.local.get()).address();
    let (server, client) = (name.server.address(), name.client.address());
    let to_us = server.port() == ours.port() && (server.ip() == ours.ip() || ours.ip().is_unspecified());
    if !to_us || server.ip().is_ipv6() && ours.is_ipv4() {
        return Err(Refusal::Poison(Poison::HelloNameMismatch));
    }
    if client.port() == 0 || client.ip().is_ipv4() != server.ip().is_ipv4() || client == server {
        return Err(Refusal::Poison(Poison::HelloNameMismatch));
    }
    let is_ours = |ip: IpAddr| ip == ours.ip() && !ip.is_unspecified();
    let here = |address: SocketAddr| {
        let ip = address.ip();
        if is_ours(ip) { Ok(true) } else { lookup::is_local(ip).map_err(Refusal::Reason) }
    };
    match (here(server)?, here(client)) {
        (true, Ok(true)) => Ok(false),
        (true, _) if bridge => Ok(true),
        (true, Err(refusal)) => Err(refusal),
        _ => Err(Refusal::Poison(Poison::HelloAddressForeign)),
    }
}

/// The refusal of an address as foreign, or because nobody can tell, which is counted. Whether it is foreign cannot be
/// told in another network namespace, where the thread may have gone since the door was opened.
#[cold]
fn in_place(anchor: i32, refusal: Refusal) -> Refusal {
    let is_here = || new_anchor().is_ok_and(|probe| kernel::namespace(probe.get()) == kernel::namespace(anchor));
    match refusal {
        Refusal::Poison(Poison::HelloAddressForeign) if !is_here() => refused(Reason::OtherNamespace),
        Refusal::Reason(reason) => refused(reason),
        refusal => refusal,
    }
}

/// Takes the hello and its lane, and stops letting clients in if that was one of the last lanes.
pub(super) fn lane_of(anchor: i32, is_of_ours: bool) -> Result<(&'static PooledLane, Option<Held>), Refusal> {
    let taken = taking::lane_of(anchor, is_of_ours)?;
    if taken.is_new {
        retreat::if_near_a_limit();
    }
    Ok((taken.lane, taken.held))
}

/// From whom a connection comes, as far as that is known.
#[derive(Default)]
pub(super) struct Origin {
    peer: Option<Peer>,
    /// Whether that is root's or our own user's, which may stop us anyway.
    is_of_ours: bool,
}

/// Puts everything in place for a connection whose lane is there, and which has come on this path: [`state::BRIDGED`],
/// [`state::MET`], or neither. Returns the app's address family.
pub(super) fn establish(
    desc: &'static Desc,
    anchor: i32,
    flags: i32,
    name: &ConnName,
    (lane, path): (&'static PooledLane, u32),
    Origin { peer, is_of_ours }: Origin,
) -> Result<i32, Reason> {
    io::small_send_buffer()?;
    let is_new = !lane.stands.is_again();
    if is_new && trust::refuse_rights(anchor) && !is_of_ours && strangers::hides_rights(anchor) {
        stats::poisoned(Poison::HelloExtraFds);
        return Err(Reason::PeerRefused);
    }
    let side = pool::side().map_err(limits::memory_reason)?;
    let Some(connection) = DESCS.take() else {
        side.retire(true);
        return Err(Reason::MemoryShort);
    };
    let family = desc.family.load(Relaxed);
    fill_side(side.state, desc, flags, family, name);
    if path != 0 {
        side.state.mark(path);
        side.state.rx.begin_armed();
    }
    connection.begin(Kind::Tcp, anchor, family, crate::forks());
    crate::close::forget_stale(anchor);
    if table::set(anchor, Some(connection)).is_err() {
        connection.give_if_unused();
        side.retire(true);
        return Err(Reason::DescriptorOutOfRange);
    }
    let memory = lane.memory();
    // Nothing can fail any more, except that the client has not waited for us.
    if !offer::take(memory.offer()) {
        let _ = table::set(anchor, None);
        connection.give_if_unused();
        side.retire(true);
        return Err(Reason::HelloNotTaken);
    }
    super::lane::begin_lane(connection, anchor, lane, side, End::Server);
    if path == 0
        && let Some(guard) = guards::rx_of(anchor, connection)
    {
        // A fault is found again by whoever reads.
        let _ = guard.arm(Since::Read, &Anchor(anchor));
    }
    // Last, for clients that look at nothing else.
    memory.set_flags(End::Server, memory.flags(End::Server) | flags::TAKEN | standing::flag_of(lane));
    // A writer that has armed and does not see this is seen by whoever reads (`crate::untaken`).
    memory.full_fence();
    if path & state::BRIDGED != 0 {
        // The other host's client waits for that word. A bridge that is gone is found by whoever uses the lane.
        let _ = Anchor(anchor).ring();
    }
    let peer_pid = peer.map(|peer| peer.pid);
    connection.know_peer(peer_pid.unwrap_or(0));
    slots::open_slot(connection, peer_pid);
    wait::note_client_over_lane();
    stats::count(Counter::ConnectionsAcceleratedServer, 1);
    stats::count(Counter::ConnectionsBridgedServer, u64::from(path & state::BRIDGED != 0));
    Ok(family as i32)
}

/// What an accepted socket inherits from its listener, and who is at its ends.
fn fill_side(side: &SideState, listener: &Desc, flags: i32, family: u32, name: &ConnName) {
    super::lane::carry_draft(&listener.draft, side);
    disinherit(side);
    side.holders.store(1, Relaxed);
    side.nonblock.store(u32::from(flags & libc::SOCK_NONBLOCK != 0), Relaxed);
    side.family.store(family, Relaxed);
    side.local.set(name.server.address());
    side.remote.set(name.client.address());
}

/// Takes back what an accepted socket does not inherit.
fn disinherit(side: &SideState) {
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_PRIORITY),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    ] {
        if side.option(level, name).is_some() {
            let _ = side.set_option(level, name, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_fit_the_listener() {
        let check = |listens: &str, server: &str, client: &str| {
            let listener = super::super::listener::blank();
            listener.local.set(listens.parse().unwrap());
            let name = ConnName {
                client: Endpoint::new(client.parse().unwrap()),
                server: Endpoint::new(server.parse().unwrap()),
            };
            check_addresses(&listener, &name, false).err()
        };
        let mismatch = Some(Refusal::Poison(Poison::HelloNameMismatch));
        let foreign = Some(Refusal::Poison(Poison::HelloAddressForeign));
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:9000"), None);
        assert_eq!(check("0.0.0.0:80", "127.0.0.7:80", "127.0.0.1:9000"), None);
        assert_eq!(check("[::]:80", "127.0.0.1:80", "127.0.0.1:9000"), None);
        assert_eq!(check("[::]:80", "[::1]:80", "[::1]:9000"), None);
        assert_eq!(check("[::1]:80", "127.0.0.1:80", "127.0.0.1:9000"), mismatch);
        assert_eq!(check("0.0.0.0:80", "[::1]:80", "[::1]:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:81", "127.0.0.1:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:0"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "[::1]:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:80"), mismatch);
        for nobody in ["0.0.0.0:9000", "255.255.255.255:9000", "127.255.255.255:9000", "224.0.0.1:9000"] {
            assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", nobody), foreign, "{nobody}");
            assert_eq!(check("0.0.0.0:9000", nobody, "127.0.0.1:80"), foreign, "{nobody}");
        }
        assert_eq!(check("[::]:80", "[::]:80", "[::1]:9000"), foreign);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "192.0.2.1:9000"), foreign);
        assert_eq!(check("0.0.0.0:80", "192.0.2.1:80", "127.0.0.1:9000"), foreign);
        let listener = super::super::listener::blank();
        listener.local.set("0.0.0.0:80".parse().unwrap());
        let of_bridge = |server: &str, client: &str| {
            let client = Endpoint::new(client.parse().unwrap());
            let name = ConnName { client, server: Endpoint::new(server.parse().unwrap()) };
            check_addresses(&listener, &name, true).ok()
        };
        assert_eq!(of_bridge("127.0.0.1:80", "192.0.2.1:9000"), Some(true));
        assert_eq!(of_bridge("127.0.0.1:80", "127.0.0.1:9000"), Some(false));
        assert_eq!(of_bridge("192.0.2.1:80", "192.0.2.1:9000"), None);
    }
}

//! Admitting a client that has come through the door.
//!
//! 1. The client's anchor must be bound to the name of a connection to this listener. The kernel keeps that
//!    name unique, so it reserves the client's address; both addresses in it must be of this host, except that the
//!    bridge speaks for clients on other hosts.
//! 2. The client must be somebody to share memory with ([`super::trust`]).
//! 3. The hello must be there.
//! 4. The lane is mapped, or found among those mapped before.
//! 5. Everything that can fail has been done when [`flags::TAKEN`] is set; from then on the connection never
//!    changes its path. A client that is sent away before begins again over TCP.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use beeline_lane::{End, LaneMemory, flags};
use beeline_shm::sys;
use beeline_stats::{Counter, Poison, Reason, Role};
use beeline_wire::{ConnName, Endpoint};

use super::connect::memory_reason;
use super::hello_io::{self, Refusal, Waiting};
use super::listener::{FdCell, Listener};
use super::pool::{self, PooledLane};
use super::{lookup, trust};
use crate::desc::{DESCS, Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{io, options, stats, table};

/// Looks for a hello that is being sent this moment.
const HELLO_LOOKS: usize = 8;
/// When fewer numbers than this are left below the limit, descriptors count as scarce.
const SCARCE: u64 = 256;

/// A descriptor kept for the moment in which a lane's memfd arrives and all others are in use.
static RESERVE: FdCell = FdCell::empty();

/// Makes a connection of a client's anchor. The caller holds `life::changing`, and closes the anchor if this
/// fails.
pub(super) fn take(
    desc: &'static Desc,
    listener: &'static Listener,
    anchor: i32,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<(), Refusal> {
    let name = client_name(anchor)?;
    let uid = trust::peer_uid(anchor);
    let bridged = check_addresses(listener, &name, uid.is_some_and(trust::may_bridge))?;
    if !bridged && !uid.is_some_and(trust::may_share) {
        return Err(refused(Reason::ForeignUser));
    }
    let (lane, _) = lane_of(anchor)?;
    if !listener.is_of_one_user() {
        lane.spoil();
    }
    match establish(desc, anchor, flags, &name, lane, bridged) {
        Ok(family) => {
            *peer = SockAddr::internet(name.client.address(), family);
            Ok(())
        }
        Err(reason) => {
            lane.spoil();
            pool::retire(lane, End::Server, false);
            Err(refused(reason))
        }
    }
}

/// Counts why a client is sent to TCP.
fn refused(reason: Reason) -> Refusal {
    stats::fell_back(Role::Server, reason);
    Refusal::Gone
}

/// The addresses that the client's anchor is named for.
pub(super) fn client_name(anchor: i32) -> Result<ConnName, Refusal> {
    let name = kernel::getpeername(anchor).map_err(|_| Refusal::Gone)?;
    let parsed = name.abstract_name().map(ConnName::parse);
    match parsed {
        Some(Some(name)) => Ok(name),
        Some(None) => Err(Refusal::Poison(Poison::HelloNameMismatch)),
        // A plug, or somebody who has already left.
        None if hello_io::look(anchor) == Waiting::Gone => Err(Refusal::Gone),
        None => Err(Refusal::Poison(Poison::HelloUnnamed)),
    }
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
    if client.port() == 0 || client.ip().is_ipv4() != server.ip().is_ipv4() {
        return Err(Refusal::Poison(Poison::HelloNameMismatch));
    }
    let here = |address: SocketAddr| address.ip() == ours.ip() || lookup::is_local(address.ip());
    match here(server) {
        true if here(client) => Ok(false),
        true if bridge => Ok(true),
        _ => Err(Refusal::Poison(Poison::HelloAddressForeign)),
    }
}

/// Takes the hello and finds or maps its lane.
pub(super) fn lane_of(anchor: i32) -> Result<(&'static PooledLane, LaneMemory), Refusal> {
    let reserve = make_room(anchor);
    let mut received = hello_io::receive(anchor);
    for _ in 1..HELLO_LOOKS {
        if !matches!(received, Err(Refusal::Silence)) {
            break;
        }
        received = hello_io::receive(anchor);
    }
    let found = received.and_then(|received| map(&received));
    if reserve {
        keep_reserve();
    }
    match found {
        Err(Refusal::Reason(reason)) => Err(refused(reason)),
        found => found,
    }
}

fn map(received: &hello_io::Received) -> Result<(&'static PooledLane, LaneMemory), Refusal> {
    if let Some(known) = pool::server_known(received.id, received.hello.ring_bytes) {
        stats::count(Counter::LanesReused, 1);
        known.keep_memfd(received.memfd);
        return Ok((known, known.memory()));
    }
    let memory = hello_io::map(received).inspect_err(|_| received.close())?;
    match pool::server_lane(memory, received.id) {
        Some(lane) => {
            lane.keep_memfd(received.memfd);
            Ok((lane, memory))
        }
        None => {
            received.close();
            // SAFETY: the fresh mapping has no user.
            unsafe { memory.unmap() };
            Err(refused(Reason::MemoryShort))
        }
    }
}

/// Sees to it that a memfd can arrive: a hello whose descriptor finds no room is lost. Returns whether the
/// reserve was given up for it.
fn make_room(anchor: i32) -> bool {
    /// New descriptors get the lowest free number, so below this one there is room. An app that lowers its limit
    /// afterwards may lose a hello: that client begins again over TCP.
    static ROOMY_BELOW: AtomicI32 = AtomicI32::new(0);
    if anchor < ROOMY_BELOW.load(Relaxed) {
        return false;
    }
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let _ = unsafe { sys::call(libc::SYS_prlimit64, args) };
    let roomy = limit.rlim_cur.saturating_sub(SCARCE).min(1 << 20) as i32;
    ROOMY_BELOW.store(roomy, Relaxed);
    if anchor < roomy {
        return false;
    }
    let is_room = || {
        let probe = kernel::fcntl(anchor, libc::F_DUPFD_CLOEXEC, 0);
        probe.is_ok_and(|probe| sys::close(probe as i32).is_ok())
    };
    if is_room() || pool::release_descriptors() && is_room() {
        return false;
    }
    match RESERVE.take() {
        Some(reserve) => {
            kernel::close_hidden(reserve);
            true
        }
        None => false,
    }
}

/// Keeps a descriptor in reserve, now that clients may come. A socket of no use is as good as any.
pub(super) fn keep_reserve() {
    if RESERVE.get().is_none()
        && let Ok(reserve) = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
    {
        RESERVE.set(Some(kernel::hide(reserve as i32)));
    }
}

/// Puts everything in place for a connection whose lane is there. Returns the app's address family.
fn establish(
    desc: &'static Desc,
    anchor: i32,
    flags: i32,
    name: &ConnName,
    lane: &'static PooledLane,
    bridged: bool,
) -> Result<i32, Reason> {
    if io::small_send_buffer().is_none() {
        return Err(Reason::KernelUnsupported);
    }
    trust::refuse_rights(anchor);
    let side = pool::side().map_err(memory_reason)?;
    let Some(connection) = DESCS.take() else {
        side.retire(true);
        return Err(Reason::MemoryShort);
    };
    let family = desc.family.load(Relaxed);
    fill_side(side.state, desc, flags, family, name);
    if bridged {
        side.state.mark(state::BRIDGED);
    }
    connection.begin(Kind::Tcp, anchor, family, crate::forks());
    super::forget_stale(anchor);
    if table::set(anchor, Some(connection)).is_err() {
        connection.give_if_unused();
        side.retire(true);
        return Err(Reason::DescriptorOutOfRange);
    }
    super::begin_lane(connection, anchor, lane, side, End::Server);
    // Last: now the client knows that nothing will change any more.
    let memory = lane.memory();
    memory.set_flags(End::Server, memory.flags(End::Server) | flags::TAKEN);
    stats::open_slot(connection);
    stats::count(Counter::ConnectionsAcceleratedServer, 1);
    stats::count(Counter::ConnectionsBridgedServer, u64::from(bridged));
    Ok(family as i32)
}

/// What an accepted socket inherits from its listener, and who is at its ends.
fn fill_side(side: &SideState, listener: &Desc, flags: i32, family: u32, name: &ConnName) {
    super::carry_draft(&listener.draft, side);
    options::disinherit(side);
    side.holders.store(1, Relaxed);
    side.nonblock.store(u32::from(flags & libc::SOCK_NONBLOCK != 0), Relaxed);
    side.family.store(family, Relaxed);
    side.local.set(name.server.address());
    side.remote.set(name.client.address());
    side.rx.begin_armed();
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

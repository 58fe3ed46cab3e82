//! Where a connection goes and where it comes from, and the name that reserves its addresses.
//!
//! The name is an abstract `AF_UNIX` one, made of both addresses: the anchor is bound to it, so that no two lanes of a
//! network namespace have the same addresses.
//!
//! Anybody may bind such names, all those of a listener even, or so many others that the kernel takes long to compare
//! them. When a few candidates in a row are taken, or binding is slow many times in a row, or there are no candidates
//! as TCP's own range has all ports, the next anchors stay without a name for [`CROWDED_NS`]. Their addresses stand in
//! the hello, with a port from TCP's own range that the server holds on TCP as long as the connection lasts
//! ([`super::claims`], 3). That costs a few system calls more.
//!
//! A socket belongs to the network namespace it was made in, wherever its thread has gone since (setns(2)). The
//! questions to the kernel and the names belong to the namespace that the thread is in now. Where the two differ, the
//! kernel connects.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::Fd;
use beeline_stats::Reason;
use beeline_stats::tunables::{Standing as Wanted, option};
use beeline_wire::{ConnName, Endpoint, Held};

use super::pool::{self, Standing};
use super::{agent, claims, lookup, ports, trust};
use crate::Errno;
use crate::kernel::{self, SockAddr};

/// Addresses tried.
const PORTS_MAX: usize = 64;
/// The same where there is another way.
const PORTS_FEW: usize = 4;
/// How long names are taken for crowded.
const CROWDED_NS: u64 = 100_000_000;
/// Until when they are.
static CROWDED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// A bind that takes longer is slow: it takes 2 us, and 10 us among as many names as there are ports. Where the machine
/// is busy single ones take longer, too.
const SLOW_NS: u64 = 40_000;
/// So many slow ones in a row are taken for a crowd of names.
const SLOW_MAX: u32 = 8;
/// Slow ones in a row.
static SLOW: AtomicU32 = AtomicU32::new(0);

/// Where a destination is, and so which ways lead to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In this network namespace.
    Here,
    /// Elsewhere, and there is no agent: the bridge's, which has been asked about ([`lookup::elsewhere`]).
    Bridge,
    /// Elsewhere, of this host perhaps.
    Afar,
}

/// Both ends' addresses as far as they are known before a port is chosen.
pub struct Route {
    pub destination: SocketAddr,
    source: IpAddr,
    /// The port of an explicit bind.
    pub bound_port: Option<u16>,
    /// Whether the app chose address or port.
    pub explicit: bool,
    /// Where the destination is.
    pub way: Way,
    /// The network namespace of the socket.
    namespace: Option<u64>,
    /// Who we are for this connection.
    pub ours: trust::OwnUser,
}

impl Route {
    /// Where the connection of a socket of this family goes and where it comes from.
    ///
    /// # Errors
    /// Why it is the kernel's.
    pub fn find(fd: i32, family: u32, destination: SocketAddr) -> Result<Route, Reason> {
        let bound = kernel::getsockname(fd).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
        let bound_ip = Endpoint::new(bound).address().ip();
        let chosen_ip = (!bound_ip.is_unspecified()).then_some(bound_ip);
        if is_link_local_of_no_interface(destination) {
            // The kernel has an error for this, unless the socket is bound to an interface.
            return Err(Reason::NotLocal);
        }
        let mut destination = Endpoint::new(destination).address();
        if destination.ip().is_ipv4() && family == libc::AF_INET6 as u32 {
            let only = kernel::getsockopt::<i32>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
            if only != Ok(0) {
                // The kernel has an error for this.
                return Err(Reason::NotLocal);
            }
        }
        if destination.ip().is_unspecified() {
            destination.set_ip(in_place_of_any(destination, bound_ip));
        }
        let (reached_from, way) = match lookup::local(destination) {
            Ok(local) => (local.source, Way::Here),
            Err(Reason::NotLocal) if agent::is_there() => (lookup::source_for(destination)?, Way::Afar),
            Err(Reason::NotLocal) if crate::live(option::bridge) => {
                (lookup::elsewhere(destination).map_err(agent::why_unmet)?, Way::Bridge)
            }
            Err(reason) => return Err(agent::why_unmet(reason)),
        };
        let source = chosen_ip.unwrap_or(reached_from);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(Reason::ExplicitBindUnsupported);
        }
        let bound_port = (bound.port() != 0).then_some(bound.port());
        if source == destination.ip() && bound_port == Some(destination.port()) {
            return Err(Reason::SelfConnect);
        }
        let explicit = chosen_ip.is_some() || bound_port.is_some();
        let (namespace, ours) = (kernel::namespace(fd), trust::OwnUser::default());
        Ok(Route { destination, source, bound_port, explicit, way, namespace, ours })
    }

    /// The connection that would come over an end that was kept with the same server, if it may: its anchor is of the
    /// same network namespace. What the anchor's name reserves is the client's address, unless the program has bound
    /// its own.
    #[must_use]
    pub fn over(&self, stands: &Standing) -> Option<ConnName> {
        let kept = stands.name();
        let client = match self.bound_port {
            Some(port) => Endpoint::new(self.client(port)),
            None if stands.borrows_port() => return None,
            None => Endpoint::new(self.client(kept.client.address().port())),
        };
        let is_reserved = self.bound_port.is_some() || client == kept.client;
        (is_reserved && stands.namespace() == self.namespace).then_some(ConnName { client, server: kept.server })
    }

    /// Whether the program has bound a port that takes privilege, and whoever serves it would not believe that it has
    /// it ([`super::claims`], 1).
    #[must_use]
    pub fn is_privileged_in_vain(&self) -> bool {
        self.bound_port.is_some_and(|port| port < ports::first_unprivileged())
            && !trust::may_have_any_port(self.ours.uid())
    }

    /// The port with which a lane of the last connection is used again, so that the server knows it by its name. None
    /// where several listeners share the destination's port: each has some clients' ports.
    fn last_port(&self) -> Option<u16> {
        let may = !self.explicit && self.way == Way::Here && crate::live(option::standing) != Wanted::Off;
        if !may || lookup::is_shared(self.destination) {
            return None;
        }
        let name = pool::next_name(self.destination, |stands| self.over(stands).is_some())?;
        Some(name.client.address().port()).filter(|port| ports::may_be_had(*port))
    }

    /// The network namespace of the socket.
    #[must_use]
    pub fn namespace(&self) -> Option<u64> {
        self.namespace
    }

    /// A new anchor, if the thread is in the socket's namespace.
    fn anchor(&self) -> Result<Fd, Reason> {
        let anchor = new_anchor()?;
        (kernel::namespace(anchor.get()) == self.namespace).then_some(anchor).ok_or(Reason::OtherNamespace)
    }

    /// The client's address with this port, in the destination's scope if that matters.
    fn client(&self, port: u16) -> SocketAddr {
        match (self.source, self.destination) {
            (IpAddr::V6(ip), SocketAddr::V6(destination)) => {
                SocketAddrV6::new(ip, port, 0, destination.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        }
    }
}

/// A new anchor, which is connected to nobody.
///
/// # Errors
/// What is short, or forbidden.
pub fn new_anchor() -> Result<Fd, Reason> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let made = match kernel::socket(libc::AF_UNIX, kind, 0) {
        Err(Errno(libc::EMFILE | libc::ENFILE)) if pool::release_descriptors() => {
            kernel::socket(libc::AF_UNIX, kind, 0)
        }
        made => made,
    };
    match made {
        Ok(fd) => Ok(Fd::own(fd as i32)),
        Err(Errno(libc::EMFILE | libc::ENFILE)) => Err(Reason::DescriptorsShort),
        Err(Errno(libc::EPERM | libc::EACCES)) => Err(Reason::SystemCallDenied),
        Err(_) => Err(Reason::MemoryShort),
    }
}

/// An anchor with the addresses of its connection.
pub struct Reserved {
    pub anchor: Fd,
    pub name: ConnName,
    /// The same for the hello, if the server is to hold the port.
    pub held: Option<Held>,
}

/// Reserves an address, by binding an anchor to the connection's name mostly. Candidates must pass `check`.
pub fn reserve_name(
    route: &Route,
    mut check: impl FnMut(SocketAddr) -> Result<(), Reason>,
) -> Result<Reserved, Reason> {
    let mut anchor = None;
    // A server on another host, or the bridge before it, holds no port.
    let may_be_held = route.bound_port.is_none() && route.way == Way::Here;
    let begin_ns = kernel::now_ns();
    let tries = match may_be_held {
        true if begin_ns < CROWDED_UNTIL_NS.load(Relaxed) => 0,
        true => PORTS_FEW,
        false => PORTS_MAX,
    };
    let mut last_port = route.last_port();
    // That one is not a candidate of the others.
    for _ in 0..tries + usize::from(last_port.is_some()) {
        let last = last_port.take();
        let port = match route.bound_port.or(last).or_else(ports::next) {
            Some(port) => port,
            // TCP's own range leaves none.
            None if may_be_held => break,
            None => return Err(Reason::AddressInUse),
        };
        let client = route.client(port);
        if client.ip() == route.destination.ip() && port == route.destination.port() {
            continue;
        }
        match check(client) {
            // Another listener of several has it now, perhaps.
            Err(Reason::DoorNotTrusted | Reason::ForeignUser | Reason::NoDoor | Reason::AddressInUse)
                if last.is_some() =>
            {
                continue;
            }
            checked => checked?,
        }
        let name = ConnName { client: Endpoint::new(client), server: Endpoint::new(route.destination) };
        let address = SockAddr::abstract_unix(name.encode().as_bytes()).ok_or(Reason::Internal)?;
        let socket = match anchor.take() {
            Some(socket) => socket,
            None => route.anchor()?,
        };
        let before_ns = kernel::now_ns();
        match kernel::bind(socket.get(), &address) {
            Ok(_) => {
                note_speed(before_ns);
                return Ok(Reserved { anchor: socket, name, held: None });
            }
            Err(Errno(libc::EADDRINUSE)) if route.bound_port.is_none() || pool::give_up(&name) => anchor = Some(socket),
            Err(Errno(libc::EADDRINUSE)) => return Err(Reason::AddressInUse),
            Err(_) => return Err(Reason::Internal),
        }
    }
    if !may_be_held {
        return Err(Reason::AddressInUse);
    }
    if tries != 0 {
        CROWDED_UNTIL_NS.store(begin_ns.saturating_add(CROWDED_NS), Relaxed);
    }
    reserve_held(route, anchor, check)
}

/// Notes how long a bind took.
fn note_speed(before_ns: u64) {
    let now_ns = kernel::now_ns();
    if now_ns.saturating_sub(before_ns) < SLOW_NS {
        if SLOW.load(Relaxed) != 0 {
            SLOW.store(0, Relaxed);
        }
    } else if SLOW.fetch_add(1, Relaxed) >= SLOW_MAX {
        CROWDED_UNTIL_NS.store(now_ns.saturating_add(CROWDED_NS), Relaxed);
    }
}

/// Finds a port for the server to hold.
#[cold]
fn reserve_held(
    route: &Route,
    anchor: Option<Fd>,
    mut check: impl FnMut(SocketAddr) -> Result<(), Reason>,
) -> Result<Reserved, Reason> {
    // The kernel knows a free one. It is free again when the server binds it, and found by chance only by others.
    let probe = claims::bound(route.client(0)).map_err(|_| Reason::AddressInUse)?;
    let found = kernel::getsockname(probe.get()).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
    drop(probe);
    let client = route.client(found.port());
    check(client)?;
    let name = ConnName { client: Endpoint::new(client), server: Endpoint::new(route.destination) };
    let held = Held::new(name.client, name.server).ok_or(Reason::AddressInUse)?;
    let anchor = match anchor {
        Some(anchor) => anchor,
        None => route.anchor()?,
    };
    Ok(Reserved { anchor, name, held: Some(held) })
}

/// Where Linux connects a socket that is bound to this address, or to any, and is to be connected to any: over IPv4 to
/// the bound address, if there is one, else to loopback, as over IPv6 always.
fn in_place_of_any(destination: SocketAddr, bound: IpAddr) -> IpAddr {
    match (destination, bound) {
        (SocketAddr::V4(_), IpAddr::V4(ip)) if !ip.is_unspecified() => ip.into(),
        (SocketAddr::V6(_), IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        // An IPv6 socket that is bound to an address of IPv4 connects over that.
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

/// Whether an address means another place at each interface, and does not say which.
fn is_link_local_of_no_interface(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_is_loopback_or_the_bound_address() {
        let connects = |to: &str, bound: &str| {
            let (to, bound) = (Endpoint::new(to.parse().unwrap()), Endpoint::new(bound.parse().unwrap()));
            in_place_of_any(to.address(), bound.address().ip()).to_string()
        };
        for (to, bound, reached) in [
            ("0.0.0.0:80", "0.0.0.0:0", "127.0.0.1"),
            ("0.0.0.0:80", "127.0.0.2:0", "127.0.0.2"),
            ("[::ffff:0.0.0.0]:80", "[::]:0", "127.0.0.1"),
            ("[::ffff:0.0.0.0]:80", "[::ffff:127.0.0.2]:0", "127.0.0.2"),
            ("[::]:80", "[::]:0", "::1"),
            ("[::]:80", "[fd00::2]:0", "::1"),
            ("[::]:80", "[::ffff:127.0.0.2]:0", "127.0.0.1"),
        ] {
            assert_eq!(connects(to, bound), reached, "{to} from {bound}");
        }
    }

    #[test]
    fn a_link_local_address_needs_an_interface() {
        let needs_one = |address: &str| is_link_local_of_no_interface(address.parse().unwrap());
        assert!(needs_one("[fe80::1]:80"));
        for address in ["[fe80::1%2]:80", "[fd00::1]:80", "[::1]:80", "[::ffff:169.254.1.1]:80", "169.254.1.1:80"] {
            assert!(!needs_one(address), "{address}");
        }
    }
}

//! Where a connection goes and where it comes from, and the name that reserves its addresses.
//!
//! The name is an abstract `AF_UNIX` one, made of both addresses: the anchor is bound to it, so that no two lanes of a
//! network namespace have the same addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;
use beeline_stats::Reason;
use beeline_wire::{ConnName, Endpoint};

use super::{lookup, pool, ports};
use crate::Errno;
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};

/// Addresses tried.
const PORTS_MAX: usize = 64;

/// Both ends' addresses as far as they are known before a port is chosen.
pub(super) struct Route {
    pub destination: SocketAddr,
    source: IpAddr,
    /// The port of an explicit bind.
    bound_port: Option<u16>,
    /// Whether the app chose address or port.
    pub explicit: bool,
    /// Whether the destination is on another host.
    pub remote: bool,
}

impl Route {
    /// Where the connection goes and where it comes from.
    pub(super) fn find(fd: i32, desc: &Desc, destination: SocketAddr) -> Result<Route, Reason> {
        let bound = kernel::getsockname(fd).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
        let bound_ip = Endpoint::new(bound).address().ip();
        let chosen_ip = (!bound_ip.is_unspecified()).then_some(bound_ip);
        let mut destination = Endpoint::new(destination).address();
        if destination.ip().is_ipv4() && desc.family.load(Relaxed) == libc::AF_INET6 as u32 {
            let only = kernel::getsockopt::<i32>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
            if only != Ok(0) {
                // The kernel has an error for this.
                return Err(Reason::NotLocal);
            }
        }
        if destination.ip().is_unspecified() {
            // Linux connects to the bound address, or to loopback.
            destination.set_ip(match (chosen_ip, destination) {
                (Some(ip), _) => ip,
                (None, SocketAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
                (None, SocketAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let (reached_from, remote) = match lookup::local(destination) {
            Ok(local) => (local.source, false),
            Err(Reason::NotLocal) if crate::config().bridge => (lookup::elsewhere(destination)?, true),
            Err(reason) => return Err(reason),
        };
        let source = chosen_ip.unwrap_or(reached_from);
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(Reason::ExplicitBindUnsupported);
        }
        let bound_port = (bound.port() != 0).then_some(bound.port());
        if source == destination.ip() && bound_port == Some(destination.port()) {
            return Err(Reason::SelfConnect);
        }
        Ok(Route { destination, source, bound_port, explicit: chosen_ip.is_some() || bound_port.is_some(), remote })
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

/// An anchor that closes itself unless it is given away.
pub(super) struct Anchor(pub i32);

impl Anchor {
    pub fn new() -> Result<Anchor, Reason> {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let made = match kernel::socket(libc::AF_UNIX, kind, 0) {
            Err(Errno(libc::EMFILE | libc::ENFILE)) if pool::release_descriptors() => {
                kernel::socket(libc::AF_UNIX, kind, 0)
            }
            made => made,
        };
        match made {
            Ok(fd) => Ok(Anchor(fd as i32)),
            Err(Errno(libc::EMFILE | libc::ENFILE)) => Err(Reason::DescriptorsShort),
            Err(Errno(libc::EPERM | libc::EACCES)) => Err(Reason::SystemCallDenied),
            Err(_) => Err(Reason::MemoryShort),
        }
    }

    /// The descriptor, for good.
    pub fn give_away(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

/// Reserves an address by binding an anchor to the connection's name. Candidates must pass `check`.
pub(super) fn reserve_name(
    route: &Route,
    mut check: impl FnMut(SocketAddr) -> Result<(), Reason>,
) -> Result<(Anchor, ConnName), Reason> {
    let mut anchor = None;
    for _ in 0..PORTS_MAX {
        let port = match route.bound_port {
            Some(port) => port,
            None => ports::next().ok_or(Reason::AddressInUse)?,
        };
        let client = route.client(port);
        if client.ip() == route.destination.ip() && port == route.destination.port() {
            continue;
        }
        check(client)?;
        let name = ConnName { client: Endpoint::new(client), server: Endpoint::new(route.destination) };
        let address = SockAddr::abstract_unix(name.encode().as_bytes()).ok_or(Reason::Internal)?;
        let socket = match anchor.take() {
            Some(socket) => socket,
            None => Anchor::new()?,
        };
        match kernel::bind(socket.0, &address) {
            Ok(_) => return Ok((socket, name)),
            Err(Errno(libc::EADDRINUSE)) if route.bound_port.is_none() => anchor = Some(socket),
            Err(Errno(libc::EADDRINUSE)) => return Err(Reason::AddressInUse),
            Err(_) => return Err(Reason::Internal),
        }
    }
    Err(Reason::AddressInUse)
}

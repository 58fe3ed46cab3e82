//! Which addresses are this host's own.
//!
//! The kernel is asked for the route there. A server needs no answer to any other question, so it may be one that is
//! not allowed to ask, as under a filter of address families: it binds a socket to the address instead. Whoever cannot
//! find out takes nobody for a liar.

use core::net::{IpAddr, SocketAddr};

use beeline_shm::Fd;
use beeline_stats::Reason;

use crate::Errno;
use crate::kernel::{self, SockAddr};
use crate::proc;

/// Whether an address belongs to this host, so that a connection may come from it.
///
/// # Errors
/// Why that cannot be told.
pub fn is_local(ip: IpAddr) -> Result<bool, Reason> {
    let is_loopback = match ip {
        // The first and the last address of its network are none, or are broadcast.
        IpAddr::V4(v4) => v4.is_loopback() && !matches!(v4.octets(), [_, 0, 0, 0] | [_, 255, 255, 255]),
        IpAddr::V6(v6) => v6.is_loopback(),
    };
    if is_loopback {
        return Ok(true);
    }
    // The kernel has a local route to "any", too.
    if ip.is_unspecified() || ip.is_multicast() {
        return Ok(false);
    }
    match super::local(SocketAddr::new(ip, 0)) {
        Ok(_) => Ok(true),
        Err(Reason::NotLocal) => Ok(false),
        Err(Reason::SystemCallDenied) => can_be_bound(ip),
        Err(reason) => Err(reason),
    }
}

/// Whether a socket can be bound to an address, and connected from it to itself: the latter the kernel refuses where
/// the address is one for broadcasts. Datagrams, as rules for TCP (Landlock) do not concern the question.
#[cold]
fn can_be_bound(ip: IpAddr) -> Result<bool, Reason> {
    const ANY_PORT_OF_ITSELF: u16 = 1;
    let (family, is_lax) = match ip {
        IpAddr::V4(_) => (libc::AF_INET, c"/proc/sys/net/ipv4/ip_nonlocal_bind"),
        IpAddr::V6(_) => (libc::AF_INET6, c"/proc/sys/net/ipv6/ip_nonlocal_bind"),
    };
    // Where sockets are bound to addresses of other hosts, too, nothing is found out so.
    let mut buffer = [0; 16];
    if proc::read(is_lax, &mut buffer).and_then(|text| proc::numbers(text).next()) != Some(0) {
        return Err(Reason::SystemCallDenied);
    }
    let socket = kernel::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).map_err(reason)?;
    let socket = Fd::own(socket as i32);
    match kernel::bind(socket.get(), &SockAddr::internet(SocketAddr::new(ip, 0), family)) {
        Ok(_) => {}
        Err(Errno(libc::EADDRNOTAVAIL)) => return Ok(false),
        Err(errno) => return Err(reason(errno)),
    }
    let itself = SockAddr::internet(SocketAddr::new(ip, ANY_PORT_OF_ITSELF), family);
    kernel::connect(socket.get(), &itself).map(|_| true).map_err(reason)
}

fn reason(errno: Errno) -> Reason {
    match errno.0 {
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::ENOMEM | libc::ENOBUFS => Reason::MemoryShort,
        _ => Reason::SystemCallDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_tells_as_much_as_the_kernel() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for own in ["127.0.0.1", "127.9.8.7", "::1"] {
            assert_eq!(can_be_bound(address(own)), Ok(true), "{own}");
        }
        for other in ["192.0.2.1", "2001:db8::1"] {
            assert_eq!(can_be_bound(address(other)), Ok(false), "{other}");
        }
        for broadcast in ["127.255.255.255", "255.255.255.255"] {
            assert_ne!(can_be_bound(address(broadcast)), Ok(true), "{broadcast}");
        }
    }
}

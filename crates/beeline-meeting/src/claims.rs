//! What a client may claim to be.
//!
//! A lane shows the client's address to the app as TCP would, so nobody may claim one that TCP would not let him have.
//! Where a rule needs the kernel's word, the kernel is asked the way TCP asks it: by binding a socket.
//!
//! 1. A port below `ip_unprivileged_port_start` takes `CAP_NET_BIND_SERVICE`. A socket does not tell its maker's
//!    capabilities; root of the first user namespace is taken to have it, and nobody else. Clients know this rule, and
//!    leave such a port to TCP.
//! 2. An anchor's plain name (`beeline_wire::ConnName`) reserves an address that no TCP socket has by chance: its port
//!    is outside the range that the kernel hands out. Users bind such ports themselves, though. So if the client is
//!    neither of our user nor root, who could do to us what they like anyway, the port must be free on TCP now.
//!    Explicitly bound ports, which are not free, such clients leave to TCP.
//! 3. Addresses in a hello (`beeline_wire::Held`) reserve nothing. The port must be one that the kernel hands out, and
//!    the server binds it before it takes the hello, and keeps it as long as the connection lasts. So nobody else has
//!    it: no TCP socket, no other such hello anywhere in the network namespace, and no name, by rule 2 or because its
//!    client keeps the port.
//! 4. All this is about the network namespace of the connection. A server whose thread has moved to another one since
//!    its door was opened cannot ask there, and such a client begins again over TCP.

use core::net::SocketAddr;

use beeline_shm::Fd;
use beeline_stats::{Poison, Reason};
use beeline_wire::ConnName;

use super::hello_io::Refusal;
use super::trust::OwnUser;
use super::{ports, trust};
use crate::Errno;
use crate::kernel::{self, SockAddr};

/// How a client's address is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// By the name of its anchor.
    Plain,
    /// By the server.
    Held,
}

/// Whether a client of the user `uid` may have the address of this connection in the network namespace of its anchor.
/// Returns the TCP socket to be kept as long as the connection.
///
/// # Errors
/// Why not.
pub fn prove(
    name: &ConnName,
    naming: Naming,
    uid: Option<u32>,
    ours: &OwnUser,
    anchor: i32,
) -> Result<Option<Fd>, Refusal> {
    let client = name.client.address();
    let foreign = Err(Refusal::Poison(Poison::HelloAddressForeign));
    if client.port() < ports::first_unprivileged() && !uid.is_some_and(trust::may_have_any_port) {
        return foreign;
    }
    let believed = uid.is_some_and(|uid| ours.believes(uid));
    match naming {
        Naming::Plain if believed => Ok(None),
        Naming::Plain if ports::is_handed_out(client.port()) => foreign,
        Naming::Held if !ports::is_handed_out(client.port()) => foreign,
        naming => {
            let socket = bound(client).map_err(refusal)?;
            let is_there = kernel::namespace(socket.get()) == kernel::namespace(anchor);
            if !is_there {
                return Err(Refusal::Reason(Reason::OtherNamespace));
            }
            Ok((naming == Naming::Held).then_some(socket))
        }
    }
}

fn refusal(errno: Errno) -> Refusal {
    Refusal::Reason(match errno.0 {
        libc::EADDRINUSE => Reason::AddressInUse,
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::ENOMEM | libc::ENOBUFS => Reason::MemoryShort,
        // It is us whom a sandbox, Landlock or SELinux keeps from binding: whether the client may have such a port was
        // asked before.
        libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EAFNOSUPPORT => Reason::SystemCallDenied,
        // EADDRNOTAVAIL: TCP would not let him have it.
        _ => return Refusal::Poison(Poison::HelloAddressForeign),
    })
}

/// A TCP socket bound to `address`, where port 0 lets the kernel choose one.
pub(super) fn bound(address: SocketAddr) -> Result<Fd, Errno> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let socket = Fd::own(kernel::socket(family, kind, libc::IPPROTO_TCP)? as i32);
    kernel::bind(socket.get(), &SockAddr::internet(address, family))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_wire::Endpoint;

    #[test]
    fn nobody_is_a_liar_because_the_server_may_not_bind() {
        for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EAFNOSUPPORT, libc::EMFILE, libc::ENOBUFS] {
            assert!(matches!(refusal(Errno(errno)), Refusal::Reason(_)), "{errno}");
        }
        assert_eq!(refusal(Errno(libc::EADDRNOTAVAIL)), Refusal::Poison(Poison::HelloAddressForeign));
    }

    const STRANGER: Option<u32> = Some(54_321);

    fn prove_port(port: u16, naming: Naming, uid: Option<u32>) -> Result<Option<Fd>, Refusal> {
        let end = |port| Endpoint::new(SocketAddr::from(([127, 0, 0, 1], port)));
        let here = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        let here = Fd::own(here as i32);
        prove(&ConnName { client: end(port), server: end(80) }, naming, uid, &OwnUser::default(), here.get())
    }

    /// A port that the kernel has handed out, still bound or just given up.
    fn handed_out(keep: bool) -> (u16, Option<std::net::TcpListener>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        (listener.local_addr().unwrap().port(), keep.then_some(listener))
    }

    #[test]
    fn nobody_but_root_gets_a_port_below_the_first_unprivileged_one() {
        let first = ports::first_unprivileged();
        let foreign = Err(Refusal::Poison(Poison::HelloAddressForeign));
        for port in [1, 22, 700, first.saturating_sub(1)].into_iter().filter(|port| *port != 0 && *port < first) {
            for uid in [STRANGER, None, Some(trust::euid().max(1))] {
                assert_eq!(prove_port(port, Naming::Plain, uid), foreign, "{port} {uid:?}");
                assert_eq!(prove_port(port, Naming::Held, uid), foreign, "{port} {uid:?}");
            }
            if trust::may_have_any_port(0) {
                assert_eq!(prove_port(port, Naming::Plain, Some(0)), Ok(None));
            }
        }
    }

    #[test]
    fn a_stranger_gets_no_port_that_tcp_would_refuse() {
        let taken = (1024..).map(|low| 2000 + low * 7).find_map(|port| {
            (!ports::is_handed_out(port)).then(|| std::net::TcpListener::bind(("127.0.0.1", port)).ok()).flatten()
        });
        let port = taken.as_ref().unwrap().local_addr().unwrap().port();
        assert_eq!(prove_port(port, Naming::Plain, STRANGER), Err(Refusal::Reason(Reason::AddressInUse)));
        assert_eq!(prove_port(port, Naming::Plain, Some(trust::euid())), Ok(None));
        drop(taken);
        assert_eq!(prove_port(port, Naming::Plain, STRANGER), Ok(None));
        let (handed_out, _) = handed_out(false);
        let foreign = Err(Refusal::Poison(Poison::HelloAddressForeign));
        assert_eq!(prove_port(handed_out, Naming::Plain, STRANGER), foreign);
    }

    #[test]
    fn a_held_port_belongs_to_one_connection() {
        let (taken, _listener) = handed_out(true);
        assert_eq!(prove_port(taken, Naming::Held, STRANGER), Err(Refusal::Reason(Reason::AddressInUse)));
        let (free, _) = handed_out(false);
        let holder = prove_port(free, Naming::Held, STRANGER).unwrap().unwrap();
        assert_eq!(prove_port(free, Naming::Held, Some(0)), Err(Refusal::Reason(Reason::AddressInUse)));
        assert!(std::net::TcpListener::bind(("127.0.0.1", free)).is_err());
        drop(holder);
        let foreign = Err(Refusal::Poison(Poison::HelloAddressForeign));
        assert_eq!(prove_port(1025, Naming::Held, STRANGER), foreign);
    }
}

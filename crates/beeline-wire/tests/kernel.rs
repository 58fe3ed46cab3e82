//! The kernel is the oracle: real netlink sockets, real listeners, and their own `SO_COOKIE`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use beeline_wire::diag::{Listener, ListenerQuery, LookupError};
use beeline_wire::route::{Route, RouteError, RouteKind, RouteQuery};

struct Netlink {
    socket: OwnedFd,
    port_id: u32,
    sequence: u32,
}

impl Netlink {
    fn new(protocol: i32) -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed; the result is checked before it is owned.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        assert!(socket >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all-zero bytes are a valid sockaddr_nl.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: both calls get a pointer to a whole sockaddr_nl and its length.
        let result = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
                | libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        Self { socket, port_id: address.nl_pid, sequence: 1 }
    }

    fn ask(&mut self, question: impl FnOnce(u32) -> Vec<u8>) -> Vec<u8> {
        self.sequence += 1;
        let question = question(self.sequence);
        let mut reply = vec![0_u8; 8192];
        let socket = self.socket.as_raw_fd();
        // SAFETY: the pointer is to that many bytes.
        let sent = unsafe { libc::send(socket, question.as_ptr().cast(), question.len(), 0) };
        assert_eq!(sent, question.len() as isize, "{}", io::Error::last_os_error());
        // SAFETY: the pointer is to that many bytes.
        let length = unsafe { libc::recv(socket, reply.as_mut_ptr().cast(), reply.len(), 0) };
        reply.truncate(usize::try_from(length).unwrap());
        reply
    }

    fn listener(&mut self, destination: SocketAddr, source: Option<SocketAddr>) -> Result<Listener, LookupError> {
        let query = ListenerQuery::new(destination, source);
        let reply = self.ask(|sequence| query.encode(sequence).to_vec());
        query.decode(&reply, self.sequence, self.port_id)
    }

    fn route(&mut self, destination: &str) -> Result<Route, RouteError> {
        let query = RouteQuery::new(destination.parse().unwrap());
        let reply = self.ask(|sequence| query.encode(sequence).as_bytes().to_vec());
        query.decode(&reply, self.sequence, self.port_id)
    }
}

fn diag() -> Netlink {
    Netlink::new(libc::NETLINK_SOCK_DIAG)
}

fn cookie(socket: &impl AsRawFd) -> u64 {
    let mut cookie = 0_u64;
    let mut len = 8;
    let target = (&raw mut cookie).cast();
    let socket = socket.as_raw_fd();
    // SAFETY: the pointers are to a u64 and to its size, which is the size of this option.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_COOKIE, target, &raw mut len) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    cookie
}

/// An unbound stream socket with integer options that std does not offer.
fn stream_socket(family: i32, options: &[(i32, i32, i32)]) -> OwnedFd {
    // SAFETY: no pointers are passed; the result is checked before it is owned.
    let socket = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(socket >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    for (level, option, value) in options {
        let value = (&raw const *value).cast();
        // SAFETY: the pointer is to an int and the length is that of an int.
        let result = unsafe { libc::setsockopt(socket.as_raw_fd(), *level, *option, value, 4) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
    socket
}

type AddressCall = unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32;

/// `bind` or `connect`.
fn with_address(call: AddressCall, socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    let socket = socket.as_raw_fd();
    let result = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: all-zero bytes are a valid sockaddr_in.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as u16;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: the pointer is to a whole sockaddr_in of that length.
            unsafe { call(socket, (&raw const raw).cast(), size_of_val(&raw) as u32) }
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all-zero bytes are a valid sockaddr_in6.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as u16;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            // SAFETY: the pointer is to a whole sockaddr_in6 of that length.
            unsafe { call(socket, (&raw const raw).cast(), size_of_val(&raw) as u32) }
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn listen(address: SocketAddr, options: &[(i32, i32, i32)]) -> TcpListener {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = stream_socket(family, options);
    with_address(libc::bind, &socket, address).unwrap();
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 64) }, 0);
    TcpListener::from(socket)
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn assert_takes(listener: &TcpListener, addresses: &[&str]) {
    let local = listener.local_addr().unwrap();
    for address in addresses {
        let found = diag().listener(at(address, local.port()), None).unwrap();
        assert_eq!(found.cookie, cookie(listener), "{local} asked as {address}");
        assert_eq!(found.local, local);
        // SAFETY: no pointers are passed, and it cannot fail.
        assert_eq!(found.uid, unsafe { libc::getuid() });
        assert_eq!(found.interface, 0);
    }
}

fn has_ipv6() -> bool {
    let there = TcpListener::bind("[::1]:0").is_ok();
    if !there {
        eprintln!("skipped: this machine has no IPv6 loopback");
    }
    there
}

const REUSE: [(i32, i32, i32); 1] = [(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)];

fn ipv6_only(value: i32) -> [(i32, i32, i32); 1] {
    [(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, value)]
}

#[test]
fn an_exact_listener_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_takes(&listener, &["127.0.0.1", "::ffff:127.0.0.1"]);
}

#[test]
fn an_exact_ipv6_listener_is_found() {
    if has_ipv6() {
        assert_takes(&TcpListener::bind("[::1]:0").unwrap(), &["::1"]);
    }
}

#[test]
fn a_wildcard_listener_takes_every_local_address() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    assert_takes(&listener, &["127.0.0.1", "127.1.2.3", "::ffff:127.0.0.1"]);
}

#[test]
fn a_dual_stack_listener_takes_both_families() {
    if has_ipv6() {
        let listener = listen(at("::", 0), &ipv6_only(0));
        assert_takes(&listener, &["127.0.0.1", "::1", "::ffff:127.0.0.1"]);
    }
}

#[test]
fn an_ipv6_only_listener_does_not_take_ipv4() {
    if has_ipv6() {
        let listener = listen(at("::", 0), &ipv6_only(1));
        assert_takes(&listener, &["::1"]);
        let port = listener.local_addr().unwrap().port();
        let answer = diag().listener(at("127.0.0.1", port), None);
        assert_eq!(answer, Err(LookupError::Refused(libc::ENOENT)));
    }
}

#[test]
fn the_exact_listener_wins_over_the_wildcard() {
    let wildcard = listen(at("0.0.0.0", 0), &REUSE);
    let port = wildcard.local_addr().unwrap().port();
    let exact = listen(at("127.0.0.1", port), &REUSE);
    assert_takes(&exact, &["127.0.0.1"]);
    assert_takes(&wildcard, &["127.0.0.2"]);
}

#[test]
fn the_member_of_a_reuseport_group_is_the_one_that_gets_the_connection() {
    let first = listen(at("127.0.0.1", 0), &REUSE);
    let server = first.local_addr().unwrap();
    let group = [first, listen(server, &REUSE), listen(server, &REUSE), listen(server, &REUSE)];
    for listener in &group {
        listener.set_nonblocking(true).unwrap();
    }
    let mut diag = diag();
    let mut seen = BTreeSet::new();
    // All stay open: a port that came again would find the last connection in TIME_WAIT, not a listener.
    let mut clients = Vec::new();
    for _ in 0..32 {
        let client = stream_socket(libc::AF_INET, &[]);
        with_address(libc::bind, &client, at("127.0.0.1", 0)).unwrap();
        let client = TcpStream::from(client);
        let source = client.local_addr().unwrap();
        let foretold = diag.listener(server, Some(source)).unwrap().cookie;
        let client = OwnedFd::from(client);
        with_address(libc::connect, &client, server).unwrap();
        let taker = group.iter().find(|member| member.accept().is_ok()).unwrap();
        assert_eq!(foretold, cookie(taker), "from {source}");
        seen.insert(foretold);
        clients.push(client);
    }
    assert!(seen.len() > 1, "all 32 clients went to one member of four");
}

/// Kernel note A9: without the interface in the question such a listener is not found at all, so it
/// gets no door by accident.
#[test]
fn a_listener_bound_to_a_device_is_found_only_through_it() {
    let socket = stream_socket(libc::AF_INET, &[]);
    let name = c"lo";
    let len = name.to_bytes_with_nul().len() as u32;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    // SAFETY: the pointer is to that many bytes.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, name.as_ptr().cast(), len) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    with_address(libc::bind, &socket, at("127.0.0.1", 0)).unwrap();
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 4) }, 0);
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    // SAFETY: the pointer is to a C string.
    let interface = unsafe { libc::if_nametoindex(name.as_ptr()) };

    let mut diag = diag();
    assert_eq!(diag.listener(address, None), Err(LookupError::Refused(libc::ENOENT)));
    let query = ListenerQuery::new(address, None).on_interface(interface);
    let reply = diag.ask(|sequence| query.encode(sequence).to_vec());
    let found = query.decode(&reply, diag.sequence, diag.port_id).unwrap();
    assert_eq!((found.cookie, found.interface), (cookie(&listener), interface));
}

#[test]
fn an_established_connection_is_not_taken_for_a_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let source = client.local_addr().unwrap();
    let (server, _) = listener.accept().unwrap();
    let answer = diag().listener(server.local_addr().unwrap(), Some(source));
    assert_eq!(answer, Err(LookupError::NotListening(1)));
}

#[test]
fn a_closed_listener_is_not_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cookie = cookie(&listener);
    let address = listener.local_addr().unwrap();
    drop(listener);
    // Another test may have got the port by now, but never the cookie.
    match diag().listener(address, None) {
        Ok(other) => assert_ne!(other.cookie, cookie),
        Err(error) => assert_eq!(error, LookupError::Refused(libc::ENOENT)),
    }
}

#[test]
fn loopback_addresses_are_local() {
    let mut netlink = Netlink::new(libc::NETLINK_ROUTE);
    for address in ["127.0.0.1", "127.9.9.9"] {
        let route = netlink.route(&format!("{address}:0")).unwrap();
        assert_eq!(route.kind, RouteKind::Local, "{address}");
    }
    if has_ipv6() {
        let route = netlink.route("[::1]:0").unwrap();
        assert_eq!(route.kind, RouteKind::Local);
        assert_eq!(route.source, Some("::1".parse().unwrap()));
    }
}

#[test]
fn the_kernel_agrees_on_the_source_that_a_socket_gets() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut netlink = Netlink::new(libc::NETLINK_ROUTE);
    for address in ["127.0.0.1", "127.9.9.9"] {
        let stream = TcpStream::connect(at(address, port)).unwrap();
        let route = netlink.route(&format!("{address}:0")).unwrap();
        let source = stream.local_addr().unwrap().ip();
        assert_eq!(route.source, Some(source), "{address}");
    }
}

#[test]
fn an_address_kept_for_documentation_is_not_local() {
    match Netlink::new(libc::NETLINK_ROUTE).route("192.0.2.1:0") {
        Ok(route) => assert_ne!(route.kind, RouteKind::Local),
        Err(RouteError::Refused(errno)) => {
            assert!([libc::ENETUNREACH, libc::EHOSTUNREACH].contains(&errno), "{errno}");
        }
        Err(error) => panic!("{error}"),
    }
}

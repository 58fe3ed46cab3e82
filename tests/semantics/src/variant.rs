//! The settings that one case is run under, and the connections that fit them.

use crate::across::Across;
use crate::trace;
use crate::traced::{Fd, once_asleep};
use beeline_testkit::sys::{self, RawAddress};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Set for a run in which both ends of a pair have met before.
const AGAIN_VARIABLE: &str = "BEELINE_TEST_AGAIN";
/// Set for a run in which threads have slept on both ends of a pair that Beeline has, so often that old bells lie at
/// each. The kernel has nothing that lies there, but answers later or in other pieces on a connection that was used.
const SLEPT_VARIABLE: &str = "BEELINE_TEST_SLEPT";
/// Sleeps upon an end in such a run, more than it takes.
const SLEEPS: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// 127.0.0.1 on both ends.
    V4,
    /// ::1 on both ends.
    V6,
    /// A listener on `::` that takes IPv4 too, and an IPv4 client.
    Dual,
    /// A listener on 0.0.0.0.
    Wildcard,
    /// A listener on 127.0.0.1 and an IPv6 socket that connects to ::ffff:127.0.0.1.
    Mapped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub family: Family,
    /// `O_NONBLOCK` on both ends of [`Variant::pair`].
    pub nonblocking: bool,
    /// `EPOLLET` instead of level-triggered.
    pub edge: bool,
}

impl Default for Variant {
    fn default() -> Self {
        Self { family: Family::V4, nonblocking: false, edge: false }
    }
}

impl Variant {
    /// Where listeners of this variant listen.
    #[must_use]
    pub fn listener_address(self, port: u16) -> SocketAddr {
        let (v4, v6) = Across::addresses();
        let ip = match self.family {
            Family::V4 | Family::Mapped => IpAddr::V4(v4),
            Family::V6 => IpAddr::V6(v6),
            Family::Dual => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Family::Wildcard => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        SocketAddr::new(ip, port)
    }

    /// Where a client of this variant connects to.
    #[must_use]
    pub fn target(self, port: u16) -> SocketAddr {
        let (v4, v6) = Across::addresses();
        let ip = match self.family {
            Family::V6 => IpAddr::V6(v6),
            Family::Mapped => IpAddr::V6(v4.to_ipv6_mapped()),
            Family::V4 | Family::Dual | Family::Wildcard => IpAddr::V4(v4),
        };
        SocketAddr::new(ip, port)
    }

    #[must_use]
    pub fn listener_domain(self) -> i32 {
        if matches!(self.family, Family::V6 | Family::Dual) { libc::AF_INET6 } else { libc::AF_INET }
    }

    #[must_use]
    pub fn client_domain(self) -> i32 {
        if matches!(self.family, Family::V6 | Family::Mapped) { libc::AF_INET6 } else { libc::AF_INET }
    }

    /// An unconnected socket for the client's end.
    #[must_use]
    pub fn client(self) -> Fd {
        self.named_client("client")
    }

    #[must_use]
    pub fn named_client(self, name: &'static str) -> Fd {
        let ret = sys::socket(self.client_domain(), libc::SOCK_STREAM, 0);
        assert!(ret.is_ok(), "socket: {ret}");
        Fd::new(ret.value as i32, name)
    }

    /// A listener that serves: it was polled once, so that nothing about it is pending when the client comes.
    #[must_use]
    pub fn listener(self) -> Fd {
        let listener = self.listener_with(16);
        Across::at_the_server(|| {
            sys::poll(&mut [libc::pollfd { fd: listener.raw, events: libc::POLLIN, revents: 0 }], 0)
        });
        listener
    }

    /// A listener that nobody has waited on yet.
    #[must_use]
    pub fn listener_with(self, backlog: i32) -> Fd {
        let bound = self.bound();
        let ret = Across::at_the_server(|| sys::listen(bound.raw, backlog));
        assert!(ret.is_ok(), "listen: {ret}");
        bound
    }

    /// A socket that is bound to a free port and does not listen yet.
    #[must_use]
    pub fn bound(self) -> Fd {
        let ret = Across::at_the_server(|| sys::socket(self.listener_domain(), libc::SOCK_STREAM, 0));
        assert!(ret.is_ok(), "socket: {ret}");
        let listener = Fd::new(ret.value as i32, "listener");
        if self.family == Family::Dual {
            sys::setsockopt(listener.raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes());
        }
        let ret = sys::bind(listener.raw, &RawAddress::new(self.listener_address(0)));
        assert!(ret.is_ok(), "bind: {ret}");
        listener
    }

    /// Where clients of `listener` connect to.
    #[must_use]
    pub fn address_of(self, listener: Fd) -> RawAddress {
        RawAddress::new(self.target(port_of(listener)))
    }

    /// A connected pair in this variant's mode: (client, server). The listener stays open.
    #[must_use]
    pub fn pair(self) -> (Fd, Fd) {
        self.pair_on(self.listener())
    }

    /// A connected pair through this listener.
    #[must_use]
    pub fn pair_on(self, listener: Fd) -> (Fd, Fd) {
        let (client, server) = self.blocking_pair_on(listener, "client", "server");
        if self.nonblocking {
            sys::set_nonblocking(client.raw, true);
            sys::set_nonblocking(server.raw, true);
        }
        (client, server)
    }

    #[must_use]
    pub fn blocking_pair_on(self, listener: Fd, client_name: &'static str, server_name: &'static str) -> (Fd, Fd) {
        if std::env::var_os(AGAIN_VARIABLE).is_some() {
            self.meet_before(listener);
        }
        let client = self.named_client(client_name);
        let ret = sys::connect(client.raw, &self.address_of(listener));
        assert!(ret.is_ok(), "connect: {ret}");
        let ret = crate::across::accept(listener.raw);
        assert!(ret.is_ok(), "accept: {ret}");
        trace::write_note(format_args!("pair"));
        let server = Fd::new(ret.value as i32, server_name);
        if std::env::var_os(SLEPT_VARIABLE).is_some() && std::env::var_os("LD_PRELOAD").is_some() {
            sleep_upon(server.raw, client.raw);
            sleep_upon(client.raw, server.raw);
        }
        (client, server)
    }

    /// Makes a connection and closes it in good order, so that the next one is between ends that have met.
    fn meet_before(self, listener: Fd) {
        let client = self.client();
        assert!(sys::connect(client.raw, &self.address_of(listener)).is_ok());
        let ret = crate::across::accept(listener.raw);
        assert!(ret.is_ok(), "accept: {ret}");
        let server = ret.value as i32;
        for (from, to) in [(client.raw, server), (server, client.raw)] {
            let sent = sys::send(from, b"x", 0);
            let received = sys::recv(to, &mut [0; 1], 0);
            assert!(sent.is_ok() && received.is_ok(), "{sent} {received}");
        }
        sys::close(client.raw);
        let end = sys::recv(server, &mut [0; 1], 0);
        assert!(end.is_ok() && end.value == 0, "{end}");
        sys::close(server);
    }

    /// The flag that selects this variant's trigger in an epoll set.
    #[must_use]
    pub fn trigger(self) -> u32 {
        if self.edge { libc::EPOLLET as u32 } else { 0 }
    }
}

/// Sleeps upon `end` until a byte comes from the other one, again and again.
fn sleep_upon(end: i32, other: i32) {
    for _ in 0..SLEEPS {
        let sender = once_asleep("sender", move || {
            assert!(sys::send(other, b"x", 0).is_ok());
        });
        let received = sys::recv(end, &mut [0; 1], 0);
        assert!(received.is_ok(), "{received}");
        sender.join().expect("the byte was sent");
    }
}

/// The local port of a socket.
#[must_use]
pub fn port_of(socket: Fd) -> u16 {
    let (ret, address) = sys::getsockname(socket.raw, RawAddress::default().length);
    assert!(ret.is_ok(), "getsockname: {ret}");
    address.decode().map_or(0, |decoded| decoded.port())
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
            Family::Dual => "dual",
            Family::Wildcard => "wildcard",
            Family::Mapped => "mapped",
        };
        let mode = if self.nonblocking { ",nonblocking" } else { "" };
        let trigger = if self.edge { ",edge" } else { "" };
        write!(out, "{family}{mode}{trigger}")
    }
}

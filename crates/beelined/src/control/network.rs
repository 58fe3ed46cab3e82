//! Sockets: listening, connecting without waiting, and a gate against crowds.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage};

use crate::config::PORT;

/// Listens at these addresses, or everywhere.
pub fn listen(addresses: &[SocketAddr]) -> anyhow::Result<Vec<TcpListener>> {
    let at = |address: SocketAddr| {
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address} for control connections"))
    };
    if addresses.is_empty() {
        // The IPv6 wildcard takes IPv4, too; without IPv6 there is only the other.
        let everywhere = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT));
        return Ok(vec![everywhere.or_else(|_| at((Ipv4Addr::UNSPECIFIED, PORT).into()))?]);
    }
    addresses.iter().map(|address| at(*address)).collect()
}

/// Begins to connect. The socket is writable when it is decided.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    let socket = TcpStream::from(socket);
    prepare(&socket)?;
    Ok(socket)
}

/// What every control connection is.
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)
}

/// How many connections come in: so many at once, so many a second.
#[derive(Debug)]
pub struct Gate {
    places: u32,
    since: Instant,
    closed_until: Option<Instant>,
}

const AT_ONCE: u32 = 32;
const INTERVAL: Duration = Duration::from_secs(1);

impl Gate {
    /// An open gate.
    pub fn new(now: Instant) -> Self {
        Self { places: AT_ONCE, since: now, closed_until: None }
    }

    /// Whether one more may come in.
    pub fn is_open(&mut self, now: Instant) -> bool {
        if self.closed_until.is_some() {
            return false;
        }
        if now.saturating_duration_since(self.since) >= INTERVAL {
            (self.places, self.since) = (AT_ONCE, now);
        }
        if self.places == 0 {
            self.closed_until = Some(self.since + INTERVAL);
        }
        self.places > 0
    }

    /// One has come in.
    pub fn pass(&mut self) {
        self.places = self.places.saturating_sub(1);
    }

    /// Nobody comes in for now.
    pub fn close_for_a_while(&mut self, now: Instant) {
        self.closed_until = Some(now + INTERVAL);
    }

    /// When it opens again, if it is closed.
    pub fn reopens_at(&self) -> Option<Instant> {
        self.closed_until
    }

    /// Opens it again.
    pub fn reopen(&mut self, now: Instant) {
        *self = Self::new(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_waits_for_the_next_second() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let mut admitted = 0;
        while gate.is_open(now) {
            gate.pass();
            admitted += 1;
        }
        assert_eq!(admitted, AT_ONCE);
        assert_eq!(gate.reopens_at(), Some(now + INTERVAL));
        assert!(!gate.is_open(now + INTERVAL));
        gate.reopen(now + INTERVAL);
        assert!(gate.is_open(now + INTERVAL));
    }

    #[test]
    fn a_trickle_never_waits() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        for second in 0..100 {
            for _ in 0..AT_ONCE - 1 {
                assert!(gate.is_open(now + second * INTERVAL));
                gate.pass();
            }
        }
    }
}

//! Sockets as an ordinary program uses them.
//!
//! Everything goes through libc (std's sockets do), because that is what Beeline takes over and what real programs
//! call. An AF_UNIX connection is put into a `TcpStream` as well: its `read` and `write` are plain `recv` and `send`,
//! so the measured loops are the same machine code for every transport.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{RcvBuf, SndBuf};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, socket};

use crate::transport::Transport;

/// Where servers listen when nobody says otherwise.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, String),
}

impl Listener {
    /// Listens on a free port of the address `own`, or on an abstract name of this process: nothing is left behind in
    /// the file system.
    pub fn bind(transport: Transport, own: IpAddr) -> Result<Self> {
        if transport == Transport::Unix {
            let name = format!("beeline-bench-{}", std::process::id());
            let address = UnixAddr::from_abstract_name(&name)?;
            return Ok(Listener::Unix(UnixListener::bind_addr(&address)?, name));
        }
        let listener = TcpListener::bind((own, 0)).with_context(|| format!("cannot listen on {own}"))?;
        Ok(Listener::Tcp(listener))
    }

    /// The address as `connect` takes it.
    pub fn address(&self) -> Result<String> {
        match self {
            Listener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Listener::Unix(_, name) => Ok(format!("@{name}")),
        }
    }

    pub fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
            Listener::Unix(listener, _) => Ok(TcpStream::from(OwnedFd::from(listener.accept()?.0))),
        }
    }

    /// Gives connections that are accepted buffers of this size: they inherit the listener's.
    pub fn set_buffers(&self, bytes: usize) -> Result<()> {
        set_buffers(self, bytes)
    }

    /// Asks whether a client is there, as a server that polls does. With the library this opens the listener to its
    /// clients, so that none comes before the server is ready for it.
    pub fn look(&self) -> Result<()> {
        poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).context("poll")?;
        Ok(())
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener, _) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Connects to what [`Listener::address`] gave. TCP connections get TCP_NODELAY, as latency-minded programs set it.
pub fn connect(address: &str) -> Result<TcpStream> {
    if let Some(name) = address.strip_prefix('@') {
        let stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)
            .with_context(|| format!("connect to {address}"))?;
        return Ok(TcpStream::from(OwnedFd::from(stream)));
    }
    let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The same with buffers of this size, which must be set before the connection is made: the window's scale is agreed on
/// then.
pub fn connect_with_buffers(address: &str, bytes: usize) -> Result<TcpStream> {
    let peer: SocketAddr = address.parse().with_context(|| format!("{address}: only TCP has such buffers"))?;
    let family = if peer.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    set_buffers(&socket, bytes)?;
    nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(peer))
        .with_context(|| format!("connect to {address}"))?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn set_buffers(socket: &impl AsFd, bytes: usize) -> Result<()> {
    setsockopt(socket, SndBuf, &bytes).context("SO_SNDBUF")?;
    setsockopt(socket, RcvBuf, &bytes).context("SO_RCVBUF")
}

/// One `recv`, again after EINTR. `None` means that the call would block.
pub fn receive(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.read(buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// One `send`, again after EINTR. `None` means that the call would block.
pub fn send(mut stream: &TcpStream, buffer: &[u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.write(buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends a message that is small enough never to meet a full buffer.
pub fn send_small(stream: &TcpStream, message: &[u8]) -> Result<()> {
    match send(stream, message)? {
        Some(count) if count == message.len() => Ok(()),
        other => bail!("a send of {} bytes took {other:?}", message.len()),
    }
}

/// Sends a message of any size on a blocking socket.
#[inline]
pub fn send_all(stream: &TcpStream, message: &[u8]) -> Result<()> {
    let mut rest = message;
    while !rest.is_empty() {
        let count = send(stream, rest)?.context("a blocking send would block")?;
        rest = rest.get(count..).context("a send took more than there was")?;
    }
    Ok(())
}

/// A message whose bytes tell their place, so that a receiver notices bytes that are lost, doubled or moved.
#[derive(Clone)]
pub struct Pattern {
    bytes: Vec<u8>,
    /// Length - 1 where the length is a power of two, so that the place of an offset costs no division.
    mask: Option<u64>,
}

impl Pattern {
    pub fn new(message_bytes: usize) -> Self {
        assert!(message_bytes > 0, "a message has bytes");
        let bytes = (0..message_bytes).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect();
        let mask = message_bytes.is_power_of_two().then(|| message_bytes as u64 - 1);
        Pattern { bytes, mask }
    }

    pub fn message(&self) -> &[u8] {
        &self.bytes
    }

    /// Looks at the two ends of what was received at `offset` of the stream: cheap enough for the measured loop.
    #[inline]
    pub fn check(&self, offset: u64, received: &[u8]) -> Result<()> {
        let at = |o: u64| {
            let place = self.mask.map_or_else(|| o % self.bytes.len() as u64, |mask| o & mask);
            self.bytes[place as usize]
        };
        if let [first, .., last] = received {
            let end = offset + received.len() as u64 - 1;
            if *first != at(offset) || *last != at(end) {
                bail!("wrong bytes in {} received at offset {offset}", received.len());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_notices_a_shift() {
        for bytes in [64, 67] {
            let pattern = Pattern::new(bytes);
            let twice = [pattern.message(), pattern.message()].concat();
            assert!(pattern.check(0, &twice[0..bytes]).is_ok());
            assert!(pattern.check(bytes as u64 * 9 + 5, &twice[5..bytes + 6]).is_ok());
            assert!(pattern.check(6, &twice[5..bytes + 6]).is_err());
        }
    }

    #[test]
    fn both_families_connect() {
        for transport in [Transport::Tcp, Transport::Unix] {
            let listener = Listener::bind(transport, LOOPBACK).unwrap();
            let client = connect(&listener.address().unwrap()).unwrap();
            let server = listener.accept().unwrap();
            send_small(&client, b"x").unwrap();
            let mut byte = [0u8; 4];
            assert_eq!(receive(&server, &mut byte).unwrap(), Some(1));
        }
    }
}

//! Whether a host answers at all, before a rail is connected to it.
//!
//! libfabric's verbs provider finds the way to an address in the call that makes an endpoint, and waits two seconds in
//! it for a host that is silent: the whole bridge would wait. So such a host is asked by a TCP connection from the
//! rail's address, which the kernel makes meanwhile. Nothing needs to listen there: a refusal is an answer, too.
//!
//! iWARP goes over TCP itself, and the call may wait for as long as TCP tries. There the rail's own port is asked,
//! which a firewall that drops everything else lets through.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};

/// The port that is asked for (discard, RFC 863): where nothing should listen.
const PORT: u16 = 9;
/// The kernel gives a host up that does not even tell its link address after three seconds (arp(7), `mcast_solicit` and
/// `retrans_time_ms`). Who is then still silent only drops what it does not want, and is there; but not where that is
/// what will be connected.
const SILENCE_NS: u64 = 4_000_000_000;

/// A question to a host.
pub struct Question {
    socket: Option<OwnedFd>,
    since_ns: u64,
    /// What it means to say nothing for long.
    silence: Answer,
}

/// What a host has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is there, or nothing can be learned of it: a connection may be tried.
    There,
    /// Nothing yet.
    NotYet,
    /// Nobody is there.
    Nobody,
}

impl Question {
    /// Asks a host whose rail listens at `to`, from the address of the rail that is to be connected. `over_tcp` tells
    /// that it will be connected over TCP.
    pub fn ask(from: IpAddr, to: SocketAddr, over_tcp: bool, now_ns: u64) -> Question {
        let (to, silence) =
            if over_tcp { (to, Answer::Nobody) } else { (SocketAddr::new(to.ip(), PORT), Answer::There) };
        // What goes wrong here says nothing of the host.
        Question { socket: connecting(from, to).ok().flatten(), since_ns: now_ns, silence }
    }

    /// What it has answered by now.
    pub fn answer(&self, now_ns: u64) -> Answer {
        let Some(socket) = &self.socket else { return Answer::There };
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) if now_ns.saturating_sub(self.since_ns) < SILENCE_NS => Answer::NotYet,
            Ok(1..) => match socket::getsockopt(socket, sockopt::SocketError).map(Errno::from_raw) {
                Ok(Errno::EHOSTUNREACH | Errno::ENETUNREACH) => Answer::Nobody,
                _ => Answer::There,
            },
            Ok(_) => self.silence,
            Err(_) => Answer::There,
        }
    }
}

/// A socket that connects. `None` if it is connected already.
fn connecting(from: IpAddr, to: SocketAddr) -> Result<Option<OwnedFd>, Errno> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => Ok(None),
        Err(Errno::EINPROGRESS) => Ok(Some(socket)),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_refusal_is_an_answer() {
        for over_tcp in [false, true] {
            let to = SocketAddr::new(LOOPBACK, PORT);
            assert_eq!(Question::ask(LOOPBACK, to, over_tcp, 0).answer(0), Answer::There);
        }
    }

    #[test]
    fn who_drops_what_comes_is_there_in_the_end_or_not_for_what_goes_over_tcp() {
        // The queue of a listener holds one more than it is told to; whoever comes then is not answered.
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        socket::listen(&listener, socket::Backlog::new(0).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).unwrap();
        for silence in [Answer::There, Answer::Nobody] {
            let question = Question { socket: connecting(LOOPBACK, address).unwrap(), since_ns: 7, silence };
            assert_eq!(question.answer(7), Answer::NotYet);
            assert_eq!(question.answer(6 + SILENCE_NS), Answer::NotYet);
            assert_eq!(question.answer(7 + SILENCE_NS), silence);
        }
    }

    #[test]
    fn what_cannot_be_asked_is_not_held_against_the_host() {
        let nowhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let to = SocketAddr::new(LOOPBACK, PORT);
        assert_eq!(Question::ask(nowhere, to, true, 0).answer(0), Answer::There);
    }
}

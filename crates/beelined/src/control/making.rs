//! Making connections: accepting and dialing.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::connection::{Connection, Phase, Side};
use super::dialer::chance;
use super::end::End;
use super::event::PeerId;
use super::link::Link;
use super::message::Token;
use super::random::random;
use super::session::Session;
use super::{Control, Trust, network};
use crate::log;

/// How many connections may wait to say who they are.
const UNKNOWN_MAX: usize = 64;

impl Control {
    pub(super) fn accept(&mut self, index: usize, now: Instant) {
        while self.gate.is_open(now) {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.accept() {
                Ok((socket, remote)) => self.admit(socket, remote, now),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Too few descriptors, most likely. The connection waits in the backlog meanwhile.
                    log::about_strangers(format_args!("cannot accept control connections: {error}"));
                    self.gate.close_for_a_while(now);
                }
            }
        }
        self.set_listening(false);
    }

    fn admit(&mut self, socket: TcpStream, remote: SocketAddr, now: Instant) {
        self.gate.pass();
        // On a socket for both families, IPv4 comes written as IPv6.
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let (tls, phase) = match &self.trust {
            Trust::Certificates { tls, .. } => match tls.accept() {
                Ok(tls) => (Some(tls), Phase::Shaking),
                Err(error) => return log::about_strangers(format_args!("TLS cannot begin: {error}")),
            },
            Trust::Insecure => (None, Phase::Greeting),
        };
        if network::prepare(&socket).is_ok() {
            self.make_room(now);
            if let Err(end) = self.begin(socket, tls, Side::Accepted, remote, phase, now) {
                log::about_strangers(format_args!("a connection from {remote} cannot begin: {end}"));
            }
        }
    }

    pub(super) fn set_listening(&mut self, listening: bool) {
        let flags = if listening { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        for (index, listener) in self.listeners.iter().enumerate() {
            let _ = self.epoll.modify(listener, &mut EpollEvent::new(flags, index as u64));
        }
    }

    /// The oldest of those that have not said who they are gives way.
    fn make_room(&mut self, now: Instant) {
        let unknown = self.connections.values().filter(|c| c.side == Side::Accepted && c.up().is_none());
        let unknown: Vec<PeerId> = unknown.map(|connection| connection.id).collect();
        if unknown.len() >= UNKNOWN_MAX {
            self.end(unknown[0], End::Crowded, now);
            // Nor does it wait for its farewell.
            self.connections.remove(&unknown[0]);
        }
    }

    pub(super) fn dial(&mut self, index: usize, now: Instant) {
        let address = self.dialers[index].next_address();
        let tls = match &self.trust {
            Trust::Certificates { tls, .. } => tls.connect(address.ip()).map(Some).map_err(End::from),
            Trust::Insecure => Ok(None),
        };
        let begun = tls.and_then(|tls| {
            let socket = network::connect(address)?;
            self.begin(socket, tls, Side::Dialed(index), address, Phase::Connecting, now)
        });
        if let Err(end) = begun {
            self.note_failed_attempt(index, address, &end, now);
        }
    }

    fn begin(
        &mut self,
        socket: TcpStream,
        tls: Option<rustls::Connection>,
        side: Side,
        remote: SocketAddr,
        phase: Phase,
        now: Instant,
    ) -> Result<(), End> {
        let id = PeerId(self.next_id);
        let token = Token::from_bytes(random().map_err(std::io::Error::other)?);
        let link = Link::new(socket, tls);
        let session = Session::new(now, self.timeout);
        let interest = EpollFlags::empty();
        self.epoll.add(&link, EpollEvent::new(interest, id.0)).map_err(std::io::Error::from)?;
        self.next_id += 1;
        if let Side::Dialed(index) = side {
            self.dialers[index].attempt = Some(id);
        }
        let mut connection = Connection { id, side, remote, phase, token, session, link, interest };
        let result = match connection.phase {
            Phase::Greeting => self.greet(&mut connection),
            _ => Ok(()),
        };
        self.settle_down(connection, result, now);
        Ok(())
    }

    pub(super) fn note_failed_attempt(&mut self, index: usize, address: SocketAddr, why: &End, now: Instant) {
        let dialer = &mut self.dialers[index];
        if dialer.ended(why, None, now, chance()) && !why.is_duplicate() {
            log::line(format_args!("cannot connect to {} at {address}: {why}", dialer.peer.name));
        }
    }
}

//! One control connection, from the first packet to the last.

use std::net::SocketAddr;
use std::time::Instant;

use nix::sys::epoll::EpollFlags;

use super::end::End;
use super::event::PeerId;
use super::link::{Ending, Link};
use super::message::{Rail, Token};
use super::session::Session;
use crate::keys::Certificate;
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// Which end began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We did: the dialer of this index.
    Dialed(usize),
    /// They did.
    Accepted,
}

/// How far it is.
pub enum Phase {
    /// TCP's handshake goes on.
    Connecting,
    /// TLS's does.
    Shaking,
    /// Our hello is on its way, theirs is awaited.
    Greeting,
    /// It stands.
    Up(Box<Up>),
    /// We have said goodbye, and read until they have read it.
    Closing { until: Instant },
}

/// What is known of a peer.
pub struct Up {
    /// Its name.
    pub name: BridgeName,
    /// Its certificate, if there are certificates.
    pub certificate: Option<Certificate>,
    /// It has expired.
    pub has_expired: bool,
    /// Which start of it.
    pub instance: u64,
    /// What it speaks for.
    pub speaks_for: Vec<Prefix>,
    /// What it offers.
    pub rails: Vec<Rail>,
    /// Since when.
    pub since: Instant,
}

/// A connection.
pub struct Connection {
    /// Its number.
    pub id: PeerId,
    /// Who began.
    pub side: Side,
    /// The other end.
    pub remote: SocketAddr,
    /// How far it is.
    pub phase: Phase,
    /// What the peer must show on a rail.
    pub token: Token,
    /// The protocol.
    pub session: Session,
    /// The transport.
    pub link: Link,
    /// What the epoll set waits for.
    pub interest: EpollFlags,
}

impl Connection {
    /// What is known of the peer, if it stands.
    pub fn up(&self) -> Option<&Up> {
        match &self.phase {
            Phase::Up(up) => Some(up),
            _ => None,
        }
    }

    /// When something will be due.
    pub fn deadline(&self) -> Instant {
        match self.phase {
            Phase::Closing { until } => until,
            _ => self.session.deadline(),
        }
    }

    /// What to wait for now.
    pub fn wanted(&mut self) -> EpollFlags {
        match self.phase {
            Phase::Connecting => EpollFlags::EPOLLOUT,
            Phase::Closing { .. } => EpollFlags::EPOLLIN,
            _ if self.link.wants_to_write(self.session.outbox()) => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            _ => EpollFlags::EPOLLIN,
        }
    }

    /// Moves bytes both ways, as far as they go. Bytes that came are in the session.
    pub fn exchange(&mut self, now: Instant) -> Result<Ending, End> {
        let mut bytes = Vec::new();
        let arrival = self.link.read(&mut bytes)?;
        self.session.receive(&bytes, now)?;
        // What TLS says to TLS makes work, too.
        self.session.spend(arrival.wire_bytes.saturating_sub(bytes.len()) as f64, now)?;
        self.flush()?;
        Ok(arrival.ending)
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Result<(), End> {
        self.link.write(self.session.outbox())
    }
}

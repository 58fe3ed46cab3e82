//! The control connections: who the other bridges are, and whether they live.
//!
//! [`Control`] belongs to the bridge's one thread and never blocks. It has an epoll set of its own, which is readable
//! when there is something to do ([`Control::as_fd`]); then, or when [`Control::deadline`] has come, [`Control::turn`]
//! does it and says what has happened.
//!
//! 1. A [`PeerId`] stands for one control connection that is up, and is never used again. [`Event::PeerUp`] is the
//!    first that is heard of it, [`Event::PeerDown`] the last, and there is at most one for a name at any time.
//! 2. Between two bridges one connection stays: that of a newer start of the other bridge; else the one that the bridge
//!    with the smaller name began; else, if both began with the same bridge, the newer.
//! 3. Strangers cost little: so many connections a second are accepted, so many may wait to prove who they are, each
//!    for a bounded time, and each with bounded memory.
//! 4. Peers keep to the protocol or lose their connection; see [`session`].

#![forbid(unsafe_code)]

mod connection;
mod dialer;
pub mod end;
mod event;
pub mod frame;
mod greeting;
mod link;
mod making;
pub mod message;
mod network;
mod random;
mod routes;
pub mod session;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use connection::{Connection, Phase, Side};
use dialer::{Dialer, chance};
use end::End;
pub use event::{Event, PeerId, PeerUp};
use link::Ending;
use message::{Frame, Message, Rail, Rails, Token};
use network::Gate;
use random::random;
use routes::Routes;
use session::Heard;

use crate::config::{CertificatePaths, Config, Identity};
use crate::keys::Tls;
use crate::log;
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// Connections have numbers from here on; below are listeners.
const CONNECTION_IDS: u64 = 1 << 32;
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often the addresses of the interfaces are looked up.
const INTERFACES_INTERVAL: Duration = Duration::from_secs(2);

/// How bridges know each other, ready for use.
enum Trust {
    Certificates { tls: Box<Tls>, paths: CertificatePaths },
    Insecure,
}

/// All control connections of this bridge.
pub struct Control {
    name: BridgeName,
    instance: u64,
    timeout: Duration,
    trust: Trust,
    epoll: Epoll,
    listeners: Vec<TcpListener>,
    gate: Gate,
    connections: BTreeMap<PeerId, Connection>,
    next_id: u64,
    dialers: Vec<Dialer>,
    rails: Vec<Rail>,
    measure_port: u16,
    routes: Routes,
    interfaces_at: Instant,
    events: VecDeque<Event>,
    ends: BTreeMap<&'static str, u64>,
}

impl Control {
    /// Reads keys, and listens.
    pub fn new(config: &Config, now: Instant) -> anyhow::Result<Self> {
        Self::with_listeners(config, network::listen(&config.listen)?, now)
    }

    /// With sockets that listen already.
    pub fn with_listeners(config: &Config, listeners: Vec<TcpListener>, now: Instant) -> anyhow::Result<Self> {
        let (name, trust, own) = match &config.identity {
            Identity::Certificates(paths) => {
                let (tls, complaints) = Tls::read(paths)?;
                complaints.iter().for_each(log::line);
                if let Some(name) = config.name.as_ref().filter(|name| **name != tls.own.name) {
                    bail!("the configuration says that this bridge is `{name}`, its certificate `{}`", tls.own.name);
                }
                let (name, own) = (tls.own.name.clone(), tls.own.addresses.clone());
                (name, Trust::Certificates { tls: Box::new(tls), paths: paths.clone() }, own)
            }
            Identity::Insecure { addresses } => {
                (config.name.clone().context("the bridge has no name")?, Trust::Insecure, addresses.clone())
            }
        };
        match &trust {
            Trust::Insecure => log::line("INSECURE: peers are known by their addresses only"),
            Trust::Certificates { tls, .. } if tls.own.days_left() < 30 => {
                log::line(format_args!("this bridge's certificate expires in {} days", tls.own.days_left()));
            }
            Trust::Certificates { .. } => {}
        }
        if config.peers.iter().any(|peer| peer.name == name) {
            bail!("one of the configured peers has this bridge's own name, `{name}`");
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (index, listener) in listeners.iter().enumerate() {
            listener.set_nonblocking(true)?;
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        }
        let mut routes = Routes::new(own);
        routes.set_interfaces(routes::interface_addresses());
        Ok(Self {
            instance: u64::from_le_bytes(random()?),
            timeout: config.peer_timeout,
            trust,
            epoll,
            listeners,
            gate: Gate::new(now),
            connections: BTreeMap::new(),
            next_id: CONNECTION_IDS,
            dialers: config.peers.iter().map(|peer| Dialer::new(peer.clone(), &name, now)).collect(),
            name,
            rails: Vec::new(),
            measure_port: 0,
            routes,
            interfaces_at: now + INTERFACES_INTERVAL,
            events: VecDeque::new(),
            ends: BTreeMap::new(),
        })
    }

    /// This bridge's name.
    pub fn name(&self) -> &BridgeName {
        &self.name
    }

    /// This start's number.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// What this bridge speaks for.
    pub fn own_prefixes(&self) -> &[Prefix] {
        self.routes.own()
    }

    /// Whether this bridge speaks for the address, so that peers may ask for who listens there.
    pub fn speaks_for_own(&self, address: IpAddr) -> bool {
        self.own_prefixes().iter().any(|prefix| prefix.contains(address))
    }

    /// Whether bridges know each other by address only.
    pub fn is_insecure(&self) -> bool {
        matches!(self.trust, Trust::Insecure)
    }

    /// Where the control port is.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Whether the peer may speak for the address: its certificate names it, and it is no address of this host.
    pub fn speaks_for(&self, peer: PeerId, address: IpAddr) -> bool {
        self.routes.speaks_for(peer, address)
    }

    /// The peer that speaks for the address, if one is there.
    pub fn peer_for(&self, address: IpAddr) -> Option<PeerId> {
        self.routes.peer_for(address)
    }

    /// The token that this peer has to show when it connects a rail to us.
    pub fn my_token(&self, peer: PeerId) -> Option<Token> {
        self.connections.get(&peer).filter(|connection| connection.up().is_some()).map(|connection| connection.token)
    }

    /// The peer that has to show this token.
    pub fn peer_with_token(&self, token: &[u8]) -> Option<PeerId> {
        let ups = self.connections.values().filter(|connection| connection.up().is_some());
        // All are compared, so that the time does not tell which one is nearly right.
        ups.fold(None, |found, connection| if connection.token.is(token) { Some(connection.id) } else { found })
    }

    /// Offers other rails from now on, to all peers.
    pub fn announce_rails(&mut self, rails: Vec<Rail>) -> Result<(), String> {
        message::check_rails(&rails)?;
        let frame = Frame::Rails(Rails { rails: rails.clone() });
        // A hello holds the rails and more; half a frame leaves room for everything else in it.
        if frame.encode().len() > frame::BODY_BYTES_MAX / 2 {
            return Err("the rails' descriptions are too long".into());
        }
        self.rails = rails;
        for peer in self.up_ids() {
            self.send_frame(peer, &frame);
        }
        Ok(())
    }

    /// Tells peers, in hellos from now on, where the way here can be measured over TCP.
    pub fn set_measure_port(&mut self, port: u16) {
        self.measure_port = port;
    }

    /// Says something to a peer. False if it is not there (any more).
    pub fn send(&mut self, peer: PeerId, message: Message) -> bool {
        self.send_frame(peer, &message.into())
    }

    fn send_frame(&mut self, peer: PeerId, frame: &Frame) -> bool {
        let Some(mut connection) = self.connections.remove(&peer) else { return false };
        if connection.up().is_none() {
            self.connections.insert(peer, connection);
            return false;
        }
        let result = connection.session.send(frame).and_then(|()| connection.flush());
        // The end of the connection, if this is one, is the next turn's news.
        self.settle_down(connection, result, Instant::now())
    }

    /// Readable when [`Self::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// When [`Self::turn`] has something to do, even if the descriptor is silent.
    pub fn deadline(&self, now: Instant) -> Instant {
        if !self.events.is_empty() {
            return now;
        }
        let connections = self.connections.values().map(Connection::deadline);
        let dialers = self.dialers.iter().filter(|dialer| !self.has(&dialer.peer.name)).filter_map(Dialer::due);
        connections.chain(dialers).chain(self.gate.reopens_at()).fold(self.interfaces_at, Instant::min)
    }

    /// Does what there is to do, and says what has happened since the last turn.
    pub fn turn(&mut self, now: Instant) -> VecDeque<Event> {
        let mut ready = [EpollEvent::empty(); 64];
        let count = self.epoll.wait(&mut ready, 0_u8).unwrap_or(0);
        for event in &ready[..count] {
            match event.data() {
                id if id >= CONNECTION_IDS => self.serve(PeerId(id), now),
                index => self.accept(index as usize, now),
            }
        }
        self.tick(now);
        std::mem::take(&mut self.events)
    }

    /// Reads the trusted certificates (and our own) again. Peers that are no longer trusted are gone; one whose
    /// certificate was renewed, and names all that it speaks for, stays. If it fails, everything stays as it was.
    pub fn reload(&mut self, now: Instant) -> anyhow::Result<Vec<String>> {
        let Trust::Certificates { tls, paths } = &mut self.trust else {
            bail!("the bridge runs with `insecure = true`, so there are no certificates to read");
        };
        let (read, complaints) = tls.read_again(paths)?;
        if read.own.name != tls.own.name || read.own.addresses != self.routes.own() {
            bail!("the new certificate has another name or other addresses; start the bridge again");
        }
        **tls = read;
        let mut gone = Vec::new();
        for connection in self.connections.values_mut() {
            let Phase::Up(up) = &mut connection.phase else { continue };
            if up.certificate.as_ref().is_none_or(|known| tls.trusted.find(known.der()).is_some()) {
                continue;
            }
            let renewed = tls.trusted.get(&up.name).filter(|renewed| {
                let names = |claim: &Prefix| renewed.addresses.iter().any(|allowed| allowed.covers(*claim));
                up.speaks_for.iter().all(names)
            });
            match renewed {
                Some(renewed) => up.certificate = Some(renewed.clone()),
                None => gone.push(connection.id),
            }
        }
        for peer in gone {
            self.end(peer, End::NoLongerTrusted, now);
        }
        Ok(complaints)
    }

    /// Says goodbye to everybody.
    pub fn stop(&mut self) {
        for connection in self.connections.values_mut() {
            connection.session.say_bye(&End::Stopping);
            connection.link.close(connection.session.outbox());
        }
        self.connections.clear();
        self.listeners.clear();
    }

    fn up_ids(&self) -> Vec<PeerId> {
        self.connections.values().filter(|connection| connection.up().is_some()).map(|c| c.id).collect()
    }

    fn has(&self, name: &BridgeName) -> bool {
        self.connections.values().any(|connection| connection.up().is_some_and(|up| up.name == *name))
    }

    /// Something has happened on a connection.
    fn serve(&mut self, id: PeerId, now: Instant) {
        // Out of the map while it is served, since settling who stays may end others.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let result = self.progress(&mut connection, now);
        self.settle_down(connection, result, now);
    }

    fn progress(&mut self, connection: &mut Connection, now: Instant) -> Result<(), End> {
        if matches!(connection.phase, Phase::Connecting) {
            if !connection.link.finish_connecting()? {
                return Ok(());
            }
            connection.phase = if self.is_insecure() { Phase::Greeting } else { Phase::Shaking };
            if self.is_insecure() {
                self.greet(connection)?;
            }
            return connection.flush();
        }
        if let Phase::Closing { .. } = connection.phase {
            return match connection.link.read(&mut Vec::new())?.ending {
                Ending::Open => Ok(()),
                Ending::Over => Err(End::Closed),
            };
        }
        let ending = connection.exchange(now)?;
        if matches!(connection.phase, Phase::Shaking) && !connection.link.is_handshaking() {
            connection.phase = Phase::Greeting;
            self.greet(connection)?;
        }
        while let Some(heard) = connection.session.next_heard(now)? {
            match heard {
                Heard::Hello(hello) => self.meet(connection, *hello, now)?,
                Heard::Message(message) => {
                    if let (Phase::Up(up), Message::Rails(rails)) = (&mut connection.phase, &message) {
                        up.rails.clone_from(&rails.rails);
                    }
                    self.events.push_back(Event::Message(connection.id, message));
                }
            }
        }
        connection.flush()?;
        if ending == Ending::Over { Err(End::Closed) } else { Ok(()) }
    }

    /// Puts a connection back, or ends it. Says whether it is still there.
    fn settle_down(&mut self, mut connection: Connection, result: Result<(), End>, now: Instant) -> bool {
        if let Err(end) = result {
            self.finish(connection, end, now);
            return false;
        }
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            if let Err(errno) = self.epoll.modify(&connection.link, &mut EpollEvent::new(wanted, connection.id.0)) {
                self.finish(connection, End::Io(errno.into()), now);
                return false;
            }
        }
        self.connections.insert(connection.id, connection);
        true
    }

    fn end(&mut self, id: PeerId, why: End, now: Instant) {
        if let Some(connection) = self.connections.remove(&id) {
            self.finish(connection, why, now);
        }
    }

    /// The end of a connection that is not in the map (any more).
    fn finish(&mut self, mut connection: Connection, why: End, now: Instant) {
        if matches!(connection.phase, Phase::Closing { .. }) {
            return;
        }
        *self.ends.entry(why.name()).or_default() += 1;
        let was_up = connection.up().is_some();
        if let Side::Dialed(index) = connection.side {
            self.dialers[index].attempt = None;
        }
        match (connection.up(), connection.side) {
            (Some(up), _) => {
                if let Some(dialer) = self.dialers.iter_mut().find(|dialer| dialer.peer.name == up.name) {
                    dialer.ended(&why, Some(now.saturating_duration_since(up.since)), now, chance());
                }
            }
            (None, Side::Dialed(index)) => self.note_failed_attempt(index, connection.remote, &why, now),
            (None, Side::Accepted) if why.is_duplicate() => {}
            (None, Side::Accepted) => {
                log::about_strangers(format_args!("a connection from {} was refused: {why}", connection.remote));
            }
        }
        // Connections that never came to a hello have nobody to whom a farewell would mean anything.
        let may_talk = !matches!(connection.phase, Phase::Connecting | Phase::Shaking);
        if why.is_worth_a_bye() && may_talk {
            connection.session.say_bye(&why);
            connection.link.close(connection.session.outbox());
            connection.phase = Phase::Closing { until: now + FAREWELL };
        }
        if was_up {
            self.routes.remove(connection.id);
            self.events.push_back(Event::PeerDown { peer: connection.id, why });
        }
        if matches!(connection.phase, Phase::Closing { .. }) {
            self.settle_down(connection, Ok(()), now);
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.gate.reopens_at().is_some_and(|at| at <= now) {
            self.gate.reopen(now);
            self.set_listening(true);
        }
        if self.interfaces_at <= now {
            self.interfaces_at = now + INTERFACES_INTERVAL;
            self.routes.set_interfaces(routes::interface_addresses());
        }
        let due: Vec<PeerId> = self.connections.values().filter(|c| c.deadline() <= now).map(|c| c.id).collect();
        for id in due {
            let Some(mut connection) = self.connections.remove(&id) else { continue };
            if matches!(connection.phase, Phase::Closing { .. }) {
                continue;
            }
            self.heed_expiry(&mut connection);
            let result = connection.session.tick(now).and_then(|()| connection.flush());
            self.settle_down(connection, result, now);
        }
        self.dial_due(now);
    }

    /// A peer whose certificate has expired, be it by a jump of the clock, speaks for nobody until it holds again:
    /// there are no new connections from it or to it, and those that stand go on.
    fn heed_expiry(&mut self, connection: &mut Connection) {
        let id = connection.id;
        let Phase::Up(up) = &mut connection.phase else { return };
        let has_expired = up.certificate.as_ref().is_some_and(|known| known.has_expired_at(SystemTime::now()));
        if std::mem::replace(&mut up.has_expired, has_expired) == has_expired {
            return;
        }
        if has_expired {
            log::line(format_args!("the certificate of peer {} has expired: no new connections", up.name));
            self.routes.remove(id);
        } else {
            log::line(format_args!("the certificate of peer {} holds again", up.name));
            self.routes.add(up.name.clone(), id, up.speaks_for.clone());
        }
    }

    fn dial_due(&mut self, now: Instant) {
        for index in 0..self.dialers.len() {
            let dialer = &self.dialers[index];
            if dialer.due().is_some_and(|at| at <= now) && !self.has(&dialer.peer.name) {
                self.dial(index, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;

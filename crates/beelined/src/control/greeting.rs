//! Hellos: saying who we are, and believing who they are.

use std::net::IpAddr;
use std::time::Instant;

use super::connection::{Connection, Phase, Side, Up};
use super::end::End;
use super::message::{Frame, Hello, VERSION};
use super::{Control, Event, PeerUp, Trust};
use crate::keys::Certificate;
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// Who the other end can only be.
struct Proven {
    name: BridgeName,
    addresses: Vec<Prefix>,
    certificate: Option<Certificate>,
}

impl Control {
    /// Says who we are.
    pub(super) fn greet(&self, connection: &mut Connection) -> Result<(), End> {
        connection.session.send(&Frame::Hello(Hello {
            version: VERSION,
            name: self.name.clone(),
            instance: self.instance,
            speaks_for: self.routes.own().to_vec(),
            rails: self.rails.clone(),
            token: connection.token,
            measure_port: self.measure_port,
        }))?;
        connection.flush()
    }

    /// Hears who they are, and decides whether they stay.
    pub(super) fn meet(&mut self, connection: &mut Connection, hello: Hello, now: Instant) -> Result<(), End> {
        let proven = self.prove(connection, &hello)?;
        if hello.name == self.name || hello.instance == self.instance {
            return Err(End::OwnName);
        }
        if hello.name != proven.name {
            return Err(End::WrongName { said: hello.name, expected: proven.name });
        }
        if let Side::Dialed(index) = connection.side
            && self.dialers[index].peer.name != proven.name
        {
            let expected = self.dialers[index].peer.name.clone();
            return Err(End::WrongName { said: hello.name, expected });
        }
        let is_beyond = |claim: &&Prefix| !proven.addresses.iter().any(|allowed| allowed.covers(**claim));
        if let Some(claim) = hello.speaks_for.iter().find(is_beyond) {
            return Err(End::Beyond(*claim));
        }
        self.settle(connection, &hello, now)?;
        self.welcome(connection, hello, proven.certificate, now);
        Ok(())
    }

    fn prove(&self, connection: &Connection, hello: &Hello) -> Result<Proven, End> {
        match &self.trust {
            Trust::Certificates { tls, .. } => {
                // The verifier has found it among the trusted; they may have changed since.
                let certificate = connection.link.peer_certificate().and_then(|der| tls.trusted.find(der));
                let certificate = certificate.ok_or(End::NoLongerTrusted)?.clone();
                let (name, addresses) = (certificate.name.clone(), certificate.addresses.clone());
                Ok(Proven { name, addresses, certificate: Some(certificate) })
            }
            Trust::Insecure => {
                let dialer = self.dialers.iter().find(|dialer| dialer.peer.name == hello.name);
                let peer = &dialer.ok_or(End::Stranger)?.peer;
                let remote: IpAddr = connection.remote.ip().to_canonical();
                let is_known = peer.control.iter().any(|control| control.ip().to_canonical() == remote)
                    || peer.addresses.iter().any(|prefix| prefix.contains(remote));
                if !is_known {
                    return Err(End::Stranger);
                }
                Ok(Proven { name: peer.name.clone(), addresses: peer.addresses.clone(), certificate: None })
            }
        }
    }

    /// Which of two connections to the same bridge stays (rule 2 of [`super`]).
    fn settle(&mut self, connection: &Connection, hello: &Hello, now: Instant) -> Result<(), End> {
        let existing = self.connections.values().find(|other| other.up().is_some_and(|up| up.name == hello.name));
        let Some(existing) = existing else { return Ok(()) };
        let is_dialed = |side: Side| matches!(side, Side::Dialed(_));
        let (id, why) = if existing.up().is_some_and(|up| up.instance != hello.instance) {
            (existing.id, End::Restarted)
        } else if is_dialed(connection.side) == (self.name < hello.name)
            || is_dialed(connection.side) == is_dialed(existing.side)
        {
            (existing.id, End::Duplicate)
        } else {
            return Err(End::Duplicate);
        };
        self.end(id, why, now);
        Ok(())
    }

    fn welcome(&mut self, connection: &mut Connection, hello: Hello, certificate: Option<Certificate>, now: Instant) {
        let Hello { name, instance, speaks_for, rails, token, measure_port, .. } = hello;
        if let Side::Dialed(index) = connection.side {
            self.dialers[index].attempt = None;
        }
        if let Some(dialer) = self.dialers.iter_mut().find(|dialer| dialer.peer.name == name) {
            dialer.succeeded();
        }
        self.routes.add(name.clone(), connection.id, speaks_for.clone());
        let (up_name, up_rails, up_speaks_for) = (name.clone(), rails.clone(), speaks_for.clone());
        connection.phase = Phase::Up(Box::new(Up {
            name: up_name,
            certificate,
            has_expired: false,
            instance,
            speaks_for: up_speaks_for,
            rails: up_rails,
            since: now,
        }));
        self.events.push_back(Event::PeerUp(Box::new(PeerUp {
            peer: connection.id,
            name,
            instance,
            speaks_for,
            rails,
            token_for_us: token,
            measure_port,
            address: connection.remote,
        })));
    }
}

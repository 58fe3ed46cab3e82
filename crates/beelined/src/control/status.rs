//! What is known of the peers, for the administrator.

use std::collections::BTreeMap;
use std::time::Instant;

use beeline_status::document::Peer;

use super::connection::Connection;
use super::{Control, Trust};
use crate::keys::Certificate;

impl Control {
    /// The peers that are there or should be, by name.
    pub fn peers(&self, now: Instant) -> Vec<Peer> {
        let ups = self.connections.values().filter_map(|connection| status(connection, now));
        let missing = self.dialers.iter().filter(|dialer| !self.has(&dialer.peer.name)).map(|dialer| Peer {
            name: dialer.peer.name.to_string(),
            is_up: false,
            address: dialer.peer.control.first().map(ToString::to_string).unwrap_or_default(),
            up_s: 0,
            round_trip_us: None,
            speaks_for: Vec::new(),
            rails: Vec::new(),
            certificate_days: None,
            last_end: dialer.last_end.clone(),
        });
        let mut peers: Vec<Peer> = ups.chain(missing).collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers
    }

    /// Days until this bridge's own certificate expires.
    pub fn certificate_days(&self) -> Option<i64> {
        match &self.trust {
            Trust::Certificates { tls, .. } => Some(tls.own.days_left()),
            Trust::Insecure => None,
        }
    }

    /// How many control connections have ended, and why.
    pub fn ends(&self) -> &BTreeMap<&'static str, u64> {
        &self.ends
    }
}

fn status(connection: &Connection, now: Instant) -> Option<Peer> {
    let up = connection.up()?;
    let round_trip = connection.session.round_trip();
    Some(Peer {
        name: up.name.to_string(),
        is_up: true,
        address: connection.remote.to_string(),
        up_s: now.saturating_duration_since(up.since).as_secs(),
        round_trip_us: round_trip.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        speaks_for: up.speaks_for.iter().map(ToString::to_string).collect(),
        rails: up.rails.iter().map(|rail| rail.description.clone()).collect(),
        certificate_days: up.certificate.as_ref().map(Certificate::days_left),
        last_end: None,
    })
}

//! What the engine tells the administrator.

use serde::Serialize;

use super::super::connection::Stage;
use super::super::share::Medians;
use super::Engine;

/// Everything about the data plane.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub uptime_s: u64,
    pub rails: Vec<RailStatus>,
    pub links: Vec<LinkStatus>,
    pub connections: Vec<ConnectionStatus>,
    pub refusals: Refusals,
    pub totals: Totals,
    /// The bridge's own share of a trip, in nanoseconds ([`super::super::share`]).
    pub share: Medians,
}

/// One of our rails.
#[derive(Clone, Debug, Serialize)]
pub struct RailStatus {
    pub id: u32,
    pub rail: beeline_topo::Rail,
    pub trouble: Option<String>,
}

/// A link to a peer.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    pub peer: String,
    pub rail: String,
    pub peer_rail: u32,
    pub up: bool,
    pub messages_sent: u64,
    pub messages_received: u64,
    /// With the bytes of writes and of what was offered.
    pub bytes_sent: u64,
    pub in_flight_bytes: u64,
    pub measured_mbps: Option<u64>,
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionStatus {
    pub client: String,
    pub server: String,
    pub peer: String,
    /// `asked`, `open`, or `closing`.
    pub state: &'static str,
    pub rail: Option<String>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub age_s: u64,
}

/// Why clients of this host were left to TCP.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Refusals {
    pub no_peer: u64,
    pub no_door: u64,
    pub no_rail: u64,
    pub full: u64,
    pub rejected: u64,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    pub opened: u64,
    pub accepted: u64,
    pub closed: u64,
    pub reset: u64,
    pub breaches: u64,
    pub links_made: u64,
    pub links_lost: u64,
    pub pushes: u64,
    pub pulls: u64,
    pub inlined_bytes: u64,
    pub sleeps: u64,
}

impl Engine {
    /// Everything, now.
    #[must_use]
    pub fn status(&self) -> Status {
        let rail_name = |index: usize| self.rails.get(index).map(|rail| rail.described.name.clone());
        let peer_name = |index: usize| {
            self.peers.get(index).and_then(Option::as_ref).map_or_else(String::new, |p| p.name.to_string())
        };
        let seconds = |ns: u64| self.now_ns.saturating_sub(ns) / 1_000_000_000;
        Status {
            uptime_s: self.started.elapsed().as_secs(),
            rails: self
                .rails
                .iter()
                .map(|rail| RailStatus { id: rail.id, rail: rail.described.clone(), trouble: rail.trouble.clone() })
                .collect(),
            links: self
                .links
                .iter()
                .flatten()
                .map(|link| {
                    let rates = self.peers.get(link.peer).and_then(Option::as_ref).map(|peer| &peer.rates);
                    LinkStatus {
                        peer: peer_name(link.peer),
                        rail: rail_name(link.rail).unwrap_or_default(),
                        peer_rail: link.their_rail,
                        up: link.up,
                        messages_sent: link.messages_sent,
                        messages_received: link.messages_received,
                        bytes_sent: link.bytes_sent,
                        in_flight_bytes: rates.map_or(0, |rates| rates.in_flight(link.id)),
                        measured_mbps: rates.and_then(|r| r.measured(link.id, self.now_ns)).map(|rate| rate / 125_000),
                    }
                })
                .collect(),
            connections: self
                .connections
                .iter()
                .map(|(_, entry)| {
                    let (bytes_sent, bytes_received) = entry.connection.bytes();
                    let link = entry.home.and_then(|index| self.links.get(index)?.as_ref());
                    ConnectionStatus {
                        client: entry.name.client.address().to_string(),
                        server: entry.name.server.address().to_string(),
                        peer: peer_name(entry.peer),
                        state: match (entry.connection.stage, entry.connection.lane()) {
                            (Stage::Asked, _) => "asked",
                            (Stage::Open, Some(_)) => "open",
                            (Stage::Open, None) => "closing",
                        },
                        rail: link.and_then(|link| rail_name(link.rail)),
                        bytes_sent,
                        bytes_received,
                        age_s: seconds(entry.since_ns),
                    }
                })
                .collect(),
            refusals: self.refusals_by_reason(),
            totals: Totals {
                opened: self.counts.opened,
                accepted: self.counts.accepted,
                closed: self.counts.closed,
                reset: self.counts.reset,
                breaches: self.counts.breaches,
                links_made: self.counts.links_made,
                links_lost: self.counts.links_lost,
                pushes: self.counts.pushes,
                pulls: self.counts.pulls,
                inlined_bytes: self.counts.inlined,
                sleeps: self.counts.sleeps,
            },
            share: self.share.medians(),
        }
    }

    fn refusals_by_reason(&self) -> Refusals {
        let [_, _, no_peer, no_door, no_rail, full, rejected, _] = self.refusals;
        Refusals { no_peer, no_door, no_rail, full, rejected }
    }
}

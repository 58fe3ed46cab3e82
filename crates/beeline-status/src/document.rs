//! What a bridge tells of itself, in the form in which it travels as JSON.
//!
//! A reader ignores fields that it does not know; one that it misses means another version.

use std::collections::BTreeMap;

use beeline_topo::{PeerRail, Rail, report::Path};
use serde::{Deserialize, Serialize};

/// Numbers by name.
pub type Counts = BTreeMap<String, u64>;

/// The refusals that are counted: reasons of the library, without their `bridge_`.
pub const REFUSALS: [&str; 7] = ["no_peer", "no_door", "no_rail", "full", "rejected", "slower", "leaving"];

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Of the program.
    pub version: String,
    /// The bridge's process.
    pub pid: u32,
    /// The bridge's name.
    pub name: String,
    /// Which start of it.
    pub instance: u64,
    /// Whether peers are known by address only.
    pub insecure: bool,
    /// Where the control port is.
    pub listen: Vec<String>,
    /// What the bridge speaks for.
    pub speaks_for: Vec<String>,
    /// Days until its certificate expires.
    pub certificate_days: Option<i64>,
    /// The peers that are there or should be.
    pub peers: Vec<Peer>,
    /// How many control connections have ended, and why.
    pub control_ends: Counts,
    /// The settings in force.
    pub tunables: Counts,
    /// Rails, links, connections and counters.
    pub data: Data,
}

/// A peer as the administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Whether its control connection stands.
    pub is_up: bool,
    /// The other end of the connection, or where it is looked for.
    pub address: String,
    /// How long the connection stands, in seconds.
    pub up_s: u64,
    /// How long the last ping took, in microseconds.
    pub round_trip_us: Option<u64>,
    /// What it speaks for.
    pub speaks_for: Vec<String>,
    /// The rails it offers.
    pub rails: Vec<PeerRail>,
    /// Days until its certificate expires.
    pub certificate_days: Option<i64>,
    /// Why there is no connection, as far as is known.
    pub last_end: Option<String>,
}

/// Everything about the data plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// How long the bridge runs.
    pub uptime_s: u64,
    /// The rails that were opened.
    pub rails: Vec<RailStatus>,
    /// The links to peers.
    pub links: Vec<LinkStatus>,
    /// The connections that are carried or being made.
    pub connections: Vec<ConnectionStatus>,
    /// Whether TCP is faster to the peers, as far as it was measured.
    #[serde(default)]
    pub paths: Vec<PathStatus>,
    /// How far the bridge is with stopping, if it was told to.
    #[serde(default)]
    pub draining: Option<Draining>,
    /// Clients of this host that were left to TCP, by [`REFUSALS`].
    pub refusals: Counts,
    /// What was counted since the start.
    pub totals: Counts,
    /// The bridge's own share of a trip.
    pub share: Medians,
}

/// The way to a peer's host, over the bridges and over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The peer.
    pub peer: String,
    /// Short messages there and back.
    pub short: Option<PathTimes>,
    /// A mebibyte there.
    pub there: Option<PathTimes>,
    /// A mebibyte back.
    pub back: Option<PathTimes>,
    /// Why the last attempt to measure came to nothing.
    pub trouble: Option<String>,
}

/// Medians of the same exchange both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTimes {
    /// Over the bridges, in nanoseconds.
    pub bridge_ns: u64,
    /// Over TCP, in nanoseconds.
    pub tcp_ns: u64,
    /// Whether new connections of that kind go by TCP.
    pub slower: bool,
}

/// A bridge that stops: what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// Connections that are left.
    pub connections: u64,
    /// Seconds until they are reset.
    pub left_s: u64,
}

/// What a bridge itself adds to the trip of a message: medians in nanoseconds, nothing where nothing was measured. The
/// module `data/own_time.rs` of the bridge says what the parts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medians {
    /// A round that finds nothing.
    pub look: Option<u32>,
    /// The provider's time in it.
    pub ask: Option<u32>,
    /// From the lane into a message.
    pub outward: Option<u32>,
    /// The provider's time for the message.
    pub send: Option<u32>,
    /// From a message into the other lane.
    pub inward: Option<u32>,
    /// `look` + `outward` + `inward`.
    pub own: Option<u32>,
}

/// One of the bridge's own rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailStatus {
    /// Its number, which peers know it by.
    pub id: u32,
    /// What it is, and what is on it.
    pub rail: Rail,
    /// What is wrong with it.
    pub trouble: Option<String>,
    /// Bytes of rings that it knows.
    #[serde(default)]
    pub registered_bytes: u64,
}

/// A link to a peer: a connection between a rail of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The peer's name.
    pub peer: String,
    /// The local rail's name.
    pub rail: String,
    /// The peer's number for its rail.
    pub peer_rail: u32,
    /// Its name, as long as the peer offers it.
    pub peer_rail_name: String,
    /// Whether both ends know of it.
    pub up: bool,
    /// Messages, each with one or more records.
    pub messages_sent: u64,
    /// The same.
    pub messages_received: u64,
    /// With the bytes of writes and of what was offered.
    pub bytes_sent: u64,
    /// Sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// What it was measured at lately.
    pub measured_mbps: Option<u64>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The address of the end that has connected.
    pub client: String,
    /// That of the end that has accepted.
    pub server: String,
    /// Whether the client is on this host.
    pub client_is_here: bool,
    /// The peer's name.
    pub peer: String,
    /// `asked`, `open`, or `closing`.
    pub state: String,
    /// The CPU of this host's end, as far as it is known: the rail was chosen for it.
    pub cpu: Option<u32>,
    /// The link of its small pieces, if there is one at the moment, then the others of its large transfers.
    pub paths: Vec<Path>,
    /// By this host.
    pub bytes_sent: u64,
    /// By this host.
    pub bytes_received: u64,
    /// Since it was asked for.
    pub age_s: u64,
}

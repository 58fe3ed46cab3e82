//! What the control plane tells the bridge.

use std::net::SocketAddr;

use super::end::End;
use super::message::{Message, Rail, Token};
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// A control connection that is up. Its number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A peer is there.
    PeerUp(Box<PeerUp>),
    /// It is gone, and its token with it.
    PeerDown {
        /// Who.
        peer: PeerId,
        /// Why.
        why: End,
    },
    /// It said something.
    Message(PeerId, Message),
}

/// A peer that is there.
#[derive(Clone, Debug)]
pub struct PeerUp {
    /// The number of this connection to it.
    pub peer: PeerId,
    /// Its name.
    pub name: BridgeName,
    /// A number that is another after each of its starts.
    pub instance: u64,
    /// What it speaks for.
    pub speaks_for: Vec<Prefix>,
    /// What it offers.
    pub rails: Vec<Rail>,
    /// What we have to show it when we connect a rail.
    pub token_for_us: Token,
    /// Where the way to it can be measured over TCP; 0 for nowhere.
    pub measure_port: u16,
    /// Its end of the control connection.
    pub address: SocketAddr,
}

//! What the engine keeps to measure whether TCP is faster ([`super::comparing`] has the rules).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc;

use super::super::ledger::{Ledger, Round};
use super::super::probe::{Guests, LaneWay, Serving};
use crate::control::PeerId;
use crate::log;

/// The server's address of a measuring connection.
pub(super) const MEASURED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a round has brought, with the end of the lane that it took.
type Measured = (PeerId, LaneWay, std::io::Result<Round>);

/// What the engine keeps for measuring.
pub(super) struct Comparer {
    pub(super) guests: Guests,
    /// A round is under way.
    pub(super) runs: bool,
    /// Whether programs that compute want all CPUs, and did when the rounds that count began; and when it last was not
    /// the same.
    pub(super) crowded: bool,
    pub(super) was_crowded: bool,
    pub(super) anew_ns: u64,
    pub(super) measured: (mpsc::Sender<Measured>, mpsc::Receiver<Measured>),
    /// Lanes that are served for peers, and those that come back.
    pub(super) served: usize,
    pub(super) served_back: (mpsc::Sender<LaneWay>, mpsc::Receiver<LaneWay>),
}

/// What is kept of each peer.
pub(super) struct Compared {
    pub(super) ledger: Ledger,
    /// The peer's TCP end, if it has one.
    pub(super) address: Option<SocketAddr>,
    /// A client has asked for a connection since the last round.
    pub(super) wanted: bool,
    pub(super) due_ns: u64,
    /// Why there is no verdict, the last time.
    pub(super) trouble: Option<String>,
}

impl Comparer {
    /// Opens the TCP end for peers, unless nothing is ever measured. Its port, or 0.
    pub(super) fn new(compares: bool) -> (Comparer, u16) {
        let guests = Guests::default();
        let served = if compares { Some(Serving::start(0, guests.clone())) } else { None };
        let port = match served {
            Some(Ok(serving)) => serving.port,
            Some(Err(error)) => {
                log::line(format_args!("peers cannot measure the way here: {error}"));
                0
            }
            None => 0,
        };
        let comparer = Comparer {
            guests,
            runs: false,
            crowded: false,
            was_crowded: false,
            anew_ns: 0,
            measured: mpsc::channel(),
            served: 0,
            served_back: mpsc::channel(),
        };
        (comparer, port)
    }
}

impl Compared {
    /// Of a peer that has just come.
    pub(super) fn new(address: IpAddr, port: u16) -> Compared {
        let address = (port != 0).then(|| SocketAddr::new(address.to_canonical(), port));
        Compared { ledger: Ledger::default(), address, wanted: false, due_ns: 0, trouble: None }
    }
}

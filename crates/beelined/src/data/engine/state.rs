//! What the engine keeps of rails, peers and connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use beeline_fabric::{Rail, RegionId, Remote};
use beeline_topo::PeerRail;
use beeline_wire::ConnName;

use super::super::connection::Connection;
use super::super::health::{Asked, Healths};
use super::super::link_rates::LinkRates;
use super::super::link_words::LinkWords;
use super::super::losses::Losses;
use super::super::quota::Quota;
use super::super::sender::{How, LinkId};
use crate::control::PeerId;
use crate::control::message::Token;
use crate::name::BridgeName;

/// The door.
pub(super) struct Door {
    /// `None` where another has the name, which was given up to have the door anew.
    pub(super) socket: Option<OwnedFd>,
    /// There were no descriptors for clients: it is not watched until the next care.
    pub(super) rests: bool,
    /// Nobody is let in.
    pub(super) is_shut: bool,
}

impl Door {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), rests: false, is_shut: false }
    }

    /// Where clients come in, unless nobody is let in.
    pub(super) fn open(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| !self.is_shut).map(AsFd::as_fd)
    }
}

/// One of our rails, open.
pub(super) struct OpenRail {
    /// Our number for it.
    pub(super) id: u32,
    pub(super) rail: Rail,
    /// As the choice of rails sees it.
    pub(super) described: beeline_topo::Rail,
    /// What is wrong with it.
    pub(super) trouble: Option<String>,
    pub(super) healths: Healths,
    /// Lines about failures, of which a rail that fails and answers in turn would cause any number.
    pub(super) failures: crate::log::Seldom,
    /// It fails for good: nobody uses it any more.
    pub(super) retired: bool,
    /// Its descriptors tell all its news, and looking at it is a system call: it is not polled in vain.
    pub(super) told: bool,
    /// The descriptor of its completions has told news, and that of its connections.
    pub(super) ready: bool,
    pub(super) events_ready: bool,
    /// Its provider emulates reads. Libfabric before 1.18 then frees a read twice when its endpoint is closed while the
    /// bytes come in (ofiwg/libfabric#8660), and gives what one endpoint reads to another.
    pub(super) reads_are_emulated: bool,
    /// It has refused to register a ring, and is asked again then.
    pub(super) register_again_ns: u64,
}

impl OpenRail {
    /// It has answered what it was asked.
    pub(super) fn answered(&mut self, asked: Asked) {
        if let Some(health) = self.healths.get_mut(asked as usize) {
            health.answered();
        }
    }
}

/// A rail that a peer offers.
pub(super) struct OfferedRail {
    pub(super) id: u32,
    pub(super) port: u16,
    pub(super) described: PeerRail,
}

/// A peer whose control connection is up.
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) name: BridgeName,
    pub(super) rails: Vec<OfferedRail>,
    /// What it wants to see when we connect a rail.
    pub(super) token_for_us: Token,
    /// Links by index, dead ones left out.
    pub(super) links: Vec<usize>,
    pub(super) rates: LinkRates,
    pub(super) quota: Quota,
    /// Links came or went since its connections were placed.
    pub(super) to_place: bool,
    /// Since when there has been no link; 0 while there is one.
    pub(super) lonely_ns: u64,
    /// Pairs of rails that could not be connected: when to try again.
    pub(super) retry: HashMap<(usize, u32), (u64, u32)>,
    /// Pairs of rails of which it is asked first whether the other end answers at all.
    pub(super) asked: HashMap<(usize, u32), super::reach::Question>,
    /// Links that were given up before both ends knew of them, the newest last.
    pub(super) stillborn: VecDeque<LinkId>,
    /// What is said of links that were lost, and known there.
    pub(super) words: LinkWords,
    /// Whether TCP to it is faster.
    pub(super) compared: super::compared::Compared,
    /// It is about to stop.
    pub(super) leaves: bool,
    /// Connections refused by it, and by us.
    pub(super) refused: u64,
}

/// A place in a peer's ring that we may write.
pub(super) struct Grant {
    pub(super) link: LinkId,
    pub(super) remote: Remote,
    pub(super) base: u64,
    pub(super) ring: u64,
}

/// A ring that a rail knows.
#[derive(Clone, Copy)]
pub(super) struct KnownRing {
    pub(super) rail: usize,
    /// The one that our end of the lane writes; else the one it reads.
    pub(super) written: bool,
    /// The peer's network card may read it.
    pub(super) offered: bool,
    pub(super) region: RegionId,
}

/// What a connection has sent in large pieces.
#[derive(Default)]
pub(super) struct Large {
    /// Bytes in messages, since when.
    pub(super) since_ns: u64,
    pub(super) bytes: u64,
    /// When the last one was written or offered.
    pub(super) moved_ns: u64,
}

/// The place of no peer.
pub(super) const NO_PEER: usize = usize::MAX;

/// A connection and what it has to do with links and rails.
pub(super) struct Entry {
    pub(super) connection: Connection,
    /// Index of the peer.
    pub(super) peer: usize,
    pub(super) name: ConnName,
    /// Where the app runs, as far as it is known.
    pub(super) cpu: Option<u32>,
    /// The link that its small messages take.
    pub(super) home: Option<usize>,
    /// The rail of that link: this connection is a part of what it has to carry.
    pub(super) loads: Option<usize>,
    /// The links that its large transfers take.
    pub(super) stripe: Vec<usize>,
    /// When the peer last said that it has more of what was sent, or the first byte that it does not have was sent.
    pub(super) advanced_ns: u64,
    pub(super) grants: Vec<Grant>,
    pub(super) granted: Vec<LinkId>,
    /// Its rings as rails know them.
    pub(super) rings: Vec<KnownRing>,
    pub(super) large: Large,
    /// Regions that are being closed.
    pub(super) closing: usize,
    /// Links that were lost, and whether the peer has been told what we have.
    pub(super) losses: Losses,
    /// The peer's answer, or our question, may have been lost with a link.
    pub(super) ask_again: bool,
    pub(super) answer_again: bool,
    /// It measures the way, and is nobody's.
    pub(super) probe: bool,
    /// The peer has opened it.
    pub(super) accepted: bool,
    /// Operations in flight from and to the rings, and reads that wait for their turn.
    pub(super) in_flight: u32,
    /// The link at which it is listed among those that could not send what they have.
    pub(super) waits: Option<usize>,
    pub(super) hot: bool,
    /// Listed among those that owe an acknowledgement.
    pub(super) owes: bool,
    pub(super) idle: u32,
    pub(super) since_ns: u64,
    /// When the client gives up waiting, or the server has had its time to take the hello, while that is waited for.
    pub(super) deadline_ns: u64,
    /// When hello was said to a server that has not taken it; 0 when it has, or was late.
    pub(super) said_ns: u64,
    /// The peer that has asked for it waits to hear that it stands.
    pub(super) awaited: bool,
}

impl Entry {
    /// Notes that bytes were sent.
    pub(super) fn sending(&mut self, offset: u64, bytes: u64, (link, how): (LinkId, How), now_ns: u64) {
        if self.connection.under_way() == 0 {
            self.advanced_ns = now_ns;
        }
        self.connection.sending(offset, bytes, link, how);
    }
}

/// Bytes that are being read from a peer's ring.
pub(super) struct Pull {
    pub(super) connection: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    /// Reads that are not done.
    pub(super) left: u8,
    /// The link that they go over. What is done when that is lost was never told, and comes again.
    pub(super) link: LinkId,
    /// One of them was not done at all.
    pub(super) failed: bool,
}

/// What is known of the listeners of this host, and who waits for one.
#[derive(Default)]
pub(super) struct Hellos {
    /// Listeners that take hellos, by their cookies.
    pub(super) takers: HashSet<u64>,
    /// Connections of which a peer waits to hear, and for a moment some of which it has heard.
    pub(super) awaited: Vec<u64>,
}

/// A drain that has begun.
pub(super) struct Drain {
    pub(super) since_ns: u64,
    pub(super) told_ns: u64,
    /// The last look at how far it is.
    pub(super) looked_ns: u64,
    /// Since when there has been no connection; 0 while there is one.
    pub(super) empty_ns: u64,
}

/// What the kernel had to tell.
pub(super) enum Heard {
    Nothing,
    News,
    /// The engine is to stop.
    Stop,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub opened: u64,
    pub accepted: u64,
    pub closed: u64,
    pub reset: u64,
    pub breaches: u64,
    pub links_made: u64,
    pub links_lost: u64,
    pub pushes: u64,
    pub pulls: u64,
    pub inlined: u64,
    pub spins: u64,
    /// How often programs that compute have come to want all CPUs.
    pub crowds: u64,
    pub sleeps: u64,
}

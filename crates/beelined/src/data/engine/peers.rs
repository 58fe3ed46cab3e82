//! Peers: there, gone, and what they say on the control connection. [`super::links`] has the links to them, and the
//! rules.

use std::collections::{HashMap, VecDeque};

use beeline_status::number::plural;

use super::super::link_rates::LinkRates;
use super::super::link_words::LinkWords;
use super::super::quota::Quota;
use super::compared::Compared;
use super::{Engine, NO_PEER, OfferedRail, Peer};
use crate::control::message::{self, Leaving, LinkDown, Message};
use crate::control::{PeerId, PeerUp};
use crate::log;

impl Engine {
    pub(super) fn peer_up(&mut self, up: PeerUp) {
        let rails = plural(up.rails.len() as u64, "rail");
        log::line(format_args!("peer {} is up at {}, with {rails}", up.name, up.address));
        let peer = Peer {
            id: up.peer,
            name: up.name,
            rails: Vec::new(),
            token_for_us: up.token_for_us,
            links: Vec::new(),
            rates: LinkRates::default(),
            quota: Quota::default(),
            to_place: false,
            lonely_ns: self.now_ns.max(1),
            retry: HashMap::new(),
            asked: HashMap::new(),
            stillborn: VecDeque::new(),
            words: LinkWords::default(),
            refused: 0,
            compared: Compared::new(up.address.ip(), up.measure_port),
            leaves: false,
        };
        let index = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        if index == self.peers.len() {
            self.peers.push(None);
        }
        if let Some(place) = self.peers.get_mut(index) {
            *place = Some(peer);
        }
        self.expect_measuring(up.peer, up.address.ip());
        if self.leaving.is_some() {
            self.control.send(up.peer, Message::Leaving(Leaving {}));
        }
        self.offered(index, up.rails);
    }

    pub(super) fn offered(&mut self, index: usize, rails: Vec<message::Rail>) {
        if let Some(Some(peer)) = self.peers.get_mut(index) {
            peer.rails = rails
                .into_iter()
                .map(|rail| OfferedRail { id: rail.id, port: rail.port, described: rail.description })
                .collect();
            let is_offered = |id: u32| peer.rails.iter().any(|rail| rail.id == id);
            peer.retry.retain(|(_, id), _| is_offered(*id));
            peer.asked.retain(|(_, id), _| is_offered(*id));
        }
        self.connect_links(index);
    }

    pub(super) fn peer_down(&mut self, id: PeerId, why: &str) {
        self.expect_no_measuring(id);
        let Some(index) = self.peer_index(id) else { return };
        if let Some(Some(peer)) = self.peers.get(index) {
            log::line(format_args!("peer {} is gone: {why}", peer.name));
        }
        self.reset_all_of(index);
        for place in 0..self.links.len() {
            if self.links.get(place).and_then(Option::as_ref).is_some_and(|link| link.peer == index) {
                let was_up = self.close_link(place).is_some_and(|link| link.up);
                self.counts.links_lost = self.counts.links_lost.saturating_add(was_up.into());
            }
        }
        self.forget_connections_of(index);
        if let Some(place) = self.peers.get_mut(index) {
            *place = None;
        }
    }

    pub(super) fn peer_index(&self, id: PeerId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.id == id))
    }

    pub(super) fn peer_said(&mut self, id: PeerId, message: Message) {
        let Some(index) = self.peer_index(id) else { return };
        match message {
            Message::Rails(rails) => self.offered(index, rails.rails),
            Message::Leaving(Leaving {}) => {
                if let Some(Some(peer)) = self.peers.get_mut(index) {
                    log::line(format_args!("peer {} is about to stop, and takes no new connections", peer.name));
                    peer.leaves = true;
                }
            }
            Message::LinkDown(LinkDown { link, why }) => {
                let known = self
                    .links
                    .iter()
                    .position(|other| other.as_ref().is_some_and(|other| other.id == link && other.peer == index));
                if let Some(place) = known {
                    self.link_lost(place, &format!("the peer has closed it: {why}"));
                }
                if let Some(Some(peer)) = self.peers.get_mut(index) {
                    peer.words.heard(link);
                }
                self.answer_for_stillborn(index, link);
            }
        }
    }

    pub(super) fn connections_of(&self, peer: usize) -> Vec<u64> {
        self.connections.iter().filter(|(_, entry)| entry.peer == peer).map(|(number, _)| number).collect()
    }

    pub(super) fn reset_all_of(&mut self, peer: usize) {
        for number in self.connections_of(peer) {
            self.reset(number);
        }
    }

    /// Drops all that is left of a peer's connections: nobody is there to hear their ends.
    pub(super) fn forget_connections_of(&mut self, index: usize) {
        for number in self.connections_of(index) {
            self.settle(number, None);
            self.leave_room(index);
            if let Some(entry) = self.connections.get_mut(number) {
                entry.connection.unheard();
                // The peer may come again as another instance, with the same numbers.
                let theirs = entry.connection.theirs;
                self.theirs.remove(&(index, theirs));
                // It may stay until its regions are closed; another peer may have the place by then.
                entry.peer = NO_PEER;
                (entry.ask_again, entry.answer_again) = (false, false);
                entry.losses.clear();
            }
            self.heat(number);
            self.finish(number);
        }
        self.theirs.retain(|(peer, _), _| *peer != index);
    }
}

//! The link of a connection, and what the rails have to carry.
//!
//! 1. A rail's load is the connections whose home it is, and the bytes in flight on its links. [`Engine::settle`] is
//!    the one place where a home changes, so that the count is right.
//! 2. A connection that is placed is not a load to itself. So placing it again changes nothing unless something else
//!    has changed, and connections of equal rails spread evenly when a rail comes or goes.
//! 3. When many are placed at once the bytes in flight are not counted: all would go where there are the least.
//! 4. The other end's word ([`Engine::follow`]) changes which of its rails is the home's end, never our own rail.
//! 5. Where a server runs is not known when its connection is placed: it has not accepted yet. Of the links that are as
//!    good, the connection takes that which ends at the client's rail. So both directions go the same way, and the
//!    client's choice by its CPU is one for both.
//! 6. When links come and go, all connections of their peer are placed again, once a round, before any of them is
//!    looked at; until then those of a link that is lost have no home. So what comes and goes at once costs others
//!    little time, and what belongs to a peer that is gone is not placed at all.

use beeline_topo::{Link, PeerRail, Question, Rail};

use super::{Engine, Entry};

/// Whether a connection is placed for the first time, or together with all others of its peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Opening,
    LinksChanged,
}

/// The ways to a peer.
struct Ways {
    /// Our rails with what is on them.
    rails: Vec<Rail>,
    /// The peer's, and its numbers for them.
    theirs: Vec<PeerRail>,
    their_ids: Vec<u32>,
    /// Links that are up, and their indices.
    links: Vec<Link>,
    indices: Vec<usize>,
}

impl Ways {
    /// The place of one of the peer's rails.
    fn place(&self, id: u32) -> Option<usize> {
        self.their_ids.iter().position(|other| *other == id)
    }

    /// The index of a link.
    fn index_of(&self, local: usize, peer: Option<usize>) -> Option<usize> {
        let place = self.links.iter().position(|link| link.local == local && Some(link.peer) == peer)?;
        self.indices.get(place).copied()
    }

    /// A connection comes to one of our rails, or leaves it.
    fn load(&mut self, rail: Option<usize>, comes: bool) {
        if let Some(Rail { load, .. }) = rail.and_then(|index| self.rails.get_mut(index)) {
            let count = load.connections;
            load.connections = if comes { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
    }
}

impl Engine {
    /// Chooses the link of a connection, and those of its stripe. `their_rail` is the rail that is best for the other
    /// end.
    pub(super) fn choose_home(&mut self, number: u64, their_rail: Option<u32>) {
        let peer = self.connections.get(number).map(|entry| entry.peer);
        if let Some(mut ways) = peer.and_then(|peer| self.ways_to(peer, Moment::Opening)) {
            self.choose_among(&mut ways, number, their_rail);
        }
    }

    fn ways_to(&self, peer: usize, moment: Moment) -> Option<Ways> {
        let peer = self.peers.get(peer)?.as_ref()?;
        let mut ways = Ways {
            rails: self.rails_at(moment),
            theirs: peer.rails.iter().map(|rail| rail.described.clone()).collect(),
            their_ids: peer.rails.iter().map(|rail| rail.id).collect(),
            links: Vec::new(),
            indices: Vec::new(),
        };
        for &index in &peer.links {
            let Some(Some(link)) = self.links.get(index).filter(|link| link.as_ref().is_some_and(|link| link.up))
            else {
                continue;
            };
            if let Some(place) = ways.place(link.their_rail) {
                ways.links.push(Link { local: link.rail, peer: place });
                ways.indices.push(index);
            }
        }
        Some(ways)
    }

    /// See [`Engine::choose_home`].
    fn choose_among(&mut self, ways: &mut Ways, number: u64, their_rail: Option<u32>) {
        let Some(entry) = self.connections.get(number) else { return };
        ways.load(entry.loads, false);
        let Ways { rails, theirs, links, .. } = &*ways;
        let choice = Question { host: &self.host, cpu: entry.cpu, rails, peer: theirs, links }.choose();
        let index_of = |local: usize, peer: Option<usize>| ways.index_of(local, peer);
        let stripe: Vec<usize> = choice.striped().filter_map(|link| index_of(link.local, link.peer)).collect();
        let wanted = their_rail.and_then(|id| ways.place(id));
        let chosen = choice.chosen().and_then(|first| {
            // Rule 5.
            let opposite = choice.as_good().find(|link| wanted.is_some() && link.peer == wanted);
            let first = opposite.filter(|_| entry.cpu.is_none()).unwrap_or(first);
            let preferred = wanted.and_then(|wanted| index_of(first.local, Some(wanted)));
            preferred.or_else(|| index_of(first.local, first.peer))
        });
        if let Some(entry) = self.connections.get_mut(number) {
            entry.stripe = stripe;
        }
        self.settle(number, chosen);
        ways.load(self.connections.get(number).and_then(|entry| entry.loads), true);
    }

    /// The other end has said which of its rails is best for it: the home leads there, if it can.
    pub(super) fn follow(&mut self, number: u64, their_rail: u32) {
        let Some(entry) = self.connections.get(number) else { return };
        let Some(home) = entry.home.and_then(|index| self.links.get(index)?.as_ref()) else { return };
        let leads = |link: &super::Link| {
            link.up && link.peer == home.peer && link.rail == home.rail && link.their_rail == their_rail
        };
        if let Some(index) = self.links.iter().position(|link| link.as_ref().is_some_and(leads)) {
            self.settle(number, Some(index));
        }
    }

    /// Gives a connection its home, or none.
    pub(super) fn settle(&mut self, number: u64, home: Option<usize>) {
        let rail = home.and_then(|index| self.links.get(index)?.as_ref()).map(|link| link.rail);
        let Some(entry) = self.connections.get_mut(number) else { return };
        entry.home = home;
        let before = std::mem::replace(&mut entry.loads, rail);
        if let Some(rail) = before.and_then(|index| self.rails.get_mut(index)) {
            rail.described.load.connections = rail.described.load.connections.saturating_sub(1);
        }
        if let Some(rail) = rail.and_then(|index| self.rails.get_mut(index)) {
            rail.described.load.connections = rail.described.load.connections.saturating_add(1);
        }
    }

    /// Our rails with what is on them, for everybody.
    pub(super) fn loaded_rails(&self) -> Vec<Rail> {
        self.rails_at(Moment::Opening)
    }

    fn rails_at(&self, moment: Moment) -> Vec<Rail> {
        let mut rails: Vec<Rail> = self.rails.iter().map(|rail| rail.described.clone()).collect();
        for link in self.links.iter().flatten().filter(|_| moment == Moment::Opening) {
            let peer = self.peers.get(link.peer).and_then(Option::as_ref);
            if let (Some(rail), Some(peer)) = (rails.get_mut(link.rail), peer) {
                let bytes = &mut rail.load.in_flight_bytes;
                *bytes = bytes.saturating_add(peer.rates.in_flight(link.id));
            }
        }
        rails
    }

    /// Places all connections again of peers to which links came or went (rule 6).
    pub(super) fn place_again(&mut self) {
        for index in 0..self.peers.len() {
            let Some(Some(peer)) = self.peers.get_mut(index) else { continue };
            if !std::mem::take(&mut peer.to_place) {
                continue;
            }
            let Some(mut ways) = self.ways_to(index, Moment::LinksChanged) else { continue };
            for number in self.connections_of(index) {
                self.choose_among(&mut ways, number, None);
                self.heat(number);
            }
        }
    }

    /// Whether there is something for [`Engine::place_again`] to do.
    pub(super) fn has_to_place(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.to_place)
    }

    /// Our rail that is nearest to a connection's app, for the other bridge.
    pub(super) fn home_rail(&self, entry: &Entry) -> u32 {
        let link = entry.home.and_then(|index| self.links.get(index)?.as_ref());
        link.and_then(|link| self.rails.get(link.rail)).map_or(0, |rail| rail.id)
    }
}

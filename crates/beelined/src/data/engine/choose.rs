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

use beeline_topo::{Link, Question, Rail};

use super::{Engine, Entry};

/// Whether a connection is placed for the first time, or together with all others of its peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Opening,
    LinksChanged,
}

impl Engine {
    /// Chooses the link of a connection, and those of its stripe. `their_rail` is the rail that is best for the other
    /// end.
    pub(super) fn choose_home(&mut self, number: u64, their_rail: Option<u32>, moment: Moment) {
        let Some(entry) = self.connections.get(number) else { return };
        let Some(Some(peer)) = self.peers.get(entry.peer) else { return };
        let rails = self.rails_but(entry.loads, moment);
        let theirs: Vec<_> = peer.rails.iter().map(|rail| rail.described.clone()).collect();
        let alive = |index: &usize| self.links.get(*index).and_then(Option::as_ref).filter(|link| link.up);
        let place = |id: u32| peer.rails.iter().position(|rail| rail.id == id);
        let pairs: Vec<(usize, Link)> = peer
            .links
            .iter()
            .filter_map(|index| {
                let link = alive(index)?;
                Some((*index, Link { local: link.rail, peer: place(link.their_rail)? }))
            })
            .collect();
        let links: Vec<Link> = pairs.iter().map(|(_, link)| *link).collect();
        let question = Question { host: &self.host, cpu: entry.cpu, rails: &rails, peer: &theirs, links: &links };
        let choice = question.choose();
        let index_of = |local: usize, peer: Option<usize>| {
            pairs.iter().find(|(_, link)| link.local == local && Some(link.peer) == peer).map(|(index, _)| *index)
        };
        let stripe: Vec<usize> = choice.striped().filter_map(|link| index_of(link.local, link.peer)).collect();
        let wanted = their_rail.and_then(place);
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
        self.rails_but(None, Moment::Opening)
    }

    /// Our rails with what is on them, for a connection that loads one of them itself.
    fn rails_but(&self, own: Option<usize>, moment: Moment) -> Vec<Rail> {
        let mut rails: Vec<Rail> = self.rails.iter().map(|rail| rail.described.clone()).collect();
        if let Some(rail) = own.and_then(|index| rails.get_mut(index)) {
            rail.load.connections = rail.load.connections.saturating_sub(1);
        }
        for link in self.links.iter().flatten().filter(|_| moment == Moment::Opening) {
            let peer = self.peers.get(link.peer).and_then(Option::as_ref);
            if let (Some(rail), Some(peer)) = (rails.get_mut(link.rail), peer) {
                let bytes = &mut rail.load.in_flight_bytes;
                *bytes = bytes.saturating_add(peer.rates.in_flight(link.id));
            }
        }
        rails
    }

    /// Places all connections of a peer again: a link came or went.
    pub(super) fn choose_all_of(&mut self, peer: usize) {
        for number in self.connections_of(peer) {
            self.choose_home(number, None, Moment::LinksChanged);
            self.heat(number);
        }
    }

    /// Our rail that is nearest to a connection's app, for the other bridge.
    pub(super) fn home_rail(&self, entry: &Entry) -> u32 {
        let link = entry.home.and_then(|index| self.links.get(index)?.as_ref());
        link.and_then(|link| self.rails.get(link.rail)).map_or(0, |rail| rail.id)
    }
}

//! The links to peers: made, looked after, lost and made again.
//!
//! 1. The bridge with the smaller name connects the links of a pair; the other one accepts those that show its token.
//!    Where the end that connected has to speak first (iWARP), it says a [`Record::Ping`] at once, and the other end's
//!    link is not up before something came over it.
//! 2. A link is lost when its endpoint fails, when it stays silent though asked, when the peer says so on the control
//!    connection, or when the peer's [`Record::Resync`] shows that it has closed its end. Then our endpoint is closed
//!    first, so that nothing of it can land any more; then each connection of the peer owes a [`Record::Resync`] on
//!    whatever link there is next. A link may have been up at the peer alone, and have carried its bytes to nobody:
//!    when the peer says that it has lost one which never came to be here, it is owed the same. So it is on connections
//!    that are made before it knows of the loss ([`LinkWords`](super::super::link_words)).
//! 3. A pair of rails that could not be connected is tried again, ever less often. Where an attempt would keep the
//!    bridge waiting for a host that is silent, the host is asked first whether it answers ([`super::reach`]).
//! 4. When a peer has had no link for [`LONELY_NS`], or its control connection ends, its connections are reset.

use std::fmt::Display;
use std::net::SocketAddr;

use beeline_fabric::{Down, EndpointId, Event, Request};

use super::super::connection::Stage;
use super::super::link::Link;
use super::super::record::Record;
use super::super::sender::LinkId;
use super::reach::{Answer, Question};
use super::{Engine, monotonic_ns};
use crate::control::message::{LinkDown, Message, Token};
use crate::log;

/// A link that says nothing for so long is asked, and given up when its patience is over ([`super::Parts::patience`]).
const QUIET_NS: u64 = 500_000_000;
/// How long a peer may be without a link.
const LONELY_NS: u64 = 10_000_000_000;
/// Links to a peer that never came to be here and may have been up there.
const STILLBORN_MAX: usize = 64;
/// Between two attempts to connect a pair of rails, at first and at most.
const RETRY_NS: u64 = 200_000_000;
const RETRY_DOUBLINGS_MAX: u32 = 5;
/// What an attempt may take of the time: some providers wait in it for a host that does not answer, and everything else
/// waits with them.
const RETRY_PART: u64 = 10;

/// Links of one peer to one of our rails: each takes buffers and a part of the rail's queue.
const LINKS_MAX: usize = 16;

/// What a bridge shows when it connects a link: token, link id, its rail, the other's.
const SHOWN_BYTES: usize = Token::BYTES + 16;

fn show(token: &Token, link: LinkId, ours: u32, theirs: u32) -> [u8; SHOWN_BYTES] {
    let mut shown = [0; SHOWN_BYTES];
    let parts = [&token.as_bytes()[..], &link.to_le_bytes(), &ours.to_le_bytes(), &theirs.to_le_bytes()];
    for (place, byte) in shown.iter_mut().zip(parts.iter().flat_map(|part| part.iter())) {
        *place = *byte;
    }
    shown
}

fn read_shown(shown: &[u8]) -> Option<(&[u8], LinkId, u32, u32)> {
    let (token, rest) = shown.split_at_checked(Token::BYTES)?;
    let (link, rest) = rest.split_first_chunk::<8>()?;
    let (theirs, rest) = rest.split_first_chunk::<4>()?;
    let ours: &[u8; 4] = rest.try_into().ok()?;
    Some((token, u64::from_le_bytes(*link), u32::from_le_bytes(*theirs), u32::from_le_bytes(*ours)))
}

impl Engine {
    /// Connects what is not connected, if that is our part.
    pub(super) fn connect_links(&mut self, index: usize) {
        let Some(Some(peer)) = self.peers.get(index) else { return };
        if self.name > peer.name {
            return;
        }
        let ours: Vec<_> = self.rails.iter().map(|rail| rail.described.clone()).collect();
        let theirs: Vec<_> = peer.rails.iter().map(|rail| rail.described.clone()).collect();
        let mut wanted = Vec::new();
        // Those to rails that are not offered any more count, too.
        let of_peer =
            |local: usize| self.links.iter().flatten().filter(move |link| link.peer == index && link.rail == local);
        let mut counts: Vec<usize> = (0..self.rails.len()).map(|local| of_peer(local).count()).collect();
        for pair in beeline_topo::reach::links(&ours, &theirs, &self.segments) {
            let Some(count) = counts.get_mut(pair.local).filter(|count| **count < LINKS_MAX) else { continue };
            let Some(offered) = peer.rails.get(pair.peer) else { continue };
            if self.rails.get(pair.local).is_none_or(|rail| rail.retired) {
                continue;
            }
            let is_there = of_peer(pair.local).any(|link| link.their_rail == offered.id);
            let waits = peer.retry.get(&(pair.local, offered.id)).is_some_and(|(at, _)| *at > self.now_ns);
            if !is_there && !waits {
                *count = count.saturating_add(1);
                let address = SocketAddr::new(offered.described.address.addr(), offered.port);
                wanted.push((pair.local, offered.id, address, peer.token_for_us));
            }
        }
        for (local, their_rail, address, token) in wanted {
            match self.answers(index, local, their_rail, address) {
                Answer::There => {}
                Answer::NotYet => continue,
                Answer::Nobody => {
                    self.not_connected(index, (local, their_rail), address, "nobody answers there", 0);
                    continue;
                }
            }
            self.next_link = self.next_link.wrapping_add(1);
            let link = self.next_link;
            let Some(rail) = self.rails.get_mut(local) else { continue };
            match rail.rail.connect(address, &show(&token, link, rail.id, their_rail)) {
                Ok(endpoint) => {
                    self.add_link(Link::new(link, index, local, their_rail, endpoint, self.now_ns));
                }
                Err(error) => {
                    let begun_ns = std::mem::replace(&mut self.now_ns, monotonic_ns());
                    let took_ns = self.now_ns.saturating_sub(begun_ns);
                    self.not_connected(index, (local, their_rail), address, error, took_ns);
                }
            }
        }
    }

    /// Whether the other end of a pair of rails answers, where an attempt to connect it must not be made otherwise.
    fn answers(&mut self, index: usize, local: usize, their_rail: u32, address: SocketAddr) -> Answer {
        let now_ns = self.now_ns;
        let Some(port) = self.rails.get(local).map(|rail| rail.rail.port()) else { return Answer::Nobody };
        let Some(Some(peer)) = self.peers.get_mut(index) else { return Answer::Nobody };
        if !port.connect_waits() {
            return Answer::There;
        }
        let ask = || Question::ask(port.address, address, port.connects_over_tcp(), now_ns);
        let answer = peer.asked.entry((local, their_rail)).or_insert_with(ask).answer(now_ns);
        if answer != Answer::NotYet {
            peer.asked.remove(&(local, their_rail));
        }
        answer
    }

    /// Notes that a pair of rails could not be connected: the first time, and then ever less often, in the log, too.
    fn not_connected(&mut self, peer: usize, rails: (usize, u32), to: SocketAddr, why: impl Display, took_ns: u64) {
        let failures = self.retry_later(peer, rails, took_ns);
        if failures.is_power_of_two() {
            log::line(format_args!("cannot connect to {to}: {why} (attempt {failures})"));
        }
    }

    /// The next attempt to connect a pair of rails comes after a while, the longer the more have failed and the longer
    /// the last one took. Returns how many have failed.
    fn retry_later(&mut self, peer: usize, rails: (usize, u32), took_ns: u64) -> u32 {
        let now_ns = self.now_ns;
        let Some(Some(peer)) = self.peers.get_mut(peer) else { return 0 };
        let (at, failures) = peer.retry.entry(rails).or_insert((0, 0));
        *at = now_ns.saturating_add(retry_wait_ns(*failures, took_ns));
        *failures = failures.saturating_add(1);
        *failures
    }

    fn add_link(&mut self, link: Link) -> usize {
        let index = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        self.by_endpoint.insert((link.rail, link.endpoint), index);
        if index == self.links.len() {
            self.links.push(None);
        }
        if let Some(place) = self.links.get_mut(index) {
            *place = Some(link);
        }
        index
    }

    pub(super) fn rail_event(&mut self, rail: usize, event: Event) {
        match event {
            Event::Request(request) => self.requested(rail, request),
            Event::Connected { endpoint, .. } => self.connected(rail, endpoint),
            Event::Refused { endpoint, failure, .. } => {
                if let Some(index) = self.by_endpoint.get(&(rail, endpoint)).copied() {
                    self.link_lost(index, &format!("the peer's rail refused it: {failure}"));
                }
            }
            Event::Down { endpoint, cause } => {
                if let Some(index) = self.by_endpoint.get(&(rail, endpoint)).copied() {
                    let why = match cause {
                        Down::ByPeer => "the peer closed it".to_owned(),
                        Down::Failed(failure) => failure.to_string(),
                    };
                    self.link_lost(index, &why);
                }
            }
            Event::RegionClosed { region } => self.region_closed(rail, region),
        }
    }

    /// Somebody wants to connect a link to one of our rails.
    fn requested(&mut self, rail: usize, request: Request) {
        let shown = read_shown(&request.data);
        let known = shown.and_then(|(token, link, theirs, ours)| {
            let id = self.control.peer_with_token(token)?;
            Some((self.peer_index(id)?, link, theirs, ours))
        });
        let is_ours = |ours: u32| self.rails.get(rail).is_some_and(|rail| rail.id == ours);
        let offers = |peer: usize, id: u32| {
            let peer = self.peers.get(peer).and_then(Option::as_ref);
            peer.is_some_and(|peer| peer.rails.iter().any(|rail| rail.id == id))
        };
        let of = |peer: usize| self.links.iter().flatten().filter(move |other| other.peer == peer);
        let twice = |peer: usize, link: LinkId| of(peer).any(|other| other.id == link);
        let crowded = |peer: usize| of(peer).filter(|other| other.rail == rail).count() >= LINKS_MAX;
        let connects =
            |peer: usize| self.peers.get(peer).and_then(Option::as_ref).is_some_and(|peer| peer.name < self.name);
        let accepted = known.filter(|(peer, link, theirs, ours)| {
            is_ours(*ours) && offers(*peer, *theirs) && connects(*peer) && !twice(*peer, *link) && !crowded(*peer)
        });
        let Some(open) = self.rails.get_mut(rail) else { return };
        let Some((peer, link, theirs, _)) = accepted else {
            log::about_strangers("a stranger tried to connect a rail");
            let _ = open.rail.reject(request, b"who are you");
            return;
        };
        match open.rail.accept(request, &[]) {
            Ok(endpoint) => {
                let mut accepted = Link::new(link, peer, rail, theirs, endpoint, self.now_ns);
                accepted.listens_first = open.rail.port().connector_speaks_first();
                self.add_link(accepted);
            }
            Err(error) => open.failures.line(format_args!("cannot accept a link: {error}")),
        }
    }

    fn connected(&mut self, rail: usize, endpoint: EndpointId) {
        let Some(index) = self.by_endpoint.get(&(rail, endpoint)).copied() else { return };
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.connected = true;
        link.heard_ns = self.now_ns;
        if !link.is_ready() {
            return;
        }
        let speaks_first = !link.listens_first && {
            let open = self.rails.get(rail);
            open.is_some_and(|open| open.rail.port().connector_speaks_first())
        };
        self.begin(index);
        if speaks_first {
            self.push(index, &Record::Ping { number: self.now_ns });
        }
    }

    /// A link is up.
    pub(super) fn begin(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.up = true;
        let rail = link.rail;
        let (peer_index, their_rail, id) = (link.peer, link.their_rail, link.id);
        let speed = self.rails.get(rail).map_or(0, |rail| rail.described.speed_or_assumed());
        self.counts.links_made = self.counts.links_made.saturating_add(1);
        if let Some(Some(peer)) = self.peers.get_mut(peer_index) {
            peer.links.push(index);
            peer.lonely_ns = 0;
            peer.retry.remove(&(rail, their_rail));
            peer.rates.join(id, speed);
            peer.to_place = true;
            log::line(format_args!("link {id:x} to {}: rail {rail} to its rail {their_rail}", peer.name));
        }
    }

    /// A link is lost, or never came to be (rule 2).
    pub(super) fn link_lost(&mut self, index: usize, why: &str) {
        let Some(link) = self.close_link(index) else { return };
        let now_ns = self.now_ns.max(1);
        let Some(Some(peer)) = self.peers.get_mut(link.peer) else { return };
        peer.links.retain(|other| *other != index);
        peer.rates.leave(link.id);
        if !link.up {
            peer.stillborn.push_back(link.id);
            if peer.stillborn.len() > STILLBORN_MAX {
                peer.stillborn.pop_front();
            }
            let name = peer.name.clone();
            let failures = self.retry_later(link.peer, (link.rail, link.their_rail), 0);
            if failures.is_power_of_two() {
                log::line(format_args!("no link to {name}: {why} (attempt {failures})"));
            }
            return;
        }
        log::line(format_args!("link {:x} to {} is lost: {why}", link.id, peer.name));
        if peer.links.is_empty() {
            peer.lonely_ns = now_ns;
        }
        self.counts.links_lost = self.counts.links_lost.saturating_add(1);
        let down = LinkDown { link: link.id, why: crate::control::message::shortened(why.to_owned()) };
        peer.words.lost(down, now_ns);
        self.retry_later(link.peer, (link.rail, link.their_rail), 0);
        self.say_links_down(link.peer);
        self.owe_words_of(link.peer, link.id, Some((index, &link)));
    }

    /// Tells a peer which links are lost, as far as it takes that now ([`LinkWords`](super::super::link_words)).
    fn say_links_down(&mut self, index: usize) {
        let Some(Some(peer)) = self.peers.get_mut(index) else { return };
        while let Some(down) = peer.words.next(self.now_ns) {
            self.control.send(peer.id, Message::LinkDown(down));
        }
    }

    /// Closes our end of a link: nothing of it can land any more.
    pub(super) fn close_link(&mut self, index: usize) -> Option<Link> {
        let mut link = self.links.get_mut(index).and_then(Option::take)?;
        self.by_endpoint.remove(&(link.rail, link.endpoint));
        if let Some(rail) = self.rails.get_mut(link.rail)
            && let Err(error) = rail.rail.close(link.endpoint)
        {
            log::line(format_args!("cannot close an endpoint: {error}"));
        }
        for read in &link.reads {
            self.read_done(read.pull, false);
        }
        self.heat_listed(std::mem::take(&mut link.waiting));
        Some(link)
    }

    /// The peer has lost a link that never came to be here (rule 2).
    pub(super) fn answer_for_stillborn(&mut self, index: usize, id: LinkId) {
        let Some(Some(peer)) = self.peers.get_mut(index) else { return };
        if let Some(place) = peer.stillborn.iter().position(|other| *other == id) {
            peer.stillborn.remove(place);
            self.owe_words_of(index, id, None);
        }
    }

    /// Takes a link from all connections of a peer, which is owed a word of each.
    fn owe_words_of(&mut self, peer: usize, id: LinkId, lost: Option<(usize, &Link)>) {
        let (index, lost) = lost.unzip();
        for number in self.connections_of(peer) {
            let mut too_many = false;
            if self.connections.get(number).is_some_and(|entry| entry.home.is_some() && entry.home == index) {
                self.settle(number, None);
            }
            if let Some(entry) = self.connections.get_mut(number) {
                entry.connection.link_lost(id);
                entry.ask_again |= entry.connection.stage == Stage::Asked;
                entry.stripe.retain(|other| Some(*other) != index);
                entry.grants.retain(|grant| grant.link != id);
                entry.granted.retain(|granted| *granted != id);
                let links = &self.links;
                let heard = |over: LinkId, message: u64| {
                    let mut known = links.iter().flatten().chain(lost);
                    known.any(|link| link.id == over && link.has_heard(message))
                };
                too_many = entry.losses.add(id, heard).is_err();
            }
            if too_many {
                log::line("a connection is reset: links are lost and no word of it gets through");
                self.reset(number);
            }
        }
        if let Some(Some(peer)) = self.peers.get_mut(peer) {
            peer.to_place = true;
        }
    }

    /// A record showed that the peer has closed its end of a link.
    pub(super) fn link_is_closed(&mut self, peer: usize, id: LinkId) {
        let known =
            self.links.iter().position(|link| link.as_ref().is_some_and(|link| link.id == id && link.peer == peer));
        if let Some(index) = known {
            self.link_lost(index, "the peer has closed it");
        }
    }

    /// Looks after links that are silent, and peers that have none.
    pub(super) fn care_for_links(&mut self) {
        let (now_ns, patience_ns) = (self.now_ns, self.patience_ns);
        let mut lost = Vec::new();
        let mut ask = Vec::new();
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            let quiet_ns = now_ns.saturating_sub(link.heard_ns);
            if quiet_ns > patience_ns {
                lost.push(index);
            } else if link.up && quiet_ns > QUIET_NS && now_ns.saturating_sub(link.asked_ns) > QUIET_NS {
                link.asked_ns = now_ns;
                ask.push(index);
            }
        }
        for index in ask {
            self.push(index, &Record::Ping { number: now_ns });
        }
        for index in lost {
            self.link_lost(index, "it says nothing any more");
        }
        for index in 0..self.peers.len() {
            let Some(Some(peer)) = self.peers.get_mut(index) else { continue };
            peer.words.forget(patience_ns, now_ns);
            let lonely = peer.lonely_ns != 0 && now_ns.saturating_sub(peer.lonely_ns) > LONELY_NS;
            if lonely && !self.connections_of(index).is_empty() {
                self.reset_all_of(index);
                self.forget_connections_of(index);
            }
            self.say_links_down(index);
            self.connect_links(index);
        }
    }
}

/// How long to wait after a failure that took so long, with so many before it.
fn retry_wait_ns(failures: u32, took_ns: u64) -> u64 {
    let patience = RETRY_NS << failures.min(RETRY_DOUBLINGS_MAX);
    patience.max(took_ns.saturating_mul(RETRY_PART))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_and_take_little_of_the_time() {
        let quick: Vec<u64> = (0..8).map(|failures| retry_wait_ns(failures, 1_000_000) / 1_000_000).collect();
        assert_eq!(quick, [200, 400, 800, 1600, 3200, 6400, 6400, 6400]);
        // A host that does not answer is waited for 2 s.
        assert_eq!(retry_wait_ns(0, 2_000_000_000), 20_000_000_000);
        assert_eq!(retry_wait_ns(u32::MAX, u64::MAX), u64::MAX);
    }
}

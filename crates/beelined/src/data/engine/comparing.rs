//! Measuring whether the bridge or TCP is faster to a peer's host, while it is used ([`super::super::ledger`] has the
//! verdict, [`super::super::probe`] what is exchanged).
//!
//! 1. A peer is measured while somebody uses the way to it: while a client's connection stands, or when one was asked
//!    for since the last round. The first rounds follow each other at once, later ones every `compare_s`. When programs
//!    that compute have come to want all CPUs of this host, or do not any more, the rounds before do not count, also
//!    the one that runs, and the next ones are the first again.
//! 2. One round at a time, for all peers: two would measure each other.
//! 3. The measuring connection is one like others, but for its entry's `probe`: nobody is told of it, and it counts for
//!    nothing. Its server's address is [`MEASURED`], which no server has.
//! 4. This bridge's verdicts are about connections that its own clients make. What the peer's clients do the peer's
//!    bridge measures.
//! 5. A peer whose TCP end cannot be reached is not measured, and the bridge is used.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use beeline_meeting::bridge::{self, LaneEnd, flags};
use beeline_status::document::{PathStatus, PathTimes};
use beeline_wire::ConnName;

use super::super::connection::Stage;
use super::super::ledger::{KINDS, Kind, ROUNDS_MIN, Round};
use super::super::probe::{LaneWay, TcpWay, measure, serve_lane};
use super::super::record::Refusal;
use super::compared::{Compared, MEASURED};
use super::{Engine, clients};
use crate::control::PeerId;
use crate::{log, priority};

/// Between the rounds without which there is no verdict.
const FIRST_NS: u64 = 500_000_000;
/// How long the answer of the other bridge, and a TCP connection to it, may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// Peers that are served at a time.
const SERVED_MAX: usize = 8;

impl Engine {
    /// A peer is there: it may measure the way here.
    pub(super) fn expect_measuring(&self, id: PeerId, address: IpAddr) {
        if let Some(token) = self.control.my_token(id) {
            self.comparer.guests.enter(id, address, token);
        }
    }

    pub(super) fn expect_no_measuring(&self, id: PeerId) {
        self.comparer.guests.leave(id);
    }

    /// Whether a client's connection to this server goes by TCP because that is faster. Notes that the way is wanted.
    pub(super) fn is_slower(&mut self, peer: usize, server: SocketAddr) -> bool {
        let compares = self.tunables.compare_s != 0;
        let Some(Some(peer)) = self.peers.get_mut(peer) else { return false };
        peer.compared.wanted = true;
        compares && peer.compared.ledger.prefers_tcp(server)
    }

    /// Hears what was measured, and measures what is due.
    pub(super) fn care_for_comparisons(&mut self) {
        while let Ok(way) = self.comparer.served_back.1.try_recv() {
            self.comparer.served = self.comparer.served.saturating_sub(1);
            way.close();
        }
        while let Ok((id, way, result)) = self.comparer.measured.1.try_recv() {
            self.comparer.runs = false;
            way.close();
            // What turned meanwhile makes it half of the one host, half of the other.
            if !self.is_outdated() {
                self.measured(id, result);
            }
        }
        if self.tunables.compare_s == 0 || self.comparer.runs || self.leaving.is_some() {
            return;
        }
        self.begin_anew();
        if self.is_outdated() {
            // What is measured now would not count either.
            return;
        }
        let now_ns = self.now_ns;
        let is_due = |peer: &super::Peer| {
            let compared = &peer.compared;
            !peer.links.is_empty() && !peer.leaves && compared.address.is_some() && compared.due_ns <= now_ns
        };
        let due: Vec<usize> = self
            .peers
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.as_ref().is_some_and(is_due))
            .map(|(i, _)| i)
            .collect();
        for index in due {
            let is_client_s = |entry: &super::Entry| entry.peer == index && !entry.accepted && !entry.probe;
            let is_used = self.connections.iter().any(|(_, entry)| is_client_s(entry));
            let wanted = |peer: &mut super::Peer| std::mem::take(&mut peer.compared.wanted);
            let is_wanted = self.peers.get_mut(index).and_then(Option::as_mut).is_some_and(wanted);
            if (is_used || is_wanted) && self.begin_round(index) {
                return;
            }
        }
    }

    /// Whether what was measured was so on another host than this one is now.
    fn is_outdated(&self) -> bool {
        self.comparer.crowded != self.comparer.was_crowded
    }

    /// Begins anew if what was measured holds no more. The verdicts stand until something is measured. Once every
    /// `compare_s` at most, so that a host which is busy by turns is not measured all the time; nor where it was the
    /// other one for a moment only.
    fn begin_anew(&mut self) {
        let pause_ns = self.tunables.compare_s.saturating_mul(1_000_000_000);
        let (now_ns, before_ns) = (self.now_ns, self.comparer.anew_ns);
        if !self.is_outdated() || before_ns != 0 && now_ns.saturating_sub(before_ns) < pause_ns {
            return;
        }
        (self.comparer.was_crowded, self.comparer.anew_ns) = (self.comparer.crowded, now_ns);
        for peer in self.peers.iter_mut().flatten() {
            peer.compared.ledger.forget_rounds();
            peer.compared.due_ns = now_ns;
        }
    }

    /// The result of a round.
    fn measured(&mut self, id: PeerId, result: std::io::Result<Round>) {
        let Some(index) = self.peer_index(id) else { return };
        let (now_ns, compare_s) = (self.now_ns, self.tunables.compare_s);
        let Some(Some(peer)) = self.peers.get_mut(index) else { return };
        let Compared { ledger, due_ns, trouble, wanted, .. } = &mut peer.compared;
        match result {
            Ok(round) => {
                let before = KINDS.map(|kind| ledger.is_slower(kind));
                ledger.add(round);
                *trouble = None;
                for (kind, before) in KINDS.into_iter().zip(before) {
                    if ledger.is_slower(kind) != before
                        && let Some(told) = ledger.told(kind)
                    {
                        let word = if before { "as fast as TCP again" } else { "slower than TCP" };
                        log::line(format_args!(
                            "the way to {} is {word} for {}: {} us, TCP {} us",
                            peer.name,
                            sentence(kind),
                            told.bridge_ns / 1000,
                            told.tcp_ns / 1000
                        ));
                    }
                }
            }
            Err(error) => {
                let why = error.to_string();
                if trouble.as_ref() != Some(&why) {
                    log::line(format_args!("the way to {} cannot be compared with TCP: {why}", peer.name));
                }
                *trouble = Some(why);
            }
        }
        let is_begun = ledger.rounds() < ROUNDS_MIN && trouble.is_none();
        // What wanted the first round wants those that belong to it.
        *wanted |= is_begun;
        let pause_ns = if is_begun { FIRST_NS } else { compare_s.saturating_mul(1_000_000_000) };
        *due_ns = now_ns.saturating_add(pause_ns);
    }

    /// Begins a round with a peer. Whether it has begun.
    fn begin_round(&mut self, index: usize) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(index) else { return false };
        // If this one does not come about, the next is later.
        peer.compared.due_ns = self.now_ns.saturating_add(FIRST_NS);
        let (id, token, address) = (peer.id, peer.token_for_us, peer.compared.address);
        let (Some(address), Some(own)) = (address, self.control.own_prefixes().first().map(|own| own.address())) else {
            return false;
        };
        let Ok((client, server)) = bridge::pair() else { return false };
        let (spins, results) = (!self.few_cpus, self.comparer.measured.0.clone());
        // What a thread is begun with is dropped when there is none, and an end that is dropped is never closed.
        let (hand, taken) = mpsc::channel();
        let round = move || {
            let Ok(client) = taken.recv() else { return };
            priority::be_ordinary();
            let mut way = LaneWay::new(client, spins);
            let result = way.await_verdict(Instant::now() + PATIENCE).and_then(|()| {
                let mut tcp = TcpWay::connect(address, &token, PATIENCE)?;
                measure(&mut way, &mut tcp)
            });
            // Nobody takes it when the bridge ends.
            let _ = results.send((id, way, result));
        };
        if let Err(error) = std::thread::Builder::new().name("measures".into()).stack_size(256 << 10).spawn(round) {
            [client, server].into_iter().for_each(drop_end);
            self.measured(id, Err(error));
            return false;
        }
        let name = ConnName { client: SocketAddr::new(own, 1).into(), server: MEASURED.into() };
        let number = match self.enter(name, server, index, Stage::Asked, 0, None) {
            Ok(number) => number,
            Err(server) => {
                [client, *server].into_iter().for_each(drop_end);
                return false;
            }
        };
        if let Some(entry) = self.connections.get_mut(number) {
            entry.probe = true;
            entry.deadline_ns = self.now_ns.saturating_add(clients::PATIENCE_NS);
            entry.ask_again = true;
        }
        self.choose_home(number, None);
        self.heat(number);
        self.comparer.runs = hand.send(client).is_ok();
        self.comparer.runs
    }

    /// A peer measures the way here: the server's end of its connection.
    pub(super) fn serve_measuring(&mut self) -> Result<LaneEnd, Refusal> {
        if self.comparer.served >= SERVED_MAX {
            return Err(Refusal::Full);
        }
        let (client, server) = bridge::pair().map_err(|_| Refusal::Full)?;
        let served = match server.take() {
            true => serve_lane(server, !self.few_cpus, self.comparer.served_back.0.clone()),
            false => Err(Box::new(server)),
        };
        if let Err(server) = served {
            [client, *server].into_iter().for_each(drop_end);
            return Err(Refusal::Full);
        }
        self.comparer.served = self.comparer.served.saturating_add(1);
        Ok(client)
    }

    /// What is known of the ways, for the administrator.
    pub(super) fn path_statuses(&self) -> Vec<PathStatus> {
        let peers = self.peers.iter().flatten().filter(|peer| peer.compared.address.is_some());
        let of = |peer: &super::Peer| {
            let ledger = &peer.compared.ledger;
            let times = |kind: Kind| {
                let told = ledger.told(kind)?;
                Some(PathTimes { bridge_ns: told.bridge_ns, tcp_ns: told.tcp_ns, slower: told.slower })
            };
            PathStatus {
                peer: peer.name.to_string(),
                short: times(Kind::Short),
                there: times(Kind::There),
                back: times(Kind::Back),
                trouble: peer.compared.trouble.clone(),
            }
        };
        peers.map(of).collect()
    }
}

fn sentence(kind: Kind) -> &'static str {
    match kind {
        Kind::Short => "short messages",
        Kind::There => "streams to it",
        Kind::Back => "streams from it",
    }
}

/// Ends an end that nobody has used.
fn drop_end(lane: LaneEnd) {
    lane.say(flags::RESET | flags::CLOSED);
    lane.retire();
}

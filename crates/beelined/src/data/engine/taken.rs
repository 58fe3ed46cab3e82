//! Hellos that the servers of this host have not taken yet.
//!
//! 1. A peer that asks is told that its connection stands when the listener is known to take hellos: it has taken this
//!    one, or an earlier one and let none wait for [`FORGOTTEN_AFTER_NS`] since. Before, nothing is sent on it. The
//!    client waits for that: one whose hello nobody ever takes would wait for ever, while whoever accepts without the
//!    library serves those who come over TCP.
//! 2. A hello of which the peer waits to hear, and which is not taken for [`TAKEN_WITHIN_NS`], or whose server has shut
//!    the door on it, is taken back, and the peer hears that there is no door: its client has time left to go by TCP.
//! 3. What listens and takes none gets none for a while (`beeline_meeting`'s `lookup::untaken`).

use beeline_meeting::bridge::{self, LaneEnd};

use super::super::record::{Record, Refusal};
use super::{Engine, Entry};

/// As long as clients of this host wait; less than [`super::clients::PATIENCE_NS`], with time for the answer.
const TAKEN_WITHIN_NS: u64 = 80_000_000;
/// A server that takes hellos may be as late as this, or it is found out anew whether it does.
const FORGOTTEN_AFTER_NS: u64 = 5_000_000_000;
/// Listeners that are known. With more all are found out anew.
const TAKERS_MAX: usize = 4096;

fn listener_of(entry: &Entry) -> Option<u64> {
    entry.connection.lane().map(LaneEnd::listener)
}

impl Engine {
    /// Hello was said to a server for a peer's client.
    pub(super) fn said_hello(&mut self, number: u64) {
        let now_ns = self.now_ns;
        let Some(entry) = self.connections.get_mut(number) else { return };
        (entry.said_ns, entry.deadline_ns) = (now_ns.max(1), now_ns.saturating_add(TAKEN_WITHIN_NS));
        entry.awaited = true;
        if listener_of(entry).is_some_and(|listener| self.hellos.takers.contains(&listener)) {
            self.stands(number);
        } else {
            self.hellos.awaited.push(number);
        }
    }

    /// The peer is to hear that a connection stands.
    fn stands(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        (entry.awaited, entry.answer_again) = (false, true);
        entry.deadline_ns = self.now_ns.saturating_add(FORGOTTEN_AFTER_NS);
        if !entry.probe {
            self.counts.accepted = self.counts.accepted.saturating_add(1);
        }
        self.heat(number);
    }

    /// Whether a peer waits to hear of a connection, and nothing is to be sent on it.
    pub(super) fn awaits_server(&mut self, number: u64) -> bool {
        let Some(entry) = self.connections.get_mut(number).filter(|entry| entry.said_ns != 0) else { return false };
        if entry.awaited {
            // What is seen from here on is news.
            entry.connection.glance();
        }
        if entry.connection.lane().is_some_and(LaneEnd::is_taken) {
            self.taken(number);
        }
        self.connections.get(number).is_some_and(|entry| entry.awaited)
    }

    /// A server has taken the hello: so it will take those of others who wait for it.
    fn taken(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        entry.said_ns = 0;
        if entry.awaited {
            bridge::note_taken(entry.name.server.address());
            self.stands(number);
        }
        let listener = self.connections.get(number).and_then(listener_of);
        let Some(listener) = listener.filter(|listener| !self.hellos.takers.contains(listener)) else { return };
        if self.hellos.takers.len() >= TAKERS_MAX {
            self.hellos.takers.clear();
        }
        self.hellos.takers.insert(listener);
        for other in std::mem::take(&mut self.hellos.awaited) {
            match self.connections.get(other).filter(|entry| entry.awaited) {
                Some(entry) if listener_of(entry) == Some(listener) => self.stands(other),
                Some(_) => self.hellos.awaited.push(other),
                None => {}
            }
        }
    }

    /// The time is over in which a server should have taken the hello, or it has shut the door.
    pub(super) fn not_taken(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        if entry.connection.lane().is_some_and(|lane| lane.is_taken() || entry.awaited && !lane.withdraw()) {
            return self.taken(number);
        }
        if let Some(listener) = listener_of(entry) {
            self.hellos.takers.remove(&listener);
        }
        let said_ns = std::mem::take(&mut entry.said_ns);
        if !std::mem::take(&mut entry.awaited) {
            return;
        }
        bridge::note_untaken(entry.name.server.address(), said_ns);
        entry.connection.give_up();
        let (peer, home, to) = (entry.peer, entry.home, entry.connection.theirs);
        if let Some(Some(peer)) = self.peers.get_mut(peer) {
            peer.refused = peer.refused.saturating_add(1);
        }
        if let Some(home) = home {
            self.answer(home, Record::Refused { to, why: Refusal::NoDoor });
        }
        self.heat(number);
        if self.finish(number) {
            // It never was one.
            self.counts.closed = self.counts.closed.saturating_sub(1);
        }
    }
    /// From time to time: forgets connections that are over.
    pub(super) fn care_for_hellos(&mut self) {
        let Engine { connections, hellos, .. } = self;
        hellos.awaited.retain(|number| connections.get(*number).is_some_and(|entry| entry.awaited));
    }
}

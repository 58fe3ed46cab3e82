//! How connections leave: lanes are given back when nobody uses them any more, and what is over is forgotten.

use std::os::fd::BorrowedFd;

use super::super::connection::Stage;
use super::Engine;

impl Engine {
    /// Gives a served connection's lane back, and drops one that is over. Whether it was dropped.
    ///
    /// What the other bridge knows of the rings is only taken away when it has told its end: before it does, it
    /// finishes its own operations, and begins none afterwards. A write or read that found its memory gone would cost
    /// the link.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        let Some(entry) = self.connections.get_mut(number) else { return true };
        if entry.connection.stage == Stage::Asked {
            // The client waits for its verdict, whatever else is known by now.
            return false;
        }
        let may_close = entry.rings.is_empty() || entry.connection.heard_over();
        if entry.connection.is_served() && may_close && entry.connection.lane().is_some() {
            for known in std::mem::take(&mut entry.rings) {
                self.close_ring(number, known);
            }
            if let Some(entry) = self.connections.get_mut(number).filter(|entry| entry.closing == 0)
                && let Some(lane) = entry.connection.take_lane()
            {
                self.rang = true;
                // SAFETY: the lane's own, open until it is retired.
                self.unwatch(unsafe { BorrowedFd::borrow_raw(lane.anchor()) });
                lane.retire();
            }
        }
        let Some(entry) = self.connections.get(number).filter(|entry| entry.connection.is_over()) else { return false };
        let key = (entry.peer, entry.connection.theirs);
        if self.theirs.get(&key) == Some(&number) {
            self.theirs.remove(&key);
        }
        let (peer, probe) = (entry.peer, entry.probe);
        let (there, back) = entry.connection.bytes();
        let (server, age_ns) = (entry.name.server.address(), self.now_ns.saturating_sub(entry.since_ns));
        let is_client_s = !entry.accepted && !probe;
        if let Some(Some(peer)) = self.peers.get_mut(peer)
            && is_client_s
        {
            peer.compared.ledger.ended(server, there, back, age_ns);
        }
        self.settle(number, None);
        self.leave_room(peer);
        if let Some(entry) = self.connections.remove(number)
            && let Some(Some(peer)) = self.peers.get_mut(peer)
        {
            // What a reset left unacknowledged burdens its links no more.
            entry.connection.on_links().for_each(|(link, bytes)| peer.rates.dropped(link, bytes));
        }
        if !probe {
            self.counts.closed = self.counts.closed.saturating_add(1);
        }
        true
    }
}

//! Large pieces: written into the other ring, or offered for the other bridge to read. [`super::rings`] has the regions
//! that they need.

use beeline_fabric::{Flags, Posted, Slice};

use super::super::record::Record;
use super::super::sender::How;
use super::Engine;
use super::inward::split;
use super::outward::Sent;

/// Operations that one connection may have in flight.
const OPERATIONS_MAX: u32 = 32;

impl Engine {
    /// The link for a large piece. What is left of one, or comes while others are under way, is part of a stream,
    /// however short: a sender that waits for room fills the ring in small pieces.
    pub(super) fn link_for(&mut self, number: u64, home: usize, bytes: u64) -> usize {
        let Some(entry) = self.connections.get(number) else { return home };
        let stream_bytes = entry.connection.under_way().saturating_add(bytes);
        if entry.stripe.len() < 2 || stream_bytes < self.tunables.stripe_min {
            return home;
        }
        let chunk = bytes.min(self.tunables.chunk);
        let ids: Vec<_> =
            entry.stripe.iter().filter_map(|index| Some((self.links.get(*index)?.as_ref()?.id, *index))).collect();
        let Some(Some(peer)) = self.peers.get(entry.peer) else { return home };
        peer.rates.pick(&ids, chunk, self.now_ns).unwrap_or(home)
    }

    /// Pushes bytes into the other ring, or offers them to be pulled. `None` when neither can be done: the other ring
    /// is not granted over this link, or ours cannot be registered.
    pub(super) fn send_large(
        &mut self,
        number: u64,
        index: usize,
        offset: u64,
        bytes: u64,
        position: u32,
    ) -> Option<Sent> {
        let link = self.links.get(index)?.as_ref()?;
        let (rail, id, endpoint) = (link.rail, link.id, link.endpoint);
        let entry = self.connections.get(number)?;
        let to = entry.connection.theirs;
        let ring = entry.connection.window();
        if entry.in_flight >= OPERATIONS_MAX {
            return Some(Sent::Wait);
        }
        let grant = entry.grants.iter().find(|grant| grant.link == id)?;
        let (remote, base, their_ring) = (grant.remote, grant.base, grant.ring);
        let chunk = self.tunables.chunk.max(self.tunables.inline_max);
        if bytes >= self.tunables.pull_min && self.may_offer(number, rail) {
            return self.offer(number, index, offset, bytes.min(chunk.max(self.tunables.pull_min)), position);
        }
        let bytes = bytes.min(chunk);
        let region = self.region(number, rail, false)?;
        // The announcement must follow: without room for it nothing is written.
        if !self.can_announce(index) {
            return Some(Sent::Wait);
        }
        let length = u32::try_from(bytes).ok()?;
        let mut done = 0_u64;
        'pieces: for (start, part) in split(position, length, ring) {
            let mut start = start;
            let mut part = part as u64;
            while part != 0 {
                let target = offset.saturating_add(done).wrapping_sub(base) & their_ring.saturating_sub(1);
                let count = part.min(their_ring.saturating_sub(target));
                let from = Slice { region, offset: start, bytes: usize::try_from(count).ok()? };
                let rail = self.rails.get_mut(rail)?;
                match rail.rail.write(endpoint, from, remote.at(target), number, Flags::empty()) {
                    Ok(Posted::Taken) => {}
                    Ok(Posted::Full) => break 'pieces,
                    Err(error) => {
                        // What was written is under way, and may land late: sent again it is only when the other bridge
                        // has closed its end, too.
                        self.sent_large(number, index, (offset, done), How::Written);
                        self.link_lost(index, &error.to_string());
                        return Some(Sent::Wait);
                    }
                }
                if let Some(entry) = self.connections.get_mut(number) {
                    entry.in_flight = entry.in_flight.saturating_add(1);
                }
                start = start.saturating_add(count as usize);
                part = part.saturating_sub(count);
                done = done.saturating_add(count);
            }
        }
        if done == 0 {
            return Some(Sent::Wait);
        }
        let length = u32::try_from(done).ok()?;
        self.sent_large(number, index, (offset, done), How::Written);
        if !self.push(index, &Record::Placed { to, offset, length }) {
            // There was room for it; so the link is lost, and the other bridge will say what it has.
            return Some(Sent::Wait);
        }
        self.counts.pushes = self.counts.pushes.saturating_add(1);
        Some(Sent::Bytes(done))
    }

    /// Offers bytes to be pulled.
    fn offer(&mut self, number: u64, index: usize, offset: u64, bytes: u64, position: u32) -> Option<Sent> {
        let rail = self.links.get(index)?.as_ref()?.rail;
        let region = self.region(number, rail, false)?;
        let remote = self.rails.get(rail)?.rail.remote(region).ok()?;
        let entry = self.connections.get(number)?;
        // Up to the ring's end: what is offered is one piece.
        let [(start, first), _] = split(position, u32::try_from(bytes).ok()?, entry.connection.window());
        let length = u32::try_from(first).ok()?;
        let (address, key) = (remote.at(start as u64).address, remote.key);
        let record = Record::Offer { to: entry.connection.theirs, offset, length, address, key };
        if !self.push(index, &record) {
            return Some(Sent::Wait);
        }
        self.sent_large(number, index, (offset, length.into()), How::Offered);
        Some(Sent::Bytes(length.into()))
    }

    fn sent_large(&mut self, number: u64, index: usize, (offset, bytes): (u64, u64), how: How) {
        let Some(Some(link)) = self.links.get_mut(index).filter(|_| bytes != 0) else { return };
        link.bytes_sent = link.bytes_sent.saturating_add(bytes);
        let (id, peer) = (link.id, link.peer);
        if let Some(Some(peer)) = self.peers.get_mut(peer) {
            peer.rates.sent(id, bytes, self.now_ns);
        }
        if let Some(entry) = self.connections.get_mut(number) {
            entry.large.moved(self.now_ns);
            entry.sending(offset, bytes, (id, how), self.now_ns);
        }
    }

    /// Whether a record surely finds room on a link.
    fn can_announce(&mut self, index: usize) -> bool {
        const RECORD_BYTES_MAX: usize = 64;
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let Some(rail) = self.rails.get_mut(link.rail) else { return false };
        match link.data_room(&mut rail.rail, RECORD_BYTES_MAX) {
            Ok(room) => room >= RECORD_BYTES_MAX,
            Err(error) => {
                self.link_lost(index, &error.to_string());
                false
            }
        }
    }

    /// Whether one end of a rail's links may read the other's rings: never where a read is alone in flight (iWARP),
    /// where it would have the link's messages wait.
    pub(super) fn may_read_over(&self, rail: usize) -> bool {
        self.rails.get(rail).is_some_and(|rail| {
            !rail.rail.port().reads_one_by_one() && (self.tunables.pull_over_tcp != 0 || !rail.reads_are_emulated)
        })
    }
}

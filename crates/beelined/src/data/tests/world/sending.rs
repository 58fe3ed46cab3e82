//! The sender's moves: what is sent next, over which link and how.

use super::super::super::link::MESSAGE_DATA_BYTES;
use super::super::super::sender::{How, LinkId};
use super::super::life::{Forth, Part};
use super::World;

/// As the engine's constants of these names.
const RECORDS_PER_ROUND: usize = 16;
const BYTES_PER_ROUND: u64 = 512 << 10;
const OPERATIONS_MAX: u32 = 32;
/// What a record takes of the wire beside its bytes.
const RECORD_BYTES: u64 = 64;

impl World {
    /// Sends all that can be sent. Who is next is decided as by `pump_hot`.
    pub(super) fn pump(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            (0..self.outwards.len()).for_each(|number| moved |= self.pump_one(number));
        }
    }

    fn pump_one(&mut self, number: usize) -> bool {
        let mut sent = 0;
        for _ in 0..RECORDS_PER_ROUND {
            self.outwards[number].write();
            let outward = &self.outwards[number];
            let Some((offset, bytes)) = outward.sender.next(outward.available) else { break };
            let Some(home) = self.home(number, |life| life.sends) else { break };
            let Some(count) = self.send(number, home, offset, bytes) else { break };
            sent += count;
            if sent >= BYTES_PER_ROUND {
                break;
            }
        }
        sent != 0
    }

    /// As `send_bytes`. `None` to wait.
    fn send(&mut self, number: usize, home: LinkId, offset: u64, bytes: u64) -> Option<u64> {
        if bytes <= self.tunables.inline_max {
            return self.send_inline(home, Part { connection: number, offset, bytes }, false);
        }
        let link = self.link_for(number, home, bytes);
        let outward = &self.outwards[number];
        if outward.in_flight >= OPERATIONS_MAX {
            return None;
        }
        if !outward.grants.contains(&link) {
            return self.send_inline(link, Part { connection: number, offset, bytes }, true);
        }
        let chunk = self.tunables.chunk.max(self.tunables.inline_max);
        if bytes >= self.tunables.pull_min {
            let to_the_end = outward.stream.source_ring - offset % outward.stream.source_ring;
            let bytes = bytes.min(chunk.max(self.tunables.pull_min)).min(to_the_end);
            return self.send_large(link, &[bytes], Part { connection: number, offset, bytes }, true);
        }
        // A write ends where one of the rings ends.
        let (mut parts, mut done, rings) = (Vec::new(), 0, [outward.stream.source_ring, outward.stream.target_ring]);
        while done < bytes.min(chunk) {
            let left = rings.map(|ring| ring - (offset + done) % ring);
            parts.push(left[0].min(left[1]).min(bytes.min(chunk) - done));
            done += parts.last().unwrap();
        }
        self.send_large(link, &parts, Part { connection: number, offset, bytes }, false)
    }

    fn link_for(&self, number: usize, home: LinkId, bytes: u64) -> LinkId {
        let links = self.links(number, |life| life.sends);
        if links.len() < 2 || self.under_way(number) + bytes < self.tunables.stripe_min {
            return home;
        }
        let ids: Vec<(LinkId, usize)> = links.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let picked = self.rates.pick(&ids, bytes.min(self.tunables.chunk), self.now_ns);
        picked.map_or(home, |index| links[index])
    }

    fn under_way(&self, number: usize) -> u64 {
        let sender = &self.outwards[number].sender;
        sender.sent() - sender.acked()
    }

    fn send_inline(&mut self, link: LinkId, part: Part, more: bool) -> Option<u64> {
        let part = Part { bytes: part.bytes.min(MESSAGE_DATA_BYTES as u64), ..part };
        if !self.life(link)?.has_room() {
            return None;
        }
        let bytes = self.outwards[part.connection].copy_out(part.offset, part.bytes);
        self.put(link, part.bytes, Forth::Data { part, bytes, more });
        self.note(link, part, How::Inline);
        Some(part.bytes)
    }

    /// Writes what the queue takes and says so, or offers it to be read.
    fn send_large(&mut self, link: LinkId, parts: &[u64], part: Part, pull: bool) -> Option<u64> {
        if !self.life(link)?.has_room() {
            return None;
        }
        let mut done = 0;
        for &bytes in parts {
            if !pull {
                if !self.life(link)?.has_place() {
                    break;
                }
                self.outwards[part.connection].in_flight += 1;
                self.put(link, bytes, Forth::Write(Part { offset: part.offset + done, bytes, ..part }));
            }
            done += bytes;
        }
        if done == 0 {
            return None;
        }
        let part = Part { bytes: done, ..part };
        self.put(link, 0, if pull { Forth::Offer(part) } else { Forth::Placed(part) });
        self.rates.sent(link, done, self.now_ns);
        self.note(link, part, if pull { How::Offered } else { How::Written });
        Some(done)
    }

    fn note(&mut self, link: LinkId, part: Part, how: How) {
        if self.under_way(part.connection) == 0 {
            self.outwards[part.connection].advanced_ns = self.now_ns;
        }
        self.outwards[part.connection].sender.sending(part.offset, part.bytes, link, how);
    }

    /// When so many bytes more are there.
    fn carry(&mut self, rail: usize, bytes: u64) -> u64 {
        let wire = &mut self.wires[rail];
        wire.carried += bytes;
        let took_ns = (bytes + RECORD_BYTES) * 1_000_000_000 / wire.bytes_per_s;
        wire.free_ns = wire.free_ns.max(self.now_ns) + took_ns;
        wire.free_ns + wire.latency_ns
    }

    fn put(&mut self, link: LinkId, bytes: u64, what: Forth) {
        let Some(rail) = self.life(link).map(|life| life.rail) else { return };
        let at_ns = self.carry(rail, bytes);
        // What the receiver has closed carries nothing more.
        if let Some(life) = self.life(link).filter(|life| life.receives) {
            life.forth.push_back((at_ns, life.gone_through, what));
        } else if let Forth::Write(part) = what {
            self.outwards[part.connection].in_flight -= 1;
        }
    }
}

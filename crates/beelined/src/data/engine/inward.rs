//! What comes over the rails.

use beeline_fabric::{Completion, Flags, Kind, Posted, Remote, Slice};

use super::super::connection::{Broken, Stage};
use super::super::link::{Link, Read};
use super::super::record::{Message, Record};
use super::{Engine, Grant, Pull};
use crate::log;
use beeline_wire::Verdict;

/// Reads that may wait on one link for their turn: far more than an honest peer has rings to offer.
const READS_WAITING_MAX: usize = 1 << 16;

impl Engine {
    /// An operation on a rail is done.
    pub(super) fn completed(&mut self, rail: usize, completion: Completion) {
        if let Completion::Done { endpoint, .. } = completion
            && self.waiters != 0
            && let Some(index) = self.by_endpoint.get(&(rail, endpoint)).copied()
        {
            self.heat_waiting_on(index);
        }
        match completion {
            Completion::Received { endpoint, message } => {
                let link = self.by_endpoint.get(&(rail, endpoint)).copied();
                if let Some(index) = link {
                    // In their order, and before whom the message itself concerns: that is mostly who sends.
                    self.heat_waiting_on(index);
                    self.came(index, message.bytes());
                    self.heat_waiting_on(index);
                }
                // Of a link that is closed there is no buffer to give back.
                let recycled = self.rails.get_mut(rail).map(|rail| rail.rail.recycle(message));
                // A buffer less than the other end has credits for.
                if let (Some(Err(error)), Some(index)) = (recycled, self.by_endpoint.get(&(rail, endpoint)).copied()) {
                    self.link_lost(index, &error.to_string());
                }
            }
            Completion::Done { kind: Kind::Write, context, .. } => self.operation_over(context),
            Completion::Done { kind: Kind::Read, context, .. } => self.read_done(context, true),
            Completion::Done { kind: Kind::Send, .. } => {}
            Completion::Failed { endpoint, kind, context, failure } => {
                match kind {
                    Kind::Write => self.operation_over(context),
                    Kind::Read => self.read_done(context, false),
                    _ => {}
                }
                // Given up with its endpoint, it belongs to no link any more.
                if let Some(index) = self.by_endpoint.get(&(rail, endpoint)).copied() {
                    self.link_lost(index, &failure.to_string());
                }
            }
        }
    }

    /// A write from a connection's ring is done.
    fn operation_over(&mut self, number: u64) {
        if let Some(entry) = self.connections.get_mut(number) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
            if entry.in_flight == 0 || entry.waits.is_some() {
                self.heat(number);
            }
        }
    }

    /// A message has come.
    fn came(&mut self, index: usize, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        let mut message = match Message::decode(bytes) {
            Ok(message) if link.came(message.credits, bytes.len(), now_ns) => message,
            Ok(_) => return self.link_breached(index, "more credits than there are buffers"),
            Err(malformed) => return self.link_breached(index, malformed.0),
        };
        let (peer, link_id) = (link.peer, link.id);
        if !link.up && link.is_ready() {
            self.begin(index);
        }
        loop {
            match message.next_record() {
                Ok(Some(record)) => self.heard(index, peer, link_id, record),
                Ok(None) => return,
                Err(malformed) => return self.link_breached(index, malformed.0),
            }
            // What it said may have ended the link.
            if self.links.get(index).and_then(Option::as_ref).is_none_or(|link| link.id != link_id) {
                return;
            }
        }
    }

    fn link_breached(&mut self, index: usize, why: &str) {
        self.counts.breaches = self.counts.breaches.saturating_add(1);
        self.link_lost(index, why);
    }

    fn heard(&mut self, link: usize, peer: usize, link_id: u64, record: Record<'_>) {
        match record {
            Record::Open { from, window, rail, client, server } => {
                self.asked(link, from, window, rail, client, server);
            }
            Record::Ping { number } => {
                self.push(link, &Record::Pong { number });
            }
            Record::Pong { .. } => {}
            Record::Opened { to, from, window, rail } if self.is_of(to, peer) => {
                self.answered(to, from, window, rail);
            }
            Record::Opened { from, .. } => {
                self.answer(link, Record::Unknown { to: from });
            }
            Record::Refused { to, why } if self.is_of(to, peer) => self.declined(to, why),
            Record::Unknown { to } if self.is_of(to, peer) => {
                match self.connections.get_mut(to).map(|entry| entry.connection.is_broken_unheard()) {
                    Some(false) => self.heat(to),
                    _ => self.reset(to),
                }
            }
            Record::Urge { to, offset } if self.is_of(to, peer) => {
                if let Some(entry) = self.connections.get_mut(to) {
                    entry.connection.urge(offset);
                }
                self.heat(to);
            }
            Record::End { to, from, .. } if !self.is_of(to, peer) => {
                self.answer(link, Record::Unknown { to: from });
            }
            Record::Resync { to, from, link: closed, .. } if !self.is_of(to, peer) => {
                self.link_is_closed(peer, closed);
                self.answer(link, Record::Unknown { to: from });
            }
            Record::Resync { link: closed, .. } => {
                self.link_is_closed(peer, closed);
                self.heard_of(link, link_id, record);
            }
            _ => self.heard_of(link, link_id, record),
        }
    }

    /// Whether a number is a connection with this peer.
    fn is_of(&self, number: u64, peer: usize) -> bool {
        self.connections.get(number).is_some_and(|entry| entry.peer == peer)
    }

    /// A record about a connection.
    fn heard_of(&mut self, link: usize, link_id: u64, record: Record<'_>) {
        let (Record::Data { to, .. }
        | Record::Placed { to, .. }
        | Record::Offer { to, .. }
        | Record::Grant { to, .. }
        | Record::Return { to }
        | Record::Urge { to, .. }
        | Record::Ack { to, .. }
        | Record::End { to, .. }
        | Record::Resync { to, .. }) = record
        else {
            return;
        };
        let peer = self.links.get(link).and_then(Option::as_ref).map(|link| link.peer);
        let Some(entry) = self.connections.get_mut(to).filter(|entry| Some(entry.peer) == peer) else {
            // Of a connection that is over; or of none, which only a broken bridge would say.
            if !self.connections.was_ours(to) {
                self.link_breached(link, &format!("a record about connection {to:x}, which never was: {record:?}"));
            }
            return;
        };
        let mut rates = self.peers.get_mut(entry.peer).and_then(Option::as_mut).map(|peer| &mut peer.rates);
        let now_ns = self.now_ns;
        let connection = &mut entry.connection;
        let bells = connection.bells();
        let result = match record {
            Record::Data { offset, urgent, more, bytes, .. } => {
                let result = connection.data(offset, bytes, urgent);
                // Without the answer there is no number to say it to.
                match more && connection.stage == Stage::Open && !entry.granted.contains(&link_id) {
                    true => result.and_then(|()| self.grant(to, link)),
                    false => result,
                }
            }
            Record::Placed { offset, length, .. } => connection.placed(offset, length),
            Record::Offer { offset, length, address, key, .. } => {
                let offered = connection.offered(offset, length);
                offered.and_then(|()| self.pull(to, link, offset, length, Remote { address, key }))
            }
            Record::Grant { address, key, base, ring, .. } => {
                if ring.is_power_of_two() && !entry.grants.iter().any(|grant| grant.link == link_id) {
                    let remote = Remote { address, key };
                    entry.grants.push(Grant { link: link_id, remote, base, ring: ring.into() });
                }
                Ok(())
            }
            Record::Return { .. } => {
                entry.granted.retain(|granted| *granted != link_id);
                Ok(())
            }
            Record::Ack { placed, limit, .. } => {
                let is_striped = entry.stripe.len() > 1;
                let advanced_ns = &mut entry.advanced_ns;
                connection.acked(placed, limit, |(link, bytes)| {
                    let Some(rates) = rates.as_mut() else { return };
                    let waited_ns = now_ns.saturating_sub(std::mem::replace(advanced_ns, now_ns));
                    if is_striped && waited_ns != 0 {
                        rates.waited_for(link, waited_ns);
                    }
                    rates.acknowledged(link, bytes, now_ns);
                })
            }
            Record::End { offset, flags, .. } => connection.end(offset, flags),
            // It may overtake the answer on another link. Nothing of ours was on the one that is closed.
            Record::Resync { .. } if connection.stage == Stage::Asked => Ok(()),
            Record::Resync { link, placed, limit, ranges, .. } => {
                connection.resynced(link, placed, limit, ranges.iter(), |(link, bytes)| {
                    if let Some(rates) = rates.as_mut() {
                        rates.acknowledged(link, bytes, now_ns);
                    }
                })
            }
            _ => Ok(()),
        };
        self.rang |= self.connections.get(to).is_some_and(|entry| entry.connection.bells() != bells);
        self.heat(to);
        self.conclude(to, result);
    }

    /// Resets a connection if something broke a rule.
    pub(super) fn conclude(&mut self, number: u64, result: Result<(), Broken>) {
        /// A bridge may break them on each of its connections.
        static BREACHES: log::Seldom = log::Seldom::new();
        match result {
            Ok(()) => {}
            Err(_) if self.connections.get(number).is_some_and(|entry| entry.connection.is_broken()) => {}
            Err(Broken::App) => self.reset(number),
            Err(Broken::Bridge(why)) => {
                self.counts.breaches = self.counts.breaches.saturating_add(1);
                BREACHES.line(format_args!("a connection is reset because the other bridge broke the protocol: {why}"));
                self.reset(number);
            }
        }
    }

    /// Resets a connection at both ends.
    pub(super) fn reset(&mut self, number: u64) {
        if self.connections.get(number).is_some_and(|entry| entry.connection.stage == Stage::Asked) {
            return self.drop_asked(number, Verdict::Rejected);
        }
        if let Some(entry) = self.connections.get_mut(number) {
            self.counts.reset = self.counts.reset.saturating_add(1);
            entry.connection.reset();
            self.heat(number);
        }
    }

    /// Lets the peer write into the ring over this link.
    fn grant(&mut self, number: u64, link: usize) -> Result<(), Broken> {
        let Some(Some(open)) = self.links.get(link) else { return Ok(()) };
        let (rail, id) = (open.rail, open.id);
        let Some(region) = self.region(number, rail, true) else { return Ok(()) };
        let Some(remote) = self.rails.get(rail).and_then(|rail| rail.rail.remote(region).ok()) else { return Ok(()) };
        let Some(entry) = self.connections.get_mut(number) else { return Ok(()) };
        // The byte with offset 0 would stand at this position, counted on without end.
        let base = u64::from(entry.connection.place_of(0)?).wrapping_neg();
        let ring = u32::try_from(entry.connection.window()).unwrap_or(0);
        let to = entry.connection.theirs;
        let Remote { address, key } = remote;
        // If there is no room for it, the next small piece asks again.
        if self.push(link, &Record::Grant { to, address, key, base, ring })
            && let Some(entry) = self.connections.get_mut(number)
        {
            entry.granted.push(id);
        }
        Ok(())
    }

    /// Reads what the peer offers into the ring, when it is its turn.
    fn pull(&mut self, number: u64, link: usize, offset: u64, length: u32, from: Remote) -> Result<(), Broken> {
        let Some(Some(open)) = self.links.get(link) else { return Ok(()) };
        let (rail, waiting, link_id) = (open.rail, open.reads.len(), open.id);
        if !self.may_read_over(rail) {
            return Err(Broken::Bridge(
                "it offers bytes to be read over iWARP, or over tcp (its pull_over_tcp is 1, ours is 0)",
            ));
        }
        let Some(entry) = self.connections.get_mut(number) else { return Ok(()) };
        if !entry.granted.contains(&link_id) {
            return Err(Broken::Bridge("it offers bytes for a ring that was not granted"));
        }
        if entry.connection.is_leaving() {
            // Nobody reads it any more.
            return entry.connection.placed_nowhere(offset, length);
        }
        let position = entry.connection.place_of(offset)?;
        if waiting >= READS_WAITING_MAX {
            return Err(Broken::Bridge("more pieces were offered than anybody needs"));
        }
        // What is granted is registered, as long as the rail lives.
        let Some(region) = self.region(number, rail, true) else { return Err(Broken::App) };
        let Some(entry) = self.connections.get_mut(number) else { return Ok(()) };
        let parts = split(position, length, entry.connection.window()).into_iter().filter(|(_, bytes)| *bytes != 0);
        let left = parts.clone().count() as u8;
        let pull = Pull { connection: number, offset, bytes: length, left, link: link_id, failed: false };
        let Some(pull) = self.pulls.insert(|_| pull) else { return Ok(()) };
        entry.in_flight = entry.in_flight.saturating_add(left.into());
        self.counts.pulls = self.counts.pulls.saturating_add(1);
        let mut done = 0;
        if let Some(Some(open)) = self.links.get_mut(link) {
            for (offset, bytes) in parts {
                open.reads.push_back(Read { pull, from: from.at(done), to: Slice { region, offset, bytes } });
                done = done.saturating_add(bytes as u64);
            }
        }
        self.start_reads_of(link);
        Ok(())
    }

    /// Starts the reads that wait on a rail's links.
    pub(super) fn start_reads(&mut self, rail: usize) {
        for index in 0..self.links.len() {
            let waits = |link: &Link| link.rail == rail && !link.reads.is_empty();
            if self.links.get(index).and_then(Option::as_ref).is_some_and(waits) {
                self.start_reads_of(index);
            }
        }
    }

    fn start_reads_of(&mut self, index: usize) {
        loop {
            let Some(Some(link)) = self.links.get_mut(index) else { return };
            let Some(&read) = link.reads.front() else { return };
            let number = self.pulls.get(read.pull).map(|pull| pull.connection);
            let is_served =
                number.and_then(|number| self.connections.get(number)).is_none_or(|entry| entry.connection.is_served());
            if is_served {
                // Its ring may be gone, and nobody reads it any more.
                link.reads.pop_front();
                self.read_done(read.pull, false);
                continue;
            }
            let Some(rail) = self.rails.get_mut(link.rail) else { return };
            match rail.rail.read(link.endpoint, read.to, read.from, read.pull, Flags::empty()) {
                Ok(Posted::Taken) => {
                    link.reads.pop_front();
                }
                Ok(Posted::Full) => return,
                Err(error) => return self.link_lost(index, &error.to_string()),
            }
        }
    }

    /// A read of another ring is done, or will not be.
    pub(super) fn read_done(&mut self, context: u64, success: bool) {
        let Some(pull) = self.pulls.get_mut(context) else { return };
        pull.left = pull.left.saturating_sub(1);
        // The other part may still come; what is there is not told.
        let link = pull.link;
        pull.failed |= !success || !self.links.iter().flatten().any(|open| open.id == link);
        let (number, offset, bytes, last, failed) =
            (pull.connection, pull.offset, pull.bytes, pull.left == 0, pull.failed);
        if last {
            self.pulls.remove(context);
        }
        self.operation_over(number);
        if last
            && !failed
            && let Some(entry) = self.connections.get_mut(number)
        {
            let result = entry.connection.placed(offset, bytes);
            self.heat(number);
            self.conclude(number, result);
        }
    }
}

/// Where `length` bytes from `position` on stand in a ring of `ring` bytes: two parts, as `(start, bytes)`.
pub(super) fn split(position: u32, length: u32, ring: u64) -> [(usize, usize); 2] {
    let start = u64::from(position) & ring.saturating_sub(1);
    let first = u64::from(length).min(ring.saturating_sub(start));
    [(start as usize, first as usize), (0, u64::from(length).saturating_sub(first) as usize)]
}

//! From the lanes to the rails: looking at hot connections, sending what they have, and giving lanes back.

use beeline_fabric::{Access, Flags, Posted, RegionId, Slice};
use nix::sys::epoll::EpollFlags;

use super::super::connection::{Broken, OVER, Outward, Stage};
use super::super::link::MESSAGE_DATA_BYTES;
use super::super::record::{Record, encode_ranges, ranges};
use super::super::ring::Ring;
use super::inward::split;
use super::{COLD_AFTER, Engine, Regions};

/// Records of one connection in one round, and after how many bytes it is the others' turn.
const RECORDS_PER_ROUND: usize = 16;
const BYTES_PER_ROUND: u64 = 512 << 10;
/// Pieces smaller than this stay on one link.
const STRIPE_BYTES_MIN: u64 = 128 << 10;
/// Operations that one connection may have in flight.
const OPERATIONS_MAX: u32 = 32;

/// What came of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// So many bytes.
    Bytes(u64),
    /// There is no room at the moment.
    Wait,
}

impl Engine {
    /// Adds a record to a link's message. `false` when it cannot be sent at the moment, or the link is gone.
    pub(super) fn push(&mut self, index: usize, record: &Record<'_>) -> bool {
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let Some(rail) = self.rails.get_mut(link.rail) else { return false };
        match link.push(&mut rail.rail, record) {
            Ok(pushed) => pushed,
            Err(error) => {
                self.link_lost(index, &error.to_string());
                false
            }
        }
    }

    /// Says something that nobody would say again: without room it waits.
    pub(super) fn answer(&mut self, index: usize, record: Record<'static>) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        let Some(rail) = self.rails.get_mut(link.rail) else { return };
        match link.answer(&mut rail.rail, record) {
            Ok(true) => {}
            Ok(false) => self.link_lost(index, "it asks, and takes no answers"),
            Err(error) => self.link_lost(index, &error.to_string()),
        }
    }

    /// Sends the messages that were written.
    pub(super) fn flush_links(&mut self) -> bool {
        let mut broken = None;
        let mut busy = false;
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|link| link.up && link.has_more()) else { continue };
            let Some(rail) = self.rails.get_mut(link.rail) else { continue };
            match link.flush(&mut rail.rail) {
                Ok(sent) => busy |= sent,
                Err(error) => broken = Some((index, error.to_string())),
            }
        }
        if let Some((index, why)) = broken {
            self.link_lost(index, &why);
        }
        busy
    }

    /// Looks at all hot connections. Whether something moved.
    pub(super) fn pump_hot(&mut self) -> bool {
        let mut busy = false;
        let mut index = 0;
        while let Some(&number) = self.hot.get(index) {
            let moved = match self.pump(number) {
                Ok(moved) => moved,
                Err(broken) => {
                    self.conclude(number, Err(broken));
                    true
                }
            };
            busy |= moved;
            if self.finish(number) || !self.stays_hot(number, moved) {
                self.hot.swap_remove(index);
            } else {
                index = index.saturating_add(1);
            }
        }
        busy
    }

    /// Whether a connection stays hot; one that was quiet for long is armed and gets cold.
    fn stays_hot(&mut self, number: u64, moved: bool) -> bool {
        let Some(entry) = self.connections.get_mut(number) else { return false };
        entry.idle = if moved { 0 } else { entry.idle.saturating_add(1) };
        if entry.idle < COLD_AFTER {
            return true;
        }
        entry.idle = 0;
        match entry.connection.arm() {
            Ok(true) => {
                entry.hot = false;
                false
            }
            Ok(_) => true,
            Err(broken) => {
                self.conclude(number, Err(broken));
                true
            }
        }
    }

    /// Sends what a connection has. Whether something moved.
    fn pump(&mut self, number: u64) -> Result<bool, Broken> {
        let mut moved = self.announce(number);
        let mut bytes_sent = 0_u64;
        for _ in 0..RECORDS_PER_ROUND {
            let Some(entry) = self.connections.get_mut(number) else { return Ok(true) };
            let Some(home) = entry.home.filter(|_| entry.connection.stage == Stage::Open) else {
                // The answer makes it hot, or a link.
                entry.connection.glance();
                break;
            };
            let sent = match entry.connection.outward()? {
                Outward::Nothing => break,
                Outward::Bytes { offset, bytes, position } => self.send_bytes(number, home, offset, bytes, position),
                Outward::Urgent { offset, byte } => {
                    let to = entry.connection.theirs;
                    let data = Record::Data { to, offset, urgent: true, more: false, bytes: &[byte] };
                    self.push_counted(number, home, offset, 1, &data)
                }
                // What the other bridge may give back when it has heard this must not be in use (see `finish`).
                Outward::End { flags, .. } if flags & OVER != 0 && entry.in_flight != 0 => break,
                Outward::End { offset, flags } => {
                    let to = entry.connection.theirs;
                    if !self.push(home, &Record::End { to, from: number, offset, flags }) {
                        self.wait(number);
                        break;
                    }
                    if let Some(entry) = self.connections.get_mut(number) {
                        entry.connection.ended(offset, flags);
                    }
                    Sent::Bytes(0)
                }
            };
            let Sent::Bytes(bytes) = sent else {
                self.wait(number);
                break;
            };
            moved = true;
            bytes_sent = bytes_sent.saturating_add(bytes);
            if bytes_sent >= BYTES_PER_ROUND {
                break;
            }
        }
        self.acknowledge(number, moved);
        Ok(moved)
    }

    /// Says what must be said before anything else: questions, answers, and what we have after a link was lost. Whether
    /// something was said.
    fn announce(&mut self, number: u64) -> bool {
        let said = self.say_first(number);
        if said == Some(false) {
            self.wait(number);
        }
        said == Some(true)
    }

    /// See [`Engine::announce`]. `None` when there is nothing to be said.
    fn say_first(&mut self, number: u64) -> Option<bool> {
        let entry = self.connections.get(number)?;
        let home = entry.home?;
        if entry.ask_again {
            let (client, server) = (entry.name.client.address(), entry.name.server.address());
            let (window, rail) = (entry.connection.window(), self.home_rail(entry));
            let asked = self.push(home, &Record::Open { from: number, window, rail, client, server });
            if let Some(entry) = self.connections.get_mut(number) {
                entry.ask_again &= !asked;
            }
            return Some(asked);
        }
        if entry.answer_again {
            let (to, window) = (entry.connection.theirs, entry.connection.window());
            let rail = self.home_rail(entry);
            let answered = self.push(home, &Record::Opened { to, from: number, window, rail });
            if let Some(entry) = self.connections.get_mut(number) {
                entry.answer_again &= !answered;
            }
            return Some(answered);
        }
        // As long as the answer has not come there is no number to say it to. It is still owed then: the other bridge
        // may have sent bytes right behind its answer, on the link that was lost.
        if entry.connection.stage == Stage::Asked {
            return None;
        }
        let link = entry.losses.next()?;
        let (placed, limit, above) = entry.connection.have();
        let above = encode_ranges(above);
        let to = entry.connection.theirs;
        let record = Record::Resync { to, from: number, link, placed, limit, ranges: ranges(&above) };
        let said = self.push(home, &record);
        if let Some(entry) = self.connections.get_mut(number)
            && let Some(Some(over)) = self.links.get(home)
            && said
        {
            entry.losses.said(over);
            entry.connection.acknowledged(placed, limit);
            // The other bridge may have asked and not heard the answer.
            entry.answer_again = entry.losses.next().is_none() && entry.accepted;
        }
        Some(said)
    }

    /// Sends a part of the bytes at `position` of a connection's ring, in whatever way is best.
    fn send_bytes(&mut self, number: u64, home: usize, offset: u64, bytes: u64, position: u32) -> Sent {
        if bytes > self.tunables.inline_max {
            let link = self.link_for(number, home, bytes);
            match self.send_large(number, link, offset, bytes, position) {
                Some(sent) => return sent,
                // It cannot be done over this link yet: the other bridge grants its ring when it sees `more`.
                None => return self.send_inline(number, link, offset, bytes, position, true),
            }
        }
        self.send_inline(number, home, offset, bytes, position, false)
    }

    /// The link for a large piece.
    fn link_for(&mut self, number: u64, home: usize, bytes: u64) -> usize {
        let Some(entry) = self.connections.get(number) else { return home };
        if entry.stripe.len() < 2 || bytes < STRIPE_BYTES_MIN {
            return home;
        }
        let chunk = bytes.min(self.tunables.chunk);
        let ids: Vec<_> =
            entry.stripe.iter().filter_map(|index| Some((self.links.get(*index)?.as_ref()?.id, *index))).collect();
        let Some(Some(peer)) = self.peers.get(entry.peer) else { return home };
        peer.rates.pick(&ids, chunk, self.now_ns).unwrap_or(home)
    }

    /// Copies bytes into a message.
    fn send_inline(&mut self, number: u64, index: usize, offset: u64, bytes: u64, position: u32, more: bool) -> Sent {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX).min(MESSAGE_DATA_BYTES);
        let Some(Some(link)) = self.links.get_mut(index) else { return Sent::Wait };
        let Some(rail) = self.rails.get_mut(link.rail) else { return Sent::Wait };
        let room = match link.data_room(&mut rail.rail, wanted) {
            Ok(0) => return Sent::Wait,
            Ok(room) => room,
            Err(error) => {
                self.link_lost(index, &error.to_string());
                return Sent::Wait;
            }
        };
        let count = wanted.min(room);
        let Some(entry) = self.connections.get_mut(number) else { return Sent::Wait };
        let connection = &mut entry.connection;
        link.push_data(connection.theirs, offset, more, count, |place| connection.copy_out(position, place));
        connection.sending(offset, count as u64, link.id);
        self.counts.inlined = self.counts.inlined.saturating_add(count as u64);
        Sent::Bytes(count as u64)
    }

    /// Sends a record that carries bytes.
    fn push_counted(&mut self, number: u64, index: usize, offset: u64, bytes: u64, record: &Record<'_>) -> Sent {
        let Some(id) = self.links.get(index).and_then(Option::as_ref).map(|link| link.id) else { return Sent::Wait };
        if !self.push(index, record) {
            return Sent::Wait;
        }
        if let Some(entry) = self.connections.get_mut(number) {
            entry.connection.sending(offset, bytes, id);
        }
        Sent::Bytes(bytes)
    }

    /// Pushes bytes into the other ring, or offers them to be pulled. `None` when neither can be done.
    fn send_large(&mut self, number: u64, index: usize, offset: u64, bytes: u64, position: u32) -> Option<Sent> {
        let link = self.links.get(index)?.as_ref()?;
        let (rail, id, endpoint) = (link.rail, link.id, link.endpoint);
        let entry = self.connections.get(number)?;
        let to = entry.connection.theirs;
        let ring = entry.connection.window();
        if entry.in_flight >= OPERATIONS_MAX {
            return Some(Sent::Wait);
        }
        let chunk = self.tunables.chunk.max(self.tunables.inline_max);
        if bytes >= self.tunables.pull_min && self.may_read_over(rail) {
            return self.offer(number, index, offset, bytes.min(chunk.max(self.tunables.pull_min)), position);
        }
        let bytes = bytes.min(chunk);
        let grant = entry.grants.iter().find(|grant| grant.link == id)?;
        let (remote, base, their_ring) = (grant.remote, grant.base, grant.ring);
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
                        self.sent_large(number, index, offset, done);
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
        self.sent_large(number, index, offset, done);
        if !self.push(index, &Record::Placed { to, offset, length }) {
            // There was room for it; so the link is lost, and the other bridge will say what it has.
            return Some(Sent::Wait);
        }
        self.counts.pushes = self.counts.pushes.saturating_add(1);
        Some(Sent::Bytes(done))
    }

    /// Whether one end of a rail's links may read the other's rings.
    pub(super) fn may_read_over(&self, rail: usize) -> bool {
        self.tunables.pull_over_tcp != 0 || self.rails.get(rail).is_some_and(|rail| !rail.reads_are_emulated)
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
        self.sent_large(number, index, offset, length.into());
        Some(Sent::Bytes(length.into()))
    }

    fn sent_large(&mut self, number: u64, index: usize, offset: u64, bytes: u64) {
        let Some(Some(link)) = self.links.get_mut(index).filter(|_| bytes != 0) else { return };
        link.bytes_sent = link.bytes_sent.saturating_add(bytes);
        let (id, peer) = (link.id, link.peer);
        if let Some(Some(peer)) = self.peers.get_mut(peer) {
            peer.rates.sent(id, bytes, self.now_ns);
        }
        if let Some(entry) = self.connections.get_mut(number) {
            entry.connection.sending(offset, bytes, id);
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

    /// The region of a connection's ring on a rail, registered when it is first asked for.
    pub(super) fn region(&mut self, number: u64, rail: usize, written: bool) -> Option<RegionId> {
        let entry = self.connections.get_mut(number)?;
        if !entry.regions.iter().any(|regions| regions.rail == rail) {
            entry.regions.push(Regions { rail, read: None, written: None });
        }
        let regions = entry.regions.iter_mut().find(|regions| regions.rail == rail)?;
        let place = if written { &mut regions.written } else { &mut regions.read };
        if place.is_some() {
            return *place;
        }
        let lane = entry.connection.lane()?;
        // SAFETY: the lane is given back in `finish` only, after all regions of the connection are closed.
        let ring = unsafe { Ring::of(lane, written) }?;
        let access = match written {
            true => Access::REMOTE_WRITE | Access::TARGET,
            false => Access::SOURCE | Access::REMOTE_READ,
        };
        match self.rails.get_mut(rail)?.rail.register(std::sync::Arc::new(ring), access) {
            Ok(region) => {
                *place = Some(region);
                Some(region)
            }
            Err(error) => {
                self.tell_once(rail, &error);
                None
            }
        }
    }

    fn tell_once(&mut self, rail: usize, error: &beeline_fabric::Error) {
        if let Some(rail) = self.rails.get_mut(rail)
            && rail.trouble.is_none()
        {
            crate::log::line(format_args!("large transfers are copied: {error}"));
            rail.trouble = Some(error.to_string());
        }
    }

    /// Acknowledges what has come: when there is much of it, or when something is sent anyway. What is left owing is
    /// acknowledged after a while.
    fn acknowledge(&mut self, number: u64, anyway: bool) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        if entry.connection.stage == Stage::Asked || entry.connection.theirs == 0 {
            return;
        }
        let Some((urgent, placed, limit)) = entry.connection.ack_due() else { return };
        let to = entry.connection.theirs;
        let said = match entry.home {
            Some(home) if urgent || anyway => self.push(home, &Record::Ack { to, placed, limit }),
            _ => false,
        };
        let Some(entry) = self.connections.get_mut(number) else { return };
        if said {
            entry.connection.acknowledged(placed, limit);
        } else if !entry.owes {
            entry.owes = true;
            self.owing.push(number);
        }
    }

    /// From time to time: acknowledges everything.
    pub(super) fn acknowledge_all(&mut self) {
        for number in std::mem::take(&mut self.owing) {
            if let Some(entry) = self.connections.get_mut(number) {
                entry.owes = false;
                self.acknowledge(number, true);
            }
        }
        self.flush_links();
    }

    /// Before a sleep: arms all hot connections. `false` when one of them has news.
    pub(super) fn arm_hot(&mut self) -> bool {
        let mut quiet = true;
        for index in 0..self.hot.len() {
            let Some(&number) = self.hot.get(index) else { break };
            let Some(entry) = self.connections.get_mut(number) else { continue };
            match entry.connection.arm() {
                Ok(true) => {}
                Ok(false) => quiet = false,
                Err(broken) => {
                    self.conclude(number, Err(broken));
                    quiet = false;
                }
            }
        }
        if quiet {
            for number in std::mem::take(&mut self.hot) {
                if let Some(entry) = self.connections.get_mut(number) {
                    entry.hot = false;
                }
            }
        }
        quiet
    }

    /// The kernel reports something about a connection's anchor.
    pub(super) fn hear_connection(&mut self, number: u64, events: EpollFlags) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        let Some(lane) = entry.connection.lane() else { return };
        if events.contains(EpollFlags::EPOLLIN) {
            lane.note_bell();
            if self.few_cpus {
                self.place.rung(lane.peer_cpu(), self.now_ns);
            }
        }
        let gone = lane.tells_of_end(events.bits().cast_unsigned());
        if gone {
            entry.connection.note_gone();
            if entry.connection.stage == Stage::Asked {
                return self.drop_asked(number, beeline_wire::Verdict::Rejected);
            }
        }
        self.heat(number);
    }

    /// Gives a served connection's lane back, and drops one that is over. Whether it was dropped.
    ///
    /// What the other bridge knows of the rings is only taken away when it has told its end: before it does, it finishes
    /// its own operations, and begins none afterwards. A write or read that found its memory gone would cost the link.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        let Some(entry) = self.connections.get_mut(number) else { return true };
        if entry.connection.stage == Stage::Asked {
            // The client waits for its verdict, whatever else is known by now.
            return false;
        }
        let may_close = entry.regions.is_empty() || entry.connection.heard_over();
        if entry.connection.is_served() && may_close && entry.connection.lane().is_some() {
            for regions in std::mem::take(&mut entry.regions) {
                for region in [regions.read, regions.written].into_iter().flatten() {
                    // Where closing fails, the network card may know the ring for ever: the lane is never given back.
                    entry.closing = entry.closing.saturating_add(1);
                    match self.rails.get_mut(regions.rail).map(|rail| rail.rail.close_region(region)) {
                        Some(Err(error)) => crate::log::line(format_args!("a lane is lost: {error}")),
                        _ => _ = self.closing.insert((regions.rail, region), number),
                    }
                }
            }
            if entry.closing == 0
                && let Some(lane) = entry.connection.take_lane()
            {
                self.rang = true;
                self.unwatch(lane.anchor());
                lane.retire();
            }
        }
        let Some(entry) = self.connections.get(number).filter(|entry| entry.connection.is_over()) else { return false };
        let key = (entry.peer, entry.connection.theirs);
        if self.theirs.get(&key) == Some(&number) {
            self.theirs.remove(&key);
        }
        let peer = entry.peer;
        self.settle(number, None);
        self.leave_room(peer);
        self.connections.remove(number);
        self.counts.closed = self.counts.closed.saturating_add(1);
        true
    }

    /// Nothing can touch a region any more.
    pub(super) fn region_closed(&mut self, rail: usize, region: RegionId) {
        if let Some(number) = self.closing.remove(&(rail, region))
            && let Some(entry) = self.connections.get_mut(number)
        {
            entry.closing = entry.closing.saturating_sub(1);
            self.heat(number);
        }
    }
}

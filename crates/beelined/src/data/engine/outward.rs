//! From the lanes to the rails: looking at hot connections, and sending what they have.

use nix::sys::epoll::EpollFlags;

use super::super::connection::{Broken, OVER, Outward, Stage};
use super::super::link::MESSAGE_DATA_BYTES;
use super::super::record::{Record, encode_ranges, ranges};
use super::super::sender::How;
use super::{COLD_AFTER, Engine, WAITING_COLD_AFTER};

/// Records of one connection in one round, and after how many bytes it is the others' turn.
const RECORDS_PER_ROUND: usize = 16;
const BYTES_PER_ROUND: u64 = 512 << 10;

/// What came of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// So many bytes.
    Bytes(u64),
    /// There is no room at the moment.
    Wait,
}

/// What came of a connection's turn.
struct Turn {
    moved: bool,
    /// It ended because others have theirs, or because there was no room.
    wants_more: bool,
    /// It could not send what it has: over this link, or over none.
    waits: Option<Option<usize>>,
}

impl Turn {
    /// There was nothing to send, or it is over.
    fn idle(moved: bool) -> Self {
        Self { moved, wants_more: false, waits: None }
    }
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

    /// Looks at all hot connections. Whether something moved. Who has had something of a link and wants more is behind
    /// all others from then on: a few streams would use up each credit that comes.
    pub(super) fn pump_hot(&mut self) -> bool {
        let mut busy = false;
        let (mut hot, mut behind) = (std::mem::take(&mut self.hot), std::mem::take(&mut self.behind));
        let (mut index, mut kept) = (0_usize, 0_usize);
        // Who has had something of a link waits for it behind all who have had nothing.
        let mut served = Vec::new();
        while let Some(&number) = hot.get(index) {
            index = index.saturating_add(1);
            let turn = match self.pump(number) {
                Ok(turn) => turn,
                Err(broken) => {
                    self.conclude(number, Err(broken));
                    Turn::idle(true)
                }
            };
            busy |= turn.moved;
            match turn.waits {
                Some(link) if turn.moved => served.push((number, link)),
                Some(link) => self.note_waiting(number, link),
                None => {}
            }
            if !self.finish(number) && self.stays_hot(number, turn.moved) {
                if turn.moved && turn.wants_more {
                    behind.push(number);
                } else if let Some(place) = hot.get_mut(kept) {
                    *place = number;
                    kept = kept.saturating_add(1);
                }
            }
            // What became hot meanwhile has its turn, too.
            hot.append(&mut self.hot);
        }
        for (number, link) in served {
            self.note_waiting(number, link);
        }
        hot.truncate(kept);
        hot.append(&mut behind);
        (self.hot, self.behind) = (hot, behind);
        busy
    }

    /// Whether a connection stays hot; one that was quiet for long is armed and gets cold.
    fn stays_hot(&mut self, number: u64, moved: bool) -> bool {
        let Some(entry) = self.connections.get_mut(number) else { return false };
        entry.idle = if moved { 0 } else { entry.idle.saturating_add(1) };
        let patience = if entry.waits.is_some() { WAITING_COLD_AFTER } else { COLD_AFTER };
        if entry.idle < patience {
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

    /// Sends what a connection has.
    fn pump(&mut self, number: u64) -> Result<Turn, Broken> {
        if self.awaits_server(number) {
            return Ok(Turn::idle(false));
        }
        let mut moved = self.announce(number);
        let (mut wants_more, mut waits) = (true, None);
        let mut bytes_sent = 0_u64;
        for _ in 0..RECORDS_PER_ROUND {
            let Some(entry) = self.connections.get_mut(number) else {
                return Ok(Turn::idle(true));
            };
            let Some(home) = entry.home.filter(|_| entry.connection.stage == Stage::Open) else {
                // The answer makes it hot, or a link.
                entry.connection.glance();
                wants_more = false;
                break;
            };
            let mut link = home;
            let sent = match entry.connection.outward()? {
                Outward::Nothing => {
                    wants_more = false;
                    break;
                }
                Outward::Bytes { offset, bytes, position } => {
                    let (over, sent) = self.send_bytes(number, home, offset, bytes, position);
                    link = over;
                    sent
                }
                Outward::Urgent { offset, byte } => {
                    let to = entry.connection.theirs;
                    let data = Record::Data { to, offset, urgent: true, more: false, bytes: &[byte] };
                    self.push_counted(number, home, offset, 1, &data)
                }
                Outward::Urge { offset } => {
                    let to = entry.connection.theirs;
                    if !self.push(home, &Record::Urge { to, offset }) {
                        waits = Some(Some(home));
                        break;
                    }
                    if let Some(entry) = self.connections.get_mut(number) {
                        entry.connection.urged(offset);
                    }
                    Sent::Bytes(0)
                }
                // What the other bridge may give back when it has heard this must not be in use (see `finish`).
                Outward::End { flags, .. } if flags & OVER != 0 && entry.in_flight != 0 => break,
                Outward::End { offset, flags } => {
                    let to = entry.connection.theirs;
                    if !self.push(home, &Record::End { to, from: number, offset, flags }) {
                        waits = Some(Some(home));
                        break;
                    }
                    if let Some(entry) = self.connections.get_mut(number) {
                        entry.connection.ended(offset, flags);
                    }
                    Sent::Bytes(0)
                }
            };
            let Sent::Bytes(bytes) = sent else {
                waits = Some(Some(link));
                break;
            };
            moved = true;
            bytes_sent = bytes_sent.saturating_add(bytes);
            if bytes_sent >= BYTES_PER_ROUND {
                break;
            }
        }
        self.acknowledge(number, moved);
        Ok(Turn { moved, wants_more, waits })
    }

    /// Says what must be said before anything else: questions, answers, and what we have after a link was lost. Whether
    /// something was said.
    fn announce(&mut self, number: u64) -> bool {
        let said = self.say_first(number);
        if said == Some(false) {
            self.note_waiting(number, self.connections.get(number).and_then(|entry| entry.home));
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

    /// Sends a part of the bytes at `position` of a connection's ring, in whatever way is best. Over
    /// which link, and what came of it.
    fn send_bytes(&mut self, number: u64, home: usize, offset: u64, bytes: u64, position: u32) -> (usize, Sent) {
        // Who has told that it uses the other rings no more finds them gone when it sends again what a link has lost.
        let may_write = self.connections.get(number).is_some_and(|entry| !entry.connection.told_over());
        if bytes > self.tunables.inline_max && may_write {
            let link = self.link_for(number, home, bytes);
            let sent = self.send_large(number, link, offset, bytes, position);
            return (link, sent.unwrap_or_else(|| self.send_copied(number, link, offset, bytes, position)));
        }
        (home, self.send_inline(number, home, offset, bytes, position, false))
    }

    /// Sends a part of a large piece in a message, and asks for the other ring if there is more than a little of such:
    /// the other bridge grants it when it sees `more`, if it can.
    fn send_copied(&mut self, number: u64, index: usize, offset: u64, bytes: u64, position: u32) -> Sent {
        let now_ns = self.now_ns;
        let Some(entry) = self.connections.get_mut(number) else { return Sent::Wait };
        let more = entry.large.is_stream(bytes, now_ns);
        let sent = self.send_inline(number, index, offset, bytes, position, more);
        if let Sent::Bytes(count) = sent
            && let Some(entry) = self.connections.get_mut(number)
        {
            entry.large.copied(count);
        }
        sent
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
        entry.sending(offset, count as u64, (link.id, How::Inline), self.now_ns);
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
            entry.sending(offset, bytes, (id, How::Inline), self.now_ns);
        }
        Sent::Bytes(bytes)
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
            if entry.awaited {
                return self.not_taken(number);
            }
        }
        self.heat(number);
    }
}

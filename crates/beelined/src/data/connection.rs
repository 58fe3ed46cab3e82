//! One connection: an end of a lane on this host, and the two directions in which its bytes are mirrored.
//!
//! ```text
//!   app ══ ring ══> Sender ── records, writes ──> other bridge       (outward)
//!   app <══ ring ══ Reorder <── records, writes ── other bridge      (inward)
//! ```
//!
//! # Rules
//!
//! 1. Outward bytes stay in the app's ring until the other bridge has them ([`Sender`]). `ring_offset` is the offset of
//!    the byte at the ring's front.
//! 2. An urgent byte leaves the ring before it is acknowledged, because nothing behind it can be seen otherwise; it is
//!    kept here until it is. It goes out by itself when all before it is acknowledged.
//! 3. Inward bytes are written as on any lane while they come in order and no other bridge writes into the ring by
//!    itself. From then on each byte has its place in the ring for good (`in_place`).
//! 4. The app's FIN, close or reset is told when all its bytes were sent; the other end's is said to the app when all
//!    bytes before it were written. A reset overtakes bytes, as TCP's does.
//! 5. The lane is given back as soon as the app has closed and all is sent and acknowledged, or the other end has
//!    closed and all is written; if a network card knows the rings, not before the other bridge has told its end, which
//!    it does when it uses them no more. The connection itself lives until both bridges have told the end and heard it.
//! 6. What the app's memory says and cannot be resets this connection; so does a breach by the other bridge, which is
//!    counted.

use beeline_sockets::bridge::{Armed, Fault, LaneEnd, Lying, flags};
use beeline_topo::stripe::{PIECES_MAX, Reorder};

use super::sender::{Breach, Credit, LinkId, Sender};

/// Flags of a front that end something.
const ENDS: u32 = flags::FIN | flags::CLOSED | flags::RESET;
/// Flags after which nothing more is sent or taken.
pub const OVER: u32 = flags::CLOSED | flags::RESET;

/// Looks at a ring that each only go past an urgent byte: two happen, and more than this is an app that scribbles.
const LOOKS_MAX: usize = 64;

/// How far the making of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// We have asked the other bridge, and the client waits.
    Asked,
    /// It stands.
    Open,
}

/// What comes next in the outward direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outward {
    /// Nothing at the moment.
    Nothing,
    /// Bytes: the offset of the first, how many there are, and where in the ring they stand.
    Bytes { offset: u64, bytes: u64, position: u32 },
    /// One urgent byte.
    Urgent { offset: u64, byte: u8 },
    /// The end.
    End { offset: u64, flags: u32 },
}

/// Why a connection is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The app's memory or anchor broke the rules of lanes.
    App,
    /// The other bridge broke the rules of this protocol.
    Bridge(&'static str),
}

impl From<Breach> for Broken {
    fn from(breach: Breach) -> Self {
        Broken::Bridge(breach.0)
    }
}

/// See the module.
pub struct Connection {
    /// Our number.
    pub number: u64,
    /// The other bridge's number; 0 while it is not known.
    pub theirs: u64,
    pub stage: Stage,
    lane: Option<LaneEnd>,
    ring_bytes: u64,
    /// What the other end's ring holds, either way.
    their_ring_bytes: u64,
    /// The app's end of the anchor is closed.
    gone: bool,
    /// The end of what the app had written at the last look.
    seen_tail: u32,
    /// What the app had said of its end at the last look.
    seen_flags: u32,

    sender: Sender,
    ring_offset: u64,
    urgent: Option<(u64, u8)>,
    /// The flags that were told.
    told_end: u32,
    /// The offset that was told with them.
    told_end_at: u64,
    /// They may have been lost with a link.
    end_lost: bool,
    /// The connection is reset, and the other bridge is to be told.
    broken: bool,

    reorder: Reorder,
    in_place: bool,
    told_placed: u64,
    told_limit: u64,
    /// What the other end said of its end.
    heard_end: Option<(u64, u32)>,
    /// The flags that were said to the app.
    said_end: u32,
}

impl Connection {
    /// A connection over `lane`; the other bridge holds `window` bytes.
    #[must_use]
    pub fn new(number: u64, stage: Stage, lane: LaneEnd, window: u64) -> Connection {
        let ring_bytes = u64::from(lane.ring_bytes());
        Connection {
            number,
            theirs: 0,
            stage,
            lane: Some(lane),
            ring_bytes,
            their_ring_bytes: window,
            gone: false,
            seen_tail: 0,
            seen_flags: 0,
            sender: Sender::new(window),
            ring_offset: 0,
            urgent: None,
            told_end: 0,
            told_end_at: 0,
            end_lost: false,
            broken: false,
            reorder: Reorder::new(ring_bytes, PIECES_MAX),
            in_place: false,
            told_placed: 0,
            told_limit: ring_bytes,
            heard_end: None,
            said_end: 0,
        }
    }

    /// The lane, as long as there is one.
    #[must_use]
    pub fn lane(&self) -> Option<&LaneEnd> {
        self.lane.as_ref()
    }

    /// Bytes that this end may hold for the app.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.ring_bytes
    }

    /// Bells that were rung for the app.
    #[must_use]
    pub fn bells(&self) -> u32 {
        self.lane.as_ref().map_or(0, LaneEnd::bells_rung)
    }

    /// Bytes sent, and bytes received.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.sender.sent(), self.reorder.prefix())
    }

    /// The other bridge has answered.
    pub fn opened(&mut self, theirs: u64, window: u64) {
        self.theirs = theirs;
        self.stage = Stage::Open;
        self.their_ring_bytes = window;
        self.sender = Sender::new(window);
        if let Some(lane) = &self.lane {
            lane.say_yes();
        }
    }

    /// The kernel reports that the app's end of the anchor is closed.
    pub fn note_gone(&mut self) {
        self.gone = true;
    }

    // ---- outward

    /// What is to be sent next.
    ///
    /// # Errors
    /// When the app has broken the rules.
    pub fn outward(&mut self) -> Result<Outward, Broken> {
        if self.end_lost {
            return Ok(Outward::End { offset: self.told_end_at, flags: self.told_end });
        }
        if self.told_end & flags::RESET != 0 {
            return Ok(Outward::Nothing);
        }
        if self.broken {
            return Ok(Outward::End { offset: self.sender.sent(), flags: flags::RESET | flags::CLOSED });
        }
        for _ in 0..LOOKS_MAX {
            if let Some(next) = self.look_outward()? {
                return Ok(next);
            }
        }
        Err(Broken::App)
    }

    /// One look at the app's ring; `None` when it only went past an urgent byte.
    fn look_outward(&mut self) -> Result<Option<Outward>, Broken> {
        let Some(lane) = self.lane.as_ref() else { return Ok(Some(self.outward_without_lane())) };
        // Before the cursor: flags are set after the last one that they speak about.
        let said = lane.peer_flags();
        let gone = self.gone;
        (self.seen_flags, self.seen_tail) = (said, lane.tail());
        let (mut available, mut position) = (self.ring_offset, 0);
        match lane.lying().map_err(|_| Broken::App)? {
            Lying::Bytes(count, first) => {
                available = available.saturating_add(count.into());
                position = first;
            }
            Lying::Urgent if self.urgent.is_none() => {
                if let Some(byte) = lane.take_urgent().or_else(absent_is_nothing).map_err(|_| Broken::App)? {
                    self.urgent = Some((self.ring_offset, byte));
                    self.ring_offset = self.ring_offset.saturating_add(1);
                }
                return Ok(None);
            }
            Lying::Urgent => {}
        }
        if let Some((offset, bytes)) = self.sender.next(available) {
            return Ok(Some(match self.urgent {
                Some((at, byte)) if at == offset => Outward::Urgent { offset, byte },
                Some((at, _)) if at > offset => {
                    let position = position_of(position, self.ring_offset, offset);
                    Outward::Bytes { offset, bytes: bytes.min(at.saturating_sub(offset)), position }
                }
                _ => Outward::Bytes { offset, bytes, position: position_of(position, self.ring_offset, offset) },
            }));
        }
        // Behind an urgent byte there may be more, which cannot be seen yet.
        let written = self.ring_offset.saturating_add(self.seen_tail.wrapping_sub(lane.head()).into());
        Ok(Some(self.ending(said, gone, available.max(written))))
    }

    /// Notes how much the app has written, while nothing can be sent: what was seen is no reason to look again.
    pub fn glance(&mut self) {
        if let Some(lane) = &self.lane {
            (self.seen_flags, self.seen_tail) = (lane.peer_flags(), lane.tail());
        }
    }

    /// The end, if it is to be told now.
    fn ending(&self, said: u32, gone: bool, available: u64) -> Outward {
        let mut ends = said & ENDS;
        if gone && ends & OVER == 0 {
            // Closed without a word: as a kernel would, by what the app left unread and by what it had set.
            let unread = self.lane.as_ref().and_then(|lane| lane.unread_by_peer().ok()).unwrap_or(0) != 0;
            let aborts = said & flags::ABORTS != 0 || self.lane.as_ref().is_some_and(|lane| !lane.is_taken());
            ends |= flags::CLOSED | if unread || aborts { flags::RESET } else { flags::FIN };
        }
        let sent = self.sender.sent();
        let all_sent = sent == available;
        if ends & !self.told_end != 0 && (all_sent || ends & flags::RESET != 0) {
            return Outward::End { offset: sent, flags: ends };
        }
        Outward::Nothing
    }

    fn outward_without_lane(&self) -> Outward {
        // The app is served as far as this host is concerned; the other bridge is to hear that.
        match self.told_end & OVER {
            0 => Outward::End { offset: self.sender.sent(), flags: flags::FIN | flags::CLOSED },
            _ => Outward::Nothing,
        }
    }

    /// Copies outward bytes to send.
    pub fn copy_out(&self, position: u32, into: &mut [u8]) {
        if let Some(lane) = &self.lane {
            lane.copy_out(position, into);
        }
    }

    /// Notes that bytes from the offset that [`Connection::outward`] told were sent.
    pub fn sending(&mut self, offset: u64, bytes: u64, link: LinkId) {
        self.sender.sending(offset, bytes, link);
    }

    /// Notes that the end was told.
    pub fn ended(&mut self, offset: u64, flags: u32) {
        self.told_end |= flags;
        self.told_end_at = offset;
        self.end_lost = false;
    }

    /// The other bridge has said how far it is.
    ///
    /// # Errors
    /// When it cannot be, or the app has broken the rules.
    pub fn acked(&mut self, placed: u64, limit: u64, carried: impl FnMut(Credit)) -> Result<(), Broken> {
        self.sender.ack(placed, limit, carried)?;
        let acked = self.sender.acked();
        if self.urgent.is_some_and(|(at, _)| at < acked) {
            self.urgent = None;
        }
        let done = acked.saturating_sub(self.ring_offset);
        if done != 0
            && let Some(lane) = &self.lane
        {
            self.ring_offset = acked;
            let count = u32::try_from(done).map_err(|_| Broken::App)?;
            lane.consume(count).or_else(absent_is_fine).map_err(|_| Broken::App)?;
        }
        Ok(())
    }

    /// A link is gone.
    pub fn link_lost(&mut self, link: LinkId) {
        self.sender.link_lost(link);
    }

    /// The other bridge has closed its end of a link, and says what it has.
    ///
    /// # Errors
    /// As for [`Connection::acked`].
    pub fn resynced(
        &mut self,
        link: LinkId,
        placed: u64,
        limit: u64,
        ranges: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<(), Broken> {
        self.sender.resync(link, std::iter::once((0, placed)).chain(ranges));
        self.acked(placed, limit, |_| {})?;
        self.end_lost = self.told_end != 0;
        Ok(())
    }

    /// Prepares to sleep until the app does something that concerns us. `false` when it has already.
    ///
    /// # Errors
    /// When the app has broken the rules.
    pub fn arm(&mut self) -> Result<bool, Broken> {
        let owes_room = self.owes_room();
        let Some(lane) = &self.lane else { return Ok(true) };
        if self.broken || self.stage == Stage::Open && self.is_served() {
            // The app is heard no more; the lane waits for network cards to be done with it.
            return Ok(true);
        }
        if self.gone {
            // No bell will come, and none is needed.
            return Ok(true);
        }
        let mut ready = false;
        match lane.arm_reading_beyond(self.seen_tail) {
            Ok(armed) => ready |= armed == Armed::Ready,
            Err(Fault::Gone) => self.gone = true,
            Err(_) => return Err(Broken::App),
        }
        if owes_room && !self.gone {
            match lane.arm_writing() {
                // With a quarter of the ring free and told the other bridge has enough to go on.
                Ok(armed) => ready |= armed == Armed::Ready && self.limit_now() != self.told_limit,
                Err(Fault::Gone) => self.gone = true,
                Err(_) => return Err(Broken::App),
            }
        }
        Ok(!ready && !self.gone && lane.peer_flags() == self.seen_flags)
    }

    // ---- inward

    fn may_come(&self, offset: u64, length: u64) -> Result<(), Broken> {
        match offset.checked_add(length) {
            Some(end) if end <= self.told_limit => {}
            _ => return Err(Broken::Bridge("bytes beyond the room that was granted")),
        }
        if self.heard_end.is_some_and(|(end, _)| offset.saturating_add(length) > end) {
            return Err(Broken::Bridge("bytes after the end"));
        }
        Ok(())
    }

    /// Bytes have come.
    ///
    /// # Errors
    /// When they should not have, or the app has broken the rules.
    pub fn data(&mut self, offset: u64, bytes: &[u8], urgent: bool) -> Result<(), Broken> {
        self.may_come(offset, bytes.len() as u64)?;
        let prefix = self.reorder.prefix();
        let in_order = offset == prefix && self.reorder.above().is_empty();
        // Bytes behind it may have overtaken it on other links. Those before it have not: it is sent when they have come.
        if urgent && offset != prefix {
            return Err(Broken::Bridge("an urgent byte out of turn"));
        }
        let grown = self.reorder.insert(offset, bytes.len() as u64).map_err(|why| Broken::Bridge(why.sentence()))?;
        let Some(lane) = &self.lane else { return self.deliver_end() };
        let done = if urgent {
            let byte = bytes.first().copied().unwrap_or_default();
            self.in_place = true;
            match lane.write_urgent(byte) {
                Ok(false) => return Err(Broken::App),
                other => other.map(|_| ()),
            }
            .and_then(|()| match u32::try_from(grown.saturating_sub(1)) {
                Ok(behind @ 1..) => lane.publish(behind),
                _ => Ok(()),
            })
        } else if in_order && !self.in_place {
            // There is room: it was granted. An app that takes it back has broken the rules.
            match lane.write(bytes) {
                Ok(written) if written < bytes.len() => return Err(Broken::App),
                other => other.map(|_| ()),
            }
        } else {
            self.in_place = true;
            lane.room().map(|(_, position)| lane.copy_in(position_of(position, prefix, offset), bytes)).and_then(|()| {
                match u32::try_from(grown) {
                    Ok(0) | Err(_) => Ok(()),
                    Ok(grown) => lane.publish(grown),
                }
            })
        };
        done.or_else(absent_is_fine).map_err(|_| Broken::App)?;
        self.deliver_end()
    }

    /// Bytes stand in the ring that a write over the rail has placed there.
    ///
    /// # Errors
    /// As for [`Connection::data`].
    pub fn placed(&mut self, offset: u64, length: u32) -> Result<(), Broken> {
        self.may_come(offset, length.into())?;
        if !self.in_place {
            return Err(Broken::Bridge("bytes were placed in a ring that was not granted"));
        }
        let grown = self.reorder.insert(offset, length.into()).map_err(|why| Broken::Bridge(why.sentence()))?;
        if let (Some(lane), Ok(grown @ 1..)) = (&self.lane, u32::try_from(grown)) {
            lane.publish(grown).or_else(absent_is_fine).map_err(|_| Broken::App)?;
        }
        self.deliver_end()
    }

    /// Where in the ring the byte with this offset will stand. From now on every byte has its place.
    ///
    /// # Errors
    /// When the app has broken the rules.
    pub fn place_of(&mut self, offset: u64) -> Result<u32, Broken> {
        let prefix = self.reorder.prefix();
        let lane = self.lane.as_ref().ok_or(Broken::App)?;
        self.in_place = true;
        let (_, position) = lane.room().map_err(|_| Broken::App)?;
        Ok(position_of(position, prefix, offset))
    }

    /// Bytes that nobody here reads any more count as come.
    ///
    /// # Errors
    /// As for [`Connection::data`].
    pub fn placed_nowhere(&mut self, offset: u64, length: u32) -> Result<(), Broken> {
        self.may_come(offset, length.into())?;
        self.reorder.insert(offset, length.into()).map_err(|why| Broken::Bridge(why.sentence()))?;
        self.deliver_end()
    }

    /// Checks what the other bridge offers to be read, which will come as [`Connection::placed`].
    ///
    /// # Errors
    /// When it should not.
    pub fn offered(&self, offset: u64, length: u32) -> Result<(), Broken> {
        if offset < self.reorder.prefix() || length == 0 {
            return Err(Broken::Bridge("bytes were offered that had come before"));
        }
        self.may_come(offset, length.into())
    }

    /// The other end says how it ends.
    ///
    /// # Errors
    /// When it contradicts what came before.
    pub fn end(&mut self, offset: u64, ends: u32) -> Result<(), Broken> {
        let known = self.heard_end.unwrap_or((offset, 0));
        if offset < self.reorder.prefix() || ends & !ENDS != 0 || ends == 0 {
            return Err(Broken::Bridge("an end before bytes that had come"));
        }
        if known.1 & flags::FIN != 0 && offset != known.0 && ends & flags::RESET == 0 {
            return Err(Broken::Bridge("two ends at different places"));
        }
        self.heard_end = Some((offset, known.1 | ends));
        self.deliver_end()
    }

    /// Says the end to the app if all before it is written.
    fn deliver_end(&mut self) -> Result<(), Broken> {
        if let Some((offset, ends)) = self.heard_end
            && (offset == self.reorder.prefix() || ends & flags::RESET != 0)
            && ends & !self.said_end != 0
        {
            self.said_end |= ends;
            if let Some(lane) = &self.lane {
                lane.say(ends);
            }
        }
        Ok(())
    }

    /// What to acknowledge: whether it is urgent, everything before which byte has come, and how far may be sent.
    /// `None` when nothing is new.
    #[must_use]
    pub fn ack_due(&self) -> Option<(bool, u64, u64)> {
        let placed = self.reorder.prefix();
        let limit = self.limit_now();
        let (placed_more, room_more) = (placed.saturating_sub(self.told_placed), limit.saturating_sub(self.told_limit));
        // The other end keeps in its ring what it does not know to have come.
        let urgent = placed_more >= self.ring_bytes.min(self.their_ring_bytes) / 4 || room_more >= self.ring_bytes / 4;
        (placed_more != 0 || room_more != 0).then_some((urgent, placed, limit))
    }

    fn limit_now(&self) -> u64 {
        let placed = self.reorder.prefix();
        let unread = self.lane.as_ref().and_then(|lane| lane.unread_by_peer().ok()).unwrap_or(0);
        placed.saturating_sub(unread.into()).saturating_add(self.ring_bytes).max(self.told_limit)
    }

    /// Notes that this was acknowledged.
    pub fn acknowledged(&mut self, placed: u64, limit: u64) {
        (self.told_placed, self.told_limit) = (placed, limit);
    }

    /// Whether the other bridge may soon have to wait for room, so that room must be watched for.
    #[must_use]
    pub fn owes_room(&self) -> bool {
        self.told_limit.saturating_sub(self.reorder.prefix()) < self.ring_bytes / 2
    }

    /// What the receiver has, for [`super::record::Record::Resync`]: everything before, up to where more may come, and the rest.
    #[must_use]
    pub fn have(&self) -> (u64, u64, &[(u64, u64)]) {
        (self.reorder.prefix(), self.limit_now(), self.reorder.above())
    }

    // ---- the end

    /// Whether the lane can be given back (rule 5). No network card may know its rings any more.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let app_closed = self.told_end & OVER != 0 && (self.sender.is_idle() || self.told_end & flags::RESET != 0);
        app_closed || self.said_end & OVER != 0
    }

    /// Whether nobody on this host reads what comes, so that nothing need be fetched any more.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.lane.is_none() || self.gone || self.broken || (self.seen_flags | self.told_end) & OVER != 0
    }

    /// Whether the other bridge has told the end of its direction, after which it uses our rings no more.
    #[must_use]
    pub fn heard_over(&self) -> bool {
        self.heard_end.is_some_and(|(_, ends)| ends & OVER != 0)
    }

    /// Takes the lane to give it back.
    pub fn take_lane(&mut self) -> Option<LaneEnd> {
        self.lane.take()
    }

    /// Whether both bridges have told the end and heard it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lane.is_none() && self.heard_over() && self.told_end & OVER != 0
    }

    /// The other bridge is gone, or knows nothing of the connection: nobody hears its end, and none will be heard.
    pub fn unheard(&mut self) {
        self.told_end |= flags::RESET | flags::CLOSED;
        self.end_lost = false;
        let offset = self.reorder.prefix();
        self.heard_end = Some((offset, flags::RESET | flags::CLOSED));
    }

    /// Nothing comes of it: the client was refused, and the other bridge is told that there is no such connection when it
    /// speaks about it.
    pub fn give_up(&mut self) {
        self.stage = Stage::Open;
        self.reset();
        self.unheard();
    }

    /// Resets both ends: the app is told, and the other bridge will be.
    pub fn reset(&mut self) {
        self.said_end |= flags::RESET | flags::CLOSED;
        if let Some(lane) = &self.lane {
            lane.say(flags::RESET | flags::CLOSED);
        }
        self.broken = true;
    }
}

/// The position of `offset` in a ring where `known` stands at `position`.
fn position_of(position: u32, known: u64, offset: u64) -> u32 {
    // Rings are smaller than 2^32 bytes, and positions are reduced to the ring where they are used.
    position.wrapping_add(offset.wrapping_sub(known) as u32)
}

/// An app that is gone takes nothing and breaks no rule.
fn absent_is_fine(fault: Fault) -> Result<(), Fault> {
    if fault == Fault::Gone { Ok(()) } else { Err(fault) }
}

fn absent_is_nothing(fault: Fault) -> Result<Option<u8>, Fault> {
    absent_is_fine(fault).map(|()| None)
}

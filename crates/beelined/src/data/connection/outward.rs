//! The outward direction: from the app's ring to the other bridge (rules 1, 2 and 4 of [`super`]).

use beeline_meeting::bridge::{Armed, Fault, Readable, flags};

use super::super::sender::{Credit, How, LinkId};
use super::{Broken, Connection, ENDS, OVER, Outward, Stage, absent_is_fine, absent_is_nothing, position_of};

/// Looks at a ring that each only go past an urgent byte: two happen, and more than this is an app that scribbles.
const LOOKS_MAX: usize = 64;

impl Connection {
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
        match lane.readable().map_err(|_| Broken::App)? {
            Readable::Bytes(count, first) => {
                available = available.saturating_add(count.into());
                position = first;
            }
            Readable::Urgent if self.urgent.is_none() => {
                if let Some(byte) = lane.take_urgent().or_else(absent_is_nothing).map_err(|_| Broken::App)? {
                    self.urgent = Some((self.ring_offset, byte));
                    self.ring_offset = self.ring_offset.saturating_add(1);
                }
                return Ok(None);
            }
            Readable::Urgent => {}
        }
        // Behind an urgent byte there may be more, which cannot be seen yet.
        let written = self.ring_offset.saturating_add(self.seen_tail.wrapping_sub(lane.head()).into());
        let written = written.max(available);
        if self.told_end != 0 && written > self.told_end_at {
            // Behind its own end, which no library does. The other bridge would take this one for the offender. Of a
            // lane that is closed and only waits for network cards nothing is sent, whatever becomes of it.
            let is_closed = self.told_over() && self.sender.is_idle();
            return if is_closed { Ok(Some(Outward::Nothing)) } else { Err(Broken::App) };
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
        if available < written && available > self.told_urge {
            // An urgent byte stands there, which is seen when all before it has left the ring.
            return Ok(Some(Outward::Urge { offset: available }));
        }
        Ok(Some(self.ending(said, gone, written)))
    }

    /// Notes how much the app has written, while nothing can be sent: what was seen is no reason to look again.
    pub fn glance(&mut self) {
        if let Some(lane) = &self.lane {
            (self.seen_flags, self.seen_tail) = (lane.peer_flags(), lane.tail());
        }
    }

    /// The end, if it is to be told now.
    fn ending(&mut self, said: u32, gone: bool, written: u64) -> Outward {
        let mut ends = said & ENDS;
        if gone && ends & OVER == 0 {
            // Closed without a word: as a kernel would, by what the app left unread and by what it had set.
            let unread = self.lane.as_ref().and_then(|lane| lane.unread_by_peer().ok()).unwrap_or(0) != 0;
            let aborts = said & flags::ABORTS != 0 || self.lane.as_ref().is_some_and(|lane| !lane.is_taken());
            ends |= flags::CLOSED | if unread || aborts { flags::RESET } else { flags::FIN };
        }
        if ends & OVER == 0 && self.has_nothing_to_come() {
            // With both halves shut down the kernel tells no more of the app's end: an app that ends without closing
            // would never be seen to.
            ends |= flags::CLOSED;
            self.say_end(flags::CLOSED);
        }
        let sent = self.sender.sent();
        let all_sent = sent == written;
        if ends & !self.told_end != 0 && (all_sent || ends & flags::RESET != 0) {
            return Outward::End { offset: sent, flags: ends };
        }
        Outward::Nothing
    }

    /// Whether both directions have ended, and everything before their ends is where it belongs.
    fn has_nothing_to_come(&self) -> bool {
        self.told_end & self.said_end & flags::FIN != 0 && self.sender.is_idle()
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
    pub fn sending(&mut self, offset: u64, bytes: u64, link: LinkId, how: How) {
        self.sender.sending(offset, bytes, link, how);
    }

    /// Notes that the other bridge was urged.
    pub fn urged(&mut self, offset: u64) {
        self.told_urge = offset;
    }

    /// Notes that the end was told.
    pub fn ended(&mut self, offset: u64, flags: u32) {
        self.told_end |= flags;
        self.told_end_at = offset;
        self.end_lost = false;
    }

    /// How many bytes were sent of which the other bridge has not said that it has them.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.sender.sent().saturating_sub(self.sender.acked())
    }

    /// What of it is in the accounts of links.
    pub fn on_links(&self) -> impl Iterator<Item = Credit> {
        self.sender.on_links()
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
        carried: impl FnMut(Credit),
    ) -> Result<(), Broken> {
        self.sender.resync(link, std::iter::once((0, placed)).chain(ranges));
        self.acked(placed, limit, carried)?;
        self.end_lost = self.told_end != 0;
        self.told_urge = 0;
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
                // A quarter of the ring is free. What of it the other bridge does not know is said at once if it is as
                // much (see `ack_due`), and else in a while: with the rest it has enough to go on, and what comes of
                // that wakes us.
                Ok(armed) => ready |= armed == Armed::Ready && self.owes_much_room(),
                Err(Fault::Gone) => self.gone = true,
                Err(_) => return Err(Broken::App),
            }
        }
        Ok(!ready && !self.gone && lane.peer_flags() == self.seen_flags)
    }
}

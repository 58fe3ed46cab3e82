//! The inward direction: from the other bridge to the app's ring (rules 3 and 4 of [`super`]).

use beeline_meeting::bridge::flags;
use beeline_topo::stripe::PIECES_MAX;

use super::{Broken, Connection, ENDS, absent_is_fine, position_of};

impl Connection {
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
        // Bytes behind it may have overtaken it on other links. Those before it have not: it is sent when they have
        // come.
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
        self.untold_pieces = self.untold_pieces.saturating_add(1);
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
            self.say_end(ends);
        }
        Ok(())
    }

    pub(super) fn say_end(&mut self, ends: u32) {
        self.said_end |= ends;
        if let Some(lane) = &self.lane {
            lane.say(ends);
        }
    }

    /// What to acknowledge: whether it is urgent, everything before which byte has come, and how far may be sent.
    /// `None` when nothing is new.
    #[must_use]
    pub fn ack_due(&self) -> Option<(bool, u64, u64)> {
        let placed = self.reorder.prefix();
        let limit = self.limit_now();
        let (placed_more, room_more) = (placed.saturating_sub(self.told_placed), limit.saturating_sub(self.told_limit));
        // The other end keeps in its ring what it does not know to have come, and begins no more pieces than it may.
        let urgent = placed_more >= self.ring_bytes.min(self.their_ring_bytes) / 4
            || self.owes_much_room()
            || self.untold_pieces >= PIECES_MAX / 2
            || self.told_placed < self.heard_urge && placed >= self.heard_urge;
        (placed_more != 0 || room_more != 0).then_some((urgent, placed, limit))
    }

    /// Whether there is so much room of which the other bridge does not know that it is told at once.
    pub(super) fn owes_much_room(&self) -> bool {
        self.limit_now().saturating_sub(self.told_limit) >= self.ring_bytes / 4
    }

    fn limit_now(&self) -> u64 {
        let placed = self.reorder.prefix();
        let unread = self.lane.as_ref().and_then(|lane| lane.unread_by_peer().ok()).unwrap_or(0);
        placed.saturating_sub(unread.into()).saturating_add(self.ring_bytes).max(self.told_limit)
    }

    /// The other bridge waits for it to be said that everything before this offset has come.
    pub fn urge(&mut self, offset: u64) {
        self.heard_urge = self.heard_urge.max(offset);
    }

    /// Notes that this was acknowledged.
    pub fn acknowledged(&mut self, placed: u64, limit: u64) {
        (self.told_placed, self.told_limit, self.untold_pieces) = (placed, limit, 0);
    }

    /// Whether the other bridge may soon have to wait for room, so that room must be watched for.
    #[must_use]
    pub fn owes_room(&self) -> bool {
        self.told_limit.saturating_sub(self.reorder.prefix()) < self.ring_bytes / 2
    }

    /// What the receiver has, for [`super::super::record::Record::Resync`]: everything before, up to where more may
    /// come, and the rest.
    #[must_use]
    pub fn have(&self) -> (u64, u64, &[(u64, u64)]) {
        (self.reorder.prefix(), self.limit_now(), self.reorder.above())
    }
}

#[cfg(test)]
mod tests {
    use beeline_meeting::bridge::pair;

    use super::super::{Outward, Stage};
    use super::*;

    #[test]
    fn both_ends_that_were_told_and_heard_close_a_connection_that_nobody_closes() {
        let (app, ours) = pair().unwrap();
        let ring_bytes = u64::from(ours.ring_bytes());
        let mut connection = Connection::new(1, Stage::Open, ours, ring_bytes);
        app.say(flags::FIN);
        assert_eq!(connection.outward(), Ok(Outward::End { offset: 0, flags: flags::FIN }));
        connection.ended(0, flags::FIN);
        assert_eq!(connection.outward(), Ok(Outward::Nothing));
        // The other end's is heard before the last byte that it has sent.
        connection.end(2, flags::FIN).unwrap();
        assert_eq!(connection.outward(), Ok(Outward::Nothing));
        connection.data(0, b"ab", false).unwrap();
        assert_eq!(app.peer_flags() & ENDS, flags::FIN);
        assert_eq!(connection.outward(), Ok(Outward::End { offset: 0, flags: flags::FIN | flags::CLOSED }));
        assert_eq!(app.peer_flags() & ENDS, flags::FIN | flags::CLOSED);
        connection.ended(0, flags::FIN | flags::CLOSED);
        assert!(connection.is_served());
        assert_eq!(connection.outward(), Ok(Outward::Nothing));
        connection.take_lane().unwrap().retire();
        app.say(flags::CLOSED);
        app.retire();
    }
}

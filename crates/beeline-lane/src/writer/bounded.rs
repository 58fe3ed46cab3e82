//! Writers to whom the ring is smaller than it is.

use super::Writer;
use crate::Fault;
use crate::storage::Storage;

impl<S: Storage + Copy> Writer<'_, S> {
    /// The same writer, which finds the ring full when `turn` bytes are unread: the reader is to take its turn then. 0
    /// is no bound. See the rules of turns ([`crate`]).
    #[must_use]
    pub fn in_turns(self, turn: u32) -> Self {
        let held_back = if turn == 0 { 0 } else { self.storage.ring_bytes().saturating_sub(turn) };
        Self { beside: self.beside || turn != 0, ..self.holding_back(held_back) }
    }

    /// The same writer, which leaves so many bytes of the ring free: it finds the ring full, and room in it, as if it
    /// were smaller. To the reader it is not: what that reads first wakes a writer that waits.
    #[must_use]
    #[inline]
    pub fn holding_back(self, bytes: u32) -> Self {
        Self { held_back: self.held_back.max(bytes), ..self }
    }

    /// Bytes that it takes at once.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn free(&self) -> Result<u32, Fault> {
        Ok(self.in_use().saturating_sub(self.unread()?))
    }

    /// The ring without what stays free.
    #[inline]
    pub(crate) fn in_use(&self) -> u32 {
        self.storage.ring_bytes().saturating_sub(self.held_back)
    }
}

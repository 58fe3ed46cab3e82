//! Writers to whom the ring is smaller than it is.

use core::sync::atomic::Ordering::Acquire;

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
    pub(super) fn in_use(&self) -> u32 {
        self.storage.ring_bytes().saturating_sub(self.held_back)
    }

    /// Asks to be told when the reader has had its turn. False if it has had it already, and nothing is to be waited
    /// for.
    #[must_use]
    pub fn ask_for_turn(&self, turn: u32) -> bool {
        self.storage.set_awaits_turn(self.end, true);
        // Pairs with the fence in `Reader::arm`: either the reader sees the word, or we see that it has read.
        self.storage.full_fence();
        let waits = self.state.tail.load(Acquire).wrapping_sub(self.storage.head(self.end.peer())) > turn / 2;
        if !waits {
            self.storage.set_awaits_turn(self.end, false);
        }
        waits
    }
}

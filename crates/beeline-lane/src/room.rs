//! Waiting for room: the rules of waking a writer, and of turns ([`crate`]).

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::WAKE_ARMED;

use crate::storage::{Bells, Storage, Wake};
use crate::wake::next_generation;
use crate::writer::Writer;
use crate::{Armed, Fault};

/// Bells that make a plugged anchor not writable, whatever else is queued.
pub(crate) const PLUG_BELLS: u32 = 4;

impl<S: Storage + Copy> Writer<'_, S> {
    /// Asks to be told when the reader has had its turn. False if it has had it already, and nothing is to be waited
    /// for. The tx lock is held, so that the tail is that of the last write.
    #[must_use]
    pub fn ask_for_turn(&self, turn: u32) -> bool {
        self.storage.set_awaits_turn(self.end, true);
        // Pairs with the fence in `Reader::arm`: either the reader sees the word, or we see that it has read.
        self.storage.full_fence();
        let waits = self.state.tail.load(Relaxed).wrapping_sub(self.storage.head(self.end.peer())) > turn / 2;
        if !waits {
            self.storage.set_awaits_turn(self.end, false);
        }
        waits
    }

    /// Whether a poller should be told that there is room: a quarter of the ring is free.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    #[inline]
    pub fn writable(&self) -> Result<bool, Fault> {
        let tail = self.state.tail.load(Relaxed);
        let used = tail.wrapping_sub(self.state.head_seen.load(Relaxed));
        if enough_room(self.in_use(), used) {
            return Ok(true);
        }
        Ok(enough_room(self.in_use(), self.used(tail)?))
    }

    /// Whether there is room for a sleeper to be told of, or nonsense that a write will find. For one without the lock:
    /// others may write meanwhile, and the peer may have read what they have published and not yet noted.
    fn may_write(&self) -> bool {
        let head = self.storage.head(self.end.peer());
        // It may lag behind the peer's head, which the comparison with the whole ring allows for.
        let used = self.state.tail.load(Relaxed).wrapping_sub(head);
        enough_room(self.in_use(), used) || used > self.storage.ring_bytes()
    }

    /// Prepares to sleep until there is room, or for a moment if the peer reads no more and the kernel says that there
    /// is some (rule 6 of *Waking a writer*, [`crate`]). The tx lock need not be held, if nobody else arms meanwhile.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn arm(&self, bells: &impl Bells) -> Result<Armed, Fault> {
        if self.may_write() {
            return Ok(Armed::Ready);
        }
        // A sibling that sleeps has plugged the anchor for us, too, if the reader has not undone it yet.
        let word = self.storage.wake(self.end, Wake::Write);
        let joined = word & WAKE_ARMED != 0 && word == self.state.write_wake.load(Relaxed) && bells.plugged();
        if !joined {
            bells.unplug();
            if self.storage.reads_no_more(self.end.peer()) {
                // No bell would lie there.
                return Ok(Armed::Sleep);
            }
            for _ in 0..PLUG_BELLS {
                bells.ring()?;
            }
            let wake = next_generation(self.state.write_wake.load(Relaxed));
            self.state.write_wake.store(wake, Relaxed);
            self.storage.set_wake(self.end, Wake::Write, wake);
        }
        // Pairs with the fence in `Reader::consumed`.
        self.storage.full_fence();
        if self.may_write() {
            return Ok(Armed::Ready);
        }
        if !joined {
            bells.plug();
        }
        Ok(Armed::Sleep)
    }
}

/// Whether `used` bytes leave a quarter of a ring free.
pub(crate) fn enough_room(ring_bytes: u32, used: u32) -> bool {
    used <= ring_bytes.wrapping_sub(ring_bytes >> 2)
}

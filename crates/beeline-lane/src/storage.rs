//! What the protocol needs from memory and from the kernel.

use beeline_shm::{Cursor, End, LaneMemory, Sink, Source, full_fence};

/// The two wake words of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// "Ring when there is data."
    Read,
    /// "Tell me when there is room."
    Write,
}

/// A lane's memory, as in `beeline_shm::LaneMemory`. Cursors and heads are loaded with acquire and stored
/// with release semantics, and so are flags; wake words are relaxed and ordered by [`Storage::full_fence`]. No function
/// has a body here: a model leaves out what it names, and nothing else.
pub trait Storage {
    /// Bytes in each ring; a power of two.
    fn ring_bytes(&self) -> u32;
    /// Whether `end` has said that it is closed. Its anchor may stay open, and then nothing else tells.
    fn is_closed(&self, end: End) -> bool;
    /// Whether `end` has said that no byte follows, or that it is closed: its last bell may be all that tells.
    fn is_over(&self, end: End) -> bool;
    /// Whether `end` has said that it reads no more.
    fn reads_no_more(&self, end: End) -> bool;
    /// Whether `end` has said that it neither reads nor sends any more: the next bytes are answered by a reset.
    fn is_shut(&self, end: End) -> bool;
    /// The cursor of `end`.
    fn cursor(&self, end: End) -> Cursor;
    /// Publishes the cursor of `end`.
    fn set_cursor(&self, end: End, cursor: Cursor);
    /// The head of `end`: bytes it has read.
    fn head(&self, end: End) -> u32;
    /// Publishes the head of `end`.
    fn set_head(&self, end: End, head: u32);
    /// How many bytes `end` had read, modulo 2^48, when it last sent, and whether it has ever marked a byte urgent.
    fn echo(&self, end: End) -> (u64, bool);
    /// Stores how many bytes `end` has read, modulo 2^48, with release semantics: a peer may see it before the
    /// cursor that follows, and reuses the space of those bytes.
    fn set_echo(&self, end: End, read: u64);
    /// Mark and number of the last urgent byte of `end` ([`crate::urgent`]); acquire.
    fn urgent(&self, end: End) -> u64;
    /// Stores mark and number of an urgent byte of `end`, then says that there is one; release.
    fn set_urgent(&self, end: End, urgent: u64);
    /// The old urgent bytes of `end` that are passed over; acquire.
    fn passed(&self, end: End) -> u64;
    /// Stores which old urgent bytes of `end` are passed over; release.
    fn set_passed(&self, end: End, passed: u64);
    /// A wake word of `end`.
    fn wake(&self, end: End, wake: Wake) -> u32;
    /// Stores a wake word of `end`.
    fn set_wake(&self, end: End, wake: Wake, value: u32);
    /// Clears the armed bit of a wake word of `end` if the word is still `seen`.
    fn clear_wake(&self, end: End, wake: Wake, seen: u32);
    /// Copies `source` into the ring that `end` writes.
    fn copy_in(&self, end: End, position: u32, source: Source<'_>);
    /// As [`Storage::copy_in`], around the caches.
    fn copy_in_around(&self, end: End, position: u32, source: Source<'_>);
    /// Fills `sink` from the ring that `end` writes.
    fn copy_out(&self, end: End, position: u32, sink: Sink<'_>);
    /// Gives the memory of the ring that `end` writes back, but for its beginning.
    fn discard_ring(&self, end: End);
    /// Notes that `end` has something new to tell as from now, for a peer that watches several connections.
    fn set_stamp(&self, end: End);
    /// Has the writers of the peer of `end` do so.
    fn ask_order(&self, end: End);
    /// Whether a writer of `end` waits for the reader's turn to be over ([`crate::Writer::in_turns`]).
    fn awaits_turn(&self, end: End) -> bool;
    /// Stores whether it does.
    fn set_awaits_turn(&self, end: End, awaits: bool);
    /// Wakes the writers of `end` that wait for the reader's turn to be over, and clears the word first.
    fn end_turn(&self, end: End);
    /// The number of the sleep that a bell for `end` would end; 0 for none that has one.
    fn sleep(&self, end: End) -> u64;
    /// Stores it.
    fn set_sleep(&self, end: End, sleep: u64);
    /// Orders earlier stores before later loads.
    fn full_fence(&self);
}

/// What can go wrong with bells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BellFault {
    /// The peer's end of the anchor is closed.
    Gone,
    /// The peer sent something else than bells.
    BadBell,
}

/// The anchor, as a counter of bells in each direction.
pub trait Bells {
    /// Queues one bell for the peer. A queue too full to take it counts as rung: the peer is readable.
    ///
    /// # Errors
    /// [`BellFault::Gone`].
    fn ring(&self) -> Result<(), BellFault>;

    /// As [`Bells::ring`], unless this process has rung for that sleep of the peer's process before, on whichever lane.
    /// Whether a bell was queued, or should have been.
    ///
    /// # Errors
    /// As there.
    fn ring_for(&self, _sleep: u64) -> Result<bool, BellFault> {
        self.ring().map(|()| true)
    }

    /// Bells queued for us.
    ///
    /// # Errors
    /// [`BellFault::Gone`].
    fn queued(&self) -> Result<u32, BellFault>;

    /// Takes out `count` bells; fewer if fewer are there.
    ///
    /// # Errors
    /// Any [`BellFault`].
    fn drain(&self, count: u32) -> Result<(), BellFault>;

    /// Takes out all bells that are queued, or as many as one call takes. Returns how many.
    ///
    /// # Errors
    /// Any [`BellFault`].
    fn drain_all(&self) -> Result<u32, BellFault> {
        let queued = self.queued()?;
        self.drain(queued)?;
        Ok(queued)
    }

    /// Makes the kernel report the anchor writable only while at most three bells are queued for the
    /// peer, by a small send buffer.
    fn plug(&self);

    /// Whether the kernel reports the anchor as not writable.
    fn plugged(&self) -> bool;

    /// Makes the kernel report the anchor writable whatever is queued, by a large send buffer, as it does
    /// before the first [`Bells::plug`], and wakes those who sleep for it.
    fn unplug(&self);
}

impl Storage for LaneMemory {
    #[inline]
    fn is_closed(&self, end: End) -> bool {
        LaneMemory::flags(self, end) & crate::flags::CLOSED != 0
    }

    fn is_over(&self, end: End) -> bool {
        LaneMemory::flags(self, end) & (crate::flags::CLOSED | crate::flags::FIN) != 0
    }
    #[inline]
    fn reads_no_more(&self, end: End) -> bool {
        LaneMemory::flags(self, end) & crate::flags::SHUT_RD != 0
    }
    #[inline]
    fn is_shut(&self, end: End) -> bool {
        LaneMemory::flags(self, end) & crate::flags::SHUT_BOTH == crate::flags::SHUT_BOTH
    }
    #[inline]
    fn ring_bytes(&self) -> u32 {
        LaneMemory::ring_bytes(self)
    }
    #[inline]
    fn cursor(&self, end: End) -> Cursor {
        LaneMemory::cursor(self, end)
    }
    #[inline]
    fn set_cursor(&self, end: End, cursor: Cursor) {
        LaneMemory::set_cursor(self, end, cursor);
    }
    #[inline]
    fn head(&self, end: End) -> u32 {
        LaneMemory::head(self, end)
    }
    #[inline]
    fn set_head(&self, end: End, head: u32) {
        LaneMemory::set_head(self, end, head);
    }
    #[inline]
    fn echo(&self, end: End) -> (u64, bool) {
        LaneMemory::echo(self, end)
    }
    #[inline]
    fn set_echo(&self, end: End, read: u64) {
        LaneMemory::set_echo(self, end, read);
    }
    fn urgent(&self, end: End) -> u64 {
        LaneMemory::urgent(self, end)
    }
    fn set_urgent(&self, end: End, urgent: u64) {
        LaneMemory::set_urgent(self, end, urgent);
        self.set_flags(end, self.flags(end) | crate::flags::URGENT);
    }
    fn passed(&self, end: End) -> u64 {
        LaneMemory::passed(self, end)
    }
    fn set_passed(&self, end: End, passed: u64) {
        LaneMemory::set_passed(self, end, passed);
    }
    #[inline]
    fn wake(&self, end: End, wake: Wake) -> u32 {
        self.wake_word(end, wake).load(core::sync::atomic::Ordering::Relaxed)
    }
    #[inline]
    fn set_wake(&self, end: End, wake: Wake, value: u32) {
        self.wake_word(end, wake).store(value, core::sync::atomic::Ordering::Relaxed);
    }
    #[inline]
    fn clear_wake(&self, end: End, wake: Wake, seen: u32) {
        use core::sync::atomic::Ordering::Relaxed;
        let _ = self.wake_word(end, wake).compare_exchange(seen, seen & !beeline_shm::WAKE_ARMED, Relaxed, Relaxed);
    }
    #[inline(always)]
    fn copy_in(&self, end: End, position: u32, source: Source<'_>) {
        LaneMemory::copy_in(self, end, position, source);
    }
    fn copy_in_around(&self, end: End, position: u32, source: Source<'_>) {
        LaneMemory::copy_in_around(self, end, position, source);
    }
    #[inline(always)]
    fn copy_out(&self, end: End, position: u32, sink: Sink<'_>) {
        LaneMemory::copy_out(self, end, position, sink);
    }
    fn discard_ring(&self, end: End) {
        LaneMemory::discard_ring(self, end);
    }
    fn set_stamp(&self, end: End) {
        LaneMemory::set_stamp(self, end);
    }
    fn ask_order(&self, end: End) {
        LaneMemory::ask_order(self, end);
    }
    fn awaits_turn(&self, end: End) -> bool {
        self.turn(end).load(core::sync::atomic::Ordering::Relaxed) != 0
    }
    fn set_awaits_turn(&self, end: End, awaits: bool) {
        self.turn(end).store(u32::from(awaits), core::sync::atomic::Ordering::Relaxed);
    }
    fn end_turn(&self, end: End) {
        LaneMemory::end_turn(self, end);
    }
    fn sleep(&self, end: End) -> u64 {
        LaneMemory::sleep(self, end).load(core::sync::atomic::Ordering::Relaxed)
    }
    fn set_sleep(&self, end: End, sleep: u64) {
        LaneMemory::sleep(self, end).store(sleep, core::sync::atomic::Ordering::Relaxed);
    }
    #[inline]
    fn full_fence(&self) {
        full_fence();
    }
}

/// Selects a wake word of real lane memory.
trait WakeWord {
    fn wake_word(&self, end: End, wake: Wake) -> &core::sync::atomic::AtomicU32;
}

impl WakeWord for LaneMemory {
    #[inline]
    fn wake_word(&self, end: End, wake: Wake) -> &core::sync::atomic::AtomicU32 {
        match wake {
            Wake::Read => self.read_wake(end),
            Wake::Write => self.write_wake(end),
        }
    }
}

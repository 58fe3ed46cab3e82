//! The writing half of an end.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
#[cfg(not(loom))]
use core::sync::atomic::fence;

#[cfg(loom)]
use loom::sync::atomic::fence;

use beeline_shm::{Cursor, End, INLINE_BYTES, Source, WAKE_ARMED, WAKE_ORDER};

use crate::Fault;
use crate::state::{RxState, TxState};
use crate::storage::{Bells, Storage, Wake};

mod bounded;

/// Bytes copied between two publications of the cursor: a long message reaches a waiting reader while
/// its rest is still being copied, and the reader's copy overlaps ours.
const CHUNK_BYTES: usize = 32 * 1024;

/// When the ring's used part grows into a new unit of this size, the producer looks whether it could
/// rewind instead: quiet connections stay within few pages at one line transfer per page.
const FOOTPRINT_BYTES: u32 = 2048;
/// The part of a position that lies within such a unit.
const FOOTPRINT_MASK: u32 = FOOTPRINT_BYTES - 1;

/// A stream of messages this long walks through the whole ring even if the reader keeps up: to write over lines that
/// the reader has just read takes them out of its cache one by one (measured with 64 KiB: 11 GB/s, 30 GB/s with
/// a ring beyond the caches of both).
const STREAM_BYTES: usize = 16 * 1024;

/// Counts in a front's status are this long.
const COUNT_MASK: u64 = (1 << 48) - 1;

/// Bells that are spared while the peer reads nothing, at most; a mask.
const SPARED_MAX: u32 = (1 << SPARED_BITS) - 1;
const SPARED_BITS: u32 = 2;

/// The writing half of one end. The caller holds the end's tx lock for as long as it has one.
#[derive(Clone, Copy)]
pub struct Writer<'a, S> {
    pub(crate) storage: S,
    pub(crate) end: End,
    pub(crate) state: &'a TxState,
    pub(crate) rx: &'a RxState,
    /// Whether long messages are copied around the caches.
    around: bool,
    /// Whether the reader is on this CPU.
    beside: bool,
    /// Bytes of the ring that stay free.
    pub(crate) held_back: u32,
}

impl<'a, S: Storage + Copy> Writer<'a, S> {
    /// The writer of `end`; `rx` is the same end's reading state, which writes echo to the peer.
    #[inline]
    pub fn new(storage: S, end: End, state: &'a TxState, rx: &'a RxState) -> Self {
        Self { storage, end, state, rx, around: false, beside: false, held_back: 0 }
    }

    /// The same writer, which copies around the caches if `around`.
    #[must_use]
    pub fn around_caches(self, around: bool) -> Self {
        Self { around, ..self }
    }

    /// The same writer, whose reader is on this CPU if `beside`: it is woken when all is written, as it would take the
    /// CPU for each chunk of it; and a ring that it has emptied is begun anew, as its beginning is what both have in
    /// their one cache.
    #[must_use]
    pub fn beside_reader(self, beside: bool) -> Self {
        Self { beside, ..self }
    }

    /// Writes as much of `source` as there is room for, publishing as it goes and waking a sleeping
    /// reader. Returns the bytes taken; 0 means full.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. What was published before stays published.
    #[inline]
    pub fn write(&self, mut source: Source<'_>, bells: &impl Bells) -> Result<usize, Fault> {
        let total = source.len();
        self.fill(&mut source, || if self.beside { Ok(()) } else { self.wake_reader(bells) })?;
        let taken = total.wrapping_sub(source.len());
        if self.beside && taken != 0 {
            self.wake_reader(bells)?;
        }
        Ok(taken)
    }

    /// Writes all of a small `source` if there is room for it and the reader is awake; otherwise changes nothing
    /// that the peer can see and returns `false`, and [`Writer::write`] does it.
    ///
    /// A reader that falls asleep in between is rung as ever. A peer that turns out to be gone then is not
    /// reported: to the app it took the bytes before it went.
    #[inline(always)]
    pub fn write_small(&self, source: Source<'_>, bells: &impl Bells) -> bool {
        let tail = self.state.tail.load(Relaxed);
        let bytes = self.state.bytes.load(Relaxed);
        let mut base = self.state.base.load(Relaxed);
        let length = source.len();
        let known_empty = self.is_known_empty(tail, bytes);
        match self.prepare(tail, &mut base, length, known_empty) {
            Ok(free) if free as usize >= length && length != 0 => {}
            _ => return false,
        }
        let wake = self.storage.wake(self.end.peer(), Wake::Read);
        if wake & (WAKE_ARMED | WAKE_ORDER) != 0 {
            if wake & WAKE_ARMED != 0 {
                return false;
            }
            stamp_if_empty(self.storage, self.end, self.state, tail, known_empty);
        }
        let next = tail.wrapping_add(length as u32);
        self.reach(next.wrapping_sub(base));
        self.storage.copy_in(self.end, tail.wrapping_sub(base), source);
        self.echo();
        self.commit(next, base);
        self.state.bytes.store(bytes.wrapping_add(length as u64), Relaxed);
        // A peer that is gone is found by the next call that sends, waits or reads.
        let _ = self.wake_reader(bells);
        true
    }

    /// As [`Writer::write`], but takes what it wrote off `source` and wakes nobody: no system call is made while other
    /// processes wait for the lock. [`Writer::tell_reader`] is to follow when the lock was given back, also after a
    /// fault.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. What was taken off `source` stays published.
    pub fn write_quietly(&self, source: &mut Source<'_>) -> Result<(), Fault> {
        self.fill(source, || Ok(()))
    }

    /// Writes as much of `source` as there is room for, part by part, and takes it off. Each part is published, noted,
    /// and followed by `after_each`, whose fault ends it.
    #[inline(always)]
    fn fill(&self, source: &mut Source<'_>, mut after_each: impl FnMut() -> Result<(), Fault>) -> Result<(), Fault> {
        let mut at = Cursor { tail: self.state.tail.load(Relaxed), base: self.state.base.load(Relaxed) };
        let mut bytes = self.state.bytes.load(Relaxed);
        let mut known_empty = self.is_known_empty(at.tail, bytes);
        self.begin(at.tail, known_empty);
        while !source.is_empty() {
            let count = self.put(source, &mut at, known_empty)?;
            if count == 0 {
                break;
            }
            bytes = bytes.wrapping_add(u64::from(count));
            self.state.bytes.store(bytes, Relaxed);
            known_empty = false;
            after_each()?;
        }
        Ok(())
    }

    /// Writes the next part of `source` at the cursor, publishes it and moves the cursor on. Returns the bytes taken; 0
    /// means full.
    #[inline(always)]
    fn put(&self, source: &mut Source<'_>, at: &mut Cursor, known_empty: bool) -> Result<u32, Fault> {
        let free = self.prepare(at.tail, &mut at.base, source.len(), known_empty)?.saturating_sub(self.held_back);
        if free == 0 {
            return Ok(0);
        }
        let part = source.split_front(CHUNK_BYTES.min(free as usize));
        let length = part.len() as u32;
        let position = at.tail.wrapping_sub(at.base);
        if self.around {
            self.storage.copy_in_around(self.end, position, part);
        } else {
            self.storage.copy_in(self.end, position, part);
        }
        self.reach(position.saturating_add(length));
        at.tail = at.tail.wrapping_add(length);
        self.commit(at.tail, at.base);
        Ok(length)
    }

    /// Wakes a sleeping reader, after [`Writer::write_quietly`]. The lock need not be held: several that do this at
    /// one time ring once each.
    ///
    /// # Errors
    /// [`Fault::Gone`].
    pub fn tell_reader(&self, bells: &impl Bells) -> Result<(), Fault> {
        self.wake_reader(bells)
    }

    /// Whether the ring is known to be empty without a look at the peer's head: an echo of all we ever wrote says so.
    /// The counts are 48 bits long because a reply may lie unread for long: no stale one comes by again within 2^48
    /// bytes. The tail is compared, too, as a holder that died may have left `bytes` behind it.
    #[inline(always)]
    fn is_known_empty(&self, tail: u32, bytes: u64) -> bool {
        self.state.echo_seen.load(Acquire) == bytes & COUNT_MASK && bytes as u32 == tail
    }

    /// Says how far this end has read.
    #[inline(always)]
    pub(crate) fn echo(&self) {
        self.storage.set_echo(self.end, self.rx.bytes.load(Acquire));
    }

    /// What goes before the first cursor of a write.
    #[inline(always)]
    fn begin(&self, tail: u32, known_empty: bool) {
        self.echo();
        if self.storage.wake(self.end.peer(), Wake::Read) & (WAKE_ARMED | WAKE_ORDER) != 0 {
            stamp_if_empty(self.storage, self.end, self.state, tail, known_empty);
        }
    }

    /// Publishes what is written up to `tail`. A holder that dies in here has published; [`Writer::recover`] brings the
    /// state up to the cursor.
    #[inline(always)]
    pub(crate) fn commit(&self, tail: u32, base: u32) {
        self.storage.set_cursor(self.end, Cursor { tail, base });
        self.state.tail.store(tail, Relaxed);
    }

    /// Notes that the ring is written up to `position`.
    #[inline]
    fn reach(&self, position: u32) {
        if position > self.state.reach.load(Relaxed) {
            self.state.reach.store(position.min(self.storage.ring_bytes()), Relaxed);
        }
    }

    /// Free bytes of the ring and the position of the first, for a holder that lets the kernel store bytes there. They
    /// are then announced with [`Writer::publish`]. Nothing that the peer can see has happened before that.
    ///
    /// A ring that is empty is rewound, so that they go to its beginning, however many they are: what the kernel copies
    /// from has mostly left the caches, and what it copies to had better not.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn rewound_room(&self) -> Result<(u32, u32), Fault> {
        let tail = self.state.tail.load(Relaxed);
        let used = self.used(tail)?;
        if used == 0 {
            self.state.base.store(tail.wrapping_sub(INLINE_BYTES), Relaxed);
        }
        let position = tail.wrapping_sub(self.state.base.load(Relaxed));
        Ok((self.storage.ring_bytes().saturating_sub(used), position))
    }

    /// As [`Writer::rewound_room`], but the bytes go where the last ones ended, even if the ring is empty: for a holder
    /// that has told somebody else where in the ring which byte will stand.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn room_in_place(&self) -> Result<(u32, u32), Fault> {
        let tail = self.state.tail.load(Relaxed);
        let used = self.used(tail)?;
        Ok((self.storage.ring_bytes().saturating_sub(used), tail.wrapping_sub(self.state.base.load(Relaxed))))
    }

    /// Announces `count` bytes stored where [`Writer::rewound_room`] said, at most as many as it said, and wakes a
    /// sleeping reader.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. The bytes are published all the same.
    pub fn publish(&self, count: u32, bells: &impl Bells) -> Result<(), Fault> {
        let before = self.state.tail.load(Relaxed);
        self.begin(before, false);
        let (tail, base) = (before.wrapping_add(count), self.state.base.load(Relaxed));
        self.reach(tail.wrapping_sub(base));
        self.commit(tail, base);
        self.state.bytes.store(self.state.bytes.load(Relaxed).wrapping_add(u64::from(count)), Relaxed);
        self.wake_reader(bells)
    }

    /// Chooses where the next bytes go, rewinding when the ring is known to be empty. Returns the free
    /// bytes of the ring.
    #[inline(always)]
    pub(crate) fn prepare(&self, tail: u32, base: &mut u32, wanted: usize, known_empty: bool) -> Result<u32, Fault> {
        let ring = self.storage.ring_bytes();
        let mut used = 0;
        if known_empty {
            self.state.head_seen.store(tail, Relaxed);
        } else {
            used = tail.wrapping_sub(self.state.head_seen.load(Relaxed));
            let position = tail.wrapping_sub(*base);
            // Less than a message beyond the last boundary: the one before, if as long, has come into a new unit.
            let is_in_new_unit = position & FOOTPRINT_MASK < wanted.min(FOOTPRINT_BYTES as usize) as u32;
            if is_in_new_unit || used as usize > (self.in_use() as usize).saturating_sub(wanted) {
                used = self.used(tail)?;
            }
        }
        if known_empty || used == 0 && (wanted < STREAM_BYTES || self.beside) {
            // Small messages begin in the front's own cache line, larger ones on the next.
            let position = if wanted <= INLINE_BYTES as usize { 0 } else { INLINE_BYTES };
            *base = tail.wrapping_sub(position);
            self.state.base.store(*base, Relaxed);
        }
        Ok(ring.saturating_sub(used))
    }

    /// Bytes written and not yet read by the peer, from one fresh and checked load of its head.
    #[inline]
    pub(crate) fn used(&self, tail: u32) -> Result<u32, Fault> {
        let head = self.storage.head(self.end.peer());
        let used = tail.wrapping_sub(head);
        let before = tail.wrapping_sub(self.state.head_seen.load(Relaxed));
        if used > before {
            return Err(Fault::HeadBeyondTail);
        }
        self.state.head_seen.store(head, Relaxed);
        Ok(used)
    }

    /// Rings the peer if it asked for it. Called after a cursor was published.
    #[inline(always)]
    pub(crate) fn wake_reader(&self, bells: &impl Bells) -> Result<(), Fault> {
        // Pairs with the fence in `Reader::arm`.
        self.storage.full_fence();
        let wake = self.storage.wake(self.end.peer(), Wake::Read);
        if wake & WAKE_ARMED == 0 { Ok(()) } else { self.ring_reader(wake, bells) }
    }

    /// Out of line: what is common is a reader that is awake.
    #[inline(never)]
    fn ring_reader(self, wake: u32, bells: &impl Bells) -> Result<(), Fault> {
        // Pairs with the fence in `force_peer_look`: the flags below are no older than the word.
        fence(Acquire);
        let sleep = self.storage.sleep(self.end.peer());
        let spared = (sleep != 0).then(|| self.may_spare()).flatten();
        match spared {
            None => bells.ring()?,
            Some(spared) => {
                if !bells.ring_for(sleep)? {
                    if self.storage.is_closed(self.end.peer()) {
                        return Err(Fault::Gone);
                    }
                    self.state.spared.store(spared, Relaxed);
                    return Ok(());
                }
            }
        }
        if self.storage.is_closed(self.end.peer()) {
            // It stays armed, so that no write goes on without a look at it.
            return Err(Fault::Gone);
        }
        // So does one that is shut both ways: it may have said so while a small write was under way, which did not
        // look, and the next one is to find that.
        if !self.storage.is_shut(self.end.peer()) {
            self.storage.clear_wake(self.end.peer(), Wake::Read, wake);
        }
        self.state.bells.store(self.state.bells.load(Relaxed).wrapping_add(1), Relaxed);
        Ok(())
    }

    /// What to note if a bell is spared; `None` if it is to be rung, as the peer has read nothing for some: a bell
    /// tells the writer, too, whether there is a peer.
    fn may_spare(&self) -> Option<u32> {
        let head = self.storage.head(self.end.peer()) << SPARED_BITS;
        let before = self.state.spared.load(Relaxed);
        let spared = if before & !SPARED_MAX == head { before & SPARED_MAX } else { 0 };
        (spared < SPARED_MAX).then_some(head | spared.wrapping_add(1))
    }

    /// Gives the ring's memory back if all of it is read. Returns whether it is.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn give_back(&self) -> Result<bool, Fault> {
        let empty = self.unread()? == 0;
        if empty {
            self.storage.discard_ring(self.end);
            self.state.reach.store(0, Relaxed);
        }
        Ok(empty)
    }

    /// How far the ring reaches at most once so many bytes more are written.
    #[must_use]
    pub fn would_reach(&self, more: u32) -> u32 {
        let position = self.state.tail.load(Relaxed).wrapping_sub(self.state.base.load(Relaxed));
        position.saturating_add(more).max(self.state.reach.load(Relaxed))
    }

    /// Bytes the peer has not read yet.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn unread(&self) -> Result<u32, Fault> {
        self.used(self.state.tail.load(Relaxed))
    }

    /// Copies bytes that the peer has not read, from `offset` on, out of the ring again: for a connection
    /// that begins anew elsewhere. Returns how many; 0 at the end.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn copy_back(&self, offset: u32, mut sink: beeline_shm::Sink<'_>) -> Result<usize, Fault> {
        let tail = self.state.tail.load(Relaxed);
        let unread = self.used(tail)?;
        let part = sink.split_front(unread.saturating_sub(offset) as usize);
        let length = part.len();
        let from = tail.wrapping_sub(unread).wrapping_add(offset);
        self.storage.copy_out(self.end, from.wrapping_sub(self.state.base.load(Relaxed)), part);
        Ok(length)
    }

    /// Brings the state up to what was published, after a holder may have died with the lock held. The
    /// cursor is our own, but it stands where the peer can write, so it is believed only if it lies
    /// within one ring of what we know.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`] when the front does not hold what this end can have written.
    pub fn recover(&self) -> Result<(), Fault> {
        let Cursor { tail, base } = self.storage.cursor(self.end);
        let ahead = tail.wrapping_sub(self.state.tail.load(Relaxed));
        let used = tail.wrapping_sub(self.state.head_seen.load(Relaxed));
        if ahead.max(used) > self.storage.ring_bytes() {
            return Err(Fault::HeadBeyondTail);
        }
        let bytes = self.state.bytes.load(Relaxed);
        self.state.tail.store(tail, Relaxed);
        self.state.base.store(base, Relaxed);
        self.state.bytes.store(bytes.wrapping_add(u64::from(tail.wrapping_sub(bytes as u32))), Relaxed);
        self.recover_mark(tail);
        Ok(())
    }
}

/// Before something is written: if the ring is empty, known to be or not, the reader may want to know when that ended.
/// Which of two connections has news first is the same as in the kernel then, whatever follows on both. What the
/// peer's head says is checked by whoever needs it.
#[cold]
#[inline(never)]
fn stamp_if_empty<S: Storage>(storage: S, end: End, state: &TxState, tail: u32, known_empty: bool) {
    if known_empty || state.head_seen.load(Relaxed) == tail || storage.head(end.peer()) == tail {
        storage.set_stamp(end);
    }
}

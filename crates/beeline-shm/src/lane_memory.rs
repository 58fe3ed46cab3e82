//! The memory of a lane: mapped, read and written. [`layout`] says where everything stands.

mod layout;
mod lent;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Fd;
use crate::buffer::{Sink, Source};
use crate::memfd::{self, FileId, MemfdFault};
use crate::sys::{self, Errno};
use layout::{
    AHEAD, CPU, FLAG_BITS, FLAGS, FRONT_BYTES, FRONT_CLIENT, OFFER, PAGE_BYTES, PASSED, SEAT, SLEEP, STAMP, STATUS,
    TURN, URGENT, WRITE_WAKE, head_line, wake_line,
};
pub use layout::{
    Cursor, End, FLAG_URGENT, INLINE_BYTES, RING_BYTES_MAX, RING_BYTES_MIN, WAKE_ARMED, WAKE_ORDER, lane_bytes,
};
pub use lent::{Lent, fetch};

/// What [`LaneMemory::discard_ring`] leaves.
const RING_KEPT_BYTES: usize = 8 * PAGE_BYTES;
/// The subtraction in there, for each ring that there can be.
const _: () = assert!(RING_BYTES_MIN as usize + PAGE_BYTES > RING_KEPT_BYTES);
/// How far ahead of the last byte written the producer asks for the ring's lines: they are in the reader's cache, and
/// to fetch them one at a time, at the fence that follows each message, halves the rate of small messages (measured on
/// two days, with the virtual CPUs on other cores: 12 M/s without, 24 with 256, 20 with 512; and 15, 18 with 512).
const PREFETCH_BYTES: usize = 512;

/// Why lane memory could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The received file is not what it must be.
    Fault(MemfdFault),
    /// The kernel refused.
    Os(Errno),
}

/// The mapped memory of one lane. Cheap to copy; unmapped only by [`LaneMemory::unmap`].
#[derive(Clone, Copy)]
pub struct LaneMemory {
    base: *mut u8,
    ring_bytes: u32,
}

// SAFETY: every access goes through atomics or the copy routine, which tolerate concurrent writers; who
// may call what is the business of the lane protocol, not of memory safety.
unsafe impl Send for LaneMemory {}
// SAFETY: as for Send.
unsafe impl Sync for LaneMemory {}

impl LaneMemory {
    /// Makes the memory of a new lane. Returns it with its memfd.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn create(ring_bytes: u32) -> Result<(LaneMemory, Fd), Errno> {
        let fd = memfd::create(c"beeline-lane", lane_bytes(ring_bytes))?;
        let base = sys::map_shared(fd.get(), lane_bytes(ring_bytes))?;
        Ok((LaneMemory { base, ring_bytes }, fd))
    }

    /// Maps a memfd received from a peer, after checking it. The caller keeps the descriptor.
    ///
    /// # Errors
    /// [`MapError::Fault`] when the file is not a sealed tmpfs memfd of exactly the right size,
    /// [`MapError::Os`] when mmap(2) fails.
    pub fn adopt(fd: i32, ring_bytes: u32) -> Result<(LaneMemory, FileId), MapError> {
        Self::adopt_with(fd, ring_bytes, sys::map_shared)
    }

    /// As [`LaneMemory::adopt`], in a process that locks what it maps (`mlockall(2)`): the lane is not locked.
    ///
    /// # Errors
    /// As there.
    pub fn adopt_unlocked(fd: i32, ring_bytes: u32) -> Result<(LaneMemory, FileId), MapError> {
        Self::adopt_with(fd, ring_bytes, sys::map_shared_unlocked)
    }

    fn adopt_with(
        fd: i32,
        ring_bytes: u32,
        map: fn(i32, usize) -> Result<*mut u8, Errno>,
    ) -> Result<(LaneMemory, FileId), MapError> {
        let id = memfd::check(fd, lane_bytes(ring_bytes)).map_err(MapError::Fault)?;
        let base = map(fd, lane_bytes(ring_bytes)).map_err(MapError::Os)?;
        Ok((LaneMemory { base, ring_bytes }, id))
    }

    /// The lane at an address that [`LaneMemory::address`] told.
    ///
    /// # Safety
    /// The lane of `ring_bytes` must still be mapped there.
    #[must_use]
    #[inline]
    pub unsafe fn from_parts(address: usize, ring_bytes: u32) -> LaneMemory {
        LaneMemory { base: address as *mut u8, ring_bytes }
    }

    /// Unmaps the lane.
    ///
    /// # Safety
    /// No copy of this value may be used afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: `base` is a mapping of this length, and the caller gives up all its users.
        unsafe { sys::unmap(self.base, lane_bytes(self.ring_bytes)) }
    }

    /// Whether the mapping is locked into memory.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        // SAFETY: the mapping's beginning. It is a file's, where the contents stay.
        unsafe { sys::is_locked(self.base) }
    }

    /// Unlocks the mapping.
    pub fn unlock(&self) {
        sys::unlock(self.base, lane_bytes(self.ring_bytes));
    }

    /// Bytes in each direction's ring; a power of two.
    #[must_use]
    #[inline]
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Address of the mapping, as an identity.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base as usize
    }

    /// A sum, not a choice of two: all that look at one front share it, whatever they add.
    #[inline(always)]
    fn front(&self, end: End) -> usize {
        FRONT_CLIENT + end as usize * (self.ring_bytes as usize + PAGE_BYTES - FRONT_CLIENT)
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= lane_bytes(self.ring_bytes) && offset.is_multiple_of(4));
        // SAFETY: offsets are the layout's constants, in bounds and aligned; atomics may be shared with
        // any writer; the mapping lives as long as `self` may be used (see `unmap`).
        unsafe { &*self.base.add(offset).cast::<AtomicU32>() }
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= lane_bytes(self.ring_bytes) && offset.is_multiple_of(8));
        // SAFETY: as for `word32`.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// How far `end` has written.
    #[must_use]
    #[inline]
    pub fn cursor(&self, end: End) -> Cursor {
        Cursor::from_word(self.word64(self.front(end)).load(Ordering::Acquire))
    }

    /// Where the front of `end` stands: for hints to the processor.
    #[must_use]
    pub fn front_address(&self, end: End) -> *const u8 {
        self.base.wrapping_add(self.front(end))
    }

    /// Publishes what `end` has written.
    #[inline]
    pub fn set_cursor(&self, end: End, cursor: Cursor) {
        self.word64(self.front(end)).store(cursor.word(), Ordering::Release);
    }

    /// How many bytes `end` has read.
    #[must_use]
    #[inline]
    pub fn head(&self, end: End) -> u32 {
        self.word32(head_line(end)).load(Ordering::Acquire)
    }

    /// Publishes how many bytes `end` has read.
    #[inline]
    pub fn set_head(&self, end: End, head: u32) {
        self.word32(head_line(end)).store(head, Ordering::Release);
    }

    /// When `end` last had something new to tell; hostile, and good for nothing but an order. It stands in the line of
    /// the head because `end` alone writes that, and the peer looks there only when it must know.
    #[must_use]
    pub fn stamp(&self, end: End) -> u64 {
        self.word64(head_line(end) + STAMP).load(Ordering::Relaxed)
    }

    /// Says that `end` has something new to tell as from now. Before the cursor or the flag that tells it.
    pub fn set_stamp(&self, end: End) {
        self.word64(head_line(end) + STAMP).store(crate::sys::ticks(), Ordering::Relaxed);
    }

    /// `end`, as a reader, wants stamps from now on.
    pub fn ask_order(&self, end: End) {
        self.read_wake(end).fetch_or(WAKE_ORDER, Ordering::Relaxed);
    }

    /// How many bytes `end` had read, modulo 2^48, when it last sent, and whether it has ever marked a byte urgent.
    #[must_use]
    #[inline]
    pub fn echo(&self, end: End) -> (u64, bool) {
        let status = self.word64(self.front(end) + STATUS).load(Ordering::Acquire);
        (status >> FLAG_BITS, status & u64::from(FLAG_URGENT) != 0)
    }

    /// Stores how many bytes `end` has read, modulo 2^48. Only `end` calls this, under its tx lock.
    #[inline]
    pub fn set_echo(&self, end: End, read: u64) {
        let status = self.word64(self.front(end) + STATUS);
        let flags = status.load(Ordering::Relaxed) & FLAGS;
        status.store(read << FLAG_BITS | flags, Ordering::Release);
    }

    /// The flags of `end`, 16 bits.
    #[must_use]
    #[inline]
    pub fn flags(&self, end: End) -> u32 {
        (self.word64(self.front(end) + STATUS).load(Ordering::Acquire) & FLAGS) as u32
    }

    /// Stores the flags of `end`, 16 bits. Only `end` calls this, under its tx lock.
    #[inline]
    pub fn set_flags(&self, end: End, flags: u32) {
        let status = self.word64(self.front(end) + STATUS);
        let echo = status.load(Ordering::Relaxed) & !FLAGS;
        status.store(echo | u64::from(flags) & FLAGS, Ordering::Release);
    }

    /// The word by which `end`, as a reader, asks for a doorbell.
    #[must_use]
    #[inline]
    pub fn read_wake(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end))
    }

    /// The word by which `end`, as a writer, asks to be told of room.
    #[must_use]
    #[inline]
    pub fn write_wake(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + WRITE_WAKE)
    }

    /// The word by which `end`, as a writer, asks to be told when the reader's turn is over.
    #[must_use]
    #[inline]
    pub fn turn(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + TURN)
    }

    /// How many bytes `end`, as a reader, wants to lie unread at most; 0 for as many as the ring holds. A wish.
    #[must_use]
    pub fn ahead(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + AHEAD)
    }

    /// The number of the sleep that a bell for `end` would end; 0 for none that has one.
    #[must_use]
    pub fn sleep(&self, end: End) -> &AtomicU64 {
        self.word64(wake_line(end) + SLEEP)
    }

    /// Wakes the threads of `end` that wait for the reader's turn to be over, if there may be any.
    #[inline]
    pub fn end_turn(&self, end: End) {
        let turn = self.turn(end);
        if turn.load(Ordering::Relaxed) != 0 {
            turn.store(0, Ordering::Relaxed);
            sys::futex(turn, libc::FUTEX_WAKE, i32::MAX as u32, None);
        }
    }

    /// The mark of the last urgent byte of `end`: see the lane protocol for the packing.
    #[must_use]
    pub fn urgent(&self, end: End) -> u64 {
        self.word64(wake_line(end) + URGENT).load(Ordering::Acquire)
    }

    /// Stores the mark of an urgent byte of `end`.
    pub fn set_urgent(&self, end: End, mark: u64) {
        self.word64(wake_line(end) + URGENT).store(mark, Ordering::Release);
    }

    /// Which bytes of `end` a reader that stands there passes over: see the lane protocol.
    #[must_use]
    pub fn passed(&self, end: End) -> u64 {
        self.word64(wake_line(end) + PASSED).load(Ordering::Acquire)
    }

    /// Stores which bytes of `end` a reader passes over.
    pub fn set_passed(&self, end: End, passed: u64) {
        self.word64(wake_line(end) + PASSED).store(passed, Ordering::Release);
    }

    /// The CPU, plus one, that `end` last woke up on; 0 if it has not said.
    #[must_use]
    #[inline]
    pub fn cpu(&self, end: End) -> &AtomicU32 {
        self.word32(wake_line(end) + CPU)
    }

    /// Reads the word that says whether the lane in a memory file is taken, without mapping it.
    ///
    /// # Errors
    /// Those of pread(2); `EIO` for a file that is too short.
    pub fn offer_in(memfd: i32) -> Result<u32, Errno> {
        let mut word = [0u8; 4];
        match sys::read_at(memfd, &mut word, wake_line(End::Client) + OFFER)? {
            4 => Ok(u32::from_ne_bytes(word)),
            _ => Err(Errno(libc::EIO)),
        }
    }

    /// The word that says whether the lane is taken: see the lane protocol.
    #[must_use]
    #[inline]
    pub fn offer(&self) -> &AtomicU32 {
        self.word32(wake_line(End::Client) + OFFER)
    }

    /// The word that says whether the server of a lane that nobody uses waits for its client: see the lane protocol.
    #[must_use]
    #[inline]
    pub fn seat(&self) -> &AtomicU32 {
        self.word32(wake_line(End::Server) + SEAT)
    }

    /// Gives the memory of `end`'s ring back to the kernel, but for its beginning. Nothing unread may be in the ring.
    pub fn discard_ring(&self, end: End) {
        let page = match end {
            End::Client => 0,
            End::Server => self.ring_bytes as usize + PAGE_BYTES,
        };
        let pages = self.ring_bytes as usize + PAGE_BYTES - RING_KEPT_BYTES;
        // SAFETY: whole pages of this mapping, from `RING_KEPT_BYTES` behind the beginning of the page in which this
        // ring's front stands to the next front's page, or the end: bytes of this ring alone. They read as zero
        // afterwards; if some of them are unread, the reader gets wrong data and nothing worse.
        unsafe { sys::discard(self.base.add(page + RING_KEPT_BYTES), pages) };
    }

    /// Copies `source` into `end`'s ring at `position`, reduced to the ring.
    #[inline(always)]
    pub fn copy_in(&self, end: End, position: u32, mut source: Source<'_>) {
        let ring = self.front(end) + FRONT_BYTES;
        let offset = (position & (self.ring_bytes - 1)) as usize;
        let until_wrap = self.ring_bytes as usize - offset;
        if source.len() <= until_wrap {
            // SAFETY: offset + length <= ring_bytes, so the target lies within this ring, which lies within
            // the mapping; app memory does not overlap our mapping.
            unsafe { crate::copy::copy(source.pointer(), self.base.add(ring + offset), source.len()) };
            let next = ring + offset + source.len() + PREFETCH_BYTES;
            return crate::copy::prefetch_write(self.base.wrapping_add(next));
        }
        let front = source.split_front(until_wrap);
        let rest = source.split_front(offset);
        // SAFETY: offset < ring_bytes and each part is cut to what fits, so both targets lie within this
        // ring, which lies within the mapping; app memory does not overlap our mapping.
        unsafe {
            crate::copy::copy(front.pointer(), self.base.add(ring + offset), front.len());
            if !rest.is_empty() {
                crate::copy::copy(rest.pointer(), self.base.add(ring), rest.len());
            }
        }
    }

    /// As [`LaneMemory::copy_in`], around the caches: faster where the reader's cache is far away. At most a ring's
    /// length is copied.
    pub fn copy_in_around(&self, end: End, position: u32, mut source: Source<'_>) {
        for (target, length) in self.pieces(end, position, source.len().min(self.ring_bytes as usize) as u32) {
            let part = source.split_front(length);
            // SAFETY: the piece lies within the mapping and is as long as the part; app memory does not overlap it.
            unsafe { crate::copy::copy_around(part.pointer(), target, part.len()) };
        }
    }

    /// Copies from `end`'s ring at `position`, reduced to the ring, until `sink` is full.
    #[inline(always)]
    pub fn copy_out(&self, end: End, position: u32, mut sink: Sink<'_>) {
        let ring = self.front(end) + FRONT_BYTES;
        let offset = (position & (self.ring_bytes - 1)) as usize;
        let until_wrap = self.ring_bytes as usize - offset;
        if sink.len() <= until_wrap {
            // SAFETY: as for `copy_in`, in the other direction.
            return unsafe { crate::copy::copy(self.base.add(ring + offset), sink.pointer(), sink.len()) };
        }
        let front = sink.split_front(until_wrap);
        let rest = sink.split_front(offset);
        // SAFETY: as for `copy_in`, in the other direction.
        unsafe {
            crate::copy::copy(self.base.add(ring + offset), front.pointer(), front.len());
            if !rest.is_empty() {
                crate::copy::copy(self.base.add(ring), rest.pointer(), rest.len());
            }
        }
    }

    /// Where `length` bytes from `position` on lie in `end`'s ring, both reduced to the ring: address and length of
    /// at most two pieces, for system calls that move bytes to or from there.
    #[must_use]
    pub fn pieces(&self, end: End, position: u32, length: u32) -> [(*mut u8, usize); 2] {
        let ring = self.front(end) + FRONT_BYTES;
        let offset = (position & (self.ring_bytes - 1)) as usize;
        let length = length.min(self.ring_bytes) as usize;
        let first = length.min(self.ring_bytes as usize - offset);
        // SAFETY: offset < ring_bytes, so both addresses lie within this ring, which lies within the mapping.
        unsafe { [(self.base.add(ring + offset), first), (self.base.add(ring), length - first)] }
    }

    /// Makes the lane as new for its next connection: all words zero but the seat, which is the server's; the stamps,
    /// which mean something once an end has something to tell; and, of the fetch lines, all but what is wanted: the
    /// loan's number goes on, and the others are said anew before they are looked at. Only the owner of a lane that
    /// nobody uses may do this.
    pub fn reset(&self) {
        self.offer().store(0, Ordering::Relaxed);
        for end in [End::Client, End::Server] {
            self.set_cursor(end, Cursor::default());
            self.set_head(end, 0);
            self.set_echo(end, 0);
            self.set_flags(end, 0);
            self.read_wake(end).store(0, Ordering::Relaxed);
            self.write_wake(end).store(0, Ordering::Relaxed);
            self.cpu(end).store(0, Ordering::Relaxed);
            self.set_urgent(end, 0);
            self.set_passed(end, 0);
            self.turn(end).store(0, Ordering::Relaxed);
            self.ahead(end).store(0, Ordering::Relaxed);
            self.sleep(end).store(0, Ordering::Relaxed);
            self.wanted(end).store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_where_bytes_are_copied() {
        let (lane, _) = LaneMemory::create(RING_BYTES_MIN).unwrap();
        let bytes: std::vec::Vec<u8> = (0..900u32).map(|i| i as u8).collect();
        for end in [End::Client, End::Server] {
            let position = 7 * RING_BYTES_MIN - 300;
            lane.copy_in(end, position, Source::from(&bytes[..]));
            let pieces = lane.pieces(end, position, 900);
            assert_eq!(pieces.map(|(_, length)| length), [300, 600]);
            let mut back = std::vec::Vec::new();
            for (address, length) in pieces {
                // SAFETY: within the mapping, which nobody else writes.
                back.extend_from_slice(unsafe { core::slice::from_raw_parts(address, length) });
            }
            assert_eq!(back, bytes);
        }
        assert_eq!(lane.pieces(End::Client, 5, u32::MAX).map(|(_, length)| length), [RING_BYTES_MIN as usize - 5, 5]);
        // SAFETY: not used afterwards.
        unsafe { lane.unmap() };
    }

    #[test]
    fn rings_wrap_and_do_not_touch_each_other() {
        let (lane, fd) = LaneMemory::create(RING_BYTES_MIN).unwrap();
        let bytes: std::vec::Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        for end in [End::Client, End::Server] {
            let position = RING_BYTES_MIN - 300;
            for copy_in in [LaneMemory::copy_in, LaneMemory::copy_in_around] {
                lane.copy_in(end, position, Source::from(&[0u8; 1000][..]));
                copy_in(&lane, end, position, Source::from(&bytes[..]));
                let mut back = [0u8; 1000];
                lane.copy_out(end, position, Sink::from(&mut back[..]));
                assert_eq!(&back[..], &bytes[..]);
            }
        }
        for end in [End::Client, End::Server] {
            assert_eq!((lane.cursor(end), lane.head(end), lane.flags(end)), (Cursor::default(), 0, 0));
        }
        let (again, _) = LaneMemory::adopt(fd.get(), RING_BYTES_MIN).unwrap();
        let cursor = Cursor { tail: 7, base: 5 };
        lane.set_cursor(End::Server, cursor);
        assert_eq!(again.cursor(End::Server), cursor);
        assert!(matches!(LaneMemory::adopt(fd.get(), RING_BYTES_MIN * 2), Err(MapError::Fault(MemfdFault::Size))));
        // SAFETY: neither mapping is used afterwards.
        unsafe {
            again.unmap();
            lane.unmap();
        }
    }
}

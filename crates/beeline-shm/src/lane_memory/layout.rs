//! Where everything stands in a lane's memory.
//!
//! ```text
//! 0x0000  head line of end 0 (client): head u32, -, stamp u64
//! 0x0080  head line of end 1 (server): the same
//! 0x0100  wake line of end 0: read_wake u32, write_wake u32, cpu u32, offer u32, urgent u64, passed u64, turn u32,
//!         ahead u32, sleep u64
//! 0x0140  fetch line of end 0: wanted u32, loan u32, lent address u64, its length u64, proof's address u64, challenge
//!         u64, fetched u64
//! 0x0180  wake line of end 1: the same, with a seat in the offer's place
//! 0x01c0  fetch line of end 1: the same
//! 0x0200  front of end 0: cursor u64 ([`Cursor`]), status u64, then ring 0 (client to server)
//!   +16   ring 0, ring_bytes long; its first 48 bytes share the front's cache line
//! R+4096  front of end 1: the same, then ring 1 (server to client)
//! 2R+8192 end
//! ```
//!
//! Fronts and head lines are written by their own end alone; of a wake line, the first two words and the turn are set
//! by its own end and cleared by the peer, offer and seat are decided by whichever end comes first, the rest is written
//! by its own end. Of a fetch line, the loan is decided by both ends, and what was fetched written by the peer.
//!
//! A *front* is what an end says while it sends: how far it has written, its flags, an *echo* of how far it had
//! read by then, and the first bytes of a small message, all in one cache line. So a small message costs one line
//! transfer, and its acknowledgement travels with the reply. The *head* proper is stored at each read, in a
//! line that nobody watches: stored into the front, it would take the line away from the peer, which looks at
//! the front while it waits for the reply (measured: 420 ns instead of 130 ns one way). The wake words are
//! apart because they rarely change: a sender reads the receiver's at each send, and it stays in its cache.
//!
//! An idle connection holds two pages: heads, wake lines, front 0 and the first 3.5 KiB of ring 0 in one, front 1
//! and the first 4 KiB of ring 1 in the other.

/// Smallest ring, in bytes per direction.
pub const RING_BYTES_MIN: u32 = 1 << 16;
/// Largest ring, in bytes per direction.
pub const RING_BYTES_MAX: u32 = 1 << 24;
/// Bytes of a ring that share the cache line of its front.
pub const INLINE_BYTES: u32 = 48;

pub(super) const HEAD_LINES: usize = 0x000;
pub(super) const WAKE_LINES: usize = 0x100;
/// From the line of end 0 to that of end 1: two cache lines, which are fetched in pairs.
pub(super) const LINE_STRIDE: usize = 0x80;
pub(super) const FRONT_CLIENT: usize = 0x200;
pub(super) const FRONT_BYTES: usize = 16;
/// Of a front: where the status stands.
pub(super) const STATUS: usize = 8;
/// In a front's status: the flags below, the echo above.
pub(super) const FLAG_BITS: u32 = 16;
pub(super) const FLAGS: u64 = (1 << FLAG_BITS) - 1;
/// Of a wake line: where the word stands by which a writer asks to be told of room.
pub(super) const WRITE_WAKE: usize = 4;
/// Of a wake line: where its end says which CPU it last woke up on.
pub(super) const CPU: usize = 8;
/// Of the client's wake line: where the word about the offer stands.
pub(super) const OFFER: usize = 12;
/// Of the server's: where the word about its seat stands.
pub(super) const SEAT: usize = 12;
/// Of a wake line: where the words about urgent data stand.
pub(super) const URGENT: usize = 16;
pub(super) const PASSED: usize = 24;
/// Of a wake line: where the word stands by which a writer asks to be told when the reader's turn is over.
pub(super) const TURN: usize = 32;
/// Of a wake line: where its end, as a reader, says how much it wants to lie unread.
pub(super) const AHEAD: usize = 36;
/// Of a wake line: where the number of the sleep stands that a bell would end.
pub(super) const SLEEP: usize = 40;
/// From a wake line to its end's fetch line.
pub(super) const FETCH_LINE: usize = 0x40;
/// Of a fetch line: where its end, as a reader, says how much it waits for.
pub(super) const WANTED: usize = FETCH_LINE;
/// Of a fetch line: where the word about what its end lends, as a writer, stands.
pub(super) const LOAN: usize = FETCH_LINE + 4;
/// Of a fetch line: where that stands: address, length, and the proof's address.
pub(super) const LENT: usize = FETCH_LINE + 8;
/// Of a fetch line: where the number stands that its end, as a reader, wants to find as the proof.
pub(super) const CHALLENGE: usize = FETCH_LINE + 32;
/// Of a fetch line: where the peer says how much it has fetched.
pub(super) const FETCHED: usize = FETCH_LINE + 40;
/// Of a head line: where the stamp stands.
pub(super) const STAMP: usize = 8;
/// In a wake word: it is armed.
pub const WAKE_ARMED: u32 = 1;
/// In a read wake word: the reader wants to know when the first byte came ([`super::LaneMemory::set_stamp`]).
pub const WAKE_ORDER: u32 = 2;
/// The flag of an end that has ever marked a byte urgent.
pub const FLAG_URGENT: u32 = 64;
pub(super) const PAGE_BYTES: usize = 4096;

/// How far an end has written, and with which count a byte stands at the beginning of its ring: one word in the lane's
/// memory, so that nobody pairs an old one with a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// Bytes written so far, modulo 2^32.
    pub tail: u32,
    /// The count that belongs to the ring's first place.
    pub base: u32,
}

impl Cursor {
    pub(super) const fn from_word(word: u64) -> Self {
        Self { tail: (word >> 32) as u32, base: word as u32 }
    }

    pub(super) const fn word(self) -> u64 {
        (self.tail as u64) << 32 | self.base as u64
    }
}

/// Size of a lane's memory file for rings of `ring_bytes` in each direction.
#[must_use]
pub const fn lane_bytes(ring_bytes: u32) -> usize {
    2 * (ring_bytes as usize + PAGE_BYTES)
}

/// The two ends of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum End {
    /// The end that connected.
    Client = 0,
    /// The end that accepted.
    Server = 1,
}

impl End {
    /// The other end.
    #[must_use]
    #[inline]
    pub fn peer(self) -> End {
        match self {
            End::Client => End::Server,
            End::Server => End::Client,
        }
    }
}

#[inline]
pub(super) const fn head_line(end: End) -> usize {
    HEAD_LINES + end as usize * LINE_STRIDE
}

#[inline]
pub(super) const fn wake_line(end: End) -> usize {
    WAKE_LINES + end as usize * LINE_STRIDE
}

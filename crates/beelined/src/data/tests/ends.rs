//! The two ends of one direction of a connection, with rings that hold real bytes.
//!
//! Byte `n` of every stream is known ([`content`]), and rings are used again as soon as the rules allow: the sender's
//! from what is acknowledged on, the receiver's from what the app has read on. So a byte that lands too late, or is
//! read from a place that was given back, is seen by the app.

use std::sync::LazyLock;

use beeline_topo::stripe::{PIECES_MAX, Reorder};
use proptest::prelude::*;

use super::super::losses::Losses;
use super::super::sender::{LinkId, Sender};

/// The pattern repeats after a prime number of bytes, so never after a ring.
const PERIOD: usize = 65_521;
/// A write that the bridge sends within a message.
const LITTLE_BYTES: u64 = 40;
/// More than any record carries.
const CHUNK_BYTES_MAX: usize = 2 << 20;

/// The bytes of a stream from an offset on.
pub fn content(offset: u64, bytes: u64) -> &'static [u8] {
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |place: usize| ((place % PERIOD) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
        (0..PERIOD + CHUNK_BYTES_MAX).map(byte).collect()
    });
    let from = (offset % PERIOD as u64) as usize;
    &PATTERN[from..from + bytes as usize]
}

/// What a test says of a connection.
#[derive(Clone, Debug)]
pub struct Stream {
    pub total: u64,
    /// The rails that it may use.
    pub rails: Vec<usize>,
    /// Bytes of both rings; powers of two.
    pub source_ring: u64,
    pub target_ring: u64,
    /// The app writes so many bytes at a time, and reads so many.
    pub burst: u64,
    pub pace: u64,
}

impl Stream {
    /// Streams of a ring or two, up to several, whose apps are quick or slow.
    pub fn any(rails: usize) -> impl Strategy<Value = Stream> {
        let some = proptest::sample::subsequence((0..rails).collect::<Vec<_>>(), 1..=rails);
        let ring = || (14_u32..19).prop_map(|bits| 1_u64 << bits);
        let burst = prop_oneof![1_u64..200, 1_u64..20_000, Just(u64::MAX)];
        let pace = prop_oneof![1_000_u64..50_000, Just(u64::MAX)];
        (1_u64..600_000, some, ring(), ring(), burst, pace).prop_map(
            |(total, rails, source_ring, target_ring, burst, pace)| {
                let burst = burst.max(total / 400);
                Stream { total, rails, source_ring, target_ring, burst, pace }
            },
        )
    }
}

/// The sending end.
pub struct Outward {
    pub stream: Stream,
    pub sender: Sender,
    /// What the app has written.
    pub available: u64,
    writes_little: bool,
    /// Writes that are not done.
    pub in_flight: u32,
    /// Links over which the other ring may be written.
    pub grants: Vec<LinkId>,
    pub advanced_ns: u64,
}

impl Outward {
    pub fn new(stream: Stream) -> Self {
        let sender = Sender::new(stream.target_ring);
        Self { stream, sender, available: 0, writes_little: false, in_flight: 0, grants: Vec::new(), advanced_ns: 0 }
    }

    /// The app writes when it has room: much, and then little.
    pub fn write(&mut self) {
        let room = (self.sender.acked() + self.stream.source_ring).min(self.stream.total);
        let bytes = if self.writes_little { self.stream.burst.min(LITTLE_BYTES) } else { self.stream.burst };
        self.writes_little = !self.writes_little && self.available < room;
        self.available = self.available.saturating_add(bytes).min(room);
    }

    /// What an adapter reads from the ring: the app has overwritten what was acknowledged.
    pub fn copy_out(&self, offset: u64, bytes: u64) -> Vec<u8> {
        assert!(offset + bytes <= self.available, "bytes are sent that nobody has written");
        match offset < self.sender.acked() {
            true => content(offset + self.stream.source_ring, bytes).to_vec(),
            false => content(offset, bytes).to_vec(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.sender.sent() == self.stream.total && self.sender.is_idle()
    }
}

/// The receiving end.
pub struct Inward {
    pub reorder: Reorder,
    ring: Vec<u8>,
    total: u64,
    pace: u64,
    /// What the app has read.
    pub consumed: u64,
    told_placed: u64,
    told_limit: u64,
    /// Links over which the ring may be written.
    pub granted: Vec<LinkId>,
    pub losses: Losses,
    /// An acknowledgement waits for its time.
    pub owes: bool,
    pub done_at_ns: u64,
    /// The most intervals that it had to note.
    pub gaps_max: usize,
}

impl Inward {
    pub fn new(stream: &Stream) -> Self {
        Self {
            reorder: Reorder::new(stream.target_ring, PIECES_MAX),
            ring: vec![0; stream.target_ring as usize],
            total: stream.total,
            pace: stream.pace,
            consumed: 0,
            told_placed: 0,
            told_limit: stream.target_ring,
            granted: Vec::new(),
            losses: Losses::default(),
            owes: false,
            done_at_ns: 0,
            gaps_max: 0,
        }
    }

    fn ring_bytes(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Bytes land in the ring, whoever still wants them.
    pub fn land(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut place = (offset % self.ring_bytes()) as usize;
        while !bytes.is_empty() {
            let count = bytes.len().min(self.ring.len() - place);
            self.ring[place..place + count].copy_from_slice(&bytes[..count]);
            (bytes, place) = (&bytes[count..], 0);
        }
    }

    /// Bytes are announced. `Reorder` takes none twice, and notes a bounded number of gaps.
    pub fn accept(&mut self, offset: u64, bytes: u64) {
        assert!(offset + bytes <= self.told_limit, "bytes beyond the room that was granted");
        self.reorder.insert(offset, bytes).unwrap();
        self.gaps_max = self.gaps_max.max(self.reorder.above().len());
    }

    /// The app reads, and checks what it reads. Whether there was something.
    pub fn read(&mut self, now_ns: u64) -> bool {
        let count = (self.reorder.prefix() - self.consumed).min(self.pace);
        let end = self.consumed + count;
        while self.consumed < end {
            let place = (self.consumed % self.ring_bytes()) as usize;
            let part = (end - self.consumed).min(self.ring_bytes() - place as u64).min(CHUNK_BYTES_MAX as u64);
            let read = &self.ring[place..place + part as usize];
            assert!(read == content(self.consumed, part), "wrong bytes among the {part} from {}", self.consumed);
            self.consumed += part;
        }
        if count != 0 && self.consumed == self.total {
            self.done_at_ns = now_ns;
        }
        count != 0
    }

    /// As `Connection::ack_due`.
    pub fn ack_due(&self, source_ring: u64) -> Option<(bool, u64, u64)> {
        let (placed, limit) = self.have();
        let (placed_more, room_more) = (placed - self.told_placed, limit - self.told_limit);
        let urgent = placed_more >= self.ring_bytes().min(source_ring) / 4 || room_more >= self.ring_bytes() / 4;
        (placed_more != 0 || room_more != 0).then_some((urgent, placed, limit))
    }

    /// How far it is, and how far may be sent.
    pub fn have(&self) -> (u64, u64) {
        (self.reorder.prefix(), (self.consumed + self.ring_bytes()).max(self.told_limit))
    }

    pub fn acknowledged(&mut self, placed: u64, limit: u64) {
        (self.told_placed, self.told_limit) = (placed, limit);
    }

    /// Everything has come, and was read.
    pub fn is_done(&self) -> bool {
        (self.consumed, self.reorder.above()) == (self.total, &[][..])
    }
}

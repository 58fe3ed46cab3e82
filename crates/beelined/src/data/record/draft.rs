//! Writing records into a message.

use std::net::SocketAddr;

use super::{
    ACK, DATA, END, GRANT, HEADER_BYTES, MAGIC, MESSAGE_BYTES, MORE, OFFER, OPEN, OPENED, PING, PLACED, PONG,
    RECORD_BYTES, REFUSED, RESYNC, RETURN, Record, UNKNOWN, URGE, URGENT,
};

/// A message that is being written.
pub struct Draft {
    bytes: Vec<u8>,
}

impl Default for Draft {
    fn default() -> Self {
        Self::new()
    }
}

impl Draft {
    /// An empty message.
    #[must_use]
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
        bytes.extend_from_slice(&[0; HEADER_BYTES]);
        Draft { bytes }
    }

    /// Whether there is no record in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER_BYTES
    }

    /// Bytes that still fit, the head of a record included.
    #[must_use]
    pub fn room(&self) -> usize {
        MESSAGE_BYTES.saturating_sub(self.bytes.len())
    }

    /// Adds a record. `false` when it does not fit; the message is then as before.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; RECORD_BYTES]);
        let (kind, flags) = self.body(record);
        let length = self.bytes.len().saturating_sub(start).saturating_sub(RECORD_BYTES);
        let fits = self.bytes.len() <= MESSAGE_BYTES;
        match (u16::try_from(length), self.bytes.get_mut(start..)) {
            (Ok(length), Some([k, f, low, high, ..])) if fits => {
                (*k, *f) = (kind, flags);
                [*low, *high] = length.to_le_bytes();
                true
            }
            _ => {
                self.bytes.truncate(start);
                false
            }
        }
    }

    /// Adds a [`Record::Data`] of `count` bytes, which `fill` writes in place. The caller has looked that they fit.
    pub fn push_data(&mut self, to: u64, offset: u64, more: bool, count: usize, fill: impl FnOnce(&mut [u8])) {
        let length = u16::try_from(count.saturating_add(16)).unwrap_or(u16::MAX).to_le_bytes();
        self.bytes.extend_from_slice(&[DATA, if more { MORE } else { 0 }]);
        self.bytes.extend_from_slice(&length);
        self.u64(to);
        self.u64(offset);
        let start = self.bytes.len();
        self.bytes.resize(start.saturating_add(count), 0);
        if let Some(place) = self.bytes.get_mut(start..) {
            fill(place);
        }
    }

    /// The whole message with its header; empties the draft when the result has been used.
    pub fn finish(&mut self, credits: u16) -> &[u8] {
        let length = u32::try_from(self.bytes.len().saturating_sub(HEADER_BYTES)).unwrap_or(u32::MAX);
        if let Some(header) = self.bytes.first_chunk_mut::<HEADER_BYTES>() {
            let [m0, m1] = MAGIC.to_le_bytes();
            let [c0, c1] = credits.to_le_bytes();
            let [l0, l1, l2, l3] = length.to_le_bytes();
            *header = [m0, m1, c0, c1, l0, l1, l2, l3];
        }
        &self.bytes
    }

    /// Begins a new message.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
    }

    fn body(&mut self, record: &Record<'_>) -> (u8, u8) {
        match *record {
            Record::Open { from, window, rail, client, server } => {
                self.u64(from);
                self.u64(window);
                self.u32(rail);
                self.address(client);
                self.address(server);
                (OPEN, 0)
            }
            Record::Opened { to, from, window, rail } => {
                self.u64s([to, from, window]);
                self.u32(rail);
                (OPENED, 0)
            }
            Record::Refused { to, why } => {
                self.u64(to);
                self.bytes.push(why as u8);
                (REFUSED, 0)
            }
            Record::Data { to, offset, urgent, more, bytes } => {
                self.u64s([to, offset]);
                self.bytes.extend_from_slice(bytes);
                (DATA, if urgent { URGENT } else { 0 } | if more { MORE } else { 0 })
            }
            Record::Placed { to, offset, length } => {
                self.u64s([to, offset]);
                self.u32(length);
                (PLACED, 0)
            }
            Record::Offer { to, offset, length, address, key } => {
                self.u64s([to, offset]);
                self.u32(length);
                self.u64s([address, key]);
                (OFFER, 0)
            }
            Record::Grant { to, address, key, base, ring } => {
                self.u64s([to, address, key, base]);
                self.u32(ring);
                (GRANT, 0)
            }
            Record::Ack { to, placed, limit } => {
                self.u64s([to, placed, limit]);
                (ACK, 0)
            }
            Record::End { to, from, offset, flags } => {
                self.u64s([to, from, offset]);
                self.u32(flags);
                (END, 0)
            }
            Record::Resync { to, from, link, placed, limit, ranges } => {
                self.u64s([to, from, link, placed, limit]);
                self.bytes.extend_from_slice(ranges.0);
                (RESYNC, 0)
            }
            Record::Return { to } => {
                self.u64(to);
                (RETURN, 0)
            }
            Record::Urge { to, offset } => {
                self.u64s([to, offset]);
                (URGE, 0)
            }
            Record::Unknown { to } => {
                self.u64(to);
                (UNKNOWN, 0)
            }
            Record::Ping { number } => {
                self.u64(number);
                (PING, 0)
            }
            Record::Pong { number } => {
                self.u64(number);
                (PONG, 0)
            }
        }
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64s<const N: usize>(&mut self, values: [u64; N]) {
        for value in values {
            self.u64(value);
        }
    }

    fn address(&mut self, address: SocketAddr) {
        let (family, octets, scope) = match address {
            SocketAddr::V4(v4) => {
                let mut octets = [0; 16];
                let [a, b, c, d, ..] = &mut octets;
                [*a, *b, *c, *d] = v4.ip().octets();
                (4, octets, 0)
            }
            SocketAddr::V6(v6) => (6, v6.ip().octets(), v6.scope_id()),
        };
        self.bytes.push(family);
        self.bytes.extend_from_slice(&octets);
        self.u32(scope);
        self.bytes.extend_from_slice(&address.port().to_le_bytes());
    }
}

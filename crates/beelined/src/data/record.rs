//! The records that two bridges send each other over a rail.
//!
//! # A message
//!
//! At most [`MESSAGE_BYTES`] bytes, little-endian throughout:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | magic, [`MAGIC`] |
//! | 2 | 2 | credits: message buffers that the sender has made ready again since it last said so |
//! | 4 | 4 | bytes of records that follow |
//!
//! # A record
//!
//! One byte kind, one byte flags, two bytes length of the body, then the body. What each kind holds is written at
//! [`Record`]; numbers of connections are the receiver's (`to`) or the sender's (`from`), offsets count a direction's
//! bytes from the beginning of the connection.
//!
//! # Rules
//!
//! 1. There is one form of each record. What is not exactly that is [`Malformed`], and ends the rail: a bridge that
//!    sends such is broken or not one.
//! 2. Decoding copies nothing and reads nothing beyond the message. Whether a value makes sense is not decided here.

mod draft;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

pub use draft::Draft;

/// The size of a message buffer.
pub const MESSAGE_BYTES: usize = 16 << 10;
/// The beginning of a message.
pub const MAGIC: u16 = 0xBEE1;
/// Bytes before the records.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a record before its body.
const RECORD_BYTES: usize = 4;
/// What a [`Record::Data`] takes besides its bytes.
pub const DATA_OVERHEAD_BYTES: usize = RECORD_BYTES + 16;
/// Separate ranges that a [`Record::Resync`] can name.
pub const RANGES_MAX: usize = beeline_topo::stripe::PIECES_MAX;

/// [`Record::Data`]: the byte is urgent; there is exactly one.
const URGENT: u8 = 1;
/// [`Record::Data`]: it is a part of a stream, for which the sender wants the ring.
const MORE: u8 = 2;

/// Not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Why a connection was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The destination has no listener, or one without a door.
    NoDoor = 1,
    /// The bridge does not speak for the client, or the destination is not on its host.
    NotYours = 2,
    /// No memory or descriptors for another connection.
    Full = 3,
    /// The bridge is about to stop.
    Leaving = 4,
}

impl Refusal {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::NoDoor, Self::NotYours, Self::Full, Self::Leaving].into_iter().find(|refusal| *refusal as u8 == byte)
    }
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Make a connection from `client` to `server`. The receiver of data may hold `window` bytes. Body: from 8,
    /// window 8, rail 4, client 23, server 23.
    Open { from: u64, window: u64, rail: u32, client: SocketAddr, server: SocketAddr },
    /// It stands. `rail` is the one of the answering host that is nearest to its server. Body: to 8, from 8, window 8,
    /// rail 4.
    Opened { to: u64, from: u64, window: u64, rail: u32 },
    /// It was not made. Body: to 8, why 1.
    Refused { to: u64, why: Refusal },
    /// Push: the bytes. Body: to 8, offset 8, bytes.
    Data { to: u64, offset: u64, urgent: bool, more: bool, bytes: &'a [u8] },
    /// Push: a write that was made before over the same rail has placed these bytes. Body: to 8, offset 8, length 4.
    Placed { to: u64, offset: u64, length: u32 },
    /// Pull: read these bytes from here, over the same rail. Body: to 8, offset 8, length 4, address 8, key 8.
    Offer { to: u64, offset: u64, length: u32, address: u64, key: u64 },
    /// Over the same rail, the byte with offset `o` may be written to `address + (o - base) mod ring`. Body: to 8,
    /// address 8, key 8, base 8, ring 4.
    Grant { to: u64, address: u64, key: u64, base: u64, ring: u32 },
    /// All bytes before `placed` have come, those before `limit` may be sent. Body: to 8, placed 8, limit 8.
    Ack { to: u64, placed: u64, limit: u64 },
    /// The end of the bytes, at `offset`; `flags` as a lane's: FIN, CLOSED, RESET. Body: to 8, from 8, offset 8,
    /// flags 4.
    End { to: u64, from: u64, offset: u64, flags: u32 },
    /// The sender has closed its end of rail connection `link`; what it has beside the bytes before `placed` is
    /// `ranges`. Body: to 8, from 8, link 8, placed 8, limit 8, then 16 for each range: offset, end.
    Resync { to: u64, from: u64, link: u64, placed: u64, limit: u64, ranges: Ranges<'a> },
    /// The sender writes and offers no more over the same rail, unless it is granted again. Body: to 8.
    Return { to: u64 },
    /// An urgent byte waits behind what was sent: all bytes before `offset` are to be acknowledged as soon as they have
    /// come. Body: to 8, offset 8.
    Urge { to: u64, offset: u64 },
    /// The sender knows no connection of its own that the receiver calls `to` at its end. Body: to 8.
    Unknown { to: u64 },
    /// Is this link alive? Body: number 8.
    Ping { number: u64 },
    /// It is. Body: the number of the question 8.
    Pong { number: u64 },
}

/// The ranges of a [`Record::Resync`], ascending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranges<'a>(&'a [u8]);

impl Ranges<'_> {
    /// `(offset, end)` of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        self.0.chunks_exact(16).map(|range| {
            let mut body = Body(range);
            (body.u64().unwrap_or_default(), body.u64().unwrap_or_default())
        })
    }
}

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const REFUSED: u8 = 3;
const DATA: u8 = 4;
const PLACED: u8 = 5;
const OFFER: u8 = 6;
const GRANT: u8 = 7;
const ACK: u8 = 8;
const END: u8 = 9;
const RESYNC: u8 = 10;
const PING: u8 = 11;
const PONG: u8 = 12;
const UNKNOWN: u8 = 13;
const RETURN: u8 = 14;
const URGE: u8 = 15;

/// A message as it comes in.
pub struct Message<'a> {
    /// Message buffers that the sender has made ready again.
    pub credits: u16,
    records: &'a [u8],
}

impl<'a> Message<'a> {
    /// Checks the header.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut body = Body(bytes);
        if body.u16()? != MAGIC {
            return Err(Malformed("a message without the magic number"));
        }
        let credits = body.u16()?;
        if body.u32()? as usize != body.0.len() {
            return Err(Malformed("a message of another length than it says"));
        }
        Ok(Message { credits, records: body.0 })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// When what follows is none.
    pub fn next_record(&mut self) -> Result<Option<Record<'a>>, Malformed> {
        if self.records.is_empty() {
            return Ok(None);
        }
        let mut head = Body(self.records);
        let (kind, flags, length) = (head.u8()?, head.u8()?, head.u16()?);
        let body = head.take(length.into())?;
        self.records = head.0;
        decode(kind, flags, Body(body)).map(Some)
    }
}

fn decode(kind: u8, flags: u8, mut body: Body<'_>) -> Result<Record<'_>, Malformed> {
    let record = match kind {
        OPEN => Record::Open {
            from: body.u64()?,
            window: body.u64()?,
            rail: body.u32()?,
            client: body.address()?,
            server: body.address()?,
        },
        OPENED => Record::Opened { to: body.u64()?, from: body.u64()?, window: body.u64()?, rail: body.u32()? },
        REFUSED => {
            let (to, why) = (body.u64()?, body.u8()?);
            Record::Refused { to, why: Refusal::from_byte(why).ok_or(Malformed("a refusal for an unknown reason"))? }
        }
        DATA => {
            let (to, offset) = (body.u64()?, body.u64()?);
            let bytes = core::mem::take(&mut body.0);
            let (urgent, more) = (flags & URGENT != 0, flags & MORE != 0);
            if flags & !(URGENT | MORE) != 0 || bytes.is_empty() || urgent && bytes.len() != 1 {
                return Err(Malformed("data with wrong flags or length"));
            }
            return Ok(Record::Data { to, offset, urgent, more, bytes });
        }
        PLACED => Record::Placed { to: body.u64()?, offset: body.u64()?, length: body.u32()? },
        OFFER => Record::Offer {
            to: body.u64()?,
            offset: body.u64()?,
            length: body.u32()?,
            address: body.u64()?,
            key: body.u64()?,
        },
        GRANT => Record::Grant {
            to: body.u64()?,
            address: body.u64()?,
            key: body.u64()?,
            base: body.u64()?,
            ring: body.u32()?,
        },
        ACK => Record::Ack { to: body.u64()?, placed: body.u64()?, limit: body.u64()? },
        END => Record::End { to: body.u64()?, from: body.u64()?, offset: body.u64()?, flags: body.u32()? },
        RESYNC => {
            let (to, from, link) = (body.u64()?, body.u64()?, body.u64()?);
            let (placed, limit) = (body.u64()?, body.u64()?);
            let ranges = core::mem::take(&mut body.0);
            if !ranges.len().is_multiple_of(16) || ranges.len() / 16 > RANGES_MAX {
                return Err(Malformed("a resync with broken ranges"));
            }
            Record::Resync { to, from, link, placed, limit, ranges: Ranges(ranges) }
        }
        UNKNOWN => Record::Unknown { to: body.u64()? },
        RETURN => Record::Return { to: body.u64()? },
        URGE => Record::Urge { to: body.u64()?, offset: body.u64()? },
        PING => Record::Ping { number: body.u64()? },
        PONG => Record::Pong { number: body.u64()? },
        _ => return Err(Malformed("a record of an unknown kind")),
    };
    if flags != 0 || !body.0.is_empty() {
        return Err(Malformed("a record with something left over"));
    }
    Ok(record)
}

/// What is left to read.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("a record that is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Malformed("a record that is cut short"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// Family (4 or 6), 16 bytes (IPv4 in the first four, the rest zero), scope 4, port 2.
    fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let (family, octets, scope, port) = (self.u8()?, self.array::<16>()?, self.u32()?, self.u16()?);
        match (family, octets) {
            (4, [a, b, c, d, rest @ ..]) if rest == [0; 12] && scope == 0 => {
                Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port))
            }
            (6, octets) => Ok(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into()),
            _ => Err(Malformed("an address of an unknown family")),
        }
    }
}

/// The ranges of a resync as bytes.
#[must_use]
pub fn encode_ranges(ranges: &[(u64, u64)]) -> Vec<u8> {
    ranges.iter().flat_map(|(offset, end)| [offset.to_le_bytes(), end.to_le_bytes()]).flatten().collect()
}

/// Ranges for a record.
#[must_use]
pub fn ranges(bytes: &[u8]) -> Ranges<'_> {
    Ranges(bytes)
}

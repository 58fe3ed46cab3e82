//! Netlink framing (netlink(7), `linux/netlink.h`): a 16-byte header before each message, messages
//! and attributes aligned to 4 bytes, numbers in native order.

use crate::bytes::{u16_at, u32_at};

pub(crate) const HEADER_BYTES: usize = 16;

/// `NLM_F_REQUEST`
pub(crate) const REQUEST: u16 = 1;
/// `NLMSG_NOOP`
const NOOP: u16 = 1;
/// `NLMSG_ERROR`
const ERROR: u16 = 2;
/// `NLMSG_DONE`
const DONE: u16 = 3;

/// What a reply to one request holds.
pub(crate) enum Reply<'a> {
    /// A message of the wanted kind, without its header.
    Message(&'a [u8]),
    /// The kernel refused; a positive errno.
    Refused(i32),
    /// The bytes hold no answer to this request: read on.
    Nothing,
    /// The bytes are not netlink messages, or the answer is of an unknown kind.
    Malformed,
}

/// Finds the answer to one request among the messages of one datagram.
pub(crate) fn find_reply(datagram: &[u8], sequence: u32, port_id: u32, kind: u16) -> Reply<'_> {
    let mut rest = datagram;
    // Each turn takes a header's length at least, so the loop ends.
    while !rest.is_empty() {
        let Some(message) = Message::first(rest) else {
            return Reply::Malformed;
        };
        if message.sequence == sequence && message.port_id == port_id && message.kind != NOOP {
            return match message.kind {
                found if found == kind => Reply::Message(message.payload),
                ERROR => match u32_at(message.payload, 0).map(|word| word.cast_signed()) {
                    // Zero would be an acknowledgement, which nobody asked for.
                    Some(error @ -4095..=-1) => Reply::Refused(error.saturating_neg()),
                    _ => Reply::Malformed,
                },
                // The end of a list that had no entries.
                DONE => Reply::Refused(ENOENT),
                _ => Reply::Malformed,
            };
        }
        rest = message.rest;
    }
    Reply::Nothing
}

const ENOENT: i32 = 2;

struct Message<'a> {
    kind: u16,
    sequence: u32,
    port_id: u32,
    payload: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let payload = bytes.get(HEADER_BYTES..length)?;
        Some(Self {
            kind: u16_at(bytes, 4)?,
            sequence: u32_at(bytes, 8)?,
            port_id: u32_at(bytes, 12)?,
            payload,
            // The last message of a datagram may come without its padding.
            rest: bytes.get(aligned(length)?..).unwrap_or_default(),
        })
    }
}

/// Walks over the messages of one datagram: kind, sequence number and payload. Ends at the first that does not fit.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    let mut rest = datagram;
    core::iter::from_fn(move || {
        let message = Message::first(rest)?;
        rest = message.rest;
        Some((message.kind, message.sequence, message.payload))
    })
}

/// Walks over attributes: `(type, value)`. Ends at the first that does not fit, with `None` as
/// its item, so that a caller can tell a damaged list from one that ends.
pub(crate) fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Option<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = core::mem::take(&mut self.rest);
        let attribute = (|| {
            let length = usize::from(u16_at(bytes, 0)?);
            let kind = u16_at(bytes, 2)?;
            let value = bytes.get(4..length)?;
            let rest = bytes.get(aligned(length)?..).unwrap_or_default();
            Some((kind, value, rest))
        })();
        Some(attribute.map(|(kind, value, rest)| {
            self.rest = rest;
            (kind, value)
        }))
    }
}

/// Rounds up to a multiple of 4.
fn aligned(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(4)
}

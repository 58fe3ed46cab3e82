//! A link: an endpoint of one of our rails, connected to one of a peer's.
//!
//! # Credits
//!
//! Each message needs a buffer that the receiver has made ready, and not every fabric copes when there is none. So each
//! end knows how many buffers the other has ready for it, and each message says how many were made ready since the
//! last one.
//!
//! 1. A link begins with [`BUFFERS`] credits on both ends; a message takes one.
//! 2. The last credit is only used by a message that gives credits back. So two ends can never both wait.
//! 3. Credits are given back with the next message, and by an empty one once half of them are owed.

use std::collections::VecDeque;

use beeline_fabric::{EndpointId, Error, Posted, Rail, Remote, Slice};

use super::record::{DATA_OVERHEAD_BYTES, Draft, MESSAGE_BYTES, Record};
use super::sender::LinkId;

/// Receive buffers of an endpoint.
pub const BUFFERS: u16 = 64;

/// A read of a peer's ring.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The number of the pull that it is a part of.
    pub pull: u64,
    pub from: Remote,
    pub to: Slice,
}

/// Answers that may wait for room. Whoever asks more and takes none is no bridge.
const ANSWERS_MAX: usize = 4096;

/// See the module.
pub struct Link {
    pub id: LinkId,
    pub peer: usize,
    /// Index of our rail.
    pub rail: usize,
    /// The peer's number for its rail.
    pub their_rail: u32,
    pub endpoint: EndpointId,
    /// The endpoint is connected.
    pub connected: bool,
    /// We accepted it on a rail where the other end has to speak first
    /// ([`beeline_fabric::Port::connector_speaks_first`]).
    pub listens_first: bool,
    /// Both ends know of the connection, and we may speak.
    pub up: bool,
    /// Reads that wait until the queue takes them.
    pub reads: VecDeque<Read>,
    /// Connections that wait until it takes what they have.
    pub waiting: Vec<u64>,
    draft: Draft,
    /// What must be said and found no room in the message.
    answers: VecDeque<Record<'static>>,
    credits: u16,
    owed: u16,
    /// All credits that were ever given back: so many of our messages were received.
    pub(super) returned: u64,
    /// When something last came, and when we last asked for a sign of life.
    pub heard_ns: u64,
    pub asked_ns: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

impl Link {
    #[must_use]
    pub fn new(id: LinkId, peer: usize, rail: usize, their_rail: u32, endpoint: EndpointId, now_ns: u64) -> Link {
        Link {
            id,
            peer,
            rail,
            their_rail,
            endpoint,
            connected: false,
            listens_first: false,
            up: false,
            reads: VecDeque::new(),
            waiting: Vec::new(),
            draft: Draft::new(),
            answers: VecDeque::new(),
            credits: BUFFERS,
            owed: 0,
            returned: 0,
            heard_ns: now_ns,
            asked_ns: 0,
            messages_sent: 0,
            messages_received: 0,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// A message has come, with so many credits, and its buffer is ready again. `false` if it cannot be.
    #[must_use]
    pub fn came(&mut self, credits: u16, bytes: usize, now_ns: u64) -> bool {
        self.heard_ns = now_ns;
        self.messages_received = self.messages_received.saturating_add(1);
        self.bytes_received = self.bytes_received.saturating_add(bytes as u64);
        self.owed = self.owed.saturating_add(1);
        self.credits = self.credits.saturating_add(credits);
        self.returned = self.returned.saturating_add(credits.into());
        self.credits <= BUFFERS && self.owed <= BUFFERS
    }

    /// The number of the message that is being written.
    #[must_use]
    pub fn next_message(&self) -> u64 {
        self.messages_sent.saturating_add(1)
    }

    /// Whether the other end has gone through all that our message with this number says: it has if it has received
    /// another one since.
    #[must_use]
    pub fn has_heard(&self, message: u64) -> bool {
        self.returned > message
    }

    /// Whether it can be up: it is connected, and who has to speak first has spoken. (The word may be told before the
    /// connection is.)
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connected && (!self.listens_first || self.messages_received > 0)
    }

    /// Whether a message can be sent.
    fn may_send(&self) -> bool {
        self.up && (self.credits > 1 || self.credits == 1 && self.owed > 0)
    }

    /// Adds a record to the message that is being written; sends that one first when it is full. `false` when there is
    /// no room at the moment.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn push(&mut self, rail: &mut Rail, record: &Record<'_>) -> Result<bool, Error> {
        if self.draft.push(record) {
            return Ok(true);
        }
        Ok(self.flush(rail)? && self.draft.push(record))
    }

    /// Adds a record that nobody would say again: without room it waits. `false` when too many wait.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn answer(&mut self, rail: &mut Rail, record: Record<'static>) -> Result<bool, Error> {
        if self.answers.is_empty() && self.push(rail, &record)? {
            return Ok(true);
        }
        self.answers.push_back(record);
        Ok(self.answers.len() <= ANSWERS_MAX)
    }

    /// Bytes of data that the message can still take; a full one is sent first.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn data_room(&mut self, rail: &mut Rail, wanted: usize) -> Result<usize, Error> {
        let room = |draft: &Draft| draft.room().saturating_sub(DATA_OVERHEAD_BYTES);
        if room(&self.draft) >= wanted {
            return Ok(room(&self.draft));
        }
        // Answers that waited may stand in the new message already.
        let sent = self.draft.is_empty() || self.flush(rail)?;
        Ok(if sent { room(&self.draft) } else { 0 })
    }

    /// Adds a [`Record::Data`] that fits.
    pub fn push_data(&mut self, to: u64, offset: u64, more: bool, count: usize, fill: impl FnOnce(&mut [u8])) {
        self.draft.push_data(to, offset, more, count, fill);
    }

    /// Sends what was written, if anything. `false` when it has to wait.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn flush(&mut self, rail: &mut Rail) -> Result<bool, Error> {
        if self.draft.is_empty() && self.owed < BUFFERS / 2 {
            return Ok(true);
        }
        if !self.may_send() {
            return Ok(false);
        }
        let message = self.draft.finish(self.owed);
        let bytes = message.len();
        match rail.send_with(self.endpoint, bytes, 0, |buffer| buffer.copy_from_slice(message))? {
            Posted::Taken => {
                self.credits = self.credits.saturating_sub(1);
                self.owed = 0;
                self.draft.clear();
                while let Some(answer) = self.answers.front()
                    && self.draft.push(answer)
                {
                    self.answers.pop_front();
                }
                self.messages_sent = self.messages_sent.saturating_add(1);
                self.bytes_sent = self.bytes_sent.saturating_add(bytes as u64);
                Ok(true)
            }
            Posted::Full => Ok(false),
        }
    }

    /// Whether something waits to be sent.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.draft.is_empty() || self.owed >= BUFFERS / 2
    }
}

/// The most data in one message.
pub const MESSAGE_DATA_BYTES: usize = MESSAGE_BYTES - super::record::HEADER_BYTES - DATA_OVERHEAD_BYTES;

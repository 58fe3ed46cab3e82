//! One link: what is on its way in both directions, in order, and what lands while its ends do not know that it is
//! over.

use std::collections::VecDeque;

use beeline_fabric::EndpointId;

use super::super::link::{BUFFERS, Link};
use super::super::sender::LinkId;

/// Writes that the queue of a link takes: messages have places of their own.
const WRITES_MAX: usize = 64;

/// Bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub connection: usize,
    pub offset: u64,
    pub bytes: u64,
}

/// What goes from the sender to the receiver.
#[derive(Debug)]
pub enum Forth {
    /// Bytes within a message; `more` asks for a grant.
    Data { part: Part, bytes: Vec<u8>, more: bool },
    /// A write into the ring. No message: the receiver does not hear of it.
    Write(Part),
    /// The word that all of it was written before.
    Placed(Part),
    /// Bytes that the receiver may read.
    Offer(Part),
}

/// What goes from the receiver to the sender.
#[derive(Debug)]
pub enum Back {
    Grant { connection: usize },
    Ack { connection: usize, placed: u64, limit: u64 },
    Resync { connection: usize, lost: LinkId, placed: u64, limit: u64, ranges: Vec<(u64, u64)> },
}

/// See the module.
pub struct Life {
    pub id: LinkId,
    pub rail: usize,
    /// Whether the sender's end is open.
    pub sends: bool,
    /// Whether the receiver's is. Until it is closed, what is on its way lands.
    pub receives: bool,
    /// With the time at which it is there, and the messages of the receiver that the sender had gone through.
    pub forth: VecDeque<(u64, u64, Forth)>,
    pub back: VecDeque<(u64, Back)>,
    /// The receiver's reads. They come in beside the messages.
    pub reads: VecDeque<(u64, Part)>,
    /// Counts the receiver's messages.
    pub end: Link,
    pub gone_through: u64,
}

impl Life {
    pub fn new(id: LinkId, rail: usize) -> Self {
        Self {
            id,
            rail,
            sends: true,
            receives: true,
            forth: VecDeque::new(),
            back: VecDeque::new(),
            reads: VecDeque::new(),
            end: Link::new(id, 0, rail, 0, EndpointId::default(), 0),
            gone_through: 0,
        }
    }

    fn writes(&self) -> usize {
        self.forth.iter().filter(|(.., what)| matches!(what, Forth::Write(_))).count()
    }

    /// Whether the queue takes a write.
    pub fn has_place(&self) -> bool {
        self.writes() < WRITES_MAX
    }

    /// Whether a message can be sent.
    pub fn has_room(&self) -> bool {
        self.forth.len() - self.writes() < usize::from(BUFFERS)
    }

    /// The receiver says something.
    pub fn say(&mut self, at_ns: u64, what: Back) {
        self.end.messages_sent += 1;
        if self.sends {
            self.back.push_back((at_ns, what));
        }
    }

    /// When something is there next.
    pub fn next_ns(&self) -> Option<u64> {
        let forth = self.forth.front().map(|(at_ns, ..)| *at_ns);
        let back = self.back.front().map(|(at_ns, _)| *at_ns);
        forth.into_iter().chain(back).chain(self.reads.front().map(|(at_ns, _)| *at_ns)).min()
    }

    /// Everything on it takes longer.
    pub fn delay(&mut self, by_ns: u64) {
        self.forth.iter_mut().for_each(|(at_ns, ..)| *at_ns += by_ns);
        self.back.iter_mut().for_each(|(at_ns, _)| *at_ns += by_ns);
        self.reads.iter_mut().for_each(|(at_ns, _)| *at_ns += by_ns);
    }
}

//! What a rail keeps: endpoints, operations in flight, memory regions; and what it tells of them.

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::Failure;
use crate::ffi;
use crate::handles::{Endpoint, Registration};
use crate::memory::{Memory, Pool};

slotmap::new_key_type! {
    /// An endpoint of one rail. Never used again for another one.
    pub struct EndpointId;
    /// A memory region of one rail. Never used again for another one.
    pub struct RegionId;
    /// An operation in flight: what libfabric carries as context. A completion that comes after its operation was
    /// given up (its endpoint closed) finds nothing under it.
    pub(super) struct OperationId;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestId(pub u64);

/// Somebody wants to connect. Answer with [`crate::Rail::accept`] or [`crate::Rail::reject`]; until then the peer
/// waits.
#[derive(Debug)]
#[must_use = "the peer waits for an answer"]
pub struct Request {
    pub(super) id: RequestId,
    /// The peer's address, as far as the provider tells.
    pub peer: Option<SocketAddr>,
    pub data: Vec<u8>,
}

/// What happened to connections and regions.
#[derive(Debug)]
pub enum Event {
    Request(Request),
    /// `data` is what the accepting side sent along; empty on the accepting side.
    Connected {
        endpoint: EndpointId,
        data: Vec<u8>,
    },
    /// Nobody there, or refused with `data`. The endpoint is closed.
    Refused {
        endpoint: EndpointId,
        data: Vec<u8>,
        failure: Failure,
    },
    /// The connection has ended. [`crate::Rail::close`] frees the endpoint.
    Down {
        endpoint: EndpointId,
        cause: Down,
    },
    /// Nothing of this rail can touch the region's memory any more.
    RegionClosed {
        region: RegionId,
    },
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Down {
    /// The peer closed its endpoint, or died.
    ByPeer,
    Failed(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Connected,
    Down,
}

/// An endpoint with its buffers. Field order is closing order.
pub(super) struct End {
    pub endpoint: Endpoint,
    pub state: State,
    /// We connect it; else we accepted it.
    pub ours: bool,
    /// Of `pool`.
    pub registration: Registration,
    pub pool: Arc<Pool>,
    /// Send slots that nobody uses.
    pub free_sends: Vec<usize>,
    /// Operations in flight that are not receives.
    pub in_flight: usize,
    /// Messages among them, and reads.
    pub messages: usize,
    pub reads: usize,
    /// Operations ever posted that are not receives.
    pub posted: u64,
}

impl End {
    /// Operations in flight that share places with one of this kind: messages, or writes and reads.
    pub fn beside(&self, kind: Kind) -> usize {
        if kind == Kind::Send { self.messages } else { self.in_flight - self.messages }
    }

    /// Operations in flight beyond the endpoint's own, of which there are so many.
    pub fn beyond(&self, own: usize) -> usize {
        [Kind::Send, Kind::Write].map(|kind| self.beside(kind).saturating_sub(own_of(own, kind))).iter().sum()
    }
}

/// How many of an endpoint's own operations are for those of this kind, and those that share places with it.
pub(super) fn own_of(own: usize, kind: Kind) -> usize {
    if kind == Kind::Send { own.div_ceil(2) } else { own / 2 }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send,
    Write,
    Read,
}

/// What became of an operation.
#[derive(Debug)]
pub enum Completion {
    /// A message came. Give its buffer back with [`crate::Rail::recycle`].
    Received {
        endpoint: EndpointId,
        message: Message,
    },
    Done {
        endpoint: EndpointId,
        kind: Kind,
        context: u64,
    },
    Failed {
        endpoint: EndpointId,
        kind: Kind,
        context: u64,
        failure: Failure,
    },
}

/// A message in its receive buffer, which is the reader's until it is recycled.
#[derive(Debug)]
#[must_use = "recycle it, or the endpoint has one receive less"]
pub struct Message {
    pub(super) endpoint: EndpointId,
    pub(super) pool: Buffers,
    pub(super) slot: usize,
    pub(super) bytes: usize,
}

impl Message {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the provider is done with the slot, and no other `Message` has it until `recycle` took this one.
        unsafe { self.pool.0.received(self.slot, self.bytes) }
    }
}

/// Keeps the buffers of an endpoint that was closed while messages of it are being read.
pub(super) struct Buffers(pub Arc<Pool>);

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buffers")
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum OperationKind {
    Receive {
        slot: usize,
    },
    /// Without a slot: injected.
    Send {
        slot: Option<usize>,
    },
    Write {
        region: RegionId,
    },
    Read {
        region: RegionId,
    },
}

/// An operation in flight.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub endpoint: EndpointId,
    pub kind: OperationKind,
    pub context: u64,
    /// Among the endpoint's operations that are not receives.
    pub number: u64,
}

impl OperationKind {
    pub fn told(self) -> Kind {
        match self {
            OperationKind::Write { .. } => Kind::Write,
            OperationKind::Read { .. } => Kind::Read,
            OperationKind::Send { .. } | OperationKind::Receive { .. } => Kind::Send,
        }
    }
}

impl Operation {
    pub fn done(&self) -> Completion {
        Completion::Done { endpoint: self.endpoint, kind: self.kind.told(), context: self.context }
    }

    pub fn failed(&self, failure: Failure) -> Completion {
        Completion::Failed { endpoint: self.endpoint, kind: self.kind.told(), context: self.context, failure }
    }
}

bitflags::bitflags! {
    /// What a region may be used for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Our writes take their bytes from it.
        const SOURCE = ffi::ACCESS_LOCAL_SOURCE;
        /// Our reads put their bytes into it.
        const TARGET = ffi::ACCESS_LOCAL_TARGET;
        /// The peer may read it.
        const REMOTE_READ = ffi::ACCESS_REMOTE_READ;
        /// The peer may write it.
        const REMOTE_WRITE = ffi::ACCESS_REMOTE_WRITE;
    }
}

/// A part of a region of this rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub region: RegionId,
    pub offset: usize,
    pub bytes: usize,
}

/// A place in a region of the peer's: what the peer's [`crate::Rail::remote`] said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub key: u64,
}

impl Remote {
    /// The place `offset` bytes further on.
    #[must_use]
    pub fn at(self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), ..self }
    }
}

/// A registered region. Field order is closing order.
pub(super) struct Region {
    /// `None` once it is closed.
    pub registration: Option<Registration>,
    pub memory: Arc<dyn Memory>,
    pub base: NonNull<u8>,
    pub bytes: usize,
    pub access: Access,
    /// Operations of ours in flight from or to it.
    pub in_use: usize,
    pub closing: bool,
    /// What may still be half done, by endpoint.
    pub awaits: Vec<Await>,
}

// SAFETY: `base` is the address of memory that is `Send` and `Sync` and that the region keeps.
unsafe impl Send for Region {}

/// What shows that an endpoint has nothing to do with a region any more.
pub(super) struct Await {
    pub endpoint: EndpointId,
    pub message: bool,
    /// An operation of ours with this number or a later one.
    pub posted: Option<u64>,
}

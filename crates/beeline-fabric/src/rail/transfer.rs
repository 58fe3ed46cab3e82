//! Operations: messages, writes, reads, and what became of them.
//!
//! 1. Every operation that was `Taken` gets exactly one [`Completion`]; receives get one for each message.
//! 2. An operation is posted only if the completion queue has an entry for its completion: no provider has to cope
//!    with a queue that overflows (`verbs` cannot). Entries for all receives and some operations are set aside when an
//!    endpoint opens, so one whose peer hangs keeps no other from sending; the others are for who comes first.
//! 3. Messages have places of their own: without one, who posts a write in each place that gets free would keep all
//!    messages back. So writes and reads leave some of an endpoint's places, and of its entries, to messages.
//! 4. Over iWARP a read is in flight alone on its endpoint. Soft-iWARP completes what was posted after a read before
//!    it, and libfabric (1.17, prov/verbs), which takes completions for ordered, then frees what is in use.
//! 5. The context that libfabric carries is a key into `Rail::operations`, never an address.

use std::sync::Arc;

use slotmap::{Key, KeyData};

use super::state::{
    Access, Buffers, Completion, Down, End, EndpointId, Event, Kind, Message, Operation, OperationId, OperationKind,
    Remote, Slice, State, own_of,
};
use super::{Options, Rail, fabric_error};
use crate::error::{Error, Failure};
use crate::ffi;
use crate::handles::{Local, Posted, RawFailure, Target};

/// Longest message that goes without a buffer, if the provider takes it: it is built on the stack.
const INJECT_BYTES_MAX: usize = 256;

/// Completions read in one call.
const BATCH: usize = 64;

bitflags::bitflags! {
    /// How an operation is done.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// Another operation follows at once: no need to ring the adapter yet. Only a hint.
        const MORE = 1;
        /// Begins only when the operations before it on the endpoint are complete.
        const FENCE = 2;
        /// Completes only when the bytes are in the peer's memory, not already when the peer's adapter has them. Over
        /// iWARP a write completes when it is on its way; there this is refused ([`Error::DeliveryUnknown`]).
        const DELIVERED = 4;
    }
}

impl Rail {
    /// Sends a message. It is copied before this returns.
    pub fn send(&mut self, endpoint: EndpointId, message: &[u8], context: u64) -> Result<Posted, Error> {
        self.send_with(endpoint, message.len(), context, |buffer| buffer.copy_from_slice(message))
    }

    /// Sends a message of `bytes` bytes that `fill` writes. `fill` is not called when there is no room.
    pub fn send_with(
        &mut self,
        endpoint: EndpointId,
        bytes: usize,
        context: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Posted, Error> {
        let bytes_max = self.options.message_bytes;
        if bytes > bytes_max {
            return Err(Error::MessageTooLong { rail: self.name.to_string(), bytes, bytes_max });
        }
        if !self.has_room(endpoint, Kind::Send)? {
            return Ok(Posted::Full);
        }
        if bytes <= self.port.inject_bytes_max.min(INJECT_BYTES_MAX) {
            let mut buffer = [0; INJECT_BYTES_MAX];
            let buffer = &mut buffer[..bytes];
            fill(buffer);
            return self.post(endpoint, OperationKind::Send { slot: None }, context, |end, id| {
                end.endpoint.inject(buffer, id)
            });
        }
        let Some(slot) = self.ends.get_mut(endpoint).and_then(|end| end.free_sends.pop()) else {
            return Ok(Posted::Full);
        };
        let posted = self.post(endpoint, OperationKind::Send { slot: Some(slot) }, context, |end, id| {
            // SAFETY: the slot was free, so neither the provider nor anybody else uses it until it is posted below.
            fill(unsafe { end.pool.to_fill(slot, bytes) });
            let local = Local { base: end.pool.slot(slot), bytes, descriptor: end.registration.descriptor() };
            // SAFETY: the slot is not among the free ones until its completion was read or the endpoint closed, and
            // the pool outlives the endpoint.
            unsafe { end.endpoint.send(&local, id, 0) }
        });
        if !matches!(posted, Ok(Posted::Taken))
            && let Some(end) = self.ends.get_mut(endpoint)
        {
            end.free_sends.push(slot);
        }
        posted
    }

    /// Writes a part of a region of ours into memory of the peer's.
    pub fn write(
        &mut self,
        endpoint: EndpointId,
        from: Slice,
        to: Remote,
        context: u64,
        flags: Flags,
    ) -> Result<Posted, Error> {
        self.remote_operation(endpoint, from, to, context, flags, Kind::Write)
    }

    /// Reads memory of the peer's into a part of a region of ours.
    pub fn read(
        &mut self,
        endpoint: EndpointId,
        to: Slice,
        from: Remote,
        context: u64,
        flags: Flags,
    ) -> Result<Posted, Error> {
        self.remote_operation(endpoint, to, from, context, flags, Kind::Read)
    }

    fn remote_operation(
        &mut self,
        endpoint: EndpointId,
        slice: Slice,
        remote: Remote,
        context: u64,
        flags: Flags,
        what: Kind,
    ) -> Result<Posted, Error> {
        let local = self.local_end(slice, what)?;
        if !self.has_room(endpoint, what)? {
            return Ok(Posted::Full);
        }
        if what == Kind::Write && flags.contains(Flags::DELIVERED) && self.port.iwarp {
            return Err(Error::DeliveryUnknown { rail: self.name.to_string() });
        }
        let (region, flags) = (slice.region, flags.bits());
        let target = Target { address: remote.address, key: remote.key };
        let kind = if what == Kind::Read { OperationKind::Read { region } } else { OperationKind::Write { region } };
        let posted = self.post(endpoint, kind, context, |end, id| {
            // SAFETY: the region counts the operation as in use from below until its completion was read or the
            // endpoint closed; until then it keeps memory and registration.
            unsafe {
                match what {
                    Kind::Read => end.endpoint.read(&local, target, id, flags),
                    Kind::Write | Kind::Send => end.endpoint.write(&local, target, id, flags),
                }
            }
        });
        if matches!(posted, Ok(Posted::Taken))
            && let Some(entry) = self.regions.get_mut(region)
        {
            entry.in_use += 1;
        }
        posted
    }

    /// The memory of a slice, if it lies in an open region that may be used so.
    fn local_end(&self, slice: Slice, what: Kind) -> Result<Local, Error> {
        let rail = || self.name.to_string();
        let Slice { region, offset, bytes } = slice;
        let entry = self.regions.get(region).filter(|entry| !entry.closing);
        let Some((entry, registration)) = entry.and_then(|entry| Some((entry, entry.registration.as_ref()?))) else {
            return Err(Error::RegionGone { rail: rail() });
        };
        if offset.checked_add(bytes).is_none_or(|end| end > entry.bytes) {
            return Err(Error::OutOfRegion { rail: rail(), offset, bytes, region_bytes: entry.bytes });
        }
        let bytes_max = self.port.operation_bytes_max;
        if bytes > bytes_max {
            return Err(Error::OperationTooLong { rail: rail(), bytes, bytes_max });
        }
        let (needed, missing) = match what {
            Kind::Read => (Access::TARGET, "reads to put their bytes into"),
            Kind::Write | Kind::Send => (Access::SOURCE, "writes to take their bytes from"),
        };
        if !entry.access.contains(needed) {
            return Err(Error::AccessMissing { rail: rail(), missing });
        }
        // SAFETY: the offset is inside the region's memory.
        let base = unsafe { entry.base.add(offset) };
        Ok(Local { base, bytes, descriptor: registration.descriptor() })
    }

    /// Whether the endpoint is connected, and the queues have a place for one more operation of this kind.
    fn has_room(&self, endpoint: EndpointId, what: Kind) -> Result<bool, Error> {
        let not_connected = || Error::NotConnected { rail: self.name.to_string() };
        let end = self.ends.get(endpoint).filter(|end| end.state == State::Connected).ok_or_else(not_connected)?;
        if self.port.iwarp && (end.reads > 0 || what == Kind::Read && end.in_flight > 0) {
            return Ok(false);
        }
        let Options { sends, operations, operations_own, completion_entries, .. } = self.options;
        let kept = if what == Kind::Send { 0 } else { sends.min(operations / 2) };
        let has_place = end.in_flight < operations && end.beside(what) < operations - kept;
        let has_own = end.beside(what) < own_of(operations_own, what);
        Ok(has_place && (has_own || self.reserved + self.shared < completion_entries))
    }

    /// Posts an operation that is not a receive, and keeps account of it when it is taken.
    fn post(
        &mut self,
        endpoint: EndpointId,
        kind: OperationKind,
        context: u64,
        how: impl FnOnce(&End, u64) -> Result<Posted, i32>,
    ) -> Result<Posted, Error> {
        let Some(end) = self.ends.get_mut(endpoint) else {
            return Err(Error::NotConnected { rail: self.name.to_string() });
        };
        let id = self.operations.insert(Operation { endpoint, kind, context, number: end.posted });
        let posted = how(end, id.data().as_ffi());
        if posted == Ok(Posted::Taken) {
            let what = kind.told();
            self.shared += usize::from(end.beside(what) >= own_of(self.options.operations_own, what));
            (end.posted, end.in_flight) = (end.posted + 1, end.in_flight + 1);
            end.messages += usize::from(what == Kind::Send);
            end.reads += usize::from(matches!(kind, OperationKind::Read { .. }));
        } else {
            self.operations.remove(id);
        }
        posted.map_err(|number| match -number {
            libc::ENOTCONN | libc::ESHUTDOWN => Error::NotConnected { rail: self.name.to_string() },
            _ => fabric_error(&self.name, "post an operation", number),
        })
    }

    pub(super) fn post_receive(&mut self, endpoint: EndpointId, slot: usize) -> Result<(), Error> {
        let Some(end) = self.ends.get(endpoint) else { return Ok(()) };
        let kind = OperationKind::Receive { slot };
        let id = self.operations.insert(Operation { endpoint, kind, context: 0, number: 0 });
        let (base, bytes) = (end.pool.slot(slot), end.pool.slot_bytes());
        let local = Local { base, bytes, descriptor: end.registration.descriptor() };
        // SAFETY: the slot is the provider's until its completion was read or the endpoint closed: it is handed out
        // by a completion only, as a `Message`, and comes back here only when that is recycled.
        let number = match unsafe { end.endpoint.recv(&local, id.data().as_ffi()) } {
            Ok(Posted::Taken) => return Ok(()),
            Ok(Posted::Full) => -libc::EAGAIN,
            Err(number) => number,
        };
        self.operations.remove(id);
        Err(fabric_error(&self.name, "post a receive", number))
    }

    /// Gives a message's buffer back, for the next message.
    pub fn recycle(&mut self, message: Message) -> Result<(), Error> {
        let Message { endpoint, slot, .. } = message;
        match self.ends.get(endpoint) {
            Some(end) if end.state != State::Down => self.post_receive(endpoint, slot),
            _ => Ok(()),
        }
    }

    /// Adds up to `count_max` completions to `out`; how many. In order for each endpoint's messages and for each
    /// endpoint's own operations.
    pub fn poll(&mut self, out: &mut Vec<Completion>, count_max: usize) -> Result<usize, Error> {
        if self.ready.is_empty() {
            // A queue that cannot be read keeps no memory back.
            let read = self.read_batch();
            self.close_due_regions()?;
            read?;
        }
        let count = count_max.min(self.ready.len());
        out.extend(self.ready.drain(..count));
        Ok(count)
    }

    /// Reads completions until there are none. Ends, because receives are not posted again meanwhile.
    pub(super) fn read_dry(&mut self) -> Result<(), Error> {
        while self.read_batch()? {}
        Ok(())
    }

    /// Reads a batch of completions into `ready`; whether there were any.
    fn read_batch(&mut self) -> Result<bool, Error> {
        let mut batch = [ffi::Completion::default(); BATCH];
        let read =
            self.completions.read(&mut batch).map_err(|number| fabric_error(&self.name, "read completions", number))?;
        match read {
            Ok(count) => {
                for completion in batch.iter().take(count) {
                    let bytes = usize::try_from(completion.bytes).unwrap_or(usize::MAX);
                    self.complete(completion.context, Ok(bytes));
                }
                Ok(count > 0)
            }
            Err(failure) => {
                self.complete(failure.context, Err(failure));
                Ok(true)
            }
        }
    }

    /// Books the end of an operation. What nobody remembers was given up before.
    fn complete(&mut self, context: u64, result: Result<usize, RawFailure>) {
        let Some(operation) = self.operations.remove(OperationId::from(KeyData::from_ffi(context))) else { return };
        let endpoint = operation.endpoint;
        let Some(end) = self.ends.get_mut(endpoint) else { return };
        let by_hardware = self.port.places_by_hardware();
        let failure = result.as_ref().err().map(|raw| raw.failure(by_hardware));
        match operation.kind {
            OperationKind::Receive { slot } => {
                let fits = |&bytes: &usize| bytes <= end.pool.slot_bytes();
                if let Some(bytes) = result.ok().filter(fits) {
                    let pool = Buffers(Arc::clone(&end.pool));
                    self.ready
                        .push_back(Completion::Received { endpoint, message: Message { endpoint, pool, slot, bytes } });
                    self.message_came(endpoint);
                }
            }
            OperationKind::Send { .. } | OperationKind::Write { .. } | OperationKind::Read { .. } => {
                let what = operation.kind.told();
                self.shared -= usize::from(end.beside(what) > own_of(self.options.operations_own, what));
                end.in_flight -= 1;
                end.messages -= usize::from(what == Kind::Send);
                end.reads -= usize::from(matches!(operation.kind, OperationKind::Read { .. }));
                if let OperationKind::Send { slot: Some(slot) } = operation.kind {
                    end.free_sends.push(slot);
                }
                self.release_local(&operation);
                self.ready.push_back(match &failure {
                    None => operation.done(),
                    Some(failure) => operation.failed(failure.clone()),
                });
                if failure.is_none() {
                    self.operation_is_out(endpoint, operation.number);
                }
            }
        }
        if let Some(failure) = failure.filter(|failure| !failure.is_cancelled()) {
            self.fail_end(endpoint, failure);
        }
    }

    /// An operation failed of itself: the connection is over, whether or not the provider tells so.
    fn fail_end(&mut self, endpoint: EndpointId, failure: Failure) {
        if let Some(end) = self.ends.get_mut(endpoint).filter(|end| end.state == State::Connected) {
            end.state = State::Down;
            self.told.push_back(Event::Down { endpoint, cause: Down::Failed(failure) });
        }
    }
}

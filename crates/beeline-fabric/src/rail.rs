//! One open port: its queues, its endpoints, its memory regions.
//!
//! The parts: [`connect`](self) makes and ends connections and tells events, `transfer` posts operations and tells
//! completions, `regions` registers memory and says when it is free again; `state` is what they work on. The rules are
//! in the head of the crate.

mod connect;
mod regions;
mod state;
mod transfer;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use slotmap::SlotMap;

use crate::discover::Port;
use crate::error::{Error, Failure};
use crate::handles::{CompletionQueue, Domain, EventQueue, Fabric, Info, Listener};
pub use connect::PRIVATE_DATA_BYTES_MAX;
pub use state::{Access, Completion, Down, EndpointId, Event, Kind, Message, RegionId, Remote, Request, Slice};
use state::{End, Operation, OperationId, Region, RequestId};
pub use transfer::Flags;

/// Sizes of a rail's queues and buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Longest message, both ways.
    pub message_bytes: usize,
    /// Receive buffers of one endpoint: messages that can wait to be polled and recycled.
    pub receives: usize,
    /// Send buffers of one endpoint.
    pub sends: usize,
    /// Sends, writes and reads in flight on one endpoint, at most. Writes and reads leave as many places as there are
    /// send buffers, but no more than half of all.
    pub operations: usize,
    /// As many of them as every endpoint may have in flight, whatever the others do, half of them sends: entries of the
    /// completion queue are set aside for them, as for its receives.
    pub operations_own: usize,
    /// Entries of the completion queue, which all endpoints share. Fewer where the adapter has no queue of that size.
    pub completion_entries: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            message_bytes: 4096,
            receives: 64,
            sends: 64,
            operations: 128,
            operations_own: 32,
            completion_entries: 8192,
        }
    }
}

/// The smallest completion queue that is tried when there is none of the size that was asked for.
const COMPLETION_ENTRIES_MIN: usize = 1024;
/// Operations for which there is room before anything is in flight.
const OPERATIONS_EXPECTED: usize = 8192;

/// One open port, to be driven by one event loop. Nothing in here starts a thread.
pub struct Rail {
    ends: SlotMap<EndpointId, End>,
    /// Which endpoint an event means.
    ends_by_fid: HashMap<usize, EndpointId>,
    regions: SlotMap<RegionId, Region>,
    /// Bytes of all regions.
    registered_bytes: usize,
    /// Regions whose memory something may still touch.
    closing: Vec<RegionId>,
    /// Those of them whose last operation is over and whose key can be taken away.
    closing_due: Vec<RegionId>,
    operations: SlotMap<OperationId, Operation>,
    /// Entries of the completion queue set aside for endpoints.
    reserved: usize,
    /// Operations in flight for which none is: those beyond an endpoint's own.
    shared: usize,
    /// Completions read and not yet told.
    ready: VecDeque<Completion>,
    /// Events of our own making, not yet told.
    told: VecDeque<Event>,
    requests: HashMap<RequestId, Info>,
    next_request: u64,
    listener: Option<Listener>,
    completions: Arc<CompletionQueue>,
    events: Arc<EventQueue>,
    /// The events' fd will ring for the next one: nothing was read since it said so.
    armed: bool,
    domain: Arc<Domain>,
    port: Port,
    name: Arc<str>,
    options: Options,
}

impl Rail {
    /// Opens a port. Sizes beyond what the provider has are cut to what it has.
    pub fn open(port: &Port, options: Options) -> Result<Rail, Error> {
        let name: Arc<str> = port.name().into();
        let fail = |action| failing(&name, action);
        let fabric = Fabric::open(&port.info).map_err(fail("open the fabric"))?;
        let domain = Domain::open(&fabric, &port.info).map_err(fail("open the domain"))?;
        let events = EventQueue::open(&fabric).map_err(fail("open the event queue"))?;
        let (completions, completion_entries) =
            open_completions(&domain, options.completion_entries).map_err(fail("open the completion queue"))?;
        let (transmits_max, receives_max) = port.queue_sizes;
        let operations = options.operations.clamp(2, transmits_max.max(2));
        let options = Options {
            receives: options.receives.clamp(1, receives_max.max(1)),
            operations,
            operations_own: options.operations_own.clamp(2, operations),
            completion_entries,
            ..options
        };
        Ok(Rail {
            ends: SlotMap::with_key(),
            ends_by_fid: HashMap::new(),
            regions: SlotMap::with_key(),
            registered_bytes: 0,
            closing: Vec::new(),
            closing_due: Vec::new(),
            operations: SlotMap::with_capacity_and_key(options.completion_entries.min(OPERATIONS_EXPECTED)),
            reserved: 0,
            shared: 0,
            ready: VecDeque::new(),
            told: VecDeque::new(),
            requests: HashMap::new(),
            next_request: 0,
            listener: None,
            completions,
            events,
            armed: false,
            domain,
            port: port.clone(),
            name,
            options,
        })
    }

    /// The port this rail was opened from.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The sizes in force.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Readable when [`Rail::next_event`] may have something. Never read or close it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        borrow(self, self.events.fd)
    }

    /// Readable when [`Rail::poll`] may have something. Never read or close it.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        borrow(self, self.completions.fd)
    }

    /// Whether the loop may sleep on the two fds now. When it says no, poll both queues and ask again: an fd rings
    /// only for what comes after a yes, so sleeping after a no can sleep for ever.
    pub fn may_sleep(&mut self) -> Result<bool, Error> {
        if !self.ready.is_empty() || !self.told.is_empty() {
            return Ok(false);
        }
        let may = self.events.may_sleep(&self.completions, self.armed);
        self.armed |= may == Ok(true);
        may.map_err(|number| fabric_error(&self.name, "prepare to sleep", number))
    }
}

/// Opens a completion queue of so many entries, or, where there is none so large, of half as many, and so on. It, and
/// how many it has.
fn open_completions(domain: &Arc<Domain>, entries: usize) -> Result<(Arc<CompletionQueue>, usize), i32> {
    match CompletionQueue::open(domain, entries) {
        Ok(queue) => Ok((queue, entries)),
        Err(_) if entries / 2 >= COMPLETION_ENTRIES_MIN => open_completions(domain, entries / 2),
        Err(number) => Err(number),
    }
}

/// The rail keeps the queue of the fd open.
fn borrow(_rail: &Rail, fd: RawFd) -> BorrowedFd<'_> {
    // SAFETY: libfabric gave the fd for a queue that lives as long as the rail, which the result borrows.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Drop for Rail {
    /// Endpoints first, so that nothing is in flight when memory goes. Who still waits for an answer gets a refusal.
    fn drop(&mut self) {
        for id in self.ends.keys().collect::<Vec<_>>() {
            let _ = self.close(id);
        }
        self.refuse_all();
    }
}

/// An error of libfabric's, with the rail and what was tried.
fn fabric_error(rail: &str, action: &'static str, number: i32) -> Error {
    Error::Fabric { rail: rail.to_owned(), action, failure: Failure::from_number(number) }
}

/// What a failed registration comes from, where that is not plain.
fn registration_error(rail: &Arc<str>) -> impl Fn(i32) -> Error + use<> {
    let rail = Arc::clone(rail);
    move |number| {
        let hint = if -number == libc::ENOMEM { "is the limit of locked memory (ulimit -l) too low?" } else { "" };
        let failure = Failure::with_detail(number, hint.to_owned());
        Error::Fabric { rail: rail.to_string(), action: "register memory", failure }
    }
}

/// [`fabric_error`] for `map_err`, where the rail itself is borrowed.
fn failing(rail: &Arc<str>, action: &'static str) -> impl Fn(i32) -> Error + use<> {
    let rail = Arc::clone(rail);
    move |number| fabric_error(&rail, action, number)
}

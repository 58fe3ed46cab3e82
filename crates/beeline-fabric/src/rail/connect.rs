//! Connections: listening, connecting, answering, ending, and the events that tell of them.
//!
//! 1. An endpoint is connecting, then connected, then down, then closed. [`Event::Refused`] closes it.
//! 2. A connecting endpoint gets exactly one of `Connected` and `Refused`, unless it is closed first. A connected
//!    one gets `Down` at most once: when its peer is gone, or when an operation failed otherwise than by cancelling.
//! 3. Before `Down` is told, the completion queue is read dry: the messages that came before are in
//!    [`Rail::poll`] by then.
//! 4. Private data goes with its length before it, because InfiniBand's connection manager pads it.

use std::net::SocketAddr;
use std::sync::Arc;

use super::state::{Down, End, EndpointId, Event, Operation, OperationId, OperationKind, Request, RequestId, State};
use super::{Options, Rail, fabric_error, failing, registration_error};
use crate::error::{Error, Failure};
use crate::ffi;
use crate::handles::{Endpoint, Info, Listener, RawEventKind, Registration};
use crate::memory::Pool;

/// Most private data that every provider carries with a request, an acceptance or a refusal. (RDMA CM over
/// InfiniBand has 56 bytes for a request; libfabric and our length take one each.)
pub const PRIVATE_DATA_BYTES_MAX: usize = 48;

/// The buffers of an endpoint that is being opened. Field order is closing order.
struct EndBuffers {
    /// Of `pool`.
    registration: Registration,
    pool: Pool,
}

impl Rail {
    /// Listens on the rail's address, at `number` or, for 0, at a number of the system's choice.
    pub fn listen(&mut self, number: u16) -> Result<SocketAddr, Error> {
        if let Some(listener) = &self.listener {
            return Err(Error::AlreadyListening { rail: self.name.to_string(), address: listener.address });
        }
        let address = SocketAddr::new(self.port.address, number);
        let fail = failing(&self.name, "listen");
        let info = self.port.info.with_source(&address).map_err(&fail)?;
        let listener = self.listener.insert(Listener::open(&info, &self.events).map_err(&fail)?);
        Ok(listener.address)
    }

    /// The address that [`Rail::listen`] got.
    pub fn listening_on(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|listener| listener.address)
    }

    /// Begins to connect; `Connected` or `Refused` will tell.
    ///
    /// The `verbs` provider finds out on the spot by which way the address is reached, and waits up to two seconds when
    /// nobody on the link answers for it: connect to hosts that are known to be there.
    pub fn connect(&mut self, to: SocketAddr, data: &[u8]) -> Result<EndpointId, Error> {
        let fail = failing(&self.name, "connect");
        let data = self.packed(data)?;
        let info = self.port.info.with_target(&to).map_err(&fail)?;
        let buffers = self.buffers_of_end()?;
        let id = self.open_end(info, buffers, true)?;
        self.begin(id, &data, Endpoint::connect).map_err(fail)?;
        Ok(id)
    }

    /// Accepts a request; `Connected` will tell when the peer has heard of it.
    pub fn accept(&mut self, request: Request, data: &[u8]) -> Result<EndpointId, Error> {
        let fail = failing(&self.name, "accept");
        let data = self.packed(data)?;
        let info = self.requests.remove(&request.id).ok_or_else(|| self.request_gone())?;
        let buffers = match self.buffers_of_end() {
            Ok(buffers) => buffers,
            Err(error) => {
                // A refusal is better than silence. Later there is nothing to refuse: the endpoint has the request.
                self.refuse(&info, &[]).map_err(&fail)?;
                return Err(error);
            }
        };
        let id = self.open_end(info, buffers, false)?;
        self.begin(id, &data, Endpoint::accept).map_err(fail)?;
        Ok(id)
    }

    /// Refuses a request.
    pub fn reject(&mut self, request: Request, data: &[u8]) -> Result<(), Error> {
        let data = self.packed(data)?;
        let info = self.requests.remove(&request.id).ok_or_else(|| self.request_gone())?;
        self.refuse(&info, &data).map_err(failing(&self.name, "reject"))
    }

    fn refuse(&self, request: &Info, data: &[u8]) -> Result<(), i32> {
        let Some(listener) = &self.listener else { return Ok(()) };
        check_room(data, listener.data_bytes_max())?;
        listener.reject(request, data)
    }

    /// Refuses whom nobody answered.
    pub(super) fn refuse_all(&mut self) {
        for (_, request) in std::mem::take(&mut self.requests) {
            let _ = self.refuse(&request, &[]);
        }
    }

    fn request_gone(&self) -> Error {
        Error::RequestGone { rail: self.name.to_string() }
    }

    fn packed(&self, data: &[u8]) -> Result<Vec<u8>, Error> {
        let length = u8::try_from(data.len()).ok().filter(|_| data.len() <= PRIVATE_DATA_BYTES_MAX);
        let Some(length) = length else {
            let (rail, bytes) = (self.name.to_string(), data.len());
            return Err(Error::PrivateDataTooLong { rail, bytes, bytes_max: PRIVATE_DATA_BYTES_MAX });
        };
        Ok(std::iter::once(length).chain(data.iter().copied()).collect())
    }

    /// Entries of the completion queue that are set aside for one endpoint.
    fn entries_of_end(&self) -> usize {
        self.options.receives + self.options.operations_own
    }

    /// Whether the completion queue has entries to set aside for another endpoint.
    fn check_room_for_end(&self) -> Result<(), Error> {
        let entries = self.options.completion_entries;
        if self.reserved + self.entries_of_end() + self.shared <= entries {
            return Ok(());
        }
        Err(Error::CompletionQueueFull { rail: self.name.to_string(), entries })
    }

    /// What an endpoint needs before it is opened.
    fn buffers_of_end(&self) -> Result<EndBuffers, Error> {
        self.check_room_for_end()?;
        let Options { receives, sends, message_bytes, .. } = self.options;
        let slots = receives + sends;
        let pool = Pool::new(slots, message_bytes)
            .map_err(|error| Error::NoMemory { bytes: slots * message_bytes, text: error.to_string() })?;
        let (base, bytes) = (pool.base(), pool.bytes());
        // SAFETY: the pool stays until the registration is closed, and for ever where that fails ([`Rail::close`]). If
        // no endpoint comes of them, both are dropped in this order, and no peer knows of the memory.
        let registration = unsafe { self.register_range(base, bytes, ffi::ACCESS_MESSAGES) }
            .map_err(registration_error(&self.name))?;
        Ok(EndBuffers { registration, pool })
    }

    /// Opens an endpoint and gives it its buffers: all receives are posted before the peer can send.
    fn open_end(&mut self, info: Info, buffers: EndBuffers, ours: bool) -> Result<EndpointId, Error> {
        let Options { receives, sends, operations, .. } = self.options;
        let slots = receives + sends;
        let fail = |action| failing(&self.name, action);
        let sizes = (operations, receives);
        let endpoint = Endpoint::open(&self.domain, info, &self.events, &self.completions, sizes)
            .map_err(fail("open an endpoint"))?;
        let fid = endpoint.fid();
        let EndBuffers { registration, pool } = buffers;
        let id = self.ends.insert(End {
            endpoint,
            state: State::Connecting,
            ours,
            registration,
            pool: Arc::new(pool),
            free_sends: (receives..slots).collect(),
            in_flight: 0,
            messages: 0,
            reads: 0,
            posted: 0,
        });
        self.ends_by_fid.insert(fid, id);
        self.reserved += self.entries_of_end();
        for slot in 0..receives {
            if let Err(error) = self.post_receive(id, slot) {
                let _ = self.close(id);
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Starts connecting or accepting; an endpoint that cannot is closed.
    fn begin(
        &mut self,
        id: EndpointId,
        data: &[u8],
        how: impl Fn(&Endpoint, &[u8]) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let Some(end) = self.ends.get(id) else { return Ok(()) };
        let begun = check_room(data, end.endpoint.data_bytes_max()).and_then(|()| how(&end.endpoint, data));
        if begun.is_err() {
            let _ = self.close(id);
        }
        begun
    }

    /// Ends a connection and frees the endpoint. What is still in flight on it is given up and told as failed
    /// ([`Failure::cancelled`]), whether it reached the peer or not; after this the provider touches none of its
    /// memory.
    pub fn close(&mut self, id: EndpointId) -> Result<(), Error> {
        if !self.ends.contains_key(id) {
            return Err(Error::NotConnected { rail: self.name.to_string() });
        }
        // What is done is told as done. An endpoint whose queue cannot be read any more is closed all the same.
        let dry = self.read_dry();
        let Some(end) = self.ends.remove(id) else { return Ok(()) };
        self.ends_by_fid.remove(&end.endpoint.fid());
        self.reserved -= self.entries_of_end();
        self.shared -= end.beyond(self.options.operations_own);
        if end.state == State::Connected {
            // Tells the peer at once. A connection that is gone already is what we want, too.
            let _ = end.endpoint.shutdown();
        }
        let closed = end.endpoint.close();
        let given_up: Vec<(OperationId, Operation)> = self.operations_of(id);
        if closed.is_err() {
            // The provider may still use the buffers: they stay for ever.
            std::mem::forget(Arc::clone(&end.pool));
            for (_, operation) in &given_up {
                self.keep_for_ever(operation);
            }
        }
        for (operation_id, operation) in given_up {
            self.operations.remove(operation_id);
            if !matches!(operation.kind, OperationKind::Receive { .. }) {
                self.ready.push_back(operation.failed(Failure::cancelled()));
            }
            self.release_local(&operation);
        }
        self.endpoint_is_gone(id);
        self.close_due_regions()?;
        let pool = &end.pool;
        let closed = closed.and_then(|()| end.registration.close().inspect_err(|_| std::mem::forget(Arc::clone(pool))));
        closed.map_err(failing(&self.name, "close an endpoint"))?;
        dry
    }

    fn operations_of(&self, id: EndpointId) -> Vec<(OperationId, Operation)> {
        let of_id = self.operations.iter().filter(|(_, operation)| operation.endpoint == id);
        of_id.map(|(key, operation)| (key, operation.clone())).collect()
    }

    /// The next event, if there is one. Poll completions too, before sleeping and before waiting for an event: some
    /// providers only move when they are polled.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Ok(Some(event));
            }
            self.armed = false;
            let raw = match self.events.next() {
                Ok(Some(raw)) => raw,
                Ok(None) => return Ok(None),
                Err(number) if self.refuse_connecting(number)? => continue,
                Err(number) => return Err(fabric_error(&self.name, "read events", number)),
            };
            let endpoint = self.ends_by_fid.get(&raw.fid).copied();
            match (raw.what, endpoint) {
                (RawEventKind::Request { info, peer }, _) => {
                    self.next_request += 1;
                    let id = RequestId(self.next_request);
                    self.requests.insert(id, info);
                    self.told.push_back(Event::Request(Request { id, peer, data: unpacked(&raw.data) }));
                }
                (RawEventKind::Connected, Some(endpoint)) => {
                    if let Some(end) = self.ends.get_mut(endpoint) {
                        end.state = State::Connected;
                        self.told.push_back(Event::Connected { endpoint, data: unpacked(&raw.data) });
                    }
                }
                (RawEventKind::Shutdown, Some(endpoint)) => self.bring_down(endpoint, Down::ByPeer, &[])?,
                (RawEventKind::Failed { number, detail }, Some(endpoint)) => {
                    let failure = Failure::with_detail(number, detail);
                    self.bring_down(endpoint, Down::Failed(failure), &raw.data)?;
                }
                // About an endpoint that is closed, a listener, or nothing we know.
                _ => {}
            }
        }
    }

    /// The queue of events told an error of its own. The verbs provider does that with what `rdma_connect` returns once
    /// the way to the peer is known, and does not say which endpoint it means: over iWARP a refusal comes so. All that
    /// are connecting are refused, and who wanted them may try again. Whether there are any.
    fn refuse_connecting(&mut self, number: i32) -> Result<bool, Error> {
        let is_meant = |end: &End| end.ours && end.state == State::Connecting;
        let meant: Vec<EndpointId> = self.ends.iter().filter(|(_, end)| is_meant(end)).map(|(id, _)| id).collect();
        for &id in &meant {
            self.bring_down(id, Down::Failed(Failure::from_number(number)), &[])?;
        }
        Ok(!meant.is_empty())
    }

    /// Ends the connecting or connected state of an endpoint, once.
    pub(super) fn bring_down(&mut self, endpoint: EndpointId, cause: Down, data: &[u8]) -> Result<(), Error> {
        self.read_dry()?;
        let Some(end) = self.ends.get_mut(endpoint) else { return Ok(()) };
        match std::mem::replace(&mut end.state, State::Down) {
            State::Connecting => {
                let failure = match cause {
                    Down::ByPeer => Failure::from_number(-libc::ECONNREFUSED),
                    Down::Failed(failure) => failure,
                };
                let closed = self.close(endpoint);
                self.told.push_back(Event::Refused { endpoint, data: unpacked(data), failure });
                closed
            }
            State::Connected => {
                self.told.push_back(Event::Down { endpoint, cause });
                Ok(())
            }
            State::Down => Ok(()),
        }
    }
}

/// Whether the provider carries so much private data; 0 when it does not say.
fn check_room(data: &[u8], bytes_max: usize) -> Result<(), i32> {
    if bytes_max != 0 && data.len() > bytes_max { Err(-libc::EMSGSIZE) } else { Ok(()) }
}

/// The private data in what came; nothing when the length before it is a lie.
fn unpacked(raw: &[u8]) -> Vec<u8> {
    let Some((&length, rest)) = raw.split_first() else { return Vec::new() };
    rest.get(..usize::from(length)).map(<[u8]>::to_vec).unwrap_or_default()
}

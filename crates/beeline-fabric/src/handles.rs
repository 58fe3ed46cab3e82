//! libfabric's objects as Rust values: opened by a constructor, closed by `Drop`, each holding what it depends on.
//!
//! Everything here turns one call of `shim.c` into one checked result. The calls that hand memory to the provider
//! (`recv`, `send`, `write`, `read`, `register`) are `unsafe`: how long the memory must stay is the caller's to know.
//!
//! The rail asks for `FI_THREAD_DOMAIN`: calls on one domain must not overlap. The handles are private to
//! [`crate::Rail`], whose methods that reach libfabric all take `&mut self`.

use std::ffi::{CStr, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::Failure;
use crate::{address, ffi};

/// libfabric's error number, as it returned it (negative).
pub(crate) type Number = i32;

/// Whether an operation was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// It is in flight; its completion will come.
    Taken,
    /// A queue is full. Poll, and post again when completions have come.
    Full,
}

fn check(number: c_int) -> Result<(), Number> {
    if number == 0 { Ok(()) } else { Err(number) }
}

fn posted(number: c_int) -> Result<Posted, Number> {
    match number {
        0 => Ok(Posted::Taken),
        EAGAIN => Ok(Posted::Full),
        other => Err(other),
    }
}

const EAGAIN: Number = -libc::EAGAIN;
/// `FI_EAVAIL`: an error entry waits in the completion queue.
const EAVAIL: Number = -259;
/// `FI_ENODATA`: nothing matches the hints.
pub(crate) const ENODATA: Number = -libc::ENODATA;
/// `FI_ENOKEY` (libfabric has a number of its own for it): the requested key is taken.
pub(crate) const ENOKEY: Number = -266;

/// What libfabric knows of a port, and what every object is opened from.
pub(crate) struct Info(NonNull<ffi::FiInfo>);

// SAFETY: an `fi_info` is a tree of plain data; nothing in libfabric refers to a copy that we own.
unsafe impl Send for Info {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Info {}

impl Info {
    /// The ports of `provider`.
    pub fn query(provider: &CStr) -> Result<Vec<Info>, Number> {
        let mut list = ptr::null_mut();
        // SAFETY: the name ends in NUL and lives through the call; `list` takes the result.
        check(unsafe { ffi::bf_getinfo(provider.as_ptr(), &raw mut list) })?;
        let list = Info(NonNull::new(list).ok_or(ENODATA)?);
        let mut infos = Vec::new();
        let mut next = list.raw();
        while let Some(info) = NonNull::new(next) {
            // SAFETY: `info` is an entry of the list that `list` keeps alive; the copy is ours.
            infos.push(Info(NonNull::new(unsafe { ffi::bf_dup(info.as_ptr()) }).ok_or(-libc::ENOMEM)?));
            // SAFETY: as above.
            next = unsafe { ffi::bf_next(info.as_ptr()) };
        }
        Ok(infos)
    }

    /// A copy with another local address.
    pub fn with_source(&self, address: &SocketAddr) -> Result<Info, Number> {
        self.with_address(false, address)
    }

    /// A copy for connecting to `address`. (Asking libfabric for it instead would resolve the address twice.)
    pub fn with_target(&self, address: &SocketAddr) -> Result<Info, Number> {
        self.with_address(true, address)
    }

    fn with_address(&self, target: bool, address: &SocketAddr) -> Result<Info, Number> {
        let copy = self.clone();
        let (storage, bytes) = address::to_storage(address);
        // SAFETY: the copy is ours alone, and `storage` holds `bytes` bytes of an address, which are copied.
        check(unsafe { ffi::bf_set_address(copy.raw(), target, (&raw const storage).cast(), bytes) })?;
        Ok(copy)
    }

    pub fn describe(&self) -> Box<ffi::Port> {
        // SAFETY: `Port` is plain numbers, for which zero is a value.
        let mut port: Box<ffi::Port> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the info lives, and the shim fills the whole of `port`.
        unsafe { ffi::bf_describe(self.raw(), &raw mut *port) };
        port
    }

    fn raw(&self) -> *mut ffi::FiInfo {
        self.0.as_ptr()
    }
}

impl Clone for Info {
    fn clone(&self) -> Info {
        // SAFETY: the info lives.
        Info(NonNull::new(unsafe { ffi::bf_dup(self.raw()) }).expect("out of memory"))
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the info is ours and nobody has it after this.
        unsafe { ffi::bf_free(self.raw()) }
    }
}

/// An open object of libfabric, closed when dropped.
struct Open<T>(NonNull<T>);

// SAFETY: libfabric's objects belong to the process, not to a thread; that calls never overlap is the rail's doing.
unsafe impl<T> Send for Open<T> {}
// SAFETY: as above (see the head of this file).
unsafe impl<T> Sync for Open<T> {}

impl<T> Open<T> {
    /// The object that an opening call left in `raw`.
    fn new(number: c_int, raw: *mut T) -> Result<Open<T>, Number> {
        check(number)?;
        NonNull::new(raw).map(Open).ok_or(-libc::EIO)
    }

    fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }

    fn fid(&self) -> *mut ffi::Fid {
        // Each of libfabric's objects begins with its `struct fid`.
        self.0.as_ptr().cast()
    }

    fn close(self) -> Result<(), Number> {
        // SAFETY: the object is open, and by `forget` this is the only time it is closed.
        let number = unsafe { ffi::bf_close(self.fid()) };
        std::mem::forget(self);
        check(number)
    }
}

impl<T> Drop for Open<T> {
    fn drop(&mut self) {
        // SAFETY: the object is open, and nobody has it after this. There is nobody to tell of an error.
        unsafe { ffi::bf_close(self.fid()) };
    }
}

pub(crate) struct Fabric(Open<ffi::FidFabric>);

impl Fabric {
    pub fn open(info: &Info) -> Result<Arc<Fabric>, Number> {
        let mut raw = ptr::null_mut();
        // SAFETY: the info lives; `raw` takes the result.
        let number = unsafe { ffi::bf_fabric(info.raw(), &raw mut raw) };
        Ok(Arc::new(Fabric(Open::new(number, raw)?)))
    }
}

pub(crate) struct Domain {
    open: Open<ffi::FidDomain>,
    _fabric: Arc<Fabric>,
}

impl Domain {
    pub fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Domain>, Number> {
        let mut raw = ptr::null_mut();
        // SAFETY: fabric and info live; `raw` takes the result.
        let number = unsafe { ffi::bf_domain(fabric.0.raw(), info.raw(), &raw mut raw) };
        Ok(Arc::new(Domain { open: Open::new(number, raw)?, _fabric: Arc::clone(fabric) }))
    }
}

/// What the event queue tells.
pub(crate) struct RawEvent {
    /// The endpoint or listener it is about: an address to compare with, never to follow.
    pub fid: usize,
    pub what: RawEventKind,
    /// Private data of the peer.
    pub data: Vec<u8>,
}

pub(crate) enum RawEventKind {
    Request { info: Info, peer: Option<SocketAddr> },
    Connected,
    Shutdown,
    Failed { number: Number, detail: String },
    Other,
}

pub(crate) struct EventQueue {
    open: Open<ffi::FidEq>,
    pub fd: RawFd,
    fabric: Arc<Fabric>,
}

impl EventQueue {
    pub fn open(fabric: &Arc<Fabric>) -> Result<Arc<EventQueue>, Number> {
        let (mut raw, mut fd) = (ptr::null_mut(), -1);
        // SAFETY: the fabric lives; `raw` and `fd` take the results.
        let number = unsafe { ffi::bf_eq(fabric.0.raw(), &raw mut raw, &raw mut fd) };
        Ok(Arc::new(EventQueue { open: Open::new(number, raw)?, fd, fabric: Arc::clone(fabric) }))
    }

    pub fn next(&self) -> Result<Option<RawEvent>, Number> {
        // SAFETY: `Event` is plain numbers and null pointers, for which zero is a value.
        let mut event: ffi::Event = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open; the shim fills the whole of `event`.
        match unsafe { ffi::bf_event(self.open.raw(), &raw mut event) } {
            0 => return Ok(None),
            1 => {}
            number => return Err(number),
        }
        let bytes = usize::try_from(event.data_bytes).unwrap_or(0).min(ffi::DATA_BYTES);
        let what = match event.kind {
            // The request's info is ours from here on.
            ffi::EVENT_REQUEST => match NonNull::new(event.info) {
                Some(info) => RawEventKind::Request {
                    info: Info(info),
                    peer: address::from_storage(&event.peer, event.peer_bytes),
                },
                None => RawEventKind::Other,
            },
            ffi::EVENT_CONNECTED => RawEventKind::Connected,
            ffi::EVENT_SHUTDOWN => RawEventKind::Shutdown,
            ffi::EVENT_FAILED => RawEventKind::Failed { number: event.error, detail: ffi::text(&event.text) },
            _ => RawEventKind::Other,
        };
        Ok(Some(RawEvent { fid: event.fid.addr(), what, data: event.data[..bytes].to_vec() }))
    }

    /// Whether one may sleep on the two wait fds: nothing is left to read, and both will ring for what comes.
    pub fn may_sleep(&self, completions: &CompletionQueue) -> Result<bool, Number> {
        // SAFETY: fabric and both queues are open.
        match unsafe { ffi::bf_trywait(self.fabric.0.raw(), self.open.raw(), completions.open.raw()) } {
            0 => Ok(true),
            EAGAIN => Ok(false),
            number => Err(number),
        }
    }
}

/// An operation that failed, as the completion queue tells it.
pub(crate) struct RawFailure {
    pub context: u64,
    number: Number,
    provider_number: Number,
    detail: String,
}

/// `IBV_WC_WR_FLUSH_ERR`: the verbs provider's number for an operation that was swept out of a dead queue pair.
const FLUSHED: Number = 5;

impl RawFailure {
    pub fn failure(&self, places_by_hardware: bool) -> Failure {
        let swept = places_by_hardware && self.provider_number == FLUSHED;
        let number = if swept { libc::ECANCELED } else { self.number };
        Failure::with_detail(number, self.detail.clone())
    }
}

pub(crate) struct CompletionQueue {
    open: Open<ffi::FidCq>,
    pub fd: RawFd,
    _domain: Arc<Domain>,
}

impl CompletionQueue {
    pub fn open(domain: &Arc<Domain>, entries: usize) -> Result<Arc<CompletionQueue>, Number> {
        let (mut raw, mut fd) = (ptr::null_mut(), -1);
        // SAFETY: the domain lives; `raw` and `fd` take the results.
        let number = unsafe { ffi::bf_cq(domain.open.raw(), entries, &raw mut raw, &raw mut fd) };
        Ok(Arc::new(CompletionQueue { open: Open::new(number, raw)?, fd, _domain: Arc::clone(domain) }))
    }

    /// Reads completions into `out`; how many, or the one that failed.
    pub fn read(&self, out: &mut [ffi::Completion]) -> Result<Result<usize, RawFailure>, Number> {
        // SAFETY: the queue is open, and `out` takes up to its length.
        match unsafe { ffi::bf_completions(self.open.raw(), out.as_mut_ptr(), out.len()) } {
            EAVAIL => self.failure().map(|failure| failure.map_or(Ok(0), Err)),
            number => usize::try_from(number).map(Ok).map_err(|_| number),
        }
    }

    fn failure(&self) -> Result<Option<RawFailure>, Number> {
        let mut failure = ffi::Failure { context: 0, error: 0, provider_error: 0, text: [0; ffi::TEXT_BYTES] };
        // SAFETY: the queue is open; the shim fills the whole of `failure`.
        match unsafe { ffi::bf_failure(self.open.raw(), &raw mut failure) } {
            0 => Ok(None),
            1 => Ok(Some(RawFailure {
                context: failure.context,
                number: failure.error,
                provider_number: failure.provider_error,
                detail: ffi::text(&failure.text),
            })),
            number => Err(number),
        }
    }
}

pub(crate) struct Listener {
    open: Open<ffi::FidPep>,
    pub address: SocketAddr,
    _events: Arc<EventQueue>,
}

impl Listener {
    /// Listens on the source address of `info`.
    pub fn open(info: &Info, events: &Arc<EventQueue>) -> Result<Listener, Number> {
        let (mut raw, mut storage, mut bytes) = (ptr::null_mut(), address::empty(), 0);
        // SAFETY: info, fabric and event queue live; the rest takes the results.
        let number = unsafe {
            let fabric = events.fabric.0.raw();
            ffi::bf_listen(fabric, info.raw(), events.open.raw(), &raw mut raw, &raw mut storage, &raw mut bytes)
        };
        let open = Open::new(number, raw)?;
        let address = address::from_storage(&storage, bytes).ok_or(-libc::EAFNOSUPPORT)?;
        Ok(Listener { open, address, _events: Arc::clone(events) })
    }

    pub fn reject(&self, request: &Info, data: &[u8]) -> Result<(), Number> {
        // SAFETY: the listener is open, the request came from it and was not answered, and `data` lives through the
        // call, which copies it.
        check(unsafe { ffi::bf_reject(self.open.raw(), request.raw(), data.as_ptr().cast(), data.len()) })
    }

    pub fn data_bytes_max(&self) -> usize {
        // SAFETY: the listener is open.
        unsafe { ffi::bf_data_max(self.open.fid()) }
    }
}

/// A registration of memory.
pub(crate) struct Registration {
    open: Open<ffi::FidMr>,
    /// What a remote operation names.
    pub key: u64,
    /// What a local operation names.
    descriptor: Descriptor,
    _domain: Arc<Domain>,
}

/// What libfabric calls a registration in a local operation. Only ever handed back to it.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor(*mut c_void);

// SAFETY: it is a name; this process never follows it.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Registration {
    /// Registers `bytes` at `base` under `key`, where the provider lets us choose.
    ///
    /// # Safety
    /// The range stays mapped until the registration is closed and nothing of the domain is in flight to or from it.
    pub unsafe fn open(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
        key: u64,
    ) -> Result<Registration, Number> {
        let (mut raw, mut key_out, mut descriptor) = (ptr::null_mut(), 0, ptr::null_mut());
        // SAFETY: the domain lives, the range is the caller's promise, the rest takes the results.
        let number = unsafe {
            let base = base.as_ptr().cast();
            let (out, key_out, descriptor) = (&raw mut raw, &raw mut key_out, &raw mut descriptor);
            ffi::bf_register(domain.open.raw(), base, bytes, access, key, out, key_out, descriptor)
        };
        let (open, descriptor) = (Open::new(number, raw)?, Descriptor(descriptor));
        Ok(Registration { open, key: key_out, descriptor, _domain: Arc::clone(domain) })
    }

    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    pub fn close(self) -> Result<(), Number> {
        self.open.close()
    }
}

/// The local end of an operation.
pub(crate) struct Local {
    pub base: NonNull<u8>,
    pub bytes: usize,
    /// Of the registration that covers the range.
    pub descriptor: Descriptor,
}

/// The remote end of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub address: u64,
    pub key: u64,
}

/// One end of a connection.
pub(crate) struct Endpoint {
    open: Open<ffi::FidEp>,
    info: Info,
    _events: Arc<EventQueue>,
    _completions: Arc<CompletionQueue>,
}

impl Endpoint {
    pub fn open(
        domain: &Arc<Domain>,
        info: Info,
        events: &Arc<EventQueue>,
        completions: &Arc<CompletionQueue>,
        (tx_size, rx_size): (usize, usize),
    ) -> Result<Endpoint, Number> {
        let mut raw = ptr::null_mut();
        // SAFETY: domain, info and both queues live; the sizes are written into the info, which is ours alone.
        let number = unsafe {
            let (eq, cq) = (events.open.raw(), completions.open.raw());
            ffi::bf_endpoint(domain.open.raw(), info.raw(), eq, cq, tx_size, rx_size, &raw mut raw)
        };
        let (_events, _completions) = (Arc::clone(events), Arc::clone(completions));
        Ok(Endpoint { open: Open::new(number, raw)?, info, _events, _completions })
    }

    /// The address by which events name the endpoint.
    pub fn fid(&self) -> usize {
        self.open.fid().addr()
    }

    pub fn data_bytes_max(&self) -> usize {
        // SAFETY: the endpoint is open.
        unsafe { ffi::bf_data_max(self.open.fid()) }
    }

    /// Connects to the target that the endpoint's info was queried for.
    pub fn connect(&self, data: &[u8]) -> Result<(), Number> {
        // SAFETY: the endpoint is open, and its info has the target; `data` is copied.
        check(unsafe { ffi::bf_connect(self.open.raw(), self.info.raw(), data.as_ptr().cast(), data.len()) })
    }

    /// Accepts the request that the endpoint's info is.
    pub fn accept(&self, data: &[u8]) -> Result<(), Number> {
        // SAFETY: the endpoint is open and was made from a request; `data` is copied.
        check(unsafe { ffi::bf_accept(self.open.raw(), data.as_ptr().cast(), data.len()) })
    }

    pub fn shutdown(&self) -> Result<(), Number> {
        // SAFETY: the endpoint is open.
        check(unsafe { ffi::bf_shutdown(self.open.raw()) })
    }

    /// When this returns well, the provider has forgotten the endpoint's operations.
    pub fn close(self) -> Result<(), Number> {
        self.open.close()
    }

    /// # Safety
    /// The memory belongs to the operation, and its registration stays open, until its completion was read or the
    /// endpoint closed. So for the next three.
    pub unsafe fn recv(&self, local: &Local, context: u64) -> Result<Posted, Number> {
        let (base, descriptor) = (local.base.as_ptr().cast(), local.descriptor.0);
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        posted(unsafe { ffi::bf_recv(self.open.raw(), base, local.bytes, descriptor, context) })
    }

    /// # Safety
    /// As [`Endpoint::recv`].
    pub unsafe fn send(&self, local: &Local, context: u64, flags: u32) -> Result<Posted, Number> {
        let (base, descriptor) = (local.base.as_ptr().cast(), local.descriptor.0);
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        posted(unsafe { ffi::bf_send(self.open.raw(), base, local.bytes, descriptor, context, flags) })
    }

    /// Sends bytes that are copied before this returns; not more than the provider's inject size.
    pub fn inject(&self, bytes: &[u8], context: u64) -> Result<Posted, Number> {
        let (base, none) = (bytes.as_ptr().cast(), ptr::null_mut());
        // SAFETY: the endpoint is open, and with the inject flag the provider needs neither the memory after the call
        // nor a descriptor for it.
        posted(unsafe { ffi::bf_send(self.open.raw(), base, bytes.len(), none, context, ffi::FLAG_INJECT) })
    }

    /// # Safety
    /// As [`Endpoint::recv`].
    pub unsafe fn write(&self, local: &Local, target: Target, context: u64, flags: u32) -> Result<Posted, Number> {
        let (base, descriptor) = (local.base.as_ptr().cast(), local.descriptor.0);
        let Target { address, key } = target;
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        posted(unsafe { ffi::bf_write(self.open.raw(), base, local.bytes, descriptor, address, key, context, flags) })
    }

    /// # Safety
    /// As [`Endpoint::recv`].
    pub unsafe fn read(&self, local: &Local, target: Target, context: u64, flags: u32) -> Result<Posted, Number> {
        let (base, descriptor) = (local.base.as_ptr().cast(), local.descriptor.0);
        let Target { address, key } = target;
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        posted(unsafe { ffi::bf_read(self.open.raw(), base, local.bytes, descriptor, address, key, context, flags) })
    }
}

//! libfabric's objects as Rust values: opened by a constructor, closed by `Drop`, each holding what it depends on.
//!
//! Everything here turns one call of `shim.c` into one checked result. The calls that hand memory to the provider
//! (`recv`, `send`, `write`, `read`, `register`) are `unsafe`: the caller guarantees that the memory stays as long as
//! it must.
//!
//! The rail asks for `FI_THREAD_DOMAIN`: calls on one domain must not overlap. The handles are private to
//! [`crate::Rail`], whose methods that reach libfabric all take `&mut self`.

mod ends;
mod info;
mod memory;
mod numbers;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::Failure;
use crate::{address, ffi};
pub(crate) use ends::{Endpoint, Listener, Local, Target};
pub(crate) use info::Info;
pub(crate) use memory::Registration;
pub use numbers::Posted;
use numbers::{EAGAIN, EAVAIL, check, posted};
pub(crate) use numbers::{ENODATA, ENOKEY, Number};

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

    /// Whether one may sleep on the two wait fds: nothing is left to read, and both will ring for what comes. An
    /// events' fd that will ring (`armed`) is not asked again.
    pub fn may_sleep(&self, completions: &CompletionQueue, armed: bool) -> Result<bool, Number> {
        let events = if armed { ptr::null_mut() } else { self.open.raw() };
        // SAFETY: fabric and both queues are open; no queue of events is one that is left out.
        match unsafe { ffi::bf_trywait(self.fabric.0.raw(), events, completions.open.raw()) } {
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

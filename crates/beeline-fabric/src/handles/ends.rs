//! Listeners and endpoints.

use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::memory::Descriptor;
use super::{CompletionQueue, Domain, EventQueue, Info, Number, Open, Posted, check, posted};
use crate::{address, ffi};

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

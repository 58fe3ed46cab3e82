//! Memory regions: registering, and knowing when their memory is free again.
//!
//! [`Rail::close_region`] takes the key away at once (as soon as our own operations from and to the region are done),
//! and [`Event::RegionClosed`] says when nothing can touch the memory any more. Between the two lies what the
//! provider has begun:
//!
//! 1. Hardware (`verbs`): closing a region waits for the adapter. `RegionClosed` follows at once.
//! 2. Software (`tcp`): a write or read whose key was checked before may be half done. It is part of an ordered
//!    stream, so it is over when, on its endpoint,
//!    - a message is received that was not yet received when the region closed: the write before it is complete;
//!    - an operation of ours completes that was posted after the region closed: the answer to a read before it is out;
//!    - or the endpoint is closed.
//!
//!    A quiet endpoint therefore holds the memory back. Let the peer answer a message after `close_region`.

use std::ptr::NonNull;
use std::sync::Arc;

use super::state::{Access, Await, EndpointId, Event, Operation, OperationKind, Region, RegionId, Remote, State};
use super::{Rail, fabric_error, registration_error};
use crate::error::Error;
use crate::handles::{ENOKEY, Registration};
use crate::memory::Memory;

/// Attempts to find a key that is not taken.
const KEY_ATTEMPTS_MAX: u32 = 16;

impl Rail {
    /// Registers memory. It stays alive until [`Event::RegionClosed`] or the end of the rail.
    pub fn register(&mut self, memory: Arc<dyn Memory>, access: Access) -> Result<RegionId, Error> {
        let (base, bytes) = (memory.base(), memory.bytes());
        // SAFETY: by the contract of `Memory` the range is mapped as long as `memory` lives. The region keeps that
        // until `finish_closing`, where the registration is closed and nothing is in flight; where libfabric refuses to
        // close it, for ever; and when the rail ends, all endpoints are closed before the regions.
        let registration = unsafe { self.register_range(base, bytes, access.bits()) };
        let registration = registration.map_err(registration_error(&self.name))?;
        self.registered_bytes += bytes;
        Ok(self.regions.insert(Region {
            registration: Some(registration),
            memory,
            base,
            bytes,
            access,
            in_use: 0,
            closing: false,
            awaits: Vec::new(),
        }))
    }

    /// What the peer needs to reach the region.
    pub fn remote(&self, region: RegionId) -> Result<Remote, Error> {
        let gone = || Error::RegionGone { rail: self.name.to_string() };
        let region = self.regions.get(region).filter(|region| !region.closing).ok_or_else(gone)?;
        let registration = region.registration.as_ref().ok_or_else(gone)?;
        let address = if self.port.virtual_addresses { region.base.as_ptr().addr() as u64 } else { 0 };
        Ok(Remote { address, key: registration.key })
    }

    /// Closes a region; [`Event::RegionClosed`] tells when its memory is free (see the head of this file).
    pub fn close_region(&mut self, id: RegionId) -> Result<(), Error> {
        let gone = Error::RegionGone { rail: self.name.to_string() };
        let region = self.regions.get_mut(id).filter(|region| !region.closing).ok_or(gone)?;
        region.closing = true;
        self.closing.push(id);
        self.take_key_away(id)
    }

    /// Bytes of all regions whose memory is not free. Memory that two of them have counts twice.
    pub fn registered_bytes(&self) -> usize {
        self.registered_bytes
    }

    /// Regions whose memory is not free yet.
    pub fn regions_closing(&self) -> usize {
        self.closing.len()
    }

    /// Closes the registration when none of our own operations needs it.
    fn take_key_away(&mut self, id: RegionId) -> Result<(), Error> {
        let Some(region) = self.regions.get_mut(id).filter(|region| region.closing && region.in_use == 0) else {
            return Ok(());
        };
        let Some(registration) = region.registration.take() else { return Ok(()) };
        let access = region.access;
        if let Err(number) = registration.close() {
            // The provider may still use the memory: it stays for ever, and its closing is never told.
            std::mem::forget(Arc::clone(&region.memory));
            self.closing.retain(|&other| other != id);
            self.regions.remove(id);
            return Err(fabric_error(&self.name, "close a memory region", number));
        }
        if !self.port.places_by_hardware() {
            // What is already in the queue says nothing about what is half done now.
            self.read_dry()?;
            let awaits =
                self.ends.iter().filter(|(_, end)| end.state == State::Connected).map(|(endpoint, end)| Await {
                    endpoint,
                    message: access.contains(Access::REMOTE_WRITE),
                    posted: access.contains(Access::REMOTE_READ).then_some(end.posted),
                });
            let awaits = awaits.filter(|awaited| !awaited.is_over()).collect();
            if let Some(region) = self.regions.get_mut(id) {
                region.awaits = awaits;
            }
        }
        self.finish_closing();
        Ok(())
    }

    /// Closes the regions whose last operation came to its end.
    pub(super) fn close_due_regions(&mut self) -> Result<(), Error> {
        while let Some(id) = self.closing_due.pop() {
            self.take_key_away(id)?;
        }
        Ok(())
    }

    /// Tells of the regions that nothing can touch any more, and lets their memory go.
    fn finish_closing(&mut self) {
        let (regions, told, registered_bytes) = (&mut self.regions, &mut self.told, &mut self.registered_bytes);
        self.closing.retain(|&id| {
            let Some(region) = regions.get(id) else { return false };
            let (over, bytes) = (region.registration.is_none() && region.awaits.is_empty(), region.bytes);
            if over {
                regions.remove(id);
                *registered_bytes -= bytes;
                told.push_back(Event::RegionClosed { region: id });
            }
            !over
        });
    }

    fn settle(&mut self, settles: impl Fn(&mut Await)) {
        if self.closing.is_empty() {
            return;
        }
        for &id in &self.closing {
            if let Some(region) = self.regions.get_mut(id) {
                region.awaits.iter_mut().for_each(&settles);
                region.awaits.retain(|awaited| !awaited.is_over());
            }
        }
        self.finish_closing();
    }

    /// A message came: what its sender wrote before has been placed.
    pub(super) fn message_came(&mut self, endpoint: EndpointId) {
        self.settle(|awaited| awaited.message &= awaited.endpoint != endpoint);
    }

    /// The operation with this number is out, and so is what stood before it.
    pub(super) fn operation_is_out(&mut self, endpoint: EndpointId, number: u64) {
        self.settle(|awaited| {
            if awaited.endpoint == endpoint && awaited.posted.is_some_and(|posted| number >= posted) {
                awaited.posted = None;
            }
        });
    }

    pub(super) fn endpoint_is_gone(&mut self, endpoint: EndpointId) {
        self.settle(|awaited| {
            if awaited.endpoint == endpoint {
                (awaited.message, awaited.posted) = (false, None);
            }
        });
    }

    /// An operation is over: its region may go, if that is wanted.
    pub(super) fn release_local(&mut self, operation: &Operation) {
        let (OperationKind::Write { region } | OperationKind::Read { region }) = operation.kind else { return };
        if let Some(entry) = self.regions.get_mut(region) {
            entry.in_use -= 1;
            if entry.closing && entry.in_use == 0 {
                self.closing_due.push(region);
            }
        }
    }

    /// The provider would not let go of an operation.
    pub(super) fn keep_for_ever(&self, operation: &Operation) {
        if let OperationKind::Write { region } | OperationKind::Read { region } = operation.kind
            && let Some(entry) = self.regions.get(region)
        {
            std::mem::forget(Arc::clone(&entry.memory));
        }
    }

    /// Registers a range under a key of the provider's, or one that nobody can guess.
    ///
    /// # Safety
    /// As [`Registration::open`].
    pub(super) unsafe fn register_range(
        &self,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<Registration, i32> {
        let mut attempts = 0;
        loop {
            let key = if self.port.provider_keys { 0 } else { random_key()? };
            // SAFETY: the caller's promise.
            match unsafe { Registration::open(&self.domain, base, bytes, access, key) } {
                Err(ENOKEY) if attempts < KEY_ATTEMPTS_MAX => attempts += 1,
                other => return other,
            }
        }
    }
}

impl Await {
    fn is_over(&self) -> bool {
        !self.message && self.posted.is_none()
    }
}

fn random_key() -> Result<u64, i32> {
    let mut bytes = [0; 8];
    // SAFETY: `bytes` is writable for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(-libc::EIO) }
}

//! Registrations of memory.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{Domain, Number, Open};
use crate::ffi;

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
pub(crate) struct Descriptor(pub(super) *mut c_void);

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

//! `fi_info`: what libfabric knows of a port.

use std::ffi::CStr;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use super::numbers::{ENODATA, Number, check};
use crate::{address, ffi};

/// What libfabric knows of a port, and what every object is opened from.
pub(crate) struct Info(pub(super) NonNull<ffi::FiInfo>);

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

    pub(super) fn raw(&self) -> *mut ffi::FiInfo {
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

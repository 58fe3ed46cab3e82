//! Memory that an adapter reads and writes behind the program's back.

use std::io;
use std::ptr::{self, NonNull};

/// Memory that can be registered with a rail. The rail holds it by `Arc` until nothing can touch it any more.
///
/// # Safety
///
/// `base()` and `bytes()` name one mapped range, readable and writable, that stays the same and stays mapped for as
/// long as `self` lives; and while it lives no reference (`&` or `&mut`) to its bytes exists except to atomics,
/// because a peer can change every one of them at any moment.
pub unsafe trait Memory: Send + Sync {
    fn base(&self) -> NonNull<u8>;
    fn bytes(&self) -> usize;
}

/// Anonymous memory of whole pages, zeroed.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread, and its bytes are reached by raw copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above; two copies that overlap in time may mix bytes, which every user of memory that others write
// has to expect.
unsafe impl Sync for Mapping {}

// SAFETY: `base` and `bytes` are those of one mapping made in `new` and unmapped in `drop`; the only references to
// its bytes are those of `Pool::received`, to slots that nobody else may touch at that time (rule 3 of the crate).
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Mapping {
    /// `bytes` zeroed bytes, not shared with other processes and not inherited by children: a page that a child
    /// shares would be copied on the next write, and the adapter would keep the old one.
    pub fn new(bytes: usize) -> io::Result<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let mapping = Mapping { base, bytes };
        // SAFETY: the range is the mapping just made, which nobody else knows.
        if unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(mapping)
    }

    /// Copies `from` to `offset`. Panics when it does not fit.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the range lies in the mapping (checked); `from` is a reference, so it cannot lie in it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) }
    }

    /// Copies from `offset` to `to`. Panics when there is not so much.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: as in `copy_in`.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), to.as_mut_ptr(), to.len()) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "bytes {offset}..+{bytes} of a mapping of {}", self.bytes);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped in `new`, and whoever holds the mapping for a rail has an `Arc` of it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The message buffers of one endpoint: slots of equal size, first those to receive in, then those to send from.
pub(crate) struct Pool {
    mapping: Mapping,
    slot_bytes: usize,
    slots: usize,
}

impl Pool {
    pub fn new(slots: usize, slot_bytes: usize) -> io::Result<Pool> {
        let bytes = slots.checked_mul(slot_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pool { mapping: Mapping::new(bytes)?, slot_bytes, slots })
    }

    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub fn slot(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.slots);
        // SAFETY: the slot lies in the mapping, which has `slots` of them.
        unsafe { self.mapping.base.add(slot * self.slot_bytes) }
    }

    /// The first `bytes` of a slot.
    ///
    /// # Safety
    /// Until the reference ends, the slot belongs to the caller: it is not posted, and no other reference to it is in
    /// use.
    pub unsafe fn received(&self, slot: usize, bytes: usize) -> &[u8] {
        assert!(bytes <= self.slot_bytes);
        // SAFETY: the slot has so many initialised bytes, and the caller is the only one to use them.
        unsafe { std::slice::from_raw_parts(self.slot(slot).as_ptr(), bytes) }
    }

    /// The first `bytes` of a slot, to be filled.
    ///
    /// # Safety
    /// As [`Pool::received`].
    #[expect(clippy::mut_from_ref, reason = "slots are handed out one by one, as the caller promises")]
    pub unsafe fn to_fill(&self, slot: usize, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.slot_bytes);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.slot(slot).as_ptr(), bytes) }
    }
}

//! The memory of a side: one page shared by the holders of one end of a lane, never shown to the peer.
//!
//! Behind the page the file has room for a *store*, which nobody maps: it takes memory only where it was written.

use crate::lane_memory::MapError;
use crate::sys::{self, Errno};
use crate::{Fd, memfd};

const SIDE_BYTES: usize = 4096;
/// Bytes of the store behind a side's page.
pub const STORE_BYTES: usize = 256 * 1024;
const FILE_BYTES: usize = SIDE_BYTES + STORE_BYTES;

/// One mapped side page, zeroed when made. Inherited by `fork` as shared memory.
#[derive(Clone, Copy)]
pub struct SideMemory {
    base: *mut u8,
}

// SAFETY: the page is only ever handed out as a `&T` of atomics.
unsafe impl Send for SideMemory {}
// SAFETY: as for Send.
unsafe impl Sync for SideMemory {}

impl SideMemory {
    /// Makes a zeroed side page. Returns it with its memfd.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn create() -> Result<(SideMemory, Fd), Errno> {
        let fd = memfd::create(c"beeline-side", FILE_BYTES)?;
        let base = sys::map_shared(fd.get(), SIDE_BYTES)?;
        Ok((SideMemory { base }, fd))
    }

    /// A zeroed side page without a file, for when descriptors are short: only forked processes can share it.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn without_file() -> Result<SideMemory, Errno> {
        sys::map_shared_anonymous(SIDE_BYTES).map(|base| SideMemory { base })
    }

    /// Maps a side page that another holder made, after checking its file. The caller keeps the descriptor.
    ///
    /// # Errors
    /// [`MapError::Fault`] when the file is not a sealed tmpfs memfd of a page, [`MapError::Os`] when mmap(2)
    /// fails.
    pub fn adopt(fd: i32) -> Result<SideMemory, MapError> {
        memfd::check(fd, FILE_BYTES).map_err(MapError::Fault)?;
        let base = sys::map_shared(fd, SIDE_BYTES).map_err(MapError::Os)?;
        Ok(SideMemory { base })
    }

    /// The page as a `T`.
    ///
    /// # Safety
    /// `T` must consist of atomics only and be valid when zeroed. The reference must not be used after
    /// [`SideMemory::unmap`].
    #[must_use]
    pub unsafe fn as_ref<T: Sync>(&self) -> &'static T {
        const { assert!(size_of::<T>() <= SIDE_BYTES && align_of::<T>() <= SIDE_BYTES) };
        // SAFETY: the page is mapped, aligned and large enough (checked above); the caller vouches for
        // the rest.
        unsafe { &*self.base.cast::<T>() }
    }

    /// The page at an address that a reference from [`SideMemory::as_ref`] told.
    ///
    /// # Safety
    /// The page must still be mapped there.
    #[must_use]
    pub unsafe fn from_address(address: usize) -> SideMemory {
        SideMemory { base: address as *mut u8 }
    }

    /// Zeroes as much of the page as a `T` takes, for its next use as one.
    ///
    /// # Safety
    /// Nobody may use the page meanwhile.
    pub unsafe fn clear<T>(&self) {
        const { assert!(size_of::<T>() <= SIDE_BYTES) };
        // SAFETY: it fits (checked above), and the caller guarantees that the whole page is ours.
        unsafe { core::ptr::write_bytes(self.base, 0, size_of::<T>()) }
    }

    /// Writes all of `bytes` into the store of the side in `fd`, at `offset`. False if that cannot be.
    #[must_use]
    pub fn store(fd: i32, offset: usize, bytes: &[u8]) -> bool {
        let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), SIDE_BYTES.wrapping_add(offset), 0, 0];
        // SAFETY: the bytes are live. The number may have been closed past us and be another file's by now, which has
        // other seals.
        memfd::check_seals(fd).is_ok() && unsafe { sys::call(libc::SYS_pwrite64, args) } == Ok(bytes.len())
    }

    /// Fills `bytes` from the store of the side in `fd`, from `offset` on. False if that cannot be.
    #[must_use]
    pub fn load(fd: i32, offset: usize, bytes: &mut [u8]) -> bool {
        let args = [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), SIDE_BYTES.wrapping_add(offset), 0, 0];
        // SAFETY: the bytes are live; otherwise as above.
        memfd::check_seals(fd).is_ok() && unsafe { sys::call(libc::SYS_pread64, args) } == Ok(bytes.len())
    }

    /// Gives the memory of the store of the side in `fd` back, but for its first page.
    pub fn discard_store(fd: i32) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if memfd::check_seals(fd).is_ok() {
            let args = [fd as usize, mode as usize, SIDE_BYTES.wrapping_mul(2), STORE_BYTES - SIDE_BYTES, 0, 0];
            // SAFETY: plain numbers.
            let _ = unsafe { sys::call(libc::SYS_fallocate, args) };
        }
    }

    /// Unmaps the page.
    ///
    /// # Safety
    /// No reference from [`SideMemory::as_ref`] may be used afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: forwarded from the caller.
        unsafe { sys::unmap(self.base, SIDE_BYTES) }
    }
}

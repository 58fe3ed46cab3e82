//! Addresses that an app passes to a call.
//!
//! The kernel answers a bad address with `EFAULT`; a copy made in user space raises SIGSEGV. What can be seen without
//! a fault is refused here:
//!
//! 1. the first page, which is never mapped, and the kernel's half of the address space;
//! 2. a short buffer at the very beginning of a page that cannot be read: the page that test suites and guarding
//!    allocators put there on purpose. The kernel is asked about a page once, and not again while it is among the last
//!    few: a buffer in use costs nothing.
//!
//! A buffer that begins in one page and ends in a bad one is not found. To find it would cost a system call for each
//! new page of each buffer.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use beeline_shm::sys;

use crate::Errno;

const PAGE: usize = 4096;

/// Pages that could be read when the kernel was asked last, each in the place that its number leads to: as many as an
/// app has connections whose buffers begin so, because allocators lay large ones at the beginnings of pages.
static READABLE: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];
const PLACE_BITS: u32 = 11;

/// Whether nothing can be at an address, as it is in the first page.
#[must_use]
pub const fn in_first_page(address: usize) -> bool {
    address < PAGE
}

/// Whether the kernel would answer `EFAULT` for `length` bytes at `address`, as far as that can be seen.
#[inline]
pub fn bogus(address: usize, length: usize) -> bool {
    length != 0
        && (in_first_page(address)
            || address > isize::MAX as usize - length.min(isize::MAX as usize)
            || address.is_multiple_of(PAGE) && length < PAGE && !is_readable(address))
}

/// Whether there are bytes at `address`, and [`bogus`] does not object: nearly always without asking it.
#[inline]
pub fn is_some(address: usize, length: usize) -> bool {
    /// An app's addresses and lengths are far below 2^62.
    const NEAR_BITS: u32 = 62;
    // What is too small wraps around and is as far away as what is too large: one comparison for all four.
    let (last, beyond_first_page) = (length.wrapping_sub(1), address.wrapping_sub(PAGE + 1));
    let ordinary = (last | beyond_first_page) >> NEAR_BITS == 0 && !address.is_multiple_of(PAGE);
    ordinary || is_some_after_all(address, length)
}

#[cold]
fn is_some_after_all(address: usize, length: usize) -> bool {
    length != 0 && !bogus(address, length)
}

/// Whether the page that begins at `address` can be read.
#[cold]
fn is_readable(address: usize) -> bool {
    // Buffers of one kind are equally far apart: a product spreads their pages over all places.
    let spread = (address / PAGE).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - PLACE_BITS);
    let Some(place) = READABLE.get(spread) else { return true };
    if place.load(Relaxed) == address {
        return true;
    }
    // The call reads a signal set before it finds that it does not know what to do with it (kernel/signal.c). Programs
    // that filter their system calls allow it, because libc makes it all the time.
    const NO_SUCH_OPERATION: usize = 0x7FFF_0000;
    let args = [NO_SUCH_OPERATION, address, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel checks the address, and changes nothing for an operation it does not know.
    let readable = unsafe { sys::call(libc::SYS_rt_sigprocmask, args) } != Err(Errno(libc::EFAULT));
    if readable {
        place.store(address, Relaxed);
    }
    readable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rights: i32) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping that stays until the process ends.
        let address = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        address as usize
    }

    #[test]
    fn what_no_app_has_is_bogus() {
        assert!(bogus(0, 1) && bogus(PAGE - 1, 1) && bogus(usize::MAX, 1) && bogus(1 << 63, 8));
        assert!(!bogus(0, 0));
    }

    #[test]
    fn pages_without_access_are_bogus_and_others_are_not() {
        let (open, shut) = (page(libc::PROT_READ | libc::PROT_WRITE), page(libc::PROT_NONE));
        for _ in 0..2 {
            assert!(bogus(shut, 1) && bogus(shut, 4095));
            assert!(!bogus(open, 1) && !bogus(open + 8, 100));
        }
    }
}

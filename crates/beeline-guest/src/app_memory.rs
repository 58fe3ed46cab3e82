//! Addresses that an app passes to a call.
//!
//! The kernel answers a bad address with `EFAULT`; a copy made in user space raises SIGSEGV. What can be seen without
//! a fault is refused here:
//!
//! 1. the first page, which is never mapped, and what lies beyond the program's part of the address space;
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
/// app has connections whose buffers begin so, because allocators lay large ones at the beginnings of pages. With
/// [`WRITABLE`], they could be written, too.
static KNOWN: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];
const PLACE_BITS: u32 = 11;
const WRITABLE: usize = 1;

/// Whether nothing can be at an address, as it is in the first page.
#[must_use]
pub const fn in_first_page(address: usize) -> bool {
    address < PAGE
}

/// Where the program's part of the address space ends, with page tables of four levels.
const USUAL_END: usize = 0x7FFF_FFFF_F000;

/// Whether `length` bytes at `address` end beyond the program's part of the address space. The kernel refuses those
/// before anything else (`access_ok`).
#[must_use]
#[inline]
pub fn is_beyond(address: usize, length: usize) -> bool {
    !matches!(address.checked_add(length), Some(..=USUAL_END)) && is_beyond_after_all(address, length)
}

#[cold]
fn is_beyond_after_all(address: usize, length: usize) -> bool {
    address.checked_add(length).is_none_or(|end| end > space_end())
}

/// Where it ends on this machine.
#[cfg(target_arch = "x86_64")]
fn space_end() -> usize {
    use core::arch::x86_64::{__cpuid, __cpuid_count};

    const FEATURES: u32 = 7;
    let has_features = __cpuid(0).eax >= FEATURES;
    // Page tables of five levels; bits of addresses that mean nothing.
    let (has_five_levels, may_mask) = match has_features {
        true => (__cpuid_count(FEATURES, 0).ecx >> 16 & 1 != 0, __cpuid_count(FEATURES, 1).eax >> 26 & 1 != 0),
        false => (false, false),
    };
    match (may_mask, has_five_levels) {
        (true, _) => isize::MAX as usize,
        (false, true) => (1 << 56) - PAGE,
        (false, false) => USUAL_END,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn space_end() -> usize {
    isize::MAX as usize
}

/// How many bytes from `address` on can be read, `most` at most: for a length that nobody can have meant.
#[cold]
#[must_use]
pub fn readable_bytes(address: usize, most: usize) -> usize {
    let end = address.saturating_add(most);
    let mut page = address - address % PAGE;
    while page < end && can_be_read(page) {
        page += PAGE;
    }
    page.min(end).saturating_sub(address)
}

/// Whether the kernel would answer `EFAULT` for `length` bytes at `address`, as far as that can be seen.
#[inline]
pub fn bogus(address: usize, length: usize) -> bool {
    length != 0
        && (in_first_page(address)
            || is_beyond(address, length)
            || address.is_multiple_of(PAGE) && length < PAGE && !is_readable(address))
}

/// As [`bogus`], for a call that is to write there.
#[inline]
pub fn is_bogus_room(address: usize, length: usize) -> bool {
    length != 0
        && (in_first_page(address)
            || is_beyond(address, length)
            || address.is_multiple_of(PAGE) && length < PAGE && !is_writable(address))
}

/// Whether there are bytes at `address`, and [`bogus`] does not object: nearly always without asking it.
#[inline]
pub fn is_some(address: usize, length: usize) -> bool {
    is_ordinary(address, length) || is_some_after_all(address, length)
}

/// Likewise with [`is_bogus_room`].
#[inline]
pub fn is_room(address: usize, length: usize) -> bool {
    is_ordinary(address, length) || is_room_after_all(address, length)
}

#[inline(always)]
fn is_ordinary(address: usize, length: usize) -> bool {
    /// An app's addresses and lengths are hardly ever larger.
    const NEAR_BITS: u32 = 47;
    // What is too small wraps around and is as far away as what is too large: one comparison for all four.
    let (last, beyond_first_page) = (length.wrapping_sub(1), address.wrapping_sub(PAGE + 1));
    (last | beyond_first_page) >> NEAR_BITS == 0 && !address.is_multiple_of(PAGE)
}

#[cold]
fn is_some_after_all(address: usize, length: usize) -> bool {
    length != 0 && !bogus(address, length)
}

#[cold]
fn is_room_after_all(address: usize, length: usize) -> bool {
    length != 0 && !is_bogus_room(address, length)
}

fn place_of(address: usize) -> Option<&'static AtomicUsize> {
    // Buffers of one kind are equally far apart: a product spreads their pages over all places.
    KNOWN.get((address / PAGE).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - PLACE_BITS))
}

/// Whether the page that begins at `address` can be written.
#[cold]
fn is_writable(address: usize) -> bool {
    let Some(place) = place_of(address) else { return true };
    if place.load(Relaxed) == address | WRITABLE {
        return true;
    }
    // The kernel ors nothing to the page's first word, as one access, and wakes whoever waits for it; nobody does.
    const OR_NOTHING: usize = (libc::FUTEX_OP_OR as usize) << 28;
    let operation = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [address, operation, 0, 0, address, OR_NOTHING];
    // SAFETY: the kernel checks the address; memory of the program stays as it is, whoever else writes it meanwhile.
    let asked = unsafe { sys::call(libc::SYS_futex, args) };
    let writable = asked != Err(Errno(libc::EFAULT));
    if writable {
        place.store(address | WRITABLE, Relaxed);
    }
    writable
}

/// Whether the page that begins at `address` can be read.
#[cold]
fn is_readable(address: usize) -> bool {
    let Some(place) = place_of(address) else { return true };
    if place.load(Relaxed) & !WRITABLE == address {
        return true;
    }
    let readable = can_be_read(address);
    if readable {
        place.store(address, Relaxed);
    }
    readable
}

fn can_be_read(page: usize) -> bool {
    // The call reads a signal set before it finds that it does not know what to do with it (kernel/signal.c). Programs
    // that filter their system calls allow it, because libc makes it all the time.
    const NO_SUCH_OPERATION: usize = 0x7FFF_0000;
    let args = [NO_SUCH_OPERATION, page, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel checks the address, and changes nothing for an operation it does not know.
    let asked = unsafe { sys::call(libc::SYS_rt_sigprocmask, args) };
    asked != Err(Errno(libc::EFAULT))
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
        assert!(bogus(PAGE, usize::MAX) && bogus(USUAL_END, 1 << 62) && is_beyond(usize::MAX, 1));
        assert!(!bogus(0, 0) && !bogus(USUAL_END - PAGE, PAGE) && !is_beyond(USUAL_END, 0));
    }

    #[test]
    fn what_can_be_read_of_too_much_ends_where_a_page_cannot_be() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping that stays until the process ends; its last page is shut.
        let start = unsafe {
            let start = libc::mmap(core::ptr::null_mut(), 3 * PAGE, libc::PROT_READ, flags, -1, 0);
            assert_eq!(libc::mprotect(start.byte_add(2 * PAGE), PAGE, libc::PROT_NONE), 0);
            start as usize
        };
        assert_eq!(readable_bytes(start + 100, 1 << 30), 2 * PAGE - 100);
        assert_eq!(readable_bytes(start + 100, 50), 50);
        assert_eq!(readable_bytes(start + 2 * PAGE + 8, 50), 0);
    }

    #[test]
    fn pages_that_cannot_be_written_are_no_room() {
        let (open, read_only) = (page(libc::PROT_READ | libc::PROT_WRITE), page(libc::PROT_READ));
        // SAFETY: the page is ours and can be written.
        unsafe { core::ptr::without_provenance_mut::<u32>(open).write_volatile(7) };
        for _ in 0..2 {
            assert!(is_bogus_room(read_only, 1) && !bogus(read_only, 1));
            assert!(!is_bogus_room(open, 1) && !bogus(open, 1) && !is_bogus_room(open + 8, 100));
        }
        // SAFETY: as above.
        assert_eq!(unsafe { core::ptr::without_provenance::<u32>(open).read_volatile() }, 7);
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

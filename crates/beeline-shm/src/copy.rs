//! The one copy routine, and the one full fence.

/// Copies `length` bytes between app memory and shared memory.
///
/// Messages of up to 32 bytes are moved by at most four overlapping word accesses: a call of libc's
/// `memcpy` costs about 5 ns on the development machine, which is a tenth of the whole send path.
///
/// # Safety
/// `source` must be readable and `target` writable for `length` bytes, and they must not overlap. Other
/// processes may write the shared side meanwhile: each byte is then either old or new, which is all that
/// a byte stream needs, because the bytes are only ever handed on as data.
#[inline(always)]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
    /// Copies the first and the last `T` of a range at least one and at most two `T` long.
    #[inline]
    unsafe fn ends<T: Copy>(source: *const u8, target: *mut u8, length: usize) {
        let last = length - size_of::<T>();
        // SAFETY: size_of::<T>() <= length, so both accesses stay within the ranges the caller of
        // `copy` vouches for; unaligned accesses are used throughout.
        unsafe {
            let (head, tail) = (source.cast::<T>().read_unaligned(), source.add(last).cast::<T>().read_unaligned());
            target.cast::<T>().write_unaligned(head);
            target.add(last).cast::<T>().write_unaligned(tail);
        }
    }
    // SAFETY: each arm passes a length between one and two times the size of its word; the last arm's
    // preconditions are the caller's.
    unsafe {
        match length {
            8..=15 => ends::<u64>(source, target, length),
            16..=32 => ends::<u128>(source, target, length),
            4..=7 => ends::<u32>(source, target, length),
            2..=3 => ends::<u16>(source, target, length),
            1 => target.write(source.read()),
            0 => {}
            STRING_BYTES.. if is_just_ahead(source, target) => copy_by_lines(source, target, length),
            _ => core::ptr::copy_nonoverlapping(source, target, length),
        }
    }
}

/// From this length on libc's `memcpy` may use `rep movsb` (glibc's `x86_rep_movsb_threshold`).
const STRING_BYTES: usize = 2048;

/// Whether a target begins less than a cache line behind its source, each taken within its page. Then `rep movsb`
/// copies 2 GB/s instead of 45 on an EPYC with Zen 3 cores, where Debian 12's glibc (2.36) uses it
/// (<https://lunnova.dev/articles/ryzen-slow-short-rep-mov/> found the same). A large buffer from `malloc`, which
/// begins 16 bytes into a page, stands so to the ring from server to client.
#[inline]
fn is_just_ahead(source: *const u8, target: *const u8) -> bool {
    let ahead = target.addr().wrapping_sub(source.addr()) % 4096;
    cfg!(target_arch = "x86_64") && (1..64).contains(&ahead)
}

/// As [`copy`], a cache line at a time: 35 to 48 GB/s where [`is_just_ahead`].
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_by_lines(source: *const u8, target: *mut u8, length: usize) {
    const LINE: usize = 64;
    type Line = [u128; LINE / size_of::<u128>()];
    let lines = length / LINE;
    // SAFETY: the lines and the rest make up the range that the caller vouches for.
    unsafe {
        for line in 0..lines {
            let from = source.add(line * LINE).cast::<Line>();
            target.add(line * LINE).cast::<Line>().write_unaligned(from.read_unaligned());
        }
        let done = lines * LINE;
        copy(source.add(done), target.add(done), length - done);
    }
}

/// Whether [`copy_around`] is anything else than [`copy`].
pub const HAS_COPY_AROUND: bool = cfg!(target_arch = "x86_64");

/// As [`copy`], around the caches: the lines of the target are written to memory without being fetched first, from
/// whichever cache holds them. The bytes are there for other CPUs when it returns.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_around(source: *const u8, target: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE: usize = 64;
        let first = target.align_offset(LINE).min(length);
        let lines = (length - first) / LINE;
        // SAFETY: the three parts make up the range that the caller vouches for; streaming stores are made to whole
        // lines, which begin at multiples of 64. They are ordered with nothing, so a fence ends them before anybody is
        // told.
        unsafe {
            copy(source, target, first);
            for line in 0..lines {
                let from = source.add(first + line * LINE).cast::<__m128i>();
                let to = target.add(first + line * LINE).cast::<__m128i>();
                let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(from.add(word)));
                for (word, value) in words.into_iter().enumerate() {
                    _mm_stream_si128(to.add(word), value);
                }
            }
            let done = first + lines * LINE;
            copy(source.add(done), target.add(done), length - done);
            _mm_sfence();
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: forwarded.
    unsafe {
        copy(source, target, length);
    }
}

/// Asks for the cache line at `address` to be ours for writing. Only a hint, whatever the address.
#[inline]
pub fn prefetch_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetches never fault and change no architectural state.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A full memory fence: orders earlier stores before later loads.
///
/// On x86-64 this is a locked no-op on the stack, which measured 8 ns against 14 ns for the `mfence` that
/// `fence(SeqCst)` compiles to; both are full barriers (Intel SDM vol. 3, 9.2.5).
#[inline]
pub fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: adds zero to the word at the stack pointer, which is always mapped; a locked
    // read-modify-write of it changes nothing and orders all memory accesses around it.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    #[test]
    fn targets_just_ahead_of_their_source_are_known() {
        let at = core::ptr::without_provenance::<u8>;
        let cases = [(0, false), (1, true), (63, true), (64, false), (4095, false), (4096 + 16, true)];
        for (ahead, is) in cases {
            assert_eq!(super::is_just_ahead(at(0x7000), at(0x7000 + ahead)), is && cfg!(target_arch = "x86_64"));
        }
        assert!(!super::is_just_ahead(at(0x7010), at(0x7000)));
    }

    #[test]
    fn every_length_is_copied_exactly() {
        let source: Vec<u8> = (0..=255u8).cycle().take(300).collect();
        for way in [super::copy, super::copy_around, super::copy_by_lines] {
            for (length, at) in (0..300).flat_map(|length| [(length, 1), (length, 40), (length, 64)]) {
                let mut target = [0xEEu8; 400];
                // SAFETY: both buffers are longer than `length` and distinct.
                unsafe { way(source.as_ptr(), target.as_mut_ptr().add(at), length) };
                assert!(target[..at].iter().all(|byte| *byte == 0xEE));
                assert_eq!(&target[at..at + length], &source[..length]);
                assert!(target[at + length..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}

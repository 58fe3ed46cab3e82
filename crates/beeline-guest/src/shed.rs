//! What a process of ours that is a copy of the app's gives back: descriptors and memory.
//!
//! Nothing here calls libc or changes a static.

use beeline_shm::sys::{self, call};

use crate::{Errno, aside};

/// Closes all descriptors but `kept`, where negative numbers stand for none, and but those that are put aside: whoever
/// waits for this process would wait for their close.
pub fn descriptors(kept: &mut [i32]) {
    kept.sort_unstable();
    let mut from = 0u32;
    loop {
        let ours = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).find(|fd| *fd >= from);
        let Some(next) = [ours, aside::next(from)].into_iter().flatten().min() else { break };
        if let Some(last) = next.checked_sub(1).filter(|last| from <= *last) {
            close_range(from, last);
        }
        from = next.saturating_add(1);
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: plain numbers.
    let closed = unsafe { call(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0, 0]) };
    if closed == Err(Errno(libc::ENOSYS)) {
        // Linux before 5.9. The table of this process is a copy, as long as the highest number in use.
        for fd in first..=last.min(limit()) {
            let _ = sys::close(fd as i32);
        }
    }
}

/// A number above all descriptors that are open, most likely.
fn limit() -> u32 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let _ = unsafe { call(libc::SYS_prlimit64, args) };
    limit.rlim_cur.min(1 << 20) as u32
}

/// Bytes kept on either side of the thread pointer: the kernel writes to the thread's restartable-sequence area
/// (rseq(2)) if it is still registered, and ends a process in which it cannot.
const THREAD_BYTES: usize = 16 * 1024;
const PAGE_BYTES: usize = 4096;
/// Longest line of `/proc/self/maps`: the numbers and a path.
const LINE_BYTES: usize = 4096 + 128;

/// Unmaps everything except `kept` (address and length), this library, the library that copies memory, the kernel's
/// own pages, and the thread's block. Keeps everything if the kernel does not tell what there is.
pub fn memory(kept: &[(usize, usize)]) {
    let files = [memory as *const () as usize, memcpy as *const () as usize].map(|address| {
        let mut found = None;
        each_mapping(|mapping| {
            if (mapping.start..mapping.end).contains(&address) {
                found = Some(mapping.file);
            }
        });
        found
    });
    if files.iter().any(Option::is_none) {
        return;
    }
    let thread = thread_pointer();
    let block = (thread.saturating_sub(THREAD_BYTES) & !(PAGE_BYTES - 1), 2 * THREAD_BYTES);
    // A library's zeroed statics lie in an anonymous mapping behind its last one.
    let mut behind = 0;
    each_mapping(|mapping| {
        let of_library = mapping.file.1 != 0 && files.contains(&Some(mapping.file));
        if of_library || mapping.file.1 == 0 && mapping.start == behind {
            behind = mapping.end;
            return;
        }
        if !mapping.is_kernels {
            unmap_except(mapping.start, mapping.end, kept, block);
        }
    });
}

unsafe extern "C" {
    fn memcpy(target: *mut u8, source: *const u8, length: usize) -> *mut u8;
}

/// Unmaps what lies between `start` and `end` in no kept range.
fn unmap_except(start: usize, end: usize, kept: &[(usize, usize)], block: (usize, usize)) {
    let mut from = start;
    while from < end {
        // The first kept range that ends above `from`.
        let next = kept
            .iter()
            .chain(core::iter::once(&block))
            .map(|(address, length)| (*address, address.saturating_add(*length).next_multiple_of(PAGE_BYTES)))
            .filter(|(_, after)| *after > from)
            .min();
        let (until, after) = next.map_or((end, end), |(address, after)| (address.clamp(from, end), after));
        if until > from {
            // SAFETY: nothing in there is used by this process any more: it runs our code on our stack, and holds no
            // pointer to anything else.
            unsafe { sys::unmap(from as *mut u8, until - from) };
        }
        if until == end {
            return;
        }
        from = after;
    }
}

struct Mapping {
    start: usize,
    end: usize,
    /// Device and inode; inode 0 for none.
    file: (u64, u64),
    /// `[vdso]` and its like.
    is_kernels: bool,
}

/// Calls `f` for each line of `/proc/self/maps`. What `f` unmaps does not disturb: the kernel goes on by address.
fn each_mapping(mut f: impl FnMut(&Mapping)) {
    let args = [libc::AT_FDCWD as usize, c"/proc/self/maps".as_ptr() as usize, libc::O_RDONLY as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated literal and plain numbers.
    let Ok(file) = (unsafe { call(libc::SYS_openat, args) }) else { return };
    let mut buffer = [0u8; 2 * LINE_BYTES];
    let mut filled = 0;
    while let Some(room) = buffer.get_mut(filled..) {
        // SAFETY: a live buffer of the length given.
        let read = unsafe { call(libc::SYS_read, [file, room.as_mut_ptr() as usize, room.len(), 0, 0, 0]) };
        let Ok(read @ 1..) = read else { break };
        filled += read;
        let mut done = 0;
        while let Some(rest) = buffer.get(done..filled)
            && let Some(length) = rest.iter().position(|byte| *byte == b'\n')
        {
            if let Some(mapping) = rest.get(..length).and_then(parse) {
                f(&mapping);
            }
            done += length + 1;
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
    }
    let _ = sys::close(file as i32);
}

/// A line: `start-end perms offset major:minor inode   path`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let mut range = fields.next()?.split(|byte| *byte == b'-');
    let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
    let mut device = fields.nth(2)?.split(|byte| *byte == b':');
    let (major, minor) = (number(device.next()?, 16)?, number(device.next()?, 16)?);
    let inode = number(fields.next()?, 10)?;
    let is_kernels = fields.next().is_some_and(|path| path.starts_with(b"[v"));
    Some(Mapping { start, end, file: ((major << 32 | minor) as u64, inode as u64), is_kernels })
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    digits.iter().try_fold(0usize, |value, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        value.checked_mul(radix as usize)?.checked_add(digit as usize)
    })
}

/// Where the thread's block is.
fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the psABI the word at fs:0 is its own address.
    unsafe {
        core::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {0}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = b"7f10-7f30 r-xp 00026000 fe:01 1310 /usr/lib/a b.so";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.file.1), (0x7f10, 0x7f30, 1310));
        assert!(!mapping.is_kernels);
        let mapping = parse(b"7ffc-7ffe r-xp 00000000 00:00 0 [vdso]").unwrap();
        assert!(mapping.is_kernels && mapping.file == (0, 0));
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn the_present_mappings_include_this_code() {
        let here = lines_are_read as *const () as usize;
        let mut found = 0;
        each_mapping(|mapping| found += usize::from((mapping.start..mapping.end).contains(&here)));
        assert_eq!(found, 1);
    }
}

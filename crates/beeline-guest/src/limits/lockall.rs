//! `mlockall(2)`: what a program locks is its own memory, not the rings of its connections.
//!
//! `MCL_CURRENT` makes all that is mapped resident, rings of megabytes as well, at a time when other threads may use
//! them. So everything is locked as it is touched first, which makes nothing resident; then lanes are unlocked, and all
//! the rest is locked in full, mapping by mapping. As in the kernel, what cannot be made resident is no error.

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys::{self, call};

use super::{LANES, LOCKED};
use crate::{Outcome, proc, process};

const CURRENT: i32 = libc::MCL_CURRENT;
const FUTURE: i32 = libc::MCL_FUTURE;
const ON_FAULT: i32 = libc::MCL_ONFAULT;

/// The call.
pub fn mlockall(flags: i32) -> Outcome {
    let is_known = flags & !(CURRENT | FUTURE | ON_FAULT) == 0;
    if is_known && flags & FUTURE != 0 {
        // Whoever needs to know asks the kernel.
        LOCKED.store(true, Relaxed);
    }
    if !is_known || flags & CURRENT == 0 || LANES.load(Relaxed) == 0 || process::is_guest_of_parent() {
        return Outcome::Kernel;
    }
    if let Err(errno) = lock_all(flags | ON_FAULT) {
        return Outcome::Fail(errno);
    }
    let in_full = flags & ON_FAULT == 0;
    let _ = proc::each_line(c"/proc/self/maps", |line| {
        if let Some((base, length)) = range(line) {
            if is_lane(line) {
                sys::unlock(base as *mut u8, length);
            } else if in_full {
                // SAFETY: changes no contents. An address that is not mapped is an error, which changes nothing.
                let _ = unsafe { call(libc::SYS_mlock, [base, length, 0, 0, 0, 0]) };
            }
        }
        true
    });
    if in_full && flags & FUTURE != 0 {
        let _ = lock_all(FUTURE);
    }
    Outcome::OK
}

fn lock_all(flags: i32) -> sys::SysResult {
    // SAFETY: a plain number.
    unsafe { call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }
}

/// Address and length of the mapping that a line of `/proc/self/maps` tells of.
fn range(line: &[u8]) -> Option<(usize, usize)> {
    let addresses = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (begin, end) = addresses.split_once('-')?;
    let begin = usize::from_str_radix(begin, 16).ok()?;
    Some((begin, usize::from_str_radix(end, 16).ok()?.checked_sub(begin)?))
}

fn is_lane(line: &[u8]) -> bool {
    line.ends_with(b"/memfd:beeline-lane (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let lane = b"7f0000001000-7f0000803000 rw-s 00000000 00:01 2057 /memfd:beeline-lane (deleted)";
        assert_eq!(range(lane), Some((0x7f00_0000_1000, 0x80_2000)));
        assert!(is_lane(lane));
        let heap = b"5555-6666 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(range(heap), Some((0x5555, 0x1111)));
        assert!(!is_lane(heap));
        assert_eq!(range(b"nonsense"), None);
    }
}

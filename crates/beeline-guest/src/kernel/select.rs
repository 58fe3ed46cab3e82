//! Waiting where poll(2) refuses to.

use beeline_shm::sys::{SysResult, call};

use super::{descriptor_limit, ppoll};
use crate::Errno;

/// As [`ppoll`], also for more entries than `RLIMIT_NOFILE` allows, which poll(2) refuses: a program that has shut
/// itself in still waits for what it holds. Then by pselect(2), which tells only of data, room and urgent data.
///
/// # Safety
/// As for [`ppoll`].
pub unsafe fn await_any(fds: &mut [libc::pollfd], timeout: *mut libc::timespec, mask: *const u64) -> SysResult {
    // SAFETY: forwarded.
    match unsafe { ppoll(fds, timeout, mask) } {
        // SAFETY: forwarded.
        Err(Errno(libc::EINVAL)) if fds.len() > descriptor_limit() => unsafe { pselect(fds, timeout, mask) },
        result => result,
    }
}

/// One set of pselect(2), for descriptors below 1024.
type FdSet = [u64; 16];
/// What each of the three sets stands for.
const SELECTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// `pselect(2)` with the arguments of [`ppoll`].
///
/// # Safety
/// As for [`ppoll`].
unsafe fn pselect(fds: &mut [libc::pollfd], timeout: *mut libc::timespec, mask: *const u64) -> SysResult {
    let mut sets: [FdSet; 3] = [[0; 16]; 3];
    for entry in fds.iter().filter(|entry| entry.fd >= 0) {
        let (word, bit) = (entry.fd as usize / 64, 1 << (entry.fd % 64));
        for (set, event) in sets.iter_mut().zip(SELECTED) {
            if entry.events & event != 0 {
                *set.get_mut(word).ok_or(Errno(libc::EINVAL))? |= bit;
            }
        }
    }
    // The mask comes behind one pointer with its size.
    let mask = [mask as usize, 8];
    let [read, write, except] = &mut sets;
    let args = [
        1024,
        read.as_mut_ptr() as usize,
        write.as_mut_ptr() as usize,
        except.as_mut_ptr() as usize,
        timeout as usize,
        mask.as_ptr() as usize,
    ];
    // SAFETY: sets of 1024 bits; the caller guarantees the rest.
    let count = unsafe { call(libc::SYS_pselect6, args) }?;
    for entry in fds.iter_mut() {
        let (word, bit) = (entry.fd.max(0) as usize / 64, 1 << (entry.fd.max(0) % 64));
        entry.revents = 0;
        for (set, event) in sets.iter().zip(SELECTED) {
            if entry.fd >= 0 && entry.events & event != 0 && set.get(word).is_some_and(|word| word & bit != 0) {
                entry.revents |= event;
            }
        }
    }
    Ok(count)
}

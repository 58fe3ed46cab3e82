//! Waiting in poll(2), and where that refuses to.

use beeline_shm::sys::{SysResult, call};

use super::descriptor_limit;
use crate::Errno;

/// `ppoll(2)`; `timeout` null means for ever; `mask` null keeps the mask.
///
/// # Safety
/// `timeout` and `mask` must be null or valid; the kernel writes what remains of the time into `timeout`, and `mask`
/// points to a kernel signal set of 8 bytes.
pub unsafe fn ppoll(fds: &mut [libc::pollfd], timeout: *mut libc::timespec, mask: *const u64) -> SysResult {
    let args = [fds.as_mut_ptr() as usize, fds.len(), timeout as usize, mask as usize, 8, 0];
    // SAFETY: the slice is live; the caller guarantees the rest.
    unsafe { call(libc::SYS_ppoll, args) }
}

/// As [`await_any`], without waiting.
///
/// # Errors
/// Those of ppoll(2).
pub fn poll_at_once(fds: &mut [libc::pollfd]) -> SysResult {
    let mut zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timeout, no mask.
    unsafe { await_any(fds, &raw mut zero, core::ptr::null()) }
}

/// What the kernel reports for one fd right now (poll(2) with no wait); 0 on error.
pub fn poll_now(fd: i32, events: i16) -> i16 {
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    match poll_at_once(&mut fds) {
        Ok(_) => fds[0].revents,
        Err(_) => 0,
    }
}

/// Sleeps for a millisecond, or until a signal comes.
pub fn sleep_ms() {
    sleep_ns(1_000_000);
}

/// Sleeps for less than a second, or until a signal comes.
pub fn sleep_ns(tv_nsec: i64) {
    let mut timeout = libc::timespec { tv_sec: 0, tv_nsec };
    // SAFETY: a live timeout, no mask.
    let _ = unsafe { ppoll(&mut [], &raw mut timeout, core::ptr::null()) };
}

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

/// One set of pselect(2). Where the limit is larger than its bits, programs do not ask for so many.
type FdSet = [u64; FD_SET_BITS / 64];
const FD_SET_BITS: usize = 4096;
/// What each of the three sets stands for.
const SELECTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// `pselect(2)` with the arguments of [`ppoll`].
///
/// # Safety
/// As for [`ppoll`].
unsafe fn pselect(fds: &mut [libc::pollfd], timeout: *mut libc::timespec, mask: *const u64) -> SysResult {
    let mut sets: [FdSet; 3] = [[0; FD_SET_BITS / 64]; 3];
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
        FD_SET_BITS,
        read.as_mut_ptr() as usize,
        write.as_mut_ptr() as usize,
        except.as_mut_ptr() as usize,
        timeout as usize,
        mask.as_ptr() as usize,
    ];
    // SAFETY: sets of so many bits; the caller guarantees the rest.
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

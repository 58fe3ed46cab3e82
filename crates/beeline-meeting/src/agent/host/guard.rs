//! What the agent does so that strangers cannot turn what it gives them against others.

use core::sync::atomic::{AtomicU32, Ordering::Release};
use std::os::fd::{AsRawFd, OwnedFd};

use beeline_shm::sys::call;

/// Takes everybody's rights to a memory file, and those of root, who has them all the same (`FS_IMMUTABLE_FL`):
/// attributes that somebody leaves there would stay for as long as the file. False without the power to
/// (`CAP_LINUX_IMMUTABLE`).
#[must_use]
pub fn shut(file: &OwnedFd) -> bool {
    let immutable: libc::c_long = 0x10;
    let fd = file.as_raw_fd() as usize;
    // SAFETY: plain numbers.
    let _ = unsafe { call(libc::SYS_fchmod, [fd, 0, 0, 0, 0, 0]) };
    // SAFETY: a live word that the kernel reads.
    unsafe { call(libc::SYS_ioctl, [fd, libc::FS_IOC_SETFLAGS as usize, (&raw const immutable) as usize, 0, 0, 0]) }
        .is_ok()
}

/// Has the kernel set `FUTEX_OWNER_DIED` in a word when this thread ends, however it does (set_robust_list(2)).
pub fn mark_this_threads_end(word: &'static AtomicU32) {
    // SAFETY: takes nothing, and cannot fail.
    let thread = unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    word.store(thread as u32, Release);
    // `struct robust_list_head`, and behind it its only entry, which leads back to it. It lives as long as the process.
    let list = Box::leak(Box::new([0_usize; 4]));
    let (head, entry) = ((&raw const list[0]) as usize, (&raw const list[3]) as usize);
    *list = [entry, (word.as_ptr() as usize).wrapping_sub(entry), 0, head];
    // SAFETY: the list is whole, and nobody changes it. libc's own of this thread is for mutexes that it does not have.
    let _ = unsafe { call(libc::SYS_set_robust_list, [head, 3 * size_of::<usize>(), 0, 0, 0, 0]) };
}

/// Lets what this thread, and those that it makes, send to others count for a user that nobody is: descriptors that a
/// stranger does not take count against the real user of who has sent them, and root of every container is root. False
/// without the power to (`CAP_SETUID`).
#[must_use]
pub fn sends_as_nobody_else() -> bool {
    const NOBODY_ELSE: usize = 0xffff_fffd;
    let same = usize::MAX;
    // SAFETY: plain numbers. The system call itself, as libc's would change all threads; there are no others yet.
    unsafe { call(libc::SYS_setresuid, [NOBODY_ELSE, same, same, 0, 0, 0]) }.is_ok()
}

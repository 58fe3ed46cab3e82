//! The waker: a descriptor that is always readable and that one `EPOLL_CTL_MOD` shows to one sleeper once.

use core::sync::atomic::Ordering::Relaxed;

use super::events::{EPOLLIN, EPOLLONESHOT};
use super::set::Set;
use crate::lazy_fd::LazyFd;
use crate::{hidden, kernel, process};

/// The data of the waker's events; no app chooses it by accident.
pub(super) const WAKER_DATA: u64 = 0xBEE1_1E5A_3C96_D2F7;

/// A descriptor that is always readable.
pub(super) static WAKER: LazyFd = LazyFd::new();

/// Wakes one thread that sleeps in the kernel on `set`.
pub(super) fn wake_sleeper(epfd: i32, set: &Set) {
    let Some(waker) = waker(|fd| Some(hidden::hide(fd))) else { return };
    let event = libc::epoll_event { events: EPOLLIN | EPOLLONESHOT, u64: WAKER_DATA };
    // Another thread may be about to do the same, or to take it out.
    let operations = match set.has_waker.swap(true, Relaxed) {
        true => [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD],
        false => [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD],
    };
    let _ = operations.iter().any(|operation| kernel::epoll_ctl(epfd, *operation, waker, Some(event)).is_ok());
    set.has_waker.store(true, Relaxed);
}

/// Makes sure that [`wake_sleeper`] needs no more than to have the waker shown. The set is locked.
pub(super) fn waker_is_there(epfd: i32, set: &Set) -> bool {
    if !set.has_waker.load(Relaxed) && (WAKER.get().is_some() || hidden::has_room()) {
        let unshown = libc::epoll_event { events: EPOLLONESHOT, u64: WAKER_DATA };
        let added = waker(hidden::keep)
            .is_some_and(|waker| kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, waker, Some(unshown)).is_ok());
        set.has_waker.store(added, Relaxed);
    }
    set.has_waker.load(Relaxed)
}

/// Takes the waker out of a set again. The set is locked.
pub(super) fn take_waker(epfd: i32, set: &Set) {
    if set.has_waker.load(Relaxed) {
        if let Some(waker) = WAKER.get() {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, waker, None);
        }
        set.has_waker.store(false, Relaxed);
    }
}

/// The always-readable descriptor, made at first use and hidden so.
fn waker(hide: impl FnOnce(i32) -> Option<i32>) -> Option<i32> {
    WAKER.get_or_make(|| {
        // What such a guest opens is not open in the process whose memory this is.
        if process::is_guest_of_parent() {
            return None;
        }
        // The counter starts at one, so the descriptor is readable from the start.
        hide(kernel::eventfd(1).ok()? as i32)
    })
}

//! Members that are listeners: what stands beside one is watched with it.

use core::sync::atomic::Ordering::Relaxed;

use super::events::{EPOLLET, EPOLLIN, EPOLLONESHOT};
use super::registration::{EPOLLEXCLUSIVE, pause, tell_again};
use super::set::{Entry, Set};
use crate::desc::Kind;
use crate::{Errno, kernel};

/// Calls `f` with the further descriptors of a listener: its door and its lobby.
pub(super) fn hidden_of(entry: &Entry, f: impl FnMut(i32)) {
    if let Some(desc) = entry.desc().filter(|desc| desc.kind() == Kind::Listener) {
        (desc.operations.get().further_fds)(desc).into_iter().flatten().for_each(f);
    }
}

/// Lets the kernel watch a listener's further descriptor under the listener's own data.
pub(super) fn watch_hidden(epfd: i32, entry: &Entry, hidden: i32) {
    let interest = entry.events.load(Relaxed);
    if interest & EPOLLIN != 0 {
        // Level and edge as asked. One shot for the pair is kept by `wait`.
        let events = interest & (EPOLLIN | EPOLLET | EPOLLEXCLUSIVE | EPOLLONESHOT);
        let event = libc::epoll_event { events, u64: entry.data.load(Relaxed) };
        if kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, hidden, Some(event)) == Err(Errno(libc::EINVAL)) {
            // The kernel lets no set be watched exclusively, and the lobby is one.
            let shared = libc::epoll_event { events: events & !EPOLLEXCLUSIVE, ..event };
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, hidden, Some(shared));
        }
    }
}

/// The kernel has told of a listener once, as it was asked, and the app is not told of it: that did not count.
pub(super) fn arm_pair_again(epfd: i32, set: &Set, fd: i32, entry: &Entry) {
    tell_again(epfd, set, fd, entry);
    hidden_of(entry, |hidden| {
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
        watch_hidden(epfd, entry, hidden);
    });
}

/// One member of a pair has fired once: the other is not to fire, either.
pub(super) fn disarm_pair(epfd: i32, fd: i32, entry: &Entry) {
    entry.fired.store(true, Relaxed);
    pause(epfd, fd, entry);
    hidden_of(entry, |hidden| {
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
    });
}

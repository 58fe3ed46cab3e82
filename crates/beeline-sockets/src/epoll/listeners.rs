//! Members that are listeners: what stands beside one is watched with it. So is the TCP socket below a lane to which bytes still come
//! that way.

use core::sync::atomic::Ordering::Relaxed;

use super::events::{EPOLLET, EPOLLIN, EPOLLONESHOT};
use super::registration::{EPOLLEXCLUSIVE, make_exact};
use super::set::Entry;
use crate::desc::{Desc, Kind};
use crate::operations::FURTHER_FDS;
use crate::{Errno, io, kernel};
use beeline_meeting::pool::PooledLane;

/// Calls `f` with the further descriptors of a listener: its door and its lobby.
pub(super) fn hidden_of(entry: &Entry, mut f: impl FnMut(i32)) {
    let Some(desc) = entry.desc() else { return };
    if desc.is_lane() {
        if entry.below.load(Relaxed) || desc.moving.may_cross() {
            let holder = desc.glance(|| desc.pooled().and_then(PooledLane::holder)).flatten();
            holder.into_iter().for_each(f);
        }
    } else if desc.kind() == Kind::Listener {
        let mut hidden = [0i32; FURTHER_FDS];
        let count = (desc.operations.get().further_fds)(desc, &mut hidden);
        hidden.iter().take(count).for_each(|fd| f(*fd));
    }
}

/// Lets the kernel watch a listener's further descriptor under the listener's own data.
pub(super) fn watch_hidden(epfd: i32, entry: &Entry, hidden: i32) {
    let interest = entry.events.load(Relaxed);
    entry.below.store(entry.desc().is_some_and(Desc::is_lane), Relaxed);
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

/// One member of a pair has fired once: the other is not to fire, either.
pub(super) fn disarm_pair(epfd: i32, fd: i32, entry: &Entry) {
    entry.fired.store(true, Relaxed);
    let event = libc::epoll_event { events: EPOLLONESHOT, u64: entry.data.load(Relaxed) };
    let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event));
    hidden_of(entry, |hidden| {
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
    });
}

/// Nothing comes over TCP to a lane any more: what is below it need not be watched.
pub(super) fn forget_below(epfd: i32, entry: &Entry) {
    if entry.below.load(Relaxed)
        && entry.desc().is_some_and(|desc| desc.glance(|| !io::crossing::crosses(desc.side())) == Some(true))
    {
        hidden_of(entry, |hidden| {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
        });
        entry.below.store(false, Relaxed);
    }
}

/// The kernel watches with one shot what is below a lane that has nothing to report all the same: it is watched anew.
pub(super) fn rearm_below(epfd: i32, entry: &Entry) {
    if entry.below.load(Relaxed) && entry.events.load(Relaxed) & EPOLLONESHOT != 0 {
        hidden_of(entry, |hidden| {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
            watch_hidden(epfd, entry, hidden);
        });
    }
}

/// While more is to come over TCP for certain, a bell for what is behind that would end every sleep at once. The set is locked.
pub(super) fn hush(epfd: i32, fd: i32, entry: &Entry, desc: &'static Desc) {
    let tells = io::crossing::below(desc).is_none_or(|(_, tells)| tells);
    if entry.mute.swap(!tells, Relaxed) == tells && !entry.dead.load(Relaxed) {
        make_exact(epfd, fd, entry);
    }
}

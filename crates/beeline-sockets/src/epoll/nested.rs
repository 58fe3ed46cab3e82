//! Whether a set has something to report, for somebody who watches the set itself.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::Armed;

use super::cool::{arm_entry, cool_locked, since};
use super::events::{EPOLLET, EPOLLIN, EPOLLONESHOT};
use super::faults::{answer_faults, hear};
use super::kernel_events;
use super::limits::NESTS_MAX;
use super::listeners::hidden_of;
use super::readiness::readiness;
use super::registration::{deregister_dead, expose, make_exact};
use super::set::{Entry, Set, is_shared, knows_all_members, open_fd, set_of};
use super::waker::take_waker;
use crate::desc::{Desc, Kind};
use crate::io;

/// Whether some hot member of a set has something to report.
pub(super) fn any_ready(set: &Set, depth: u32) -> bool {
    if depth > NESTS_MAX {
        return false;
    }
    let Some(_guard) = set.lock.try_lock() else { return false };
    let mut fd = set.hot_first.load(Relaxed);
    while let Some(entry) = set.find(fd) {
        if readiness(set, entry, depth) != 0 {
            return true;
        }
        fd = entry.heat.next();
    }
    false
}

/// Whether a member of a set that is the kernel's, or a listener, or one inside a set in it, may have something to
/// report. What others have added who share the set, or did, is not known.
pub(super) fn any_own_ready(set: &Set, depth: u32) -> bool {
    if depth > NESTS_MAX || !knows_all_members(set) {
        return true;
    }
    let Some(_guard) = set.lock.try_lock() else { return true };
    let mut ready = false;
    set.for_each_entry(|fd, entry| {
        ready = ready
            || match entry.desc().map(|desc| (desc, desc.kind())) {
                Some((_, Kind::Lane)) => false,
                Some((desc, Kind::Epoll)) => set_of(desc).is_some_and(|inner| any_own_ready(inner, depth + 1)),
                _ => is_own_readable(fd, entry),
            };
    });
    ready
}

/// Whether any member of a set has something to report, for somebody who watches the set itself. Lanes are judged
/// here, whatever the kernel says: bells may outlive what they rang for. The kernel's word is taken for the others.
pub(super) fn ready(epfd: i32, set: &'static Set, depth: u32) -> bool {
    if depth > NESTS_MAX {
        return false;
    }
    let kernel_calls_it_ready = || crate::kernel::poll_now(epfd, libc::POLLIN) != 0;
    let mut kernel_says = kernel_calls_it_ready();
    let mixed = kernel_says && has_kernels_own(set);
    if kernel_says && !mixed && set.sleepers.load(Relaxed) == 0 {
        kernel_events::take_kernel_events(epfd, set, depth);
    }
    // The locks of sets around this one may be held. Nobody takes them in the other order: no set is around itself.
    let _guard = set.lock.lock();
    let is_ours = |entry: &Entry| matches!(entry.desc().map(Desc::kind), Some(Kind::Lane | Kind::Epoll));
    let mut ready = false;
    set.for_each_entry(|fd, entry| {
        if is_ours(entry) && readiness(set, entry, depth) != 0 {
            ready = true;
            // Its bell may not have come yet. Where edges count, the marks of who watches the set have it already, so a
            // wait on the set is to tell of it now.
            set.make_hot(fd, entry);
        }
    });
    if !ready && set.has_waker.load(Relaxed) {
        // Who was to be told of a member need not be any more, if its next bytes ring.
        ready = cool_locked(epfd, set, depth) == Armed::Ready;
        if !ready {
            take_waker(epfd, set);
            kernel_says = kernel_calls_it_ready();
        }
    }
    if !ready && kernel_says {
        set.for_each_entry(|fd, entry| ready = ready || !is_ours(entry) && kernels_own_is_ready(fd, entry));
    }
    if ready || !kernel_says {
        return ready;
    }
    if mixed && hear_of_ends(epfd, set, depth) {
        return true;
    }
    if knows_all_members(set) {
        return false;
    }
    // Bells that outlived their bytes are taken out, so that what the kernel says is about the others' members.
    set.for_each_entry(|fd, entry| {
        if let Some(desc) = entry.desc().filter(|desc| desc.is_lane() && !entry.fired.load(Relaxed)) {
            let since = since(entry, desc);
            ready |= readiness(set, entry, depth) != 0;
            let interest = entry.events.load(Relaxed);
            let (Armed::Sleep | Armed::Ready) = arm_entry(epfd, set, fd, entry, desc, interest, since);
        }
    });
    ready || kernel_calls_it_ready()
}

/// A member has gone. Who watches the set from outside, by the kernel alone, is not to hear of it any more. While
/// others are hot, or somebody sleeps on the set itself, it is left to them. The set is locked.
pub(super) fn call_off(epfd: i32, set: &Set) {
    let is_awaited = set.sleepers.load(Relaxed) != 0 || set.find(set.hot_first.load(Relaxed)).is_some();
    if set.has_waker.load(Relaxed) && set.exposed.load(Relaxed) && !is_awaited {
        take_waker(epfd, set);
    }
}

/// Asks the kernel which lanes of a set have a dead anchor: what it has to say of a set with members of its own cannot
/// be taken without what it says about those. Whether one of them has something to report now. The set is locked.
fn hear_of_ends(epfd: i32, set: &Set, depth: u32) -> bool {
    let ended = crate::side::state::PEER_CLOSED | crate::side::state::RESET;
    let shared = is_shared(set);
    let mut ready = false;
    set.for_each_entry(|fd, entry| {
        let known = |desc: &Desc| entry.dead.load(Relaxed) || shared && desc.side().is(ended);
        let Some(desc) = entry.desc().filter(|desc| desc.is_lane() && !known(desc)) else { return };
        let revents = crate::kernel::poll_now(open_fd(fd, desc), 0);
        if revents & (libc::POLLHUP | libc::POLLERR) == 0 {
            return;
        }
        let is_end = io::tells_of_end(desc, revents);
        // What a hang-up that is no end means was found when it was heard first.
        if !is_end && entry.hung.swap(true, Relaxed) {
            return;
        }
        if !entry.fired.load(Relaxed) {
            set.make_hot(fd, entry);
        }
        hear(set, fd, entry, desc, revents);
        ready |= readiness(set, entry, depth) != 0;
        // Where others share the kernel's set it is to tell them, too.
        match is_end {
            _ if shared => {}
            true => deregister_dead(epfd, fd, entry),
            false => make_exact(epfd, set, fd, entry),
        }
    });
    ready
}

/// Whether a set has members that are not lanes or sets.
fn has_kernels_own(set: &Set) -> bool {
    let Some(_guard) = set.lock.try_lock() else { return true };
    let mut found = !knows_all_members(set);
    set.for_each_entry(|_, entry| found |= !matches!(entry.desc().map(Desc::kind), Some(Kind::Lane | Kind::Epoll)));
    found
}

/// Whether a member that is the kernel's, or a listener, makes the set ready. Where edges count only the kernel knows.
fn kernels_own_is_ready(fd: i32, entry: &Entry) -> bool {
    entry.events.load(Relaxed) & (EPOLLET | EPOLLONESHOT) != 0 || is_own_readable(fd, entry)
}

/// Whether there is anything of what is asked of such a member, told before or not.
fn is_own_readable(fd: i32, entry: &Entry) -> bool {
    let events = entry.events.load(Relaxed);
    if crate::kernel::poll_now(fd, events as i16) != 0 {
        return true;
    }
    let mut rung = false;
    hidden_of(entry, |hidden| rung |= crate::kernel::poll_now(hidden, libc::POLLIN) != 0);
    // What is kept at a listener rings as its client goes.
    let may_be_readable = |desc: &'static Desc| (desc.operations.get().may_be_readable)(desc);
    rung && events & EPOLLIN != 0 && entry.desc().is_some_and(may_be_readable)
}

/// Whether a set, watched by poll(2) or select(2), has members with something to report.
pub(crate) fn is_ready(desc: &Desc) -> bool {
    expose(desc);
    let Some(set) = set_of(desc) else { return false };
    let ready = || ready(desc.fd.load(Relaxed), set, 0);
    ready() || answer_faults(set) && ready()
}

//! What the kernel is told of a set's members, and what it is spared.
//!
//! Some apps wait for room before each request and for data after it, and change their sets several times for that:
//! each change is a system call. Of lanes the kernel is told only to have it report bells and ends, which most of these
//! changes do not touch. So what the kernel was told of a lane ([`Entry::registered`]) may differ from what the app
//! asks for:
//!
//! 1. The kernel is never told less than is asked. A change that asks for more goes to the kernel at once, and so does
//!    one of the app's data, by which the kernel's events are known.
//! 2. The kernel may be told more: a change that asks for nothing more is kept from it. Of edges and exclusive members
//!    it is told exactly what is asked; only a change that changes nothing is kept from it. Members of one shot it
//!    watches by edges, so that each bell wakes one of several threads, and may be told more of them. Members that are
//!    edged ([`super::lying`]) it watches by edges as well.
//! 3. `EPOLL_CTL_DEL` may leave the kernel's registration behind. The member is *parked*: to the app it is not there,
//!    and `EPOLL_CTL_ADD` goes on with what the kernel knows. Only what the kernel watches by level is parked.
//! 4. The first event of a parked member takes it out of the kernel's set, and the first event beyond what is asked of
//!    a member makes the kernel's registration exact. So neither ends a second sleep, and none reaches the app.
//! 5. All this holds for a set whose kernel side nobody else can see ([`Set::is_private`]): made since the last `fork`
//!    of which a copy is left ([`copies`]), closed on `exec`, never duplicated, sent to another process, watched by
//!    another set or looked at by poll(2).
//!    Whatever ends this takes parked members out first ([`expose`]), and tells the kernel the rest when it changes.
//!    Programs that are started (`posix_spawn`, `vfork`) do not get such a set, unless they are given it by name
//!    ([`hand_on`]).
//! 6. The kernel knows a member by its number and its file, and a file may live on in other processes when the number
//!    is closed. So a parked member is taken out before its number is closed or leads elsewhere ([`unpark_number`]),
//!    and so is one whose file others than the app's processes may have: it is kept for the next connection, or the
//!    agent has sent it and has not come to close its own descriptor.
//! 7. A number that was closed behind our back is out of reach, and its file may live on. Then the set has *strays*:
//!    events that nobody knows are kept from the app.
//! 8. A thread may have an event from the kernel in hand, and another one take the member out before the first looks
//!    for it. So the data of members that leave is remembered for a while ([`super::set::Departed`]): what was fetched
//!    before and is known by nobody else is kept from the app. And no two members, parked or not, are under the same
//!    data if one of them is parked.
//! 9. Of an anchor whose halves are both shut the kernel reports `EPOLLHUP` for ever, whatever it was told to watch. If
//!    that is not the peer's end ([`io::tells_of_end`]) the connection goes on, and the end, a reset and room are yet
//!    to come: from then on it is watched by edges ([`Entry::hung`]), each of which the kernel tells once.
//! 10. A peer that reads no more takes no bells, so that an anchor that is not plugged by then cannot be. Who waits for
//!     room there has the kernel report it by level, although there is none: a sleeper is woken again and again, and
//!     looks each time, paced as all are that are woken in vain.

use core::sync::atomic::Ordering::Relaxed;

use super::all::{self, every_set};
use super::company::disband_and_wake;
use super::copies;
use super::events::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, READABLE, WRITABLE};
use super::set::{Entry, Set, open_fd, set_of};
use crate::desc::{Desc, Kind};
use crate::ending::stand_no_more;
use crate::guards;
use crate::io;
use crate::kernel;
use crate::side::state;
use beeline_lane::flags;

pub(super) const EPOLLEXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Registrations with any of these are exactly what was asked.
pub(super) const EXACT: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// What the kernel is to watch an entry's fd for.
fn wanted(set: &Set, fd: i32, entry: &Entry) -> u32 {
    let mut events = entry.events.load(Relaxed);
    let Some(desc) = entry.desc().filter(|desc| desc.is_lane()) else {
        return asked_of_kernel(events, entry.desc());
    };
    // Urgent bytes ring as others do. Whoever waits for them alone is told of arrivals: the anchor stays readable while
    // other bytes are unread.
    if events & (READABLE | EPOLLPRI) == EPOLLPRI {
        events |= EPOLLET;
    }
    if events & (EPOLLRDNORM | EPOLLPRI) != 0 {
        events |= EPOLLIN;
    }
    let awaits_room = events & WRITABLE != 0 && entry.kernel_out.load(Relaxed);
    // One-shot is ours to keep: the kernel's would end the watch at the first bell. A bell by level would wake another
    // thread that sleeps on the set as soon as one has taken it, for what has fired by then.
    if events & (EPOLLONESHOT | EPOLLEXCLUSIVE) == EPOLLONESHOT && set.is_private() {
        events |= EPOLLET;
    }
    if entry.edged.load(Relaxed) && events & EXACT == 0 && !awaits_room {
        events |= EPOLLET;
    }
    events &= !(EPOLLONESHOT | WRITABLE | EPOLLRDNORM | EPOLLPRI);
    if awaits_room {
        events |= EPOLLOUT;
    }
    // The end of the stream is an edge whatever was asked for. An exclusive watch may not ask for it by name; it is
    // rung for data then.
    if events & (EPOLLIN | EPOLLET) != 0 {
        events |= if events & EPOLLEXCLUSIVE == 0 { EPOLLRDHUP } else { EPOLLIN };
    }
    if awaits_room && waits_unplugged(fd, desc) {
        events &= !EPOLLET;
    } else if entry.hung.load(Relaxed) {
        events |= EPOLLET;
    }
    events
}

/// Whether the anchor of a member that waits for room is not plugged, as the peer reads no more (rule 10).
fn waits_unplugged(fd: i32, desc: &'static Desc) -> bool {
    let side = desc.side();
    takes_no_bells(desc)
        && !side.is(state::SHUT_WR | state::RESET | state::PEER_CLOSED)
        && !io::writable_hint(desc, side)
        && kernel::poll_now(open_fd(fd, desc), libc::POLLOUT) & libc::POLLOUT != 0
}

/// Whether a lane's peer has said that it reads no more.
pub(super) fn takes_no_bells(desc: &Desc) -> bool {
    desc.lane().flags(desc.end().peer()) & flags::SHUT_RD != 0
}

/// What the kernel is to watch a member for that is no lane. A set may seem ready to it and have nothing to tell, which
/// would use up the one shot: that is ours to keep.
pub(super) fn asked_of_kernel(events: u32, desc: Option<&Desc>) -> u32 {
    // The kernel refuses both together.
    let is_kept = events & EPOLLEXCLUSIVE == 0 && desc.is_some_and(|desc| desc.kind() == Kind::Epoll);
    if is_kept { events & !EPOLLONESHOT } else { events }
}

/// Whether a kernel that was told `told` of an entry need not be told `wanted`.
fn covers(entry: &Entry, told: u32, wanted: u32) -> bool {
    // An edge beyond what a shot was asked for is not missed: each shot that is asked for is judged anew. Nor is one
    // that is ours.
    let is_apart = entry.events.load(Relaxed) & EPOLLONESHOT != 0 || entry.edged.load(Relaxed);
    let apart = if is_apart { EPOLLET } else { 0 };
    let is_alike = (told | wanted) & EXACT & !apart == 0 && (told ^ wanted) & apart == 0;
    told == wanted || is_alike && told & wanted == wanted
}

/// Has the kernel watch an entry's fd for what is asked of it. False if the kernel refuses.
pub(super) fn watch(epfd: i32, set: &Set, fd: i32, entry: &Entry) -> bool {
    if entry.dead.load(Relaxed) {
        return true;
    }
    if entry.events.load(Relaxed) & EXACT != 0 {
        // The app has its own wishes now.
        entry.edged.store(false, Relaxed);
    }
    let wanted = wanted(set, fd, entry);
    let known = entry.registered.events().filter(|_| entry.registered.is_under(entry.data.load(Relaxed)));
    if known.is_some_and(|told| covers(entry, told, wanted)) && set.is_private() {
        return true;
    }
    tell(epfd, fd, entry, wanted)
}

/// The kernel has reported an event of an entry, or may go on doing so: if it was told more than is asked, that ends
/// here.
pub(super) fn make_exact(epfd: i32, set: &Set, fd: i32, entry: &Entry) {
    if entry.dead.load(Relaxed) {
        return;
    }
    let wanted = wanted(set, fd, entry);
    if entry.registered.events().unwrap_or(0) != wanted || entry.registered.is_doubted() {
        tell(epfd, fd, entry, wanted);
    }
}

/// What there is of a member that has fired once would be told for ever. Whoever asks for the next shot has the kernel
/// watch again.
pub(super) fn pause(epfd: i32, fd: i32, entry: &Entry) {
    if entry.desc().is_some_and(Desc::is_lane) {
        tell(epfd, fd, entry, EPOLLONESHOT);
    } else {
        let event = libc::epoll_event { events: EPOLLONESHOT, u64: entry.data.load(Relaxed) };
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event));
    }
}

/// As [`pause`], of a lane whose anchor hangs: where it is paused already the kernel tells that once more, and then
/// nothing, unless it is paused anew.
pub(super) fn pause_hung(epfd: i32, fd: i32, entry: &Entry) {
    if entry.registered.events() != Some(EPOLLONESHOT) || entry.registered.is_doubted() {
        pause(epfd, fd, entry);
    }
}

/// No member is edged any more; `f` is called for each that was. The set is locked.
pub(super) fn watch_by_level(epfd: i32, set: &Set, f: impl Fn(i32, &Entry)) {
    if !set.edged.any.load(Relaxed) {
        return;
    }
    set.edged.any.store(false, Relaxed);
    set.for_each_entry(|fd, entry| {
        if entry.edged.load(Relaxed) {
            end_edges(epfd, set, fd, entry);
            f(fd, entry);
        }
    });
}

/// The number of a member is about to be closed while its file stays open. By that number the kernel can be told
/// nothing then, so it is not edged any more. The set is locked.
pub(super) fn make_ghost(epfd: i32, set: &Set, fd: i32) {
    if let Some(entry) = set.find(fd).filter(|entry| entry.edged.load(Relaxed)) {
        end_edges(epfd, set, fd, entry);
    }
    set.make_ghost(fd);
}

fn end_edges(epfd: i32, set: &Set, fd: i32, entry: &Entry) {
    entry.edged.store(false, Relaxed);
    entry.sleeps.store(0, Relaxed);
    let is_watched = entry.registered.events().is_some() && !entry.dead.load(Relaxed);
    if is_watched && entry.desc().is_some_and(Desc::is_lane) && !tell(epfd, fd, entry, wanted(set, fd, entry)) {
        entry.registered.doubt();
    }
}

/// The kernel may have been told something else of an entry than the table says: it is told that again. The set is
/// locked.
pub(super) fn tell_again(epfd: i32, set: &Set, fd: i32, entry: &Entry) {
    if !entry.desc().is_some_and(Desc::is_lane) {
        let event = libc::epoll_event { events: wanted(set, fd, entry), u64: entry.data.load(Relaxed) };
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event));
    } else if !entry.dead.load(Relaxed) && entry.registered.events().is_some() {
        tell(epfd, fd, entry, wanted(set, fd, entry));
    }
}

fn tell(epfd: i32, fd: i32, entry: &Entry, events: u32) -> bool {
    let before = entry.registered.events();
    let mut operation = if before.is_none() { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
    if before.is_some_and(|before| (events | before) & EPOLLEXCLUSIVE != 0) {
        // The kernel modifies no exclusive member.
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        operation = libc::EPOLL_CTL_ADD;
    }
    let data = entry.data.load(Relaxed);
    let told = kernel::epoll_ctl(epfd, operation, fd, Some(libc::epoll_event { events, u64: data })).is_ok();
    if told {
        entry.registered.note(events, data);
    }
    told
}

/// The end of a stream wakes all who watch exclusively, and a bell one: such an end is told of it by the kernel.
pub(super) fn end_standing_if_exclusive(fd: i32, entry: &Entry) {
    let stands = |desc: &&Desc| desc.is_lane() && desc.lane().flags(desc.end()) & flags::STANDS != 0;
    if entry.events.load(Relaxed) & EPOLLEXCLUSIVE != 0
        && let Some(desc) = entry.desc().filter(stands)
        && let Some(_guard) = guards::tx_of(fd, desc)
    {
        stand_no_more(fd, desc);
    }
}

/// Takes an entry's fd out of the kernel's set.
pub(super) fn deregister(epfd: i32, fd: i32, entry: &Entry) {
    entry.registered.forget();
    let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
}

/// Whether an anchor that only this process has comes from the agent, which may have yet to close its own descriptor.
pub(super) fn comes_from_agent(desc: &Desc) -> bool {
    desc.is_lane() && desc.side().is(state::MET) && !desc.shared.load(Relaxed)
}

/// Takes a dead anchor out of the kernel's set.
pub(super) fn deregister_dead(epfd: i32, fd: i32, entry: &Entry) {
    if !entry.dead.swap(true, Relaxed) {
        deregister(epfd, fd, entry);
    }
}

/// Parks an entry that the app deletes, if it may be.
pub(super) fn park(set: &Set, fd: i32, entry: &Entry) -> bool {
    let may = entry.registered.events().is_some_and(|told| told & EXACT == 0)
        && entry.registered.is_under(entry.data.load(Relaxed))
        && entry.desc().is_some_and(Desc::is_lane)
        && set.is_private();
    if may {
        set.park(fd, entry);
    }
    may
}

/// Takes a parked entry out of the kernel's set.
pub(super) fn unpark(epfd: i32, set: &Set, fd: i32) {
    if let Some((_, data)) = set.take_parked(fd) {
        if kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None).is_err() {
            set.has_strays.store(true, Relaxed);
        }
        set.departed.note(data);
    }
}

/// Takes all parked entries of a set out of the kernel's set. The set is locked.
pub(super) fn unpark_all(epfd: i32, set: &Set) {
    set.for_each_parked(|fd| unpark(epfd, set, fd));
}

/// Whether what the kernel reports with this data is about a parked entry, which is taken out.
pub(super) fn was_parked(epfd: i32, set: &Set, data: u64) -> bool {
    let mut found = false;
    while let Some(fd) = set.parked_with_data(data) {
        unpark(epfd, set, fd);
        found = true;
    }
    found
}

/// `fd` is about to be watched under `data`: parked entries of other numbers under the same data are taken out, so that
/// what the kernel reports is about one of them only.
pub(super) fn unpark_namesakes(epfd: i32, set: &Set, fd: i32, data: u64) {
    while let Some(other) = set.parked_with_data(data) {
        if other == fd {
            return;
        }
        unpark(epfd, set, other);
    }
}

/// `fd` is about to be closed, or to lead to another file than that of `desc`: where it is parked, it is taken out.
pub(super) fn unpark_number(fd: i32, desc: &'static Desc) {
    if desc.parked.load(Relaxed) != 0 {
        every_set(|epfd, set| {
            if set.parked_at(fd) == Some(desc) {
                unpark(epfd, set, fd);
            }
        });
    }
}

/// Somebody else than this process's calls on its one number may see the kernel's side of a set from now on.
pub fn expose(desc: &Desc) {
    let Some(set) = set_of(desc) else { return };
    if !set.exposed.load(Relaxed) {
        copies::tell_those_before(set);
        let _guard = set.lock.lock();
        set.exposed.store(true, Relaxed);
        be_seen(desc.fd.load(Relaxed), set);
        set.for_each_entry(|fd, entry| {
            if let Some(desc) = entry.desc() {
                desc.portion.lift();
                // As what was edged: it was read, perhaps, and nobody has slept upon it since.
                if desc.is_lane() && io::may_have_bells(desc) {
                    set.make_hot(fd, entry);
                }
            }
        });
    }
}

/// Others may have the kernel's side of a set, or see it, from now on. The set is locked.
fn be_seen(epfd: i32, set: &Set) {
    disband_and_wake(epfd, set);
    unpark_all(epfd, set);
    // The next who sleeps takes out what lies there: a kernel that watches by level would tell of it for ever.
    watch_by_level(epfd, set, |fd, entry| set.make_hot(fd, entry));
}

/// Whether a set stays open in a program that this one becomes or starts (`FD_CLOEXEC`): said before the kernel is told
/// that it does, and after it is told that it does not.
pub fn set_inheritable(desc: &Desc, inheritable: bool) {
    let Some(set) = set_of(desc) else { return };
    let _guard = set.lock.lock();
    // Before members are taken out that are parked, so that none is parked again.
    set.inheritable.store(inheritable, Relaxed);
    if inheritable {
        hand_set_on(desc, set);
    }
    // Nobody that is started from now on gets it, and nobody was started before. A duplicate may be open to them still.
    if !inheritable && !set.exposed.load(Relaxed) && !set.has_seen_children() {
        set.handed_on.store(false, Relaxed);
    }
}

/// A program that this process starts may have the set.
pub(crate) fn hand_on(desc: &Desc) {
    let Some(set) = set_of(desc) else { return };
    let _guard = set.lock.lock();
    hand_set_on(desc, set);
}

/// Whether a set was handed on so.
#[cfg(test)]
pub(crate) fn is_handed_on(desc: &Desc) -> bool {
    set_of(desc).is_some_and(|set| set.handed_on.load(Relaxed))
}

fn hand_set_on(desc: &Desc, set: &Set) {
    copies::tell_those_before(set);
    set.handed_on.store(true, Relaxed);
    be_seen(desc.fd.load(Relaxed), set);
}

/// Before a `fork`, which has been counted already: no set is private any more.
pub fn before_fork() {
    if all::is_any() {
        every_set(be_seen);
    }
}

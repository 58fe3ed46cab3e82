//! Making sets and changing their members.

use core::sync::atomic::Ordering::Relaxed;

use super::all::{entries_of, every_set, link, sets_with, unlink};
use super::company::{disturb, disturb_all, disturb_over};
use super::cool::cool_entry;
use super::copies;
use super::events::{EPOLLET, EPOLLONESHOT};
use super::faults::answer_faults;
use super::listeners::{hidden_of, watch_hidden};
use super::nested::call_off;
use super::readiness::readiness;
use super::registration::{
    EPOLLEXCLUSIVE, asked_of_kernel, comes_from_agent, deregister, end_standing_if_exclusive, expose, make_ghost, park,
    tell_again, unpark, unpark_all, unpark_namesakes, unpark_number, watch, watch_by_level,
};
use super::set::{Entry, SETS, Set, is_shared, set_of};
use super::waker::{WAKER, wake_sleeper};
use crate::app_memory::bogus;
use crate::desc::{DESCS, Desc, Kind};
use crate::ending::stand_no_more;
use crate::linger::end_lingering;
use crate::operations::{Adopt, Operations};
use crate::watchers::Watchers;
use crate::{Errno, Outcome, close, guards, kernel, table, watchers};
use beeline_lane::{Armed, flags};

/// What epoll_ctl(2) allows beside `EPOLLEXCLUSIVE`.
const EXCLUSIVE_ALLOWS: u32 = EPOLLEXCLUSIVE
    | (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | libc::EPOLLET) as u32;

/// See [`crate::operations`].
static SET: Operations = Operations { close: close_set, end_lingering, ..Operations::NONE };
/// See [`crate::watchers`].
static WATCHERS: Watchers = Watchers { forget, forget_last, notify, disturb: disturb_over, take_out, put_back };

/// From now on sleepers hear of calls that use their lanes ([`crate::watchers`]).
pub(crate) fn hear_of_calls() {
    watchers::register(&WATCHERS);
}

/// Makes what is ours of a set that epoll_create1(2) has just made with these flags. `before` that so many forks and
/// copies of the process had been counted: one that was made meanwhile may have the set, too.
pub fn begin(fd: i32, flags: i32, before: (u32, u32)) -> Outcome {
    let (born, copies) = before;
    close::fd_reborn(fd);
    // Without memory the set is the kernel's alone; lanes then look to it as their anchors do.
    if table::reaches(fd)
        && let Some(desc) = DESCS.take()
    {
        let Some(set) = SETS.take() else {
            DESCS.give(desc);
            return Outcome::Done(fd as isize);
        };
        set.begin(desc, flags & libc::EPOLL_CLOEXEC == 0);
        set.copies.store(copies, Relaxed);
        desc.begin(Kind::Epoll, fd, 0, born);
        desc.operations.set(&SET);
        desc.set.store(core::ptr::from_ref(set).cast_mut().cast(), Relaxed);
        hear_of_calls();
        link(set);
        if table::set(fd, Some(desc)).is_err() {
            give_set(desc, set);
            desc.give_if_unused();
        }
    }
    Outcome::Done(fd as isize)
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// `event` must be null or valid, as for epoll_ctl(2).
pub(crate) unsafe fn ctl(epfd: i32, operation: i32, fd: i32, event: *mut libc::epoll_event, adopt: Adopt) -> Outcome {
    // Beyond all numbers are the ghosts.
    let Some(set) = table::get(epfd).and_then(set_of).filter(|_| table::reaches(fd)) else { return Outcome::Kernel };
    let event = match (operation, event as usize) {
        (libc::EPOLL_CTL_DEL, _) => None,
        (_, address) if bogus(address, size_of::<libc::epoll_event>()) => return Outcome::fail(libc::EFAULT),
        // SAFETY: valid, as the caller guarantees; the struct is packed, so it is read as a whole.
        _ => Some(unsafe { event.read_unaligned() }),
    };
    if operation == libc::EPOLL_CTL_ADD {
        adopt(fd);
    }
    let desc = table::get(fd);
    if let Some(inner) = desc.filter(|desc| desc.kind() == Kind::Epoll) {
        expose(inner);
    }
    if let Some(listener) = desc.filter(|desc| operation != libc::EPOLL_CTL_DEL && desc.kind() == Kind::Listener) {
        (listener.operations.get().before_watch)(listener);
    }
    // No sleep that it is named in, in another set, may lose its bell to this one, nor is it named in one meanwhile.
    let lane = desc.filter(|desc| operation == libc::EPOLL_CTL_ADD && desc.is_lane());
    let pin = lane.and_then(|lane| guards::pin(fd, lane));
    if let Some(lane) = lane {
        disturb_over(fd, lane);
    }
    let unlocked = event.filter(|_| operation == libc::EPOLL_CTL_MOD && desc.is_none());
    let outcome = unlocked.and_then(|event| modify_unlocked(epfd, set, fd, event)).unwrap_or_else(|| {
        let _guard = set.lock.lock();
        // What another thread has closed meanwhile is not to come into a table that outlives it, and what has come
        // under the number meanwhile is to, but for what is made ready above.
        let is_plain = |now: &Desc| !matches!(now.kind(), Kind::Listener | Kind::Epoll);
        let desc = table::get(fd).filter(|now| desc.map_or(is_plain(now), |desc| *now == desc));
        change(epfd, set, operation, fd, event, desc)
    });
    drop(pin);
    let _ = answer_faults(set);
    match outcome {
        Ok(ready) => {
            if ready {
                tell(epfd, set);
            }
            Outcome::OK
        }
        Err(errno) => Outcome::Fail(errno),
    }
}

/// `EPOLL_CTL_MOD` of a file that is not ours, for an edge, that leaves our table as it is: so a program wakes a thread
/// that waits, by asking for the edge of a pipe or an eventfd anew (Boost.Asio does). That thread takes the set's lock
/// first, perhaps on the waker's own CPU, so the kernel is asked without it. `None` if the change is to be made with
/// it.
///
/// Another change may have come between. Then the kernel is told what the table says now, as if this one had come
/// before that; an edge may be told twice. What this call has caused may have happened by then, so it is never made
/// again.
fn modify_unlocked(epfd: i32, set: &Set, fd: i32, event: libc::epoll_event) -> Option<Result<bool, Errno>> {
    let is_edge = event.events & (EPOLLET | EPOLLONESHOT) == EPOLLET;
    if !is_edge || !changes_nothing(set, fd, event) {
        return None;
    }
    let outcome = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event)).map(|_| false);
    if outcome.is_ok() && !changes_nothing(set, fd, event) {
        let _guard = set.lock.lock();
        // Of one shot the kernel may be told once; a lane's is ours.
        let may_be_told =
            |entry: &&Entry| entry.desc().is_some_and(Desc::is_lane) || entry.events.load(Relaxed) & EPOLLONESHOT == 0;
        if let Some(entry) = set.find(fd).filter(may_be_told) {
            tell_again(epfd, set, fd, entry);
        }
    }
    Some(outcome)
}

fn changes_nothing(set: &Set, fd: i32, event: libc::epoll_event) -> bool {
    let _guard = set.lock.lock();
    let is_same = |entry: &Entry| {
        let (events, data) = (event.events, event.u64);
        entry.desc().is_none() && entry.events.load(Relaxed) == events && entry.data.load(Relaxed) == data
    };
    table::get(fd).is_none()
        && set.parked_at(fd).is_none()
        && set.parked_with_data(event.u64).is_none()
        && set.find(fd).is_none_or(is_same)
}

/// Applies one change to the kernel's set and to ours. Tells whether the member has something to report.
fn change(
    epfd: i32,
    set: &Set,
    operation: i32,
    fd: i32,
    event: Option<libc::epoll_event>,
    desc: Option<&'static Desc>,
) -> Result<bool, Errno> {
    let mut old = set.find(fd);
    if let Some(entry) = old {
        disturb(epfd, set, entry);
    }
    if desc.is_none() && operation != libc::EPOLL_CTL_ADD && old.is_some_and(|entry| entry.desc().is_some()) {
        // The fd was closed and a duplicate keeps the registration alive, which the kernel will not touch.
        return kernel::epoll_ctl(epfd, operation, fd, event).map(|_| false);
    }
    // A member whose fd was closed behind our back, or now leads elsewhere.
    if let Some(entry) = old
        && entry.desc() != desc
    {
        set.remove(fd, entry);
        old = None;
    }
    if let Some(event) = event {
        unpark_namesakes(epfd, set, fd, event.u64);
    }
    let mut parked = set.parked_at(fd);
    if parked.is_some() && parked != desc {
        unpark(epfd, set, fd);
        parked = None;
    }
    match (operation, event) {
        (libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD, _) if parked.is_some() => Err(Errno(libc::ENOENT)),
        (libc::EPOLL_CTL_DEL, _) => delete(epfd, set, fd, old),
        (libc::EPOLL_CTL_ADD, Some(event)) => match old {
            Some(entry) => add_again(epfd, set, fd, event, entry, desc),
            None => add(epfd, set, fd, event, desc),
        },
        (libc::EPOLL_CTL_MOD, Some(event)) => match old {
            Some(entry) => modify(epfd, set, fd, event, entry),
            None => kernel::epoll_ctl(epfd, operation, fd, Some(event)).map(|_| false),
        },
        (_, Some(event)) => kernel::epoll_ctl(epfd, operation, fd, Some(event)).map(|_| false),
        (_, None) => Err(Errno(libc::EINVAL)),
    }
}

/// `EPOLL_CTL_DEL`. The set is locked.
fn delete(epfd: i32, set: &Set, fd: i32, old: Option<&Entry>) -> Result<bool, Errno> {
    if let Some(entry) = old
        && park(set, fd, entry)
    {
        return Ok(false);
    }
    let is_dead = old.is_some_and(|entry| entry.dead.load(Relaxed));
    let absent = is_dead || old.is_some_and(is_fired_over_tcp);
    // What nobody else has put there is there no more.
    let is_gone = is_dead && set.is_private();
    let result = if is_gone { Ok(0) } else { kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None) };
    if let Some(entry) = old {
        hidden_of(entry, |hidden| {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
        });
        set.remove(fd, entry);
        call_off(epfd, set);
    }
    if absent { Ok(false) } else { result.map(|_| false) }
}

/// Whether a member fired its one shot as a lane, and is none any more: the kernel has had nothing to watch since
/// ([`put_back`]).
fn is_fired_over_tcp(entry: &Entry) -> bool {
    entry.fired.load(Relaxed) && entry.desc().is_some_and(|desc| desc.kind() == Kind::Tcp)
}

/// `EPOLL_CTL_ADD` of a number that has an entry. The set is locked.
fn add_again(
    epfd: i32,
    set: &Set,
    fd: i32,
    event: libc::epoll_event,
    entry: &Entry,
    desc: Option<&'static Desc>,
) -> Result<bool, Errno> {
    // Errors in the kernel's order: a bad descriptor or event first.
    kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event))?;
    if entry.desc().is_some() {
        // A dead anchor had been taken out.
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        return Err(Errno(libc::EEXIST));
    }
    // The kernel did not have it any more: a file that is not ours was closed, and this is another one.
    set.remove(fd, entry);
    let _ = set.insert(fd, event.events, event.u64, desc);
    Ok(false)
}

/// `EPOLL_CTL_ADD`. The set is locked.
fn add(epfd: i32, set: &Set, fd: i32, event: libc::epoll_event, desc: Option<&'static Desc>) -> Result<bool, Errno> {
    let lane = desc.is_some_and(Desc::is_lane);
    if lane && event.events & EPOLLEXCLUSIVE != 0 && event.events & !EXCLUSIVE_ALLOWS != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if !lane {
        let told = libc::epoll_event { events: asked_of_kernel(event.events, desc), ..event };
        kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(told))?;
    }
    let told = set.take_parked(fd);
    let Some(entry) = set.insert(fd, event.events, event.u64, desc) else {
        return if lane { Err(Errno(libc::ENOMEM)) } else { Ok(false) };
    };
    if let Some(told) = told {
        entry.registered.restore(told);
    }
    if lane && !watch(epfd, set, fd, entry) {
        set.remove(fd, entry);
        // Asked again with the app's own event, the kernel says what is wrong.
        kernel::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event))?;
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        return Err(Errno(libc::EINVAL));
    }
    hidden_of(entry, |hidden| watch_hidden(epfd, entry, hidden));
    end_standing_if_exclusive(fd, entry);
    Ok(settle_anew(epfd, set, fd, entry))
}

/// `EPOLL_CTL_MOD`. The set is locked.
fn modify(epfd: i32, set: &Set, fd: i32, event: libc::epoll_event, entry: &Entry) -> Result<bool, Errno> {
    if (event.events | entry.events.load(Relaxed)) & EPOLLEXCLUSIVE != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if entry.desc().is_some_and(Desc::is_lane) {
        set.modify(fd, entry, event.events, event.u64);
        entry.kernel_out.store(false, Relaxed);
        // For somebody who sleeps it is armed first, which takes out the bells of what was told before: the kernel
        // would tell of them again.
        let ready = settle_anew(epfd, set, fd, entry);
        return if watch(epfd, set, fd, entry) { Ok(ready) } else { Err(Errno(libc::ENOENT)) };
    }
    let operation = if is_fired_over_tcp(entry) { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
    let told = libc::epoll_event { events: asked_of_kernel(event.events, entry.desc()), ..event };
    kernel::epoll_ctl(epfd, operation, fd, Some(told))?;
    set.modify(fd, entry, event.events, event.u64);
    hidden_of(entry, |hidden| {
        let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
        watch_hidden(epfd, entry, hidden);
    });
    Ok(settle_anew(epfd, set, fd, entry))
}

/// As [`settle`], of a member that was added or changed: that it joins those that are ready is an edge of the set.
fn settle_anew(epfd: i32, set: &Set, fd: i32, entry: &Entry) -> bool {
    let was_among = entry.place.load(Relaxed) != 0;
    let ready = settle(epfd, set, fd, entry);
    if ready && !was_among {
        set.count_edge();
    }
    ready
}

/// A new or changed member is looked at by the next wait, and armed for those who sleep already. Tells whether it has
/// something to report.
fn settle(epfd: i32, set: &Set, fd: i32, entry: &Entry) -> bool {
    let Some(desc) = entry.desc() else { return false };
    if !matches!(desc.kind(), Kind::Lane | Kind::Epoll) {
        return false;
    }
    set.make_hot(fd, entry);
    set.hands.changed();
    // Who sleeps on a set that this one is in is not counted here.
    let awaited = set.sleepers.load(Relaxed) != 0 || set.exposed.load(Relaxed);
    let ready = readiness(set, entry, 0) != 0;
    if ready && entry.place.load(Relaxed) == 0 {
        entry.place.store(set.next_place(), Relaxed);
    }
    ready || awaited && cool_entry(epfd, set, fd, entry, 0) == Armed::Ready
}

/// A member has something to report: who sleeps on the set hears of it, and so does who watches it from outside, by the
/// kernel alone, which knows of no bytes that came before the member did.
fn tell(epfd: i32, set: &Set) {
    let is_silent = || kernel::poll_now(epfd, libc::POLLIN) == 0;
    if set.sleepers.load(Relaxed) != 0 || set.exposed.load(Relaxed) && is_silent() {
        wake_sleeper(epfd, set);
    }
}

/// All sets are the kernel's alone from now on: there are no lanes any more, and nobody is to see the waker or what is
/// parked.
pub fn leave_sets() {
    copies::tell_all_before();
    every_set(|epfd, set| {
        unpark_all(epfd, set);
        watch_by_level(epfd, set, |_, _| ());
        if set.has_waker.load(Relaxed)
            && let Some(waker) = WAKER.get()
        {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, waker, None);
        }
    });
}

/// `fd` is about to be closed: our entries for it go. The kernel's registration goes by itself with the last holder of
/// the file, and is meant to stay while another process holds it (the set may be shared, too).
///
/// While a duplicate is open in this process, a closed fd stays registered, as epoll(7) says.
pub fn forget(fd: i32, desc: &'static Desc) {
    unpark_number(fd, desc);
    let may_stand = desc.is_lane() && desc.lane().flags(desc.end()) & flags::STANDS != 0;
    if desc.keepers.has_last_number() {
        if desc.kind() == Kind::Listener && desc.entries.load(Relaxed) != 0 {
            (desc.operations.get().before_forget)(desc);
        }
        entries_of(fd, desc, |epfd, set, fd, entry| {
            if (may_stand || comes_from_agent(desc)) && !entry.dead.load(Relaxed) {
                // Its file may live on.
                deregister(epfd, fd, entry);
            }
            disturb(epfd, set, entry);
            set.remove(fd, entry);
            call_off(epfd, set);
        });
        return;
    }
    let mut is_ghost = false;
    sets_with(fd, desc, |epfd, set, entry| {
        disturb(epfd, set, entry);
        make_ghost(epfd, set, fd);
        is_ghost = true;
    });
    // Nobody can take that out of the kernel's set, so the file is not kept.
    let guard = if is_ghost && may_stand { guards::tx_of(fd, desc) } else { None };
    if guard.is_some() {
        stand_no_more(fd, desc);
    }
}

/// Nothing leads to `desc` any more, and no set takes it in.
pub fn forget_last(fd: i32, desc: &'static Desc) {
    unpark_number(fd, desc);
    if desc.entries.load(Relaxed) != 0 {
        entries_of(fd, desc, |epfd, set, fd, entry| {
            disturb(epfd, set, entry);
            set.remove(fd, entry);
        });
    }
}

/// `fd` leads to `desc` from now on, as a duplicate: what it was registered for under this number holds again.
pub fn remember(fd: i32, desc: &'static Desc) {
    if desc.entries.load(Relaxed) != 0 {
        every_set(|epfd, set| {
            let Some(revived) = set.revive_ghost(fd, desc) else { return };
            disturb_all(epfd, set);
            if revived.dead.load(Relaxed) {
                deregister(epfd, fd, revived);
            }
        });
    }
}

/// The state of a connection changed, or a send found the ring full, which the kernel may not tell: members of sets are
/// looked at by the next wait, and by one that sleeps already. No lock of the description may be held.
pub fn notify(fd: i32, desc: &'static Desc) {
    entries_of(fd, desc, |epfd, set, fd, entry| {
        disturb(epfd, set, entry);
        if settle(epfd, set, fd, entry) {
            tell(epfd, set);
        }
    });
}

/// The file under `fd` is about to be replaced: the kernel's registrations of the old one are taken out.
pub fn take_out(fd: i32, desc: &'static Desc) {
    unpark_number(fd, desc);
    sets_with(fd, desc, |epfd, set, entry| {
        disturb(epfd, set, entry);
        if !entry.dead.load(Relaxed) {
            deregister(epfd, fd, entry);
        }
    });
}

/// The file under `fd` has been replaced, and the description is what it will be: it goes back into its sets.
pub fn put_back(fd: i32, desc: &'static Desc) {
    sets_with(fd, desc, |epfd, set, entry| {
        disturb(epfd, set, entry);
        entry.dead.store(false, Relaxed);
        entry.hung.store(false, Relaxed);
        entry.kernel_out.store(false, Relaxed);
        entry.seen.refresh();
        if !entry.fired.load(Relaxed) || desc.is_lane() {
            watch(epfd, set, fd, entry);
        }
        end_standing_if_exclusive(fd, entry);
        if settle(epfd, set, fd, entry) {
            tell(epfd, set);
        }
        if !desc.is_lane() {
            set.make_cold(entry);
        }
    });
}

/// A listener has one more descriptor whose readability means its own.
pub fn listener_gained(listener: &'static Desc, hidden: i32) {
    let fd = listener.fd.load(Relaxed);
    entries_of(fd, listener, |epfd, _, _, entry| watch_hidden(epfd, entry, hidden));
}

/// A descriptor of a listener is about to be closed while its file may stay open in another process, so that the sets
/// would tell of it for ever. A set that another process may have, too, loses it only if it is to be lost `for_all`.
pub fn listener_lost(listener: &'static Desc, hidden: i32, for_all: bool) {
    let fd = listener.fd.load(Relaxed);
    entries_of(fd, listener, |epfd, set, _, _| {
        if for_all || !is_shared(set) {
            let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, hidden, None);
        }
    });
}

/// The last fd of an epoll set is being closed.
fn close_set(desc: &'static Desc) {
    let Some(set) = set_of(desc) else { return };
    {
        let _guard = set.lock.lock();
        set.for_each_entry(|fd, entry| set.remove(fd, entry));
        set.for_each_parked(|fd| {
            set.take_parked(fd);
        });
    }
    give_set(desc, set);
}

fn give_set(desc: &'static Desc, set: &'static Set) {
    unlink(set);
    desc.set.store(core::ptr::null_mut(), Relaxed);
    desc.become_kind(Kind::Closed);
    SETS.give(set);
}

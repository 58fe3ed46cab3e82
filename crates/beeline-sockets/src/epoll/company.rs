//! Members that are named the same sleep (rule 8 of waking a reader, [`beeline_lane`]): a peer that sends on many
//! connections while the set sleeps rings once, and takes the others' bells for granted. Where both ends share a CPU,
//! and on a busy machine, most bells are of that kind.
//!
//! 1. A thread that sleeps on a set alone ([`Set::sleep_only`]) gives its sleep a number and names it in the members
//!    that it arms, and in those that it has armed for an earlier sleep and that have had no news since: the *company*.
//!    Who is not alone on its lane, or has had no news for [`SLEEPS_MAX`] sleeps, leaves and is armed by itself.
//! 2. Whichever bell ends the sleep, the thread looks at the company, and so does each look at the kernel: news make
//!    hot, as a bell does. Ends and closes are told by the kernel, or by bells of their own.
//! 3. Another thread that waits on the set meanwhile may take the one bell. It disbands the company before it sleeps,
//!    and before it leaves while the other one sleeps; those that have news are hot then.
//! 4. Who else may take bells out, or the kernel's registration, wakes the sleeper ([`disturb`], [`disturb_over`]):
//!    changes of the set, closes, a fork, a call that sleeps on a member by itself. It says first that it is there, and
//!    looks behind the member's lock whether it is named in a sleep. The sleeper finds it there, or has been found.
//!    What wakes the sleeper is in the set before the first sleep is named.
//! 5. No member is armed twice for one sleep: the second arming would take out the bell of that sleep.
//! 6. A set that others may watch has no company, and no member is in one of which the kernel may have been told
//!    something else by others ([`super::copies`]): its bell might wake nobody.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::flags;

use super::all::entries_of;
use super::events::READABLE;
use super::set::{COMPANY_MAX, Entry, Set, is_shared, open_fd, tail};
use super::waker::{wake_sleeper, waker_is_there};
use crate::desc::{Desc, Unlocked};
use crate::guards;
use crate::io::{self, Users, is_alone};

/// Sleeps without news after which a member is armed by itself: it would be looked at before each further one.
const SLEEPS_MAX: u32 = 16;

/// A sleep begins: names it in the company, and has those that are armed from now on, until [`end_arming`], be armed
/// for it. Those that have news are hot. The set is locked.
pub(super) fn begin_arming(epfd: i32, set: &Set) {
    let (company, hot) = (set.company.count(), set.hot_lanes.load(Relaxed) as usize);
    let alone = set.sleep_only(1);
    set.company.alone.store(alone, Relaxed);
    let may = company.saturating_add(hot) > 1 && alone && !is_shared(set);
    let number = if may && waker_is_there(epfd, set) { io::next_number().unwrap_or(0) } else { 0 };
    name_in_all(set, number);
    set.company.number.store(number, Relaxed);
    set.company.in_force.store(number, Relaxed);
}

/// As what a member may be alone on its lane that is armed just now: if the thread for which it is armed sleeps on the
/// set alone. The set is locked.
pub(super) fn arms_alone(set: &Set) -> Option<&'static Users> {
    set.company.alone.load(Relaxed).then_some(&Users::MEMBER)
}

/// What is armed from now on is armed by itself. The set is locked.
pub(super) fn end_arming(set: &Set) {
    set.company.alone.store(false, Relaxed);
    set.company.number.store(0, Relaxed);
}

/// All are armed by themselves, and those that have news are hot. The set is locked.
pub(super) fn disband(set: &Set) {
    // Also what a thread has left behind that died in the middle of its arming.
    end_arming(set);
    name_in_all(set, 0);
    set.company.in_force.store(0, Relaxed);
}

fn name_in_all(set: &Set, number: u64) {
    if set.company.count() == 0 {
        return;
    }
    set.for_each_companion(|fd, entry| name_in(fd, entry, number));
    beeline_shm::full_fence();
    set.for_each_companion(|fd, entry| {
        heat_if_news(set, fd, entry);
        let named = entry.desc().filter(|desc| desc.is_lane()).map_or(0, |desc| desc.side().rx.sleep());
        if named == 0 {
            set.leave_company(entry);
        } else if named != number {
            // It was not locked, and may have been rung for the sleep that it is still named in.
            set.make_hot(fd, entry);
        }
    });
}

/// Names a sleep in a member, or none if that is to be armed by itself. One that somebody has armed by itself meanwhile
/// stays so.
fn name_in(fd: i32, entry: &Entry, number: u64) {
    // One that other processes share may be locked by one of them that is stopped.
    let Some(desc) = entry.desc().filter(|desc| !desc.shared.load(Relaxed)) else { return };
    let Some(guard) = guards::rx_of(open_fd(fd, desc), desc) else { return };
    if guard.side.rx.sleep() == 0 {
        return;
    }
    let sleeps = entry.companion.sleeps.load(Relaxed).saturating_add(1);
    entry.companion.sleeps.store(sleeps, Relaxed);
    let stays = sleeps <= SLEEPS_MAX && is_alone(desc, &Users::MEMBER);
    guard.reader().name_sleep(if stays { number } else { 0 });
}

/// A member has been armed and is cold: it is in the company if it was named in the sleep. `since` is the tail from
/// which on it was armed, where edges count. The set is locked.
pub(super) fn armed(set: &Set, fd: i32, entry: &Entry, desc: &Desc, since: Option<u32>) {
    let number = set.company.number.load(Relaxed);
    if number == 0 || desc.side().rx.sleep() != number {
        return;
    }
    // What comes by level is compared with what was read: nothing was left unread.
    let tail = since.unwrap_or_else(|| desc.side().rx.head());
    let joined = set.join_company(fd, entry, tail);
    debug_assert!(joined, "who has no room is not named in a sleep");
}

/// The sleep that a member is to be armed for; 0 for none, also where a byte that is there may be none to tell of.
pub(super) fn sleep_for(set: &Set, entry: &Entry, desc: &Desc) -> u64 {
    let plain = entry.events.load(Relaxed) & READABLE != 0
        && desc.side().rcv_lowat() == 0
        && desc.lane().flags(desc.end().peer()) & flags::URGENT == 0;
    let is_known = !entry.registered.is_doubted();
    if plain && is_known && set.company.count() < COMPANY_MAX { set.company.number.load(Relaxed) } else { 0 }
}

/// Looks at the company: who has news is hot. Whether anybody has.
#[inline]
pub(super) fn look(set: &Set) -> bool {
    set.company.count() != 0 && look_at_all(set)
}

fn look_at_all(set: &Set) -> bool {
    let _guard = set.lock.lock();
    let mut any = false;
    set.for_each_companion(|fd, entry| any |= heat_if_news(set, fd, entry));
    any
}

fn heat_if_news(set: &Set, fd: i32, entry: &Entry) -> bool {
    let has_news = |desc: &Desc| desc.is_lane() && tail(desc) != entry.companion.tail.load(Relaxed);
    let news = entry.desc().is_some_and(has_news);
    if news {
        set.make_hot(fd, entry);
    }
    news
}

/// The bells of a member, or its registration, may go: who sleeps on the set by them looks at all of the company. The
/// set is locked.
pub(super) fn disturb(epfd: i32, set: &Set, entry: &Entry) {
    let in_force = set.company.in_force.load(Relaxed);
    let is_named = |desc: &Desc| desc.is_lane() && desc.side().rx.sleep() == in_force;
    // Also one that is hot since: nobody may have heard of its bell.
    if in_force != 0 && (entry.companion.is_in() || entry.desc().is_some_and(is_named)) {
        disturb_all(epfd, set);
    }
}

/// As [`disturb`], whichever member it is about.
pub(super) fn disturb_all(epfd: i32, set: &Set) {
    if set.company.in_force.load(Relaxed) != 0 && set.sleepers.load(Relaxed) != 0 {
        wake_sleeper(epfd, set);
    }
}

/// Others may see the set from now on: nobody is named a sleep any more, and who sleeps by one looks at all. The set is
/// locked.
pub(super) fn disband_and_wake(epfd: i32, set: &Set) {
    disturb_all(epfd, set);
    disband(set);
}

/// A call sleeps on a lane by itself from now on, or another process may: who sleeps on a set, or in poll(2), and names
/// it in its sleep looks at all its lanes. The caller has said that it is there.
pub(crate) fn disturb_over(fd: i32, desc: &'static Desc) {
    let poller_sleeps = io::poller_sleeps();
    if (desc.entries.load(Relaxed) != 0 || poller_sleeps) && may_be_named(desc) {
        entries_of(fd, desc, |epfd, set, _, entry| disturb(epfd, set, entry));
        if poller_sleeps {
            io::alarm_poller();
        }
    }
}

/// As [`disturb_over`], of sets alone.
pub(crate) fn disturb_sets_over(fd: i32, desc: &'static Desc) {
    if may_be_named(desc) {
        entries_of(fd, desc, |epfd, set, _, entry| disturb(epfd, set, entry));
    }
}

/// Who named a sleep before is seen behind the lock, and who comes later sees the caller. A lock that another process
/// has is not waited for.
fn may_be_named(desc: &'static Desc) -> bool {
    match desc.try_rx() {
        Ok(guard) => guard.side.rx.sleep() != 0,
        Err(Unlocked::Busy(_)) => true,
        Err(Unlocked::Gone) => false,
    }
}

//! Before a sleep: hot lanes are armed, and those that have nothing to report become cold.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use beeline_lane::{Armed, Fault, Sleeping, flags};

use super::behind::arm_from_now;
use super::company;
use super::copies;
use super::events::{ARRIVAL, EPOLLET, EPOLLOUT, EPOLLPRI, READABLE, WRITABLE};
use super::faults::{ANSWERS_BEGUN, ANSWERS_OPEN, answer_faults, is_troubled, mark_troubled, note_fault};
use super::limits::{ARMINGS, NESTS_MAX};
use super::lying;
use super::readiness::{self, readiness};
use super::registration::{deregister_dead, expose, make_exact, takes_no_bells, watch};
use super::set::{Entry, Set, open_fd, set_of, tail};
use crate::desc::{Desc, Kind};
use crate::guards;
use crate::io::{self, Sleeper, arm_lane};
use crate::side::state;

/// Arms all hot members of a set that somebody is about to wait for through the kernel.
pub(crate) fn cool(desc: &Desc) -> Armed {
    let Some(set) = set_of(desc) else { return Armed::Sleep };
    expose(desc);
    let epfd = desc.fd.load(Relaxed);
    unless_answering(set, || cool_set(epfd, set, 0))
}

/// As [`cool_set`], for a sleep on the set itself, which is named in its members if nobody else sleeps there. No lock
/// may be held.
pub(super) fn cool_for_sleep(epfd: i32, set: &Set) -> Armed {
    unless_answering(set, || {
        let _guard = set.lock.lock();
        copies::renew(set);
        company::begin_arming(epfd, set);
        let armed = cool_hot(epfd, set, 0);
        company::end_arming(set);
        armed
    })
}

/// Ready, too, if a fault was being dealt with meanwhile, which has been taken and may show only later.
fn unless_answering(set: &Set, cool: impl FnOnce() -> Armed) -> Armed {
    // In this order: an answer that is open now is seen here, and one that is begun later there.
    let begun = ANSWERS_BEGUN.load(SeqCst);
    let open = ANSWERS_OPEN.load(SeqCst) != 0;
    let armed = cool();
    if armed == Armed::Sleep && !open && ANSWERS_BEGUN.load(SeqCst) == begun {
        return Armed::Sleep;
    }
    if !answer_faults(set) && open {
        crate::kernel::sleep_ms();
    }
    Armed::Ready
}

/// Arms the hot lanes of a set; those that have nothing to report become cold. Ready if one has something.
fn cool_set(epfd: i32, set: &Set, depth: u32) -> Armed {
    if depth > NESTS_MAX {
        return Armed::Sleep;
    }
    let _guard = set.lock.lock();
    cool_locked(epfd, set, depth)
}

/// As [`cool_set`], of a set that is locked.
pub(super) fn cool_locked(epfd: i32, set: &Set, depth: u32) -> Armed {
    company::disband(set);
    cool_hot(epfd, set, depth)
}

fn cool_hot(epfd: i32, set: &Set, depth: u32) -> Armed {
    let mut fd = set.hot_first.load(Relaxed);
    let mut armed = Armed::Sleep;
    while let Some(entry) = set.find(fd) {
        let next = entry.heat.next();
        if cool_entry(epfd, set, fd, entry, depth) == Armed::Ready {
            armed = Armed::Ready;
        }
        fd = next;
    }
    armed
}

/// Arms the members of a set that is itself a member, `entry`, of another. Ready if that has something to report.
fn cool_inner(epfd: i32, inner: &Set, entry: &Entry, depth: u32) -> Armed {
    if entry.fired.load(Relaxed) || cool_set(epfd, inner, depth) == Armed::Sleep {
        return Armed::Sleep;
    }
    if is_troubled(inner) {
        return Armed::Ready;
    }
    let is_edge = || {
        entry.events.load(Relaxed) & EPOLLET == 0
            || entry.seen.is_fresh()
            || readiness::edge_sum(inner) != entry.seen.tail()
    };
    if is_edge() {
        return Armed::Ready;
    }
    // What is ready was told, and is no edge any more: what comes from now on is one.
    let _ = cool_behind(epfd, inner, 0);
    if is_troubled(inner) || is_edge() { Armed::Ready } else { Armed::Sleep }
}

/// Arms what a thread leaves behind in a set on which others sleep: what has been reported and not yet dealt
/// with counts from now on, so that sleepers hear of what comes after it. Tells whether something is ready, and whether
/// some of that is news to everybody: no part of what `call` has reported.
pub(super) fn cool_behind(epfd: i32, set: &Set, call: u32) -> (Armed, bool) {
    let _guard = set.lock.lock();
    company::disband(set);
    let mut fd = set.hot_first.load(Relaxed);
    let (mut armed, mut untold) = (Armed::Sleep, false);
    while let Some(entry) = set.find(fd) {
        let next = entry.heat.next();
        if cool_entry(epfd, set, fd, entry, 0) == Armed::Ready {
            armed = Armed::Ready;
            let heard = entry.desc().is_none_or(|desc| !desc.is_lane() || arm_from_now(open_fd(fd, desc), desc));
            // An edge that was reported is no edge any more.
            let told = entry.call.load(Relaxed) == call && entry.events.load(Relaxed) & EPOLLET == 0;
            untold |= !told || !heard;
        }
        fd = next;
    }
    (armed, untold)
}

/// Arms one hot entry. The set is locked.
pub(super) fn cool_entry(epfd: i32, set: &Set, fd: i32, entry: &Entry, depth: u32) -> Armed {
    let Some(desc) = entry.desc() else { return Armed::Sleep };
    match desc.kind() {
        Kind::Epoll => {
            let Some(inner) = set_of(desc) else { return Armed::Sleep };
            if core::ptr::eq(inner, set) {
                return Armed::Sleep;
            }
            return cool_inner(desc.fd.load(Relaxed), inner, entry, depth + 1);
        }
        Kind::Lane if !entry.fired.load(Relaxed) => {}
        Kind::Lane => {
            set.make_cold(entry);
            return Armed::Sleep;
        }
        _ => return Armed::Sleep,
    }
    let mut since = since(entry, desc);
    if entry.fault.get().is_some() {
        mark_troubled(set);
        return Armed::Ready;
    }
    let now = tail(desc);
    if readiness(set, entry, depth) != 0 {
        return Armed::Ready;
    }
    let interest = entry.events.load(Relaxed);
    if interest & EPOLLET != 0 && interest & ARRIVAL != 0 && now != since && !counts_by_mark(desc) {
        // What has arrived since the last report was read already.
        entry.seen.pass(now);
        since = now;
    }
    if entry.dead.load(Relaxed) || desc.side().is(state::PEER_CLOSED | state::RESET) {
        deregister_dead(epfd, fd, entry);
        return Armed::Sleep;
    }
    desc.show_cpu();
    for _ in 0..ARMINGS {
        if arm_entry(epfd, set, fd, entry, desc, interest, since) == Armed::Sleep {
            // Another thread may have taken note of the end since this entry was judged, and the kernel may not tell of
            // it.
            let theirs = desc.lane().flags(desc.end().peer());
            if theirs & (flags::CLOSED | flags::FIN) != 0 && readiness(set, entry, depth) != 0 {
                return Armed::Ready;
            }
            set.make_cold(entry);
            company::armed(set, fd, entry, desc, (interest & EPOLLET != 0).then_some(since));
            return Armed::Sleep;
        }
        // What arrived since the last report may be nothing to tell: it was read already, is too little, or is not what
        // is asked for. Then it is no edge any more, and the arming is to be repeated from here on. What comes during
        // the judgement is found by that.
        let now = tail(desc);
        if readiness(set, entry, depth) != 0 || now == since {
            return Armed::Ready;
        }
        if !counts_by_mark(desc) {
            entry.seen.pass(now);
        }
        since = now;
    }
    Armed::Ready
}

/// Whether arrivals are not simply counted by the peer's tail.
fn counts_by_mark(desc: &Desc) -> bool {
    desc.side().rcv_lowat() != 0
}

/// The tail from which on an entry is to be armed, if it has nothing to report when it is judged next.
pub(super) fn since(entry: &Entry, desc: &Desc) -> u32 {
    if counts_by_mark(desc) { tail(desc) } else { entry.seen.tail() }
}

/// Arms a lane for what an entry asks, by level or from a tail on. A fault of the peer counts as news, and is
/// left to [`answer_faults`].
pub(super) fn arm_entry(
    epfd: i32,
    set: &Set,
    fd: i32,
    entry: &Entry,
    desc: &'static Desc,
    interest: u32,
    since: u32,
) -> Armed {
    let out = interest & WRITABLE != 0 && awaits_room(entry, desc, interest);
    if out && !entry.kernel_out.swap(true, Relaxed) {
        watch(epfd, set, fd, entry);
    } else if out && takes_no_bells(desc) && entry.registered.events().is_some() {
        make_exact(epfd, set, fd, entry);
    } else if entry.registered.is_doubted() {
        watch(epfd, set, fd, entry);
    }
    let sleep = company::sleep_for(set, entry, desc);
    if sleep != 0 && desc.side().rx.sleep() == sleep {
        // The bell of this sleep may lie there, and to arm the lane again takes it out.
        return Armed::Ready;
    }
    let alone = company::arms_alone(set).map(|users| {
        let sleep = Sleeping { number: sleep, by_edges: lying::may_leave_bells(entry) };
        Sleeper::new(users, sleep)
    });
    let armed = arm_for(open_fd(fd, desc), desc, interest, since, out, alone).unwrap_or_else(|fault| {
        note_fault(set, fd, entry, fault);
        Armed::Ready
    });
    if alone.is_some() && armed == Armed::Sleep {
        lying::note_sleep(epfd, set, fd, entry);
    }
    armed
}

/// Whether an entry that asks for room, and had none to report when it was judged, is to be told of it. There may be
/// some by now, which only arming finds: so the present room decides for edges alone, and for those only if none is
/// due. Who may send no more is always told of room, and awaits none.
fn awaits_room(entry: &Entry, desc: &Desc, interest: u32) -> bool {
    let is_edge = || {
        entry.seen.is_fresh()
            || desc.pace.fulls() != entry.seen.fulls()
            || !desc.side().is(state::SHUT_WR | state::RESET) && !io::writable_hint(desc, desc.side())
    };
    interest & EPOLLET == 0 || is_edge()
}

/// `alone` as for [`arm_lane`].
fn arm_for(
    fd: i32,
    desc: &'static Desc,
    interest: u32,
    since: u32,
    out: bool,
    alone: Option<Sleeper>,
) -> Result<Armed, Fault> {
    if interest & EPOLLET == 0 {
        let events = interest & (READABLE | EPOLLPRI) | if out { EPOLLOUT } else { 0 };
        return arm_lane(fd, desc, events as i16, alone);
    }
    if io::await_end(fd, desc, interest as i16) {
        return Ok(Armed::Ready);
    }
    if interest & (READABLE | EPOLLPRI) != 0 && !desc.side().is(state::PEER_FIN) {
        let since = beeline_lane::Since::Tail(since);
        let Some(guard) = guards::rx_of(fd, desc) else { return Ok(Armed::Ready) };
        if io::arm_reader(fd, &guard, since, false, alone)? == Armed::Ready {
            return Ok(Armed::Ready);
        }
    }
    if out { io::arm_for_room(fd, desc) } else { Ok(Armed::Sleep) }
}

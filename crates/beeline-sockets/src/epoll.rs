//! `epoll`: kernel sets whose lanes are watched by the kernel when cold and by us when hot.
//!
//! # Rules
//!
//! 1. Every fd the app adds is added to the kernel's set, with the app's data. For a lane that is its anchor,
//!    watched for bells and ends (and for room only while the ring is full). So a cold lane costs nothing, and
//!    a wait in the kernel sees everything at once. What changes nothing to the kernel it is not told
//!    ([`registration`]).
//! 2. A kernel event for a lane is a hint: the lane becomes *hot*, and a hot lane is judged by its ring. Hot
//!    lanes are in a list that each wait looks through. A lane that was looked at [`IDLE_LOOKS`] times in
//!    vain is armed and cold again.
//! 3. Before a thread sleeps in the kernel, all hot lanes of the set are armed. While some thread sleeps so, a
//!    wait that returns arms what stays behind, so that the sleeper learns what comes next.
//! 4. What becomes ready without a bell (a member added or modified while its ring has data) wakes sleepers
//!    through the *waker*: a descriptor that is always readable and that one `EPOLL_CTL_MOD` shows to one
//!    sleeper once.
//! 5. A dead anchor would be reported by the kernel for ever, whatever was asked. It is taken out of the kernel's
//!    set; its state is final and stays with the hot list.
//! 6. Edges: data is an edge when the peer's tail has moved since the last report; room is one when a send has
//!    found the ring full since; what the kernel calls a change of state is one, counted in the side, whether the
//!    mask differs or not. As in the kernel, an edge reports the whole mask.
//! 7. The kernel is asked, without waiting, at each wait; only a set of which the kernel had nothing to tell in
//!    [`BUSY_WAITS`] waits is asked after [`LOOK_TICKS_MIN`], and while that finds nothing, up to
//!    [`LOOK_TICKS_MAX`], so that hot lanes cannot starve the rest. A spin that finds nothing asks it every
//!    [`SPIN_LOOK_TICKS`]: it has nothing better to do, and cold lanes ring. If hot lanes filled the app's array the
//!    last time, the kernel is asked first.
//! 8. A bell that finds its lane hot already would be told at each look. If nobody sleeps on the lane it is
//!    taken out.
//! 9. A fault of a peer may change every set that watches it, so none may be locked when it is answered. What is found
//!    under a lock is noted ([`blame`]): its lane becomes hot. [`attend`] answers it; no wait sleeps before, nor while
//!    another thread does.
//! 10. A wait spins ([`crate::wait`]) unless the peer of the lane that was told last is near, or, where no lane is hot, the
//!     last peer of this process was; or a thread that works for the set needs the CPU ([`set::Hands`]).

mod control;
mod judge;
mod news;
mod order;
mod registration;
mod set;
mod spin;
mod wait;

use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

use beeline_lane::{Armed, Fault};

use crate::desc::{Desc, Kind, Pin};
use crate::io::arm_lane;
use crate::io::{self, Next};
use crate::table;
use crate::thread::Section;

pub(crate) use control::{create, ctl, leave_sets, listener_gained, listener_lost, put_back, remember, take_out};
pub use registration::{before_fork, expose, set_inheritable};
pub use set::Set;
pub use wait::{pwait, pwait2, wait};

use judge::{judge, tail};
use registration::{bury, watch};
use set::{Entry, SETS};

/// Looks in vain after which a hot lane becomes cold.
const IDLE_LOOKS: u32 = 256;
/// Waits without news from the kernel after which it is no longer asked each time.
const BUSY_WAITS: u32 = 64;
/// Shortest time between two looks at the kernel of a busy set, in ticks of the time-stamp counter: some 25 us.
const LOOK_TICKS_MIN: u64 = 50_000;
/// Longest such time, reached by looks that find nothing: about two milliseconds.
const LOOK_TICKS_MAX: u64 = 5_000_000;
/// Time between two looks at the kernel of a spin that finds nothing: some 4 us. Its bells wake lanes that are cold.
const SPIN_LOOK_TICKS: u64 = 10_000;
/// Depth to which nested sets are followed; the kernel allows 5 (`EP_MAX_NESTS`).
const NESTS_MAX: u32 = 5;

const EPOLLIN: u32 = libc::EPOLLIN as u32;
const EPOLLOUT: u32 = libc::EPOLLOUT as u32;
const EPOLLPRI: u32 = libc::EPOLLPRI as u32;
const EPOLLRDHUP: u32 = libc::EPOLLRDHUP as u32;
const EPOLLERR: u32 = libc::EPOLLERR as u32;
const EPOLLHUP: u32 = libc::EPOLLHUP as u32;
const EPOLLRDNORM: u32 = libc::EPOLLRDNORM as u32;
const EPOLLWRNORM: u32 = libc::EPOLLWRNORM as u32;
/// What the kernel wakes pollers for when data arrives (sock_def_readable()).
const ARRIVAL: u32 = EPOLLIN | EPOLLRDNORM | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
const EPOLLET: u32 = libc::EPOLLET as u32;
const EPOLLONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// The set that a description of kind `Epoll` stands for.
fn set_of(desc: &Desc) -> Option<&'static Set> {
    if desc.kind() != Kind::Epoll {
        return None;
    }
    // SAFETY: `create` alone has stored it: null or an object of a slab, which is never unmapped.
    unsafe { desc.set.load(Relaxed).cast::<Set>().as_ref() }
}

/// Whether some hot member of a set has something to report.
fn any_ready(set: &Set, depth: u32) -> bool {
    if depth > NESTS_MAX {
        return false;
    }
    let Some(_guard) = set.lock.try_lock() else { return false };
    let mut fd = set.hot_first.load(Relaxed);
    while let Some(entry) = set.find(fd) {
        if judge(set, entry, depth) != 0 {
            return true;
        }
        fd = entry.next.load(Relaxed);
    }
    false
}

/// Whether any member of a set has something to report, for somebody who watches the set itself. Lanes are judged
/// here, whatever the kernel says: bells may outlive what they rang for. The kernel's word is taken for the others.
fn ready(epfd: i32, set: &'static Set, depth: u32) -> bool {
    if depth > NESTS_MAX {
        return false;
    }
    let kernel_says = crate::kernel::poll_now(epfd, libc::POLLIN) != 0;
    let mixed = kernel_says && has_kernels_own(set);
    if kernel_says && !mixed && set.sleepers.load(Relaxed) == 0 {
        news::take_news(epfd, set, depth);
    }
    // The locks of sets around this one may be held. Nobody takes them in the other order: no set is around itself.
    let _guard = set.lock.lock();
    let mut ready = false;
    set.for_each_entry(|fd, entry| {
        ready = ready
            || match entry.desc().map(Desc::kind) {
                Some(Kind::Lane | Kind::Epoll) => judge(set, entry, depth) != 0,
                _ => kernel_says && kernels_own_is_ready(fd, entry),
            };
    });
    if ready || !kernel_says {
        return ready;
    }
    if mixed && hear_of_ends(epfd, set, depth) {
        return true;
    }
    if !is_shared(set) {
        return false;
    }
    // Bells that outlived their bytes are taken out, so that what the kernel says is about the others' members.
    set.for_each_entry(|fd, entry| {
        if let Some(desc) = entry.desc().filter(|desc| desc.is_lane() && !entry.fired.load(Relaxed)) {
            let since = since(entry, desc);
            ready |= judge(set, entry, depth) != 0;
            let interest = entry.events.load(Relaxed);
            let (Armed::Sleep | Armed::Ready) = arm_entry(epfd, set, fd, entry, desc, interest, since);
        }
    });
    ready || crate::kernel::poll_now(epfd, libc::POLLIN) != 0
}

/// Asks the kernel which lanes of a set have a dead anchor: what it has to say of a set with members of its own cannot be
/// taken without what it says about those. Whether one of them has something to report now. The set is locked.
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
        if !entry.fired.load(Relaxed) {
            set.make_hot(fd, entry);
        }
        hear(set, fd, entry, desc, revents);
        ready |= judge(set, entry, depth) != 0;
        // Where others share the kernel's set it is to tell them, too.
        if !shared {
            bury(epfd, fd, entry);
        }
    });
    ready
}

/// Whether other processes may have added members of their own.
fn is_shared(set: &Set) -> bool {
    set.owner().is_none_or(|owner| owner.born.load(Relaxed) != crate::forks())
}

/// Whether a set has members that are not lanes or sets.
fn has_kernels_own(set: &Set) -> bool {
    let Some(_guard) = set.lock.try_lock() else { return true };
    let mut found = is_shared(set);
    set.for_each_entry(|_, entry| found |= !matches!(entry.desc().map(Desc::kind), Some(Kind::Lane | Kind::Epoll)));
    found
}

/// Whether a member that is the kernel's, or a listener, makes the set ready. Where edges count only the kernel knows.
fn kernels_own_is_ready(fd: i32, entry: &Entry) -> bool {
    let events = entry.events.load(Relaxed);
    if events & (EPOLLET | EPOLLONESHOT) != 0 || crate::kernel::poll_now(fd, events as i16) != 0 {
        return true;
    }
    let mut rung = false;
    control::hidden_of(entry, |hidden| rung |= crate::kernel::poll_now(hidden, libc::POLLIN) != 0);
    rung && events & EPOLLIN != 0
}

/// Whether a set, watched by poll(2) or select(2), has members with something to report.
pub fn is_ready(desc: &Desc) -> bool {
    expose(desc);
    let Some(set) = set_of(desc) else { return false };
    let ready = || ready(desc.fd.load(Relaxed), set, 0);
    ready() || attend(set) && ready()
}

/// Arms all hot members of a set that somebody is about to wait for through the kernel.
pub fn cool(desc: &Desc) -> Armed {
    let Some(set) = set_of(desc) else { return Armed::Sleep };
    expose(desc);
    cool_for_sleep(desc.fd.load(Relaxed), set)
}

/// Whether some set may have a fault to be dealt with: one that is inside another is not waited on itself.
static TROUBLED: AtomicBool = AtomicBool::new(false);
/// Faults that somebody has begun to deal with, ever; and those that somebody is dealing with.
static DEALS_BEGUN: AtomicU32 = AtomicU32::new(0);
static DEALS_OPEN: AtomicU32 = AtomicU32::new(0);

/// Notes a fault of an entry's peer, to be dealt with by [`attend`]. The entry is hot from now on, so that no wait sleeps
/// before. The set is locked.
fn blame(set: &Set, fd: i32, entry: &Entry, fault: Fault) {
    entry.fault.store(number_of(fault), Relaxed);
    if !entry.fired.load(Relaxed) {
        set.make_hot(fd, entry);
    }
    remind(set);
}

/// Has [`attend`] look at a set.
fn remind(set: &Set) {
    set.troubled.store(true, Relaxed);
    TROUBLED.store(true, Relaxed);
}

/// Whether a set, or one inside it, may have a fault to be dealt with.
fn is_troubled(set: &Set) -> bool {
    set.troubled.load(Relaxed) || TROUBLED.load(Relaxed)
}

/// Notes what the kernel says of a lane's anchor, and leaves a fault to [`attend`]. The set is locked, and the locks of
/// sets around it may be held.
fn hear(set: &Set, fd: i32, entry: &Entry, desc: &'static Desc, revents: i16) {
    if let Err(fault) = io::hear(desc, revents) {
        blame(set, fd, entry, fault);
    }
}

/// Deals with the faults of peers that were noted while sets were locked: of `own`, and of those that others watch, be it
/// from within another set. No lock may be held: a fault may start the connection over on TCP, which takes it out of its
/// sets. Whether there were any.
fn attend(own: &Set) -> bool {
    unsafe extern "C" fn jumped_out(open: *mut core::ffi::c_void) {
        // SAFETY: `open` below, which the call that does not come back leaves behind.
        if unsafe { &*open.cast::<Cell<bool>>() }.get() {
            end_deal();
        }
    }
    let mut any = false;
    while is_troubled(own) {
        let open = Cell::new(false);
        if !crate::cancel::undoing(jumped_out, &open, || deal(own, &open)) {
            break;
        }
        any = true;
    }
    any
}

/// Deals with one fault, which is `open` meanwhile. False if there is none.
fn deal(own: &Set, open: &Cell<bool>) -> bool {
    TROUBLED.store(false, Relaxed);
    let mut found = None;
    control::every_set(|_, set| {
        let due = core::ptr::eq(set, own) || set.exposed.load(Relaxed);
        if found.is_none() && due && set.troubled.load(Relaxed) {
            found = take_fault(set, open);
            set.troubled.store(found.is_some(), Relaxed);
        }
    });
    let Some((pin, fd, fault)) = found else { return false };
    // There may be more.
    TROUBLED.store(true, Relaxed);
    if pin.desc().is_lane() {
        let (Next::Again | Next::Kernel) = pin.while_waiting(|| io::fault(fd, pin.desc(), fault, 0));
    }
    let _section = Section::enter();
    open.set(false);
    end_deal();
    true
}

/// A handler may fork in the middle of a deal, and its child return here uncounted.
fn end_deal() {
    let _ = DEALS_OPEN.fetch_update(SeqCst, Relaxed, |open| open.checked_sub(1));
}

/// Takes one of the faults that were noted in a set, with the connection and its number. From here on it is being dealt
/// with. The set is locked.
fn take_fault(set: &Set, open: &Cell<bool>) -> Option<(Pin, i32, Fault)> {
    let mut found = None;
    set.for_each_entry(|fd, entry| {
        if found.is_none()
            && let Some(fault) = fault_of(entry.fault.load(Relaxed))
            && let Some(desc) = entry.desc()
        {
            DEALS_OPEN.fetch_add(1, SeqCst);
            DEALS_BEGUN.fetch_add(1, SeqCst);
            open.set(true);
            entry.fault.store(0, Relaxed);
            // Pinned: its number may lead elsewhere, and a description that is given back, too.
            found = Some((desc.pin(), open_fd(fd, desc), fault));
        }
    });
    found
}

/// As [`cool_set`], for a sleep: ready, too, if a fault was being dealt with meanwhile, which has been taken and may show
/// only later. No lock may be held.
fn cool_for_sleep(epfd: i32, set: &Set) -> Armed {
    // In this order: a deal that is open now is seen here, and one that is begun later there.
    let begun = DEALS_BEGUN.load(SeqCst);
    let open = DEALS_OPEN.load(SeqCst) != 0;
    let armed = cool_set(epfd, set, 0);
    if armed == Armed::Sleep && !open && DEALS_BEGUN.load(SeqCst) == begun {
        return Armed::Sleep;
    }
    if !attend(set) && open {
        crate::kernel::sleep_ms();
    }
    Armed::Ready
}

/// A fault as an entry remembers it.
const FAULTS: [Fault; 4] = [Fault::Gone, Fault::CursorBeyondRing, Fault::HeadBeyondTail, Fault::BadBell];

fn fault_of(number: u8) -> Option<Fault> {
    FAULTS.get(usize::from(number).checked_sub(1)?).copied()
}

fn number_of(fault: Fault) -> u8 {
    FAULTS.iter().position(|known| *known == fault).map_or(1, |index| index as u8 + 1)
}

/// Arms the hot lanes of a set; those that have nothing to report become cold. Ready if one has something.
fn cool_set(epfd: i32, set: &Set, depth: u32) -> Armed {
    if depth > NESTS_MAX {
        return Armed::Sleep;
    }
    let _guard = set.lock.lock();
    let mut fd = set.hot_first.load(Relaxed);
    let mut armed = Armed::Sleep;
    while let Some(entry) = set.find(fd) {
        let next = entry.next.load(Relaxed);
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
            || entry.fresh.load(Relaxed)
            || judge::arrivals(inner) != entry.seen_tail.load(Relaxed)
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
fn cool_behind(epfd: i32, set: &Set, call: u32) -> (Armed, bool) {
    let _guard = set.lock.lock();
    let mut fd = set.hot_first.load(Relaxed);
    let (mut armed, mut untold) = (Armed::Sleep, false);
    while let Some(entry) = set.find(fd) {
        let next = entry.next.load(Relaxed);
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

/// Arms a lane for what comes after what is there. False if more comes all the time.
fn arm_from_now(fd: i32, desc: &'static Desc) -> bool {
    let Some(guard) = table::rx_of(fd, desc) else { return true };
    (0..ARMINGS).any(|_| {
        let since = beeline_lane::Since::Tail(guard.reader().tail());
        // A fault is found again by whoever reads.
        guard.reader().arm(since, &io::Anchor(fd)) != Ok(Armed::Ready)
    })
}

/// How often an entry is armed in a row: a peer that writes all the time must not keep the set locked.
const ARMINGS: usize = 8;

/// Arms one hot entry. The set is locked.
fn cool_entry(epfd: i32, set: &Set, fd: i32, entry: &Entry, depth: u32) -> Armed {
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
        _ => return Armed::Sleep,
    }
    let mut since = since(entry, desc);
    if entry.fault.load(Relaxed) != 0 {
        remind(set);
        return Armed::Ready;
    }
    if judge(set, entry, depth) != 0 {
        return Armed::Ready;
    }
    if entry.dead.load(Relaxed) || desc.side().is(crate::side::state::PEER_CLOSED | crate::side::state::RESET) {
        bury(epfd, fd, entry);
        return Armed::Sleep;
    }
    let interest = entry.events.load(Relaxed);
    desc.show_cpu();
    for _ in 0..ARMINGS {
        if arm_entry(epfd, set, fd, entry, desc, interest, since) == Armed::Sleep {
            set.make_cold(fd, entry);
            return Armed::Sleep;
        }
        // What arrived since the last report may be nothing to tell: it was read already, is too little, or is not what
        // is asked for. Then it is no edge any more, and the arming is to be repeated from here on. What comes during the
        // judgement is found by that.
        let now = tail(desc);
        if judge(set, entry, depth) != 0 || now == since {
            return Armed::Ready;
        }
        if !counts_by_mark(desc) {
            entry.seen_tail.store(now, Relaxed);
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
fn since(entry: &Entry, desc: &Desc) -> u32 {
    if counts_by_mark(desc) { tail(desc) } else { entry.seen_tail.load(Relaxed) }
}

/// Arms a lane for what an entry asks, by level or from a tail on. A fault of the peer counts as news, and is
/// left to [`attend`].
fn arm_entry(epfd: i32, set: &Set, fd: i32, entry: &Entry, desc: &'static Desc, interest: u32, since: u32) -> Armed {
    let out = interest & (EPOLLOUT | EPOLLWRNORM) != 0 && awaits_room(entry, desc, interest);
    if out && !entry.kernel_out.swap(true, Relaxed) {
        watch(epfd, set, fd, entry);
    }
    arm_for(open_fd(fd, desc), desc, interest, since, out).unwrap_or_else(|fault| {
        blame(set, fd, entry, fault);
        Armed::Ready
    })
}

/// Whether an entry that asks for room, and had none to report when it was judged, is to be told of it. There may be some
/// by now, which only arming finds: so the present room decides for edges alone, and for those only if none is due.
fn awaits_room(entry: &Entry, desc: &Desc, interest: u32) -> bool {
    interest & EPOLLET == 0
        || entry.fresh.load(Relaxed)
        || desc.fulls.load(Relaxed) != entry.seen_fulls.load(Relaxed)
        || !io::writable_hint(desc, desc.side())
}

fn arm_for(fd: i32, desc: &'static Desc, interest: u32, since: u32, out: bool) -> Result<Armed, Fault> {
    if interest & EPOLLET == 0 {
        let events = interest & (EPOLLIN | EPOLLRDNORM | EPOLLPRI) | if out { EPOLLOUT } else { 0 };
        return arm_lane(fd, desc, events as i16);
    }
    if interest & (EPOLLIN | EPOLLRDNORM | EPOLLPRI) != 0 && !desc.side().is(crate::side::state::PEER_FIN) {
        let since = beeline_lane::Since::Tail(since);
        let Some(guard) = table::rx_of(fd, desc) else { return Ok(Armed::Ready) };
        if guard.reader().arm(since, &io::Anchor(fd))? == Armed::Ready {
            return Ok(Armed::Ready);
        }
    }
    if out { arm_lane(fd, desc, libc::POLLOUT) } else { Ok(Armed::Sleep) }
}

/// An fd under which the description's anchor is open: the registered one may have been closed while a
/// duplicate keeps the registration alive.
fn open_fd(fd: i32, desc: &'static Desc) -> i32 {
    if table::leads_to(fd, desc) { fd } else { desc.fd.load(Relaxed) }
}

/// The last fd of an epoll set is being closed.
pub fn close_set(desc: &'static Desc) {
    let Some(set) = set_of(desc) else { return };
    {
        let _guard = set.lock.lock();
        set.for_each_entry(|fd, entry| set.remove(fd, entry));
        set.for_each_parked(|fd| {
            set.take_parked(fd);
        });
    }
    control::unlink(set);
    desc.set.store(core::ptr::null_mut(), Relaxed);
    desc.become_kind(Kind::Closed);
    SETS.give(set);
}

/// In the child of a `fork`: no other thread holds any lock or sleeps.
pub fn reset_after_fork() {
    SETS.reset_after_fork(|set| {
        set.lock.reset();
    });
    // Another thread may have been about to look, or to deal with what it found.
    TROUBLED.store(true, Relaxed);
    DEALS_OPEN.store(0, Relaxed);
    io::reset_after_fork();
    control::reset_after_fork();
}

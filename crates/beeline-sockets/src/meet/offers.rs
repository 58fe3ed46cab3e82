//! Hellos that nobody has taken yet.
//!
//! A door's queue takes a client whether or not somebody will come for it: its process may be busy, stopped, or one
//! that only watches the listener and has another program accept. Over TCP such a client waits, too, but whoever
//! accepts gets it. So an *offer*, a hello that is not taken, is looked after:
//!
//! 1. From its hello on, or from where it would have been said, a client's end is in the list of this process,
//!    [`state::OFFERED`] in its side, until it is seen to be taken, goes on over TCP, or is closed.
//! 2. An offer is *due* [`PATIENCE_NS`] after the hello. Whoever finds it due withdraws it ([`super::late`]), in one
//!    atomic step against its being taken ([`beeline_lane::offer`]), and the connection goes on over TCP with what lies
//!    in the ring.
//! 3. That is found out by every call of the program that could wait or look: a wait sleeps no longer than until the
//!    next offer of the process is due, whatever it waits for ([`crate::wait`]); calls that do not wait look when they
//!    have nothing to report. A send on an offer leaves its fast path. A thread that sleeps elsewhere is of no use,
//!    others may be.
//! 4. Whoever leaves an offer cannot look after it any more. A close and the end of the program wait for it,
//!    [`LEAVE_NS`] in all, the making of a process and a message that carries it (`SCM_RIGHTS`) [`FORK_NS`], and then
//!    withdraw it: an end with several holders cannot change its path. What another thread withdraws meanwhile they let
//!    it finish.
//! 5. If TCP's queue is full, too, the offer stays and is due again after [`RETRY_NS`]: over TCP the client would wait.
//! 6. An offer at a door that this very process serves may lie there for [`OWN_NS`]: whoever is to take it is the app
//!    itself, whose threads may be at anything, perhaps at just what rule 4 is about. So it stays there when it is
//!    closed, in the order in which it came, and when the process forks; but who has been put aside is sent away then,
//!    so offers at such a listener go on over TCP before ([`super::fork`]).
//! 7. A listener of which two offers were withdrawn, the second said after the first was due, and none was taken in
//!    between, gets no hellos for a while (`untaken` in [`super::lookup`]).
//!
//! The list has a lock of its own, which is innermost. An end is taken out of it before its lane is unmapped.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_lane::{End, flags, offer};
use beeline_stats::Reason;

use super::{late, lookup, watched};
use crate::desc::{Desc, Pin};
use crate::lock::Lock;
use crate::side::state;
use crate::static_ref::StaticRef;
use crate::upkeep::{self, Upkeep};
use crate::{changing, guards, kernel, table, thread};

/// How long a hello may lie at a door. A server that is there takes it within microseconds, one whose loop is at
/// something else within milliseconds; a person does not notice the time.
const PATIENCE_NS: u64 = 80_000_000;
/// Who finds an offer due so much too late may have been kept from running, as may the server: it is given the time
/// again.
const LATE_NS: u64 = 20_000_000;
/// How long it may lie at a door of this process.
const OWN_NS: u64 = 1_000_000_000;
/// How long it may stay there if TCP's queue is full, or the other way failed for the moment.
const RETRY_NS: u64 = 100_000_000;
/// How long a program that leaves waits for its offers.
const LEAVE_NS: u64 = 1_000_000;
/// How long one that forks does, which goes on with them.
const FORK_NS: u64 = 10_000_000;
/// How long either lets other threads finish.
const OTHERS_NS: u64 = 500_000_000;
/// Pause between two looks of those who wait for offers to be taken, or for other threads.
const LEAVE_PAUSE_NS: i64 = 40_000;
/// In a due time: it was put off once.
const STRETCHED: u64 = 1;

#[unsafe(link_section = ".fork.locked")]
static LOCK: Lock = Lock::new();
#[unsafe(link_section = ".fork.locked")]
static FIRST: StaticRef<Desc> = StaticRef::none();
/// When the first of them is due.
#[unsafe(link_section = ".fork.locked")]
static DUE_NS: AtomicU64 = AtomicU64::new(u64::MAX);

/// See [`crate::upkeep`].
static UPKEEP: Upkeep = Upkeep { due_ns, look_after, is_due };

/// The client's end of a connection has said hello. The caller holds `changing::changing`, or that of its number.
pub(crate) fn add(desc: &'static Desc) {
    if desc.end() != End::Client {
        return;
    }
    if desc.lane().flags(End::Server) & flags::TAKEN != 0 {
        return lookup::note_taken(desc.side().remote.get());
    }
    desc.side().mark(state::OFFERED);
    let now_ns = kernel::now_ns();
    let until = now_ns.saturating_add(PATIENCE_NS) & !STRETCHED;
    let _guard = LOCK.lock();
    desc.offered_ns.store(now_ns, Relaxed);
    desc.offered_until_ns.store(until, Relaxed);
    desc.next_offer.store(FIRST.load(Relaxed), Relaxed);
    FIRST.store(Some(desc), Relaxed);
    DUE_NS.fetch_min(until, Relaxed);
    upkeep::begin(&UPKEEP);
}

/// An end is no offer any more.
pub(crate) fn remove(desc: &Desc) {
    if desc.offered_until_ns.load(Relaxed) != 0 {
        let _guard = LOCK.lock();
        if desc.side().is(state::TAKEN) {
            lookup::note_taken(desc.side().remote.get());
        }
        retain(|other| other != desc);
    }
}

/// Keeps the offers that `wanted` accepts. The list is locked.
fn retain(mut wanted: impl FnMut(&'static Desc) -> bool) {
    let mut due = u64::MAX;
    let mut link = &FIRST;
    while let Some(desc) = link.load(Relaxed) {
        if wanted(desc) {
            due = due.min(desc.offered_until_ns.load(Relaxed));
            link = &desc.next_offer;
        } else {
            link.store(desc.next_offer.load(Relaxed), Relaxed);
            desc.offered_until_ns.store(0, Relaxed);
        }
    }
    DUE_NS.store(due, Relaxed);
    upkeep::goes_on(FIRST.load(Relaxed).is_some());
}

/// Until when a wait of this process may sleep without a look at its offers.
fn due_ns() -> Option<u64> {
    FIRST.load(Relaxed)?;
    // What was taken meanwhile shall cost no wake-up.
    let _guard = LOCK.lock();
    retain(|desc| !is_settled(desc));
    Some(DUE_NS.load(Relaxed)).filter(|due| *due != u64::MAX && !is_at_work())
}

/// Whether an offer of the list is none any more. The list is locked, so that the lane is mapped.
fn is_settled(desc: &'static Desc) -> bool {
    if !desc.is_lane() {
        return true;
    }
    let taken = desc.lane().flags(End::Server) & flags::TAKEN != 0;
    if taken {
        note_taken(desc);
    }
    // What other processes hold, too, cannot change its path.
    taken || desc.shared.load(Relaxed)
}

fn note_taken(desc: &Desc) {
    let side = desc.side();
    side.mark(state::TAKEN);
    side.state.fetch_and(!state::OFFERED, AcqRel);
    lookup::note_taken(side.remote.get());
}

/// Withdraws what is due. No lock may be held. Whether there was anything.
fn look_after() -> bool {
    if FIRST.load(Relaxed).is_none() || is_at_work() {
        return false;
    }
    drop_settled();
    let now_ns = kernel::now_ns();
    DUE_NS.load(Relaxed) <= now_ns && look_after_due(now_ns)
}

/// Takes the newest offers that are taken off the list, so that a program with none left is not kept looking until they
/// would have been due. Not those behind one that is not: a thousand would be gone through again and again.
fn drop_settled() {
    let _guard = LOCK.lock();
    while let Some(first) = FIRST.load(Relaxed)
        && is_settled(first)
    {
        FIRST.store(first.next_offer.load(Relaxed), Relaxed);
        first.offered_until_ns.store(0, Relaxed);
    }
    if FIRST.load(Relaxed).is_none() {
        DUE_NS.store(u64::MAX, Relaxed);
        upkeep::goes_on(false);
    }
}

#[cold]
fn look_after_due(now_ns: u64) -> bool {
    let mut any = false;
    at_work(|| {
        while let Some((pin, fd)) = next(now_ns) {
            any = true;
            withdraw(&pin, fd, Reason::HelloNotTaken);
        }
    });
    any
}

/// Withdraws offers in `body`.
fn at_work(body: impl FnOnce()) {
    fn set_at_work(is: bool) {
        thread::with(|thread| thread.at_offers.store(is, Relaxed));
    }
    set_at_work(true);
    crate::cancel::undoing(&(), |()| set_at_work(false), body);
    set_at_work(false);
}

fn withdraw(pin: &Pin, fd: i32, reason: Reason) {
    // A pin that came too late keeps nothing.
    if table::leads_to(fd, pin.desc()) {
        pin.while_waiting(|| late::withdraw(fd, pin.desc(), reason));
    }
}

/// Takes all offers at that listener to TCP, in the order in which they were said. No lock may be held.
pub(super) fn take_to_tcp(cookie: u64) {
    if is_at_work() {
        return;
    }
    let mut said_ns = 0;
    at_work(|| {
        while let Some((pin, fd)) = first_after(said_ns, cookie) {
            said_ns = pin.desc().offered_ns.load(Relaxed);
            withdraw(&pin, fd, Reason::DoorDied);
        }
    });
}

/// The first offer at that listener that was said after this time.
fn first_after(after_ns: u64, cookie: u64) -> Option<(Pin, i32)> {
    let mut first: Option<&'static Desc> = None;
    let said_ns = |desc: &Desc| desc.offered_ns.load(Relaxed);
    let _guard = LOCK.lock();
    retain(|desc| {
        if is_settled(desc) {
            return false;
        }
        let is_later = said_ns(desc) > after_ns && door_of(desc) == Some(cookie);
        if is_later && first.is_none_or(|first| said_ns(desc) < said_ns(first)) {
            first = Some(desc);
        }
        true
    });
    first.map(|desc| (desc.pin(), desc.fd.load(Relaxed)))
}

/// Whether there is something to [`look_after`].
fn is_due() -> bool {
    DUE_NS.load(Relaxed) <= kernel::now_ns() && !is_at_work()
}

/// Whether this thread is withdrawing an offer, for which it may wait, too.
fn is_at_work() -> bool {
    thread::with(|thread| thread.at_offers.load(Relaxed))
}

/// The oldest offer that is due, which is left alone for a while by others: TCP's queue is to have them in the order in
/// which they were said. Those that are taken leave the list.
fn next(now_ns: u64) -> Option<(Pin, i32)> {
    let mut oldest: Option<&'static Desc> = None;
    let _guard = LOCK.lock();
    retain(|desc| {
        if is_settled(desc) {
            return false;
        }
        let until_ns = desc.offered_until_ns.load(Relaxed);
        let stretch_ns =
            if until_ns > now_ns || until_ns & STRETCHED != 0 { 0 } else { stretch(desc, now_ns - until_ns) };
        if stretch_ns != 0 {
            desc.offered_until_ns.store(now_ns.saturating_add(stretch_ns) | STRETCHED, Relaxed);
        } else if until_ns <= now_ns
            && oldest.is_none_or(|oldest| desc.offered_ns.load(Relaxed) <= oldest.offered_ns.load(Relaxed))
        {
            oldest = Some(desc);
        }
        true
    });
    // Until the next look, which follows at once, the list seems to be due as it was.
    oldest.map(|desc| {
        desc.offered_until_ns.store(now_ns.saturating_add(RETRY_NS) | STRETCHED, Relaxed);
        (desc.pin(), desc.fd.load(Relaxed))
    })
}

/// How long an offer is put off that was found due so late. The list is locked.
fn stretch(desc: &Desc, late_ns: u64) -> u64 {
    match is_at_own_door(desc) {
        true => OWN_NS,
        false if late_ns > LATE_NS => PATIENCE_NS,
        false => 0,
    }
}

/// Whether this process serves the door of a lane's listener.
fn is_at_own_door(desc: &Desc) -> bool {
    door_of(desc).is_some_and(watched::serves)
}

/// The same, where the offer is to stay there though it cannot go on over TCP any more.
fn stays_at_own_door(desc: &Desc) -> bool {
    door_of(desc).is_some_and(watched::keeps_visitor)
}

/// The cookie of the listener at whose door an offer lies.
fn door_of(desc: &Desc) -> Option<u64> {
    desc.pooled().map(|lane| lane.cookie.load(Relaxed))
}

/// Whether there are offers of this process.
pub(super) fn any() -> bool {
    FIRST.load(Relaxed).is_some()
}

/// Whether an offer of this process lies at that listener's door.
pub(super) fn any_at(cookie: u64) -> bool {
    any_such(|desc| door_of(desc) == Some(cookie))
}

/// Whether there is an offer of which this holds.
fn any_such(mut is_such: impl FnMut(&'static Desc) -> bool) -> bool {
    let mut any = false;
    if FIRST.load(Relaxed).is_some() {
        let _guard = LOCK.lock();
        retain(|desc| {
            any = any || is_such(desc);
            true
        });
    }
    any
}

/// Whether an offer of this thread lies at that listener's door itself: one that came with a hello.
pub(super) fn any_at_door(cookie: u64) -> bool {
    any_such(|desc| {
        let by_door = desc.pooled().is_some_and(|lane| lane.stands.was_said_by(thread::identity()));
        by_door && door_of(desc) == Some(cookie) && !is_settled(desc)
    })
}

/// Waits a moment for an offer to be taken. False if it was not, and goes on over TCP.
pub(super) fn stays_at_last(desc: &'static Desc) -> bool {
    stays_at_own_door(desc) || is_taken_within(desc, LEAVE_NS)
}

/// Before another process gets an end: it is taken by now, or goes on over TCP. No lock may be held.
pub(crate) fn before_passing(fd: i32) {
    let Some(desc) = table::get(fd).filter(|desc| desc.offered_until_ns.load(Relaxed) != 0) else { return };
    let Some(pin) = guards::pin(fd, desc) else { return };
    if desc.is_lane() && !stays_at_own_door(desc) && !pin.while_waiting(|| is_taken_within(desc, FORK_NS)) {
        pin.while_waiting(|| late::withdraw(fd, desc, Reason::HelloNotTaken));
        late::await_other(desc);
    }
}

fn is_taken_within(desc: &'static Desc, patience_ns: u64) -> bool {
    let until = kernel::now_ns().saturating_add(patience_ns);
    loop {
        if !desc.is_lane() {
            return true;
        }
        if offer_of(desc) == offer::TAKEN {
            note_taken(desc);
            return true;
        }
        if kernel::now_ns() >= until {
            return false;
        }
        kernel::sleep_ns(LEAVE_PAUSE_NS);
    }
}

fn offer_of(desc: &Desc) -> u32 {
    desc.lane().offer().load(core::sync::atomic::Ordering::Acquire)
}

/// Before other processes get what this one has: what is offered is taken by now, or goes on over TCP. No lock may be
/// held.
pub(crate) fn before_fork() {
    settle_all(FORK_NS, |desc| !stays_at_own_door(desc));
}

/// Before the process, or its program, ends. A child of a fork comes by here, and mostly has none.
#[inline(always)]
pub(crate) fn before_end() {
    if FIRST.load(Relaxed).is_some() {
        settle_all(LEAVE_NS, |_| true);
    }
}

/// Keeps changes out for a caller who is about to give ends to another process, as far as possible at a moment at which
/// none is on its way to TCP: an end with several holders could not finish.
pub(crate) fn changing_to_share() -> changing::Changing {
    for _ in 0..2 {
        let changing = changing::changing();
        if !are_on_their_way() {
            return changing;
        }
        drop(changing);
        await_others();
    }
    changing::changing()
}

/// Whether other threads take ends to TCP.
fn are_on_their_way() -> bool {
    FIRST.load(Relaxed).is_some() && !is_at_work() && late::is_any_leaving()
}

/// Lets other threads finish what they withdraw, as far as that does not take unduly long.
fn await_others() {
    let until = kernel::now_ns().saturating_add(OTHERS_NS);
    while are_on_their_way() && kernel::now_ns() < until {
        kernel::sleep_ns(LEAVE_PAUSE_NS);
    }
}

/// Lets the offers that `leave` accepts be taken, or takes them to TCP.
fn settle_all(patience_ns: u64, leave: fn(&'static Desc) -> bool) {
    if FIRST.load(Relaxed).is_none() {
        return;
    }
    let until = kernel::now_ns().saturating_add(patience_ns);
    while any_stays(leave) {
        if kernel::now_ns() >= until {
            withdraw_all(leave);
            return;
        }
        kernel::sleep_ns(LEAVE_PAUSE_NS);
    }
}

/// Whether somebody still has to take an offer that `leave` accepts.
fn any_stays(leave: fn(&'static Desc) -> bool) -> bool {
    due_ns().is_some() && any_such(leave)
}

fn withdraw_all(leave: fn(&'static Desc) -> bool) {
    {
        let _guard = LOCK.lock();
        retain(|desc| {
            if leave(desc) {
                desc.offered_until_ns.store(STRETCHED, Relaxed);
            }
            true
        });
    }
    look_after();
    await_others();
}

/// In the child of a `fork`: the offers are the parent's.
pub(super) fn reset_after_fork() {
    LOCK.reset();
    if FIRST.load(Relaxed).is_some() {
        FIRST.store(None, Relaxed);
    }
    if DUE_NS.load(Relaxed) != u64::MAX {
        DUE_NS.store(u64::MAX, Relaxed);
    }
    upkeep::goes_on(false);
    table::for_each(|_, desc| {
        if desc.offered_until_ns.load(Relaxed) != 0 {
            desc.offered_until_ns.store(0, Relaxed);
        }
    });
}

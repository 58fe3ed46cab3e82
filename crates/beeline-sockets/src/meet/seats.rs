//! Ends that one of a crowd keeps, while it waits in accept(2): [`beeline_lane::seat`].
//!
//! Of several processes that accept from one listener any may take a client from the door or from TCP's queue, but an
//! end that stands ([`super::standing`]) leads to one of them. So it is used only while that one waits:
//!
//! 1. A process of a crowd keeps one end, that of its last client, as long as its clients come back over such ends
//!    ([`Seats`]): one that is always busy finds its clients at the door, and what keeping an end takes would be lost.
//! 2. A thread that has found no client at the door and in TCP's queue sits down for as long as it waits
//!    ([`while_seated`]). It stands up before a handler of the app runs, and where it is cancelled or a handler jumps
//!    out.
//! 3. Who stands up and finds the end claimed takes its client before any other, or gives the end up: then that client
//!    begins again over TCP.
//! 4. Meanwhile the thread sleeps on its own and not with the crowd ([`super::sleepers`]), which has no such ends.
//! 5. A client prefers the end that it used last: that server runs, while one that sits there already has to be woken
//!    up. So it waits a moment for a server that is about to sit down ([`await_server`]), where that has been worth it.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_guest::trial::Trial;
use beeline_lane::seat;

use super::listener::Listener;
use super::pool::{self, Offer, PooledLane};
use super::route::Route;
use crate::wait::peers_are_near;
use crate::{cancel, kernel, signals, thread};

/// Who sits, and whether ends are worth keeping. Valid when zeroed.
#[derive(Default)]
#[repr(C)]
pub(super) struct Seats {
    /// Whether clients come back over ends that are kept.
    keeping: Trial<64>,
    /// Threads that sit. Under the listener's lock.
    sitting: AtomicU32,
}

impl Seats {
    /// Nobody sits, and nothing is known: a new listener, or the child of a `fork`.
    pub(super) fn begin(&self) {
        self.keeping.note(true);
        if self.sitting.load(Relaxed) != 0 {
            self.sitting.store(0, Relaxed);
        }
    }

    /// Whether the end of a client that comes now is to be kept when it is closed.
    pub(super) fn begin_keeping(&self) -> bool {
        let promising = self.keeping.try_now();
        if promising {
            // Until somebody comes back over it.
            self.keeping.note(false);
        }
        promising
    }

    /// A client has come back over an end that was kept.
    pub(super) fn note_claimed(&self) {
        self.keeping.note(true);
    }
}

/// Seats that this process has placed.
static PLACED: AtomicU32 = AtomicU32::new(0);

/// Gives an end that is about to be kept a seat, or none where nobody else takes the listener's clients. The lane is
/// not released yet. The caller holds the listener's lock.
pub(super) fn place(listener: &Listener, lane: &PooledLane) {
    /// Bits of a seat's state, and of the count of seats.
    const STATE_BITS: u32 = 2;
    const COUNT_BITS: u32 = 8;
    let seat = if listener.is_shared() {
        let number = thread::identity() << COUNT_BITS | PLACED.fetch_add(1, Relaxed) & ((1 << COUNT_BITS) - 1);
        seat::empty(number << STATE_BITS)
    } else {
        seat::NONE
    };
    lane.stands.set_seat(seat);
    seat::place(lane.memory().seat(), seat);
}

/// The end is kept: other threads may be waiting. The caller holds the listener's lock.
pub(super) fn note_kept(listener: &Listener) {
    if listener.seats.sitting.load(Relaxed) != 0 {
        listener.lobby.kept().0.sit();
    }
}

/// Waits for clients, in a seat if an end is kept, which `wait` is told: who sits must hear of ends that are kept
/// meanwhile. Returns the hidden anchor of an end that was claimed, too: rule 3.
pub(super) fn while_seated<R>(listener: &'static Listener, wait: impl FnOnce(bool) -> R) -> (R, Option<i32>) {
    if !listener.lobby.keeps_any() {
        return (wait(false), None);
    }
    signals::before_handlers(interrupted);
    let result = cancel::undoing(listener, left, || {
        sit_down(listener);
        wait(true)
    });
    (result, stand_up(listener))
}

/// A client came another way while an end was kept, or was about to be.
pub(super) fn came_otherwise(listener: &Listener) {
    if listener.lobby.keeps_any() {
        listener.seats.keeping.note(false);
        if listener.seats.keeping.has_failed() {
            let _guard = listener.lock.lock();
            let (kept, set) = listener.lobby.kept();
            let _ = kept.give_up_unclaimed(set);
        }
    }
}

/// The client that has claimed an end, whose anchor has this hidden number, has not said hello yet: the end is given
/// up, unless another thread waits for it.
pub(super) fn give_up(listener: &Listener, hidden: i32) {
    let _guard = listener.lock.lock();
    let (kept, set) = listener.lobby.kept();
    if listener.seats.sitting.load(Relaxed) == 0
        && let Some(end) = kept.of(hidden)
    {
        kept.drop_end(end, set);
    }
}

fn sit_down(listener: &'static Listener) {
    let waits_for = thread::with(|thread| thread.waits_for.load(Relaxed));
    if waits_for != 0 {
        // In a handler that nobody has told of.
        interrupted(waits_for);
    }
    let _guard = listener.lock.lock();
    thread::with(|thread| thread.waits_for.store(core::ptr::from_ref(listener) as usize, Relaxed));
    listener.seats.sitting.fetch_add(1, Relaxed);
    listener.lobby.kept().0.sit();
}

/// The hidden anchor of the end, if a client has claimed it. The seat is left by the last of the threads that wait.
fn stand_up(listener: &Listener) -> Option<i32> {
    let _guard = listener.lock.lock();
    let sitting = &listener.seats.sitting;
    if thread::with(|thread| thread.waits_for.swap(0, Relaxed)) != 0 {
        sitting.store(sitting.load(Relaxed).saturating_sub(1), Relaxed);
    }
    let (kept, set) = listener.lobby.kept();
    if sitting.load(Relaxed) == 0 { kept.rise(set) } else { kept.claimed() }
}

/// A handler of the app is about to run. Who has claimed the end by now is served when it returns.
fn interrupted(listener: usize) {
    // SAFETY: `sit_down` alone stores what a thread waits for: an object of a slab, which is never unmapped.
    let listener = unsafe { &*(listener as *const Listener) };
    let _ = stand_up(listener);
}

/// The thread does not come back.
fn left(listener: &'static Listener) {
    if let Some(hidden) = stand_up(listener) {
        give_up(listener, hidden);
    }
}

/// How long a client waits for a server that is about to sit down: as long as a hello at the door takes.
const MOMENT_NS: u64 = 10_000;

/// Whether clients do so.
static AWAITING: Trial<64> = Trial::new();

/// The client's part: takes the end that was used last, if its server sits there or does so within a moment. It runs,
/// and whoever sits there already has to be woken up.
pub(super) fn await_server(route: &Route) -> Option<Offer> {
    if peers_are_near() || !AWAITING.try_now() {
        return None;
    }
    let offer = pool::standing_soon(route.destination, |stands| route.over(stands).is_some())?;
    if offer.lane.is_ready() {
        return Some(offer);
    }
    let until_ns = kernel::now_ns().saturating_add(MOMENT_NS);
    while !offer.lane.is_ready() && kernel::now_ns() < until_ns {
        core::hint::spin_loop();
    }
    let is_ready = offer.lane.is_ready();
    AWAITING.note(is_ready);
    if is_ready {
        return Some(offer);
    }
    if offer.lane.stands.anchor().is_some_and(|anchor| kernel::poll_now(anchor, 0) & libc::POLLHUP != 0) {
        offer.lane.stands.close_anchor();
    }
    offer.withdraw();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_kept_while_clients_come_back_over_them_and_tried_now_and_then() {
        let seats = Seats::default();
        for _ in 0..100 {
            assert!(seats.begin_keeping());
            seats.note_claimed();
        }
        let tried = (0..640).filter(|_| seats.begin_keeping()).count();
        assert!((12..16).contains(&tried), "{tried}");
        // One that succeeds is enough.
        while !seats.begin_keeping() {}
        seats.note_claimed();
        assert!((0..Trial::<64>::FAILURES).all(|_| seats.begin_keeping()) && !seats.begin_keeping());
    }
}

//! How a call that may block waits on its connection: it spins, arms the wake word, sleeps, and says what came of it.
//!
//! Called without a lock, and only when the call has found nothing to do; so nothing in here is on the short way.
//! Arming for room is system calls, which are made when other processes that share the end may go on.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Since, flags as lane_flags};

use super::alone::{Sleeper, Users};
use super::arm::arm_reader;
use super::faults::{fault, kernel_said, tells_nothing};
use super::loan;
use super::readiness::{receive_over, room_is_untold, writable_hint};
use crate::Outcome;
use crate::anchor::Anchor;
use crate::desc::{ByEdges, Desc, Pin, Unlocked};
use crate::ending::{Next, observe};
use crate::side::{SideState, reset, state};
use crate::wait::{Patience, Spun, Woken};
use crate::{kernel, table, watchers};

/// How a wait ended.
pub(super) enum Waited {
    /// Look at the connection again.
    Again,
    /// As [`Waited::Again`], unless some bytes were moved before: a handler ran after which a call of no bytes is
    /// restarted.
    Handled,
    /// The connection is now plain TCP.
    Kernel,
    /// Give this to the app, unless some bytes were moved before.
    Stop(Outcome),
}

impl Waited {
    /// What a sleep's end means for a call that the kernel restarts if it has no timeout.
    pub(super) fn from_sleep(woken: Woken, patience: &Patience) -> Option<Waited> {
        match woken {
            Woken::Ready(_) => None,
            Woken::TimedOut => Some(Waited::Stop(Outcome::fail(libc::EAGAIN))),
            // signal(7): socket calls with a timeout are never restarted.
            Woken::Signal { restart: true } if !patience.is_bounded() => Some(Waited::Handled),
            Woken::Signal { .. } => Some(Waited::Stop(Outcome::fail(libc::EINTR))),
            Woken::Failed(errno) => Some(Waited::Stop(Outcome::Fail(errno))),
        }
    }

    /// What a signal that came meanwhile means for the call, if one came and ends it.
    pub(super) fn from_signal(patience: &mut Patience) -> Option<Waited> {
        Waited::from_sleep(patience.signal()?, patience)
    }

    /// What ends a call before it waits again: a peer that always has some news must not keep it for good.
    fn before_wait(patience: &mut Patience) -> Option<Waited> {
        Waited::from_signal(patience).or_else(|| patience.is_over().then(|| Waited::Stop(Outcome::fail(libc::EAGAIN))))
    }

    /// The kernel restarts a call with its number, which may have been closed meanwhile.
    pub(super) fn restarted(self, given: i32, desc: &'static Desc) -> Waited {
        match self {
            Waited::Again | Waited::Handled if !table::leads_to(given, desc) => Waited::Kernel,
            waited => waited,
        }
    }
}

impl From<Next> for Waited {
    fn from(next: Next) -> Waited {
        match next {
            Next::Again => Waited::Again,
            Next::Kernel => Waited::Kernel,
        }
    }
}

/// The patience of a call that receives. Begun when the call has to wait for the first time and, where it has a lock
/// then, before it gives that back: a handler of signals that was put off meanwhile runs as the lock is given back, and
/// is to count as one that came during the call.
pub(super) fn rcv_patience(side: &SideState) -> Patience {
    Patience::timeout(side.rcv_timeout_ns.load(Relaxed))
}

/// As [`rcv_patience`], of a call that sends.
pub(super) fn snd_patience(side: &SideState) -> Patience {
    Patience::timeout(side.snd_timeout_ns.load(Relaxed))
}

/// A call that finds the direction in the hands of another process, which may have been stopped.
#[derive(Default)]
pub(super) struct HeldUp(Option<Waited>);

/// Naps of a millisecond after which a call that must not block says that it would. Its caller may wait for an edge
/// that has come already, so this is for holders that are stopped, and not for those that have lost their CPU for a
/// while.
const NAPS_NONBLOCKING: u32 = 2_000;

impl HeldUp {
    /// Whether to nap once more: not when a signal ends the call, its time is over, or it must not block.
    pub(super) fn goes_on(&mut self, patience: &mut Patience, nonblocking: bool, naps: u32) -> bool {
        let stop = match Waited::from_signal(patience) {
            Some(stop @ (Waited::Stop(_) | Waited::Kernel)) => Some(stop),
            _ if patience.is_over() || nonblocking && naps >= NAPS_NONBLOCKING => {
                Some(Waited::Stop(Outcome::fail(libc::EAGAIN)))
            }
            _ => None,
        };
        self.0 = stop;
        self.0.is_none()
    }

    /// What that means for the call.
    pub(super) fn waited(self) -> Waited {
        self.0.unwrap_or(Waited::Again)
    }

    /// The same for a call of which `done` bytes were moved.
    pub(super) fn outcome(self, done: usize) -> Outcome {
        match self.0 {
            Some(Waited::Stop(outcome)) if done == 0 => outcome,
            _ => Outcome::Done(done as isize),
        }
    }
}

/// Waits until there is room, or something else to tell.
#[cold]
pub(super) fn wait_writable(given: i32, pin: &Pin, patience: &mut Patience) -> Waited {
    // All of it: a handler that comes during the arming runs at its end, and may jump out.
    pin.while_waiting(|| until_writable(given, pin, patience))
}

fn until_writable(given: i32, pin: &Pin, patience: &mut Patience) -> Waited {
    let desc = pin.desc();
    let side = desc.side();
    if let Some(waited) = Waited::before_wait(patience) {
        return waited.restarted(given, desc);
    }
    if desc.peer_is_near() {
        desc.budget_anew().give_way(patience);
    } else {
        let news = || writable_hint(desc, side) || desc.lane().flags(desc.end().peer()) & lane_flags::CLOSED != 0;
        let spun = desc.budget_anew().spin(patience, news);
        match spun {
            Spun::News => {
                observe(desc, side);
                if !writable_hint(desc, side) {
                    reset_if_closed(given, pin);
                }
                return Waited::Again;
            }
            Spun::Signal => {
                if let Some(waited) = Waited::from_signal(patience) {
                    return waited.restarted(given, desc);
                }
            }
            Spun::Nothing => {}
        }
    }
    let mut held_up = HeldUp::default();
    let (fd, armed) = match desc.await_tx(|naps| held_up.goes_on(patience, false, naps)) {
        Ok(mut guard) => {
            let fd = pin.fd(given);
            (fd, guard.arm(&Anchor(fd)))
        }
        Err(Unlocked::Gone) => return Waited::Kernel,
        Err(Unlocked::Busy(_)) => return held_up.waited().restarted(given, desc),
    };
    match armed {
        // There is room, or the kernel has no memory for bells.
        Ok(Armed::Ready) => return Waited::Again,
        // Another thread may have shut it, and unplugged the anchor, since this call looked.
        Ok(Armed::Sleep) if side.is(state::SHUT_WR | state::RESET) => return Waited::Again,
        Ok(Armed::Sleep) => {}
        Err(failure) => {
            return match fault(fd, desc, failure, 0) {
                Next::Kernel => Waited::Kernel,
                Next::Again => {
                    reset_if_closed(given, pin);
                    Waited::Again
                }
            };
        }
    }
    let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    let woken = patience.sleep(&mut fds, None);
    let revents = fds[0].revents;
    if revents != libc::POLLOUT || !room_is_untold(desc) {
        desc.slept(patience, woken);
    }
    match Waited::from_sleep(woken, patience) {
        Some(waited) => waited.restarted(given, desc),
        None if !table::leads_to(fd, desc) || !desc.is_lane() => Waited::Again,
        None => match kernel_said(fd, desc, revents) {
            Next::Kernel => Waited::Kernel,
            Next::Again => {
                if tells_nothing(desc, revents) {
                    kernel::sleep_ms();
                } else if revents == libc::POLLOUT && !writable_hint(desc, side) {
                    // Others were faster, or the peer takes the bells out and reads nothing.
                    patience.woke_in_vain();
                }
                reset_if_closed(given, pin);
                Waited::Again
            }
        },
    }
}

/// The only one who uses a lane.
const RECEIVER: Users = Users { pins: 1, entries: 0 };

/// Waits until there is something to read, or something else to tell. `room` is how much the call might fetch.
#[cold]
pub(super) fn wait_readable(given: i32, pin: &Pin, since: Since, room: usize, patience: &mut Patience) -> Waited {
    pin.while_waiting(|| until_readable(given, pin, since, room, patience))
}

fn until_readable(given: i32, pin: &Pin, since: Since, room: usize, patience: &mut Patience) -> Waited {
    let desc = pin.desc();
    let side = desc.side();
    let lane = desc.lane();
    let peer = desc.end().peer();
    if let Some(waited) = Waited::before_wait(patience) {
        return waited.restarted(given, desc);
    }
    if desc.peer_is_near() {
        desc.budget_anew().give_way(patience);
    } else {
        let known = match since {
            Since::Read => side.rx.head(),
            Since::Tail(tail) => tail,
        };
        let flags = lane.flags(peer);
        let budget = desc.budget_anew();
        if budget.is_open() && !desc.shared.load(Relaxed) {
            side.rx.begin_awake(&lane, desc.end());
        }
        let news = || lane.cursor(peer).tail != known || lane.flags(peer) != flags;
        let spun = loan::wanting(pin, given, room, |lent| match lent {
            None => budget.spin(patience, news),
            Some(lent) => budget.spin(patience, || news() || lent()),
        });
        match spun {
            Spun::News => return Waited::Again,
            Spun::Signal => {
                if let Some(waited) = Waited::from_signal(patience) {
                    return waited.restarted(given, desc);
                }
            }
            Spun::Nothing => {}
        }
    }
    watchers::disturb(pin.fd(given), desc);
    let mut held_up = HeldUp::default();
    let by_edges = Cell::new(None);
    let (fd, armed) = match desc.await_rx(|naps| held_up.goes_on(patience, false, naps)) {
        Ok(guard) => {
            let fd = pin.fd(given);
            let (sleeper, wants_more) = (Sleeper::by_edges(&RECEIVER, &by_edges), matches!(since, Since::Tail(_)));
            (fd, arm_reader(fd, &guard, since, wants_more, Some(sleeper)))
        }
        Err(Unlocked::Gone) => return Waited::Kernel,
        Err(Unlocked::Busy(_)) => return held_up.waited().restarted(given, desc),
    };
    match armed {
        Ok(Armed::Ready) => return Waited::Again,
        Ok(Armed::Sleep) => {}
        Err(failure) => {
            return fault(fd, desc, failure, 0).into();
        }
    }
    observe(desc, side);
    if receive_over(side) {
        return Waited::Again;
    }
    let mut place = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    let mut by_edges = by_edges.take();
    let woken = sleep_upon(&mut place, &mut by_edges, patience);
    desc.slept(patience, woken);
    match (woken, Waited::from_sleep(woken, patience)) {
        (_, Some(waited)) => waited.restarted(given, desc),
        (Woken::Ready(_), None) if !table::leads_to(fd, desc) || !desc.is_lane() => {
            side.rx.note_bell();
            Waited::Again
        }
        (Woken::Ready(found), None) => {
            let next = kernel_said(fd, desc, place.revents);
            let is_noted = found != 0 && !tells_nothing(desc, place.revents);
            by_edges.into_iter().filter(|_| is_noted).for_each(ByEdges::note_heard);
            if found != 0 && matches!(since, Since::Tail(tail) if lane.cursor(peer).tail == tail) {
                patience.woke_in_vain();
            }
            next.into()
        }
        _ => Waited::Again,
    }
}

fn sleep_upon(place: &mut libc::pollfd, by_edges: &mut Option<ByEdges>, patience: &mut Patience) -> Woken {
    match by_edges {
        Some(by_edges) => by_edges.sleep(patience, place),
        None => patience.sleep(core::slice::from_mut(place), None),
    }
}

/// What a peer that has closed its end will never read resets the connection, and who sleeps elsewhere hears of it.
fn reset_if_closed(given: i32, pin: &Pin) {
    let desc = pin.desc();
    if desc.side().is(state::PEER_CLOSED) && !desc.side().is(state::RESET) {
        reset(desc.side(), libc::ECONNRESET);
        watchers::notify(pin.fd(given), desc);
    }
}

//! A receive that is not done at once: it locks, takes what is there, and waits, until it has an answer.

use core::ops::ControlFlow::{self, Break, Continue};
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Fault, Since, Sink, flags as lane_flags};
use beeline_stats::Counter;
use beeline_stats::tunables::Wait;

use super::blocking::{HeldUp, Waited, rcv_patience, wait_readable};
use super::call::left;
use super::faults::{fault, kernel_said};
use super::low_water::{count_arrivals, low_water};
use super::readiness::{receive_over, unread_hint};
use super::receive::account;
use super::sleeps::alarm_poller;
use super::{loan, peeked, urgent};
use crate::anchor::Anchor;
use crate::bulk::BULK_BYTES;
use crate::desc::{Desc, Pin, RxGuard, Unlocked};
use crate::ending::{Next, observe};
use crate::side::{SideState, state};
use crate::wait::{Patience, ticks};
use crate::{Errno, Outcome, kernel, stats, table, upkeep};

/// One call.
struct Receiving<'p, 'a, I> {
    /// The number that the call was given.
    given: i32,
    pin: &'p Pin,
    flags: i32,
    /// As the kernel, a call asks once whether it may wait: whoever sets `O_NONBLOCK` meanwhile means later ones.
    may_block: bool,
    total: usize,
    /// The present sink, of which some may be filled, and those after it.
    present: Sink<'a>,
    sinks: I,
    got: usize,
    /// Begun when the call has to wait.
    patience: Option<Patience>,
    /// Marks of urgent bytes that it has gone past since it last waited, and found nothing behind them.
    passed: u32,
}

/// Receives into the sinks one after the other as one call, from a lane that the caller has pinned.
#[inline]
pub(super) fn receive_pinned<'a>(
    given: i32,
    pin: &Pin,
    flags: i32,
    total: usize,
    sinks: impl Iterator<Item = Sink<'a>>,
) -> Outcome {
    let present = Sink::from(&mut [][..]);
    let desc = pin.desc();
    let may_block = desc.is_lane() && desc.side().may_block(flags);
    let mut receiving =
        Receiving { given, pin, flags, may_block, total, present, sinks, got: 0, patience: None, passed: 0 };
    loop {
        if let Break(outcome) = receiving.step() {
            return outcome;
        }
    }
}

impl<'a, I: Iterator<Item = Sink<'a>>> Receiving<'_, 'a, I> {
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    fn done(&self) -> ControlFlow<Outcome> {
        Break(Outcome::Done(self.got as isize))
    }

    /// Takes what is there. The call's answer, or that it goes on.
    #[inline]
    fn step(&mut self) -> ControlFlow<Outcome> {
        let desc = self.pin.desc();
        let mut held_up = HeldUp::default();
        let guard = match desc.await_rx(|naps| self.may_nap(&mut held_up, naps)) {
            Ok(guard) => guard,
            Err(Unlocked::Gone) => return Break(left(self.given, desc, self.got)),
            Err(Unlocked::Busy(_)) => return Break(held_up.outcome(self.got)),
        };
        let fd = self.pin.fd(self.given);
        let anchor = Anchor(fd);
        let side = guard.side;
        // Before the look at the ring: another thread may learn of the end, and of bytes before it, meanwhile.
        let was_over = receive_over(side);
        if side.is(state::POISONED) {
            // Nothing that the ring says is believed any more.
            drop(guard);
            return match side.take_error() {
                Some(errno) if self.got == 0 => Break(Outcome::Fail(errno)),
                _ => self.done(),
            };
        }
        let tail = count_arrivals(desc, side);
        if desc.portion.is_spent() {
            // It is over whatever comes of this call: there is no limit until the next report.
            let came_since = desc.portion.end(tail);
            if came_since && !was_over && self.may_give_way(desc, side) {
                drop(guard);
                return Break(Outcome::fail(libc::EAGAIN));
            }
        }
        let before = self.got;
        let failed = self.take(&guard, &anchor);
        if !self.peeks() {
            account(desc, side, self.got - before);
            desc.portion.take(self.got - before);
        }
        if self.got - before >= BULK_BYTES {
            // One that always finds something does not wait, and shows nowhere else that it was moved.
            desc.show_cpu();
        }
        if let Some(failure) = failed {
            drop(guard);
            return self.after_fault(fd, failure);
        }
        if self.total != 0
            && guard.lane.flags(desc.end().peer()) & lane_flags::URGENT != 0
            && self.got < self.total
            && let Some(step) = self.at_urgent(&guard, &anchor)
        {
            return step;
        }
        let wanted = if self.flags & libc::MSG_WAITALL != 0 {
            self.total
        } else {
            self.total.min(low_water(desc, side) as usize)
        };
        // A receive of no bytes waits for some, and then leaves them.
        if self.got >= wanted && (self.got != 0 || self.total == 0 && guard.reader().unread() != Ok(0)) {
            return self.done();
        }
        // Nothing, or less than wanted. The flags are set after the last cursor: having seen them, one more
        // look at the cursor tells whether the ring is drained.
        observe(desc, side);
        if receive_over(side) {
            if !was_over {
                return Continue(());
            }
            drop(guard);
            return Break(over(side, self.got));
        }
        self.wait(fd, guard)
    }

    /// Whether the call may be told that there is nothing, so that others have their turn
    /// ([`Portion`](crate::desc::Portion)).
    #[cold]
    fn may_give_way(&self, desc: &Desc, side: &SideState) -> bool {
        let is_plain = self.flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 0 && side.rcv_lowat() == 0;
        let is_told = desc.entries.load(Relaxed) == 1 && !desc.shared.load(Relaxed);
        let ended = desc.lane().flags(desc.end().peer()) & (lane_flags::FIN | lane_flags::CLOSED) != 0;
        let sends_on = !ended && side.error.load(Relaxed) == 0 && !desc.peer_was_near();
        self.got == 0 && self.total != 0 && !self.may_block && is_plain && is_told && sends_on
    }

    /// Whether to nap once more while another process has the direction.
    fn may_nap(&mut self, held_up: &mut HeldUp, naps: u32) -> bool {
        let side = self.pin.desc().side();
        let patience = self.patience.get_or_insert_with(|| rcv_patience(side));
        held_up.goes_on(patience, !self.may_block, naps)
    }

    /// Fills sinks with what is there, up to an urgent byte.
    #[inline]
    fn take(&mut self, guard: &RxGuard, anchor: &Anchor) -> Option<Fault> {
        let (peeking, skipping) = (self.peeks(), self.flags & libc::MSG_TRUNC != 0);
        while self.got < self.total {
            if self.present.is_empty() {
                match self.sinks.next() {
                    Some(sink) => self.present = sink,
                    None => break,
                }
                continue;
            }
            let room = self.present.len();
            let moved = if peeking && skipping {
                guard.reader().unread_from(self.got).map(|count| count.min(room))
            } else if peeking {
                peeked::peek(guard, self.got, self.present.again())
            } else if skipping {
                peeked::skip(guard, room, anchor)
            } else {
                read_some(guard, &mut self.present, anchor)
            };
            match moved {
                Ok(0) if !peeking && !skipping => match loan::fetch(guard, anchor.0, &mut self.present) {
                    0 => break,
                    fetched => self.got += fetched,
                },
                Ok(0) => break,
                Ok(count) => {
                    self.got += count;
                    if peeking || skipping {
                        let _ = self.present.split_front(count);
                    }
                    if peeking && count < room {
                        break;
                    }
                }
                Err(failure) => return Some(failure),
            }
        }
        None
    }

    /// After a fault of the peer. No lock is held.
    #[cold]
    fn after_fault(&self, fd: i32, failure: Fault) -> ControlFlow<Outcome> {
        if self.got != 0 {
            return self.done();
        }
        match fault(fd, self.pin.desc(), failure, 0) {
            Next::Kernel => Break(left(self.given, self.pin.desc(), 0)),
            Next::Again => Continue(()),
        }
    }

    /// A read ends before an urgent byte, and the next one begins after it. `None` if that does not concern this one.
    fn at_urgent(&mut self, guard: &RxGuard, anchor: &Anchor) -> Option<ControlFlow<Outcome>> {
        if self.got == 0
            && let Some(stopped) = stopped_by_signal(self.patience.as_mut(), guard)
        {
            return Some(Break(stopped));
        }
        match (self.got, self.peeks()) {
            // A peer that moves its mark at each look has nothing to say, and waits with those who have not.
            (0, false) if self.passed < urgent::LOOKS_MAX && urgent::pass(guard, anchor) => {
                self.passed += 1;
                Some(Continue(()))
            }
            (1.., _) if guard.reader().view().mark.is_some_and(|mark| mark.distance == 0 || self.peeks()) => {
                Some(self.done())
            }
            _ => None,
        }
    }

    /// There is nothing, or less than wanted: what a call returns that must not block, or a wait.
    fn wait(&mut self, fd: i32, guard: RxGuard) -> ControlFlow<Outcome> {
        self.passed = 0;
        let (desc, side) = (self.pin.desc(), guard.side);
        let pending = side.error.load(Relaxed) != 0;
        if pending || !self.may_block {
            if self.got != 0 {
                return self.done();
            }
            if pending {
                // None if another thread has taken it: the next look tells what is left.
                return side.take_error().map_or(Continue(()), |errno| Break(Outcome::Fail(errno)));
            }
            return match empty(fd, desc, guard, self.peeks()) {
                Break(Outcome::Kernel) => Break(left(self.given, desc, 0)),
                next => next,
            };
        }
        let since = if self.peeks() {
            Since::Tail(side.rx.head().wrapping_add(self.got as u32 + guard.reader().hole()))
        } else {
            Since::Read
        };
        // Before the lock is given back: see `rcv_patience`.
        let patience = self.patience.get_or_insert_with(|| rcv_patience(side));
        drop(guard);
        let room = if self.flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0 { self.present.len() } else { 0 };
        match wait_readable(self.given, self.pin, since, room, patience) {
            Waited::Handled if self.got != 0 => self.done(),
            Waited::Handled => {
                // The kernel begins such a call again.
                self.may_block = side.may_block(self.flags);
                Continue(())
            }
            Waited::Again => Continue(()),
            Waited::Kernel => Break(left(self.given, desc, self.got)),
            Waited::Stop(_) if self.got != 0 => self.done(),
            Waited::Stop(outcome) => Break(outcome),
        }
    }
}

/// At an urgent byte, a call that was interrupted while it waited ends before it goes past the byte.
fn stopped_by_signal(patience: Option<&mut Patience>, guard: &RxGuard) -> Option<Outcome> {
    let patience = patience?;
    if guard.reader().view().mark.is_none_or(|mark| mark.distance != 0) {
        return None;
    }
    match Waited::from_signal(patience)? {
        Waited::Stop(outcome) => Some(outcome),
        _ => None,
    }
}

#[inline]
fn read_some(guard: &RxGuard, present: &mut Sink<'_>, anchor: &Anchor) -> Result<usize, beeline_lane::Fault> {
    let count = match guard.side.holds_peeked() {
        false => guard.reader().read(present.again(), anchor)?,
        true => peeked::read(guard, present.again(), anchor)?,
    };
    let _ = present.split_front(count);
    Ok(count)
}

/// What `recv` returns when nothing will come any more: the order of tcp_recvmsg_locked().
#[cold]
fn over(side: &SideState, got: usize) -> Outcome {
    match got {
        0 => end_of_stream(side).map_or_else(Outcome::Fail, |()| Outcome::Done(0)),
        _ => Outcome::Done(got as isize),
    }
}

/// How a stream ends of which everything was read: in good order, or with the error that TCP would tell now.
pub(super) fn end_of_stream(side: &SideState) -> Result<(), Errno> {
    if side.is(state::PEER_FIN) {
        return Ok(());
    }
    side.take_error().map_or(Ok(()), Err)
}

/// A non-blocking `recv` that found nothing: from now on the kernel's view must tell about new data, as the app may
/// wait by means that pass no hook of ours. An app that asks again and again without waiting is spared the bells: it
/// will ask again. So is one that waits by our hooks, in a set or as it did before this `recv`: they arm the lane.
///
/// A peer that was killed, or that ended without a close, has told nobody but the kernel. That is asked in either case:
/// by one that `peeks` always, as it mostly wants to know whether the peer is still there, else now and then.
///
/// What the call returns, or that it looks again.
#[inline]
pub(super) fn empty(fd: i32, desc: &'static Desc, guard: RxGuard, peeks: bool) -> ControlFlow<Outcome> {
    if guard.side.is(state::OFFERED) && upkeep::is_due() {
        drop(guard);
        return if upkeep::look_after() { Continue(()) } else { Break(Outcome::fail(libc::EAGAIN)) };
    }
    if comes_at_once(desc, &guard) {
        return Continue(());
    }
    // Who shares it may wait otherwise, and so may a set that came with it from another program.
    let is_excused = desc.pace.take_excuse() && !desc.shared.load(Relaxed);
    let is_watched = desc.entries.load(Relaxed) != 0;
    // Counted only where arming is this call's to do: the first of so many arms.
    if is_excused || is_watched || desc.pace.count_empty() % EAGAINS_PER_ARM != 1 {
        if !peeks && ticks().wrapping_sub(desc.pace.looked()) < ASK_TICKS {
            return Break(Outcome::fail(libc::EAGAIN));
        }
        drop(guard);
        return unless_ended(fd, desc);
    }
    let is_named = guard.side.rx.sleep() != 0;
    let armed = guard.arm(Since::Read, &Anchor(fd));
    drop(guard);
    if is_named {
        alarm_poller();
    }
    match armed {
        Ok(Armed::Sleep) => unless_ended(fd, desc),
        Ok(Armed::Ready) => Continue(()),
        Err(failure) => match fault(fd, desc, failure, 0) {
            Next::Kernel => Break(Outcome::Kernel),
            Next::Again => Continue(()),
        },
    }
}

/// Ticks between two questions after the peer of a program that asks again and again: some 0.4 ms.
const ASK_TICKS: u64 = 1_000_000;

/// What a receive that found nothing returns, if the kernel knows of no end either; else it is to look again.
#[cold]
fn unless_ended(fd: i32, desc: &'static Desc) -> ControlFlow<Outcome> {
    desc.pace.look(ticks());
    let revents = kernel::poll_now(fd, libc::POLLRDHUP);
    if revents == 0 || !table::leads_to(fd, desc) {
        return Break(Outcome::fail(libc::EAGAIN));
    }
    match kernel_said(fd, desc, revents) {
        Next::Kernel => Break(Outcome::Kernel),
        Next::Again => {
            // Where another thread begins the connection again nothing has changed yet.
            let side = desc.side();
            let has_changed =
                !desc.is_lane() || receive_over(side) || side.error.load(Relaxed) != 0 || unread_hint(desc, side) != 0;
            if has_changed { Continue(()) } else { Break(Outcome::fail(libc::EAGAIN)) }
        }
    }
}

/// A thread to which a set has handed the connection, and that finds nothing more to read, gives it back: bytes that
/// come a moment later are told to one thread and read by another, after two wake-ups. Often they come at once, as the
/// peer's answer to what this thread has sent. So it waits a moment for them, once for what it has sent, as long as
/// that is worth it. Others that share the connection are not kept from it meanwhile.
fn comes_at_once(desc: &Desc, guard: &RxGuard) -> bool {
    let is_handed_out = desc.pace.is_handed_out() && desc.entries.load(Relaxed) != 0 && !desc.shared.load(Relaxed);
    if !is_handed_out || !desc.pace.take_answer() {
        return false;
    }
    let mode = desc.wait_mode();
    let may_spin = mode.wait() != Wait::Sleep && mode.spin_ns_max() >= MOMENT_NS;
    if !may_spin || !desc.pace.more.try_now() || desc.peer_is_near() {
        return false;
    }
    let began = ticks();
    let came = loop {
        if guard.reader().has_news() {
            break true;
        }
        if ticks().wrapping_sub(began) > MOMENT_TICKS {
            break false;
        }
        core::hint::spin_loop();
    };
    desc.pace.more.note(came);
    stats::count(if came { Counter::SpinsPaid } else { Counter::SpinsFailed }, 1);
    came
}

/// A moment, and the ticks of one.
const MOMENT_NS: u32 = 2_000;
const MOMENT_TICKS: u64 = 4_000;
/// Empty answers in a row between two armings.
const EAGAINS_PER_ARM: u32 = 1024;

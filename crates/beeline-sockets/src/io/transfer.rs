//! `splice` on lanes.
//!
//! 1. What goes into a pipe is copied out of the ring, written to the pipe, and only then taken out of the ring,
//!    by what the pipe took; what comes out of a pipe is taken only as far as the ring has room for it. So nothing
//!    is between the two when a call ends early.
//! 2. Both happen under the lock of the direction, with pipe calls that never wait ([`Pipe`]).
//! 3. Waiting is done before, with no lock held: for the pipe first, as the kernel does, then for the lane.

use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Fault, Since, Source};

use super::blocking::{HeldUp, Waited, rcv_patience, snd_patience, wait_readable, wait_writable};
use super::call::{TRANSFER_MAX, left};
use super::dead;
use super::faults::fault;
use super::part::with_part;
use super::peeked;
use super::pipe::Pipe;
use super::readiness::receive_over;
use super::receive;
use super::receiving::{self, end_of_stream};
use super::{send, sending, urgent};
use crate::anchor::Anchor;
use crate::desc::{Desc, Pin, RxGuard, TxGuard, Unlocked};
use crate::ending::{Next, observe};
use crate::side::{SideState, state};
use crate::wait::{Patience, Woken};
use crate::{Errno, Outcome, guards, kernel, table};

/// The flags that splice(2) knows.
const SPLICE_FLAGS: u32 = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

pub(super) fn is_lane(fd: i32) -> bool {
    table::get(fd).is_some_and(Desc::is_lane)
}

/// `splice(2)` between a lane and a pipe.
///
/// # Safety
/// As for splice(2); the offsets are only compared with null, as a socket and a pipe have none.
pub unsafe fn splice(
    from: i32,
    from_offset: *const i64,
    to: i32,
    to_offset: *const i64,
    count: usize,
    flags: u32,
) -> Outcome {
    let (out_of_lane, into_lane) = (is_lane(from), is_lane(to));
    if !out_of_lane && !into_lane {
        return Outcome::Kernel;
    }
    if count == 0 {
        return Outcome::OK;
    }
    if flags & !SPLICE_FLAGS != 0 {
        return Outcome::fail(libc::EINVAL);
    }
    let pipe = if out_of_lane { to } else { from };
    let pipe_flags = match kernel::status_flags(pipe) {
        Err(errno) => return Outcome::Fail(errno),
        Ok(flags) => flags,
    };
    let pipe_offset = if out_of_lane { to_offset } else { from_offset };
    let lane_offset = if out_of_lane { from_offset } else { to_offset };
    let wrong_way = if out_of_lane { libc::O_RDONLY } else { libc::O_WRONLY };
    let spliced = kernel::is_pipe(pipe);
    if spliced && !pipe_offset.is_null() {
        return Outcome::fail(libc::ESPIPE);
    }
    if pipe_flags & libc::O_ACCMODE == wrong_way {
        return Outcome::fail(libc::EBADF);
    }
    if !spliced || !lane_offset.is_null() {
        return Outcome::fail(libc::EINVAL);
    }
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0 || pipe_flags & libc::O_NONBLOCK != 0;
    let count = count.min(TRANSFER_MAX);
    let moved = Pipe::with(pipe, |end| match out_of_lane {
        true => into_pipe(from, end, count, nonblocking),
        false => out_of_pipe(end, to, count, nonblocking),
    });
    match moved {
        Ok(moved) => Outcome::Done(moved as isize),
        Err(outcome) => outcome,
    }
}

/// Waits until the pipe reports one of `events` or that its other end is closed; returns what it reports.
fn wait_for_pipe(pipe: i32, events: i16, nonblocking: bool) -> Result<i16, Outcome> {
    let present = kernel::poll_now(pipe, events);
    if present != 0 {
        return Ok(present);
    }
    if nonblocking {
        return Err(Outcome::fail(libc::EAGAIN));
    }
    let mut patience = Patience::until(None);
    loop {
        let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
        match patience.sleep(&mut fds, None) {
            Woken::Ready(_) if fds[0].revents != 0 => return Ok(fds[0].revents),
            // It polls, or was only woken to look after something else.
            Woken::Ready(_) | Woken::Signal { restart: true } | Woken::TimedOut => {}
            Woken::Signal { restart: false } => return Err(Outcome::fail(libc::EINTR)),
            Woken::Failed(errno) => return Err(Outcome::Fail(errno)),
        }
    }
}

/// The kernel does not splice past an urgent byte: what it says instead, in tcp_splice_read()'s order.
#[cold]
fn at_urgent_byte(desc: &Desc, side: &SideState) -> Result<usize, Outcome> {
    observe(desc, side);
    end_of_stream(side).map_err(Outcome::Fail)?;
    let goes_on = !side.is(state::PEER_FIN) && !receive_over(side);
    if goes_on && side.nonblock.load(Relaxed) != 0 { Err(Outcome::fail(libc::EAGAIN)) } else { Ok(0) }
}

/// Copies what a splice from a lane may move: nothing from an urgent byte on. `None` where one comes next, or one to
/// pass over.
fn copy_movable(guard: &RxGuard, buffer: &mut [u8]) -> Result<Option<usize>, Fault> {
    let Some((bound, _)) = guard.reader().readable()? else { return Ok(None) };
    // A later mark stands behind these.
    let want = buffer.len().min(bound as usize);
    peeked::copy_unread(guard, 0, &mut buffer[..want]).map(Some)
}

/// Passes over an urgent byte that a later one has replaced, as TCP does by itself when that comes. `false` at one that
/// is not replaced, and when one call has passed over so many that the peer may go on so for ever.
#[cold]
fn pass_replaced(guard: &RxGuard, fd: i32, passed: &mut u32) -> bool {
    let mark = guard.reader().view().mark;
    let is_replaced = mark.is_none_or(|mark| mark.distance != 0 || !mark.arrived);
    *passed += 1;
    *passed <= urgent::LOOKS_MAX && is_replaced && urgent::pass(guard, &Anchor(fd))
}

/// What a splice from a lane returns if nothing will come any more.
fn nothing_more(side: &SideState) -> Result<usize, Outcome> {
    end_of_stream(side).map(|()| 0).map_err(Outcome::Fail)
}

/// What a splice from a lane returns that is over because the peer lied: nothing that the ring says is believed any
/// more, and what was moved before it is told first.
#[cold]
fn poisoned(guard: RxGuard, moved: usize) -> Result<usize, Outcome> {
    let side = guard.side;
    drop(guard);
    if moved != 0 {
        return Ok(moved);
    }
    side.take_error().map_or(Ok(0), |errno| Err(Outcome::Fail(errno)))
}

/// Whether to nap once more while another process, which may have been stopped, has the direction.
fn may_nap(
    held_up: &mut HeldUp,
    patience: &mut Option<Patience>,
    desc: &Desc,
    begun: fn(&SideState) -> Patience,
    naps: u32,
) -> bool {
    let side = desc.side();
    held_up.goes_on(patience.get_or_insert_with(|| begun(side)), side.nonblock.load(Relaxed) != 0, naps)
}

/// What a splice that has moved so many bytes returns where it does not get the direction.
#[cold]
fn not_locked(
    unlocked: Unlocked,
    held_up: HeldUp,
    given: i32,
    desc: &'static Desc,
    moved: usize,
) -> Result<usize, Outcome> {
    let outcome = match unlocked {
        Unlocked::Gone => left(given, desc, moved),
        Unlocked::Busy(_) => held_up.outcome(moved),
    };
    match outcome {
        Outcome::Done(_) => Ok(moved),
        outcome => Err(outcome),
    }
}

/// What a splice into a pipe returns that nobody reads.
#[cold]
fn unread_pipe() -> Outcome {
    dead::raise_sigpipe();
    Outcome::fail(libc::EPIPE)
}

/// What came of a look at pipe and ring, with memory for a part.
enum Look {
    Moved {
        bytes: usize,
        /// Whether there may be more.
        goes_on: bool,
    },
    /// The ring has no bytes, or no room.
    Nothing,
    /// An urgent byte comes next, or one to pass over.
    Mark,
    /// What the pipe has said.
    Refused(Errno),
}

/// Moves a part out of the ring into the pipe.
fn move_some(guard: &RxGuard, fd: i32, end: &Pipe, most: usize, part: &mut [u8]) -> Result<Look, Fault> {
    let room = part.len().min(most);
    let found = match copy_movable(guard, &mut part[..room])? {
        None => return Ok(Look::Mark),
        Some(0) => return Ok(Look::Nothing),
        Some(found) => found,
    };
    let taken = match end.put(&mut part[..found]) {
        Ok(taken) => taken,
        Err(errno) => return Ok(Look::Refused(errno)),
    };
    // A fault is found again by the next look, which is the next call's.
    let is_skipped = peeked::skip(guard, taken, &Anchor(fd)) == Ok(taken);
    receive::account(guard.desc, guard.side, taken);
    Ok(Look::Moved { bytes: taken, goes_on: taken == found && is_skipped })
}

/// Moves a part out of the pipe into the ring.
fn fill_up(guard: &TxGuard, fd: i32, end: &Pipe, most: usize, part: &mut [u8]) -> Result<Look, Fault> {
    // One for both: what it holds back may change.
    let writer = guard.writer();
    let room = part.len().min(writer.free()? as usize).min(most);
    if room == 0 {
        return Ok(Look::Nothing);
    }
    let taken = match end.take(&mut part[..room]) {
        Ok(taken) => taken,
        Err(errno) => return Ok(Look::Refused(errno)),
    };
    // There is room for all of it: nobody else writes, and room only grows. A peer that is gone took it before it went.
    let tail = guard.side.tx.tail();
    let _ = writer.write(Source::from(&part[..taken]), &Anchor(fd));
    send::account(guard.desc, guard.side, guard.side.tx.tail().wrapping_sub(tail));
    Ok(Look::Moved { bytes: taken, goes_on: true })
}

/// Sends a part of the pipe's bytes, or none, over a connection that is over. `None` where the pipe is empty. No lock
/// may be held.
#[cold]
fn send_in_vain(end: &Pipe, given: i32, pin: &Pin, most: usize, part: &mut [u8]) -> Result<Option<usize>, Outcome> {
    let room = part.len().min(most);
    let taken = match if room == 0 { Ok(0) } else { end.take(&mut part[..room]) } {
        Ok(taken) => taken,
        Err(Errno(libc::EAGAIN)) => return Ok(None),
        Err(errno) => return Err(Outcome::Fail(errno)),
    };
    // The pin's connection, as the number may lead to somebody else's by now.
    let source = core::iter::once(Source::from(&part[..taken]));
    match pin.while_waiting(|| sending::send_pinned(given, pin, 0, taken, source)) {
        Outcome::Done(sent) => Ok(Some(sent as usize)),
        outcome => Err(outcome),
    }
}

/// From a lane into a pipe: `tcp_splice_read` (Linux net/ipv4/tcp.c) after `wait_for_space` (fs/splice.c).
fn into_pipe(given: i32, end: &Pipe, count: usize, nonblocking: bool) -> Result<usize, Outcome> {
    let desc = table::get(given).ok_or(Outcome::Kernel)?;
    let Some(pin) = guards::pin(given, desc) else { return Err(left(given, desc, 0)) };
    let mut patience: Option<Patience> = None;
    let (mut moved, mut passed) = (0, 0);
    loop {
        let wait = || wait_for_pipe(end.fd, libc::POLLOUT, nonblocking);
        if moved == 0 && pin.while_waiting(wait)? & libc::POLLERR != 0 {
            return Err(unread_pipe());
        }
        let mut held_up = HeldUp::default();
        let guard = match desc.await_rx(|naps| may_nap(&mut held_up, &mut patience, desc, rcv_patience, naps)) {
            Ok(guard) => guard,
            Err(unlocked) => return not_locked(unlocked, held_up, given, desc, moved),
        };
        if guard.side.is(state::POISONED) {
            return poisoned(guard, moved);
        }
        let (fd, side) = (pin.fd(given), guard.side);
        // Before the look at the ring: another thread may learn of the end, and of bytes before it, meanwhile.
        let was_over = receive_over(side);
        match with_part(|part| move_some(&guard, fd, end, count - moved, part)) {
            Ok(Look::Moved { bytes, goes_on }) => {
                moved += bytes;
                if moved == count || !goes_on {
                    return Ok(moved);
                }
                continue;
            }
            Ok(Look::Nothing) => {}
            Ok(Look::Mark) if pass_replaced(&guard, fd, &mut passed) => continue,
            Ok(Look::Mark) => {
                drop(guard);
                return if moved != 0 { Ok(moved) } else { at_urgent_byte(desc, side) };
            }
            Ok(Look::Refused(_)) if moved != 0 => return Ok(moved),
            // Somebody else filled the pipe; it is waited for again.
            Ok(Look::Refused(Errno(libc::EAGAIN))) if !nonblocking => continue,
            Ok(Look::Refused(errno)) => return Err(Outcome::Fail(errno)),
            Err(failure) => {
                drop(guard);
                if fault(fd, desc, failure, 0) == Next::Kernel {
                    return Err(left(given, desc, 0));
                }
                continue;
            }
        }
        if moved != 0 {
            return Ok(moved);
        }
        observe(desc, side);
        if receive_over(side) {
            if !was_over {
                continue;
            }
            return nothing_more(side);
        }
        // SPLICE_F_NONBLOCK is about the pipe alone.
        if side.nonblock.load(Relaxed) != 0 {
            match receiving::empty(fd, desc, guard, false) {
                Break(Outcome::Kernel) => return Err(left(given, desc, 0)),
                Break(outcome) => return Err(outcome),
                Continue(()) => continue,
            }
        }
        // Before the lock is given back: see `rcv_patience`.
        let patience = patience.get_or_insert_with(|| rcv_patience(side));
        drop(guard);
        match wait_readable(given, &pin, Since::Read, 0, patience) {
            Waited::Again | Waited::Handled => {}
            Waited::Kernel => return Err(left(given, desc, 0)),
            Waited::Stop(outcome) => return Err(outcome),
        }
    }
}

/// From a pipe into a lane: `splice_to_socket` (Linux fs/splice.c).
fn out_of_pipe(end: &Pipe, given: i32, count: usize, nonblocking: bool) -> Result<usize, Outcome> {
    let desc = table::get(given).ok_or(Outcome::Kernel)?;
    let Some(pin) = guards::pin(given, desc) else { return Err(left(given, desc, 0)) };
    let mut patience: Option<Patience> = None;
    let mut moved = 0;
    while moved < count {
        match pin.while_waiting(|| wait_for_pipe(end.fd, libc::POLLIN, nonblocking || moved != 0)) {
            Err(_) if moved != 0 => return Ok(moved),
            Err(outcome) => return Err(outcome),
            Ok(revents) if revents & libc::POLLIN == 0 => return Ok(moved),
            Ok(_) => {}
        }
        let mut held_up = HeldUp::default();
        let guard = match desc.await_tx(|naps| may_nap(&mut held_up, &mut patience, desc, snd_patience, naps)) {
            Ok(guard) => guard,
            Err(unlocked) => return not_locked(unlocked, held_up, given, desc, moved),
        };
        let fd = pin.fd(given);
        let side = guard.side;
        observe(desc, side);
        let broken = side.is(state::RESET | state::SHUT_WR) || side.error.load(Relaxed) != 0;
        if broken || dead::peer_reads_no_more(&guard) {
            // Nothing is taken out of the pipe for an error; a peer that reads no more takes one part.
            let most = if broken { 0 } else { count - moved };
            drop(guard);
            return match with_part(|part| send_in_vain(end, given, &pin, most, part)) {
                Ok(Some(sent)) => Ok(moved + sent),
                _ if moved != 0 => Ok(moved),
                // Somebody else emptied the pipe; it is waited for again.
                Ok(None) if !nonblocking => continue,
                Ok(None) => Err(Outcome::fail(libc::EAGAIN)),
                Err(outcome) => Err(outcome),
            };
        }
        match with_part(|part| fill_up(&guard, fd, end, count - moved, part)) {
            Ok(Look::Moved { bytes, .. }) => {
                moved += bytes;
                continue;
            }
            Ok(Look::Nothing | Look::Mark) => {}
            Ok(Look::Refused(_)) if moved != 0 => return Ok(moved),
            Ok(Look::Refused(Errno(libc::EAGAIN))) if !nonblocking => continue,
            Ok(Look::Refused(errno)) => return Err(Outcome::Fail(errno)),
            Err(failure) => {
                drop(guard);
                fault(fd, desc, failure, 0);
                continue;
            }
        }
        if side.nonblock.load(Relaxed) != 0 {
            match sending::full(fd, desc, guard, moved) {
                Break(outcome) if moved == 0 => return Err(outcome),
                Break(_) => return Ok(moved),
                Continue(()) => continue,
            }
        }
        // Before the lock is given back: see `rcv_patience`.
        let patience = patience.get_or_insert_with(|| snd_patience(side));
        drop(guard);
        match wait_writable(given, &pin, patience) {
            Waited::Again => {}
            _ if moved != 0 => return Ok(moved),
            Waited::Handled => {}
            Waited::Kernel => return Err(left(given, desc, 0)),
            Waited::Stop(outcome) => return Err(outcome),
        }
    }
    Ok(moved)
}

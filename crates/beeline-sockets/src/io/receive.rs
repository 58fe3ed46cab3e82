//! `recv` and its family.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Fault, LaneMemory, Reader, Sink};

use super::call::{TRANSFER_MAX, first_bogus, lane_and_iovecs, left, moves_nothing, not_a_lane};
use super::faults::fault;
use super::readiness::unread_hint;
use super::receiving::receive_pinned;
use super::{urgent, zerocopy};
use crate::anchor::Anchor;
use crate::app_memory::{is_beyond, is_bogus_room, is_room};
use crate::desc::Desc;
use crate::ending::Next;
use crate::side::SideState;
use crate::table::{self, Place};
use crate::{Outcome, guards};

/// `read(2)`: as [`recv`] without flags, but nothing is asked of the connection for no bytes.
///
/// # Safety
/// As for [`recv`].
pub unsafe fn read(fd: i32, buffer: *mut u8, length: usize) -> Outcome {
    // SAFETY: forwarded from the caller.
    match unsafe { recv_at_once(fd, buffer, length, 0) } {
        // SAFETY: as above.
        0 => unsafe { read_the_long_way(fd, buffer, length) },
        got => Outcome::Done(got as isize),
    }
}

/// [`read`] where [`recv_at_once`] had nothing.
///
/// # Safety
/// As for [`recv`].
#[inline]
pub unsafe fn read_the_long_way(fd: i32, buffer: *mut u8, length: usize) -> Outcome {
    let is_beyond = is_beyond(buffer as usize, length);
    if (length == 0 || is_beyond) && table::get(fd).is_some_and(Desc::is_lane) {
        // vfs_read() looks at the length before it cuts it to what one call moves.
        return if is_beyond { Outcome::fail(libc::EFAULT) } else { Outcome::OK };
    }
    // SAFETY: forwarded from the caller.
    unsafe { recv_the_long_way(fd, buffer, length, 0) }
}

/// `recv(2)`.
///
/// # Safety
/// `buffer` must be writable for `length` bytes, as for recv(2).
pub unsafe fn recv(fd: i32, buffer: *mut u8, length: usize, flags: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    match unsafe { recv_at_once(fd, buffer, length, flags) } {
        // SAFETY: as above.
        0 => unsafe { recv_the_long_way(fd, buffer, length, flags) },
        got => Outcome::Done(got as isize),
    }
}

/// Flags with which a receive takes what is there.
const PLAIN: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The usual case of [`recv`] without the rest: data is there, or will be at once, and any amount will do. Returns how
/// much was read; 0, with nothing done, when anything is different.
///
/// The lock is held through the brief wait, which is shorter than most system calls: to lock twice would cost a
/// quarter of a round trip.
///
/// # Safety
/// As for [`recv`].
#[inline(always)]
pub unsafe fn recv_at_once(fd: i32, buffer: *mut u8, length: usize, flags: i32) -> usize {
    let Some(place) = Place::of(fd) else { return 0 };
    let Some(desc) = place.desc() else { return 0 };
    if flags & !PLAIN != 0 || !is_room(buffer as usize, length) {
        return 0;
    }
    let Some(guard) = desc.lock_rx_alone() else { return 0 };
    // SAFETY: forwarded from the caller.
    let got = receive_locked(fd, place, desc, unsafe { Sink::from_raw(buffer, length) }, flags);
    guard.end();
    got.unwrap_or_else(|failure| failed_at_once(fd, desc, failure))
}

#[inline(always)]
fn receive_locked(fd: i32, place: Place, desc: &'static Desc, mut sink: Sink<'_>, flags: i32) -> Result<usize, Fault> {
    let (lane, side) = (desc.lane(), desc.side());
    if !place.leads_to(desc) || !side.receives_plainly() {
        return Ok(0);
    }
    let reader = Reader::new(lane, desc.end(), &side.rx, &side.tx);
    let may_block = side.may_block(flags);
    if may_block {
        desc.read_pacing.keep(side.tx.tail());
    }
    if desc.portion.is_spent() {
        return Ok(0);
    }
    let there = reader.has_news() || may_block && !desc.loans.may_fetch(sink.len()) && spin_for_data(desc, lane, side);
    if !there {
        return Ok(0);
    }
    // An answer may follow. Its front is on the way from the peer, which looks at it, while this message is still being
    // dealt with: measured behind an epoll_wait, 2.55 hand-overs one way without, 2.33 with.
    desc.prefetch_front();
    let room = sink.len();
    let mut got = reader.read_small(sink.again(), SMALL_BYTES, &Anchor(fd))?;
    if got == 0 {
        got = receive_much(reader, sink, fd, desc)?;
    }
    desc.portion.take(got);
    desc.read_pacing.took(got, room);
    account(desc, side, got);
    Ok(got)
}

/// Out of line: what is common is a little.
#[inline(never)]
fn receive_much(reader: Reader<'_, LaneMemory>, mut sink: Sink<'_>, fd: i32, desc: &Desc) -> Result<usize, Fault> {
    // One that always finds something does not wait, and shows nowhere else that it was moved.
    desc.show_cpu();
    reader.read(sink.split_front(TRANSFER_MAX), &Anchor(fd))
}

/// The peer broke the protocol: the connection is over, as the call that follows will find.
#[cold]
fn failed_at_once(fd: i32, desc: &'static Desc, failure: Fault) -> usize {
    let (Next::Again | Next::Kernel) = fault(fd, desc, failure, 0);
    0
}

/// [`recv`] where [`recv_at_once`] had nothing.
///
/// # Safety
/// As for [`recv`].
#[inline(never)]
#[unsafe(link_section = ".text.served")]
pub unsafe fn recv_the_long_way(fd: i32, buffer: *mut u8, length: usize, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    let length = length.min(TRANSFER_MAX);
    if is_bogus_room(buffer as usize, length) && flags & libc::MSG_TRUNC == 0 {
        return receive_nowhere(fd, desc, flags);
    }
    // SAFETY: forwarded from the caller.
    let sink = unsafe { Sink::from_raw(buffer, length) };
    receive_parts(fd, desc, flags, length, core::iter::once(sink), |_| ())
}

/// Most bytes that [`recv_at_once`] copies in line.
const SMALL_BYTES: u32 = 4096;

/// Looks for data before the full path is taken: a reply that is under way comes within them.
const BRIEF_LOOKS: u32 = 32;

/// The first part of a blocking wait, without the full path's preparations: watches the ring for a microsecond or so.
/// True if something came.
#[inline]
fn spin_for_data(desc: &Desc, lane: LaneMemory, side: &SideState) -> bool {
    if desc.spin.ns() == 0 || desc.peer_was_near() {
        return false;
    }
    let (peer, head) = (desc.end().peer(), side.rx.head());
    let sent = side.tx.tail();
    for look in 0..BRIEF_LOOKS {
        if lane.cursor(peer).tail != head {
            desc.read_pacing.ended_at(look, sent);
            desc.budget().paid();
            return true;
        }
        // A pause leaves the line to the writer while it fills it: without any, the lane alone took 280 ns one way
        // instead of 165 on a Xeon; a second one costs 5 ns on an EPYC.
        core::hint::spin_loop();
    }
    desc.read_pacing.reset();
    false
}

/// A receive into an address that cannot be the app's: as in the kernel, an error only once there is data.
#[cold]
fn receive_nowhere(fd: i32, desc: &'static Desc, flags: i32) -> Outcome {
    let mut byte = [0u8; 1];
    let sink = Sink::from(&mut byte[..]);
    let flags = flags & libc::MSG_DONTWAIT | libc::MSG_PEEK;
    match receive_parts(fd, desc, flags, 1, core::iter::once(sink), |_| ()) {
        Outcome::Done(1) => Outcome::fail(libc::EFAULT),
        other => other,
    }
}

/// `recvfrom(2)`: a connected stream reports no address.
///
/// # Safety
/// As for [`recv`]; `address_length` must be null or valid.
pub unsafe fn recvfrom(
    fd: i32,
    buffer: *mut u8,
    length: usize,
    flags: i32,
    address: *mut libc::sockaddr,
    address_length: *mut u32,
) -> Outcome {
    // SAFETY: forwarded from the caller.
    let outcome = unsafe { recv(fd, buffer, length, flags) };
    if matches!(outcome, Outcome::Done(_)) && !address.is_null() && !address_length.is_null() {
        // SAFETY: valid, as the caller guarantees.
        unsafe { *address_length = 0 };
    }
    outcome
}

/// `readv(2)`.
///
/// # Safety
/// `parts` must point to `count` iovecs whose buffers are writable, as for readv(2).
pub unsafe fn readv(fd: i32, parts: *const libc::iovec, count: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    if unsafe { moves_nothing(fd, parts, count) } {
        return Outcome::OK;
    }
    // SAFETY: forwarded from the caller.
    unsafe { receive_iovecs(fd, parts, count as usize, 0, |_| ()) }
}

/// Calls `ended` before it lets the lane go, unless it was an urgent byte or a completion that was asked for.
///
/// # Safety
/// As for [`readv`].
pub(super) unsafe fn receive_iovecs(
    fd: i32,
    parts: *const libc::iovec,
    count: usize,
    flags: i32,
    ended: impl FnOnce(&'static Desc),
) -> Outcome {
    // SAFETY: forwarded from the caller.
    let (desc, parts, total) = match unsafe { lane_and_iovecs(fd, parts, count) } {
        Ok(checked) => checked,
        Err(outcome) => return outcome,
    };
    let (parts, total) = match first_bogus(parts, is_bogus_room) {
        Some(bad) if flags & libc::MSG_TRUNC == 0 => {
            let before = parts.get(..bad).unwrap_or_default();
            let room = before.iter().map(|part| part.iov_len).sum();
            if reaches_beyond(fd, desc, room) {
                return receive_nowhere(fd, desc, flags);
            }
            (before, total.min(room))
        }
        _ => (parts, total),
    };
    // SAFETY: each iovec's buffer is writable, as the caller guarantees.
    let sinks = parts.iter().map(|part| unsafe { Sink::from_raw(part.iov_base.cast(), part.iov_len) });
    receive_parts(fd, desc, flags, total, sinks, ended)
}

/// Whether a receive with room for so many bytes before a part at which nothing can be comes to that part.
#[cold]
fn reaches_beyond(fd: i32, desc: &'static Desc, room: usize) -> bool {
    let Some(pin) = guards::pin(fd, desc).filter(|_| desc.is_lane()) else { return false };
    room == 0 || unread_hint(pin.desc(), pin.desc().side()) as usize > room
}

/// Receives into the sinks one after the other as one call. `ended` is as in [`receive_iovecs`].
#[inline]
fn receive_parts<'a>(
    given: i32,
    desc: &'static Desc,
    flags: i32,
    total: usize,
    sinks: impl Iterator<Item = Sink<'a>>,
    ended: impl FnOnce(&'static Desc),
) -> Outcome {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return zerocopy::take(given, desc).map_or_else(|outcome| outcome, |_| Outcome::OK);
    }
    if flags & libc::MSG_OOB != 0 {
        return urgent::receive(given, desc, flags, sinks).outcome;
    }
    let Some(pin) = guards::pin_for_call(given, desc) else { return left(given, desc, 0) };
    let outcome = if flags & libc::MSG_WAITALL == 0 {
        receive_pinned(given, &pin, flags, total, sinks)
    } else {
        // Another thread that closes the number may find it between two waits: all of it is received, nevertheless.
        pin.while_waiting(|| receive_pinned(given, &pin, flags, total, sinks))
    };
    ended(pin.desc());
    outcome
}

#[inline(always)]
pub(super) fn account(desc: &Desc, side: &SideState, bytes: usize) {
    if bytes == 0 {
        return;
    }
    desc.pace.found_some();
    if let Some(slot) = desc.slot.load(Relaxed) {
        slot.rx_bytes.store(slot.rx_bytes.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
        slot.rx_bells.store(u64::from(side.rx.bells()), Relaxed);
    }
}

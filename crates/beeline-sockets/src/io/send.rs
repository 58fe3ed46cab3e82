//! `send` and its family.

use core::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

use beeline_lane::{Fault, LaneMemory, Source, Writer};

use super::call::{TRANSFER_MAX, first_bogus, lane_and_iovecs, left, moves_nothing, not_a_lane};
use super::faults::fault;
use super::sending::{has_read_all, is_closed, refuse, send_pinned};
use super::zerocopy;
use crate::anchor::Anchor;
use crate::app_memory::{bogus, is_beyond, is_some, readable_bytes};
use crate::bulk::BULK_BYTES;
use crate::desc::Desc;
use crate::ending::{Next, SHUT_BOTH, observe};
use crate::side::{SideState, state};
use crate::table::{self, Place};
use crate::wait::ticks;
use crate::{Outcome, guards, reclaim};

/// A reader that was killed at work, or while it polled, leaves no armed word that would tell. So the kernel is asked
/// now and then while everything seems well: after so many sends, if that took so many ticks since it was asked last.
/// Few sends for those who send seldom, and some milliseconds for those who send much.
const SENDS_PER_LOOK: u32 = 8;
const LOOK_TICKS: u64 = 12_500_000;

/// `send(2)`.
///
/// # Safety
/// `buffer` must be readable for `length` bytes, as for send(2).
pub unsafe fn send(fd: i32, buffer: *const u8, length: usize, flags: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    match unsafe { send_at_once(fd, buffer, length, flags) } {
        // SAFETY: as above.
        0 => unsafe { send_the_long_way(fd, buffer, length, flags) },
        sent => Outcome::Done(sent as isize),
    }
}

/// The usual case of [`send`] without the rest: a small message, a connection in order, room for all of it. Returns its
/// length; 0, with nothing done, when anything is different.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn send_at_once(fd: i32, buffer: *const u8, length: usize, flags: i32) -> usize {
    let Some(place) = Place::of(fd) else { return 0 };
    let Some(desc) = place.desc() else { return 0 };
    let plain = flags & (libc::MSG_OOB | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY) == 0 && length <= SMALL_BYTES;
    // SAFETY: forwarded from the caller.
    let source = unsafe { Source::from_raw(buffer, length) };
    if plain && is_some(buffer as usize, length) { send_small(fd, place, desc, source) } else { 0 }
}

#[inline(always)]
fn send_small(fd: i32, place: Place, desc: &'static Desc, source: Source<'_>) -> usize {
    desc.prefetch_front();
    let Some(guard) = desc.lock_tx_alone() else { return 0 };
    let sent = send_locked(fd, place, desc, source);
    guard.end();
    sent.unwrap_or_else(|failed| rung_in_vain(fd, desc, failed, source.len()))
}

/// All was sent, but for the bell.
struct Unheard {
    failure: Fault,
    /// Which use of the description it was.
    begun: u32,
}

#[inline(always)]
fn send_locked(fd: i32, place: Place, desc: &'static Desc, source: Source<'_>) -> Result<usize, Unheard> {
    let (lane, side) = (desc.lane(), desc.side());
    let writer = Writer::new(lane, desc.end(), &side.tx, &side.rx);
    let sends = desc.pace.sends().wrapping_add(1);
    if !place.leads_to(desc)
        || side.is(state::RESET | state::SHUT_WR | state::PEER_CLOSED | state::OFFERED)
        || side.error.load(Relaxed) != 0
        || look_is_due(desc, sends)
    {
        return Ok(0);
    }
    if !writer.write_small(source, &Anchor(fd)) {
        return write_and_ring(fd, desc, writer, source);
    }
    desc.pace.count_sends(sends);
    account(desc, side, source.len() as u32);
    Ok(source.len())
}

/// What is left of the usual case for a reader that sleeps, as it does on a shared CPU: a look at what it has said
/// before, and its bell. 0, with nothing done, when anything else is different.
#[inline(never)]
#[unsafe(link_section = ".text.served")]
fn write_and_ring(
    fd: i32,
    desc: &'static Desc,
    writer: Writer<'_, LaneMemory>,
    source: Source<'_>,
) -> Result<usize, Unheard> {
    // What is seen of the peer is no older than the word that says that it sleeps.
    fence(Acquire);
    let side = desc.side();
    observe(desc, side);
    let is_read = !side.is(state::RESET | state::PEER_CLOSED)
        && side.error.load(Relaxed) == 0
        && desc.lane().flags(desc.end().peer()) & SHUT_BOTH != SHUT_BOTH;
    let length = source.len() as u32;
    let has_room = || writer.unread().is_ok_and(|unread| unread.saturating_add(length) <= desc.lane().ring_bytes());
    // A ring that is to reach a granule further is accounted for when the lock is given back.
    let is_accounted = || reclaim::is_accounted(desc, writer.would_reach(length));
    if length == 0 || !is_read || !has_room() || !is_accounted() {
        return Ok(0);
    }
    let tail = side.tx.tail();
    let told = writer.write(source, &Anchor(fd));
    let sent = side.tx.tail().wrapping_sub(tail);
    if sent != 0 {
        desc.pace.count_sends(desc.pace.sends().wrapping_add(1));
        account(desc, side, sent);
    }
    match told {
        Err(failure) if sent != 0 => Err(Unheard { failure, begun: desc.begun() }),
        _ => Ok(sent as usize),
    }
}

/// Who does not hear its bell may be gone. Returns the bytes of the send, which were all sent, as the program is told.
#[cold]
fn rung_in_vain(fd: i32, desc: &'static Desc, Unheard { failure, begun }: Unheard, length: usize) -> usize {
    let _held = crate::cancel::hold();
    let pin = desc.pin();
    let number = pin.fd(fd);
    // Where it was closed since, or is another connection, nobody asks any more.
    let is_it = table::leads_to(number, desc) && desc.begun() == begun && desc.is_lane();
    if is_it
        && fault(number, desc, failure, length as u32) == Next::Again
        && is_closed(desc, failure)
        && !has_read_all(desc)
    {
        refuse(number, desc);
    }
    length
}

/// `write(2)`: as [`send`] without flags, but for a length that nobody can have meant.
///
/// # Safety
/// As for [`send`].
pub unsafe fn write(fd: i32, buffer: *const u8, length: usize) -> Outcome {
    // SAFETY: forwarded from the caller.
    match unsafe { send_at_once(fd, buffer, length, 0) } {
        // SAFETY: as above.
        0 => unsafe { write_the_long_way(fd, buffer, length) },
        sent => Outcome::Done(sent as isize),
    }
}

/// [`write`] where [`send_at_once`] did nothing.
///
/// # Safety
/// As for [`send`].
#[inline]
pub unsafe fn write_the_long_way(fd: i32, buffer: *const u8, length: usize) -> Outcome {
    // vfs_write() looks at the length before it cuts it to what one call moves.
    if is_beyond(buffer as usize, length) && table::get(fd).is_some_and(Desc::is_lane) {
        return Outcome::fail(libc::EFAULT);
    }
    // SAFETY: forwarded from the caller.
    unsafe { send_the_long_way(fd, buffer, length, 0) }
}

/// [`send`] where [`send_at_once`] did nothing.
///
/// # Safety
/// As for [`send`].
#[inline(never)]
#[unsafe(link_section = ".text.served")]
pub unsafe fn send_the_long_way(fd: i32, buffer: *const u8, length: usize, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    let is_nonsense = is_beyond(buffer as usize, length);
    let mut length = length.min(TRANSFER_MAX);
    if is_nonsense && !is_beyond(buffer as usize, length) {
        // TCP takes what there is.
        length = readable_bytes(buffer as usize, length);
        if length == 0 {
            return send_nothing(fd, desc, flags);
        }
    }
    if bogus(buffer as usize, length) {
        return send_nothing(fd, desc, flags);
    }
    // SAFETY: forwarded from the caller.
    let source = unsafe { Source::from_raw(buffer, length) };
    send_parts(fd, desc, flags, length, core::iter::once(source))
}

/// A send from an address that cannot be the app's: as in the kernel, what is wrong with the connection comes first.
#[cold]
fn send_nothing(fd: i32, desc: &'static Desc, flags: i32) -> Outcome {
    match send_parts(fd, desc, flags, 0, core::iter::empty()) {
        Outcome::Done(_) => Outcome::fail(libc::EFAULT),
        other => other,
    }
}

/// Largest message for [`send_small`].
const SMALL_BYTES: usize = 4096;
/// Largest message that is put together from parts: it stands on the app's stack, which may be that of a signal
/// handler.
const GATHERED_BYTES: usize = 1024;

/// `sendto(2)`: a connected stream ignores the address.
///
/// # Safety
/// As for [`send`].
pub unsafe fn sendto(
    fd: i32,
    buffer: *const u8,
    length: usize,
    flags: i32,
    _address: *const libc::sockaddr,
    _address_length: u32,
) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { send(fd, buffer, length, flags) }
}

/// `writev(2)`.
///
/// # Safety
/// `parts` must point to `count` iovecs whose buffers are readable, as for writev(2).
pub unsafe fn writev(fd: i32, parts: *const libc::iovec, count: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    if unsafe { moves_nothing(fd, parts, count) } {
        return Outcome::OK;
    }
    // SAFETY: forwarded from the caller.
    unsafe { send_iovecs(fd, parts, count as usize, 0) }
}

/// # Safety
/// As for [`writev`].
pub(super) unsafe fn send_iovecs(fd: i32, parts: *const libc::iovec, count: usize, flags: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    let (desc, parts, total) = match unsafe { lane_and_iovecs(fd, parts, count) } {
        Ok(checked) => checked,
        Err(outcome) => return outcome,
    };
    let (parts, total) = match first_bogus(parts, bogus) {
        Some(bad) => match sent_before(parts, bad, total) {
            (_, 0) => return send_nothing(fd, desc, flags),
            before => before,
        },
        None => (parts, total),
    };
    if let [whole] = parts {
        // SAFETY: forwarded from the caller; the part has been checked.
        return unsafe { send(fd, whole.iov_base.cast(), whole.iov_len.min(total), flags) };
    }
    if parts.len() > 1 && total <= GATHERED_BYTES {
        // SAFETY: forwarded from the caller; the parts have been checked.
        return unsafe { send_gathered(fd, parts, flags) };
    }
    // SAFETY: each iovec's buffer is readable, as the caller guarantees.
    let sources = parts.iter().map(|part| unsafe { Source::from_raw(part.iov_base.cast(), part.iov_len) });
    send_parts(fd, desc, flags, total, sources)
}

/// What TCP sends of a call whose part `bad` is at an address that cannot be the app's: it copies whole pieces, and
/// drops that in which it comes to such an address (`tcp_sendmsg_locked`, Linux net/ipv4/tcp.c).
#[cold]
fn sent_before(parts: &[libc::iovec], bad: usize, total: usize) -> (&[libc::iovec], usize) {
    /// Of the memory from which the kernel takes them (`SKB_FRAG_PAGE_ORDER`, net/core/sock.c).
    const PIECE_BYTES: usize = 32 * 1024;
    let before = parts.get(..bad).unwrap_or_default();
    let room = before.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len));
    // What is beyond the most that one call moves is not looked at.
    if room >= total { (before, total) } else { (before, room - room % PIECE_BYTES) }
}

/// Sends small parts as one message: a reader sees all of them or none, as it does of what TCP puts into one segment.
/// That is cheaper, too, than to announce each.
///
/// # Safety
/// Each part must be readable, and all together have [`GATHERED_BYTES`] at most.
#[inline(never)]
unsafe fn send_gathered(fd: i32, parts: &[libc::iovec], flags: i32) -> Outcome {
    let mut whole = [core::mem::MaybeUninit::<u8>::uninit(); GATHERED_BYTES];
    let mut length = 0_usize;
    for part in parts {
        let Some(place) = whole.get_mut(length..length.saturating_add(part.iov_len)) else { break };
        // SAFETY: as many bytes as are readable, as the caller guarantees; the array is ours.
        unsafe { core::ptr::copy_nonoverlapping(part.iov_base.cast(), place.as_mut_ptr(), place.len()) };
        length += place.len();
    }
    // SAFETY: so many bytes have just been written.
    unsafe { send(fd, whole.as_ptr().cast(), length, flags) }
}

/// Sends the sources one after the other as one call.
#[inline]
fn send_parts<'a>(
    given: i32,
    desc: &'static Desc,
    flags: i32,
    total: usize,
    sources: impl Iterator<Item = Source<'a>>,
) -> Outcome {
    if flags & libc::MSG_FASTOPEN != 0 {
        return Outcome::fail(libc::EISCONN);
    }
    let Some(pin) = guards::pin_for_call(given, desc) else { return left(given, desc, 0) };
    if flags & libc::MSG_ZEROCOPY != 0 && zerocopy::tells(pin.desc()) {
        let outcome = pin.while_waiting(|| send_pinned(given, &pin, flags, total, sources));
        zerocopy::sent(&pin, given, &outcome);
        return outcome;
    }
    if total < BULK_BYTES {
        return send_pinned(given, &pin, flags, total, sources);
    }
    // Another thread that closes the number may find it between two waits: all of it is sent, nevertheless.
    pin.while_waiting(|| send_pinned(given, &pin, flags, total, sources))
}

#[inline(always)]
pub(super) fn account(desc: &Desc, side: &SideState, bytes: u32) {
    if let Some(slot) = desc.slot.load(Relaxed) {
        slot.tx_bytes.store(slot.tx_bytes.load(Relaxed).wrapping_add(u64::from(bytes)), Relaxed);
        slot.tx_bells.store(u64::from(side.tx.bells()), Relaxed);
    }
}

#[inline]
pub(super) fn look_is_due(desc: &Desc, sends: u32) -> bool {
    sends.is_multiple_of(SENDS_PER_LOOK) && ticks().wrapping_sub(desc.pace.looked_by_sends()) > LOOK_TICKS
}

//! `send` and its family.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Fault, Source, Writer};

use super::blocking::{HeldUp, Waited, wait_writable};
use super::bulk::BULK_BYTES;
use super::dead::{broken, is_deaf, sent_to_the_deaf};
use super::quiet::{Parts, Quiet};
use super::{Anchor, Next, fault, kernel_said, observe, reset, urgent, writable_hint};
use crate::app_memory::{bogus, is_some};
use crate::desc::{Desc, Kind, Pin, TxGuard, Unlocked};
use crate::lock::shared::Wait;
use crate::side::{SideState, state};
use crate::table::{self, Place};
use crate::wait::{Patience, ticks};
use crate::{Outcome, kernel, reclaim};

/// A reader that was killed at work, or while it polled, leaves no armed word that would tell. So the kernel is asked now
/// and then while everything seems well: after so many sends, if that took so many ticks since it was asked last. Few
/// sends for those who send seldom, and some milliseconds for those who send much.
const SENDS_PER_GLANCE: u32 = 8;
const LOOK_TICKS: u64 = 12_500_000;

/// `send(2)`, and `write(2)` with `flags` 0.
///
/// # Safety
/// `buffer` must be readable for `length` bytes, as for send(2).
pub unsafe fn send(fd: i32, buffer: *const u8, length: usize, flags: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    match unsafe { send_at_once(fd, buffer, length, flags) } {
        // SAFETY: as above.
        0 => unsafe { send_in_full(fd, buffer, length, flags) },
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
    let plain = flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) == 0 && length <= SMALL_BYTES;
    // SAFETY: forwarded from the caller.
    let source = unsafe { Source::from_raw(buffer, length) };
    if plain && is_some(buffer as usize, length) && send_small(fd, place, desc, source) { length } else { 0 }
}

#[inline(always)]
fn send_small(fd: i32, place: Place, desc: &'static Desc, source: Source<'_>) -> bool {
    desc.prefetch_front();
    let Some(guard) = desc.lock_tx_alone() else { return false };
    let sent = send_locked(fd, place, desc, source);
    guard.end();
    sent
}

#[inline(always)]
fn send_locked(fd: i32, place: Place, desc: &'static Desc, source: Source<'_>) -> bool {
    let (lane, side) = (desc.lane(), desc.side());
    let writer = Writer::new(lane, desc.end(), &side.tx, &side.rx);
    let sends = desc.sends.load(Relaxed).wrapping_add(1);
    let length = source.len();
    if !place.leads_to(desc)
        || side.is(state::RESET | state::SHUT_WR | state::PEER_CLOSED | state::OFFERED)
        || side.error.load(Relaxed) != 0
        || look_is_due(desc, sends)
        || !writer.write_small(source, &Anchor(fd))
    {
        return false;
    }
    desc.sends.store(sends, Relaxed);
    account(desc, side, length as u32);
    true
}

/// [`send`] where [`send_at_once`] did nothing.
///
/// # Safety
/// As for [`send`].
#[inline(never)]
pub unsafe fn send_in_full(fd: i32, buffer: *const u8, length: usize, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    let length = length.min(TRANSFER_MAX);
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

/// The most that one call moves, as in the kernel (`MAX_RW_COUNT`, read(2)).
pub(super) const TRANSFER_MAX: usize = 0x7FFF_F000;

/// The most that a send to a peer that is gone takes, as in the kernel: after sixteen parts of 32 KiB it looks at what has
/// come meanwhile (`sk_flush_backlog` in tcp_sendmsg_locked()), and that is the reset.
const LOST_MAX: usize = 16 * 32 * 1024;

/// Largest message for [`send_small`].
const SMALL_BYTES: usize = 4096;
/// Largest message that is put together from parts: it stands on the app's stack, which may be that of a signal handler.
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
    // SAFETY: by the caller's word; nonsense is refused.
    if table::get(fd).is_some_and(Desc::is_lane) && matches!(unsafe { check_iovecs(parts, count as usize) }, Ok((_, 0)))
    {
        return Outcome::OK;
    }
    // SAFETY: forwarded from the caller.
    unsafe { send_iovecs(fd, parts, count as usize, 0) }
}

/// # Safety
/// As for [`writev`].
pub(super) unsafe fn send_iovecs(fd: i32, parts: *const libc::iovec, count: usize, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    // SAFETY: by the caller's word; `check_iovecs` refuses nonsense.
    let (parts, total) = match unsafe { check_iovecs(parts, count) } {
        Ok(checked) => checked,
        Err(outcome) => return outcome,
    };
    if parts.len() > 1 && total <= GATHERED_BYTES {
        // SAFETY: forwarded from the caller; the parts have been checked.
        return unsafe { send_gathered(fd, parts, flags) };
    }
    // SAFETY: each iovec's buffer is readable by the caller's word.
    let sources = parts.iter().map(|part| unsafe { Source::from_raw(part.iov_base.cast(), part.iov_len) });
    send_parts(fd, desc, flags, total, sources)
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
        // SAFETY: as many bytes as are readable by the caller's word; the array is ours.
        unsafe { core::ptr::copy_nonoverlapping(part.iov_base.cast(), place.as_mut_ptr(), place.len()) };
        length += place.len();
    }
    // SAFETY: so many bytes have just been written.
    unsafe { send(fd, whole.as_ptr().cast(), length, flags) }
}

/// Checks an iovec array as the kernel does: `EINVAL` for a count beyond `IOV_MAX` or lengths beyond `SSIZE_MAX`,
/// `EFAULT` for addresses that cannot be an app's.
///
/// # Safety
/// `parts` must point to `count` iovecs unless it is nonsense.
pub(super) unsafe fn check_iovecs<'a>(
    parts: *const libc::iovec,
    count: usize,
) -> Result<(&'a [libc::iovec], usize), Outcome> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(Outcome::fail(libc::EINVAL));
    }
    if count == 0 {
        return Ok((&[], 0));
    }
    if bogus(parts as usize, 1) {
        return Err(Outcome::fail(libc::EFAULT));
    }
    // SAFETY: by the caller's word.
    let parts = unsafe { core::slice::from_raw_parts(parts, count) };
    let mut total = 0usize;
    for part in parts {
        if part.iov_len > isize::MAX as usize {
            return Err(Outcome::fail(libc::EINVAL));
        }
        total = total.saturating_add(part.iov_len).min(TRANSFER_MAX);
        if bogus(part.iov_base as usize, part.iov_len) {
            return Err(Outcome::fail(libc::EFAULT));
        }
    }
    Ok((parts, total))
}

/// # Safety
/// `message` must be valid unless it is nonsense.
pub(super) unsafe fn sane<'a, T>(message: *const T) -> Option<&'a T> {
    if bogus(message as usize, 1) {
        return None;
    }
    // SAFETY: by the caller's word.
    unsafe { message.as_ref() }
}

#[cold]
pub(super) fn not_a_lane(desc: &Desc) -> Outcome {
    if desc.kind() == Kind::Orphan { Outcome::Fail(crate::life::orphan_used(desc)) } else { Outcome::Kernel }
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
    let Some(pin) = table::pin(given, desc) else { return left(given, desc, 0) };
    if total < BULK_BYTES {
        return send_pinned(given, &pin, flags, total, sources);
    }
    // Another thread that closes the number may find it between two waits: all of it is sent, nevertheless.
    pin.while_waiting(|| send_pinned(given, &pin, flags, total, sources))
}

#[inline]
fn send_pinned<'a>(
    given: i32,
    pin: &Pin,
    flags: i32,
    total: usize,
    sources: impl Iterator<Item = Source<'a>>,
) -> Outcome {
    let desc = pin.desc();
    if desc.is_lane() && desc.side().is(state::OFFERED) {
        crate::meet::look_after_offers();
    }
    let mut parts = Parts { present: Source::from(&[][..]), rest: sources, total, sent: 0 };
    let mut patience: Option<Patience> = None;
    let mut wait = Wait::default();
    let bulk = (total >= BULK_BYTES).then(|| (ticks(), desc.bulk.goes_around()));
    let around = bulk.is_some_and(|(_, around)| around);
    let urgently = flags & libc::MSG_OOB != 0;
    loop {
        let mut held_up = HeldUp::default();
        let mut may_nap = |naps| {
            let (side, patience) = (desc.side(), &mut patience);
            let patience = patience.get_or_insert_with(|| Patience::timeout(side.snd_timeout_ns.load(Relaxed)));
            held_up.goes_on(patience, flags & libc::MSG_DONTWAIT != 0 || side.nonblock.load(Relaxed) != 0, naps)
        };
        let guard = if urgently { desc.await_tx(&mut may_nap) } else { desc.tx_here().ok_or(Unlocked::Gone) };
        let mut guard = match guard {
            Ok(guard) => guard,
            Err(Unlocked::Gone) => return left(given, desc, parts.sent),
            Err(Unlocked::Busy(_)) => return held_up.outcome(parts.sent),
        };
        let fd = pin.fd(given);
        let anchor = Anchor(fd);
        let side = guard.side;
        observe(desc, side);
        if side.is(state::RESET | state::SHUT_WR) || side.error.load(Relaxed) != 0 {
            drop(guard);
            return broken(side, parts.sent, flags);
        }
        if total != 0 && is_deaf(&guard) {
            return sent_to_the_deaf(fd, guard, parts.sent.max(total.min(LOST_MAX)));
        }
        let (before, tail) = (parts.sent, side.tx.tail());
        let shares = guard.shares();
        let mut failed = if shares && !urgently {
            match parts.write(&guard) {
                Quiet::Written(written) => {
                    wait = Wait::default();
                    written.err()
                }
                Quiet::Changed if side.is(state::RELAYED) => {
                    drop(guard);
                    return left(given, desc, parts.sent);
                }
                Quiet::Changed => continue,
                Quiet::Busy => {
                    drop(guard);
                    if !may_nap(wait.naps()) {
                        return held_up.outcome(parts.sent);
                    }
                    pin.while_waiting(|| side.tx_lock.nap(&mut wait));
                    continue;
                }
            }
        } else {
            let writer = guard.writer().around_caches(around);
            parts.write_all(|part, is_last| match urgently && is_last {
                true => writer.write_urgent(part, &anchor, || urgent::announce(fd, &guard)),
                false => writer.write(part, &anchor),
            })
        };
        let mut sent = parts.sent;
        let quietly = shares && !urgently;
        let published = if quietly { (sent - before) as u32 } else { side.tx.tail().wrapping_sub(tail) };
        account(desc, side, published);
        if shares {
            // From here on it is system calls, and looks that need no lock.
            guard.let_others_in();
            if published != 0 && failed.is_none() {
                failed = guard.writer().tell_reader(&anchor).err();
            }
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || side.nonblock.load(Relaxed) != 0;
        if let Some(failure) = failed {
            drop(guard);
            // `write` could not say what it had published before it failed; the tail can.
            sent = before + published as usize;
            parts.sent = sent;
            match after_fault(fd, desc, failure, published, sent, total) {
                Some(Outcome::Kernel) => return left(given, desc, 0),
                Some(outcome) => return outcome,
                None => continue,
            }
        }
        if sent == total {
            let look = counted_for_look(desc);
            let reach = side.tx.reach();
            drop(guard);
            reclaim::account(desc, reach);
            if let Some((began, _)) = bulk {
                desc.bulk.sent(sent, ticks().wrapping_sub(began));
            }
            if look {
                crate::meet::end_if_cut(desc);
                let revents = kernel::poll_now(fd, 0);
                if revents != 0 && table::leads_to(fd, desc) {
                    kernel_said(fd, desc, revents);
                }
            }
            return Outcome::Done(sent as isize);
        }
        if nonblocking {
            if let Some((began, _)) = bulk.filter(|_| sent >= BULK_BYTES) {
                desc.bulk.sent(sent, ticks().wrapping_sub(began));
            }
            match full(fd, desc, guard, sent) {
                Some(outcome) => return outcome,
                None => continue,
            }
        }
        let timeout = side.snd_timeout_ns.load(Relaxed);
        drop(guard);
        let patience = patience.get_or_insert_with(|| Patience::timeout(timeout));
        match wait_writable(given, pin, patience) {
            Waited::Again => {}
            Waited::Kernel => return left(given, desc, sent),
            Waited::Stop(_) if sent != 0 => return Outcome::Done(sent as isize),
            Waited::Stop(outcome) => return outcome,
        }
    }
}

/// A non-blocking send that found no room for all: what it returns, or that it goes on.
#[cold]
pub(super) fn full(fd: i32, desc: &'static Desc, mut guard: TxGuard, sent: usize) -> Option<Outcome> {
    desc.note_full();
    if desc.entries.load(Relaxed) != 0 {
        // A wait of ours will look after it.
        drop(guard);
        crate::epoll::stir(fd, desc);
    } else if sent == 0 {
        // Whoever watches the anchor through the kernel now must see it full.
        let armed = guard.arm(&Anchor(fd));
        drop(guard);
        match armed {
            Ok(Armed::Ready) if writable_hint(desc, desc.side()) => return None,
            Ok(_) => {}
            Err(failure) => {
                fault(fd, desc, failure, 0);
                return None;
            }
        }
    }
    Some(if sent != 0 { Outcome::Done(sent as isize) } else { Outcome::fail(libc::EAGAIN) })
}

/// After a fault in `write`: decides what the call returns, or that it goes on. `sent` bytes of the call are in
/// the ring, `published` of them since the lock was taken.
#[cold]
fn after_fault(
    fd: i32,
    desc: &'static Desc,
    failure: Fault,
    published: u32,
    sent: usize,
    total: usize,
) -> Option<Outcome> {
    if fault(fd, desc, failure, published) == Next::Kernel {
        return Some(left(fd, desc, sent));
    }
    let side = desc.side();
    if failure == Fault::Gone && !side.is(state::RESET) {
        // TCP takes the first send after the peer's close, and is reset for it.
        reset(side, libc::ECONNRESET);
        return Some(Outcome::Done(sent.max(total.min(LOST_MAX)) as isize));
    }
    None
}

/// The fd no longer leads to the lane for which the call began, of which `done` bytes were moved: started over on TCP,
/// or closed by another thread. Then the number may be that of anything, which this call has nothing to do with.
#[cold]
pub(super) fn left(fd: i32, desc: &'static Desc, done: usize) -> Outcome {
    match done {
        0 if table::leads_to(fd, desc) => Outcome::Kernel,
        0 => Outcome::fail(libc::EBADF),
        _ => Outcome::Done(done as isize),
    }
}

#[inline(always)]
pub(super) fn account(desc: &Desc, side: &SideState, bytes: u32) {
    // SAFETY: null, or a slot of the mapped statistics file, which stays mapped.
    if let Some(slot) = unsafe { desc.slot.load(Relaxed).as_ref() } {
        slot.tx_bytes.store(slot.tx_bytes.load(Relaxed).wrapping_add(u64::from(bytes)), Relaxed);
        slot.tx_bells.store(u64::from(side.tx.bells()), Relaxed);
    }
}

/// Counts a send. Whether the kernel is to be asked after it.
fn counted_for_look(desc: &Desc) -> bool {
    let sends = desc.sends.load(Relaxed).wrapping_add(1);
    desc.sends.store(sends, Relaxed);
    let due = look_is_due(desc, sends);
    if due {
        desc.looked.store(ticks(), Relaxed);
    }
    due
}

#[inline]
fn look_is_due(desc: &Desc, sends: u32) -> bool {
    sends.is_multiple_of(SENDS_PER_GLANCE) && ticks().wrapping_sub(desc.looked.load(Relaxed)) > LOOK_TICKS
}

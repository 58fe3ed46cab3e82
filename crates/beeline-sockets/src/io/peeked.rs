//! What was peeked is what is read, whatever the peer writes over it in the ring meanwhile.
//!
//! 1. Bytes that a peek shows are *held*: copied out of the ring once, into the store behind the side's page, and shown
//!    from that copy. All processes that hold the end have the side, so what one has peeked another reads.
//! 2. What is held are the bytes with the counts from `peeked_from` to `peeked_to`, as far as they are unread; in the
//!    store they begin at its start. `peeked_to` is stored after the bytes, so that a holder that dies in between has
//!    held nothing. All of this happens under the rx lock.
//! 3. The side says that it holds something in a word at which the quick path looks anyway. Then each receive takes the
//!    full path, and takes from the store what the store has. When that is read nothing is held any more.
//! 4. What the store has no room for is not held, as the rings of a connection may be larger, and nothing without
//!    memory for it, or a file (descriptors were short): there a peek shows what is in the ring at that moment.
//! 5. How many bytes are unread is what the ring says, and so is where an urgent byte stands. The peer may change that
//!    as it may send or not.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Bells, Fault, Sink};
use beeline_shm::{STORE_BYTES, SideMemory};

use super::part::with_part;
use crate::desc::RxGuard;
use crate::side::SideState;

/// A store that held more than this is given back when all is read.
const KEPT_BYTES: usize = 4096;

/// Copies unread bytes from `offset` on, as [`beeline_lane::Reader::peek`] does: held ones from the store. Returns how
/// many.
pub(super) fn copy_unread(guard: &RxGuard, offset: usize, bytes: &mut [u8]) -> Result<usize, Fault> {
    let first = first(guard, offset);
    let found = guard.reader().peek(offset, Sink::from(&mut *bytes))?;
    let held = held_at(guard.side, first).min(found);
    if let Some(bytes) = bytes.get_mut(..held).filter(|_| held != 0) {
        load(guard, first, bytes);
    }
    Ok(found)
}

/// Peeks: copies unread bytes from `offset` on into `sink`, and holds them. Returns how many.
#[cold]
pub(super) fn peek(guard: &RxGuard, offset: usize, sink: Sink<'_>) -> Result<usize, Fault> {
    with_part(|part| peek_by(guard, offset, sink, part))
}

fn peek_by(guard: &RxGuard, offset: usize, mut sink: Sink<'_>, part: &mut [u8]) -> Result<usize, Fault> {
    let (mut shown, mut holds) = (0usize, true);
    while !sink.is_empty() {
        let room = part.len().min(sink.len());
        let offset = offset.saturating_add(shown);
        let found = copy_unread(guard, offset, part.get_mut(..room).unwrap_or_default())?;
        let bytes = part.get(..found).unwrap_or_default();
        // What follows on something that is not held cannot be held, either: the store has no gaps.
        holds = holds && hold(guard, first(guard, offset), bytes);
        sink.split_front(found).fill_from(bytes);
        shown = shown.saturating_add(found);
        if found < part.len() {
            break;
        }
    }
    Ok(shown)
}

/// Reads while something is held, as [`beeline_lane::Reader::read`] does.
#[cold]
pub(super) fn read(guard: &RxGuard, sink: Sink<'_>, bells: &impl Bells) -> Result<usize, Fault> {
    with_part(|part| read_by(guard, sink, bells, part))
}

fn read_by(guard: &RxGuard, mut sink: Sink<'_>, bells: &impl Bells, part: &mut [u8]) -> Result<usize, Fault> {
    let (side, mut taken) = (guard.side, 0usize);
    while !sink.is_empty() {
        let head = side.rx.head();
        let held = held_at(side, head);
        let count = if held != 0 {
            let Some((bound, _)) = guard.reader().readable()? else { break };
            let count = held.min(bound as usize).min(sink.len()).min(part.len());
            let bytes = part.get_mut(..count).unwrap_or_default();
            load(guard, head, bytes);
            // A handler of a fault may jump out of the copy: then nothing was read.
            sink.split_front(count).fill_from(bytes);
            guard.reader().skip(count, bells)?;
            count
        } else {
            // What is held may begin later, behind an urgent byte.
            let before = side.peeked_from.load(Relaxed).wrapping_sub(head) as usize;
            let ahead = side.holds_peeked() && before < STORE_BYTES;
            let room = if ahead { before } else { sink.len() };
            guard.reader().read(sink.split_front(room), bells)?
        };
        settle(guard);
        if count == 0 {
            break;
        }
        taken = taken.saturating_add(count);
        if !side.holds_peeked() && held == 0 {
            break;
        }
    }
    Ok(taken)
}

/// Drops up to `count` unread bytes, as [`beeline_lane::Reader::skip`] does.
pub(super) fn skip(guard: &RxGuard, count: usize, bells: &impl Bells) -> Result<usize, Fault> {
    let skipped = guard.reader().skip(count, bells);
    if guard.side.holds_peeked() {
        settle(guard);
    }
    skipped
}

/// The urgent byte with this count was looked at out of turn, or taken: what was shown first holds.
pub(super) fn urgent(side: &SideState, count: u32, peeking: bool, byte: &mut [u8; 1]) {
    const SHOWN: u64 = 1 << 8;
    let shown = side.peeked_urgent.load(Relaxed);
    if shown & SHOWN != 0 && (shown >> 32) as u32 == count {
        *byte = [shown as u8];
    }
    let [now] = *byte;
    side.peeked_urgent.store(if peeking { u64::from(count) << 32 | SHOWN | u64::from(now) } else { 0 }, Relaxed);
}

/// The count of the byte that a peek from `offset` on shows first.
fn first(guard: &RxGuard, offset: usize) -> u32 {
    guard.side.rx.head().wrapping_add(guard.reader().hole()).wrapping_add(offset as u32)
}

/// How many bytes from this one on are held.
fn held_at(side: &SideState, count: u32) -> usize {
    if !side.holds_peeked() {
        return 0;
    }
    let (from, to) = (side.peeked_from.load(Relaxed), side.peeked_to.load(Relaxed));
    let (length, place) = (to.wrapping_sub(from) as usize, count.wrapping_sub(from) as usize);
    // The side may be another's by mistake of a holder, never beyond the store.
    if length > STORE_BYTES { 0 } else { length.saturating_sub(place) }
}

/// Holds `bytes`, which begin with this count. Whether all of them are held.
fn hold(guard: &RxGuard, count: u32, bytes: &[u8]) -> bool {
    let side = guard.side;
    let known = held_at(side, count).min(bytes.len());
    let Some(fresh) = bytes.get(known..).filter(|fresh| !fresh.is_empty()) else { return true };
    let Some(memfd) = guard.desc.side_memfd() else { return false };
    let begins = count.wrapping_add(known as u32);
    if !side.holds_peeked() || side.peeked_to.load(Relaxed) != begins {
        side.peeked_from.store(begins, Relaxed);
        side.peeked_to.store(begins, Relaxed);
    }
    let mut place = begins.wrapping_sub(side.peeked_from.load(Relaxed)) as usize;
    if place.saturating_add(fresh.len()) > STORE_BYTES {
        move_up(guard, memfd);
        place = begins.wrapping_sub(side.peeked_from.load(Relaxed)) as usize;
    }
    let length = fresh.len().min(STORE_BYTES.saturating_sub(place));
    if length == 0 || !SideMemory::store(memfd, place, fresh.get(..length).unwrap_or_default()) {
        return false;
    }
    side.peeked_to.store(begins.wrapping_add(length as u32), Relaxed);
    side.hold_peeked(true);
    length == fresh.len()
}

/// Makes room in the store: what is held and unread moves to its start.
fn move_up(guard: &RxGuard, memfd: i32) {
    with_part(|part| move_up_by(guard, memfd, part));
}

fn move_up_by(guard: &RxGuard, memfd: i32, part: &mut [u8]) {
    let side = guard.side;
    let (from, to, head) = (side.peeked_from.load(Relaxed), side.peeked_to.load(Relaxed), side.rx.head());
    let read = head.wrapping_sub(from) as usize;
    let length = to.wrapping_sub(head) as usize;
    // Only into room that is free already: a holder that dies in between leaves all in its place.
    if read < length || length > STORE_BYTES {
        return;
    }
    let mut moved = 0;
    while moved < length {
        let bytes = part.split_at_mut(part.len().min(length - moved)).0;
        if !SideMemory::load(memfd, read.saturating_add(moved), bytes) || !SideMemory::store(memfd, moved, bytes) {
            return;
        }
        moved = moved.saturating_add(bytes.len());
    }
    side.peeked_from.store(head, Relaxed);
}

/// Fills `bytes` with held ones from this count on.
fn load(guard: &RxGuard, count: u32, bytes: &mut [u8]) {
    let place = count.wrapping_sub(guard.side.peeked_from.load(Relaxed)) as usize;
    let loaded = guard.desc.side_memfd().is_some_and(|memfd| SideMemory::load(memfd, place, bytes));
    // What cannot be had any more is not replaced by what the peer likes.
    if !loaded {
        bytes.fill(0);
    }
}

/// Whether what was held is read; then nothing is held any more.
fn settle(guard: &RxGuard) {
    let side = guard.side;
    let (from, to) = (side.peeked_from.load(Relaxed), side.peeked_to.load(Relaxed));
    let left = to.wrapping_sub(side.rx.head()) as usize;
    if left == 0 || left > STORE_BYTES.saturating_mul(2) {
        side.hold_peeked(false);
        if to.wrapping_sub(from) as usize > KEPT_BYTES
            && let Some(memfd) = guard.desc.side_memfd()
        {
            SideMemory::discard_store(memfd);
        }
    }
}

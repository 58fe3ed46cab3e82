//! A message that its sender lends, and its receiver fetches (`beeline-descriptors`, `loans`; the rules are those of
//! `beeline_lane::loan`).
//!
//! The sender waits with its lock held, spinning, as it would copy. How long is bounded at each step, and a handler of
//! signals that comes meanwhile runs after that.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_lane::loan::{self, State};
use beeline_lane::{Sink, Source, flags as lane_flags};
use beeline_shm::Lent;
use beeline_stats::Counter;

use crate::desc::{Pin, RxGuard, TxGuard};
use crate::loans::{LENT_BYTES_MIN, Way};
use crate::stats;
use crate::wait::ticks;

/// The most that is lent at a time: some 100 us of copying, during which a receiver cannot be interrupted.
const LENT_BYTES_MAX: usize = 1024 * 1024;
/// Ticks that a sender waits for its receiver to come back, some 4 us; for one that has still something to read, 1 ms;
/// for one that waits to take what is lent, 20 us; and for it to fetch that, 4 ms. It was slow if it took 1 ms.
const BACK_TICKS: u64 = 10_000;
const READ_TICKS: u64 = 2_500_000;
const TAKE_TICKS: u64 = 50_000;
const FETCH_TICKS: u64 = 10_000_000;
const SLOW_TICKS: u64 = 2_500_000;

/// How a long message is sent, to a receiver that is on this CPU or not.
pub(super) fn of(pin: &Pin, is_near: bool, flags: i32) -> Option<Way> {
    let desc = pin.desc();
    if is_near || flags & libc::MSG_OOB != 0 || !desc.side().may_block(flags) {
        return None;
    }
    Some(desc.lends()).filter(|way| way.is_timed || way.least_bytes.is_some())
}

/// Lends the front of `source` to a receiver that waits for it. How many bytes it has fetched; 0 if the ring is to
/// carry them.
#[cold]
pub(super) fn lend(guard: &TxGuard, source: Source<'_>) -> usize {
    let began = ticks();
    let fetched = await_receiver(guard).map_or(0, |room| lend_to(guard, source, room));
    guard.desc.loans.lent(fetched != 0 && ticks().wrapping_sub(began) < SLOW_TICKS);
    fetched
}

/// Waits for the receiver to have read all, and to wait for more. For how much it does.
fn await_receiver(guard: &TxGuard) -> Option<usize> {
    let (lane, peer, tail) = (guard.lane, guard.desc.end().peer(), guard.side.tx.tail());
    let (mut began, mut had_read) = (ticks(), false);
    loop {
        let has_read = lane.head(peer) == tail;
        // The challenge was said before.
        let wanted = lane.wanted(peer).load(Acquire) as usize;
        if has_read && wanted >= LENT_BYTES_MIN {
            return Some(wanted);
        }
        if has_read && !had_read {
            // Now it comes back.
            (began, had_read) = (ticks(), true);
        }
        if ticks().wrapping_sub(began) > if has_read { BACK_TICKS } else { READ_TICKS } {
            return None;
        }
        if lane.flags(peer) & (lane_flags::CLOSED | lane_flags::SHUT_RD) != 0 {
            return None;
        }
        core::hint::spin_loop();
    }
}

fn lend_to(guard: &TxGuard, mut source: Source<'_>, room: usize) -> usize {
    let (lane, end) = (guard.lane, guard.desc.end());
    let front = source.split_front(room.min(LENT_BYTES_MAX));
    // A page that does not come would hold up the receiver, which nothing could interrupt; here it holds up its own.
    front.touch();
    let began = ticks();
    // In no other process the receiver finds this number of its own at this place.
    let proof = AtomicU64::new(lane.challenge(end.peer()).load(Relaxed));
    let proof = core::hint::black_box(&proof);
    lane.set_lent(
        end,
        Lent {
            address: front.pointer().expose_provenance() as u64,
            length: front.len() as u64,
            proof_address: proof.as_ptr().expose_provenance() as u64,
        },
    );
    let loan = loan::lend(lane.loan(end));
    loop {
        let (state, waited) = (loan.state(), ticks().wrapping_sub(began));
        let is_over = match state {
            State::GivenBack => {
                let fetched = lane.fetched(end).load(Acquire) as usize;
                let fetched = if fetched <= front.len() { fetched } else { 0 };
                guard.side.lent.fetch_add(fetched as u64, Relaxed);
                return fetched;
            }
            State::Spoilt => return 0,
            State::Lent => waited > TAKE_TICKS,
            State::Taken => waited > FETCH_TICKS,
        };
        if is_over && loan.call_in(state) {
            return 0;
        }
        core::hint::spin_loop();
    }
}

/// Says how much a receive with so much room would fetch, for as long as `wait` waits for news: one more is then that
/// something is lent. `None` for a receive that would fetch nothing.
pub(super) fn wanting<T>(pin: &Pin, given: i32, room: usize, wait: impl FnOnce(Option<&dyn Fn() -> bool>) -> T) -> T {
    let desc = pin.desc();
    let challenge = if room < LENT_BYTES_MIN { 0 } else { desc.wants(pin.fd(given), room) };
    if challenge == 0 {
        return wait(None);
    }
    let (lane, end) = (desc.lane(), desc.end());
    lane.challenge(end).store(challenge, Relaxed);
    lane.wanted(end).store(u32::try_from(room).unwrap_or(u32::MAX), Release);
    let waited = wait(Some(&|| loan::is_lent(lane.loan(end.peer()))));
    lane.wanted(end).store(0, Relaxed);
    waited
}

/// Fetches into `room` what the peer has lent, if it has. The ring has been read empty. How many bytes that were.
#[inline]
pub(super) fn fetch(guard: &RxGuard, fd: i32, room: &mut Sink<'_>) -> usize {
    let word = guard.lane.loan(guard.desc.end().peer());
    if room.len() < LENT_BYTES_MIN || !loan::is_lent(word) { 0 } else { fetch_lent(guard, fd, room) }
}

#[cold]
fn fetch_lent(guard: &RxGuard, fd: i32, room: &mut Sink<'_>) -> usize {
    let (desc, lane, peer) = (guard.desc, guard.lane, guard.desc.end().peer());
    // A peer may lend what nobody has waited for: that is not looked at.
    let (Some(challenge), Some(lender)) = (desc.loans.take_challenge(), desc.lender(fd)) else { return 0 };
    let Some(taken) = loan::take(lane.loan(peer)) else { return 0 };
    let fetched = beeline_shm::fetch(lender, lane.lent(peer), challenge, room.again().split_front(LENT_BYTES_MAX));
    let count = fetched.unwrap_or(0);
    lane.fetched(peer).store(count as u64, Relaxed);
    if !taken.give_back() {
        // Whatever was found there, the sender has taken it back before.
        return 0;
    }
    match fetched {
        Ok(0) => desc.loans.missed(),
        Ok(_) => {}
        Err(errno) => desc.loans.failed(Some(errno)),
    }
    if count == 0 {
        return 0;
    }
    let _ = room.split_front(count);
    desc.loans.fetched();
    guard.side.fetched.fetch_add(count as u64, Relaxed);
    stats::count(Counter::Fetched, 1);
    count
}

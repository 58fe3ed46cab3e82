//! A description with one of its directions locked, and how it is locked.
//!
//! 1. A direction has an outer lock, this process's, and for an end that processes share an inner one, the side's. The
//!    outer one is taken first and given back last.
//! 2. Who finds the inner one taken gives the outer one back, naps with a pin alone, and begins again. Only who ends a
//!    connection naps with the outer one in hand: *Lock order* of the crate.
//! 3. Who takes it over from a dead holder first brings the direction up to date (`recover`), or poisons the lane.
//! 4. A send may do without the inner one ([`Desc::tx_here`]), and take it only while it copies (`io/quiet.rs` of
//!    beeline-sockets).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_lane::{Armed, Bells, Fault, LaneMemory, Reader, Since, Sleeping, Writer};

use super::{Desc, Pin};
use crate::anchor::{Anchor, Hasty};
use crate::ending;
use crate::lock::shared::{SharedGuard, SharedLock, Wait};
use crate::lock::{Guard, Taken};
use crate::side::{SideState, state};
use crate::untaken;

/// Why a direction was not locked.
pub enum Unlocked {
    /// It is not a lane, or not ours any more.
    Gone,
    /// Another process has it. The side stays where it is for as long as the pin lives.
    Busy(Pin),
}

/// A description with its writing direction locked.
pub struct TxGuard {
    /// The description.
    pub desc: &'static Desc,
    /// The lane's memory.
    pub lane: LaneMemory,
    /// The side.
    pub side: &'static SideState,
    /// Whether other processes may hold this end.
    shares: bool,
    // Given back in this order.
    inner: Option<SharedGuard<'static>>,
    _outer: Guard<'static>,
}

/// A description with its reading direction locked.
pub struct RxGuard {
    /// The description.
    pub desc: &'static Desc,
    /// The lane's memory.
    pub lane: LaneMemory,
    /// The side.
    pub side: &'static SideState,
    // Given back in this order.
    inner: Option<SharedGuard<'static>>,
    _outer: Guard<'static>,
}

/// Whether the last holder died with it.
#[inline]
fn inherits(inner: Option<&SharedGuard<'static>>) -> bool {
    inner.is_some_and(|inner| inner.taken == Taken::Inherited)
}

#[cold]
fn settle(inner: Option<&mut SharedGuard<'static>>) {
    if let Some(inner) = inner {
        inner.taken.settle();
    }
}

impl Desc {
    /// Locks the writing direction. `None` if this is not a lane, or not ours any more: then the process follows
    /// ([`crate::follow`]) before the kernel gets the call.
    #[inline]
    pub fn lock_tx(&'static self) -> Option<TxGuard> {
        self.await_tx(|_| true).ok()
    }

    /// As [`Desc::lock_tx`]. While another process has the direction, the caller naps with no lock held, and is asked
    /// before each nap whether it goes on, with the number of those before.
    ///
    /// # Errors
    /// [`Unlocked`].
    #[inline]
    pub fn await_tx(&'static self, mut goes_on: impl FnMut(u32) -> bool) -> Result<TxGuard, Unlocked> {
        let mut wait = Wait::default();
        loop {
            match self.try_tx() {
                Err(Unlocked::Busy(pin)) if goes_on(wait.naps()) => {
                    pin.while_waiting(|| self.side().tx_lock.nap(&mut wait));
                }
                result => return result,
            }
        }
    }

    /// Locks the writing direction, unless another process has it for longer than a moment.
    ///
    /// # Errors
    /// [`Unlocked`].
    #[inline]
    fn try_tx(&'static self) -> Result<TxGuard, Unlocked> {
        let outer = self.tx_lock.lock();
        if !self.is_lane() {
            return Err(Unlocked::Gone);
        }
        let (lane, side) = (self.lane(), self.side());
        let inner = if self.shared.load(Relaxed) { Some(self.try_shared(side, &side.tx_lock)?) } else { None };
        let mut guard = TxGuard { desc: self, lane, side, shares: inner.is_some(), _outer: outer, inner };
        if inherits(guard.inner.as_ref()) {
            match guard.writer().recover() {
                Ok(()) => settle(guard.inner.as_mut()),
                Err(_) => ending::poison_locked(self, beeline_stats::Poison::HeadBeyondTail),
            }
        }
        Ok(guard)
    }

    /// As [`Desc::try_tx`], without the other processes that may hold the end: for sends that keep those
    /// out only while they copy.
    #[inline]
    pub fn tx_here(&'static self) -> Option<TxGuard> {
        let outer = self.tx_lock.lock();
        let shares = self.shared.load(Relaxed);
        self.is_lane().then(|| TxGuard {
            desc: self,
            lane: self.lane(),
            side: self.side(),
            shares,
            _outer: outer,
            inner: None,
        })
    }

    /// Locks the writing direction of a lane that no other process shares: what most sends need, without a
    /// [`TxGuard`] to carry about. `None` if this is anything else.
    #[inline(always)]
    pub fn lock_tx_alone(&self) -> Option<Guard<'_>> {
        let guard = self.tx_lock.lock();
        (self.is_lane() && !self.shared.load(Relaxed)).then_some(guard)
    }

    /// As [`Desc::lock_tx_alone`], for the reading direction.
    #[inline(always)]
    pub fn lock_rx_alone(&self) -> Option<Guard<'_>> {
        let guard = self.rx_lock.lock();
        (self.is_lane() && !self.shared.load(Relaxed)).then_some(guard)
    }

    /// As [`Desc::lock_tx`], for the reading direction.
    #[inline]
    pub fn lock_rx(&'static self) -> Option<RxGuard> {
        self.await_rx(|_| true).ok()
    }

    /// As [`Desc::await_tx`], for the reading direction.
    ///
    /// # Errors
    /// [`Unlocked`].
    #[inline]
    pub fn await_rx(&'static self, mut goes_on: impl FnMut(u32) -> bool) -> Result<RxGuard, Unlocked> {
        let mut wait = Wait::default();
        loop {
            match self.try_rx() {
                Err(Unlocked::Busy(pin)) if goes_on(wait.naps()) => {
                    pin.while_waiting(|| self.side().rx_lock.nap(&mut wait));
                }
                result => return result,
            }
        }
    }

    /// As [`Desc::try_tx`], for the reading direction.
    ///
    /// # Errors
    /// [`Unlocked`].
    #[inline]
    pub fn try_rx(&'static self) -> Result<RxGuard, Unlocked> {
        let outer = self.rx_lock.lock();
        if !self.is_lane() {
            return Err(Unlocked::Gone);
        }
        let (lane, side) = (self.lane(), self.side());
        let inner = if self.shared.load(Relaxed) { Some(self.try_shared(side, &side.rx_lock)?) } else { None };
        let mut guard = RxGuard { desc: self, lane, side, _outer: outer, inner };
        if inherits(guard.inner.as_ref()) {
            match guard.reader().recover(&Anchor(self.fd.load(Relaxed))) {
                Ok(()) => settle(guard.inner.as_mut()),
                Err(_) => ending::poison_locked(self, beeline_stats::Poison::CursorBeyondRing),
            }
        }
        Ok(guard)
    }

    /// Locks both directions; waits for neither with the other one locked, and for so many naps at most in all while
    /// another process has one of them.
    pub fn lock_tx_and_rx_within(&'static self, naps: u32) -> Option<(TxGuard, RxGuard)> {
        let (mut wait, mut left) = (Wait::default(), naps);
        let mut goes_on = || {
            let more = left.checked_sub(1);
            left = more.unwrap_or(0);
            more.is_some()
        };
        loop {
            let tx = self.await_tx(|_| goes_on()).ok()?;
            match self.try_rx() {
                Ok(rx) => return Some((tx, rx)),
                Err(Unlocked::Busy(pin)) if goes_on() => {
                    drop(tx);
                    pin.while_waiting(|| self.side().rx_lock.nap(&mut wait));
                }
                Err(_) => return None,
            }
        }
    }

    /// Takes a lock of the side, for an end that processes share. When the others have given it up, which is
    /// the last thing they do with a side, this was the last time.
    #[cold]
    fn try_shared(
        &'static self,
        side: &'static SideState,
        lock: &'static SharedLock,
    ) -> Result<SharedGuard<'static>, Unlocked> {
        let guard = lock.try_lock().ok_or_else(|| Unlocked::Busy(self.pin()))?;
        if side.is(state::RELAYED) {
            // One of the others has demoted it.
            return Err(Unlocked::Gone);
        }
        if side.holders.load(Acquire) == 1 {
            self.shared.store(false, Relaxed);
            if side.is(state::CROWDED) {
                // All the others have closed it, listed or not.
                side.state.fetch_and(!state::CROWDED, Relaxed);
            }
        }
        Ok(guard)
    }

    /// Waits until no operation of this process is inside, and keeps others out: for `fork` and close.
    pub fn lock_both(&'static self) -> (Guard<'static>, Guard<'static>) {
        (self.tx_lock.lock(), self.rx_lock.lock())
    }
}

impl TxGuard {
    /// Lets other processes in: what this one still does is kept apart from its own threads alone, and from whatever
    /// changes where its fds lead.
    pub fn let_others_in(&mut self) {
        self.inner = None;
    }

    /// Prepares to sleep until there is room. An end that processes share is let go of before, and armed by one of them
    /// at a time.
    ///
    /// While one is stopped at it, the others sleep as if they had armed. It has left the anchor either plugged and the
    /// word armed, so that they are woken, or not plugged, so that they find it writable and look again.
    ///
    /// Without memory for the bells nothing is armed: the caller looks again, a moment later, as long as it has the
    /// time.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    #[cold]
    pub fn arm(&mut self, anchor: &Anchor) -> Result<Armed, Fault> {
        const NAPS: u32 = 4;
        let bells = Hasty::new(*anchor);
        self.let_others_in();
        let held_back = untaken::held_back(self.desc, self.side);
        let held = if self.shares { self.side.arm_lock.lock_within(NAPS) } else { None };
        let armed = if held.is_some() || !self.shares { self.writer().arm(&bells) } else { Ok(Armed::Sleep) };
        drop(held);
        if bells.was_short() {
            crate::kernel::sleep_ms();
            return Ok(Armed::Ready);
        }
        // The server may have taken it and read since, and seen no reason to tell of room.
        let has_grown = untaken::held_back(self.desc, self.side) < held_back;
        let is_news = has_grown || ending::hears_of_end(self.desc, self.side);
        armed.map(|armed| if is_news { Armed::Ready } else { armed })
    }

    /// Whether other processes may wait for this one.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.inner.is_some()
    }

    /// Whether other processes may hold this end.
    #[inline]
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// The lane's writer.
    #[inline]
    pub fn writer(&self) -> Writer<'_, LaneMemory> {
        let writer = Writer::new(self.lane, self.desc.end(), &self.side.tx, &self.side.rx);
        writer.holding_back(untaken::held_back(self.desc, self.side))
    }
}

impl RxGuard {
    /// The lane's reader.
    #[inline]
    pub fn reader(&self) -> Reader<'_, LaneMemory> {
        Reader::new(self.lane, self.desc.end(), &self.side.rx, &self.side.tx)
    }

    /// Prepares to sleep until there is something to read, or the peer's end is over.
    ///
    /// # Errors
    /// Those of [`Reader::arm`].
    #[inline]
    pub fn arm(&self, since: Since, bells: &impl Bells) -> Result<Armed, Fault> {
        self.arm_for(since, Sleeping::default(), bells)
    }

    /// As [`RxGuard::arm`], for this sleep ([`Reader::arm_for`]).
    ///
    /// # Errors
    /// Those of [`Reader::arm`].
    #[inline]
    pub fn arm_for(&self, since: Since, sleep: Sleeping, bells: &impl Bells) -> Result<Armed, Fault> {
        let armed = self.reader().arm_for(since, sleep, bells)?;
        Ok(if ending::hears_of_end(self.desc, self.side) { Armed::Ready } else { armed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{DESCS, Kind};
    use crate::{kernel, table};
    use beeline_lane::{End, Source};
    use beeline_meeting::pool;
    use beeline_shm::SideMemory;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::mpsc::channel;

    /// One end of a lane, which processes share.
    fn shared_end(cookie: u64) -> &'static Desc {
        let (memory, _) = SideMemory::create().unwrap();
        // SAFETY: a side consists of atomics only and is valid when zeroed.
        let side: &'static SideState = unsafe { memory.as_ref() };
        let fd = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap() as i32;
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, fd, libc::AF_INET as u32, beeline_guest::forks());
        let _ = table::set(fd, Some(desc)).unwrap();
        desc.become_lane(pool::client_lane(cookie).unwrap().sent().memory(), side, End::Client);
        side.holders.store(2, Relaxed);
        desc.shared.store(true, Relaxed);
        desc
    }

    /// A holder dies in an urgent send, between mark and byte.
    fn die_in_an_urgent_send(desc: &'static Desc) {
        let holder = std::thread::spawn(move || {
            let guard = desc.lock_tx().unwrap();
            let anchor = Anchor(desc.fd.load(Relaxed));
            let writer = guard.writer();
            let send = || writer.write_urgent(Source::from(&b"!"[..]), &anchor, || resume_unwind(Box::new("killed")));
            assert!(catch_unwind(AssertUnwindSafe(send)).is_err());
            core::mem::forget(guard);
        });
        holder.join().unwrap();
        assert_ne!(desc.lane().urgent(End::Client), 0);
    }

    #[test]
    fn who_wants_both_directions_does_not_wait_for_ever_for_a_holder_of_one() {
        const NAPS: u32 = 3;
        let desc = shared_end(31);
        for lock in [&desc.side().tx_lock, &desc.side().rx_lock] {
            let (held, is_held) = channel();
            let (end, is_over) = channel::<()>();
            let holder = std::thread::spawn(move || {
                let guard = lock.try_lock().unwrap();
                held.send(()).unwrap();
                let _ = is_over.recv();
                drop(guard);
            });
            is_held.recv().unwrap();
            assert!(desc.lock_tx_and_rx_within(NAPS).is_none());
            assert_eq!(desc.keepers.pins(), 0);
            drop(end);
            holder.join().unwrap();
            assert!(desc.lock_tx_and_rx_within(NAPS).is_some());
        }
    }

    #[test]
    fn who_wants_both_directions_waits_as_others_do() {
        let desc = shared_end(35);
        for lock in [&desc.side().tx_lock, &desc.side().rx_lock] {
            let guard = lock.try_lock().unwrap();
            let waiter = std::thread::spawn(|| desc.lock_tx_and_rx_within(2_000).is_some());
            while !desc.keepers.is_awaited() {
                assert!(!waiter.is_finished());
                std::thread::yield_now();
            }
            drop(guard);
            assert!(waiter.join().unwrap());
        }
    }

    #[test]
    fn what_a_dead_holder_left_is_told_to_the_next_sender_whoever_had_the_lock_between() {
        let between: [fn(&'static Desc); 3] = [
            |_| {},
            ending::tell_linger,
            |desc| desc.side().tx_lock.run(|taken| assert_eq!(*taken, Taken::Inherited)).unwrap(),
        ];
        for (cookie, between) in (21..).zip(between) {
            let desc = shared_end(cookie);
            die_in_an_urgent_send(desc);
            between(desc);
            drop(desc.lock_tx().unwrap());
            assert_eq!(desc.lane().urgent(End::Client), 0, "the mark of a byte that never came");
            assert_eq!(desc.side().tx_lock.run(|taken| *taken), Some(Taken::Free));
        }
    }
}

//! A send that is not done at once: it locks, writes what there is room for, and waits, until it has an answer.

use core::cell::Cell;
use core::mem;
use core::ops::ControlFlow::{self, Break, Continue};
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{Armed, Fault, Source};
use beeline_shm::sys::call;

use super::blocking::{HeldUp, Waited, snd_patience, wait_writable};
use super::call::left;
use super::dead::{broken, peer_reads_no_more, send_to_closed_reader};
use super::faults::{fault, kernel_said};
use super::quiet::{Parts, Quiet};
use super::readiness::writable_hint;
use super::send::{account, look_is_due};
use super::{ahead, loan, turn, urgent, zerocopy};
use crate::anchor::Anchor;
use crate::bulk::BULK_BYTES;
use crate::desc::{Desc, Kind, Pin, TxGuard, Unlocked};
use crate::ending::{Next, observe};
use crate::loans;
use crate::lock::shared::Wait;
use crate::side::{reset, state};
use crate::turns::Way;
use crate::wait::{Patience, ticks};
use crate::{Errno, Outcome, close, follow, kernel, reclaim, table, upkeep, watchers};

/// The most that a send to a peer that is gone takes, as in the kernel: after sixteen parts of 32 KiB it looks at what
/// has come meanwhile (`sk_flush_backlog` in tcp_sendmsg_locked()), and that is the reset.
const LOST_MAX: usize = 16 * 32 * 1024;

/// The most that one call gives TCP at a time, as the number is kept from changing meanwhile.
const OVER_TCP_MAX: usize = 64 * 1024;

/// One call.
struct Sending<'p, 'a, I> {
    /// The number that the call was given.
    given: i32,
    pin: &'p Pin,
    flags: i32,
    /// As the kernel, a call asks once whether it may wait: whoever sets `O_NONBLOCK` meanwhile means later ones.
    may_block: bool,
    parts: Parts<'a, I>,
    /// Begun when the call has to wait.
    patience: Option<Patience>,
    /// For another process that has the direction.
    naps: Wait,
    /// When it began, where the call is long.
    began: u64,
    /// Where it is, and the receiver not on this CPU: whether it goes around the caches.
    bulk: Option<bool>,
    /// Where the receiver is: how it is to have its turns.
    turns: Option<Way>,
    /// Where the receiver is not, and the call may block: whether parts are lent to it.
    loans: Option<loans::Way>,
    /// Whether the call has tried to lend one.
    has_tried: bool,
    /// Whether the reader has others to serve, and is to be waited for.
    falls_back: bool,
    /// The bytes of the program's call so far, where these are a part of it. They are counted before a handler may run
    /// that jumps out.
    progress: Option<&'p Cell<usize>>,
}

/// Sends the sources one after the other as one call, on a lane that the caller has pinned.
#[inline]
pub(super) fn send_pinned<'a>(
    given: i32,
    pin: &Pin,
    flags: i32,
    total: usize,
    sources: impl Iterator<Item = Source<'a>>,
) -> Outcome {
    send_part(given, pin, flags, total, sources, None)
}

/// As [`send_pinned`], for a part of a call that counts its bytes in `progress`.
#[inline]
pub(super) fn send_part<'p, 'a>(
    given: i32,
    pin: &'p Pin,
    flags: i32,
    total: usize,
    sources: impl Iterator<Item = Source<'a>>,
    progress: Option<&'p Cell<usize>>,
) -> Outcome {
    let desc = pin.desc();
    if desc.is_lane() && desc.side().is(state::OFFERED) {
        upkeep::look_after();
    }
    let is_long = total >= BULK_BYTES && desc.is_lane();
    let turns = if is_long { turn::of(desc, desc.side(), flags) } else { None };
    let mut sending = Sending {
        given,
        pin,
        flags,
        may_block: desc.is_lane() && desc.side().may_block(flags),
        parts: Parts { present: Source::from(&[][..]), rest: sources, total, sent: 0 },
        patience: None,
        naps: Wait::default(),
        began: if is_long { ticks() } else { 0 },
        // On one CPU everything stays in that one's caches.
        bulk: (is_long && turns.is_none()).then(|| desc.bulk.goes_around()),
        turns,
        loans: if is_long { loan::of(pin, turns.is_some(), flags) } else { None },
        has_tried: false,
        falls_back: false,
        progress,
    };
    sending.falls_back = is_long && sending.may_block && sending.turns.is_none() && ahead::is_unwished(desc);
    loop {
        if let Break(outcome) = sending.step() {
            return outcome;
        }
    }
}

impl<'a, I: Iterator<Item = Source<'a>>> Sending<'_, 'a, I> {
    fn is_urgent(&self) -> bool {
        self.flags & libc::MSG_OOB != 0
    }

    /// So many bytes more were taken.
    #[inline(always)]
    fn count(&self, taken: usize) {
        if let Some(progress) = self.progress {
            progress.set(progress.get() + taken);
        }
    }

    /// Writes what there is room for. The call's answer, or that it goes on.
    #[inline]
    fn step(&mut self) -> ControlFlow<Outcome> {
        let desc = self.pin.desc();
        let mut held_up = HeldUp::default();
        let guard = match self.is_urgent() {
            true => desc.await_tx(|naps| self.may_nap(&mut held_up, naps)),
            false => desc.tx_here().ok_or(Unlocked::Gone),
        };
        let mut guard = match guard {
            Ok(guard) => guard,
            Err(Unlocked::Gone) => return Break(self.left()),
            Err(Unlocked::Busy(_)) => return Break(held_up.outcome(self.parts.sent)),
        };
        let fd = self.pin.fd(self.given);
        let side = guard.side;
        observe(desc, side);
        if side.is(state::RESET | state::SHUT_WR) || side.error.load(Relaxed) != 0 {
            drop(guard);
            return Break(broken(side, self.parts.sent, self.flags));
        }
        let total = self.parts.total;
        if total != 0 && peer_reads_no_more(&guard) {
            let taken = self.parts.sent.max(total.min(LOST_MAX));
            self.count(taken - self.parts.sent);
            return Break(send_to_closed_reader(fd, guard, taken));
        }
        if self.loans.is_some() && self.lend(&guard) {
            return if self.parts.sent == total { Break(self.all_sent(fd, guard)) } else { self.after_loan(guard) };
        }
        let shares = guard.shares();
        if mem::take(&mut self.falls_back) && !shares {
            ahead::fall_back(&guard);
        }
        let (before, tail) = (self.parts.sent, side.tx.tail());
        let quietly = shares && !self.is_urgent();
        let mut failed = match self.write(&guard, fd, quietly) {
            Quiet::Written(written) => written.err(),
            Quiet::Changed if side.is(state::RELAYED) => {
                drop(guard);
                return Break(self.left());
            }
            Quiet::Changed => return Continue(()),
            Quiet::Busy => {
                drop(guard);
                return self.nap(held_up);
            }
        };
        let published = if quietly { (self.parts.sent - before) as u32 } else { side.tx.tail().wrapping_sub(tail) };
        account(desc, side, published);
        self.count(published as usize);
        if shares {
            // From here on it is system calls, and looks that need no lock.
            guard.let_others_in();
            if published != 0 && failed.is_none() {
                failed = guard.writer().tell_reader(&Anchor(fd)).err();
            }
        }
        match failed {
            Some(failure) => {
                drop(guard);
                self.after_fault(fd, failure, before, published)
            }
            None if self.parts.sent == total => Break(self.all_sent(fd, guard)),
            None => self.some_sent(fd, guard),
        }
    }

    /// Lends the present part to a receiver that waits for it. Whether it has fetched some.
    fn lend(&mut self, guard: &TxGuard) -> bool {
        let Some(way) = self.loans.as_mut() else { return false };
        let least_bytes = way.least_bytes.filter(|_| !guard.shares());
        if least_bytes.is_none_or(|least| !self.parts.advance() || self.parts.present.len() < least) {
            return false;
        }
        self.has_tried = true;
        let fetched = loan::lend(guard, self.parts.present);
        if fetched == 0 {
            way.least_bytes = None;
            // The ring has lost no time.
            self.bulk = None;
            return false;
        }
        let _ = self.parts.present.split_front(fetched);
        self.parts.sent += fetched;
        account(guard.desc, guard.side, fetched as u32);
        self.count(fetched);
        self.bulk = None;
        true
    }

    /// Some was fetched, and some is left: TCP would wait for room there, which a signal ends, and time.
    fn after_loan(&mut self, guard: TxGuard) -> ControlFlow<Outcome> {
        // Before the lock is given back: see `rcv_patience`.
        let patience = self.patience.get_or_insert_with(|| snd_patience(guard.side));
        drop(guard);
        match Waited::from_signal(patience) {
            None | Some(Waited::Again) if !patience.is_over() => Continue(()),
            Some(Waited::Kernel) => Break(self.left()),
            _ => self.stopped(Outcome::OK),
        }
    }

    /// Whether to nap once more while another process has the direction.
    fn may_nap(&mut self, held_up: &mut HeldUp, naps: u32) -> bool {
        let side = self.pin.desc().side();
        let patience = self.patience.get_or_insert_with(|| snd_patience(side));
        held_up.goes_on(patience, !self.may_block, naps)
    }

    /// Another process is writing. No lock is held.
    #[cold]
    fn nap(&mut self, mut held_up: HeldUp) -> ControlFlow<Outcome> {
        if !self.may_nap(&mut held_up, self.naps.naps()) {
            return Break(held_up.outcome(self.parts.sent));
        }
        let side = self.pin.desc().side();
        self.pin.while_waiting(|| side.tx_lock.nap(&mut self.naps));
        Continue(())
    }

    /// Writes what there is room for; `quietly` where other processes are to be kept out.
    #[inline]
    fn write(&mut self, guard: &TxGuard, fd: i32, quietly: bool) -> Quiet {
        if quietly {
            let written = self.parts.write(guard);
            if matches!(written, Quiet::Written(_)) {
                self.naps = Wait::default();
            }
            return written;
        }
        let (anchor, urgently) = (Anchor(fd), self.is_urgent());
        // The parts of a short call are announced together: a reader that sleeps wakes up once, and finds all of them,
        // as it does of what TCP puts into one segment. A long call has its own ways, which are timed.
        if self.parts.total < BULK_BYTES && !urgently && self.parts.advance() && self.parts.are_several() {
            let (tail, writer) = (guard.side.tx.tail(), guard.writer());
            let written = self.parts.write_unannounced(&writer);
            let told = if guard.side.tx.tail() == tail { Ok(()) } else { writer.tell_reader(&anchor) };
            return Quiet::Written(written.and(told));
        }
        let turn = self.turns.map_or(0, |way| way.turn_bytes);
        let writer = guard.writer().around_caches(self.bulk.unwrap_or(false));
        let writer = writer.beside_reader(self.turns.is_some()).in_turns(turn);
        let failed = self.parts.write_all(|part, is_last| match urgently && is_last {
            true => writer.write_urgent(part, &anchor, || urgent::announce(fd, guard)),
            false => writer.write(part, &anchor),
        });
        Quiet::Written(failed.map_or(Ok(()), Err))
    }

    /// After a fault in [`Sending::write`], which could not say what it had published before it failed; the tail can.
    #[cold]
    fn after_fault(&mut self, fd: i32, failure: Fault, before: usize, published: u32) -> ControlFlow<Outcome> {
        let (desc, total) = (self.pin.desc(), self.parts.total);
        let sent = before + published as usize;
        let _ = self.parts.present.split_front(sent.saturating_sub(self.parts.sent));
        self.parts.sent = sent;
        if fault(fd, desc, failure, published) == Next::Kernel {
            return Break(self.left());
        }
        if is_closed(desc, failure) {
            // The peer may read what was announced before its bell is rung, and close: then this send was not too late.
            if sent == total && has_read_all(desc) {
                return Break(Outcome::Done(sent as isize));
            }
            refuse(fd, desc);
            return Break(Outcome::Done(sent.max(total.min(LOST_MAX)) as isize));
        }
        Continue(())
    }

    /// Everything is in the ring.
    #[inline]
    fn all_sent(&self, fd: i32, guard: TxGuard) -> Outcome {
        let (desc, sent) = (self.pin.desc(), self.parts.sent);
        let look = counted_for_look(desc);
        let reach = guard.side.tx.reach();
        drop(guard);
        reclaim::account(desc, reach);
        // One of parts that are all too short says nothing of that way.
        if self.loans.is_some_and(|way| way.is_timed && (self.has_tried || way.least_bytes.is_none())) {
            desc.loans.sent(desc.lane().ring_bytes(), sent, ticks().wrapping_sub(self.began));
        }
        if self.bulk.is_some() {
            desc.bulk.sent(desc.lane().ring_bytes(), sent, ticks().wrapping_sub(self.began));
        } else if self.turns.is_some_and(|way| way.is_timed) {
            desc.turns.sent(desc.lane().ring_bytes(), sent, ticks().wrapping_sub(self.began));
        }
        if look {
            (desc.operations.get().look_below)(desc);
            let revents = kernel::poll_now(fd, 0);
            if revents != 0 && table::leads_to(fd, desc) {
                kernel_said(fd, desc, revents);
            }
        }
        Outcome::Done(sent as isize)
    }

    /// There was no room for all: what a call returns that must not block, or a wait.
    fn some_sent(&mut self, fd: i32, guard: TxGuard) -> ControlFlow<Outcome> {
        let (desc, side, sent) = (self.pin.desc(), guard.side, self.parts.sent);
        if !self.may_block {
            if self.bulk.is_some() && sent >= BULK_BYTES {
                desc.bulk.sent(desc.lane().ring_bytes(), sent, ticks().wrapping_sub(self.began));
            }
            return full(fd, desc, guard, sent);
        }
        let has_moved = sent != 0 || self.progress.is_some_and(|progress| progress.get() != 0);
        // Before the lock is given back: see `rcv_patience`.
        let patience = self.patience.get_or_insert_with(|| snd_patience(side));
        if let Some(way) = self.turns.as_mut().filter(|way| way.turn_bytes != 0 && !guard.shares()) {
            if !turn::give(self.pin, guard, way.turn_bytes) {
                way.turn_bytes = 0;
            }
            // TCP would have waited for room here, which a signal ends, and time.
            return match Waited::from_signal(patience) {
                _ if patience.is_over() => self.stopped(Outcome::fail(libc::EAGAIN)),
                Some(Waited::Stop(outcome)) => self.stopped(outcome),
                Some(Waited::Kernel) => Break(self.left()),
                Some(Waited::Handled) if has_moved => self.stopped(Outcome::OK),
                Some(Waited::Again | Waited::Handled) | None => Continue(()),
            };
        }
        drop(guard);
        match wait_writable(self.given, self.pin, patience) {
            Waited::Handled if has_moved => self.stopped(Outcome::OK),
            Waited::Handled => {
                // The kernel begins such a call again.
                self.may_block = side.may_block(self.flags);
                Continue(())
            }
            Waited::Again => Continue(()),
            Waited::Kernel => Break(self.left()),
            Waited::Stop(outcome) => self.stopped(outcome),
        }
    }

    /// The connection is TCP's by now, or another thread has closed it. A call of which a part was sent goes on over
    /// TCP as it would have over the lane: where it may block, programs count on all of it.
    #[cold]
    fn left(&mut self) -> Outcome {
        let (fd, desc) = (self.given, self.pin.desc());
        let is_counted = self.flags & libc::MSG_ZEROCOPY != 0 && zerocopy::tells(desc);
        if self.parts.sent != 0 && !self.is_urgent() && !is_counted {
            follow::follow_if_relayed(fd, desc);
            while self.parts.advance() && self.goes_on_over_tcp() {}
        }
        left(fd, desc, self.parts.sent)
    }

    /// Gives TCP what it takes of the present part at once, or waits for room. Whether the call goes on: not after a
    /// signal, in time, or when something is wrong, which the program's next call is to find.
    fn goes_on_over_tcp(&mut self) -> bool {
        let (fd, desc) = (self.given, self.pin.desc());
        let mut is_short = false;
        {
            // Until the kernel has the bytes the number leads nowhere else.
            let _changing = close::changing_of(fd, desc);
            if desc.kind() != Kind::Tcp || !table::leads_to(fd, desc) {
                return false;
            }
            match kernel::poll_now(fd, libc::POLLOUT) {
                0 => {}
                libc::POLLOUT => {
                    let part = &mut self.parts.present;
                    let (length, flags) =
                        (part.len().min(OVER_TCP_MAX), (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize);
                    let args = [fd as usize, part.pointer() as usize, length, flags, 0, 0];
                    // SAFETY: the part is readable, as the program has promised with its call.
                    match unsafe { call(libc::SYS_sendto, args) } {
                        Ok(sent @ 1..) => {
                            let _ = part.split_front(sent);
                            self.parts.sent += sent;
                            self.count(sent);
                            return true;
                        }
                        // Another thread was first, or memory is short.
                        Err(Errno(libc::EAGAIN)) => is_short = true,
                        _ => return false,
                    }
                }
                _ => return false,
            }
        }
        let side = desc.side();
        if !self.may_block {
            return false;
        }
        if is_short {
            kernel::sleep_ms();
        }
        let patience = self.patience.get_or_insert_with(|| snd_patience(side));
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let woken = self.pin.while_waiting(|| patience.sleep(&mut fds, None));
        Waited::from_sleep(woken, patience).is_none()
    }

    /// The wait ended with `outcome`, which the call returns if it has sent nothing.
    fn stopped(&self, outcome: Outcome) -> ControlFlow<Outcome> {
        Break(if self.parts.sent == 0 { outcome } else { Outcome::Done(self.parts.sent as isize) })
    }
}

/// Whether it was the peer's close for which a send could not ring it. Where another thread takes the connection over
/// to TCP nothing has ended: the send goes on with it.
pub(super) fn is_closed(desc: &Desc, failure: Fault) -> bool {
    failure == Fault::Gone && desc.side().is(state::PEER_CLOSED) && !desc.side().is(state::RESET)
}

/// Whether the peer has read all that was sent.
pub(super) fn has_read_all(desc: &Desc) -> bool {
    desc.lane().head(desc.end().peer()) == desc.side().tx.tail()
}

/// TCP takes the first send after the peer's close, and is reset for it.
pub(super) fn refuse(fd: i32, desc: &'static Desc) {
    reset(desc.side(), libc::ECONNRESET);
    watchers::notify(fd, desc);
}

/// A non-blocking send that found no room for all: what it returns, or that it goes on.
#[cold]
pub(super) fn full(fd: i32, desc: &'static Desc, mut guard: TxGuard, sent: usize) -> ControlFlow<Outcome> {
    desc.pace.count_full();
    if desc.entries.load(Relaxed) != 0 {
        // A wait of ours will look after it.
        drop(guard);
        watchers::notify(fd, desc);
    } else if sent == 0 {
        // Whoever watches the anchor through the kernel now must see it full.
        let armed = guard.arm(&Anchor(fd));
        drop(guard);
        match armed {
            Ok(Armed::Ready) if writable_hint(desc, desc.side()) => return Continue(()),
            Ok(_) => {}
            Err(failure) => {
                fault(fd, desc, failure, 0);
                return Continue(());
            }
        }
    }
    Break(if sent != 0 { Outcome::Done(sent as isize) } else { Outcome::fail(libc::EAGAIN) })
}

/// Counts a send. Whether the kernel is to be asked after it.
fn counted_for_look(desc: &Desc) -> bool {
    let sends = desc.pace.sends().wrapping_add(1);
    desc.pace.count_sends(sends);
    let due = look_is_due(desc, sends);
    if due {
        desc.pace.look_by_send(ticks());
    }
    due
}

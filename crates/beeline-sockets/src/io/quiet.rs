//! Writes to an end that processes share.
//!
//! 1. Threads of this process are kept out for the whole call, other processes only while bytes are copied and
//!    announced: a process that is stopped keeps them from theirs if it was stopped right there.
//! 2. What a call knows of the end it has looked up before the lock. What another process may change, it changes with
//!    the lock held, so one look at those bits in there will do: a half-close, a reset, and that the end is a relay's
//!    by now.
//! 3. All parts of a call that find room are copied with the lock taken once: no other process's bytes come between
//!    them.
//! 4. Whoever finds that it holds the end alone says so, with its own threads kept out ([`crate::desc`]).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_lane::{Fault, Source, Storage, Writer};

use crate::desc::TxGuard;
use crate::lock::Taken;
use crate::side::state;

/// What became of a write.
pub(super) enum Quiet {
    /// Everything that there is room for was written, or what the peer's fault has left.
    Written(Result<(), Fault>),
    /// The end has changed: the caller looks again.
    Changed,
    /// Another process is writing.
    Busy,
}

/// The parts of a call that are still to be sent.
pub(super) struct Parts<'a, I> {
    /// The present one, of which some may be sent.
    pub present: Source<'a>,
    /// Those after it.
    pub rest: I,
    /// Bytes of the call.
    pub total: usize,
    /// Bytes that were taken.
    pub sent: usize,
}

impl<'a, I: Iterator<Item = Source<'a>>> Parts<'a, I> {
    /// Goes on to the next part if the present one is done. False at the end.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        while self.present.is_empty() {
            match self.rest.next().filter(|_| self.sent < self.total) {
                Some(mut part) => self.present = part.split_front(self.total - self.sent),
                None => return false,
            }
        }
        true
    }

    /// Writes part by part with `write`, which is told which one is the last, as long as there is room.
    #[inline(always)]
    pub fn write_all(&mut self, mut write: impl FnMut(Source<'a>, bool) -> Result<usize, Fault>) -> Option<Fault> {
        while self.advance() {
            let is_last = self.sent + self.present.len() == self.total;
            match write(self.present, is_last) {
                Ok(0) => break,
                Ok(count) => {
                    let _ = self.present.split_front(count);
                    self.sent += count;
                }
                Err(fault) => return Some(fault),
            }
        }
        None
    }

    /// Whether there are parts behind the present one.
    pub fn are_several(&self) -> bool {
        self.sent + self.present.len() < self.total
    }

    /// Writes what there is room for, and wakes nobody: [`Writer::tell_reader`] is to follow.
    pub fn write_unannounced<S: Storage + Copy>(&mut self, writer: &Writer<'_, S>) -> Result<(), Fault> {
        while self.advance() {
            let left = self.present.len();
            let written = writer.write_quietly(&mut self.present);
            self.sent += left - self.present.len();
            written?;
            if !self.present.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// As [`Parts::write_unannounced`], with other processes kept out.
    #[inline]
    pub fn write(&mut self, guard: &TxGuard) -> Quiet {
        let (side, writer) = (guard.side, guard.writer());
        if !self.advance() {
            return Quiet::Written(Ok(()));
        }
        let written = side.tx_lock.run(|taken| {
            if side.is(state::RELAYED | state::RESET | state::SHUT_WR) {
                return Quiet::Changed;
            }
            if *taken == Taken::Inherited {
                if writer.recover().is_err() {
                    return Quiet::Written(Err(Fault::HeadBeyondTail));
                }
                taken.settle();
            }
            Quiet::Written(self.write_unannounced(&writer))
        });
        if side.holders.load(Acquire) == 1 {
            guard.desc.shared.store(false, Relaxed);
        }
        written.unwrap_or(Quiet::Busy)
    }
}

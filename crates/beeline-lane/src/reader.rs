//! The reading half of an end.

use core::sync::atomic::Ordering::{Relaxed, Release};

use beeline_shm::{Cursor, End, Sink, WAKE_ARMED};

use crate::room::{PLUG_BELLS, enough_room};
use crate::state::{RxState, TxState};
use crate::storage::{Bells, Storage, Wake};
use crate::wake::next_generation;
use crate::{Armed, Fault};

/// Bytes copied between two publications of the head: a blocked writer goes on while the rest of a
/// long read is still being copied.
const CHUNK_BYTES: usize = 64 * 1024;

/// So many bells no peer has rung by rule 5 of *Waking a reader* ([`crate`]), however many threads of it write: those
/// are a few and one for each that rings at the very same time, and a socket holds a quarter of this by default. To
/// take out what a hostile one can queue would be thousands of system calls with the lock held, at each arming.
const BELLS_MAX: u32 = 1024;

/// Armings by edges in a row that leave bells lying: as many bells, and a few more. To take a bell out costs a system
/// call, and a quarter of that for each further one, so that more would hardly spare anything, and make each sleep that
/// takes them out a long one. With four times as many the kernel still calls the peer's end writable.
const BELLS_LEFT_MAX: u32 = 8;

/// What counts as news for somebody about to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// Any unread byte (level-triggered).
    Read,
    /// A byte after this tail (edge-triggered).
    Tail(u32),
}

/// How somebody is about to sleep. By default on this lane alone, and a bell that lies there ends the sleep at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sleeping {
    /// The sleep's number, which a bell on any lane that names it ends: rule 8 of *Waking a reader* ([`crate`]). 0 is
    /// none.
    pub number: u64,
    /// Whether only bells that come from now on end it: rule 9.
    pub by_edges: bool,
}

impl Sleeping {
    /// The sleep of this number, which each bell that lies there ends.
    #[must_use]
    pub const fn numbered(number: u64) -> Self {
        Self { number, by_edges: false }
    }
}

/// The reading half of one end. The caller holds the end's rx lock for as long as it has one.
#[derive(Clone, Copy)]
pub struct Reader<'a, S> {
    pub(crate) storage: S,
    pub(crate) end: End,
    pub(crate) state: &'a RxState,
    tx: &'a TxState,
}

/// What a look at the ring found.
pub(crate) struct Look {
    /// Unread bytes.
    pub unread: u32,
    /// How many of them a read may take: those before the next urgent byte.
    pub bound: u32,
    /// Position of the first.
    pub position: u32,
    /// The peer's tail.
    pub tail: u32,
}

impl<'a, S: Storage + Copy> Reader<'a, S> {
    /// The reader of `end`; `tx` is the same end's writing state, which reads feed with the peer's head.
    #[inline]
    pub fn new(storage: S, end: End, state: &'a RxState, tx: &'a TxState) -> Self {
        Self { storage, end, state, tx }
    }

    #[inline]
    pub(crate) fn look(&self) -> Result<Look, Fault> {
        let Cursor { tail, base } = self.storage.cursor(self.end.peer());
        let head = self.state.head.load(Relaxed);
        let unread = tail.wrapping_sub(head);
        if unread > self.storage.ring_bytes() {
            return Err(Fault::CursorBeyondRing);
        }
        // The echo shares a line with the cursor, so knowing it costs nothing here and saves the next write a look
        // at the peer's head, which is in a line of its own.
        let (echo, urgent) = self.storage.echo(self.end.peer());
        self.tx.echo_seen.store(echo, Release);
        let bound = if urgent { self.bound(head, unread) } else { unread };
        Ok(Look { unread, bound, position: head.wrapping_sub(base), tail })
    }

    /// Unread bytes.
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    #[inline]
    pub fn unread(&self) -> Result<u32, Fault> {
        Ok(self.look()?.unread)
    }

    /// Where unread bytes lie in the peer's ring, for a holder that hands them on from there: how many there are before
    /// an urgent one, and the position of the first. What was taken is then dropped with [`Reader::skip`]; `None` when
    /// an urgent byte, or one to pass over, comes next, for [`Reader::pass`].
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    pub fn readable(&self) -> Result<Option<(u32, u32)>, Fault> {
        let Look { unread, bound, position, .. } = self.look()?;
        Ok((bound != 0 || unread == 0).then_some((bound, position)))
    }

    /// The peer's tail, for [`Since::Tail`].
    #[inline]
    pub fn tail(&self) -> u32 {
        self.storage.cursor(self.end.peer()).tail
    }

    /// Reads what is there, up to the size of `sink`. Returns 0 when there is nothing.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. What was read before is consumed.
    #[inline]
    pub fn read(&self, mut sink: Sink<'_>, bells: &impl Bells) -> Result<usize, Fault> {
        let room = sink.len();
        loop {
            let Look { unread, bound, position, .. } = self.look()?;
            let part = sink.split_front(CHUNK_BYTES.min(bound as usize));
            let length = part.len() as u32;
            if length == 0 {
                break;
            }
            self.storage.copy_out(self.end.peer(), position, part);
            self.consumed(unread, length, bells)?;
            if sink.is_empty() || length < bound.min(CHUNK_BYTES as u32) {
                break;
            }
        }
        Ok(self.account(room.wrapping_sub(sink.len())))
    }

    /// Whether anything is there.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.tail() != self.state.head.load(Relaxed)
    }

    /// As [`Reader::read`], where little is to be moved and nothing else to be done. 0, with nothing done, when there
    /// is nothing, too much for `limit`, or anything unusual.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. What was read is consumed.
    #[inline(always)]
    pub fn read_small(&self, mut sink: Sink<'_>, limit: u32, bells: &impl Bells) -> Result<usize, Fault> {
        let Cursor { tail, base } = self.storage.cursor(self.end.peer());
        let head = self.state.head.load(Relaxed);
        let unread = tail.wrapping_sub(head);
        let part = sink.split_front(unread as usize);
        let length = part.len() as u32;
        let (echo, urgent) = self.storage.echo(self.end.peer());
        if length == 0 || length > limit || unread > self.storage.ring_bytes() || urgent {
            return Ok(0);
        }
        self.tx.echo_seen.store(echo, Release);
        self.storage.copy_out(self.end.peer(), head.wrapping_sub(base), part);
        self.consumed(unread, length, bells)?;
        Ok(self.account(length as usize))
    }

    /// Drops up to `count` unread bytes, as `MSG_TRUNC` does on TCP. Returns how many.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    pub fn skip(&self, count: usize, bells: &impl Bells) -> Result<usize, Fault> {
        let Look { unread, bound, .. } = self.look()?;
        let length = count.min(bound as usize);
        if length != 0 {
            self.consumed(unread, length as u32, bells)?;
        }
        Ok(self.account(length))
    }

    /// How many unread bytes there are from `offset` on, up to an urgent one: as many as [`Reader::peek`] copies.
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    pub fn unread_from(&self, offset: usize) -> Result<usize, Fault> {
        let look = self.look()?;
        Ok((self.ahead(&look).1 as usize).saturating_sub(offset))
    }

    /// What a peek may show: how many bytes it leaves out, and how many follow them.
    fn ahead(&self, look: &Look) -> (u32, u32) {
        if look.bound == 0 { self.beyond_mark(look) } else { (0, look.bound) }
    }

    /// Copies unread bytes from `offset` on without consuming them, up to an urgent one. Returns how many.
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    pub fn peek(&self, offset: usize, mut sink: Sink<'_>) -> Result<usize, Fault> {
        let look = self.look()?;
        let (hole, bound) = self.ahead(&look);
        let position = look.position.wrapping_add(hole);
        let part = sink.split_front((bound as usize).saturating_sub(offset));
        let length = part.len();
        if length != 0 {
            self.storage.copy_out(self.end.peer(), position.wrapping_add(offset as u32), part);
        }
        Ok(length)
    }

    /// Publishes that `length` of `unread` bytes were read, and tells a writer that waits for room.
    #[inline(always)]
    pub(crate) fn consumed(&self, unread: u32, length: u32, bells: &impl Bells) -> Result<(), Fault> {
        let before = self.state.head.load(Relaxed);
        let head = before.wrapping_add(length);
        self.state.head.store(head, Relaxed);
        self.storage.set_head(self.end, head);
        // A fence for each eighth of a ring that is read. What `unread` says must not decide, because
        // the writer may have filled the ring and armed since we looked.
        let within_eighth = (self.storage.ring_bytes() >> 3).wrapping_sub(1);
        if (before ^ head) & !within_eighth != 0 {
            // Pairs with the fence in `Writer::arm`.
            self.storage.full_fence();
        }
        match self.wake_writer(unread.wrapping_sub(length), bells) {
            // Nobody is left to wait for room, and the bytes are read all the same.
            Err(Fault::Gone) => Ok(()),
            told => told,
        }
    }

    /// Whether the peer's writer waits for more room than it would find.
    fn writer_must_wait(&self, unread: u32) -> bool {
        self.storage.wake(self.end.peer(), Wake::Write) & WAKE_ARMED != 0
            && !enough_room(self.storage.ring_bytes(), unread)
    }

    /// Lets the kernel report room to a writer that asked for it. `unread` bytes are left in the ring.
    #[inline(always)]
    fn wake_writer(&self, unread: u32, bells: &impl Bells) -> Result<(), Fault> {
        let wake = self.storage.wake(self.end.peer(), Wake::Write);
        if wake & WAKE_ARMED == 0 || !enough_room(self.storage.ring_bytes(), unread) {
            return Ok(());
        }
        self.unplug_writer(wake, bells)
    }

    /// Out of line: what is common is a writer that finds room.
    #[inline(never)]
    fn unplug_writer(self, wake: u32, bells: &impl Bells) -> Result<(), Fault> {
        let queued = Self::queued(bells)?;
        self.take_bells(queued.saturating_sub(1), bells)?;
        self.state.bells_queued.store(1, Relaxed);
        self.storage.clear_wake(self.end.peer(), Wake::Write, wake);
        Ok(())
    }

    #[inline]
    pub(crate) fn account(&self, length: usize) -> usize {
        // Orders our copying before whatever the peer does on hearing the echo of this count.
        self.state.bytes.store(self.state.bytes.load(Relaxed).wrapping_add(length as u64), Release);
        length
    }

    /// The bells that lie in the anchor.
    fn queued(bells: &impl Bells) -> Result<u32, Fault> {
        match bells.queued()? {
            BELLS_MAX.. => Err(Fault::BadBell),
            queued => Ok(queued),
        }
    }

    fn take_bells(&self, count: u32, bells: &impl Bells) -> Result<(), Fault> {
        if count != 0 {
            bells.drain(count)?;
            self.state.bells.store(self.state.bells.load(Relaxed).wrapping_add(count), Relaxed);
        }
        Ok(())
    }

    /// Whether there is news, and how many bytes are unread; an urgent one that comes next is not among them.
    fn news(&self, since: Since) -> Result<(bool, u32), Fault> {
        let look = self.look()?;
        // An urgent byte by itself is nothing to read, as in TCP.
        let unread = if look.bound == 0 && look.unread != 0 { self.beyond_mark(&look).1 } else { look.unread };
        let news = match since {
            Since::Read => unread != 0,
            Since::Tail(tail) => look.tail != tail,
        };
        Ok((news, unread))
    }

    /// Prepares to sleep until there is news.
    ///
    /// # Errors
    /// A [`Fault`] of the peer. After [`Fault::Gone`], what the peer had published is still to be read.
    pub fn arm(&self, since: Since, bells: &impl Bells) -> Result<Armed, Fault> {
        self.arm_for(since, Sleeping::default(), bells)
    }

    /// As [`Reader::arm`], for this sleep.
    ///
    /// # Errors
    /// As there.
    pub fn arm_for(&self, since: Since, sleep: Sleeping, bells: &impl Bells) -> Result<Armed, Fault> {
        if self.news(since)?.0 {
            return Ok(Armed::Ready);
        }
        let last = self.state.read_wake.load(Relaxed);
        let mut queued = 0;
        if self.state.may_have_bells(&self.storage, self.end) {
            if sleep.by_edges && self.may_leave_bells() {
                // Whatever comes of this arming, it may draw one more; and the word tells of them no longer.
                self.state.bells_left.store(self.state.bells_left.load(Relaxed).wrapping_add(1), Relaxed);
                self.state.note_bell();
            } else {
                queued = Self::queued(bells)?;
                self.state.bells_queued.store(queued, Relaxed);
                self.state.bells_left.store(0, Relaxed);
            }
        }
        let wake = next_generation(last) | self.state.ordered.load(Relaxed);
        self.state.read_wake.store(wake, Relaxed);
        self.storage.set_wake(self.end, Wake::Read, wake);
        self.name_sleep(sleep.number);
        // Pairs with the fence in `Writer::wake_reader`.
        self.storage.full_fence();
        let (news, unread) = self.news(since)?;
        if queued != 0 {
            // The bell of a peer that sends no more is the last: other sleepers have not seen it, perhaps.
            let over = self.storage.is_over(self.end.peer());
            let keep = match self.writer_must_wait(unread) {
                // Taking the plug away would only make the writer plug again.
                true => PLUG_BELLS,
                false => u32::from(news || unread != 0 || over),
            };
            // With news, too: a reader that finds some each time it arms would fill the queue, and a bell that
            // finds it full is lost.
            self.take_bells(queued.saturating_sub(keep), bells)?;
            self.state.bells_queued.store(keep.min(queued), Relaxed);
        }
        if news {
            return Ok(Armed::Ready);
        }
        self.wake_writer(unread, bells)?;
        if self.storage.awaits_turn(self.end.peer()) {
            self.storage.end_turn(self.end.peer());
        }
        Ok(Armed::Sleep)
    }

    /// Whether an arming by edges leaves bells where they lie: not when it is to take them out (rule 9).
    #[must_use]
    pub fn may_leave_bells(&self) -> bool {
        self.state.bells_left.load(Relaxed) < BELLS_LEFT_MAX
    }

    /// A lane that is armed belongs to the sleep of this number from now on, or, if that is 0, is rung by itself. To be
    /// followed by a full fence and a look at the tail.
    pub fn name_sleep(&self, sleep: u64) {
        if self.state.sleep.load(Relaxed) != sleep {
            // In this order: whoever goes on after a holder that died names it again.
            self.storage.set_sleep(self.end, sleep);
            self.state.sleep.store(sleep, Relaxed);
        }
    }

    /// Takes out the bells that nobody sleeps for. The caller knows that nobody does.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn drain_bells(&self, bells: &impl Bells) -> Result<(), Fault> {
        if self.writer_must_wait(self.unread()?) {
            return Ok(());
        }
        let last = self.state.read_wake.load(Relaxed);
        // An end that reads no more stays armed: so the peer's next write finds that out.
        if last & WAKE_ARMED != 0 && !self.storage.reads_no_more(self.end) {
            self.storage.clear_wake(self.end, Wake::Read, last);
            self.state.read_wake.store(last & !WAKE_ARMED, Relaxed);
        }
        let taken = bells.drain_all()?;
        self.state.bells.store(self.state.bells.load(Relaxed).wrapping_add(taken), Relaxed);
        self.state.bells_queued.store(0, Relaxed);
        self.state.bells_left.store(0, Relaxed);
        Ok(())
    }

    /// Goes on after a holder that may have died with the lock held: what it took out of the ring is
    /// published, and bells that it may have left are counted at the next arming.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn recover(&self, bells: &impl Bells) -> Result<(), Fault> {
        self.storage.set_head(self.end, self.state.head.load(Relaxed));
        self.state.bells_queued.store(1, Relaxed);
        self.storage.full_fence();
        self.wake_writer(self.unread()?, bells)
    }
}

//! Urgent bytes: TCP's out-of-band data (Linux net/ipv4/tcp_input.c, `tcp_check_urg`).
//!
//! 1. An urgent byte travels in the ring, in its turn. Its *mark* is its count; mark and a number that grows with each
//!    urgent byte share the word `urgent(e)`: number in the upper half (0 for none), mark in the lower.
//! 2. The writer stores the mark, then the flag `URGENT` of its front, then the bytes, then the cursor. So a reader
//!    whose cursor covers an urgent byte sees the flag and this mark or a later one; without the flag nothing of this
//!    costs anything. A mark at or after the tail is one whose byte has not arrived.
//! 3. A reader never reads across a mark in one step. At the mark it goes past the byte or, if urgent bytes are
//!    inline, reads on; then that number is *passed*, and the mark is no mark any more. A number is *taken* when
//!    its byte was read out of turn; its mark stays until it is passed.
//! 4. A new mark replaces the old one, whose byte is from then on like any other, with one exception, which TCP makes
//!    when the new mark arrives: if the reader stands at the old mark, the old byte is passed over. The writer finds
//!    that out from the peer's head, and stores in `passed(e)` where the reader stands and how many bytes it is to pass
//!    over there, before the mark. A reader that has moved on by itself ignores it, and so does one whose urgent bytes
//!    were inline when the new mark came: whoever changes that deals first with what was said before
//!    ([`Reader::set_inline`]).
//! 5. What the peer claims is compared with the bytes that are there, and can only make its own data urgent or go away.
//! 6. The mark changes under a reader that holds its lock: it may be a later one at each look, whose byte has not come.
//!    So a byte is copied by the same look that has found it ([`Reader::take_urgent`], [`Reader::urgent_next`]), which
//!    says if there is none, whatever another look has seen before.
//! 7. A writer that dies before its cursor has sent nothing, no mark either: whoever writes next puts the last one back
//!    whose byte is there ([`Writer::recover`]). Nobody remembers the number of a mark whose byte has not come, so it
//!    is given again.

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::{Sink, Source};

use crate::Fault;
use crate::reader::{Look, Reader};
use crate::storage::{Bells, Storage};
use crate::writer::Writer;

/// The next urgent byte as a reader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    number: u32,
    /// Unread bytes before it.
    pub distance: u32,
    /// The byte has arrived.
    pub arrived: bool,
    /// The byte was taken out of turn.
    pub taken: bool,
}

impl Mark {
    /// The reader stands at the byte, which is there.
    fn is_next(&self) -> bool {
        self.distance == 0 && self.arrived
    }
}

/// What a reader finds, the bytes that are passed over left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Unread bytes.
    pub unread: u32,
    /// The next urgent byte.
    pub mark: Option<Mark>,
    /// Urgent bytes are read in their turn.
    pub inline: bool,
}

/// The two numbers of a word that says both at once.
fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl<S: Storage + Copy> Reader<'_, S> {
    /// What there is to read, for somebody who may not hold the lock.
    #[must_use]
    pub fn view(&self) -> View {
        let head = self.state.head.load(Relaxed);
        let unread = self.tail().wrapping_sub(head);
        if unread > self.storage.ring_bytes() {
            // Nonsense counts as some; whoever reads it says so.
            return View { unread: 1, mark: None, inline: false };
        }
        let (_, head, unread) = self.behind_passed(head, unread);
        View { unread, mark: self.mark(head, unread), inline: self.is_inline() }
    }

    /// The number of the last urgent byte, if that has arrived, for somebody who may not hold the lock.
    #[must_use]
    pub fn last_urgent(&self) -> Option<u32> {
        let tail = self.tail();
        let (number, at) = halves(self.storage.urgent(self.end.peer()));
        (number != 0 && (tail.wrapping_sub(at) as i32) > 0).then_some(number)
    }

    fn is_inline(&self) -> bool {
        self.state.urgent_inline.load(Relaxed) != 0
    }

    /// The mark that is ahead of `head`.
    fn mark(&self, head: u32, unread: u32) -> Option<Mark> {
        let (number, at) = halves(self.storage.urgent(self.end.peer()));
        let distance = at.wrapping_sub(head);
        if number == 0 || number == self.state.urgent_passed.load(Relaxed) || distance > self.storage.ring_bytes() {
            return None;
        }
        let taken = number == self.state.urgent_taken.load(Relaxed);
        Some(Mark { number, distance, arrived: distance < unread, taken })
    }

    /// Bytes at `head` that a later urgent byte made pass.
    fn passed_over(&self, head: u32, unread: u32) -> u32 {
        // The mark first: bytes to pass over are stored before it.
        if self.is_inline() || self.mark(head, unread).is_none() {
            return 0;
        }
        if self.state.urgent_kept.load(Relaxed) == self.place() { 0 } else { self.told_to_pass(head, unread) }
    }

    /// Of so many unread bytes at `head`: how many are passed over, where the others begin, and how many those are.
    fn behind_passed(&self, head: u32, unread: u32) -> (u32, u32, u32) {
        let over = self.passed_over(head, unread);
        (over, head.wrapping_add(over), unread.saturating_sub(over))
    }

    /// Bytes at `head` that the writer said to pass over.
    fn told_to_pass(&self, head: u32, unread: u32) -> u32 {
        let (from, count) = halves(self.storage.passed(self.end.peer()));
        if from == head && count <= unread { count } else { 0 }
    }

    /// Where the reader stands, never 0 and never the same again.
    fn place(&self) -> u64 {
        self.state.bytes().wrapping_add(1)
    }

    /// Whether urgent bytes are read in their turn from now on (`SO_OOBINLINE`). What a later mark made of an earlier
    /// byte stays as it was decided when the later one came: passed over, or kept.
    ///
    /// # Errors
    /// A [`Fault`] of the peer; the change is made.
    pub fn set_inline(&self, inline: bool, bells: &impl Bells) -> Result<(), Fault> {
        let was = self.is_inline();
        let decided = match (was, inline) {
            (false, true) => self.pass_told(bells),
            (true, false) => self.keep_told(),
            _ => Ok(()),
        };
        self.state.set_urgent_inline(inline);
        decided
    }

    /// Passes over what is to be passed over.
    fn pass_told(&self, bells: &impl Bells) -> Result<(), Fault> {
        let Look { unread, .. } = self.look()?;
        match self.passed_over(self.state.head.load(Relaxed), unread) {
            0 => Ok(()),
            over => self.go_past(unread, over, bells),
        }
    }

    /// Keeps what would have to be passed over if urgent bytes had not been inline.
    fn keep_told(&self) -> Result<(), Fault> {
        let Look { unread, .. } = self.look()?;
        if self.told_to_pass(self.state.head.load(Relaxed), unread) != 0 {
            self.state.urgent_kept.store(self.place(), Relaxed);
        }
        Ok(())
    }

    fn go_past(&self, unread: u32, length: u32, bells: &impl Bells) -> Result<(), Fault> {
        self.consumed(unread, length, bells)?;
        self.account(length as usize);
        Ok(())
    }

    /// How many of `unread` bytes come before the mark. Passes over what is to be passed over; the lock is held.
    #[cold]
    pub(crate) fn bound(&self, head: u32, unread: u32) -> u32 {
        // What is passed over is told to the writer with the next bytes read.
        if self.passed_over(head, unread) != 0 {
            return 0;
        }
        self.mark(head, unread).map_or(unread, |mark| mark.distance.min(unread))
    }

    /// For a look whose reader stands at a mark: the bytes to leave out, and how many follow them.
    #[cold]
    pub(crate) fn beyond_mark(&self, look: &Look) -> (u32, u32) {
        let (over, head, unread) = self.behind_passed(self.state.head.load(Relaxed), look.unread);
        match self.mark(head, unread) {
            Some(mark) if mark.is_next() && !self.is_inline() => (over.wrapping_add(1), unread.saturating_sub(1)),
            Some(mark) if mark.distance != 0 => (over, unread.min(mark.distance)),
            _ => (over, unread),
        }
    }

    /// Unread bytes that a peek leaves out because the reader stands at a mark.
    #[must_use]
    pub fn hole(&self) -> u32 {
        match self.look() {
            Ok(look) if look.bound == 0 && look.unread != 0 => self.beyond_mark(&look).0,
            _ => 0,
        }
    }

    /// Goes past what keeps a read from its bytes: bytes to pass over, or the mark. `false` if nothing does.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn pass(&self, bells: &impl Bells) -> Result<bool, Fault> {
        let Look { unread, bound, .. } = self.look()?;
        if bound != 0 || unread == 0 {
            return Ok(false);
        }
        let head = self.state.head.load(Relaxed);
        let over = self.passed_over(head, unread);
        let length = match self.mark(head, unread) {
            _ if over != 0 => over,
            Some(mark) if mark.is_next() => {
                self.state.urgent_passed.store(mark.number, Relaxed);
                u32::from(!self.is_inline())
            }
            _ => return Ok(false),
        };
        if length != 0 {
            self.go_past(unread, length, bells)?;
        }
        Ok(true)
    }

    /// Copies the urgent byte out of its turn, and tells its count; `None` if it has not arrived, which may be a later
    /// one than the caller has seen. With `keep`, it can be taken again.
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    pub fn take_urgent(&self, keep: bool, byte: &mut [u8; 1]) -> Result<Option<u32>, Fault> {
        let look = self.look()?;
        let (over, head, unread) = self.behind_passed(self.state.head.load(Relaxed), look.unread);
        let Some(mark) = self.mark(head, unread).filter(|mark| mark.arrived) else { return Ok(None) };
        let position = look.position.wrapping_add(over).wrapping_add(mark.distance);
        self.storage.copy_out(self.end.peer(), position, Sink::from(&mut byte[..]));
        if !keep {
            self.state.urgent_taken.store(mark.number, Relaxed);
        }
        Ok(Some(head.wrapping_add(mark.distance)))
    }

    /// The urgent byte that the reader stands at, for one who hands it on in its turn and then goes past it
    /// ([`Reader::pass_urgent`]). `None` if it was taken, or if something else comes next: see [`Reader::pass`].
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    pub fn urgent_next(&self) -> Result<Option<u8>, Fault> {
        let Look { unread, position, .. } = self.look()?;
        let head = self.state.head.load(Relaxed);
        if self.passed_over(head, unread) != 0
            || !self.mark(head, unread).is_some_and(|mark| mark.is_next() && !mark.taken)
        {
            return Ok(None);
        }
        let mut byte = [0];
        self.storage.copy_out(self.end.peer(), position, Sink::from(&mut byte[..]));
        Ok(Some(byte[0]))
    }

    /// Goes past the byte that [`Reader::urgent_next`] has told, whatever a later mark has made of it meanwhile.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn pass_urgent(&self, bells: &impl Bells) -> Result<(), Fault> {
        let Look { unread, .. } = self.look()?;
        if let Some(mark) = self.mark(self.state.head.load(Relaxed), unread).filter(Mark::is_next) {
            self.state.urgent_passed.store(mark.number, Relaxed);
        }
        // A peer may take its cursor back, which harms nobody else.
        if unread == 0 { Ok(()) } else { self.go_past(unread, 1, bells) }
    }
}

impl<S: Storage + Copy> Writer<'_, S> {
    /// As [`Writer::write`], with the last byte that is taken marked urgent. `announce` is called when the mark
    /// stands and the byte is still to come.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn write_urgent(
        &self,
        mut source: Source<'_>,
        bells: &impl Bells,
        announce: impl FnOnce(),
    ) -> Result<usize, Fault> {
        let tail = self.state.tail.load(Relaxed);
        let mut base = self.state.base.load(Relaxed);
        let bytes = self.state.bytes.load(Relaxed);
        let free = self.prepare(tail, &mut base, source.len(), false)?.saturating_sub(self.held_back);
        let part = source.split_front(free as usize);
        let length = part.len() as u32;
        if length == 0 {
            return Ok(0);
        }
        let before = length.saturating_sub(1);
        self.mark_next(tail, bytes, before)?;
        announce();
        self.storage.copy_in(self.end, tail.wrapping_sub(base), part);
        self.echo();
        self.commit(tail.wrapping_add(length), base);
        self.state.urgent_at.store(bytes.wrapping_add(u64::from(before)), Relaxed);
        self.state.bytes.store(bytes.wrapping_add(u64::from(length)), Relaxed);
        self.wake_reader(bells)?;
        Ok(length as usize)
    }

    /// Announces one byte, stored where [`Writer::room_in_place`] said, and marks it urgent, as
    /// [`Writer::write_urgent`] does.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn publish_urgent(&self, bells: &impl Bells, announce: impl FnOnce()) -> Result<(), Fault> {
        let (tail, bytes) = (self.state.tail.load(Relaxed), self.state.bytes.load(Relaxed));
        self.mark_next(tail, bytes, 0)?;
        announce();
        let told = self.publish(1, bells);
        self.state.urgent_at.store(bytes, Relaxed);
        told
    }

    /// Marks the byte that will be written `before` bytes after `tail`.
    fn mark_next(&self, tail: u32, bytes: u64, before: u32) -> Result<(), Fault> {
        self.pass_over_old(tail, bytes)?;
        let number = self.state.urgent_number.load(Relaxed).wrapping_add(1).max(1);
        self.state.urgent_number.store(number, Relaxed);
        self.storage.set_urgent(self.end, joined(number, tail.wrapping_add(before)));
        Ok(())
    }

    /// Rule 4: lets a reader that stands at the last mark pass over its byte.
    fn pass_over_old(&self, tail: u32, bytes: u64) -> Result<(), Fault> {
        if self.state.urgent_number.load(Relaxed) == 0 {
            return Ok(());
        }
        let used = self.used(tail)?;
        let behind = bytes.wrapping_sub(self.state.urgent_at.load(Relaxed));
        let head = tail.wrapping_sub(used);
        let word = self.storage.passed(self.end);
        // Bytes that the reader has been told to pass over and has not reached yet are behind where it stands.
        let (from, count) = halves(word);
        let told = if from == head { count } else { 0 };
        if used != 0 && u64::from(used.saturating_sub(told)) == behind {
            self.storage.set_passed(self.end, joined(head, told.wrapping_add(1)));
        } else if told == 0 && word != 0 {
            // Counts wrap: what was said for another place must not hold again.
            self.storage.set_passed(self.end, 0);
        }
        Ok(())
    }

    /// For bytes that the peer has not read, and that are sent anew elsewhere, as by [`Writer::copy_back`]: how many
    /// there are from `offset` on before one that is to be sent as urgent; `None` if there is none. Those that a reader
    /// would have to pass over were urgent, too, each of them: a receiver that gets them so decides as ours would.
    ///
    /// # Errors
    /// [`Fault::HeadBeyondTail`].
    pub fn before_urgent(&self, offset: u32) -> Result<Option<u32>, Fault> {
        if self.state.urgent_number.load(Relaxed) == 0 {
            return Ok(None);
        }
        let unread = self.unread()?;
        let (from, count) = halves(self.storage.passed(self.end));
        let head = self.state.tail.load(Relaxed).wrapping_sub(unread);
        if from == head && offset < count && count <= unread {
            return Ok(Some(0));
        }
        let behind = self.state.bytes.load(Relaxed).wrapping_sub(self.state.urgent_at.load(Relaxed));
        let left = unread.saturating_sub(offset);
        Ok((behind <= u64::from(left)).then(|| left.wrapping_sub(behind as u32)))
    }

    /// Rule 7, when all else is up to date. A holder may have died before it stored its mark, before the byte of that,
    /// or before it noted where that stands.
    pub(crate) fn recover_mark(&self, tail: u32) {
        let bytes = self.state.bytes.load(Relaxed);
        let (number, noted) = (self.state.urgent_number.load(Relaxed), self.state.urgent_at.load(Relaxed));
        let (said, at) = halves(self.storage.urgent(self.end));
        if number == 0 && said == 0 {
            return;
        }
        let behind = tail.wrapping_sub(at);
        let mut last = at;
        if said == number && behind.wrapping_sub(1) < self.storage.ring_bytes() {
            self.state.urgent_at.store(bytes.wrapping_sub(u64::from(behind)), Relaxed);
        } else if said != number || at != noted as u32 || noted >= bytes {
            let number = number.saturating_sub(1);
            last = noted as u32;
            // In this order: who goes on after one that died in between finds the number without its mark.
            self.storage.set_urgent(self.end, if number == 0 { 0 } else { joined(number, last) });
            self.state.urgent_number.store(number, Relaxed);
        }
        // What a mark that never came was to make of the last one's byte. Not before that one is back: a reader would
        // take its byte for an ordinary one.
        let (from, count) = halves(self.storage.passed(self.end));
        let before = last.wrapping_sub(from);
        if before < count {
            self.storage.set_passed(self.end, joined(from, before));
        }
    }
}

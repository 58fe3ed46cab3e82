//! Rings and the wake protocol of a lane.
//!
//! A lane has two ends; each end writes one byte ring and reads the other. The lane's memory is shared
//! with a peer that may be hostile ([`Storage`]); each end's own state ([`TxState`], [`RxState`]) lives
//! where only the holders of that end can write. The kernel's part, a connected `AF_UNIX` stream socket
//! (the *anchor*) on which single bytes (*bells*) travel, is the [`Bells`] trait. This crate knows no
//! descriptors, forbids `unsafe`, and is modelled with loom (`tests/loom/`), but for urgent bytes, which
//! `tests/urgent.rs` has.
//!
//! # Who writes what
//!
//! | field | written by | read by |
//! |---|---|---|
//! | front(e): cursor = tail and base | e, under its tx lock | both |
//! | front(e): status = echo and flags | e, under its tx lock; when a connection is aborted, under its rx lock at least | both |
//! | head line(e): head | e, under its rx lock | both |
//! | head line(e): stamp | e, under a lock, before the cursor or flag that it is about | peer, as a hint |
//! | urgent(e), passed(e) | e, under its tx lock | peer |
//! | read_wake(e), by who is about to sleep | set by e, under its rx lock; cleared by the peer, and by e under that lock | peer |
//! | read_wake(e), to have the peer look at flags | set by e under a lock, whichever ([`force_peer_look`]) | peer |
//! | read_wake(e), as it was when the connection began | cleared by e without a lock, while nobody has set it ([`RxState::begin_awake`]) | peer |
//! | read_wake(e): order | set by e without a lock, beside the other bits | peer |
//! | write_wake(e) | set by e under a lock for this alone; cleared by the peer | peer |
//! | turn(e) | set by e without a lock; cleared by both | peer |
//! | offer | client until the hello; then by compare-and-swap ([`offer`]) | both |
//! | cpu(e) | e, without a lock | peer, as a hint |
//! | wanted(e) | e, without a lock | peer, as a hint |
//! | loan(e) | e, under its tx lock; by compare-and-swap the peer, under its rx lock ([`loan`]) | both |
//! | lent(e) | e, under its tx lock, before the loan | peer |
//! | fetched(e) | peer, under its rx lock, before it gives the loan back | e |
//! | sleep(e) | e, under its rx lock | peer |
//! | seat | server; claimed by the client, by compare-and-swap ([`seat`]) | both |
//! | `TxState`, `RxState` of e | e, under the lock of that direction | e |
//! | of them: `echo_seen` | e's reader, under its rx lock | e's writer |
//! | of them: `write_wake` | e, under a lock for this alone | e |
//! | of them: `bells` of `TxState`, `spared`, `ordered`, `bells_queued` | e, without a lock | e |
//!
//! # Ring
//!
//! 1. `tail` and `head` count bytes, modulo 2^32; a ring is at most 2^24 bytes, so `tail - head` is exact.
//! 2. The byte with count `c` stands at position `(c - base) mod ring_bytes`. The producer may move `base`
//!    (*rewind*) only while it knows the ring to be empty; `tail` and `base` travel in one word, so the
//!    consumer never pairs an old one with a new one. Rewinding keeps small traffic on the same lines.
//! 3. The producer writes bytes, then publishes the cursor (release). The consumer reads the cursor
//!    (acquire), then bytes, then publishes its head (release); the producer reads the head (acquire)
//!    before it reuses space.
//! 4. A peer's word is read once; `tail - head > ring_bytes` is impossible and a [`Fault`].
//! 5. A holder that dies before it publishes has done nothing: whoever takes the lock next goes on from
//!    the last published state. A holder that other processes wait for copies and
//!    publishes, and rings when it does not hold the lock any more: no system call keeps them waiting.
//!
//! # Waking a reader
//!
//! A wake word is `generation << 2 | order << 1 | armed`: bit 0 is [`WAKE_ARMED`], bit 1 [`WAKE_ORDER`].
//!
//! 1. A reader about to sleep *arms*: it counts the bells in its socket, stores a new armed generation,
//!    fences, and looks at the cursor again. Then it takes out the bells it counted (all but one when the
//!    ring holds data), and sleeps on the anchor if there is nothing new.
//! 2. A writer publishes its cursor, fences, and looks at the peer's read wake word. If it is armed, it
//!    sends a bell, *then* clears the word by compare-and-swap on the value it saw. A writer that dies
//!    between the two leaves the word armed: the next one rings again. A reader that arms anew meanwhile
//!    has changed the generation, the swap fails, and the word stays armed.
//! 3. By the two fences either the reader sees the data or the writer sees the armed word.
//! 4. Bells are taken out only after a look at the ring that came after arming, only those counted before
//!    it, and under the rx lock: whoever dies in between, or finds news and never reads it, leaves an
//!    armed word or a queued bell to the others that sleep, never silence.
//! 5. Outstanding are at most the kept bell, the present generation's, one of a writer that raced with arming or died,
//!    and one of each further writer of the end that rings at the same time, which is few compared with what a socket
//!    holds that is not plugged. So a bell never finds the socket full, which would lose it: the word would be cleared,
//!    and the bells that filled the socket counted before and taken out. A reader that counts over a thousand takes
//!    none of them out: they are a [`Fault`].
//! 6. An end that is closed, or sends no more, says so by a flag, fences, and rings a peer that it finds armed; its
//!    anchor may stay open, and as it was. Who arms looks at the flag behind the fence, and leaves the last bell to the
//!    others that sleep. An end that is closed or shut both ways arms its word behind the flag ([`force_peer_look`]),
//!    for the next write to find that. So who rings an end looks at its flags after the word, and leaves it armed if
//!    they say so.
//! 7. A bell may lie in the socket of a reader that looks at the ring itself and does not arm, or not yet. It may take
//!    all bells out ([`Reader::drain_bells`]) if it knows that nobody sleeps on the anchor and that whoever wants to
//!    will arm first, under the rx lock. It clears its word before, and notes that: the arming that follows has no bell
//!    to count. A writer that found the word armed may ring late; that bell ends one sleep in vain.
//! 8. Who sleeps on many lanes at once may give that *sleep* a number that no other sleep has, and name it in each of
//!    them when it arms. A writer that has rung for a sleep on one lane rings for it on no other one, and leaves the
//!    word armed there. So
//!    - the sleeper looks at all lanes that it has named the sleep in, whichever bell has woken it, and names another
//!      sleep in them, or none, before its next one, and looks at them once more behind a fence;
//!    - nobody else sleeps on such a lane, or has the kernel watch it: who wants to names no sleep when it arms;
//!    - nobody takes the bells out of such a lane while somebody sleeps by it, unless it wakes the sleeper another way;
//!      so no lane is armed twice for one sleep.
//!
//!    The writer reads the sleep behind its fence. If that is an old one, the new one's look at the tail finds what it
//!    has published. That an end is over is told on each lane, and so is what comes when the peer has read nothing for
//!    some bells: it may be dead.
//! 9. Who is told of each bell once, and of none that came before ([`Sleeping::by_edges`]), may leave those where they
//!    lie when it arms, if it may take them out by rule 7. It notes that bells lie there, for whoever arms next. They
//!    come on top of those that rule 5 allows: armings that have left some are counted, each may draw one more, and
//!    when there are so many as is little for a socket the next one takes them out ([`Reader::may_leave_bells`]). Who
//!    is told of a bell and does not look at the ring has lost it.
//!
//! # Waking a writer
//!
//! 1. A writer about to sleep makes the anchor's send buffer large, sends four bells, stores an armed word,
//!    fences, and looks at the peer's head again. Only if there is no room it *plugs*: it makes the send
//!    buffer so small that three bells leave the socket writable and four do not, and sleeps for `POLLOUT`.
//!    Plugging is the last step and cannot go wrong: if the reader has taken the bells out meanwhile, the
//!    socket stays writable. Until then it is writable, too, so that neither a writer that finds room nor
//!    one that dies leaves a plugged socket and no armed word to siblings that sleep.
//! 2. A writer that finds the anchor plugged and the word still armed joins its siblings' sleep as it is:
//!    a large buffer would wake them for nothing, and they it.
//! 3. A reader that has made room looks at the word, with a fence before for each eighth of the ring it has
//!    read. If the word is armed and a quarter of the ring is free, the reader takes out all bells but one,
//!    which makes the kernel report `POLLOUT`, then clears the word as above. One bell stays, because
//!    sleepers of the reader's own side may not have seen it yet. A writer that arms has seen less than a
//!    quarter free; by the fences it is told at the latest when three eighths are. One that leaves room free
//!    ([`Writer::holding_back`]) looks again whether it is still to, after it has armed.
//! 4. Writers arm one at a time, but beside one that writes: arming stores nothing that a write does. Bells of two that
//!    arm at one time would fill a socket that the first has plugged after the reader has cleared the second's word.
//! 5. A reader that arms while a writer must wait for room leaves four bells queued: taking them out would
//!    make the writer wake up, find no room and plug again, for ever.
//! 6. Bells lie nowhere at an end that reads no more: the kernel refuses them, and the anchor stays writable. So a
//!    writer that finds the peer's flag neither rings, arms nor plugs. The kernel always tells it of room, and when
//!    there is none it looks again every millisecond, without a word from the reader. Bells that the reader had before
//!    it said so stay there and plug as ever; of those that came too late the writer finds the flag when it is woken.
//!
//! # Turns
//!
//! Two ends on one CPU cannot run at one time. So a reader there is woken when a message is written, not for each chunk
//! of it, and an emptied ring is begun anew ([`Writer::beside_reader`]). What the writer has put into the ring should
//! still be in the cache when the reader runs, and a ring is larger than that; hence turns:
//!
//! 1. A writer whose peer is on its CPU finds the ring full when a *turn* is unread ([`Writer::in_turns`]). Then it
//!    sets its turn word, fences, looks at the peer's head again, and sleeps on the word for a short time at most.
//! 2. A reader that is about to sleep has had its turn. Behind the fence of arming it looks at the peer's turn word,
//!    clears it and wakes who sleeps there. By the two fences either the writer sees the new head or the reader sees
//!    the word.
//! 3. Nothing rests on it. The kernel's view of the connection is that of the whole ring; a reader that does something
//!    else and a word that the peer has spoilt cost the writer that short time, after which it uses the whole ring.
//!
//! Urgent bytes have rules of their own: [`urgent`]; so has what never comes into the ring: [`loan`].
//!
//! What a dead end had published stays to be read. [`Fault::Gone`] is the end of bells, not of bytes: whoever
//! learns it looks at the flags, then at the cursor (the reverse of the order in which the peer stored them),
//! and reads what is there.
//!
//! So the kernel's view of a quiet connection is never less ready than the truth once somebody has armed it: a bell is
//! queued or the word is armed whenever somebody may sleep. What came before that, who is about to sleep finds in the
//! ring.
#![cfg_attr(not(loom), no_std)]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod flags;
pub mod loan;
pub mod offer;
mod reader;
mod room;
pub mod seat;
mod state;
mod storage;
pub mod urgent;
mod wake;
mod writer;

pub use beeline_shm::{
    Cursor, End, INLINE_BYTES, LaneMemory, RING_BYTES_MAX, RING_BYTES_MIN, Sink, Source, WAKE_ARMED, WAKE_ORDER,
};
pub use reader::{Reader, Since, Sleeping};
pub use state::{BEGIN_ARMED, RxState, TxState};
pub use storage::{BellFault, Bells, Storage, Wake};
pub use wake::force_peer_look;
pub use writer::Writer;

/// Something the peer cannot have done by the rules, or its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The peer's cursor is further ahead than its ring is long.
    CursorBeyondRing,
    /// The peer claims to have read what was never written.
    HeadBeyondTail,
    /// A byte on the anchor that is no bell, or more bells than any peer rings.
    BadBell,
    /// The anchor reports that the peer is gone.
    Gone,
}

impl From<BellFault> for Fault {
    fn from(fault: BellFault) -> Self {
        match fault {
            BellFault::Gone => Fault::Gone,
            BellFault::BadBell => Fault::BadBell,
        }
    }
}

/// Whether a caller may sleep on the anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// Nothing to do: sleeping is safe, a bell will come.
    Sleep,
    /// There is something to do already.
    Ready,
}

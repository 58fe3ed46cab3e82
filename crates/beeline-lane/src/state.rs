//! The state of one end, shared by its holders and never by the peer.
//!
//! All fields are atomics because several processes map them. The lock of its direction orders the stores of a field,
//! unless the field says who else stores it. Whoever loads one without that lock gets a hint, or says what else it
//! compares.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What an end knows as a writer. Valid when zeroed.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TxState {
    /// Bytes written, modulo 2^32.
    pub(crate) tail: AtomicU32,
    /// Count of the byte at position 0 of the ring.
    pub(crate) base: AtomicU32,
    /// The last peer head that was checked.
    pub(crate) head_seen: AtomicU32,
    /// The last value stored into the write wake word. Stored by who arms, of whom there is one at a time, and not
    /// under the lock of the direction.
    pub(crate) write_wake: AtomicU32,
    /// An echo that a read of this end came by: what the peer had read when it last sent, modulo 2^48; unchecked.
    /// Stored by this end's reader, under the other lock, with release semantics: the writer uses the room that it
    /// tells of.
    pub(crate) echo_seen: AtomicU64,
    /// Bells sent. Stored without a lock: of two that ring at one time one may be counted.
    pub(crate) bells: AtomicU32,
    /// How far into the ring long messages came since it was last given back.
    pub(crate) reach: AtomicU32,
    /// Bytes written since the connection began.
    pub(crate) bytes: AtomicU64,
    /// Where the last urgent byte stands among them.
    pub(crate) urgent_at: AtomicU64,
    /// Its number; 0 before the first.
    pub(crate) urgent_number: AtomicU32,
    /// How many bells were not sent as the peer's sleep was rung for, and, four times that, what the peer had read
    /// then. Stored without a lock: two that spare one at one time may count one.
    pub(crate) spared: AtomicU32,
}

/// What an end knows as a reader. Valid when zeroed.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RxState {
    /// Bytes read, modulo 2^32.
    pub(crate) head: AtomicU32,
    /// The last value stored into the read wake word.
    pub(crate) read_wake: AtomicU32,
    /// Whether bells may be queued on the anchor beyond what the wake word tells. Stored by anyone who hears of one,
    /// without a lock: what an arming at that time makes of it is a sleep in vain at most.
    pub(crate) bells_queued: AtomicU32,
    /// Bells taken out.
    pub(crate) bells: AtomicU32,
    /// Bytes read since the connection began. Loaded by this end's writer, too, which echoes it: stored with release
    /// semantics, after the copying.
    pub(crate) bytes: AtomicU64,
    /// Number of the last urgent byte that reading went past.
    pub(crate) urgent_passed: AtomicU32,
    /// Number of the last urgent byte that was taken out of turn.
    pub(crate) urgent_taken: AtomicU32,
    /// Whether urgent bytes are read in their turn (`SO_OOBINLINE`).
    pub(crate) urgent_inline: AtomicU32,
    /// Where the reader stood, in bytes read plus one, when what it was told to pass over there was to be kept.
    pub(crate) urgent_kept: AtomicU64,
    /// What each armed read wake word holds besides: whether stamps are wanted. Stored without a lock, and never taken
    /// back: an arming at that time may leave it out once.
    pub(crate) ordered: AtomicU32,
    /// Armings that have left bells lying, since some were taken out.
    pub(crate) bells_left: AtomicU32,
    /// The number of the sleep that a bell would end, as the lane says it; 0 for none that has one.
    pub(crate) sleep: AtomicU64,
}

/// The read wake words of a lane at the beginning of a connection: generation 0, armed.
pub const BEGIN_ARMED: u32 = 1;

impl TxState {
    /// As after `count` bytes, all of them read: lets tests begin where the counters wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn starting_at(count: u64) -> Self {
        let at = || AtomicU32::new(count as u32);
        let bytes = || AtomicU64::new(count);
        Self { tail: at(), base: at(), head_seen: at(), echo_seen: bytes(), bytes: bytes(), ..Self::default() }
    }

    /// Bytes written since the connection began.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Bytes written, modulo 2^32: with a peer's head, tells how much room there is.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail.load(Relaxed)
    }

    /// Bytes that the peer has not read as far as this end knows, without a look at the peer's lines: never too
    /// few.
    #[must_use]
    #[inline]
    pub fn unread_known(&self) -> u32 {
        self.tail.load(Relaxed).wrapping_sub(self.head_seen.load(Relaxed))
    }

    /// Bells sent since the connection began.
    #[must_use]
    pub fn bells(&self) -> u32 {
        self.bells.load(Relaxed)
    }

    /// Bytes of the ring, from its beginning, that may hold memory.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.reach.load(Relaxed)
    }
}

impl RxState {
    /// As after `count` bytes: lets tests begin where the counters wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn starting_at(count: u64) -> Self {
        Self { head: AtomicU32::new(count as u32), bytes: AtomicU64::new(count), ..Self::default() }
    }

    /// Bytes read since the connection began.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Bells taken out since the connection began.
    #[must_use]
    pub fn bells(&self) -> u32 {
        self.bells.load(Relaxed)
    }

    /// Begins a connection with the read wake word armed, so that the first bytes ring. The words in the
    /// lane are stored by whoever makes the connection, before the peer learns of it.
    pub fn begin_armed(&self) {
        self.read_wake.store(BEGIN_ARMED, Relaxed);
    }

    /// Nobody has slept on this end since the connection began armed, and the caller is about to look again and again:
    /// takes the arming back, so that the first bytes do not ring. May be called without the lock, where no other
    /// process holds the end.
    pub fn begin_awake(&self, storage: &impl crate::Storage, end: beeline_shm::End) {
        if self.read_wake.load(Relaxed) == BEGIN_ARMED && storage.wake(end, crate::Wake::Read) == BEGIN_ARMED {
            storage.clear_wake(end, crate::Wake::Read, BEGIN_ARMED);
        }
    }

    /// Whether urgent bytes are read in their turn, like others, from the beginning of the connection on. Later, see
    /// [`crate::Reader::set_inline`].
    pub fn set_urgent_inline(&self, inline: bool) {
        self.urgent_inline.store(u32::from(inline), Relaxed);
    }

    /// Has the peer say when an empty ring got something to read: order matters among several connections. May be
    /// called without the lock.
    pub fn ask_order(&self, storage: &impl crate::Storage, end: beeline_shm::End) {
        if self.ordered.load(Relaxed) == 0 {
            self.ordered.store(beeline_shm::WAKE_ORDER, Relaxed);
            storage.ask_order(end);
        }
    }

    /// Remembers that the kernel reported the anchor readable, so that the next arming takes bells out.
    pub fn note_bell(&self) {
        self.bells_queued.store(1, Relaxed);
    }

    /// Whether bells may be queued, as far as this end knows: the peer has answered the last arming, or there were
    /// some. A hint to who does not hold the lock.
    #[must_use]
    pub fn may_have_bells(&self, storage: &impl crate::Storage, end: beeline_shm::End) -> bool {
        let last = self.read_wake.load(Relaxed);
        let rung = last & beeline_shm::WAKE_ARMED != 0 && storage.wake(end, crate::Wake::Read) != last;
        rung || self.bells_queued.load(Relaxed) != 0
    }

    /// The number of the sleep that it was armed for with others last; 0 if it was armed alone. Changes under the lock.
    #[must_use]
    #[inline]
    pub fn sleep(&self) -> u64 {
        self.sleep.load(Relaxed)
    }

    /// Bytes read, modulo 2^32: with a cursor's tail, tells whether there is more.
    #[must_use]
    #[inline]
    pub fn head(&self) -> u32 {
        self.head.load(Relaxed)
    }
}

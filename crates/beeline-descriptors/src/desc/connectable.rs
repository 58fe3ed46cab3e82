//! Whether a socket can be connected, by whom, and what keeps it on TCP.

use core::sync::atomic::{
    AtomicU16,
    Ordering::{Acquire, Relaxed},
};

use beeline_stats::Reason;

use beeline_guest::reason_cell::{decode, encode};

/// How far the connecting of a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connectable {
    /// Nobody connects it, and nothing keeps it on TCP.
    Free,
    /// A thread connects it, and nothing keeps it on TCP: another thread may put a reason there.
    Claimed,
    /// The kernel was asked to connect it: it has no lane, or no other one, for good.
    Settled,
    /// It must stay on TCP.
    Blocked(Reason),
}

/// That, in an atomic; free when zeroed.
#[derive(Default)]
#[repr(transparent)]
pub struct ConnectableCell(AtomicU16);

const CLAIMED: u16 = u16::MAX;
const SETTLED: u16 = encode(Some(Reason::ConnectPending));

impl ConnectableCell {
    pub fn get(&self) -> Connectable {
        match self.0.load(Relaxed) {
            CLAIMED => Connectable::Claimed,
            SETTLED => Connectable::Settled,
            word => decode(word).map_or(Connectable::Free, Connectable::Blocked),
        }
    }

    /// What keeps the socket on TCP, if anything does.
    pub fn reason(&self) -> Option<Reason> {
        decode(self.0.load(Relaxed))
    }

    /// Whether the caller is the thread that connects the socket now, where it was as it had `seen` it: free, or
    /// settled.
    pub fn claim(&self, seen: Connectable) -> bool {
        let word = match seen {
            Connectable::Free => encode(None),
            Connectable::Settled => SETTLED,
            Connectable::Claimed | Connectable::Blocked(_) => return false,
        };
        self.0.compare_exchange(word, CLAIMED, Acquire, Relaxed).is_ok()
    }

    /// The kernel connects the socket, or has, for good.
    pub fn settle(&self) {
        self.0.store(SETTLED, Relaxed);
    }

    /// Keeps a socket that is not connected yet on TCP, also if another thread is connecting it: that one finds it, if
    /// it has no lane yet. The first reason counts.
    pub fn block(&self, reason: Reason) {
        let unblocked = |word: u16| matches!(word, 0 | CLAIMED).then_some(encode(Some(reason)));
        let _ = self.0.fetch_update(Relaxed, Relaxed, unblocked);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_connects_and_the_first_reason_counts() {
        let cell = ConnectableCell::default();
        assert!(cell.claim(Connectable::Free));
        assert!(!cell.claim(Connectable::Free), "another one");
        assert_eq!((cell.get(), cell.reason()), (Connectable::Claimed, None));
        cell.block(Reason::AsyncIo);
        cell.block(Reason::StdioDescriptor);
        assert_eq!(cell.get(), Connectable::Blocked(Reason::AsyncIo));
        assert_eq!(cell.reason(), Some(Reason::AsyncIo));
        assert!(!cell.claim(cell.get()));
    }

    #[test]
    fn what_is_settled_is_not_blocked_and_can_be_claimed_again() {
        let cell = ConnectableCell::default();
        cell.settle();
        cell.block(Reason::AsyncIo);
        assert_eq!((cell.get(), cell.reason()), (Connectable::Settled, Some(Reason::ConnectPending)));
        assert!(cell.claim(Connectable::Settled));
        assert_eq!(cell.get(), Connectable::Claimed);
    }
}

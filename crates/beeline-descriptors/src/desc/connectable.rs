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
    /// The kernel was asked to connect it.
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
/// The kernel was asked, too; the reason stays below.
const ASKED: u16 = 1 << 15;

impl ConnectableCell {
    pub fn get(&self) -> Connectable {
        match self.0.load(Relaxed) {
            CLAIMED => Connectable::Claimed,
            SETTLED => Connectable::Settled,
            word if word & ASKED != 0 => Connectable::Settled,
            word => decode(word).map_or(Connectable::Free, Connectable::Blocked),
        }
    }

    /// What keeps the socket on TCP, if anything does.
    pub fn reason(&self) -> Option<Reason> {
        match self.0.load(Relaxed) {
            CLAIMED => None,
            word => decode(word & !ASKED),
        }
    }

    /// Whether the caller is the thread that connects the socket now, where it was as it had `seen` it: free, or
    /// settled with nothing that keeps it on TCP.
    pub fn claim(&self, seen: Connectable) -> bool {
        let word = match seen {
            Connectable::Free => encode(None),
            Connectable::Settled => SETTLED,
            Connectable::Claimed | Connectable::Blocked(_) => return false,
        };
        self.0.compare_exchange(word, CLAIMED, Acquire, Relaxed).is_ok()
    }

    /// The kernel connects the socket, or has. What keeps it on TCP does so at the next attempt, too.
    pub fn settle(&self) {
        let settled = |word: u16| match word {
            0 | CLAIMED | SETTLED => SETTLED,
            word => word | ASKED,
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, |word| Some(settled(word)));
    }

    /// Keeps a socket that is not connected yet on TCP, also if another thread is connecting it: that one finds it, if
    /// it has no lane yet. The first reason counts.
    pub fn block(&self, reason: Reason) {
        let blocked = |word: u16| match word {
            0 | CLAIMED => Some(encode(Some(reason))),
            SETTLED => Some(encode(Some(reason)) | ASKED),
            _ => None,
        };
        let _ = self.0.fetch_update(Relaxed, Relaxed, blocked);
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
    fn what_is_settled_can_be_claimed_again_unless_something_keeps_it_on_tcp() {
        let cell = ConnectableCell::default();
        cell.settle();
        assert_eq!((cell.get(), cell.reason()), (Connectable::Settled, Some(Reason::ConnectPending)));
        assert!(cell.claim(Connectable::Settled));
        assert_eq!(cell.get(), Connectable::Claimed);
        cell.settle();
        cell.block(Reason::AsyncIo);
        assert!(!cell.claim(Connectable::Settled), "blocked after the attempt");
        assert_eq!((cell.get(), cell.reason()), (Connectable::Settled, Some(Reason::AsyncIo)));
        let cell = ConnectableCell::default();
        cell.block(Reason::FastOpen);
        cell.settle();
        assert!(!cell.claim(Connectable::Settled), "blocked before");
        assert_eq!(cell.reason(), Some(Reason::FastOpen));
    }
}

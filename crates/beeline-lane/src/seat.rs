//! Whether the process that keeps a server's end waits for clients, where other processes may take them, too.
//!
//! Of processes that share a listener a client is served by one that waits in `accept`. A client that says hello again,
//! over an end that one of them keeps, must not find that one at something else while another waits. So such an end has
//! a *seat*:
//!
//! 1. Where the server alone takes the listener's clients its end has no seat, [`NONE`], and the client may come at any
//!    time.
//! 2. Else the server stores the seat, empty, with a number of its own ([`empty`]), before it gives the lane back.
//!    Beside the number there is no way to tell that the lane has served another connection since, and has another
//!    server's seat now.
//! 3. A server that is about to wait for clients takes the seat ([`sit`]), and leaves it when it does not wait any
//!    more, for whatever reason ([`rise`]).
//! 4. A client claims the server that sits there ([`claim`]), and then says hello. Claiming and leaving are
//!    compare-and-swaps on one word, of which one alone can succeed: so a server that finds itself claimed has a
//!    client, and takes it, or closes the end.
//! 5. A server that gives an end up says so by [`NONE`] ([`abandon`]): its client finds the anchor dead, and has the
//!    lane for another hello.
//!
//! Not even a claimed server is sure to come: it may be stopped, or killed, in its wait. What the client said is an
//! offer as any other ([`crate::offer`]), and is withdrawn in time.
//!
//! The peer may be hostile: a word that it has spoilt costs the end, or lets a client wait for its own server.

#[cfg(not(loom))]
use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};
#[cfg(loom)]
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Release},
};

/// The end has no seat.
pub const NONE: u32 = 0;

const STATE: u32 = 3;
const EMPTY: u32 = 1;
const TAKEN: u32 = 2;
const CLAIMED: u32 = 3;

/// What a server finds that leaves its seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rise {
    /// Nobody has claimed it.
    Unclaimed,
    /// A client has, and says hello, or has said it.
    Claimed,
    /// The seat is another's.
    Lost,
}

/// An empty seat of this number.
#[must_use]
pub fn empty(number: u32) -> u32 {
    number & !STATE | EMPTY
}

/// Stores a seat: [`NONE`], or one that is [`empty`].
pub fn place(word: &AtomicU32, seat: u32) {
    word.store(seat, Release);
}

/// The server waits for clients from now on. `empty` is what it has stored.
pub fn sit(word: &AtomicU32, empty: u32) {
    let _ = word.compare_exchange(empty, empty & !STATE | TAKEN, AcqRel, Acquire);
}

/// The server waits no more.
#[must_use]
pub fn rise(word: &AtomicU32, empty: u32) -> Rise {
    match word.compare_exchange(empty & !STATE | TAKEN, empty, AcqRel, Acquire) {
        Ok(_) => Rise::Unclaimed,
        Err(seen) if seen == empty => Rise::Unclaimed,
        Err(seen) if seen == empty & !STATE | CLAIMED => Rise::Claimed,
        Err(_) => Rise::Lost,
    }
}

/// Whether a client has claimed the server, which has not left its seat yet.
#[must_use]
pub fn is_claimed(word: &AtomicU32, empty: u32) -> bool {
    word.load(Acquire) == empty & !STATE | CLAIMED
}

/// The server gives the end up. Nothing changes where a client has claimed it, or the seat is another's.
pub fn abandon(word: &AtomicU32, empty: u32) {
    if word.compare_exchange(empty, NONE, AcqRel, Acquire).is_err() {
        let _ = word.compare_exchange(empty & !STATE | TAKEN, NONE, AcqRel, Acquire);
    }
}

/// Whether a client that claims the server now would have it.
#[must_use]
pub fn may_claim(word: &AtomicU32) -> bool {
    let seen = word.load(Acquire);
    seen == NONE || seen & STATE == TAKEN
}

/// The client claims the server. False if that is at something else.
#[must_use]
pub fn claim(word: &AtomicU32) -> bool {
    let seen = word.load(Acquire);
    let claims = || word.compare_exchange(seen, seen & !STATE | CLAIMED, AcqRel, Acquire).is_ok();
    seen == NONE || seen & STATE == TAKEN && claims()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SEAT: u32 = 7 << 2 | EMPTY;

    #[test]
    fn one_alone_leaves_or_claims() {
        let word = AtomicU32::new(NONE);
        assert!(may_claim(&word) && claim(&word) && claim(&word), "no seat, no claim");
        place(&word, empty(7 << 2));
        assert!(!may_claim(&word) && !claim(&word));
        sit(&word, SEAT);
        assert!(may_claim(&word));
        assert_eq!(rise(&word, SEAT), Rise::Unclaimed);
        assert!(!claim(&word));
        sit(&word, SEAT);
        assert!(claim(&word) && !claim(&word) && !may_claim(&word));
        assert_eq!(rise(&word, SEAT), Rise::Claimed);
        sit(&word, SEAT);
        assert_eq!(rise(&word, SEAT), Rise::Claimed, "until the next seat is placed");
        abandon(&word, SEAT);
        assert!(is_claimed(&word, SEAT) && !is_claimed(&word, 9 << 2 | EMPTY));
    }

    #[test]
    fn what_is_given_up_has_no_seat() {
        for sits in [false, true] {
            let word = AtomicU32::new(SEAT);
            if sits {
                sit(&word, SEAT);
            }
            abandon(&word, 9 << 2 | EMPTY);
            assert_ne!(word.load(Acquire), NONE, "another's");
            abandon(&word, SEAT);
            assert_eq!(word.load(Acquire), NONE);
        }
    }

    #[test]
    fn a_seat_of_another_number_is_anothers() {
        let word = AtomicU32::new(NONE);
        place(&word, empty(9 << 2));
        sit(&word, SEAT);
        assert!(!claim(&word));
        assert_eq!(rise(&word, SEAT), Rise::Lost);
    }
}

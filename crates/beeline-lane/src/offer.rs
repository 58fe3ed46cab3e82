//! Whether a lane that a client has offered is taken: the one word on which both ends agree.
//!
//! A hello lies in a door's queue until somebody takes it, who may be slow, stopped, or never come. So the client may
//! take it back, and go another way with what lies in its ring. Both are done by compare-and-swap on one word, of which
//! at most one can succeed.
//!
//! 1. The client makes the word [`OFFERED`] before it says hello (but for 7).
//! 2. The server takes the lane by [`take`], when all that may fail has been done, and before it reads a byte. Who is
//!    too late closes its end of the anchor, and has never had a client.
//! 3. The client takes it back by [`withdraw`], and sends no byte of the ring another way before.
//! 4. A client that finds no other way, after all, and has sent nothing, may offer the lane again ([`offer_again`]). A
//!    server that looked in between has closed its end of the anchor, which tells the client to withdraw once more.
//! 5. From [`TAKEN`] on the word never changes, until the lane is used for another connection. Whoever sees that the
//!    anchor's other end is closed, and withdraws then, knows that nobody has read or will read a byte.
//! 6. A server says in its flags, too, that it has taken the lane ([`crate::flags::TAKEN`]), after [`take`]: for
//!    clients that look at the flags anyway. One that dies between the two has taken it.
//!
//! # A hello that need not be said
//!
//! Both ends may know a lane by the name of its last connection. A client that uses it again under that name may be at
//! the door before it has said hello: the server, woken by its coming, is quicker, and would have to wait for it.
//!
//! 7. Then the client makes the word [`named`] when all else is as it is to be for a hello, and before it is at the
//!    door. Afterwards it says hello if [`say`] tells it to, and then only.
//! 8. A server that finds at its door whom the name belongs to, and the lane's word like this, [`hear`]s the hello that
//!    nobody has said. From then on the word is [`OFFERED`], and none will come. Who is too late awaits the hello.
//! 9. Whoever gives up at the door, saying nothing, takes the lane back ([`take_back`]) if it can, and never uses it
//!    again: a server that has heard it may be about to take it, and would not know it from the next offer.
//!
//! The word is the client's to write, which may be hostile: it spoils its own connection. Either end reads it once for
//! each decision.

#[cfg(not(loom))]
use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};
#[cfg(loom)]
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};

/// Nobody has decided yet.
pub const OFFERED: u32 = 0;
/// The server has the lane.
pub const TAKEN: u32 = 1;
/// The client has taken it back.
pub const WITHDRAWN: u32 = 2;
/// In the two lowest bits: nobody has said hello. The others are of the name's sum.
const UNSAID: u32 = 3;

/// The word of a lane that is known by a name with this sum, and whose hello nobody has said yet.
#[must_use]
pub const fn named(sum: u32) -> u32 {
    sum << 2 | UNSAID
}

/// Whether the client is to say hello: nobody has heard it without.
#[must_use]
pub fn say(word: &AtomicU32) -> bool {
    let seen = word.load(Acquire);
    seen & UNSAID == UNSAID && word.compare_exchange(seen, OFFERED, AcqRel, Acquire).is_ok()
}

/// The server has heard the hello of a lane whose word was `named`. False if the client is about to say it, or has
/// given up.
#[must_use]
pub fn hear(word: &AtomicU32, named: u32) -> bool {
    word.compare_exchange(named, OFFERED, AcqRel, Acquire).is_ok()
}

/// The client, which has said nothing, takes back a lane that is known by a name. False if a server has it.
pub fn take_back(word: &AtomicU32) -> bool {
    let seen = word.load(Acquire);
    // Only a server changes it now, and at most twice.
    seen & UNSAID == UNSAID && word.compare_exchange(seen, WITHDRAWN, AcqRel, Acquire).is_ok() || withdraw(word)
}

/// The server takes the lane. False if the client has withdrawn it.
#[must_use]
pub fn take(word: &AtomicU32) -> bool {
    word.compare_exchange(OFFERED, TAKEN, AcqRel, Acquire).is_ok()
}

/// The client takes the lane back. False if a server has it, now or for good.
#[must_use]
pub fn withdraw(word: &AtomicU32) -> bool {
    // It may have done so before.
    matches!(word.compare_exchange(OFFERED, WITHDRAWN, AcqRel, Acquire), Ok(_) | Err(WITHDRAWN))
}

/// The client, which has withdrawn the lane and sent nothing another way, leaves it to the server again.
pub fn offer_again(word: &AtomicU32) {
    let _ = word.compare_exchange(WITHDRAWN, OFFERED, AcqRel, Acquire);
}

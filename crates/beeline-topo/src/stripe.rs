//! Carrying bytes of many connections over several rails: over which rail, and in which order they arrive. Who is next the bridge
//! decides: its hot connections in turn, each with a bounded number of bytes.
//!
//! Three parts, each by itself; the bridge puts them together:
//!
//! | part | one for each | says |
//! |---|---|---|
//! | [`Rates`] | pair of hosts | how fast each rail is, which one would have a chunk there first, and how much it holds |
//! | [`Ledger`] | direction of a connection, sender | which chunk is where, and which must be sent again |
//! | [`Reorder`] | direction of a connection, receiver | how far the bytes are complete |
//!
//! Rules:
//!
//! 1. A chunk is handed out to one rail at a time. It is handed out again only after the **receiver** has closed its end
//!    of that rail and said which ranges had come over it: until then a late write could land in space that is used
//!    again. [`Ledger`] has no other way to get a chunk back.
//! 2. A rail that comes back is another **life** of it. What belongs to an earlier life is not acknowledged by the later.
//! 3. A receiver's memory does not grow with what a sender does: a sender keeps at most `pieces_max` pieces that are not
//!    acknowledged, and what lies above a gap is at most as many intervals as there are gaps, so an honest sender never
//!    meets the receiver's limit if both use the same number.

mod ledger;
mod rates;
mod reorder;

use serde::{Deserialize, Serialize};

pub use ledger::{Chunk, Ledger, LedgerError, Returned};
pub use rates::{Rates, SAMPLE_BYTES, Share};
pub use reorder::{Refusal, Reorder};

/// The bound of rule 3 that a bridge uses if it has no reason for another one.
pub const PIECES_MAX: usize = 64;

/// A rail between its coming up and its going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RailLife {
    /// The rail's index in [`Rates`].
    pub rail: usize,
    /// Counts how often it came up.
    pub life: u32,
}

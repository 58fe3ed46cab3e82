//! Carrying bytes of many connections over several rails: over which rail, and in which order they arrive. Who is next
//! the bridge decides: its hot connections in turn, each with a bounded number of bytes.
//!
//! Two of the parts are here, each by itself; the third is the bridge's, which puts them together:
//!
//! | part | one for each | says |
//! |---|---|---|
//! | [`Rates`] | pair of hosts | how fast each rail is, which one would have a chunk there first, and how much it holds |
//! | [`Reorder`] | direction of a connection, receiver | how far the bytes are complete |
//! | `Sender` (`crates/beelined/src/data/sender.rs`) | direction of a connection, sender | which piece is where, and which must be sent again |
//!
//! Rules:
//!
//! 1. A chunk is handed out to one rail at a time. It is handed out again only after the **receiver** has closed its
//!    end of that rail and said which ranges had come over it: until then a late write could land in space that is used
//!    again. `Sender` has no other way to get a chunk back.
//! 2. A rail that comes back is another **life** of it. What belongs to an earlier life is not acknowledged by the
//!    later.
//! 3. A receiver's memory does not grow with what a sender does: what lies above a gap is at most as many intervals as
//!    there are gaps, of which it notes at most [`PIECES_MAX`]. A sender begins no new piece while it keeps as many
//!    that are not acknowledged, and sends again the first of them only.
//!
//! `crates/beelined/src/data/tests.rs` holds the parts together to these rules, on rails that fail and return.

mod rates;
mod reorder;

use serde::{Deserialize, Serialize};

pub use rates::Rates;
pub use reorder::{Refusal, Reorder};

/// The bound of rule 3, of sender and receiver.
pub const PIECES_MAX: usize = 64;

/// A rail between its coming up and its going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RailLife {
    /// The rail's index in [`Rates`].
    pub rail: usize,
    /// Counts how often it came up.
    pub life: u32,
}

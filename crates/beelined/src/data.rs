//! The data plane: bytes between lanes of local processes and the rails to other hosts.
//!
//! * [`record`]: what two bridges say over a rail;
//! * [`sender`]: what of a direction was sent, and what of it has come; `ring`: the memory of a lane that a rail's
//!   adapter reads or writes;
//! * [`connection`]: one connection with its lane and both directions; `table`: connections by their numbers;
//!   `quota`: how many of them a peer may have;
//! * [`link`]: a connected endpoint, its messages and credits; `link_rates`: what each was measured to carry;
//! * `link_words`, `losses`: what two bridges say to each other about links that are lost, and what a connection has
//!   lost with them; `health`: whether a rail fails for good;
//! * `ledger`, `probe`: whether TCP would be faster, and how that is measured; [`own_time`]: what the bridge itself
//!   adds to a message's trip;
//! * [`engine`]: the loop that moves everything.

pub mod connection;
pub mod engine;
mod health;
mod ledger;
pub mod link;
mod link_rates;
mod link_words;
mod losses;
pub mod own_time;
mod probe;
mod quota;
pub mod record;
mod ring;
pub mod sender;
mod table;
#[cfg(test)]
mod tests;

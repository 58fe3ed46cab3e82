//! The data plane: bytes between lanes of local processes and the rails to other hosts.
//!
//! * [`record`]: what two bridges say over a rail;
//! * [`sender`]: what of a direction was sent, and what of it has come;
//! * [`connection`]: one connection with its lane and both directions;
//! * [`link`]: a connected endpoint, its messages and credits;
//! * `ledger`, `probe`: whether TCP would be faster, and how that is measured;
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

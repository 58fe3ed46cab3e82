//! What a running bridge tells of itself, and how that looks.
//!
//! The bridge and the command share this crate: `beelined status` and `beeline stat` show the same, and the command
//! need not be linked against libfabric for it.
//!
//! * [`ask`]: asking the bridge at its administrator's socket;
//! * [`document`]: what it answers;
//! * [`people`]: the answer as tables;
//! * [`layout`], [`number`]: tables, and numbers with their units, for everything that is printed;
//! * [`manual`]: the manual pages of both programs.

#![forbid(unsafe_code)]

pub mod ask;
pub mod document;
pub mod layout;
pub mod manual;
pub mod number;
pub mod people;

/// The commands of `beelined`: what `beeline bridge` can be asked for.
pub const COMMANDS: [&str; 9] = ["run", "keygen", "trust", "distrust", "trusted", "status", "set", "drain", "rails"];

pub use ask::{Answer, Problem, Request};
pub use document::Document;

//! The formats Beeline speaks: bytes in, values out, no I/O.
//!
//! 1. [`names`]: the abstract `AF_UNIX` names of doors and of clients' anchors. The kernel keeps
//!    such a name unique and frees it with its socket, which is why a client's address is
//!    reserved by a name and not claimed in a message.
//! 2. [`hello`]: the first message on an anchor. It comes from a client that may be hostile.
//! 3. [`again`]: the first message on an anchor that both ends have kept.
//! 4. [`diag`]: the question which listener would take a connection, and the kernel's answer.
//! 5. [`route`]: the question where an address leads, and the kernel's answer.
//! 6. [`bridge`]: the name of the bridge's door, and its answer to a hello.
//! 7. [`agent`]: what programs ask the agent that brings network namespaces together, and its answers.
//!
//! Everything that is decoded is checked completely before a value leaves the decoder: there is
//! one form of each message, and what is not exactly that form is an error. Replies of the kernel
//! are checked like a peer's, because whoever holds a netlink socket may be fooled into reading
//! an old reply or one of another process. The crate does not allocate.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(test)]
extern crate std;

mod address;
pub mod addresses;
pub mod again;
pub mod agent;
pub mod bridge;
mod bytes;
pub mod diag;
pub mod hello;
pub mod names;
mod netlink;
pub mod route;

pub use again::Again;
pub use bridge::Verdict;
pub use hello::{BELL, Held, Hello};
pub use names::{ConnName, DoorName, Endpoint, NameBuf};

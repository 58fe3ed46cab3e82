//! Which fds of a process lead to what of ours, who keeps it, and how it ends.
//!
//! [`desc`] is what this process knows of an open file description, [`table`] leads there from an fd, and [`guards`]
//! are a description that is locked or pinned for one. [`close`], [`linger`] and [`orphan`] are how descriptions end,
//! [`ending`] and [`follow`] how connections do. What is done with a description of a kind is a table of
//! [`operations`]: those who know listeners, epoll sets and the ways to connect stand above, and [`watchers`] are who
//! of them is told of changes.
//!
//! Sends and receives, which come by here each time, know lanes and call nothing through a table.
//!
//! # Lock order
//!
//! epoll set, then listener, then a description's `tx`, then its `rx`; the fd table's lock is innermost.
//! Nobody sleeps in the kernel with any of them held, but for milliseconds, and each time for a bounded number of them:
//!
//! 1. Who arms a lane for room naps while another process that shares it does, or until there is memory for bells
//!    ([`desc::TxGuard::arm`]).
//! 2. A bell for which there is no memory is tried again for a second at most (`ring_patiently` of beeline-meeting).
//! 3. Who ends a connection, or tells the peer what it means if the end vanishes ([`ending::poison`], [`ending::cut`],
//!    [`ending::tell_linger`]), closes its last number (`meet/lane.rs` of beeline-sockets) or leaves it to another
//!    program (`life/leaving.rs` there) naps with both directions locked while another process that shares the end is
//!    in a send, 20 times at most: one that is stopped there holds up this end's threads for so long, and with the last
//!    two, which are changes of numbers, whoever changes one.

// Nothing in here may end the program that it is a guest of.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod anchor;
pub(crate) mod attempts;
pub mod bulk;
pub mod close;
pub mod desc;
pub mod ending;
pub mod follow;
pub mod guards;
pub mod linger;
pub mod loans;
pub mod operations;
pub mod orphan;
pub mod own;
pub mod read_pacing;
pub mod reclaim;
mod rung;
pub mod slots;
pub mod table;
pub(crate) mod trials;
pub mod turns;
pub mod untaken;
pub mod watchers;

// What stands below keeps its names here.
use beeline_guest::{
    Errno, cancel, changing, control, fd_cell, hidden, kernel, limits, live, lock, process, slab, static_ref, stats,
    wait,
};
use beeline_meeting::{bells, disarm, side};

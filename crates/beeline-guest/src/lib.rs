//! Living in somebody else's process.
//!
//! What any guest there needs, whatever it is there for: kernel calls, the program's memory and its limits, threads,
//! signals, cancellation, locks, storage, waits, and the process's figures. Nothing here knows sockets or lanes.
//!
//! # Rules
//!
//! 1. Nothing here allocates from libc's heap, takes a lock that a signal handler or a `fork` child could
//!    find taken for ever, starts a thread, or prints. Memory comes from mappings that are never given
//!    back to be something else ([`slab`]), so a stale pointer meets a recycled object, never garbage.
//! 2. Kernel calls are made directly ([`kernel`]): libc's names are the ones we interpose.
//! 3. A *critical section* ([`thread::Section`]) is short, never blocks, and is never interrupted by the
//!    app's signal handlers: they are put off until it ends ([`signals`]).
//! 4. A section commits by single stores, so that a process that is killed in one leaves a consistent
//!    connection to whoever shares it.
//!
//! [`upkeep`] is how waits do what crates above have to do.

// Nothing in here may end the program that it is a guest of.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod app_memory;
pub mod aside;
pub mod birth;
pub mod cancel;
pub mod changing;
pub mod control;
mod cpus;
pub mod fd_cell;
pub mod files;
pub mod hidden;
pub mod kernel;
pub mod lazy_fd;
pub mod limits;
pub mod linux;
pub mod lock;
pub mod outcome;
pub mod proc;
pub mod process;
pub mod reason_cell;
pub mod shed;
pub mod signals;
pub mod slab;
pub mod static_ref;
pub mod stats;
pub mod thread;
pub mod trial;
pub mod upkeep;
pub mod wait;

pub use crate::outcome::{Errno, Outcome};
pub use crate::process::{config, forks};
pub use crate::stats::settings::{live, may_begin};

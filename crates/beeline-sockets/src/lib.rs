//! Socket semantics over lanes.
//!
//! This crate is what `libbeeline.so` does when an app calls into it; `beeline-preload` only gives each
//! function its libc name. Each entry point takes what the libc function takes and answers with an
//! [`Outcome`]: done, failed with an errno, or "not ours, let the kernel do it".
//!
//! # Layers
//!
//! Modules import downwards only; the table is in `ci/layers.toml`. From the top: [`calls`] is what an app calls to make
//! something of ours; [`life`] follows its fds, forks and programs; [`options`]; [`meet`] is how two ends find each other;
//! [`poll`] and [`epoll`] wait for several, [`io`] for one, and move bytes. Below them [`desc`] and [`table`] know what an fd
//! leads to, and [`operations`] and `watchers` are how those below reach those above. At the bottom stands what any guest in
//! a foreign process needs: [`process`], [`wait`], [`stats`], [`signals`], [`lock`], [`slab`], [`thread`], [`kernel`].
//!
//! # Life in somebody else's process
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
//! # Lock order
//!
//! epoll set, then listener, then a description's `tx`, then its `rx`; the fd table's lock is innermost.
//! Nobody sleeps in the kernel with any of them held.

pub mod agent;
pub mod anchor;
mod app_memory;
pub mod bridge;
mod bulk;
mod calibrate;
pub mod calls;
pub mod cancel;
pub mod changing;
mod close;
pub mod desc;
mod ending;
pub mod epoll;
mod follow;
pub mod guards;
pub mod hidden;
pub mod io;
pub mod kernel;
pub mod life;
pub mod limits;
mod linger;
pub mod lock;
pub mod meet;
pub mod operations;
pub mod options;
mod orphan;
mod outcome;
pub mod poll;
mod proc;
pub mod process;
mod read_pacing;
mod reclaim;
pub mod side;
pub mod signals;
pub mod slab;
mod slots;
pub mod stats;
pub mod table;
pub mod thread;
mod upkeep;
pub mod wait;
mod watchers;

pub use crate::process::{config, forks};

pub use outcome::{Errno, Outcome};

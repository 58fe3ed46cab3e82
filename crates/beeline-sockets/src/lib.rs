//! Socket semantics over lanes.
//!
//! This crate is what `libbeeline.so` does when an app calls into it; `beeline-preload` only gives each
//! function its libc name. Each entry point takes what the libc function takes and answers with an
//! [`Outcome`]: done, failed with an errno, or "not ours, let the kernel do it".
//!
//! # Layers
//!
//! Crates have one direction, which Cargo holds: `beeline-guest` is what anybody needs who lives in a foreign process,
//! and has the rules for that; `beeline-meeting` is how two ends find each other; `beeline-descriptors` knows what an
//! fd leads to, and has the order of locks. What they define keeps its names here: `crate::kernel` is
//! `beeline_guest::kernel`.
//!
//! Modules import downwards only, too; the table is in `ci/layers.toml`. From the top: [`calls`] is what an app calls
//! to make something of ours; [`life`] follows its fds, forks and programs; [`options`]; [`meet`] makes connections;
//! [`poll`] and [`epoll`] wait for several, [`io`] for one, and move bytes; `kept` has what is known of options.

// Nothing in here may end the program that it is a guest of.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod calls;
pub mod epoll;
pub mod io;
mod kept;
pub mod life;
pub mod meet;
pub mod options;
pub mod poll;

use beeline_descriptors::{
    anchor, bulk, close, ending, follow, guards, linger, loans, operations, orphan, reclaim, slots, turns, untaken,
    watchers,
};
pub use beeline_descriptors::{desc, table};
pub use beeline_guest::app_memory::{in_first_page, readable_bytes};
pub use beeline_guest::{Errno, Outcome, config, forks, live};
use beeline_guest::{
    app_memory, birth, control, fd_cell, files, lazy_fd, linux, proc, reason_cell, shed, static_ref, upkeep,
};
pub use beeline_guest::{cancel, changing, hidden, kernel, limits, lock, process, signals, slab, stats, thread, wait};
pub use beeline_meeting::side;
use beeline_meeting::{bells, calibrate};

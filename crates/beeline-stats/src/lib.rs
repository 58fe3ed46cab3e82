//! What the library inside an app and the tools outside of it must agree on.
//!
//! 1. [`Reason`], [`Poison`] and [`Counter`] are closed lists. Each entry has a name in `snake_case`
//!    that never changes its meaning, and one sentence for people. The sentence is what
//!    `beeline stat` prints, so "why is it not faster?" is answered where the list is written.
//! 2. [`tunables`] is the table of options. The library reads them from `BEELINE_OPTIONS`; the
//!    command line checks profiles against the same table, so both always accept the same words.
//! 3. [`layout`] is the statistics file that each process keeps in shared memory. The process is
//!    its only writer. It writes with plain atomic stores; nobody ever waits for a reader.
//! 4. [`Snapshot`] reads such a file. To the reader the content is another process's memory and
//!    therefore hostile: it works on a private copy of the bytes, checks every number before it is
//!    used, and turns what it cannot check into "unknown" rather than into an error of the tool.
//!
//! The crate does no I/O and does not allocate, so the library can use all of it in a signal
//! handler or after `fork`.

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

#[macro_use]
mod table;
mod counter;
mod filters;
pub mod layout;
pub mod library;
mod poison;
mod reason;
mod role;
pub mod semantics;
mod snapshot;
mod text;
pub mod tunables;

pub use counter::Counter;
pub use filters::{UNCOUNTED, filters_in};
pub use poison::Poison;
pub use reason::Reason;
pub use role::{Family, Role};
pub use snapshot::{Connection, Connections, LayoutError, Snapshot};
pub use text::Text;
pub use tunables::Tunables;

//! Which rail a connection takes, and how a large transfer is spread over several rails. Values in, decisions out.
//!
//! A **rail** is one port of a host, driven by one libfabric provider: the same port is two rails where it can do both
//! RDMA and TCP. The **peer** is the other host. A **link** is a local rail and a rail of the peer that reach each
//! other.
//!
//! 1. [`host`]: what the host is made of: packages, NUMA nodes and their distances, CPUs, network ports. [`xml`] reads
//!    it from hwloc's XML, [`sysfs`] from the kernel.
//! 2. [`rail`]: what a bridge knows of its rails and of a peer's.
//! 3. [`reach`]: which local rail reaches which rail of the peer. A segment of the network is used with its best
//!    protocol, and what one segment cannot do takes nothing from the others.
//! 4. [`choice`]: the link of a connection, with the reason for each that was not taken, and the links over which its
//!    large transfers are striped.
//! 5. [`report`]: all of this in one JSON object, which the bridge prints and `beeline topo` draws.
//! 6. [`stripe`]: the striping itself: the next chunk's rail, and the receiver's order.
//! 7. [`fair`]: what flows get that share links, for planning.
//!
//! Rules:
//!
//! 1. Nothing here but [`sysfs`] does I/O, reads a clock or draws a random number: equal input gives an equal answer,
//!    on every host.
//! 2. What the peer said (its rails, the ranges it received, the offsets it announces) is checked where it comes in;
//!    a wrong value is an error for the caller to end the connection with, and memory is bounded whatever it says.
//! 3. Ties are broken by name or by number, never by the order in a hash.

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

pub mod choice;
pub mod fair;
pub mod host;
pub mod rail;
pub mod reach;
pub mod report;
mod sets;
pub mod stripe;
pub mod sysfs;
pub mod xml;

pub use choice::{Choice, Question};
pub use host::Host;
pub use rail::{PeerRail, Protocol, Rail};
pub use reach::{Link, Segments};
pub use report::Report;

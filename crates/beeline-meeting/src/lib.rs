//! How two ends find each other, agree on a lane, and leave it again.
//!
//! A library and a bridge meet in the same way, so what both need is here. None of it knows which fds of a program lead
//! to a connection: what it must be told of a socket it is told in its arguments.
//!
//! # Rooms
//!
//! [`lookup`] asks the kernel who listens where; [`trust`] decides with whom to share memory; [`route`] and [`ports`]
//! find the client's address and reserve it; [`greeting`] enters a door, [`hello_io`] moves the hello, [`taking`] takes
//! it; [`claims`] checks what it claims, and [`reserve`] keeps a number for what comes with it. [`strangers`] has the
//! descriptors that somebody may have sent to stop us, of which `undertaker` closes those that may block in a process
//! that nobody waits for; [`disarm`] closes what comes beside a bell or an answer. [`pool`] keeps lanes and sides;
//! [`brief`] knows which other hosts' listeners are left to TCP, [`paths`] which loopback addresses', and
//! [`agent`] who brings network namespaces together. [`side`] is the state of one end, which its holders share;
//! [`bells`] are what wakes the peer, on an anchor whose send buffer [`calibrate`] has measured.
//!
//! [`bridge`] is all of that for a bridge, which has no sockets, and `bridging` the bridge's ends of lanes.

// Nothing in here may end the program that it is a guest of.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod agent;
pub mod bells;
pub mod bridge;
mod bridging;
pub mod brief;
pub mod calibrate;
pub mod claims;
pub mod disarm;
pub mod greeting;
pub mod hello_io;
pub mod lookup;
pub mod paths;
pub mod pool;
pub mod ports;
pub mod reserve;
pub mod route;
pub mod side;
pub mod strangers;
pub mod taking;
pub mod trust;
mod undertaker;

// What stands below keeps its names here.
use beeline_guest::{
    Errno, config, control, fd_cell, forks, hidden, kernel, limits, linux, live, lock, proc, process, slab, static_ref,
    stats, thread, wait,
};

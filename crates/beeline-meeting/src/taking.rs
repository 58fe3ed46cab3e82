//! Taking a client's hello: who it says that it is, and the lane that it brings.

use core::sync::atomic::Ordering::Acquire;

use beeline_lane::{End, offer};
use beeline_stats::{Counter, Poison, Reason, Role};
use beeline_wire::{ConnName, Held};

use super::hello_io::{self, Refusal, Waiting};
use super::pool::{self, PooledLane};
use super::reserve;
use crate::kernel::SockAddr;
use crate::trust::Peer;
use crate::{kernel, stats, wait};

/// Looks for a hello that is being sent this moment.
const HELLO_LOOKS: usize = 8;

/// A lane that came with a hello that is not taken.
pub fn give_back(lane: &'static PooledLane) {
    lane.spoil();
    pool::retire(lane, End::Server, false);
}

/// Counts why a client is sent to TCP.
#[must_use]
pub fn refused(reason: Reason) -> Refusal {
    stats::fell_back(Role::Server, reason);
    Refusal::Gone
}

/// A client whose anchor has a name: the name, and its lane.
///
/// # Errors
/// [`Refusal`].
pub fn named_client(anchor: i32) -> Result<(ConnName, &'static PooledLane), Refusal> {
    let name = name_of(anchor, None)?.ok_or(Refusal::Poison(Poison::HelloUnnamed))?;
    let taken = lane_of(anchor, false)?;
    match taken.held {
        None => Ok((name, taken.lane)),
        Some(_) => {
            give_back(taken.lane);
            Err(Refusal::Poison(Poison::HelloNameMismatch))
        }
    }
}

/// The addresses that the client's anchor is named for; none if it has no name. The name is asked for unless it is
/// `told`.
///
/// # Errors
/// [`Refusal`].
pub fn name_of(anchor: i32, told: Option<&SockAddr>) -> Result<Option<ConnName>, Refusal> {
    let asked;
    let name = match told {
        Some(name) => name,
        None => {
            asked = kernel::getpeername(anchor).map_err(|_| Refusal::Gone)?;
            &asked
        }
    };
    match name.abstract_name().map(ConnName::parse) {
        Some(Some(name)) => Ok(Some(name)),
        Some(None) => Err(Refusal::Poison(Poison::HelloNameMismatch)),
        // A filler of the queue, or somebody who has already left.
        None if hello_io::look(anchor) == Waiting::Gone => Err(Refusal::Gone),
        None => Ok(None),
    }
}

/// The lane that a client offers again under the `name` of its last connection, which it had with the same listener of
/// this process, if it has not said hello yet: it need not any more ([`offer`], 8).
#[must_use]
pub fn unsaid(anchor: i32, cookie: u64, name: &ConnName, peer: Peer) -> Option<&'static PooledLane> {
    if peer.pid == 0 {
        // All those have this number that have none here.
        return None;
    }
    // No lock is held over what follows: a page of the client's may be long in coming.
    let lane = pool::server_named(cookie, name, peer)?;
    let (memory, named) = (lane.memory(), offer::named(name.sum()));
    // Whoever is still there has the name, and nobody else had it when the word was read.
    if memory.offer().load(Acquire) != named || !is_there(anchor) || !offer::hear(memory.offer(), named) {
        pool::put_back(lane);
        return None;
    }
    stats::count(Counter::LanesReused, 1);
    Some(lane)
}

/// Whether somebody is at the other end of an anchor for certain.
fn is_there(anchor: i32) -> bool {
    let mut fds = [libc::pollfd { fd: anchor, events: 0, revents: 0 }];
    kernel::poll_at_once(&mut fds).is_ok() && fds[0].revents == 0
}

/// What a hello has brought.
pub struct Taken {
    /// Its lane.
    pub lane: &'static PooledLane,
    /// The client's address, if the server is to hold its port.
    pub held: Option<Held>,
    /// Whether the lane was mapped for it.
    pub is_new: bool,
}

/// Takes the hello and finds or maps its lane. `is_of_ours` says that the client is root's or our own user's.
///
/// # Errors
/// [`Refusal`]; a reason is counted.
pub fn lane_of(anchor: i32, is_of_ours: bool) -> Result<Taken, Refusal> {
    let reserve = reserve::make_room(anchor);
    let mut received = hello_io::receive(anchor, is_of_ours);
    // A client that shares the CPU says nothing while this one looks.
    let looks = if wait::peers_are_near() { 1 } else { HELLO_LOOKS };
    for _ in 1..looks {
        if !matches!(received, Err(Refusal::Silence)) {
            break;
        }
        received = hello_io::receive(anchor, is_of_ours);
    }
    let found = received.and_then(map);
    if reserve {
        reserve::keep_reserve();
    }
    match found {
        Err(Refusal::Reason(reason)) => Err(refused(reason)),
        found => found,
    }
}

fn map(received: hello_io::Received) -> Result<Taken, Refusal> {
    let held = received.hello.held;
    if let Some(known) = pool::server_known(received.id, received.hello.ring_bytes) {
        stats::count(Counter::LanesReused, 1);
        known.keep_memfd(received.memfd);
        return Ok(Taken { lane: known, held, is_new: false });
    }
    let memory = hello_io::map(&received)?;
    match pool::server_lane(memory, received.id) {
        Some(lane) => {
            lane.keep_memfd(received.memfd);
            Ok(Taken { lane, held, is_new: true })
        }
        None => {
            // SAFETY: the fresh mapping has no user.
            unsafe { memory.unmap() };
            Err(refused(Reason::MemoryShort))
        }
    }
}

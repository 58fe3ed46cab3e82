//! What the driver knows about its connections, and waiting until TCP has caught up with it.

use super::Calls;
use crate::traced::{Fd, queued, tcp_state};
use crate::variant::{Family, Variant};
use beeline_testkit::rng::Rng;
use beeline_testkit::sys;
use std::time::{Duration, Instant};

/// Connections at the same time.
pub const SLOTS: usize = 5;

/// Epoll sets.
pub const SETS: usize = 2;

/// Bytes that may lie unread in one direction.
pub const UNREAD_MAX: usize = 12_000;

/// How long an effect may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// One end of a connection.
#[derive(Default)]
pub struct End {
    /// The descriptors of this end: more than one after `dup`, none when it is closed.
    pub fds: Vec<Fd>,
    /// Bytes that the peer sent and nobody has read yet.
    pub unread: usize,
    pub write_shut: bool,
    pub read_shut: bool,
    /// The connection was reset, by this end or by its peer.
    pub reset: bool,
    /// `SO_LINGER` with zero seconds: closing resets.
    pub aborts: bool,
}

impl End {
    pub fn is_open(&self) -> bool {
        !self.fds.is_empty()
    }
}

/// A connection: client's end and server's end.
#[derive(Default)]
pub struct Connection {
    pub ends: [End; 2],
}

/// The states of TCP that last (include/net/tcp_states.h): here every segment is acknowledged at once.
mod tcp {
    pub const ESTABLISHED: u8 = 1;
    pub const FIN_WAIT2: u8 = 5;
    pub const CLOSE: u8 = 7;
    pub const CLOSE_WAIT: u8 = 8;
}

impl Connection {
    /// The TCP state in which an end is to be.
    fn state(&self, side: usize) -> u8 {
        let (own, peer) = (&self.ends[side], &self.ends[1 - side]);
        match (own.reset, own.write_shut, peer.write_shut) {
            (true, ..) | (_, true, true) => tcp::CLOSE,
            (_, true, false) => tcp::FIN_WAIT2,
            (_, false, true) => tcp::CLOSE_WAIT,
            (_, false, false) => tcp::ESTABLISHED,
        }
    }

    fn is_settled(&self) -> bool {
        (0..2).all(|side| {
            let end = &self.ends[side];
            let Some(fd) = end.fds.first() else { return true };
            tcp_state(*fd) == self.state(side) && (end.reset || queued(*fd) as usize == end.unread)
        })
    }
}

/// The state of a sequence.
pub struct Model {
    pub rng: Rng,
    pub calls: Calls,
    pub listener: Fd,
    pub variant: Variant,
    pub slots: Vec<Connection>,
    pub sets: Vec<Fd>,
    /// Descriptors ever made, for their names.
    pub made: usize,
    /// Bytes ever sent, for the content of the next ones.
    pub position: u64,
    /// Effects that were expected and did not come: a mistake of the model.
    pub vain: usize,
}

impl Model {
    pub fn new(seed: u64, calls: Calls) -> Self {
        let mut rng = Rng::new(seed);
        let family = *rng.pick(&[Family::V4, Family::V6, Family::Dual]);
        let variant = Variant { family, ..Variant::default() };
        let sets = ["set0", "set1"].map(crate::traced::epoll_create).to_vec();
        let slots = (0..SLOTS).map(|_| Connection::default()).collect();
        Self { rng, calls, listener: variant.listener(), variant, slots, sets, made: 0, position: 0, vain: 0 }
    }

    /// A name for a new descriptor; a sequence makes a few hundred at most, so they may live for ever.
    pub fn name(&mut self, side: usize) -> &'static str {
        let name = format!("{}{}", if side == 0 { 'c' } else { 's' }, self.made);
        self.made += 1;
        Box::leak(name.into_boxed_str())
    }

    /// All open ends, as (slot, side).
    pub fn open_ends(&self) -> Vec<(usize, usize)> {
        let mut ends = Vec::new();
        for (slot, connection) in self.slots.iter().enumerate() {
            for (side, end) in connection.ends.iter().enumerate() {
                if end.is_open() {
                    ends.push((slot, side));
                }
            }
        }
        ends
    }

    pub fn any_fd(&mut self, slot: usize, side: usize) -> Fd {
        let at = self.rng.below(self.slots[slot].ends[side].fds.len());
        self.slots[slot].ends[side].fds[at]
    }

    /// Waits until TCP is where the model is: on both ends the same state, with all that was sent arrived.
    ///
    /// The acknowledgement of a FIN wakes its sender, which edge-triggered sets show, and TCP puts it off. It is asked
    /// for; where unread data keeps TCP from giving it, the delay of 40 ms is waited for.
    fn settle(&mut self, slot: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0;
        while !self.slots[slot].is_settled() {
            if Instant::now() > deadline {
                self.vain += 1;
                return;
            }
            for end in &self.slots[slot].ends {
                if let Some(fd) = end.fds.first() {
                    sys::setsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1_i32.to_ne_bytes());
                }
            }
            looks += 1;
            match looks {
                ..20 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// `count` bytes were taken by a send on this end.
    pub fn sent(&mut self, slot: usize, side: usize, count: usize) {
        if count == 0 {
            return;
        }
        let peer = &mut self.slots[slot].ends[1 - side];
        if !peer.is_open() || (peer.read_shut && peer.write_shut) {
            // Nobody can ever read it: the answer is a reset, which both ends see.
            peer.reset = true;
            self.slots[slot].ends[side].reset = true;
        } else {
            peer.unread += count;
        }
        self.settle(slot);
    }

    /// `count` bytes were taken out by a receive on this end.
    pub fn received(&mut self, slot: usize, side: usize, count: usize) {
        let end = &mut self.slots[slot].ends[side];
        end.unread = end.unread.saturating_sub(count);
    }

    /// `shutdown` succeeded on this end.
    pub fn shut(&mut self, slot: usize, side: usize, how: i32) {
        let end = &mut self.slots[slot].ends[side];
        end.read_shut |= how != libc::SHUT_WR;
        end.write_shut |= how != libc::SHUT_RD;
        self.settle(slot);
    }

    /// The last descriptor of this end was closed.
    pub fn closed(&mut self, slot: usize, side: usize) {
        let end = &mut self.slots[slot].ends[side];
        let (was_reset, write_shut) = (end.reset, end.write_shut);
        let unread = end.unread > 0;
        let aborts = end.aborts;
        *end = End { write_shut: true, read_shut: true, reset: was_reset, ..End::default() };
        let peer = &mut self.slots[slot].ends[1 - side];
        if !peer.is_open() {
            self.slots[slot] = Connection::default();
            return;
        }
        // With both directions finished there is nothing left to reset.
        let finished = write_shut && peer.write_shut;
        if !finished && (aborts || unread) {
            peer.reset = true;
        }
        self.settle(slot);
    }
}

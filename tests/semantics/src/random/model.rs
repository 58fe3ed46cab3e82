//! What the driver knows about its connections, and waiting until TCP has caught up with it.

use super::Calls;
use crate::traced::{Fd, queued};
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

    /// Waits until `fd` shows all of `events`.
    fn settle_events(&mut self, fd: Option<Fd>, events: i16) {
        let Some(fd) = fd else { return };
        self.settle(|| {
            let mut entry = [libc::pollfd { fd: fd.raw, events, revents: 0 }];
            sys::poll(&mut entry, 0);
            entry[0].revents & events == events
        });
    }

    fn settle(&mut self, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            if Instant::now() > deadline {
                self.vain += 1;
                return;
            }
            std::thread::yield_now();
        }
    }

    fn first_fd(&self, slot: usize, side: usize) -> Option<Fd> {
        self.slots[slot].ends[side].fds.first().copied()
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
            self.settle_events(self.first_fd(slot, side), libc::POLLHUP);
            self.settle_events(self.first_fd(slot, 1 - side), libc::POLLHUP);
            return;
        }
        peer.unread += count;
        let (unread, fd) = (peer.unread, peer.fds[0]);
        self.settle(|| queued(fd) as usize == unread);
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
        let sends_fin = how != libc::SHUT_RD && !end.write_shut;
        end.write_shut |= how != libc::SHUT_RD;
        if sends_fin && !end.reset {
            self.settle_events(self.first_fd(slot, 1 - side), libc::POLLRDHUP);
        }
    }

    /// The last descriptor of this end was closed.
    pub fn closed(&mut self, slot: usize, side: usize) {
        let end = &mut self.slots[slot].ends[side];
        let (was_reset, write_shut) = (end.reset, end.write_shut);
        let unread = end.unread > 0;
        let aborts = end.aborts;
        *end = End { write_shut: true, read_shut: true, ..End::default() };
        let peer = &self.slots[slot].ends[1 - side];
        if !peer.is_open() {
            self.slots[slot] = Connection::default();
            return;
        }
        // With both directions finished there is nothing left to reset.
        let finished = write_shut && peer.write_shut;
        let fd = self.first_fd(slot, 1 - side);
        match (was_reset || finished, aborts || unread) {
            (true, _) => {}
            (false, true) => {
                self.slots[slot].ends[1 - side].reset = true;
                self.settle_events(fd, libc::POLLHUP);
            }
            (false, false) => self.settle_events(fd, libc::POLLRDHUP),
        }
    }
}

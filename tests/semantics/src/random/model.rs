//! What the driver knows about its connections, and waiting until TCP has caught up with it.

use super::Calls;
use crate::traced::{Fd, is_acknowledged, queued, tcp_state};
use crate::variant::{Family, Variant};
use beeline_testkit::rng::Rng;
use beeline_testkit::sys;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Connections at the same time.
pub const SLOTS: usize = 5;

/// Epoll sets.
pub const SETS: usize = 3;

/// Bytes that may lie unread in one direction.
pub const UNREAD_MAX: usize = 12_000;

/// How long an effect may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// One end of a connection.
#[derive(Default)]
pub struct End {
    /// The descriptors of this end: more than one after `dup`, none when it is closed.
    pub fds: Vec<Fd>,
    /// The server's end before anybody accepted it.
    pub pending: bool,
    /// Bytes that the peer sent and nobody has read yet.
    pub unread: usize,
    pub write_shut: bool,
    pub read_shut: bool,
    /// The connection was reset, by this end or by its peer.
    pub reset: bool,
    /// `SO_LINGER` with zero seconds: closing resets.
    pub aborts: bool,
    /// `SO_RCVLOWAT` above one.
    pub low_water: bool,
    /// The peer has sent urgent data: what lies unread is not to be counted from outside any more.
    pub urgent: bool,
}

impl End {
    pub fn is_open(&self) -> bool {
        !self.fds.is_empty() || self.pending
    }

    /// Whether urgent data may be sent to this end: one that reads no more still notes an urgent byte on kernel TCP.
    pub fn takes_urgent_data(&self) -> bool {
        !self.fds.is_empty() && !self.read_shut
    }
}

/// A connection: client's end and server's end.
#[derive(Default)]
pub struct Connection {
    pub ends: [End; 2],
}

/// The states of TCP that last (include/net/tcp_states.h): here every segment is acknowledged before the next step.
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
            tcp_state(*fd) == self.state(side) && (end.reset || end.urgent || queued(*fd) as usize == end.unread)
        })
    }

    pub fn is_free(&self) -> bool {
        self.ends.iter().all(|end| !end.is_open())
    }
}

/// A listener and the connections in its queue, by slot.
pub struct Listener {
    pub fd: Fd,
    pub variant: Variant,
    pub queue: VecDeque<usize>,
}

/// The state of a sequence.
pub struct Model {
    seed: u64,
    pub rng: Rng,
    pub calls: Calls,
    pub listeners: Vec<Listener>,
    pub slots: Vec<Connection>,
    pub sets: Vec<Fd>,
    /// Whether there was a child.
    pub forked: bool,
    /// Whether a set may be in another.
    pub nested: bool,
    /// Descriptors ever made, for their names.
    pub made: usize,
    /// Bytes ever sent, for the content of the next ones.
    pub position: u64,
    /// Effects that were expected and did not come.
    pub vain: usize,
}

impl Model {
    pub fn new(seed: u64, calls: Calls) -> Self {
        let mut rng = Rng::new(seed);
        let families =
            [*rng.pick(&[Family::V4, Family::Wildcard, Family::Mapped]), *rng.pick(&[Family::V6, Family::Dual])];
        let listener = |(family, name)| {
            let variant = Variant { family, ..Variant::default() };
            let fd = variant.listener().named(name);
            sys::set_nonblocking(fd.raw, true);
            Listener { fd, variant, queue: VecDeque::new() }
        };
        let listeners = families.into_iter().zip(["l0", "l1"]).map(listener).collect();
        let sets = ["set0", "set1", "set2"].map(crate::traced::epoll_create).to_vec();
        let slots = (0..SLOTS).map(|_| Connection::default()).collect();
        Self { seed, rng, calls, listeners, slots, sets, forked: false, nested: false, made: 0, position: 0, vain: 0 }
    }

    /// Begins the operation with this number: its choices depend on no other's.
    pub fn begin(&mut self, number: usize) {
        self.rng = Rng::new(self.seed.wrapping_add((number as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95)));
        self.rng.next_u64();
    }

    /// A name for a new descriptor; a sequence makes a few hundred at most, so they may live for ever.
    pub fn name(&mut self, prefix: char) -> &'static str {
        let name = format!("{prefix}{}", self.made);
        self.made += 1;
        Box::leak(name.into_boxed_str())
    }

    /// All ends with a descriptor, as (slot, side).
    pub fn open_ends(&self) -> Vec<(usize, usize)> {
        let all = (0..SLOTS).flat_map(|slot| [(slot, 0), (slot, 1)]);
        all.filter(|(slot, side)| !self.slots[*slot].ends[*side].fds.is_empty()).collect()
    }

    /// An end with a descriptor, and one of those.
    pub fn any_end(&mut self) -> Option<(usize, usize, Fd)> {
        let from = self.rng.below(SLOTS * 2);
        let choice = self.rng.next_u64() as usize;
        let has = |place: usize| {
            let (slot, side) = (place / 2 % SLOTS, place % 2);
            let fds = &self.slots[slot].ends[side].fds;
            (!fds.is_empty()).then(|| (slot, side, fds[choice % fds.len()]))
        };
        (from..from + SLOTS * 2).find_map(has)
    }

    pub fn end(&mut self, slot: usize, side: usize) -> &mut End {
        &mut self.slots[slot].ends[side]
    }

    /// Whether a receive on this end cannot block.
    pub fn has_news(&self, slot: usize, side: usize) -> bool {
        let (own, peer) = (&self.slots[slot].ends[side], &self.slots[slot].ends[1 - side]);
        own.unread > 0 && !own.low_water && !own.urgent || own.read_shut || own.reset || peer.write_shut
    }

    /// Waits until TCP is where the model is: on both ends the same state, with all that was sent arrived.
    ///
    /// The acknowledgement of a FIN wakes its sender, which edge-triggered sets show, and TCP puts it off. It is asked
    /// for; where unread data keeps TCP from giving it, the delay of 40 ms is waited for.
    pub fn settle(&mut self, slot: usize) {
        if !wait_until(|| {
            let connection = &self.slots[slot];
            for fd in connection.ends.iter().filter_map(|end| end.fds.first()) {
                sys::setsockopt(fd.raw, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1_i32.to_ne_bytes());
            }
            connection.is_settled()
        }) {
            self.vain += 1;
        }
    }

    /// Waits until a send of `count` bytes is complete, which TCP tells when it is acknowledged.
    pub fn await_complete(&mut self, slot: usize, side: usize, fd: Fd, count: usize) {
        let peer = self.slots[slot].ends[1 - side].fds.first().copied().unwrap_or(fd);
        let reset = self.slots[slot].ends[side].reset;
        if count != 0 && !reset && !wait_until(|| is_acknowledged(fd, peer) || tcp_state(fd) == tcp::CLOSE) {
            self.vain += 1;
        }
    }

    /// `count` bytes were taken by a send on this end.
    pub fn sent(&mut self, slot: usize, side: usize, count: usize) {
        if count == 0 {
            return;
        }
        let peer = self.end(slot, 1 - side);
        if !peer.is_open() || (peer.read_shut && peer.write_shut) {
            // Nobody can ever read it: the answer is a reset, which both ends see.
            peer.reset = true;
            self.end(slot, side).reset = true;
        } else {
            peer.unread += count;
        }
        self.settle(slot);
        let [own, peer] = [side, 1 - side].map(|side| &self.slots[slot].ends[side]);
        if peer.urgent && !own.reset && !wait_until(|| is_acknowledged(own.fds[0], peer.fds[0])) {
            self.vain += 1;
        }
    }

    /// `count` bytes were taken out by a receive on this end.
    pub fn received(&mut self, slot: usize, side: usize, count: usize) {
        let end = self.end(slot, side);
        end.unread = end.unread.saturating_sub(count);
    }

    /// `shutdown` succeeded on this end.
    pub fn shut(&mut self, slot: usize, side: usize, how: i32) {
        let end = self.end(slot, side);
        end.read_shut |= how != libc::SHUT_WR;
        end.write_shut |= how != libc::SHUT_RD;
        self.settle(slot);
    }

    /// The last descriptor of this end was closed.
    pub fn closed(&mut self, slot: usize, side: usize) {
        let end = self.end(slot, side);
        let was = std::mem::take(end);
        *end = End { write_shut: true, read_shut: true, reset: was.reset, ..End::default() };
        let peer = self.end(slot, 1 - side);
        if !peer.is_open() {
            self.slots[slot] = Connection::default();
            return;
        }
        // With both directions finished there is nothing left to reset.
        let finished = was.write_shut && peer.write_shut;
        if !finished && was.urgent && !was.reset {
            return self.closed_with_urgent_data(slot, 1 - side, was.write_shut);
        }
        if !finished && (was.aborts || was.unread > 0) {
            peer.reset = true;
        }
        self.settle(slot);
    }

    /// What counts as unread beside an urgent byte is the kernel's to say: whether the other end was reset is seen
    /// there.
    fn closed_with_urgent_data(&mut self, slot: usize, side: usize, had_sent_fin: bool) {
        let end = self.end(slot, side);
        let Some(fd) = end.fds.first().copied() else { return };
        let before = if end.write_shut { tcp::FIN_WAIT2 } else { tcp::ESTABLISHED };
        if had_sent_fin {
            // No FIN follows, and perhaps no reset.
            std::thread::sleep(Duration::from_millis(2));
        } else if !wait_until(|| tcp_state(fd) != before) {
            self.vain += 1;
        }
        let mut entry = [libc::pollfd { fd: fd.raw, events: 0, revents: 0 }];
        sys::poll(&mut entry, 0);
        // A completion of a send without a copy is an error to poll(2), too.
        self.end(slot, side).reset |= entry[0].revents & libc::POLLERR != 0 && tcp_state(fd) == tcp::CLOSE;
        self.settle(slot);
    }
}

/// Whether `done` came true in time.
pub fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    let mut looks = 0;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        looks += 1;
        match looks {
            ..20 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    true
}

//! Which path a connection takes, and what it belongs to meanwhile.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A way for a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Lane,
    Tcp,
}

/// Who chooses the port that a connection comes from (rule 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The kernel, when it connects.
    Kernels,
    /// The program, by bind(2).
    Programs,
}

/// What a connection belongs to, from its beginning to its end. Valid when zeroed: it belongs to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// The destination's number; 0 for none.
    pub destination: u32,
    /// The turn that counts it; 0 for none.
    pub turn: u32,
    /// Whether it went by TCP.
    pub tcp: bool,
    pub begun_ns: u64,
}

impl Ticket {
    /// Whether it belongs to nothing: most connections are not to loopback addresses.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.destination == 0
    }
}

/// Where a ticket is kept. Valid when zeroed; used by whoever connects or closes the socket.
#[derive(Default)]
pub struct TicketCell {
    destination: AtomicU32,
    turn: AtomicU32,
    tcp: AtomicU32,
    begun_ns: AtomicU64,
}

impl TicketCell {
    /// Keeps a ticket. Returns the one before.
    pub fn replace(&self, ticket: Ticket) -> Option<Ticket> {
        let before = self.take();
        self.turn.store(ticket.turn, Relaxed);
        self.tcp.store(ticket.tcp.into(), Relaxed);
        self.begun_ns.store(ticket.begun_ns, Relaxed);
        self.destination.store(ticket.destination, Relaxed);
        before
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destination.load(Relaxed) == 0
    }

    /// Takes the ticket, if there is one.
    pub fn take(&self) -> Option<Ticket> {
        if self.is_empty() {
            return None;
        }
        Some(Ticket {
            destination: self.destination.swap(0, Relaxed),
            turn: self.turn.load(Relaxed),
            tcp: self.tcp.load(Relaxed) != 0,
            begun_ns: self.begun_ns.load(Relaxed),
        })
    }
}

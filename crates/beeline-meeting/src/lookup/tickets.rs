//! What [`paths`](crate::paths) is told of the connections to a destination.

use beeline_wire::Endpoint;

use super::{asked_for, remembered};
use crate::paths::{Ended, Path, Paths, Port, Ticket};
use crate::{kernel, ports};

/// A connection begins. Which path it takes, with its ticket, which says nothing where the destination is not known
/// yet.
pub fn begin(destination: Endpoint, port: impl FnOnce() -> Port) -> Ticket {
    let destination = destination.address();
    if !destination.ip().is_loopback() {
        return Ticket::default();
    }
    let (port, ports) = (port(), ports::found_at_once());
    remembered(|entries| {
        asked_for(entries, destination).map_or_else(Ticket::default, |entry| {
            let begun_ns = kernel::now_ns();
            let [of_kernels, of_programs] = &mut entry.paths;
            let (paths, number) = match port {
                Port::Kernels => (of_kernels, entry.number),
                Port::Programs => (of_programs, entry.number | 1),
            };
            let (path, turn) = paths.begin(begun_ns, ports);
            Ticket { destination: number, turn, tcp: path == Path::Tcp, begun_ns }
        })
    })
}

/// The connection has ended.
pub fn ended(ticket: Ticket, how: Ended) {
    with_ticket(ticket, |paths| paths.ended(ticket, how, kernel::now_ns()));
}

/// It was left to TCP, and is not connected when it is closed.
pub fn failed(ticket: Ticket) {
    with_ticket(ticket, Paths::failed);
}

/// It came to nothing on its path, or nobody sees its end.
pub fn abandoned(ticket: Ticket) {
    with_ticket(ticket, Paths::abandoned);
}

fn with_ticket(ticket: Ticket, f: impl FnOnce(&mut Paths)) {
    if ticket.is_void() {
        return;
    }
    remembered(|entries| {
        // One that has had to make room is not found any more.
        let number = ticket.destination & !1;
        if let Some(entry) = entries.iter_mut().flatten().find(|entry| entry.number == number) {
            let [of_kernels, of_programs] = &mut entry.paths;
            f(if ticket.destination == number { of_kernels } else { of_programs });
        }
    });
}

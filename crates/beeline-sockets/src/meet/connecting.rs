//! Which thread connects a socket, and whether there still is that socket.
//!
//! 1. One thread at a time connects a socket: the one that has claimed it ([`Connectable::Claimed`]).
//! 2. It holds no lock while it waits, so another thread may close the number meanwhile. The number may lead to another
//!    socket then, and that may have the same description. So who connects knows which use of the description he has
//!    claimed, and puts a lane under the number only if all is as it was, under `changing_of` or a whole change.

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Reason;

use super::lookup;
use crate::desc::{Connectable, Desc, Kind};
use crate::{kernel, linux, process, table};
use beeline_meeting::paths::Ticket;

/// A socket that this thread connects.
#[derive(Clone, Copy)]
pub(super) struct Connecting {
    pub fd: i32,
    pub desc: &'static Desc,
    /// [`Desc::begun`] before it was claimed.
    begun: u32,
}

pub(super) enum Claim {
    Ours(Connecting),
    Settled,
    Blocked(Reason),
}

impl Connecting {
    /// Whether the number still leads to the socket, which is to be connected yet. A hint unless the caller holds
    /// `changing::changing` or [`crate::close::changing_of`].
    pub(super) fn still(&self) -> bool {
        let is_claimed = !matches!(self.desc.draft.connectable.get(), Connectable::Free | Connectable::Settled);
        self.is_there() && self.desc.kind() == Kind::Tcp && is_claimed
    }

    /// Notes which measurement the connection belongs to. False if another thread has closed the number, or made
    /// something else of the socket. The caller holds [`crate::close::changing_of`].
    pub(super) fn note(&self, ticket: Ticket) -> bool {
        let is_there = self.still();
        if is_there {
            self.end_before(self.desc.ticket.replace(ticket), ticket);
        }
        is_there
    }

    /// What an attempt before that of `ticket` has left, if it is not the same, nobody ends any more: over TCP it has
    /// failed.
    pub(super) fn end_before(&self, left: Option<Ticket>, ticket: Ticket) {
        match left.filter(|left| *left != ticket) {
            Some(left) if left.tcp => lookup::failed(left),
            Some(left) => lookup::abandoned(left),
            None => {}
        }
    }

    /// What keeps a lane from being put under the number, now that nothing changes any more: the caller holds
    /// [`crate::close::changing_of`]. `given` is a number that the kernel has just given out, or else the limit as far
    /// as it is known.
    pub(super) fn hindrance(&self, ticket: Ticket, given: i32) -> Option<Reason> {
        if !self.note(ticket) || !process::accelerates() {
            return Some(process::reason_to_count().unwrap_or(Reason::Internal));
        }
        // A fork that is not counted now waits for us, and copies the finished connection.
        if self.desc.born.load(Relaxed) != crate::forks() {
            return Some(Reason::SharedBeforeConnect);
        }
        if !table::may_be_put_under(self.fd, self.desc, given) {
            return Some(Reason::DescriptorsShort);
        }
        self.desc.draft.connectable.reason()
    }

    /// Whether the number still leads to the socket.
    pub(super) fn is_there(&self) -> bool {
        table::leads_to(self.fd, self.desc) && self.desc.begun() == self.begun
    }
}

/// Sees to it that one thread at a time connects a socket, and that the kernel has not begun to.
pub(super) fn claim(fd: i32, desc: &'static Desc) -> Claim {
    // If another use begins before the claim, that is seen later.
    let ours = Connecting { fd, desc, begun: desc.begun() };
    let cell = &desc.draft.connectable;
    if cell.claim(Connectable::Free) {
        return Claim::Ours(ours);
    }
    match cell.get() {
        Connectable::Blocked(reason) => Claim::Blocked(reason),
        // A blocking attempt has failed, and the program tries once more on the same socket.
        Connectable::Settled if !desc.has_lane() && is_closed(fd) && cell.claim(Connectable::Settled) => {
            Claim::Ours(ours)
        }
        Connectable::Free | Connectable::Claimed | Connectable::Settled => Claim::Settled,
    }
}

/// The kernel connects the socket, for good.
pub(super) fn leave_to_kernel(desc: &Desc) {
    desc.draft.connectable.settle();
}

/// Whether a blocking TCP socket is not connected, nor about to be.
fn is_closed(fd: i32) -> bool {
    kernel::is_blocking(fd) && kernel::tcp_state(fd) == Some(linux::TCP_CLOSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close;
    use crate::desc::DESCS;

    #[test]
    fn the_next_use_of_a_description_under_the_same_number_is_another_socket() {
        const FD: i32 = 70_101;
        let socket = |desc: &'static Desc| {
            desc.begin(Kind::Tcp, FD, libc::AF_INET as u32, 0);
            table::set(FD, Some(desc)).unwrap();
            let Claim::Ours(ours) = claim(FD, desc) else { panic!("nobody else connects it") };
            ours
        };
        let desc = DESCS.take().unwrap();
        let first = socket(desc);
        assert!(first.still());
        assert!(matches!(claim(FD, desc), Claim::Settled));
        close::settle(FD, desc).finish();
        assert!(!first.still());
        // What the slab gives next is mostly the same, and other tests may have taken it here.
        let again = DESCS.take().unwrap();
        let second = socket(again);
        let same = Connecting { desc: again, ..first };
        assert!(second.still() && !first.still() && (!core::ptr::eq(again, desc) || !same.still()));
        leave_to_kernel(again);
        assert!(second.is_there() && !second.still());
        close::settle(FD, again).finish();
    }
}

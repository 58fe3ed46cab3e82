//! Anchors that came from another program without the rest of their end (`life::adopt` of beeline-sockets): the lender
//! had no descriptors to spare, or was not trusted, or did not pass through the library.
//!
//! The lane is not mapped here, so nothing can be sent or received. Such an end fails like a connection that was reset,
//! and above all no byte of the app ever reaches the anchor, where it would be taken for a doorbell.
//!
//! An orphan may be a mere leak: the process that it came from goes on using the connection, and nobody shall
//! notice. But once it is used here, the peer must not take its close for a clean end: it is sent a byte that
//! is no doorbell, which resets the connection ([`orphan_used`]).

use core::sync::atomic::Ordering::Relaxed;

use beeline_wire::{ConnName, DoorName};

use crate::desc::{DESCS, Desc, Kind};
use crate::{Errno, kernel, table};

/// Anything but [`beeline_wire::BELL`].
const NO_BELL: u8 = !beeline_wire::BELL;

/// Makes `fd`, which is an anchor, an orphan. The table has no entry for it.
pub fn mark(fd: i32) {
    if let Some(desc) = DESCS.take() {
        desc.orphan_told.store(false, Relaxed);
        desc.begin(Kind::Orphan, fd, 0, 0);
        if table::set(fd, Some(desc)).is_err() {
            desc.give_if_unused();
        }
    }
}

/// An orphan was to be read or written: the peer learns that this end does not work. The error to report.
#[cold]
pub fn orphan_used(desc: &Desc) -> Errno {
    if !desc.orphan_told.swap(true, Relaxed) {
        let _ = kernel::send(desc.fd.load(Relaxed), &[NO_BELL], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
    Errno(libc::ECONNRESET)
}

/// Whether `fd` is either end of a connection's anchor: one of its names is a connection's, or both ends know it by its
/// door's, because the client found all names taken.
pub fn is_anchor(fd: i32) -> bool {
    if kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) != Ok(libc::AF_UNIX) {
        return false;
    }
    let named = |address: Result<kernel::SockAddr, _>| {
        let is_conn = |name: &[u8]| ConnName::parse(name).is_some() || DoorName::parse(name).is_some();
        address.is_ok_and(|address| address.abstract_name().is_some_and(is_conn))
    };
    named(kernel::getsockname(fd)) || named(kernel::getpeername(fd))
}

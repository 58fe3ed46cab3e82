//! A call of `accept`, and what it is about.

use super::listener::Listener;
use crate::desc::Desc;
use crate::kernel::SockAddr;

/// One `accept4(2)` on its way.
pub(super) struct Accepting {
    /// The number that it was called with.
    pub fd: i32,
    pub desc: &'static Desc,
    pub listener: &'static Listener,
    pub flags: i32,
    /// Where the client that was taken comes from.
    pub peer: SockAddr,
}

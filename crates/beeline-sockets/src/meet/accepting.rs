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
    /// Until when the call waits for a client that the app was told of, and that begins again over TCP; 0 if it does
    /// not. Where it blocks, it returns by then.
    pub owed_until_ns: u64,
}

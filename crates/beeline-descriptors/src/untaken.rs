//! How much is sent on a connection that nobody has taken yet.
//!
//! Such a connection may have to go on over TCP, with all that was sent on it, and to a server that does not read yet.
//! So it takes no more than TCP takes then: what is beyond that waits in the program's own call, or is refused
//! (`EAGAIN`), as with a full buffer of TCP's. The ring is as large as ever as soon as the hello is taken; a writer
//! that sleeps is woken by the first bytes that are read, as its ring has room then in the reader's eyes.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, flags};

use crate::desc::Desc;
use crate::side::{SideState, state};

/// What TCP takes over loopback: its send buffer begins with room for ten segments of 64 KiB, each of which counts as
/// 128 KiB, twice (`tcp_sndbuf_expand()` of Linux). Measured: 2.3 MB with the least receive buffer.
const TAKEN_MAX: u32 = 3 << 19;
/// What it takes between network namespaces, where segments are short: the receiver's first window.
const MET_TAKEN_MAX: u32 = 1 << 16;
/// What it takes however small the buffers are: the least of them.
const TAKEN_MIN: u32 = 2048;

/// Bytes of the ring that are to stay free.
#[inline]
pub fn held_back(desc: &Desc, side: &SideState) -> u32 {
    if side.is(state::OFFERED) { beyond_tcp(desc, side) } else { 0 }
}

#[cold]
fn beyond_tcp(desc: &Desc, side: &SideState) -> u32 {
    let lane = desc.lane();
    // What other processes hold, too, does not change its path.
    if desc.shared.load(Relaxed) || lane.flags(End::Server) & flags::TAKEN != 0 {
        return 0;
    }
    let most = if side.is(state::MET) { MET_TAKEN_MAX } else { TAKEN_MAX };
    // The kernel says twice what it was told.
    let own = side.option(libc::SOL_SOCKET, libc::SO_SNDBUF).map_or(most, |bytes| bytes.unsigned_abs() / 2);
    lane.ring_bytes().saturating_sub(most.min(own.max(TAKEN_MIN)))
}

//! The places of connections in the statistics file.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use beeline_lane::End;
use beeline_stats::layout::Opening;
use beeline_stats::{Counter, Role};

use crate::desc::Desc;
use crate::side::state;
use crate::{changing, kernel, stats, table};

/// Gives a fresh lane its slot in the statistics file. `peer_pid` is the process at the other end, if it is known
/// already.
pub fn open_slot(desc: &'static Desc, peer_pid: Option<u32>) {
    let Some(slot) = stats::take_slot() else { return };
    let side = desc.side();
    let fd = desc.fd.load(Relaxed);
    // Where the host's agent made both ends of the anchor, it is what the kernel would name.
    let peer_pid = if side.is(state::MET) { Some(0) } else { peer_pid };
    let peer_pid = peer_pid.unwrap_or_else(|| {
        let peer = kernel::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
        peer.map_or(0, |peer| peer.pid.cast_unsigned())
    });
    slot.open(&Opening {
        fd,
        role: match desc.end() {
            End::Client => Role::Client,
            End::Server => Role::Server,
        },
        local: side.local.get(),
        remote: side.remote.get(),
        peer_pid,
        opened_unix_ns: stats::unix_ns(),
        lane_inode: side.origin.lane_inode.load(Relaxed),
        own: desc.own.words(),
    });
    desc.slot.store(Some(slot), Release);
}

/// Gives every lane its slot that has none yet: those that were taken over from another program. No lock may be held.
pub fn open_slots() {
    // No other thread closes them meanwhile, nor gives a new one its slot.
    let _changing = changing::changing();
    table::for_each(|fd, desc| {
        if desc.is_lane() && desc.fd.load(Relaxed) == fd && desc.slot.load(Relaxed).is_none() {
            open_slot(desc, None);
            stats::count(Counter::ConnectionsTakenOver, 1);
        }
    });
}

/// Adds the slot's figures to the totals and frees it.
pub fn close_slot(desc: &'static Desc) {
    if let Some(slot) = desc.slot.swap(None, Acquire) {
        stats::give_slot(slot);
    }
}

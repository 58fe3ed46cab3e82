//! Connections that the child of a `vfork` has under numbers of its own.
//!
//! The child has its parent's memory, and descriptors of its own. So it can start a relay as its parent could, and put
//! the program's socket under its own numbers, but not under its parent's: the parent is one of those who share the
//! end, and goes over to the socket when it next uses it ([`crate::follow`]).

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_shm::sys;
use beeline_stats::{Counter, Reason};

use super::begin;
use super::gate::{self, Attendance};
use super::pair::{self, Pair};
use crate::changing::changing;
use crate::desc::Desc;
use crate::life::handover::{by_cookie, stays_open};
use crate::life::open_fds;
use crate::side::{SideState, stands_no_more, state};
use crate::{follow, kernel, process, stats};

/// Demotes the connection whose anchor `fd` is, under all numbers of this process. The caller holds no lock.
///
/// # Errors
/// Why its numbers still lead to the anchor.
pub(crate) fn demote(fd: i32, desc: &'static Desc) -> Result<(), Reason> {
    let _changing = changing();
    let socket = if desc.side().is(state::RELAYED) {
        // For another child of the same parent.
        follow::ask(&desc.side().gate, follow::BRIEF_NS).ok_or(Reason::RelayFailed)?
    } else {
        start(fd, desc)?
    };
    open_fds::each(|number| {
        if by_cookie(number).is_some_and(|other| core::ptr::eq(other, desc)) {
            let flags = if stays_open(number) { 0 } else { libc::O_CLOEXEC };
            let _ = kernel::dup3(socket, number, flags);
        }
    });
    let _ = sys::close(socket);
    Ok(())
}

/// Starts a relay. The program's socket.
fn start(fd: i32, desc: &'static Desc) -> Result<i32, Reason> {
    {
        let _both = desc.lock_both();
        if !desc.is_lane() {
            return Err(Reason::RelayFailed);
        }
        stands_no_more(&desc.lane(), desc.end());
        desc.shared.store(true, Relaxed);
    }
    let side = desc.side();
    // This process, and then the relay: an end with one holder is taken for one that nobody shares any more.
    side.holders.fetch_add(1, AcqRel);
    start_shared(fd, desc, side).inspect_err(|_| {
        side.holders.fetch_sub(1, AcqRel);
    })
}

fn start_shared(fd: i32, desc: &'static Desc, side: &'static SideState) -> Result<i32, Reason> {
    if side.is(state::CROWDED) {
        return Err(Reason::RelayFailed);
    }
    gate::await_children(side);
    side.join(process::owner());
    if let Some(lane) = desc.pooled() {
        lane.spoil();
    }
    let Pair { app, ours } = pair::connect(side.local.get(), side.remote.get(), side.family.load(Relaxed) as i32)?;
    let began = gate::make_gate(side).and_then(|gate| {
        let began = begin(fd, desc, &Pair { app, ours }, Attendance { gate, app });
        let _ = sys::close(gate);
        began.map(drop)
    });
    let _ = sys::close(ours);
    began
        .map(|()| app)
        .inspect_err(|_| {
            let _ = sys::close(app);
        })
        .inspect(|_| stats::count(Counter::Relays, 1))
}

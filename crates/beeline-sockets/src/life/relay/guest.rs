//! Connections that the child of a `vfork` has under numbers of its own.
//!
//! The child has its parent's memory, and descriptors of its own. So it can start a relay as its parent could, and put
//! the program's socket under its own numbers, but not under its parent's: the parent is one of those who share the
//! end, and goes over to the socket when it next uses it ([`crate::follow`]).

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_shm::Fd;
use beeline_stats::{Counter, Reason};

use super::{begin, gate, pair};
use crate::desc::Desc;
use crate::ending::stand_no_more;
use crate::life::handover::stays_open;
use crate::life::open_fds;
use crate::side::{SideState, state};
use crate::{follow, kernel, process, stats};

/// Demotes the connection whose anchor `fd` is, under all numbers of this process. The caller holds
/// [`changing`](crate::changing::changing), has found the connection in it, and has all signals blocked: a child that
/// is killed in here leaves locks to its parent's thread, which lives.
///
/// # Errors
/// Why its numbers still lead to the anchor.
pub(crate) fn demote(fd: i32, desc: &'static Desc) -> Result<(), Reason> {
    let side = desc.side();
    let is_relayed = || side.is(state::RELAYED);
    let started = if is_relayed() { Err(Reason::RelayFailed) } else { start(fd, desc) };
    let socket = match started {
        // For another child of the same parent, or by another holder.
        Err(_) if is_relayed() => follow::ask(&side.gate, follow::BRIEF_NS).ok_or(Reason::RelayFailed)?,
        started => started?,
    };
    let cookie = side.origin.anchor_cookie.load(Relaxed);
    put_under_all(socket.get(), fd, cookie);
    if is_it(fd, cookie) { Err(Reason::RelayFailed) } else { Ok(()) }
}

/// Puts a socket where this process has the anchor: under `fd`, under the standard descriptors, and under whatever else
/// /proc tells of, if it is there.
fn put_under_all(socket: i32, fd: i32, cookie: u64) {
    let put = |number| {
        if is_it(number, cookie) {
            let flags = if stays_open(number) { 0 } else { libc::O_CLOEXEC };
            let _ = kernel::dup3(socket, number, flags);
        }
    };
    (0..=2).chain([fd]).for_each(put);
    open_fds::each(put);
}

fn is_it(number: i32, cookie: u64) -> bool {
    kernel::getsockopt::<u64>(number, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(cookie)
}

/// Puts a socket that is not connected in the place of an anchor of which nobody knows any more whose it was: the
/// parent has gone over to the relay's socket meanwhile. So the program fails, and the others keep their connection.
pub(crate) fn disown(fd: i32) {
    if let Ok(socket) = kernel::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
        let socket = Fd::own(socket as i32);
        let _ = kernel::dup3(socket.get(), fd, 0);
    }
}

/// Starts a relay. The program's socket.
fn start(fd: i32, desc: &'static Desc) -> Result<Fd, Reason> {
    let side = {
        let _both = desc.lock_both();
        if !desc.is_lane() {
            return Err(Reason::RelayFailed);
        }
        let side = desc.side();
        // This process, and then the relay: an end with one holder is taken for one that nobody shares any more.
        side.holders.fetch_add(1, AcqRel);
        stand_no_more(fd, desc);
        desc.shared.store(true, Relaxed);
        side
    };
    start_shared(fd, desc, side).inspect_err(|_| {
        side.holders.fetch_sub(1, AcqRel);
    })
}

fn start_shared(fd: i32, desc: &'static Desc, side: &'static SideState) -> Result<Fd, Reason> {
    gate::await_children(side);
    side.join(process::identity());
    if !side.knows_all_sharers() {
        return Err(Reason::RelayFailed);
    }
    if let Some(lane) = desc.pooled() {
        lane.spoil();
    }
    let pair = pair::connect(side.local.get(), side.remote.get(), side.family.load(Relaxed) as i32)?;
    begin(fd, desc, &pair)?;
    stats::count(Counter::Relays, 1);
    Ok(pair.app)
}

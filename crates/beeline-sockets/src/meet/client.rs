//! The client's part of a meeting, whatever stands behind the door: a lane that is offered, the hello, and the anchor under
//! the app's numbers.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{BEGIN_ARMED, End};
use beeline_stats::Reason;
use beeline_wire::{ConnName, DoorName, Held, Hello};

use super::lookup::{self, Target};
use super::pool::{self, Offer, PooledLane};
use super::route::Anchor;
use super::{hello_io, trust};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{Errno, epoll, hidden, io, process, slots, table};

/// Fills the side and finds a lane for it, to be offered at the door of `cookie`.
pub(super) fn prepare(
    side: &SideState,
    desc: &Desc,
    name: &ConnName,
    cookie: u64,
    nonblocking: bool,
) -> Result<Offer, Reason> {
    fill_side(side, desc, name, nonblocking);
    let offer = pool::client_lane(cookie)?;
    let memory = offer.lane.memory();
    for end in [End::Client, End::Server] {
        memory.read_wake(end).store(BEGIN_ARMED, Relaxed);
    }
    Ok(offer)
}

/// Connects to the door, and proves that it is the listener's own.
pub(super) fn enter_door(
    anchor: &Anchor,
    name: &ConnName,
    destination: SocketAddr,
    target: Target,
) -> Result<(), Reason> {
    if io::small_send_buffer().is_none() {
        return Err(Reason::KernelUnsupported);
    }
    trust::refuse_rights(anchor.0);
    let door = SockAddr::abstract_unix(DoorName::encode(target.cookie).as_bytes()).ok_or(Reason::Internal)?;
    match kernel::connect(anchor.0, &door) {
        Ok(_) => {}
        Err(Errno(libc::EAGAIN)) => return Err(Reason::DoorFull),
        Err(Errno(libc::EPERM | libc::EACCES)) => return Err(Reason::SystemCallDenied),
        Err(_) => {
            lookup::note_doorless(destination);
            return Err(Reason::NoDoor);
        }
    }
    let uid = trust::peer_uid(anchor.0).ok_or(Reason::DoorNotTrusted)?;
    if !trust::may_share(uid) {
        return Err(Reason::ForeignUser);
    }
    // A remembered answer is a little old. It will do for our own user and for root, who could do to us what
    // they like; anybody else must own the port now that the connection stands.
    let owner = if uid == 0 || uid == trust::euid() {
        target.uid
    } else {
        let now = lookup::listener_now(destination, name.client.address())?;
        if now.cookie != target.cookie {
            return Err(Reason::DoorNotTrusted);
        }
        now.uid
    };
    if trust::may_serve(uid, owner) { Ok(()) } else { Err(Reason::DoorNotTrusted) }
}

/// Puts the anchor in the TCP socket's place.
pub(super) fn install(
    fd: i32,
    desc: &'static Desc,
    anchor: &Anchor,
    lane: &'static PooledLane,
    side: pool::Side,
    nonblocking: bool,
) -> Result<(), Reason> {
    if !nonblocking {
        let _ = kernel::fcntl(anchor.0, libc::F_SETFL, 0);
    }
    let owned = desc.draft.owned.load(Relaxed);
    if owned {
        super::lane::carry_owner(fd, anchor.0);
    }
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    let done = table::put_under(fd, desc, anchor.0);
    if done {
        super::lane::begin_lane(desc, anchor.0, lane, side, End::Client);
        slots::open_slot(desc);
        if owned {
            io::own(fd);
        }
    }
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    if done {
        return Ok(());
    }
    // The server finds a client that has left.
    lane.spoil();
    pool::retire(lane, End::Client, false);
    side.retire(true);
    Err(Reason::Internal)
}

fn fill_side(side: &SideState, desc: &Desc, name: &ConnName, nonblocking: bool) {
    super::lane::carry_draft(&desc.draft, side);
    side.holders.store(1, Relaxed);
    side.nonblock.store(u32::from(nonblocking), Relaxed);
    side.family.store(desc.family.load(Relaxed), Relaxed);
    side.local.set(name.client.address());
    side.remote.set(name.server.address());
    side.rx.begin_armed();
    if nonblocking {
        side.mark(state::CONNECTING);
    }
}

pub(super) fn say_hello(anchor: &Anchor, offer: Offer, held: Option<Held>) -> Result<&'static PooledLane, Reason> {
    let hello = Hello {
        reuse: false,
        ring_bytes: offer.lane.memory().ring_bytes(),
        generation: 0,
        pid_hint: process::owner(),
        lane_inode: offer.lane.inode(),
        held,
    };
    match hello_io::send(anchor.0, &hello, offer.memfd) {
        Ok(()) => Ok(offer.sent()),
        Err(errno) => {
            offer.withdraw();
            Err(match errno.0 {
                libc::ETOOMANYREFS => Reason::RightsShort,
                libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Reason::DoorDied,
                libc::EPERM | libc::EACCES => Reason::SystemCallDenied,
                _ => Reason::Internal,
            })
        }
    }
}

/// Keeps the TCP socket, which holds the port that the app chose.
pub(super) fn hold(fd: i32, lane: &PooledLane) {
    if let Ok(copy) = kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) {
        lane.hold(hidden::hide(copy as i32));
    }
}

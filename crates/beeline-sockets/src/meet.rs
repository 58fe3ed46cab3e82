//! How two ends meet: sockets, listeners and their doors, connecting and accepting.
//!
//! # The protocol of a connection
//!
//! ```text
//! client                                             server
//! ------                                             ------
//!                                                    listen: door made, shut
//!                                                    first accept, poll, epoll_ctl: door open
//! which listener would take it? (sock_diag)
//! anchor bound to the connection's name
//! anchor connected to the listener's door
//! whose door is it? (SO_PEERCRED, sock_diag)
//! lane made or taken from the pool
//! hello, with the lane's memfd          ---------->
//! anchor put under the app's fd
//! the app writes into the ring                       accept: name, user, hello, lane checked
//!                                       <----------  TAKEN: from now on nothing changes any more
//! ```
//!
//! Until the hello is sent, any failure leaves the app's TCP socket as it was, and the kernel connects it.
//! Between hello and TAKEN the server's death or refusal shows on the anchor, and the client begins again over
//! TCP with what lies in its ring ([`late_fallback`]): since the hello was not taken, nobody has read a byte of
//! it. After TAKEN the connection lives and dies with the lane.
//!
//! # Rooms
//!
//! `lookup` asks the kernel who listens where; `trust` decides with whom to share memory; `route` and `ports`
//! find the client's address and reserve it; `hello_io` moves the hello; `pool` keeps lanes and sides;
//! `listener`, `door`, `lobby`, `turnstile`, `accept`, `admit`, `claims` and `reset` are the server's part; `connect`,
//! `knock`, `bridged` and `late` the client's, `counted` is what becomes of both in a program that has left lanes, and `brief` knows which
//! other hosts' listeners are left to TCP. `bridging` is what the bridge itself uses of all this.
//!
//! # Locks
//!
//! `changing::changing` is held while fds change their meaning, that is from the anchor's birth to its place in the
//! table; so a `fork` copies no half-made connection. Then a listener's lock, then a description's, then the
//! innermost ones of `lookup` and `pool`. Nothing is waited for with any of them held: every call that is made
//! then returns at once.

mod accept;
mod admit;
mod bridged;
mod bridging;
mod brief;
mod claims;
mod connect;
mod counted;
mod door;
mod hello_io;
mod knock;
mod lane;
mod late;
mod listener;
mod lobby;
mod lookup;
mod offers;
mod pool;
mod ports;
mod reset;
mod retreat;
mod route;
mod trust;
mod turnstile;
mod watched;

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;

use crate::app_memory::bogus;
use crate::desc::{DESCS, Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{Errno, Outcome, changing, close, follow, io, life, table};

pub use accept::{accept4, door_ready};
pub(crate) use admit::forget_descriptor_limit;
pub use bridging::{LaneEnd, Lying, answer, connect_for, listen_for_clients, take_client};
pub use connect::connect;
pub use counted::{accept4 as accept4_counted, connect as connect_counted};
pub use door::open_door;
pub use lane::begin_bare;
pub(crate) use lane::{adopt_lane, carry_owner, close_lane, spoil_lane};
pub(crate) use late::carry_options;
pub use late::{before_close, late_fallback};
pub use listener::{
    Listener, adopt_listener, close_listener, leave_door_if_blocked, leave_doors, listen, listener_fds, meet_listener,
    shutdown_listener,
};
pub(crate) use offers::{before_end, before_fork, before_passing, changing_to_share};
pub(crate) use pool::PooledLane;
pub(crate) use retreat::from_all_doors as retreat_from_doors;
pub(crate) use trust::may_share;
pub(crate) use watched::{is_listener, pass_on};

/// `socket(2)`.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome {
    if !life::may_accelerate() {
        return Outcome::Kernel;
    }
    // Before there is anything that a fork could copy.
    let born = crate::forks();
    let fd = match kernel::socket(domain, kind, protocol) {
        Err(Errno(libc::EMFILE | libc::ENFILE)) if release_descriptors() => kernel::socket(domain, kind, protocol),
        result => result,
    };
    let fd = match fd {
        Ok(fd) => fd as i32,
        Err(errno) => return Outcome::Fail(errno),
    };
    let _changing = changing::changing();
    close::forget_stale(fd);
    let is_internet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let is_tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    // Without a description the socket is simply the kernel's.
    if is_internet
        && is_stream
        && is_tcp
        && let Some(desc) = DESCS.take()
    {
        desc.begin(Kind::Tcp, fd, domain as u32, born);
        if table::set(fd, Some(desc)).is_err() {
            desc.give_if_unused();
        }
    }
    Outcome::Done(fd as isize)
}

/// `bind(2)`.
///
/// # Safety
/// `address` and `length` as for bind(2).
pub unsafe fn bind(fd: i32, address: *const libc::sockaddr, length: u32) -> Outcome {
    match table::get(fd).map(Desc::kind) {
        Some(Kind::Lane | Kind::Orphan) => Outcome::fail(libc::EINVAL),
        Some(_) => {
            lookup::forget();
            // SAFETY: forwarded from the caller.
            unsafe { sys::call(libc::SYS_bind, [fd as usize, address as usize, length as usize, 0, 0, 0]) }.into()
        }
        None => Outcome::Kernel,
    }
}

/// `getsockname(2)`.
///
/// # Safety
/// `address` and `length` as for getsockname(2).
pub unsafe fn getsockname(fd: i32, address: *mut libc::sockaddr, length: *mut u32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { name(fd, address, length, |side| Ok(side.local.get())) }
}

/// `getpeername(2)`.
///
/// # Safety
/// `address` and `length` as for getpeername(2).
pub unsafe fn getpeername(fd: i32, address: *mut libc::sockaddr, length: *mut u32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe {
        name(fd, address, length, |side| {
            // The kernel forgets the peer of a connection that is over: reset, or closed in both directions.
            let over = side.is(state::RESET) || side.is(state::SHUT_WR) && side.is(state::PEER_FIN);
            if over { Err(Errno(libc::ENOTCONN)) } else { Ok(side.remote.get()) }
        })
    }
}

/// # Safety
/// `address` and `length` as for getsockname(2).
unsafe fn name(
    fd: i32,
    address: *mut libc::sockaddr,
    length: *mut u32,
    which: impl FnOnce(&SideState) -> Result<core::net::SocketAddr, Errno>,
) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    match desc.kind() {
        Kind::Lane if follow::follow_if_relayed(fd, desc) => return Outcome::Kernel,
        Kind::Lane => {}
        Kind::Orphan => return Outcome::fail(libc::ENOTCONN),
        _ => return Outcome::Kernel,
    }
    let Some(guard) = table::lane_rx(fd) else { return Outcome::Kernel };
    io::observe(desc, guard.side);
    let found = match which(guard.side) {
        Ok(found) => SockAddr::internet(found, guard.side.family.load(Relaxed) as i32),
        Err(errno) => return Outcome::Fail(errno),
    };
    drop(guard);
    // SAFETY: by the caller's word; read before it is used for a length.
    unsafe {
        if bogus(length as usize, size_of::<u32>()) || bogus(address as usize, 1) {
            return Outcome::fail(libc::EFAULT);
        }
        if (*length).cast_signed() < 0 {
            return Outcome::fail(libc::EINVAL);
        }
        found.to_app(address, length);
    }
    Outcome::OK
}

/// Before a `fork`: idle lanes go, so that the child has none of them, and listeners get what a crowd needs.
/// The caller holds `changing::changing`.
pub fn purge_pools() {
    pool::purge();
    listener::prepare_fork();
}

/// After a `fork`, in the parent: lanes and sides that other threads gave back since [`purge_pools`] are the child's,
/// too. The caller holds `changing::changing`.
pub fn purge_pools_again() {
    pool::purge();
}

/// Gives up descriptors that are hidden, those that are only there for speed before all others. Returns whether there were
/// any: the call that ran into the limit may be tried again. The caller does not hold `changing::changing`.
pub fn release_descriptors() -> bool {
    pool::release_descriptors() || {
        let _changing = changing::changing();
        retreat::give_up_descriptors()
    }
}

/// In the child of a `fork`.
pub fn reset_after_fork() {
    offers::reset_after_fork();
    lookup::reset_after_fork();
    pool::reset_after_fork();
    ports::reset_after_fork();
    listener::reset_after_fork();
}

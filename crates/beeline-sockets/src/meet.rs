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
//! other hosts' listeners are left to TCP. `agent` is how both ends meet across network namespaces. `bridging` is what the bridge itself uses of all this.
//!
//! # Locks
//!
//! `life::changing` is held while fds change their meaning, that is from the anchor's birth to its place in the
//! table; so a `fork` copies no half-made connection. Then a listener's lock, then a description's, then the
//! innermost ones of `lookup` and `pool`. Nothing is waited for with any of them held: every call that is made
//! then returns at once.

mod accept;
mod admit;
pub(crate) mod agent;
mod bridged;
mod bridging;
mod brief;
mod claims;
mod connect;
mod counted;
mod door;
mod hello_io;
mod knock;
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

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_lane::{End, LaneMemory, flags};
use beeline_shm::memfd::FileId;
use beeline_shm::sys::{self, SysResult};

use crate::app_memory::bogus;
use crate::desc::{DESCS, Desc, Draft, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{MAGIC, SideState, state};
use crate::{Errno, Outcome, epoll, io, life, stats, table};

pub use accept::{accept4, door_ready};
pub(crate) use admit::forget_descriptor_limit;
pub(crate) use agent::end_if_cut;
pub(crate) use bridged::note_end;
pub use bridging::{LaneEnd, Lying, answer, connect_for, listen_for_clients, take_client};
pub use connect::connect;
pub(crate) use connect::{each_fd, may_be_put_under, put_under};
pub use counted::{accept4 as accept4_counted, connect as connect_counted};
pub use door::open_door;
pub(crate) use hello_io::offer_of as parcel_offer;
pub(crate) use late::carry_options;
pub use late::{Begun, before_close, late_fallback};
pub use listener::{
    Listener, adopt_listener, close_listener, leave_door_if_blocked, leave_doors, listen, listener_fds, meet_listener,
    shutdown_listener,
};
pub(crate) use offers::{
    are_due as offers_are_due, before_end, before_fork, before_passing, changing_to_share, due_ns as offer_due_ns,
    look_after as look_after_offers, remove as forget_offer,
};
pub use pool::PooledLane;
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
    let fd = match with_room(|| kernel::socket(domain, kind, protocol)) {
        Ok(fd) => fd as i32,
        Err(errno) => return Outcome::Fail(errno),
    };
    let _changing = life::changing();
    forget_stale(fd);
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
        Kind::Lane if life::relay::follow_if_relayed(fd, desc) => return Outcome::Kernel,
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

/// The kernel has given `fd` to something new. If it led to a description, the app closed it behind our back.
pub fn fd_reborn(fd: i32) {
    if table::get(fd).is_some() && !life::is_guest_of_parent() {
        let _changing = life::changing();
        forget_stale(fd);
    }
}

/// Ends what `fd` led to, which the kernel has closed already. The caller holds `life::changing`.
fn forget_stale(fd: i32) {
    let Some(desc) = table::get(fd) else { return };
    epoll::forget(fd, desc);
    let last = desc.refs.load(Acquire) <= 1;
    if last {
        match desc.kind() {
            Kind::Lane => io::close_lane(desc),
            Kind::Listener => close_listener(desc),
            Kind::Epoll => epoll::close_set(desc),
            _ => {}
        }
    }
    let _ = table::set(fd, None);
    if last {
        stats::close_slot(desc);
        desc.become_kind(Kind::Closed);
        desc.give_if_unused();
    }
}

/// Hands over to a connection what was set on the socket before.
fn carry_draft(draft: &Draft, side: &SideState) {
    side.rcv_timeout_ns.store(draft.rcv_timeout_ns.load(Relaxed), Relaxed);
    side.snd_timeout_ns.store(draft.snd_timeout_ns.load(Relaxed), Relaxed);
    side.set_rcv_lowat(match draft.rcv_lowat.load(Relaxed) {
        ..=1 => 0,
        bytes => bytes,
    });
    side.linger.store(draft.linger.load(Relaxed), Relaxed);
    for (target, source) in side.options.iter().zip(&draft.options) {
        target.value.store(source.value.load(Relaxed), Relaxed);
        target.key.store(source.key.load(Relaxed), Relaxed);
    }
    side.rx.set_urgent_inline(side.option(libc::SOL_SOCKET, libc::SO_OOBINLINE) == Some(1));
}

/// Gives the file under `to` the owner of the one under `from` (`F_SETOWN`, `F_SETSIG`).
pub(crate) fn carry_owner(from: i32, to: i32) {
    /// `struct f_owner_ex` of fcntl(2).
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: i32,
    }
    const F_SETSIG: i32 = 10;
    const F_GETSIG: i32 = 11;
    const F_SETOWN_EX: i32 = 15;
    const F_GETOWN_EX: i32 = 16;
    let mut owner = Owner { kind: 0, id: 0 };
    let mut ask = |fd: i32, command: i32| {
        let args = [fd as usize, command as usize, (&raw mut owner) as usize, 0, 0, 0];
        // SAFETY: both commands take one `struct f_owner_ex`, which is live; one writes it, the other reads it.
        unsafe { sys::call(libc::SYS_fcntl, args) }
    };
    if ask(from, F_GETOWN_EX).is_ok() {
        let _ = ask(to, F_SETOWN_EX);
    }
    if let Ok(signal) = kernel::fcntl(from, F_GETSIG, 0) {
        let _ = kernel::fcntl(to, F_SETSIG, signal);
    }
}

/// Makes a description a lane, and notes in the side where a later holder finds the parts. The caller holds
/// `life::changing`.
fn begin_lane(desc: &'static Desc, anchor: i32, lane: &'static PooledLane, side: pool::Side, end: End) {
    let origin = &side.state.origin;
    let cookie = |fd| kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0);
    origin.magic.store(MAGIC, Relaxed);
    origin.anchor_cookie.store(cookie(anchor), Relaxed);
    origin.lane_device.store(lane.id().device, Relaxed);
    origin.lane_inode.store(lane.id().inode, Relaxed);
    origin.holder_cookie.store(lane.holder().map_or(0, cookie), Relaxed);
    origin.ring_bytes.store(lane.memory().ring_bytes(), Relaxed);
    origin.end.store(end as u32, Relaxed);
    desc.pooled.store(core::ptr::from_ref(lane).cast_mut(), Relaxed);
    desc.keep_side_memfd(side.memfd);
    desc.become_lane(lane.memory(), side.state, end);
    if !side.state.is(state::BRIDGED) {
        offers::add(desc);
    }
}

/// Makes a description a lane that another program has lent: the descriptors of side and lane, and of the socket
/// that holds the port, are copied to hidden ones.
pub(crate) fn adopt_lane(
    desc: &'static Desc,
    memory: LaneMemory,
    id: FileId,
    side: &'static SideState,
    [side_fd, lane_fd]: [i32; 2],
    holder: Option<i32>,
    end: End,
) {
    let copy = |fd| kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0).ok().map(|copy| kernel::hide(copy as i32));
    let lane = pool::adopted_lane(memory, id, copy(lane_fd), holder.and_then(copy));
    desc.pooled.store(lane.map_or(core::ptr::null_mut(), |lane| core::ptr::from_ref(lane).cast_mut()), Relaxed);
    desc.keep_side_memfd(copy(side_fd));
    desc.become_lane(memory, side, end);
    if side.is(state::OFFERED) {
        offers::add(desc);
    }
}

/// The last user of a lane in this process is gone: pools or unmaps the lane and its side.
pub fn retire_lane(desc: &'static Desc) {
    let side = desc.side();
    // SAFETY: null, or an object of a slab, which is never unmapped.
    let lane = unsafe { desc.pooled.swap(core::ptr::null_mut(), Relaxed).as_ref() };
    // Not judged by the side alone: a holder that has dropped its privileges may put into it what it likes, and keep it
    // mapped.
    let alone =
        lane.is_some_and(PooledLane::is_ours_alone) && !desc.shared.load(Relaxed) && side.holders.load(Relaxed) <= 1;
    if let Some(lane) = lane {
        if side.is(state::POISONED)
            || desc.end() == End::Client && lane.memory().flags(End::Client) & flags::CLOSED == 0
        {
            lane.spoil();
        }
        pool::retire(lane, desc.end(), alone);
    }
    pool::Side { state: side, memfd: desc.take_side_memfd() }.retire(alone);
}

/// The lane of a connection must not be used again.
pub(crate) fn spoil_lane(desc: &'static Desc) {
    // SAFETY: null, or an object of a slab, which is never unmapped.
    if let Some(lane) = unsafe { desc.pooled.load(Relaxed).as_ref() } {
        lane.spoil();
    }
}

/// Before a `fork`: idle lanes go, so that the child has none of them, and listeners get what a crowd needs.
/// The caller holds `life::changing`.
pub fn purge_pools() {
    pool::purge();
    listener::prepare_fork();
}

/// After a `fork`, in the parent: lanes and sides that other threads gave back since [`purge_pools`] are the child's,
/// too. The caller holds `life::changing`.
pub fn purge_pools_again() {
    pool::purge();
}

/// Gives up descriptors that are hidden, those that are only there for speed before all others. Returns whether there were
/// any: the call that ran into the limit may be tried again. The caller does not hold `life::changing`.
fn release_descriptors() -> bool {
    pool::release_descriptors() || {
        let _changing = life::changing();
        retreat::give_up_descriptors()
    }
}

/// Makes a descriptor for the program. A full table gives up what is hidden in it, one kind after the other until there is a
/// number: a program that fills it gets as many as without us, and nothing finds room in it afterwards. The caller does not
/// hold `life::changing`.
///
/// # Errors
/// Those of `make`.
pub fn with_room(make: impl Fn() -> SysResult) -> SysResult {
    loop {
        match make() {
            Err(Errno(libc::EMFILE | libc::ENFILE)) if release_descriptors() => {}
            result => return result,
        }
    }
}

/// In the child of a `fork`.
pub fn reset_after_fork() {
    agent::reset_after_fork();
    offers::reset_after_fork();
    lookup::reset_after_fork();
    pool::reset_after_fork();
    ports::reset_after_fork();
    listener::reset_after_fork();
}

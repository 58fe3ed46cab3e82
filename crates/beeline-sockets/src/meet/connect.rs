//! `connect(2)`.
//!
//! The app's TCP socket stays untouched until a lane stands ready beside it; only then the anchor is put under
//! the app's fd, in all its duplicates at once. Every condition that is not met, and every failure before, is a
//! [`Reason`], and the kernel connects the TCP socket.
//!
//! # What the app sees
//!
//! As on loopback TCP: a blocking call returns 0; a non-blocking one fails with `EINPROGRESS`, the socket is
//! writable at once, a second call returns 0 and a third fails with `EISCONN`.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use beeline_lane::{BEGIN_ARMED, End};
use beeline_stats::tunables::Policy;
use beeline_stats::{Counter, Reason, Role};
use beeline_wire::{ConnName, DoorName, Held, Hello};

use super::lookup::{self, Target};
use super::pool::{self, Offer, PooledLane};
use super::route::{Anchor, Reserved, Route, reserve_name};
use super::{agent, bridged, door, hello_io, knock, ports, trust};
use crate::desc::{Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, state};
use crate::{Errno, Outcome, epoll, io, life, stats, table};

/// `draft.blocked_by` while a thread is in here.
const BUSY: u16 = u16::MAX;
/// `draft.blocked_by` once the kernel has been asked to connect.
const SETTLED: u16 = Reason::ConnectPending as u16 + 1;
/// The state of a TCP socket that is not connected, nor about to be.
pub(super) const TCP_CLOSE: u8 = 7;

/// `connect(2)`.
///
/// # Safety
/// `address` and `length` as for connect(2).
pub unsafe fn connect(fd: i32, address: *const libc::sockaddr, length: u32) -> Outcome {
    let Some(desc) = table::get(fd) else {
        // SAFETY: forwarded from the caller.
        unsafe { count_stranger(fd, address, length) };
        return Outcome::Kernel;
    };
    match desc.kind() {
        Kind::Tcp => {}
        // SAFETY: forwarded from the caller.
        Kind::Lane => return unsafe { again(fd, desc, address, length) },
        Kind::Orphan => return Outcome::fail(libc::EISCONN),
        _ => return Outcome::Kernel,
    }
    // SAFETY: forwarded from the caller.
    let destination = unsafe { SockAddr::from_app(address, length) }.and_then(|address| address.to_internet());
    let Some(destination) = destination.filter(|destination| suits(desc, destination)) else {
        // Whatever is wrong with it, or AF_UNSPEC: the kernel knows.
        return Outcome::Kernel;
    };
    if !life::may_accelerate() {
        return life::stopped().map_or(Outcome::Kernel, |reason| settle(desc, reason));
    }
    match claim(fd, desc) {
        Claim::Ours => {}
        Claim::Settled => return Outcome::Kernel,
        Claim::Blocked(reason) => return settle(desc, reason),
    }
    match knock::patiently(fd, destination, || attempt(fd, desc, destination)) {
        Ok(Made::Lane { nonblocking }) => {
            stats::count(Counter::ConnectionsAcceleratedClient, 1);
            if nonblocking { Outcome::fail(libc::EINPROGRESS) } else { Outcome::OK }
        }
        Ok(Made::Answered(reason, errno)) => {
            let _ = settle(desc, reason);
            Outcome::fail(errno)
        }
        // Another thread has closed the number while this one waited: whatever it leads to now is not to be connected.
        Err(_) if !table::leads_to(fd, desc) => Outcome::fail(libc::EBADF),
        Err(reason) => settle(desc, reason),
    }
}

/// Leaves the socket to the kernel for good.
fn settle(desc: &Desc, reason: Reason) -> Outcome {
    desc.draft.blocked_by.store(SETTLED, Relaxed);
    stats::fell_back(Role::Client, reason);
    Outcome::Kernel
}

/// Counts a TCP connection over a socket that we do not know.
///
/// # Safety
/// `address` and `length` as for connect(2).
unsafe fn count_stranger(fd: i32, address: *const libc::sockaddr, length: u32) {
    // SAFETY: forwarded from the caller.
    let internet = unsafe { SockAddr::from_app(address, length) }.and_then(|address| address.to_internet()).is_some();
    if internet && kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) {
        stats::fell_back(Role::Client, Reason::UnknownSocket);
    }
}

/// A call on a socket that is connected over a lane.
///
/// # Safety
/// `address` and `length` as for connect(2).
unsafe fn again(fd: i32, desc: &'static Desc, address: *const libc::sockaddr, length: u32) -> Outcome {
    // SAFETY: readable by the caller's word.
    let family = if address.is_null() || length < 2 { -1 } else { i32::from(unsafe { (*address).sa_family }) };
    if family == libc::AF_UNSPEC {
        return super::late::disconnect(fd, desc);
    }
    let Some(guard) = table::lane_tx(fd) else { return Outcome::Kernel };
    crate::io::observe(desc, guard.side);
    if guard.side.state.fetch_and(!state::CONNECTING, AcqRel) & state::CONNECTING == 0 {
        return Outcome::fail(libc::EISCONN);
    }
    match guard.side.take_error() {
        0 => Outcome::OK,
        errno => Outcome::fail(errno),
    }
}

/// Whether the kernel would take this destination for a socket of this family.
fn suits(desc: &Desc, destination: &SocketAddr) -> bool {
    let is_v4 = desc.family.load(Relaxed) == libc::AF_INET as u32;
    is_v4 == destination.is_ipv4() && destination.port() != 0
}

enum Claim {
    Ours,
    Settled,
    Blocked(Reason),
}

/// Sees to it that one thread at a time connects a socket, and that the kernel has not begun to.
fn claim(fd: i32, desc: &Desc) -> Claim {
    let word = &desc.draft.blocked_by;
    let seen = match word.compare_exchange(0, BUSY, Acquire, Relaxed) {
        Ok(_) => return Claim::Ours,
        Err(seen) => seen,
    };
    match seen {
        BUSY => Claim::Settled,
        // A blocking attempt has failed, and the program tries once more on the same socket.
        SETTLED if !desc.has_lane() && is_closed(fd) => match word.compare_exchange(SETTLED, BUSY, Acquire, Relaxed) {
            Ok(_) => Claim::Ours,
            Err(_) => Claim::Settled,
        },
        SETTLED => Claim::Settled,
        _ => Claim::Blocked(door::blocked_by(desc).unwrap_or(Reason::Internal)),
    }
}

/// Whether a blocking TCP socket is not connected, nor about to be.
fn is_closed(fd: i32) -> bool {
    let blocking = kernel::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|mode| mode as i32 & libc::O_NONBLOCK == 0);
    blocking && tcp_state(fd) == Some(TCP_CLOSE)
}

/// The state of a TCP socket, by its number in the kernel.
pub(super) fn tcp_state(fd: i32) -> Option<u8> {
    // The first byte of struct tcp_info.
    kernel::getsockopt::<[u8; 8]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok().map(|info| info[0])
}

/// How an attempt to connect has ended, if it was one.
pub(super) enum Made {
    /// There is a lane.
    Lane {
        /// Whether the socket is non-blocking.
        nonblocking: bool,
    },
    /// The kernel was asked to connect, and this is its answer; why there is no lane.
    Answered(Reason, i32),
}

/// Connects over a lane.
fn attempt(fd: i32, desc: &'static Desc, destination: SocketAddr) -> Result<Made, Reason> {
    if crate::config().policy == Policy::Strict {
        return Err(Reason::PolicyStrict);
    }
    if desc.born.load(Relaxed) != crate::forks() {
        return Err(Reason::SharedBeforeConnect);
    }
    if (0..=2).contains(&fd) {
        return Err(Reason::StdioDescriptor);
    }
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0).map_err(|_| Reason::Internal)? as i32;
    if mode & libc::O_ASYNC != 0 {
        return Err(Reason::AsyncIo);
    }
    if !life::allow_lanes() {
        return Err(life::stopped().unwrap_or(Reason::Internal));
    }
    let nonblocking = mode & libc::O_NONBLOCK != 0;
    let route = Route::find(fd, desc, destination)?;
    if route.remote {
        return attempt_afar(fd, desc, &route, nonblocking);
    }
    if route.bound_port.is_some_and(|port| port < ports::first_unprivileged())
        && !trust::may_have_any_port(trust::euid())
    {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let (Reserved { anchor, name, held }, target) = reserve(&route)?;
    if route.bound_port.is_some() && !trust::is_believed_by(target.uid) {
        return Err(Reason::ExplicitBindUnsupported);
    }
    let _changing = life::changing();
    if !table::leads_to(fd, desc) || !life::may_accelerate() {
        return Err(life::stopped().unwrap_or(Reason::Internal));
    }
    // A fork that is not counted now waits for us, and copies the finished connection.
    if desc.born.load(Relaxed) != crate::forks() {
        return Err(Reason::SharedBeforeConnect);
    }
    if !may_be_put_under(fd, desc, anchor.0) {
        return Err(Reason::DescriptorsShort);
    }
    // Everything is at hand before the server learns of us: between connecting to its door and saying hello
    // there is as little as can be.
    let side = pool::side().map_err(memory_reason)?;
    let lane = prepare(side.state, desc, &name, target.cookie, nonblocking).and_then(|offer| {
        let trusted = enter_door(&anchor, &name, route.destination, target);
        match trusted {
            Ok(()) => say_hello(&anchor, offer, held),
            Err(reason) => {
                offer.withdraw();
                Err(reason)
            }
        }
    });
    let lane = match lane {
        Ok(lane) => lane,
        Err(reason) => {
            side.retire(true);
            return Err(reason);
        }
    };
    if route.explicit {
        hold(fd, lane);
    }
    install(fd, desc, &anchor, lane, side, nonblocking).map(|()| Made::Lane { nonblocking })
}

/// Connects to an address that is not this namespace's own: of another one of this host perhaps, else of another host.
fn attempt_afar(fd: i32, desc: &'static Desc, route: &Route, nonblocking: bool) -> Result<Made, Reason> {
    let mut unmet = None;
    if agent::is_there() {
        match agent::attempt(fd, desc, route, nonblocking) {
            Ok(made) => return Ok(made),
            Err(reason) => unmet = Some(reason),
        }
    }
    let bridged = if crate::config().bridge && tcp_state(fd) == Some(TCP_CLOSE) {
        lookup::elsewhere(route.destination).and_then(|_| bridged::attempt(fd, desc, route, nonblocking))
    } else {
        Err(Reason::NotLocal)
    };
    match (bridged, unmet) {
        // There is no bridge: what the agent has said tells more.
        (Err(Reason::NotLocal), Some(reason)) => Err(reason),
        (bridged, _) => bridged.map(|()| Made::Lane { nonblocking }),
    }
}

/// Finds the listener, and reserves an address.
fn reserve(route: &Route) -> Result<(Reserved, Target), Reason> {
    let mut target = None;
    let reserved = reserve_name(route, |client| {
        let found = lookup::listener(route.destination, client)?;
        if lookup::is_doorless(route.destination, found.cookie) {
            return Err(Reason::NoDoor);
        }
        if lookup::is_untaken(route.destination) {
            return Err(Reason::HelloNotTaken);
        }
        target = Some(found);
        Ok(())
    })?;
    Ok((reserved, target.ok_or(Reason::Internal)?))
}

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
        super::carry_owner(fd, anchor.0);
    }
    each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    let done = put_under(fd, desc, anchor.0);
    if done {
        super::begin_lane(desc, anchor.0, lane, side, End::Client);
        stats::open_slot(desc);
        if owned {
            io::own(fd);
        }
    }
    each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    if done {
        return Ok(());
    }
    // The server finds a client that has left.
    lane.spoil();
    pool::retire(lane, End::Client, false);
    side.retire(true);
    Err(Reason::Internal)
}

pub(super) fn memory_reason(errno: Errno) -> Reason {
    match errno.0 {
        libc::EFBIG => Reason::FileSizeLimited,
        // RLIMIT_MEMLOCK, mmap(2).
        libc::EAGAIN => Reason::MemoryLocked,
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::EPERM | libc::EACCES | libc::ENOSYS => Reason::SystemCallDenied,
        _ => Reason::MemoryShort,
    }
}

fn fill_side(side: &SideState, desc: &Desc, name: &ConnName, nonblocking: bool) {
    super::carry_draft(&desc.draft, side);
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
        pid_hint: life::owner(),
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
        lane.hold(kernel::hide(copy as i32));
    }
}

/// Puts `file` under every fd that leads to `desc`, close-on-exec where the fd was. False when nothing was done.
/// Epoll registrations must be taken out before.
pub(crate) fn put_under(fd: i32, desc: &'static Desc, file: i32) -> bool {
    let mut refused = None;
    each_fd(fd, desc, |fd| {
        if refused.is_none() && !put(file, fd) {
            refused = Some(fd);
        }
    });
    let Some(refused) = refused else { return true };
    // All numbers lead to one file, or a program could tell. The old one is still under the number that was refused.
    let mut is_done = true;
    each_fd(fd, desc, |fd| {
        is_done &= fd != refused;
        if is_done {
            put(refused, fd);
        }
    });
    false
}

fn put(file: i32, fd: i32) -> bool {
    let flags = match kernel::fcntl(fd, libc::F_GETFD, 0) {
        Ok(flags) if flags as i32 & libc::FD_CLOEXEC != 0 => libc::O_CLOEXEC,
        _ => 0,
    };
    kernel::dup3(file, fd, flags).is_ok()
}

/// Whether [`put_under`] may be expected to do it, by a number that the kernel has just given out: it refuses those beyond
/// the limit, which may have been lowered since they were given out.
pub(crate) fn may_be_put_under(fd: i32, desc: &'static Desc, given: i32) -> bool {
    let mut may = true;
    each_fd(fd, desc, |fd| may &= fd < given || life::within_limit(fd));
    may
}

/// Calls `f` for every fd that leads to `desc`, of which `fd` is one.
pub(crate) fn each_fd(fd: i32, desc: &'static Desc, mut f: impl FnMut(i32)) {
    if desc.refs.load(Acquire) <= 1 {
        return f(fd);
    }
    table::for_each(|fd, other| {
        if core::ptr::eq(desc, other) {
            f(fd);
        }
    });
}

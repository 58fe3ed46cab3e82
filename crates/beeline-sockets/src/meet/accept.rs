//! `accept(2)` over two queues: the door's and TCP's.
//!
//! # Turns
//!
//! A non-blocking listener is asked at both queues, each of them first every other time, so that neither
//! starves. A blocking one sleeps in poll(2) on both and never in the TCP `accept` itself: whoever finds the
//! TCP queue ready takes from it through the turnstile ([`super::turnstile`]), with nobody in between.
//!
//! # Taking a client
//!
//! 1. The client's anchor must be bound to the name of a connection to this listener. The kernel keeps that
//!    name unique, so it reserves the client's address; both addresses in it must be of this host.
//! 2. The client must be somebody to share memory with ([`super::trust`]).
//! 3. The hello must be there. A client that says nothing is put aside and holds up nobody.
//! 4. The lane is mapped, or found among those mapped before.
//! 5. Everything that can fail has been done when [`flags::TAKEN`] is set; from then on the connection never
//!    changes its path. A client that is sent away before begins again over TCP.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use beeline_lane::{End, LaneMemory, flags};
use beeline_shm::sys;
use beeline_stats::tunables::Wait;
use beeline_stats::{Counter, Poison, Reason, Role};
use beeline_wire::{ConnName, Endpoint};

use super::hello_io::{self, Refusal, Waiting};
use super::listener::{self, FdCell, Listener, PENDING_MAX};
use super::pool::{self, PooledLane};
use super::turnstile::{self, Held};
use super::{calibrate, door, lookup, trust};
use crate::desc::{DESCS, Desc, Kind};
use crate::kernel::{self, SockAddr};
use crate::side::SideState;
use crate::wait::{Patience, Woken};
use crate::{Errno, Outcome, epoll, life, stats, table};

/// Clients looked at in one call, so that a crowd of broken ones cannot hold it up for ever.
const CLIENTS_MAX: usize = 64;
/// Looks for a hello that is being sent this moment: connecting and saying hello are two calls of the client.
const HELLO_LOOKS: usize = 8;
/// When fewer numbers than this are left below the limit, descriptors count as scarce.
const SCARCE: u64 = 256;

/// A descriptor kept for the moment in which a lane's memfd arrives and all others are in use.
static RESERVE: FdCell = FdCell::empty();

/// `accept4(2)`; `accept` is the same with no flags.
///
/// # Safety
/// `pointer` and `length` as for accept(2): null, or valid and writable for `*length` bytes.
pub unsafe fn accept4(fd: i32, pointer: *mut libc::sockaddr, length: *mut u32, flags: i32) -> Outcome {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 || !life::may_accelerate() {
        return Outcome::Kernel;
    }
    let desc = match table::get(fd) {
        Some(desc) if desc.kind() == Kind::Listener => desc,
        _ => match listener::adopt_now(fd) {
            Some(desc) => desc,
            None => return Outcome::Kernel,
        },
    };
    super::open_door(desc);
    let Some(listener) = Listener::of(desc) else { return Outcome::Kernel };
    let mut peer = SockAddr::empty();
    let result = match kernel::fcntl(fd, libc::F_GETFL, 0) {
        Ok(mode) if mode as i32 & libc::O_NONBLOCK != 0 => now(fd, desc, listener, flags, &mut peer),
        // Without a door there is one queue, in which the kernel may sleep.
        Ok(_) if listener.door.get().is_none() && listener.waiting.load(Relaxed) == 0 => return Outcome::Kernel,
        Ok(_) => eventually(fd, desc, listener, flags, &mut peer),
        Err(errno) => Err(errno),
    };
    // SAFETY: valid by the caller's word, if it is not null.
    let room = unsafe { length.as_ref() };
    match result {
        Ok(accepted) if !pointer.is_null() && room.is_none_or(|length| length.cast_signed() < 0) => {
            // As in the kernel, a connection whose address cannot be told is lost.
            drop_accepted(accepted);
            Outcome::fail(if length.is_null() { libc::EFAULT } else { libc::EINVAL })
        }
        Ok(accepted) => {
            // SAFETY: by the caller's word.
            unsafe { peer.to_app(pointer, length) };
            Outcome::Done(accepted as isize)
        }
        Err(errno) => Outcome::Fail(errno),
    }
}

fn drop_accepted(fd: i32) {
    if life::close(fd) == Outcome::Kernel {
        let _ = sys::close(fd);
    }
}

/// Accepts whoever is there.
fn now(
    fd: i32,
    desc: &'static Desc,
    listener: &'static Listener,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<i32, Errno> {
    let door_first = listener.turn.fetch_add(1, Relaxed) & 1 == 0;
    if door_first && let Some(accepted) = from_door(desc, listener, flags, peer)? {
        return Ok(accepted);
    }
    match take_from_tcp(fd, flags, peer) {
        Err(Errno(libc::EAGAIN)) if !door_first => {}
        result => return result.map(came_over_tcp),
    }
    from_door(desc, listener, flags, peer)?.ok_or(Errno(libc::EAGAIN))
}

/// Accepts whoever comes first.
fn eventually(
    fd: i32,
    desc: &'static Desc,
    listener: &'static Listener,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<i32, Errno> {
    /// How long to leave a process alone that is just taking a TCP connection.
    const ELSEWHERE_NS: u64 = 1_000_000;
    let mut patience = Patience::timeout(desc.draft.rcv_timeout_ns.load(Relaxed));
    let interrupted = |woken: Option<Woken>, patience: &Patience| {
        // A call with a timeout is never restarted, signal(7).
        !matches!(woken, Some(Woken::Signal { restart: true })) || patience.is_bounded()
    };
    let door_first = listener.turn.fetch_add(1, Relaxed) & 1 == 0;
    if door_first && let Some(accepted) = from_door(desc, listener, flags, peer)? {
        return Ok(accepted);
    }
    loop {
        let passed = match turnstile::pass(listener, &patience) {
            Ok(passed) => Some(passed),
            Err(Held::Elsewhere) => None,
            Err(Held::Signal) if interrupted(patience.signal(), &patience) => return Err(Errno(libc::EINTR)),
            Err(Held::Signal) => continue,
        };
        let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 1 + 20];
        let count = fill(fd, desc, &mut fds);
        let fds = fds.get_mut(..count).unwrap_or_default();
        let came = passed.is_some() && spin(desc, &patience, fds);
        match if came { Woken::Ready(1) } else { patience.sleep(fds, None) } {
            Woken::Ready(_) => {}
            Woken::TimedOut => return Err(Errno(libc::EAGAIN)),
            Woken::Failed(errno) => return Err(errno),
            woken @ Woken::Signal { .. } if interrupted(Some(woken), &patience) => return Err(Errno(libc::EINTR)),
            Woken::Signal { .. } => continue,
        }
        // Another thread may have closed the listener meanwhile.
        if !table::leads_to(fd, desc) || Listener::of(desc).is_none_or(|now| !core::ptr::eq(now, listener)) {
            return Err(Errno(libc::EBADF));
        }
        let [tcp, hidden @ ..] = fds else { return Err(Errno(libc::EBADF)) };
        let rung = hidden.iter().any(|place| place.revents != 0);
        if rung
            && (door_first || tcp.revents == 0)
            && let Some(accepted) = from_door(desc, listener, flags, peer)?
        {
            return Ok(accepted);
        }
        if tcp.revents != 0 && passed.is_some() {
            let taken = {
                // Other threads of this process are through the turnstile, too.
                let _guard = listener.lock.lock();
                (kernel::poll_now(fd, libc::POLLIN) != 0).then(|| take_from_tcp(fd, flags, peer))
            };
            if let Some(taken) = taken {
                return taken.map(came_over_tcp);
            }
        } else if tcp.revents != 0 {
            let until = Some(kernel::now_ns().saturating_add(ELSEWHERE_NS));
            let _ = crate::wait::sleep(&mut [], until, None);
        }
        if rung && let Some(accepted) = from_door(desc, listener, flags, peer)? {
            return Ok(accepted);
        }
    }
}

/// Looks again and again for a while, if that has paid lately: a client that connects as soon as it was served
/// is there before this thread would have gone to sleep, and waking up costs more than all the rest of a
/// connection. The account is kept as for a connection's waits (see [`crate::wait`]), but a look is a system
/// call here.
fn spin(desc: &Desc, patience: &Patience, fds: &mut [libc::pollfd]) -> bool {
    /// A budget below this is none.
    const LEAST_NS: u64 = 2_000;
    /// Waits without a spin between two probes, and the budget of a probe.
    const PROBE_EVERY: u32 = 32;
    const PROBE_NS: u64 = 10_000;
    /// Another task ran here meanwhile: there is more work than CPUs.
    const GAP_NS: u64 = 20_000;
    let most = crate::config().spin_ns_max;
    let mut budget = match crate::config().wait {
        Wait::Sleep => return false,
        Wait::Poll => most,
        Wait::Lazy => u64::from(desc.spin_ns.load(Relaxed)).min(most),
    };
    if budget < LEAST_NS {
        if desc.spins_skipped.fetch_add(1, Relaxed) % PROBE_EVERY != PROBE_EVERY - 1 {
            return false;
        }
        budget = PROBE_NS.min(most);
    }
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let start = kernel::now_ns();
    let mut last = start;
    loop {
        // SAFETY: a live timeout, no mask. The kernel may write the timeout back, and it is zero already.
        let ready = unsafe { kernel::ppoll(fds, &raw const zero, core::ptr::null()) };
        if ready != Ok(0) {
            let more = budget.max(LEAST_NS).saturating_mul(2).min(most);
            desc.spin_ns.store(more as u32, Relaxed);
            stats::count(Counter::SpinsPaid, 1);
            return ready.is_ok();
        }
        let now = kernel::now_ns();
        let preempted = now.saturating_sub(last) > GAP_NS;
        if preempted || now.saturating_sub(start) >= budget || patience.signalled() {
            desc.spin_ns.store((budget / 2) as u32, Relaxed);
            stats::count(Counter::SpinsFailed, 1);
            return false;
        }
        last = now;
    }
}

/// What a blocking accept sleeps on. Returns how many.
fn fill(fd: i32, desc: &'static Desc, fds: &mut [libc::pollfd; 21]) -> usize {
    let mut hidden = [0; 20];
    let count = listener::listener_fds(desc, &mut hidden);
    let all = core::iter::once(&fd).chain(hidden.iter().take(count));
    for (place, fd) in fds.iter_mut().zip(all) {
        place.fd = *fd;
    }
    count.saturating_add(1)
}

/// Takes a connection from the TCP queue.
fn take_from_tcp(fd: i32, flags: i32, peer: &mut SockAddr) -> Result<i32, Errno> {
    let accepted = match kernel::accept4(fd, Some(peer), flags) {
        Err(Errno(libc::EMFILE | libc::ENFILE)) if pool::release_descriptors() => {
            kernel::accept4(fd, Some(peer), flags)
        }
        result => result,
    };
    accepted.map(|accepted| accepted as i32)
}

/// A connection from the TCP queue is the kernel's business alone.
fn came_over_tcp(accepted: i32) -> i32 {
    super::fd_reborn(accepted);
    stats::fell_back(Role::Server, Reason::CameOverTcp);
    accepted
}

/// Takes a client from the door, if there is one that has said hello.
fn from_door(
    desc: &'static Desc,
    listener: &'static Listener,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<Option<i32>, Errno> {
    if listener.waiting.load(Relaxed) != 0
        && let Some(accepted) = from_pending(desc, listener, flags, peer)
    {
        return Ok(Some(accepted));
    }
    for _ in 0..CLIENTS_MAX {
        let (anchor, taken) = {
            let _changing = life::changing();
            let Some(anchor) = next(listener, flags)? else { return Ok(None) };
            (anchor, take(desc, listener, anchor, flags, peer))
        };
        let taken = match taken {
            Err(Refusal::Silence) if await_hello(listener, anchor) => {
                let _changing = life::changing();
                take(desc, listener, anchor, flags, peer)
            }
            taken => taken,
        };
        match taken {
            Ok(()) => return Ok(Some(anchor)),
            Err(Refusal::Silence) => {
                if let Some(hidden) = set_aside(listener, anchor) {
                    epoll::listener_gained(desc, hidden);
                }
            }
            Err(refusal) => send_away(anchor, refusal),
        }
    }
    Ok(None)
}

/// Waits a moment for the hello of a client that has just connected: the kernel wakes us when it connects, before it
/// can speak, and perhaps on its own CPU. So a listener that the kernel calls readable has somebody to accept. Clients
/// that stay silent in spite of that cost a listener one such wait in a hundred times its length.
fn await_hello(listener: &Listener, anchor: i32) -> bool {
    const AWAIT_NS: i64 = 1_000_000;
    const RESPITE_NS: u64 = 100_000_000;
    if kernel::now_ns() < listener.await_from_ns.load(Relaxed) {
        return false;
    }
    let mut fds = [libc::pollfd { fd: anchor, events: libc::POLLIN, revents: 0 }];
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: AWAIT_NS };
    // SAFETY: a live timeout, no mask.
    let spoken = matches!(unsafe { kernel::ppoll(&mut fds, &raw const timeout, core::ptr::null()) }, Ok(1..));
    if !spoken {
        listener.await_from_ns.store(kernel::now_ns().saturating_add(RESPITE_NS), Relaxed);
    }
    spoken
}

/// The next client in the door's queue.
fn next(listener: &'static Listener, flags: i32) -> Result<Option<i32>, Errno> {
    let _guard = listener.lock.lock();
    let Some(door) = listener.door.get() else { return Ok(None) };
    match kernel::accept4(door, None, flags) {
        Ok(anchor) => Ok(Some(anchor as i32)),
        Err(errno @ Errno(libc::EMFILE | libc::ENFILE)) => {
            if !pool::release_descriptors() {
                return Err(errno);
            }
            kernel::accept4(door, None, flags).map(|anchor| Some(anchor as i32))
        }
        // EAGAIN mostly; a door that was shut down has no clients either.
        Err(_) => Ok(None),
    }
}

/// Takes one of the clients that were silent when they came and have spoken since.
fn from_pending(desc: &'static Desc, listener: &'static Listener, flags: i32, peer: &mut SockAddr) -> Option<i32> {
    let _changing = life::changing();
    while let Some((hidden, anchor)) = spoken(listener, flags) {
        // Its file stays open under another number, so the sets do not forget the hidden one by themselves.
        epoll::listener_lost(desc, hidden);
        kernel::close_hidden(hidden);
        match take(desc, listener, anchor, flags, peer) {
            Ok(()) => return Some(anchor),
            Err(refusal) => send_away(anchor, refusal),
        }
    }
    None
}

/// The anchor of a pending client that has spoken, under its hidden number, which the caller closes, and under one
/// as accept(2) would give it.
fn spoken(listener: &'static Listener, flags: i32) -> Option<(i32, i32)> {
    let _guard = listener.lock.lock();
    for place in listener.pending.iter().take(PENDING_MAX) {
        let Some(hidden) = place.anchor.get() else { continue };
        match hello_io::look(hidden) {
            Waiting::Silence => {}
            Waiting::Gone => {
                stats::poisoned(Poison::HelloSilent);
                door::drop_pending(listener, place);
            }
            Waiting::Message => {
                let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
                let anchor = kernel::fcntl(hidden, command, 0).ok()? as i32;
                place.anchor.set(None);
                listener.waiting.fetch_sub(1, Relaxed);
                let mode = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
                let _ = kernel::fcntl(anchor, libc::F_SETFL, mode as usize);
                return Some((hidden, anchor));
            }
        }
    }
    None
}

/// Puts a silent client aside. Returns the hidden descriptor whose readability is the listener's from now on.
fn set_aside(listener: &'static Listener, anchor: i32) -> Option<i32> {
    let _guard = listener.lock.lock();
    let hidden = door::park(listener, anchor);
    if hidden.is_none() {
        send_away(anchor, Refusal::Poison(Poison::HelloSilent));
    }
    hidden
}

fn send_away(anchor: i32, refusal: Refusal) {
    if let Refusal::Poison(poison) = refusal {
        stats::poisoned(poison);
    }
    let _ = sys::close(anchor);
}

/// Whether the listener has a client at its door, after the kernel has called one of its hidden descriptors
/// readable. A listener that would block in `accept` is only called ready when it would not.
#[must_use]
pub fn door_ready(desc: &'static Desc) -> bool {
    let Some(listener) = Listener::of(desc) else { return false };
    if any_spoken(listener) {
        return true;
    }
    for _ in 0..CLIENTS_MAX {
        let gained = {
            let _changing = life::changing();
            let Ok(Some(anchor)) = next(listener, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) else { return false };
            if hello_io::look(anchor) == Waiting::Gone {
                send_away(anchor, Refusal::Gone);
                None
            } else {
                set_aside(listener, anchor)
            }
        };
        if let Some(hidden) = gained {
            epoll::listener_gained(desc, hidden);
            if hello_io::look(hidden) == Waiting::Message {
                return true;
            }
        }
    }
    false
}

fn any_spoken(listener: &'static Listener) -> bool {
    if listener.waiting.load(Relaxed) == 0 {
        return false;
    }
    let _guard = listener.lock.lock();
    listener.pending.iter().any(|place| place.anchor.get().is_some_and(|fd| hello_io::look(fd) == Waiting::Message))
}

/// Makes a connection of a client's anchor. The caller holds `life::changing`, and closes the anchor if this
/// fails.
fn take(
    desc: &'static Desc,
    listener: &'static Listener,
    anchor: i32,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<(), Refusal> {
    let name = client_name(anchor)?;
    check_addresses(listener, &name)?;
    let trusted = trust::peer_uid(anchor).is_some_and(trust::may_share);
    if !trusted {
        return Err(refused(Reason::ForeignUser));
    }
    let (lane, memory) = lane_of(anchor)?;
    if !listener.is_of_one_user() {
        lane.spoil();
    }
    match establish(desc, anchor, flags, &name, lane, memory) {
        Ok(family) => {
            *peer = SockAddr::internet(name.client.address(), family);
            Ok(())
        }
        Err(reason) => {
            lane.spoil();
            pool::retire(lane, End::Server, false);
            Err(refused(reason))
        }
    }
}

/// Counts why a client is sent to TCP.
fn refused(reason: Reason) -> Refusal {
    stats::fell_back(Role::Server, reason);
    Refusal::Gone
}

/// The addresses that the client's anchor is named for.
fn client_name(anchor: i32) -> Result<ConnName, Refusal> {
    let name = kernel::getpeername(anchor).map_err(|_| Refusal::Gone)?;
    let parsed = name.abstract_name().map(ConnName::parse);
    match parsed {
        Some(Some(name)) => Ok(name),
        Some(None) => Err(Refusal::Poison(Poison::HelloNameMismatch)),
        // A plug, or somebody who has already left.
        None if hello_io::look(anchor) == Waiting::Gone => Err(Refusal::Gone),
        None => Err(Refusal::Poison(Poison::HelloUnnamed)),
    }
}

/// Whether the name is a connection from this host to this listener.
fn check_addresses(listener: &Listener, name: &ConnName) -> Result<(), Refusal> {
    let ours = Endpoint::new(listener.local.get()).address();
    let (server, client) = (name.server.address(), name.client.address());
    let to_us = server.port() == ours.port() && (server.ip() == ours.ip() || ours.ip().is_unspecified());
    if !to_us || server.ip().is_ipv6() && ours.is_ipv4() {
        return Err(Refusal::Poison(Poison::HelloNameMismatch));
    }
    if client.port() == 0 || client.ip().is_ipv4() != server.ip().is_ipv4() {
        return Err(Refusal::Poison(Poison::HelloNameMismatch));
    }
    let here = |address: SocketAddr| address.ip() == ours.ip() || lookup::is_local(address.ip());
    if !here(server) || !here(client) {
        return Err(Refusal::Poison(Poison::HelloAddressForeign));
    }
    Ok(())
}

/// Takes the hello and finds or maps its lane.
fn lane_of(anchor: i32) -> Result<(&'static PooledLane, LaneMemory), Refusal> {
    let reserve = make_room(anchor);
    let mut received = hello_io::receive(anchor);
    for _ in 1..HELLO_LOOKS {
        if !matches!(received, Err(Refusal::Silence)) {
            break;
        }
        received = hello_io::receive(anchor);
    }
    let found = received.and_then(|received| {
        let found = map(&received);
        received.close();
        found
    });
    if reserve {
        keep_reserve();
    }
    match found {
        Err(Refusal::Reason(reason)) => Err(refused(reason)),
        found => found,
    }
}

fn map(received: &hello_io::Received) -> Result<(&'static PooledLane, LaneMemory), Refusal> {
    if let Some(known) = pool::server_known(received.id, received.hello.ring_bytes) {
        stats::count(Counter::LanesReused, 1);
        return Ok((known, known.memory()));
    }
    let memory = hello_io::map(received)?;
    match pool::server_lane(memory, received.id) {
        Some(lane) => Ok((lane, memory)),
        None => {
            // SAFETY: the fresh mapping has no user.
            unsafe { memory.unmap() };
            Err(refused(Reason::MemoryShort))
        }
    }
}

/// Sees to it that a memfd can arrive: a hello whose descriptor finds no room is lost. Returns whether the
/// reserve was given up for it.
fn make_room(anchor: i32) -> bool {
    /// New descriptors get the lowest free number, so below this one there is room. An app that lowers its limit
    /// afterwards may lose a hello: that client begins again over TCP.
    static ROOMY_BELOW: AtomicI32 = AtomicI32::new(0);
    if anchor < ROOMY_BELOW.load(Relaxed) {
        return false;
    }
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let _ = unsafe { sys::call(libc::SYS_prlimit64, args) };
    let roomy = limit.rlim_cur.saturating_sub(SCARCE).min(1 << 20) as i32;
    ROOMY_BELOW.store(roomy, Relaxed);
    if anchor < roomy {
        return false;
    }
    if let Ok(probe) = kernel::fcntl(anchor, libc::F_DUPFD_CLOEXEC, 0) {
        let _ = sys::close(probe as i32);
        return false;
    }
    if pool::release_descriptors() {
        return false;
    }
    match RESERVE.take() {
        Some(reserve) => {
            kernel::close_hidden(reserve);
            true
        }
        None => false,
    }
}

/// Keeps a descriptor in reserve, now that clients may come. A socket of no use is as good as any.
pub(super) fn keep_reserve() {
    if RESERVE.get().is_none()
        && let Ok(reserve) = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
    {
        RESERVE.set(Some(kernel::hide(reserve as i32)));
    }
}

/// Puts everything in place for a connection whose lane is there. Returns the app's address family.
fn establish(
    desc: &'static Desc,
    anchor: i32,
    flags: i32,
    name: &ConnName,
    lane: &'static PooledLane,
    memory: LaneMemory,
) -> Result<i32, Reason> {
    if !calibrate::prepare(anchor) {
        return Err(Reason::KernelUnsupported);
    }
    trust::refuse_rights(anchor);
    let side = pool::side().map_err(|_| Reason::MemoryShort)?;
    let Some(connection) = DESCS.take() else {
        pool::retire_side(side, true);
        return Err(Reason::MemoryShort);
    };
    let family = desc.family.load(Relaxed);
    fill_side(side, desc, flags, family, name);
    connection.begin(Kind::Tcp, anchor, family, crate::forks());
    super::forget_stale(anchor);
    if table::set(anchor, Some(connection)).is_err() {
        connection.give_if_unused();
        pool::retire_side(side, true);
        return Err(Reason::DescriptorOutOfRange);
    }
    connection.pooled.store(core::ptr::from_ref(lane).cast_mut(), Relaxed);
    connection.become_lane(memory, side, End::Server);
    // Last: now the client knows that nothing will change any more.
    memory.set_flags(End::Server, flags::TAKEN);
    stats::open_slot(connection);
    stats::count(Counter::ConnectionsAcceleratedServer, 1);
    Ok(family as i32)
}

/// What an accepted socket inherits from its listener, and who is at its ends.
fn fill_side(side: &SideState, listener: &Desc, flags: i32, family: u32, name: &ConnName) {
    super::carry_draft(&listener.draft, side);
    side.holders.store(1, Relaxed);
    side.nonblock.store(u32::from(flags & libc::SOCK_NONBLOCK != 0), Relaxed);
    side.family.store(family, Relaxed);
    side.local.set(name.server.address());
    side.remote.set(name.client.address());
    side.rx.begin_armed();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_fit_the_listener() {
        let check = |listens: &str, server: &str, client: &str| {
            let listener = super::super::listener::blank();
            listener.local.set(listens.parse().unwrap());
            let name = ConnName {
                client: Endpoint::new(client.parse().unwrap()),
                server: Endpoint::new(server.parse().unwrap()),
            };
            check_addresses(&listener, &name).err()
        };
        let mismatch = Some(Refusal::Poison(Poison::HelloNameMismatch));
        let foreign = Some(Refusal::Poison(Poison::HelloAddressForeign));
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:9000"), None);
        assert_eq!(check("0.0.0.0:80", "127.0.0.7:80", "127.0.0.1:9000"), None);
        assert_eq!(check("[::]:80", "127.0.0.1:80", "127.0.0.1:9000"), None);
        assert_eq!(check("[::]:80", "[::1]:80", "[::1]:9000"), None);
        assert_eq!(check("[::1]:80", "127.0.0.1:80", "127.0.0.1:9000"), mismatch);
        assert_eq!(check("0.0.0.0:80", "[::1]:80", "[::1]:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:81", "127.0.0.1:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:0"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "[::1]:9000"), mismatch);
        assert_eq!(check("127.0.0.1:80", "127.0.0.1:80", "192.0.2.1:9000"), foreign);
        assert_eq!(check("0.0.0.0:80", "192.0.2.1:80", "127.0.0.1:9000"), foreign);
    }
}

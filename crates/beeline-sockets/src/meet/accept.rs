//! `accept(2)` over two queues: the door's and TCP's.
//!
//! # Turns
//!
//! A non-blocking listener is asked at both queues, each of them first every other time, so that neither
//! starves. A blocking one sleeps in poll(2) on both and never in the TCP `accept` itself: whoever finds the
//! TCP queue ready takes from it through the turnstile ([`super::turnstile`]), with nobody in between.
//!
//! # Silence
//!
//! Connecting to the door and saying hello are two calls of the client, and the kernel wakes the server at the first.
//! A client that has not spoken yet is waited for, for a moment; then it is put aside ([`door::park`]), so that it
//! holds up nobody, and its anchor's readability counts as the listener's.
//!
//! Whoever is put aside can be served by this process only, while in TCP's queue anybody who shares the listener could
//! serve it. One of a crowd may leave `accept` with another client to serve, or to wait for its turn at a lock of the
//! app's, and not come back for long. So it first sends those away that it has put aside: they begin again over TCP.

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys;
use beeline_stats::tunables::Wait;
use beeline_stats::{Counter, Poison, Reason, Role};

use super::admit::take;
use super::hello_io::{self, Refusal, Waiting};
use super::listener::{self, Listener, PENDING_MAX};
use super::turnstile::{self, Held};
use super::{door, pool};
use crate::app_memory::bogus;
use crate::desc::{Desc, Kind, Pin};
use crate::kernel::{self, SockAddr};
use crate::wait::{Patience, Woken};
use crate::{Errno, Outcome, epoll, life, stats, table};

/// Clients looked at in one call, so that a crowd of broken ones cannot hold it up for ever.
const CLIENTS_MAX: usize = 64;

/// `accept4(2)`; `accept` is the same with no flags.
///
/// # Safety
/// `pointer` and `length` as for accept(2): null, or valid and writable for `*length` bytes.
pub unsafe fn accept4(fd: i32, pointer: *mut libc::sockaddr, length: *mut u32, flags: i32) -> Outcome {
    if !life::allow_lanes() {
        let Some(reason) = life::stopped() else { return Outcome::Kernel };
        // SAFETY: forwarded from the caller.
        return unsafe { super::accept4_counted(fd, pointer, length, flags, reason) };
    }
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
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
    // A listener that is closed while this call waits is kept until the end.
    let Some(pin) = table::pin(fd, desc) else { return Outcome::Kernel };
    let mut peer = SockAddr::empty();
    let result = match kernel::fcntl(fd, libc::F_GETFL, 0) {
        Ok(mode) if mode as i32 & libc::O_NONBLOCK != 0 => now(fd, desc, listener, flags, &mut peer),
        // Without a door there is one queue, in which the kernel may sleep.
        Ok(_) if listener.door.get().is_none() && listener.waiting.load(Relaxed) == 0 => return Outcome::Kernel,
        Ok(_) => eventually(fd, &pin, listener, flags, &mut peer),
        Err(errno) => Err(errno),
    };
    let result = match result {
        Err(Errno(libc::EAGAIN)) if listener.waiting.load(Relaxed) != 0 && listener.is_shared() => {
            from_pending(desc, listener, flags, &mut peer).ok_or(Errno(libc::EAGAIN))
        }
        result => result,
    };
    if listener.waiting.load(Relaxed) != 0 && listener.is_shared() {
        door::dismiss(listener);
    }
    if let Ok(accepted) = result {
        life::serve_streams(accepted);
    }
    match result {
        Ok(accepted) if !pointer.is_null() => {
            let nowhere = bogus(length as usize, size_of::<u32>());
            // SAFETY: by the caller's word it is valid, and it is not the null that many pass by mistake.
            let room = if nowhere { 0 } else { unsafe { length.read_unaligned() } };
            if nowhere || room.cast_signed() < 0 || bogus(pointer as usize, room as usize) {
                // As in the kernel, a connection whose address cannot be told is lost.
                drop_accepted(accepted);
                return Outcome::fail(if room.cast_signed() < 0 { libc::EINVAL } else { libc::EFAULT });
            }
            // SAFETY: by the caller's word.
            unsafe { peer.to_app(pointer, length) };
            Outcome::Done(accepted as isize)
        }
        Ok(accepted) => Outcome::Done(accepted as isize),
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
    given: i32,
    pin: &Pin,
    listener: &'static Listener,
    flags: i32,
    peer: &mut SockAddr,
) -> Result<i32, Errno> {
    /// How long to leave a process alone that is just taking a TCP connection.
    const ELSEWHERE_NS: u64 = 1_000_000;
    let desc = pin.desc();
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
        let passed = match pin.while_waiting(|| turnstile::pass(listener, &patience)) {
            Ok(passed) => Some(passed),
            Err(Held::Elsewhere) => None,
            Err(Held::Signal) if interrupted(patience.signal(), &patience) => return Err(Errno(libc::EINTR)),
            Err(Held::Signal) if !table::leads_to(given, desc) => return Err(Errno(libc::EBADF)),
            Err(Held::Signal) => continue,
        };
        let fd = pin.fd(given);
        let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 1 + 20];
        let count = fill(fd, desc, &mut fds);
        let fds = fds.get_mut(..count).unwrap_or_default();
        let came = passed.as_ref().is_some_and(|passed| passed.while_waiting(|| spin(desc, &patience, fds)));
        let mut sleep = |fds: &mut [libc::pollfd]| match &passed {
            Some(passed) => passed.while_waiting(|| patience.sleep(fds, None)),
            None => patience.sleep(fds, None),
        };
        match if came { Woken::Ready(1) } else { pin.while_waiting(|| sleep(fds)) } {
            Woken::Ready(_) => {}
            Woken::TimedOut => return Err(Errno(libc::EAGAIN)),
            Woken::Failed(errno) => return Err(errno),
            woken @ Woken::Signal { .. } if interrupted(Some(woken), &patience) => return Err(Errno(libc::EINTR)),
            // The kernel restarts a call with its number.
            Woken::Signal { .. } if !table::leads_to(given, desc) => return Err(Errno(libc::EBADF)),
            Woken::Signal { .. } => continue,
        }
        // Another thread may have closed it meanwhile, where it could not be kept.
        let fd = pin.fd(given);
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
    let mut zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let start = kernel::now_ns();
    let mut last = start;
    loop {
        // SAFETY: a live timeout, no mask. What the kernel writes back is zero again.
        let ready = unsafe { kernel::ppoll(fds, &raw mut zero, core::ptr::null()) };
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
/// that stay silent in spite of that cost a listener one such wait in a hundred times its length, until they speak. One
/// of a crowd, which can only send them away, waits ten times as often.
fn await_hello(listener: &Listener, anchor: i32) -> bool {
    const AWAIT_NS: i64 = 50_000_000;
    const RESPITE_NS: u64 = 5_000_000_000;
    const RESPITE_IN_CROWD_NS: u64 = 500_000_000;
    let in_crowd = listener.is_shared();
    let respite_ns = if in_crowd { RESPITE_IN_CROWD_NS } else { RESPITE_NS };
    if (in_crowd || listener.waiting.load(Relaxed) != 0) && kernel::now_ns() < listener.await_from_ns.load(Relaxed) {
        return false;
    }
    let mut fds = [libc::pollfd { fd: anchor, events: libc::POLLIN, revents: 0 }];
    let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: AWAIT_NS };
    // SAFETY: a live timeout, which the kernel may write to; no mask.
    let spoken = matches!(unsafe { kernel::ppoll(&mut fds, &raw mut timeout, core::ptr::null()) }, Ok(1..));
    if !spoken {
        listener.await_from_ns.store(kernel::now_ns().saturating_add(respite_ns), Relaxed);
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

/// Whether the listener has a client at its door, after the kernel has called one of its hidden descriptors readable.
///
/// A non-blocking `accept` waits a moment for the hello itself, and a client that stays silent costs the app one
/// `EAGAIN`; taking clients from the door here would cost each connection eight system calls. A blocking `accept` would
/// sleep on, so a listener that blocks is only called ready when a client has spoken.
#[must_use]
pub fn door_ready(desc: &'static Desc) -> bool {
    let Some(listener) = Listener::of(desc) else { return false };
    let fd = desc.fd.load(Relaxed);
    if kernel::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|mode| mode as i32 & libc::O_NONBLOCK != 0) {
        return true;
    }
    if any_spoken(listener) {
        return true;
    }
    for _ in 0..CLIENTS_MAX {
        let gained = {
            let _changing = life::changing();
            let Ok(Some(anchor)) = next(listener, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) else { return false };
            let unheard = listener.is_shared() && !await_hello(listener, anchor);
            if unheard || hello_io::look(anchor) == Waiting::Gone {
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

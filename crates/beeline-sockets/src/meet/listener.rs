//! A listening TCP socket and what stands beside it.
//!
//! # Who holds what
//!
//! A listener may be shared by processes (a pre-forked crowd). Each has a [`Listener`] of its own; what they
//! must agree on is in a [`Share`], a page that exists from the first `fork` on. Locks and the door itself are
//! the kernel's, so that a process that dies at any instruction leaves nothing behind.
//!
//! | what | where |
//! |---|---|
//! | the TCP queue, `O_NONBLOCK`, `SO_RCVTIMEO` | the TCP socket, shared as ever |
//! | the door and its queue | an `AF_UNIX` listener, inherited by `fork`, closed by `exec` |
//! | whether the door is open, how many processes serve it | [`Share`], or this process alone |
//! | clients taken from the door that have not said hello | the process that took them |
//!
//! A client in the last line is not lost when its process dies: as long as nobody has taken its hello, it
//! begins again over TCP.

use core::net::SocketAddr;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_shm::{SideMemory, memfd, sys};
use beeline_stats::{Reason, Role};

use super::lobby::{self, Lobby};
use super::{door, lookup, trust, turnstile};
use crate::desc::{DESCS, Desc, Kind};
use crate::lock::Lock;
use crate::side::Address;
use crate::slab::{Slab, Stable};
use crate::{Errno, Outcome, kernel, life, options, stats, table};

/// A descriptor in an atomic; none when zeroed.
#[derive(Default)]
pub(super) struct FdCell(AtomicI32);

impl FdCell {
    /// Holds none.
    pub(super) const fn empty() -> Self {
        Self(AtomicI32::new(0))
    }

    pub(super) fn get(&self) -> Option<i32> {
        self.0.load(Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
    }

    pub(super) fn set(&self, fd: Option<i32>) {
        self.0.store(fd.map_or(0, |fd| fd.saturating_add(1)), Relaxed);
    }

    pub(super) fn take(&self) -> Option<i32> {
        self.0.swap(0, Relaxed).checked_sub(1).filter(|fd| *fd >= 0)
    }
}

/// What the processes that share a listener agree on.
#[repr(C)]
pub(super) struct Share {
    /// Processes that serve the door.
    pub servers: AtomicU32,
    /// Whether the door is open.
    pub open: AtomicU32,
    /// The user of the first server, plus one.
    pub user: AtomicU32,
    /// Whether servers of another user have come since.
    pub mixed: AtomicU32,
    /// Which byte of the memory file is the turnstile.
    pub turn: AtomicU32,
    /// Until when one of them looks again and again instead of sleeping, on `CLOCK_MONOTONIC`.
    pub spinning_until_ns: AtomicU64,
}

/// See the module. Valid when zeroed.
#[repr(C)]
pub struct Listener {
    /// Guards the door and the pending clients in this process.
    pub(super) lock: Lock,
    /// The door, hidden.
    pub(super) door: FdCell,
    /// `SO_COOKIE` of the TCP socket.
    pub(super) cookie: AtomicU64,
    /// Whether this process serves the door.
    pub(super) serving: AtomicU32,
    /// Whether the door is open, while there is no share.
    pub(super) open: AtomicU32,
    /// The user that called `listen`, plus one: the door's credentials are this user's.
    pub(super) euid: AtomicU32,
    /// Whether the door's queue was given its size when the door was made.
    pub(super) sized: AtomicU32,
    /// `forks` of the process when the listener was made.
    pub(super) born: AtomicU32,
    /// When a door was last tried to be made.
    pub(super) tried_ns: AtomicU64,
    /// How long to wait after that, if the name was taken.
    pub(super) retry_ns: AtomicU64,
    /// Why there is no door, as `Reason as u16 + 1`; 0 when there is one.
    pub(super) doorless: AtomicU32,
    /// When the app was first told of a client since it has accepted last; 0 if it was not.
    pub(super) told_ns: AtomicU64,
    /// Whether a client of this very process was closed or shared while it waited at the door.
    pub(super) visited: AtomicU32,
    /// Whether the app was told of a client in the lobby, and has not taken it.
    pub(super) told: AtomicU32,
    /// How many places the door's queue has because numbers are short, plus one; 0 when they are not.
    pub(super) narrow: AtomicU32,
    /// Whether the agent knows it, and its clients' SYNs are kept ([`super::agent`]).
    pub(super) enrolled: AtomicU32,
    /// Why nobody is let in at the door any more, as `Reason as u16 + 1`; 0 mostly. See [`super::retreat`].
    pub(super) leaving: AtomicU32,
    /// Counts accepts: door and TCP queue take turns in being looked at first.
    pub(super) turn: AtomicU32,
    /// The address listened on.
    pub(super) local: Address,
    /// A memory file: the turnstile's lock, and the share's memory. Hidden.
    pub(super) turnstile: FdCell,
    /// The epoll set in which the processes of a crowd sleep. Hidden, and shared by all of them.
    pub(super) set: FdCell,
    /// The door that is in it.
    pub(super) set_door: FdCell,
    pub(super) share: AtomicPtr<Share>,
    pub(super) lobby: Lobby,
    next_free: AtomicPtr<Listener>,
}

// SAFETY: every field is an atomic or consists of atomics for which zero is valid.
unsafe impl Stable for Listener {
    fn next_free(&self) -> &AtomicPtr<Self> {
        &self.next_free
    }
}

static LISTENERS: Slab<Listener> = Slab::new();

impl Listener {
    /// The listener's state behind a description.
    pub(super) fn of(desc: &Desc) -> Option<&'static Listener> {
        if desc.kind() != Kind::Listener {
            return None;
        }
        // SAFETY: null or an object of a slab, which is never unmapped.
        unsafe { desc.listener.load(Relaxed).as_ref() }
    }

    fn begin(&self, cookie: u64, local: SocketAddr) {
        self.door.set(None);
        self.cookie.store(cookie, Relaxed);
        self.serving.store(0, Relaxed);
        self.open.store(0, Relaxed);
        self.sized.store(0, Relaxed);
        self.born.store(crate::forks(), Relaxed);
        self.tried_ns.store(0, Relaxed);
        self.retry_ns.store(0, Relaxed);
        self.doorless.store(0, Relaxed);
        self.told_ns.store(0, Relaxed);
        self.visited.store(0, Relaxed);
        self.told.store(0, Relaxed);
        self.leaving.store(0, Relaxed);
        self.narrow.store(0, Relaxed);
        self.local.set(local);
        self.turnstile.set(None);
        self.set.set(None);
        self.set_door.set(None);
        self.share.store(core::ptr::null_mut(), Relaxed);
        self.lobby.begin();
    }

    /// Whether a `fork` since the listener was made may have given it to another process.
    pub(super) fn is_shared(&self) -> bool {
        self.born.load(Relaxed) != crate::forks()
    }

    pub(super) fn shared_state(&self) -> Option<&'static Share> {
        // SAFETY: null or a mapped page, unmapped only when the listener is closed.
        unsafe { self.share.load(Relaxed).as_ref() }
    }

    /// Counts this process among those that serve the door.
    pub(super) fn join_servers(&self) {
        let Some(share) = self.shared_state() else { return };
        share.servers.fetch_add(1, AcqRel);
        let user = trust::euid().saturating_add(1);
        let first = share.user.compare_exchange(0, user, AcqRel, Relaxed);
        if first.is_err_and(|first| first != user) {
            share.mixed.store(1, Relaxed);
        }
    }

    /// Whether only processes of our user accept on the listener: they may read each other's memory anyway, so a
    /// lane may go from one to the next.
    pub(super) fn is_of_one_user(&self) -> bool {
        if !self.is_shared() {
            return true;
        }
        let user = trust::euid().saturating_add(1);
        self.shared_state().is_some_and(|share| share.mixed.load(Relaxed) == 0 && share.user.load(Relaxed) == user)
    }

    /// Whether the door is open for traffic.
    pub(super) fn is_open(&self) -> bool {
        self.shared_state().map_or(&self.open, |share| &share.open).load(Relaxed) != 0
    }

    pub(super) fn set_open(&self, open: bool) {
        self.shared_state().map_or(&self.open, |share| &share.open).store(u32::from(open), Relaxed);
    }

    /// Why there is no door.
    pub(super) fn doorless_because(&self) -> Option<Reason> {
        let index = self.doorless.load(Relaxed).checked_sub(1)?;
        Reason::ALL.get(index as usize).copied()
    }

    /// Notes why there is no door; counted once for each new reason.
    pub(super) fn set_doorless(&self, reason: Reason) {
        let value = (reason as u32).saturating_add(1);
        if self.doorless.swap(value, Relaxed) != value {
            stats::fell_back(Role::Server, reason);
        }
    }
}

/// `listen(2)`.
pub fn listen(fd: i32, backlog: i32) -> Outcome {
    if !life::allow_lanes() {
        return Outcome::Kernel;
    }
    let _changing = life::changing();
    let known = table::get(fd).map(|desc| (desc, desc.kind()));
    if let Some((_, Kind::Lane)) = known {
        return Outcome::fail(libc::EINVAL);
    }
    if let Err(errno) = kernel::listen(fd, backlog) {
        return Outcome::Fail(errno);
    }
    lookup::forget();
    match known {
        Some((desc, Kind::Tcp)) => {
            become_listener(fd, desc);
        }
        // Again, after a shutdown: the door was closed then, and the port may be another one now.
        Some((desc, Kind::Listener)) => {
            if let Some(listener) = Listener::of(desc)
                && listener.door.get().is_none()
            {
                if let Some(local) = kernel::getsockname(fd).ok().and_then(|name| name.to_internet()) {
                    listener.local.set(local);
                }
                door::make(fd, desc, listener);
            }
        }
        None => {
            adopt(fd);
        }
        Some(_) => {}
    }
    Outcome::OK
}

/// Makes a listener of a description whose socket listens now, with a door that is still shut.
fn become_listener(fd: i32, desc: &'static Desc) -> bool {
    let cookie: Result<u64, Errno> = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
    let local = kernel::getsockname(fd).ok().and_then(|name| name.to_internet());
    let (Ok(cookie), Some(local)) = (cookie, local) else { return false };
    let Some(listener) = LISTENERS.take() else { return false };
    listener.begin(cookie, local);
    desc.listener.store(core::ptr::from_ref(listener).cast_mut(), Relaxed);
    if local.is_ipv6() {
        options::note_v6_only(desc, fd);
    }
    desc.become_kind(Kind::Listener);
    door::make(fd, desc, listener);
    true
}

/// Takes over a listener that was not made under our eyes: inherited, received, or made by libc itself.
/// The caller holds `life::changing`.
fn adopt(fd: i32) -> Option<&'static Desc> {
    let option = |name| kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, name).ok();
    if option(libc::SO_ACCEPTCONN)? != 1 || option(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return None;
    }
    let family = option(libc::SO_DOMAIN)?;
    if family != libc::AF_INET && family != libc::AF_INET6 {
        return None;
    }
    let cookie: u64 = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
    if let Some(known) = find(cookie) {
        // One more number for a listener we have: duplicated behind our back.
        table::set(fd, Some(known)).ok()?;
        return Some(known);
    }
    let desc = DESCS.take()?;
    desc.begin(Kind::Tcp, fd, family as u32, crate::forks());
    if table::set(fd, Some(desc)).is_err() || !become_listener(fd, desc) {
        let _ = table::set(fd, None);
        desc.give_if_unused();
        return None;
    }
    Some(desc)
}

pub(super) fn find(cookie: u64) -> Option<&'static Desc> {
    let mut found = None;
    table::for_each(|_, desc| {
        if Listener::of(desc).is_some_and(|listener| listener.cookie.load(Relaxed) == cookie) {
            found = Some(desc);
        }
    });
    found
}

/// Fds of low number that were looked at once: one bit each.
static SEEN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Whether `fd`, about to be polled, turns out to be a listener inherited from another program. Each number is
/// asked about once; listeners that come later, by `SCM_RIGHTS`, are met at their first `accept`.
pub fn adopt_listener(fd: i32) -> bool {
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| SEEN.get(fd / 64)) else { return false };
    let bit = 1u64 << (fd & 63);
    if word.load(Relaxed) & bit != 0 || word.fetch_or(bit, Relaxed) & bit != 0 {
        return false;
    }
    is_new_listener(fd) && life::allow_lanes() && adopt_now(fd).is_some()
}

/// Meets a listener that has just been received from another process.
pub fn meet_listener(fd: i32) {
    if is_new_listener(fd) && life::allow_lanes() {
        let _ = adopt_now(fd);
    }
}

/// Whether `fd` is a listener that we do not know and may serve. A program that is under a filter is never asked for it.
fn is_new_listener(fd: i32) -> bool {
    table::get(fd).is_none() && life::may_accelerate() && listens(fd)
}

fn listens(fd: i32) -> bool {
    kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

/// The listener behind an fd that an app accepts on, if it is one that we can serve.
pub(super) fn adopt_now(fd: i32) -> Option<&'static Desc> {
    let _changing = life::changing();
    if !life::may_accelerate() {
        return None;
    }
    match table::get(fd) {
        None => adopt(fd),
        Some(desc) if desc.kind() == Kind::Listener => Some(desc),
        // A bound socket on which libc itself, or a system call of the app's own, has called listen.
        Some(desc) if desc.kind() == Kind::Tcp => (listens(fd) && become_listener(fd, desc)).then_some(desc),
        Some(_) => None,
    }
}

/// The hidden descriptors to poll beside the TCP socket: the door and the lobby.
/// Returns how many.
pub fn listener_fds(desc: &'static Desc, out: &mut [i32; 20]) -> usize {
    let Some(listener) = Listener::of(desc) else { return 0 };
    door::open_for_poll(desc, listener);
    held(listener, out)
}

/// The same, of a listener as it is.
pub(super) fn held(listener: &Listener, out: &mut [i32; 20]) -> usize {
    let _guard = listener.lock.lock();
    let mut count = 0;
    for (place, fd) in out.iter_mut().zip(listener.door.get().into_iter().chain(listener.lobby.fd())) {
        *place = fd;
        count += 1;
    }
    count
}

/// `shutdown(2)` of a listener: it takes no connections any more, whoever holds it.
pub fn shutdown_listener(desc: &'static Desc, how: i32) -> Outcome {
    if how == libc::SHUT_WR || !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Outcome::Kernel;
    }
    let fd = desc.fd.load(Relaxed);
    let result = kernel::shutdown(fd, how);
    if result.is_ok()
        && let Some(listener) = Listener::of(desc)
    {
        lookup::forget();
        let _guard = listener.lock.lock();
        door::close(listener, true);
    }
    result.into()
}

/// This process serves no door any more, for this reason: clients that wait at one, and those to come, use TCP. The
/// caller holds `life::changing`.
pub fn leave_doors(reason: Reason) {
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && desc.fd.load(Relaxed) == fd
        {
            leave_door(listener, reason);
        }
    });
}

/// An option may have been set on a listener that keeps it on TCP: it has no door from now on.
pub fn leave_door_if_blocked(desc: &'static Desc) {
    if let (Some(listener), Some(reason)) = (Listener::of(desc), door::blocked_by(desc)) {
        let _changing = life::changing();
        leave_door(listener, reason);
    }
}

pub(super) fn leave_door(listener: &'static Listener, reason: Reason) {
    let _guard = listener.lock.lock();
    door::close(listener, false);
    listener.set_doorless(reason);
}

/// The last fd of this process that leads to the listener is about to be closed. The caller holds
/// `life::changing`.
pub fn close_listener(desc: &'static Desc) {
    let Some(listener) = Listener::of(desc) else { return };
    lookup::forget();
    {
        let _guard = listener.lock.lock();
        desc.listener.store(core::ptr::null_mut(), Relaxed);
        door::close(listener, false);
        for cell in [&listener.turnstile, &listener.set] {
            if let Some(fd) = cell.take() {
                kernel::close_hidden(fd);
            }
        }
        let share = listener.share.swap(core::ptr::null_mut(), Relaxed);
        if !share.is_null() {
            // SAFETY: the page was mapped by `prepare_fork` and the listener was its only user here.
            unsafe { SideMemory::from_address(share as usize).unmap() };
        }
    }
    LISTENERS.give(listener);
}

/// Before a `fork`: what parent and child must agree on gets its memory. The parent may leave the accepting to the
/// child from now on, so clients that it has put aside are sent away. The caller holds `life::changing`.
pub(super) fn prepare_fork() {
    table::for_each(|fd, desc| {
        let Some(listener) = Listener::of(desc) else { return };
        if listener.lobby.is_occupied() {
            lobby::dismiss(listener);
        }
        if desc.fd.load(Relaxed) == fd && listener.turnstile.get().is_none() {
            share(fd, listener);
        }
    });
}

fn share(tcp: i32, listener: &'static Listener) {
    // Without the memory the crowd still works: its members only cannot take turns.
    let Ok(fd) = memfd::create(c"beeline-listener", 4096) else { return };
    let Ok(base) = sys::map_shared(fd, 4096) else {
        let _ = sys::close(fd);
        return;
    };
    let _guard = listener.lock.lock();
    let open = listener.is_open();
    listener.turnstile.set(Some(kernel::hide(fd)));
    listener.share.store(base.cast(), Relaxed);
    if let Some(share) = listener.shared_state() {
        if listener.serving.load(Relaxed) != 0 {
            listener.join_servers();
        }
        share.open.store(u32::from(open), Relaxed);
    }
    turnstile::make_set(listener, tcp);
}

/// In the child of a `fork`: clients that the parent has taken from the door are the parent's, and this process
/// serves no door yet.
pub(super) fn reset_after_fork() {
    LISTENERS.reset_after_fork(|listener| {
        listener.lock.reset();
    });
    table::for_each(|_, desc| {
        let Some(listener) = Listener::of(desc) else { return };
        listener.lock.reset();
        listener.serving.store(0, Relaxed);
        listener.lobby.close();
    });
}

/// A listener that stands alone.
#[cfg(test)]
pub(super) fn blank() -> Listener {
    // SAFETY: every field is an atomic or consists of atomics for which zero is valid.
    unsafe { core::mem::zeroed() }
}

//! A listening TCP socket and what stands beside it.
//!
//! # Who holds what
//!
//! A listener may be shared by processes (a pre-forked crowd). Each has a [`Listener`] of its own; what they must agree
//! on is in a [`Share`], a page that exists from the first `fork` on. Its locks are robust, and the door itself is the
//! kernel's, so that a process that dies at any instruction leaves nothing behind.
//!
//! | what | where |
//! |---|---|
//! | the TCP queue, `O_NONBLOCK`, `SO_RCVTIMEO` | the TCP socket, shared as ever |
//! | the door and its queue | an `AF_UNIX` listener, inherited by `fork`, closed by `exec` |
//! | whether the door is open, which processes serve it | [`Share`], or this process alone |
//! | clients taken from the door that have not said hello | the process that took them |
//!
//! A client in the last line is not lost when its process dies: as long as nobody has taken its hello, it
//! begins again over TCP.

use core::net::SocketAddr;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::{Reason, Role};

use super::lobby::Lobby;
use super::seats::Seats;
use super::servers::Servers;
use super::trust;
use crate::desc::{Desc, Kind};
use crate::fd_cell::FdCell;
use crate::lock::Lock;
use crate::lock::shared::SharedLock;
use crate::operations::FurtherFds;
use crate::reason_cell::ReasonCell;
use crate::side::Address;
use crate::slab::{Slab, Stable};
use crate::static_ref::StaticRef;
use crate::{process, stats, table, thread};

/// In [`Listener::in_kernel`]: no thread has that number.
const SEVERAL: u32 = u32::MAX;

/// What the processes that share a listener agree on.
#[repr(C)]
pub(super) struct Share {
    /// Processes that serve the door.
    pub servers: Servers,
    /// Whether the door is open.
    pub open: AtomicU32,
    /// The user of the first server, plus one.
    pub user: AtomicU32,
    /// Whether servers of another user have come since.
    pub mixed: AtomicU32,
    /// Which of the accept locks counts.
    pub turn: AtomicU32,
    /// See [`Listener::reuses_port`].
    pub reuses_port: AtomicU32,
    /// See [`super::accept_lock`].
    pub accept_locks: [SharedLock; 64],
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
    /// Whether this process serves the door: its [`process::generation`] then.
    serving: AtomicU32,
    /// Whether the door is open, while there is no share.
    pub(super) open: AtomicU32,
    /// What the app has set of `SO_REUSEPORT`, while there is no share.
    reuses_port: AtomicU32,
    /// The user that called `listen`, plus one: the door's credentials are this user's.
    pub(super) euid: AtomicU32,
    /// Whether the door's queue was given its size when the door was made.
    pub(super) sized: AtomicU32,
    /// [`process::copies`] when the listener was made.
    pub(super) born: AtomicU32,
    /// `forks` of the process then.
    forked: AtomicU32,
    /// When a door was last tried to be made.
    pub(super) tried_ns: AtomicU64,
    /// How long to wait after that, if the name was taken.
    pub(super) retry_ns: AtomicU64,
    /// Why there is no door, if there is none.
    pub(super) doorless: ReasonCell,
    /// A client of ours at another program's door, hidden, and when that is looked at next. See [`super::untended`].
    pub(super) asker: FdCell,
    pub(super) asks_ns: AtomicU64,
    /// When the app was first told of a client since it has accepted last; 0 if it was not.
    pub(super) told_ns: AtomicU64,
    /// By which thread of which process: its id below [`process::generation`].
    pub(super) told_by: AtomicU64,
    /// Whether a client of this very process was closed or shared while it waited at the door.
    pub(super) visited: AtomicU32,
    /// Whether the app was told of a client in the lobby, and has not taken it.
    pub(super) told: AtomicU32,
    /// How many places the door's queue has because numbers are short, plus one; 0 when they are not.
    pub(super) narrow: AtomicU32,
    /// Its place on the agent's page plus one, once it was announced there ([`super::agent`]); else 0.
    pub(super) place: AtomicU32,
    /// When it was announced to the agent last.
    pub(super) announced_ns: AtomicU64,
    /// Why nobody is let in at the door any more, if nobody is. See [`super::retreat`].
    pub(super) leaving: ReasonCell,
    /// Counts accepts that look at both queues: door and TCP's take turns in being asked first.
    pub(super) turn: AtomicU32,
    /// Clients taken from the lobby in a row.
    pub(super) from_lobby: AtomicU32,
    /// The anchor, hidden, of a client that says hello again, if the app was told of it and has accepted nobody since.
    pub(super) spoken: FdCell,
    /// How many clients may be taken from TCP's queue before the others are looked at again.
    pub(super) tcp_run: AtomicU32,
    /// Whether it blocked when that was asked last.
    pub(super) blocked_when_asked: AtomicBool,
    /// The thread that went to wait in the kernel's `accept`, as there was no door; [`SEVERAL`] if more than one did.
    in_kernel: AtomicU32,
    /// The number of the last connection that was accepted.
    pub(super) last: AtomicI32,
    /// The address listened on.
    pub(super) local: Address,
    /// The epoll set in which those sleep who wait for clients, hidden: [`super::sleepers`]. The processes of a crowd
    /// share it.
    pub(super) set: FdCell,
    /// The door that is in it.
    pub(super) set_door: FdCell,
    /// The lobby that is in it.
    pub(super) set_lobby: FdCell,
    /// A thread that sleeps on its own.
    pub(super) sleeper: AtomicU32,
    pub(super) share: AtomicPtr<Share>,
    pub(super) lobby: Lobby,
    pub(super) seats: Seats,
    next_free: StaticRef<Listener>,
}

// SAFETY: every field is an atomic or consists of atomics for which zero is valid.
unsafe impl Stable for Listener {
    fn next_free(&self) -> &StaticRef<Self> {
        &self.next_free
    }

    fn forget_other_threads(&self) {
        self.lock.reset();
    }
}

/// Which of a listener's queues may have somebody.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Queues {
    pub over_tcp: bool,
    pub at_door: bool,
    pub in_lobby: bool,
}

impl Queues {
    /// Nobody has looked.
    pub(super) const UNKNOWN: Self = Self { over_tcp: true, at_door: true, in_lobby: true };

    pub(super) fn any(self) -> bool {
        self.over_tcp || self.beside_tcp()
    }

    /// Whether somebody may have come another way than over TCP.
    pub(super) fn beside_tcp(self) -> bool {
        self.at_door || self.in_lobby
    }
}

#[unsafe(link_section = ".fork.locked")]
pub(super) static LISTENERS: Slab<Listener> = Slab::new();

impl Listener {
    /// The listener's state behind a description.
    pub(super) fn of(desc: &Desc) -> Option<&'static Listener> {
        if desc.kind() != Kind::Listener {
            return None;
        }
        // SAFETY: `become_listener` alone has stored it: null or an object of a slab, which is never unmapped.
        unsafe { desc.listener.load(Relaxed).cast::<Listener>().as_ref() }
    }

    pub(super) fn begin(&self, cookie: u64, local: SocketAddr) {
        self.door.set(None);
        self.cookie.store(cookie, Relaxed);
        self.serving.store(0, Relaxed);
        self.open.store(0, Relaxed);
        self.reuses_port.store(0, Relaxed);
        self.sized.store(0, Relaxed);
        self.born.store(process::copies(), Relaxed);
        self.forked.store(crate::forks(), Relaxed);
        self.tried_ns.store(0, Relaxed);
        self.retry_ns.store(0, Relaxed);
        self.doorless.set(None);
        self.asker.set(None);
        self.asks_ns.store(0, Relaxed);
        self.told_ns.store(0, Relaxed);
        self.told_by.store(0, Relaxed);
        self.visited.store(0, Relaxed);
        self.told.store(0, Relaxed);
        self.leaving.set(None);
        self.from_lobby.store(0, Relaxed);
        self.spoken.set(None);
        self.tcp_run.store(0, Relaxed);
        self.blocked_when_asked.store(false, Relaxed);
        self.in_kernel.store(0, Relaxed);
        self.last.store(i32::MAX, Relaxed);
        self.narrow.store(0, Relaxed);
        self.place.store(0, Relaxed);
        self.announced_ns.store(0, Relaxed);
        self.local.set(local);
        self.set.set(None);
        self.set_door.set(None);
        self.set_lobby.set(None);
        self.sleeper.store(0, Relaxed);
        self.share.store(core::ptr::null_mut(), Relaxed);
        self.lobby.begin();
        self.seats.begin();
    }

    /// Whether the description still leads here. Another thread may have closed it, and the place be another listener's
    /// by now. It stays so while the caller holds `changing::changing`.
    pub(super) fn is_of(&self, desc: &Desc) -> bool {
        Listener::of(desc).is_some_and(|now| core::ptr::eq(now, self))
    }

    /// Whether a `fork` since the listener was made may have given it to another process, with its door. A program that
    /// was spawned may have the TCP listener, and takes what comes there, but no door.
    pub(super) fn is_shared(&self) -> bool {
        self.born.load(Relaxed) != process::copies()
    }

    /// Whether another process may have the door open, too: also one that is about to become another program.
    pub(super) fn may_be_held(&self) -> bool {
        self.forked.load(Relaxed) != crate::forks()
    }

    /// Whether this process serves the door.
    pub(super) fn serves(&self) -> bool {
        self.serving.load(Relaxed) == process::generation()
    }

    /// It does from now on. Whether it did before.
    pub(super) fn begin_to_serve(&self) -> bool {
        self.serving.swap(process::generation(), AcqRel) == process::generation()
    }

    /// It does not any more. Whether it did before.
    pub(super) fn stop_serving(&self) -> bool {
        self.serving.swap(0, AcqRel) == process::generation()
    }

    pub(super) fn shared_state(&self) -> Option<&'static Share> {
        // SAFETY: null or a mapped page, unmapped only when the listener is closed.
        unsafe { self.share.load(Relaxed).as_ref() }
    }

    /// Lists this process among those that serve the door.
    pub(super) fn join_servers(&self) {
        let Some(share) = self.shared_state() else { return };
        share.servers.join(process::identity());
        let user = trust::euid().saturating_add(1);
        let first = share.user.compare_exchange(0, user, AcqRel, Relaxed);
        if first.is_err_and(|first| first != user) {
            share.mixed.store(1, Relaxed);
        }
    }

    /// It is not listed any more.
    pub(super) fn leave_servers(&self) {
        if let Some(share) = self.shared_state() {
            share.servers.leave(process::identity());
        }
    }

    /// Whether no other process takes clients from the door. Those that are listed are looked at.
    pub(super) fn serves_alone(&self) -> bool {
        self.shared_state().is_none_or(|share| !share.servers.any_but(process::identity(), self.serves()))
    }

    /// Whether another process is listed as one that takes clients from the door. It may have been killed since.
    pub(super) fn may_be_served_by_others(&self) -> bool {
        self.shared_state().is_some_and(|share| share.servers.lists_another(process::identity()))
    }

    /// Whether two processes or more take clients from the door, whether this is one of them or not.
    pub(super) fn is_served_by_several(&self) -> bool {
        self.shared_state().is_some_and(|share| share.servers.are_several())
    }

    /// Whether only processes of our user accept on the listener: they may read each other's memory anyway, so a
    /// lane may go from one to the next.
    pub(super) fn is_of_one_user(&self, ours: &trust::OwnUser) -> bool {
        if !self.is_shared() {
            return true;
        }
        let user = ours.uid().saturating_add(1);
        self.shared_state().is_some_and(|share| share.mixed.load(Relaxed) == 0 && share.user.load(Relaxed) == user)
    }

    /// Whether the door is open for traffic.
    pub(super) fn is_open(&self) -> bool {
        self.shared_state().map_or(&self.open, |share| &share.open).load(Relaxed) != 0
    }

    /// Whether the app has set `SO_REUSEPORT`. The socket itself says that it is set, too, while a relay of any process
    /// that shares it is being made (`life::relay::pair`).
    pub(super) fn reuses_port(&self) -> bool {
        self.shared_state().map_or(&self.reuses_port, |share| &share.reuses_port).load(Relaxed) != 0
    }

    /// The caller holds `changing::changing`.
    pub(super) fn set_reuses_port(&self, on: bool) {
        self.shared_state().map_or(&self.reuses_port, |share| &share.reuses_port).store(u32::from(on), Relaxed);
    }

    /// The calling thread is about to wait in the kernel's `accept`. The listener is locked.
    pub(super) fn goes_to_kernel(&self) {
        let thread = thread::tid();
        let is_first = [0, thread].contains(&self.in_kernel.load(Relaxed));
        self.in_kernel.store(if is_first { thread } else { SEVERAL }, Relaxed);
    }

    /// Whether TCP's queue is left to threads that may wait in the kernel's `accept`. Who asks has no door of this
    /// process either, and waits for a client that is owed or in the lobby, or beside processes that have the door. The
    /// listener is locked.
    pub(super) fn leaves_queue_to_kernel(&self) -> bool {
        self.door.get().is_none() && self.others_are_in_kernel()
    }

    /// No thread of this process waits in the kernel's `accept`: the listener was shut, or this is a child. It is
    /// locked. Nothing is written that need not be.
    pub(super) fn none_is_in_kernel(&self) {
        if self.in_kernel.load(Relaxed) != 0 {
            self.in_kernel.store(0, Relaxed);
        }
    }

    /// Whether another thread may wait in the kernel's `accept`: it would take clients that others have seen there and
    /// are about to take, who wait for the next one then and hear of nothing else. The listener is locked.
    pub(super) fn others_are_in_kernel(&self) -> bool {
        ![0, thread::tid()].contains(&self.in_kernel.load(Relaxed))
    }

    /// The listener was asked whether it blocks.
    pub(super) fn note_blocks(&self, blocks: bool) {
        if blocks != self.blocked_when_asked.load(Relaxed) {
            self.blocked_when_asked.store(blocks, Relaxed);
        }
    }

    /// Whether nobody is let in at the door any more.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get().is_some()
    }

    pub(super) fn set_open(&self, open: bool) {
        self.shared_state().map_or(&self.open, |share| &share.open).store(u32::from(open), Relaxed);
    }

    /// Notes why there is no door; counted once for each new reason.
    pub(super) fn set_doorless(&self, reason: Reason) {
        if self.doorless.replace(Some(reason)) != Some(reason) {
            stats::fell_back(Role::Server, reason);
        }
    }
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

/// The door and the lobby's set, where they are open here.
pub(super) fn held(listener: &Listener) -> FurtherFds {
    let _guard = listener.lock.lock();
    [listener.door.get(), listener.lobby.fd()]
}

/// A listener that stands alone.
#[cfg(test)]
pub(super) fn blank() -> Listener {
    // SAFETY: every field is an atomic or consists of atomics for which zero is valid.
    unsafe { core::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a slot of the slab was before must not matter to the listener that gets it.
    #[test]
    fn a_listener_that_begins_again_knows_no_agent_and_no_clients() {
        let listener = blank();
        listener.place.store(2, Relaxed);
        listener.announced_ns.store(7, Relaxed);
        listener.tcp_run.store(3, Relaxed);
        listener.note_blocks(true);
        listener.begin(1, "127.0.0.1:80".parse().unwrap());
        assert_eq!((listener.place.load(Relaxed), listener.announced_ns.load(Relaxed)), (0, 0));
        assert_eq!((listener.tcp_run.load(Relaxed), listener.blocked_when_asked.load(Relaxed)), (0, false));
    }
}

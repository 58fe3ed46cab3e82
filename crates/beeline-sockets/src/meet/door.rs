//! Doors: made shut, opened by the first who accepts, shut again by the last.
//!
//! # Names and trust
//!
//! A door is an abstract `AF_UNIX` listener named by the `SO_COOKIE` of its TCP listener. Clients compare the
//! user who called `listen` on the door (`SO_PEERCRED`) with the owner of the TCP listener, so the door's
//! credentials must be those of the app's `listen`, even when a worker of a lesser user opens it later.
//!
//! # Shut and open
//!
//! A door that nobody serves would swallow clients, whose connect and send succeed without anybody accepting.
//! So until somebody accepts the door is *shut*, and clients that find it so, and that knock in vain for a moment
//! ([`super::knock`]), use TCP:
//!
//! 1. Where the process cannot change its user, the door is only bound, and `listen` is called when it opens.
//!    This costs nothing, and the credentials are the same.
//! 2. A process of root may open it under another user, which would change the credentials. It calls `listen`
//!    at once and fills the queue with clients of its own that are closed already (*plugs*): 65 of them take
//!    0.18 ms to make and 0.11 ms to accept away, 257 four times that. The short queue is lengthened when the
//!    door opens, if the user is still the same.
//! 3. A door that was open is shut by plugs as well, after its clients were sent away: they begin again over
//!    TCP.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_shm::sys;
use beeline_stats::{Counter, Poison, Reason};
use beeline_wire::DoorName;

use super::listener::{Listener, PENDING_MAX};
use super::trust;
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::{Errno, epoll, life, stats};

/// Queue of a door that root makes before it is known who will open it.
const PLUGGED_BACKLOG: i32 = 64;
/// Clients sent away or plugs made at a time, at most: beyond any queue.
const QUEUE_MAX: usize = 8192;
/// How long to wait before a name that was taken is tried again, at first and at last: the process that passed the
/// listener on gives the name up in a moment, one that goes on serving keeps it.
const RETRY_NS_MIN: u64 = 1_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;

/// Makes the door of a listener, shut. Without one the listener is a plain one, with the reason counted.
pub(super) fn make(fd: i32, desc: &'static Desc, listener: &'static Listener) {
    let _guard = listener.lock.lock();
    listener.tried_ns.store(kernel::now_ns(), Relaxed);
    match try_make(fd, desc, listener) {
        Ok(door) => {
            listener.door.set(Some(door));
            listener.doorless.store(0, Relaxed);
        }
        Err(reason) => listener.set_doorless(reason),
    }
}

fn try_make(fd: i32, desc: &'static Desc, listener: &'static Listener) -> Result<i32, Reason> {
    if let Some(blocked) = blocked_by(desc) {
        return Err(blocked);
    }
    if crate::config().policy == beeline_stats::tunables::Policy::Strict {
        return Err(Reason::PolicyStrict);
    }
    if address_space_is_limited() {
        return Err(Reason::AddressSpaceLimited);
    }
    // A listener bound to an interface is found by clients with its interface, and left alone.
    if kernel::getsockopt::<u32>(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).is_ok_and(|index| index != 0) {
        return Err(Reason::ListenerUnsupported);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let made = kernel::socket(libc::AF_UNIX, kind, 0).map_err(reason_of)?;
    let door = kernel::hide(made as i32);
    let named = name(listener).ok_or(Errno(libc::EINVAL)).and_then(|name| kernel::bind(door, &name));
    let euid = trust::euid();
    listener.euid.store(euid.saturating_add(1), Relaxed);
    listener.sized.store(0, Relaxed);
    let ready = match named {
        Ok(_) if euid == 0 => kernel::listen(door, PLUGGED_BACKLOG.min(full_backlog())).map(|_| {
            listener.sized.store(1, Relaxed);
            plug(listener);
        }),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    };
    match ready {
        Ok(()) => Ok(door),
        Err(errno) => {
            kernel::close_hidden(door);
            Err(reason_of(errno))
        }
    }
}

/// The option that keeps a socket off lanes, if there is one.
pub(super) fn blocked_by(desc: &Desc) -> Option<Reason> {
    let index = desc.draft.blocked_by.load(Relaxed).checked_sub(1)?;
    Reason::ALL.get(usize::from(index)).copied()
}

fn reason_of(errno: Errno) -> Reason {
    match errno.0 {
        libc::EADDRINUSE => Reason::DoorNameTaken,
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::EPERM | libc::EACCES | libc::ENOSYS => Reason::SystemCallDenied,
        libc::ENOMEM | libc::ENOBUFS => Reason::MemoryShort,
        _ => Reason::Internal,
    }
}

/// Whether the process may run out of addresses: each lane takes as many as both its rings.
pub(super) fn address_space_is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let args = [0, libc::RLIMIT_AS as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let _ = unsafe { sys::call(libc::SYS_prlimit64, args) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

fn full_backlog() -> i32 {
    crate::config().door_backlog as i32
}

fn name(listener: &Listener) -> Option<SockAddr> {
    SockAddr::abstract_unix(DoorName::encode(listener.cookie.load(Relaxed)).as_bytes())
}

/// Fills the door's queue with clients that are gone.
fn plug(listener: &Listener) {
    let Some(name) = name(listener) else { return };
    for _ in 0..QUEUE_MAX {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let Ok(client) = kernel::socket(libc::AF_UNIX, kind, 0) else { return };
        let connected = kernel::connect(client as i32, &name);
        let _ = sys::close(client as i32);
        if connected.is_err() {
            return;
        }
    }
}

/// Opens the door of a listener for traffic, because somebody is about to accept. Cheap when it is open. No epoll
/// set may be locked: sets that have the listener get the door.
pub fn open_door(desc: &'static Desc) {
    let Some(listener) = Listener::of(desc) else { return };
    if listener.serving.load(Relaxed) != 0 {
        return;
    }
    if listener.door.get().is_none() {
        make_again(desc, listener);
    }
    if let Some(gained) = open_now(listener) {
        epoll::listener_gained(desc, gained);
    }
}

/// Opens the door of a listener that is in no epoll set, because somebody polls.
pub(super) fn open_for_poll(desc: &'static Desc, listener: &'static Listener) {
    if listener.serving.load(Relaxed) == 0 && desc.entries.load(Relaxed) == 0 {
        if listener.door.get().is_none() {
            make_again(desc, listener);
        }
        let _ = open_now(listener);
    }
}

/// Another process held the door's name: it may have gone, as after a binary upgrade.
#[cold]
fn make_again(desc: &'static Desc, listener: &'static Listener) {
    if listener.doorless_because() != Some(Reason::DoorNameTaken) {
        return;
    }
    let pause_ns = listener.retry_ns.load(Relaxed).clamp(RETRY_NS_MIN, RETRY_NS_MAX);
    if kernel::now_ns().saturating_sub(listener.tried_ns.load(Relaxed)) > pause_ns && life::may_accelerate() {
        listener.retry_ns.store(pause_ns.saturating_mul(2), Relaxed);
        make(desc.fd.load(Relaxed), desc, listener);
    }
}

/// Opens a door. Returns it if this process did not serve it before.
#[cold]
fn open_now(listener: &'static Listener) -> Option<i32> {
    let _guard = listener.lock.lock();
    let door = listener.door.get()?;
    if listener.serving.swap(1, AcqRel) != 0 {
        return None;
    }
    listener.join_servers();
    if !listener.is_open() {
        unplug(listener, door);
        listener.set_open(true);
        stats::count(Counter::DoorsOpened, 1);
    }
    super::admit::keep_reserve();
    Some(door)
}

/// Lets clients in. The caller holds the listener's lock.
fn unplug(listener: &Listener, door: i32) {
    let sized = listener.sized.load(Relaxed) != 0;
    if sized {
        // As long as the queue is full of plugs nobody else is in it; whoever comes in between is a client.
        for _ in 0..QUEUE_MAX {
            let kind = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let Ok(plug) = kernel::accept4(door, None, kind) else { break };
            let plug = plug as i32;
            let named = kernel::getpeername(plug).is_ok_and(|name| name.abstract_name().is_some());
            if !named || park(listener, plug).is_none() {
                let _ = sys::close(plug);
            }
        }
    }
    // A `listen` by another user would put that user's name on the door.
    if !sized || listener.euid.load(Relaxed) == trust::euid().saturating_add(1) {
        let _ = kernel::listen(door, full_backlog());
        listener.sized.store(1, Relaxed);
    }
}

/// Puts a client that has not spoken yet aside, under a hidden number, which is returned. When there is no room
/// the oldest has to go: who means to speak does so within microseconds. The caller holds the listener's lock.
pub(super) fn park(listener: &Listener, anchor: i32) -> Option<i32> {
    let free = listener.pending.iter().find(|place| place.anchor.get().is_none());
    let oldest = || listener.pending.iter().min_by_key(|place| place.since_ns.load(Relaxed));
    let place = free.or_else(oldest)?;
    if place.anchor.get().is_some() {
        drop_pending(listener, place);
        stats::poisoned(Poison::HelloSilent);
    }
    let hidden = kernel::hide(anchor);
    place.anchor.set(Some(hidden));
    place.since_ns.store(kernel::now_ns(), Relaxed);
    listener.waiting.fetch_add(1, Relaxed);
    Some(hidden)
}

/// Sends a waiting client away. The caller holds the listener's lock.
pub(super) fn drop_pending(listener: &Listener, place: &super::listener::Pending) {
    if let Some(anchor) = place.anchor.take() {
        listener.waiting.fetch_sub(1, Relaxed);
        kernel::close_hidden(anchor);
    }
}

/// Sends all clients away that were put aside.
pub(super) fn dismiss(listener: &Listener) {
    let _guard = listener.lock.lock();
    listener.pending.iter().for_each(|place| drop_pending(listener, place));
}

/// This process stops serving. The caller holds the listener's lock.
///
/// If others hold the listener, the queue is left to those who serve; when there are none, the clients in it
/// are sent to TCP and the door is shut. `for_all` closes it for everybody, as `shutdown` does to the listener.
pub(super) fn close(listener: &'static Listener, for_all: bool) {
    for place in listener.pending.iter().take(PENDING_MAX) {
        drop_pending(listener, place);
    }
    let Some(door) = listener.door.take() else { return };
    let was_serving = listener.serving.swap(0, AcqRel) != 0;
    let last = match listener.shared_state() {
        Some(share) if was_serving => share.servers.fetch_sub(1, AcqRel) <= 1,
        Some(_) => false,
        None => was_serving,
    };
    if for_all || last && listener.is_shared() {
        for _ in 0..QUEUE_MAX {
            let Ok(client) = kernel::accept4(door, None, libc::SOCK_CLOEXEC) else { break };
            let _ = sys::close(client as i32);
        }
        if for_all {
            let _ = kernel::shutdown(door, libc::SHUT_RDWR);
        } else {
            plug(listener);
        }
        listener.set_open(false);
    }
    if was_serving && (last || for_all) {
        stats::count(Counter::DoorsShut, 1);
    }
    kernel::close_hidden(door);
}

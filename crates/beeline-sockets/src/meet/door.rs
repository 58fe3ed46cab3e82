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
//! So until somebody accepts the door is *shut*, and clients that find it so, and that try again in vain for a moment
//! ([`super::retry`]), use TCP:
//!
//! 1. Where the process cannot change its user, the door is only bound, and `listen` is called when it opens.
//!    This costs nothing, and the credentials are the same.
//! 2. A process of root may open it under another user, which would change the credentials. It calls `listen`
//!    at once and fills the queue with clients of its own that are closed already (*fillers*): 65 of them take
//!    0.18 ms to make and 0.11 ms to accept away, 257 four times that. The short queue is lengthened when the
//!    door opens, if the user is still the same.
//! 3. A door that was open is shut by fillers as well, after its clients were sent away: they begin again over
//!    TCP.

use core::sync::atomic::Ordering::Relaxed;

use beeline_guest::may_begin;
use beeline_shm::sys;
use beeline_stats::tunables::rules::Path;
use beeline_stats::{Counter, Reason};
use beeline_wire::DoorName;

use super::hello_io::{self, Waiting};
use super::listener::{Listener, held};
use super::reserve;
use super::strangers::Closing;
use super::{lobby, sleepers, trust, untended};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::{Errno, epoll, hidden, io, limits, process, stats, table};

/// Queue of a door that root makes before it is known who will open it.
const FILLED_BACKLOG: i32 = 64;
/// Clients sent away or fillers made at a time, at most: beyond any queue.
const QUEUE_MAX: usize = 8192;
/// How long to wait before a name that was taken is tried again, at first and at last: the process that passed the
/// listener on gives the name up in a moment, one that goes on serving keeps it.
const RETRY_NS_MIN: u64 = 1_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;

/// Makes the door of a listener, shut. Without one the listener is a plain one, with the reason counted.
pub(super) fn make(fd: i32, desc: &'static Desc, listener: &'static Listener) {
    let _guard = listener.lock.lock();
    if listener.others_are_in_kernel() {
        if listener.doorless.get().is_none() {
            // It listens anew: who comes back from there to accept makes the door.
            listener.set_doorless(Reason::ListenerOnlyWatched);
        }
        return;
    }
    listener.tried_ns.store(kernel::now_ns(), Relaxed);
    match try_make(fd, desc, listener) {
        Ok(door) => {
            untended::end(listener);
            listener.door.set(Some(door));
            listener.doorless.set(None);
        }
        Err(reason) => listener.set_doorless(reason),
    }
}

fn try_make(fd: i32, desc: &'static Desc, listener: &'static Listener) -> Result<i32, Reason> {
    if let Some(blocked) = desc.draft.connectable.reason() {
        return Err(blocked);
    }
    if crate::config().policy == beeline_stats::tunables::Policy::Strict {
        return Err(Reason::PolicyStrict);
    }
    if is_switched_off(listener) {
        return Err(Reason::Disabled);
    }
    if limits::address_space_is_limited() {
        return Err(Reason::AddressSpaceLimited);
    }
    // A listener bound to an interface is found by clients with its interface, and left alone.
    if kernel::getsockopt::<u32>(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).is_ok_and(|index| index != 0) {
        return Err(Reason::ListenerUnsupported);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let made = kernel::socket(libc::AF_UNIX, kind, 0).map_err(reason_of)?;
    let door = hidden::hide(made as i32);
    let named = name(listener).ok_or(Errno(libc::EINVAL)).and_then(|name| kernel::bind(door, &name));
    let euid = trust::euid();
    listener.euid.store(euid.saturating_add(1), Relaxed);
    listener.sized.store(0, Relaxed);
    listener.narrow.store(0, Relaxed);
    let ready = match named {
        Ok(_) if euid == 0 => kernel::listen(door, FILLED_BACKLOG.min(full_backlog())).map(|_| {
            listener.sized.store(1, Relaxed);
            fill_queue(listener);
        }),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    };
    match ready {
        Ok(()) => Ok(door),
        Err(errno) => {
            hidden::close_hidden(door);
            Err(reason_of(errno))
        }
    }
}

/// Whether an option, at the moment, or a rule wants the listener's connections to go over TCP.
fn is_switched_off(listener: &Listener) -> bool {
    !may_begin() || process::rules().path_of_listener(listener.local.get()) == Path::Tcp
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

fn full_backlog() -> i32 {
    crate::config().door_backlog as i32
}

fn name(listener: &Listener) -> Option<SockAddr> {
    SockAddr::abstract_unix(DoorName::encode(listener.cookie.load(Relaxed)).as_bytes())
}

/// Fills the queue of the door that has the listener's name with clients that are gone.
pub(super) fn fill_queue(listener: &Listener) {
    for _ in 0..QUEUE_MAX {
        let Some(client) = client_of(listener) else { return };
        let _ = sys::close(client);
    }
}

/// A nameless client at the door that has the listener's name. None where it is shut or full.
pub(super) fn client_of(listener: &Listener) -> Option<i32> {
    let name = name(listener)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let client = kernel::socket(libc::AF_UNIX, kind, 0).ok()? as i32;
    let connected = kernel::connect(client, &name);
    if connected.is_err() {
        let _ = sys::close(client);
    }
    connected.is_ok().then_some(client)
}

/// Opens the door of a listener for traffic, because somebody is about to wait for clients. Cheap when it is open. No
/// epoll set may be locked: sets that have the listener get the door.
pub fn open_door(desc: &'static Desc) {
    open_for(desc, false);
}

/// The same because somebody is about to accept.
pub(super) fn open_to_accept(desc: &'static Desc) {
    open_for(desc, true);
}

fn open_for(desc: &'static Desc, accepts: bool) {
    let Some(listener) = Listener::of(desc) else { return };
    if listener.serves() {
        return;
    }
    if listener.door.get().is_none() {
        make_again(desc, listener, accepts);
        untended::look(listener);
    }
    if open_now(listener) {
        for gained in [listener.door.get(), listener.lobby.fd()].into_iter().flatten() {
            epoll::listener_gained(desc, gained);
        }
    }
    super::agent::enroll(desc, listener);
}

/// Opens the door of a listener that is in no epoll set, because somebody polls.
pub(super) fn open_for_poll(desc: &'static Desc, listener: &'static Listener) {
    if !listener.serves() && desc.entries.load(Relaxed) == 0 {
        if listener.door.get().is_none() {
            make_again(desc, listener, false);
            untended::look(listener);
        }
        open_now(listener);
        super::agent::enroll(desc, listener);
    }
}

/// Another process held the door's name, and may have gone, as after a binary upgrade; or a limit was near; or the
/// program that only watched the listener until now accepts.
#[cold]
fn make_again(desc: &'static Desc, listener: &'static Listener, accepts: bool) {
    let Some(reason) = listener.doorless.get() else { return };
    // One of a crowd that gave up where all sleep stays without a door: others may have, too, and one alone with a door
    // would share TCP's queue with some that take no turns.
    let had_no_number = reason == Reason::DescriptorsShort;
    let is_alone = !listener.is_shared() || listener.set.get().is_some();
    let is_wanted = reason == Reason::DoorNameTaken
        || accepts && reason == Reason::ListenerOnlyWatched
        || reason == Reason::Disabled && !is_switched_off(listener);
    if !(is_wanted || limits::may_pass(reason) || had_no_number && is_alone) {
        return;
    }
    let is_left_to_kernel = {
        let _guard = listener.lock.lock();
        listener.others_are_in_kernel()
    };
    if is_left_to_kernel {
        return;
    }
    let pause_ns = listener.retry_ns.load(Relaxed).clamp(RETRY_NS_MIN, RETRY_NS_MAX);
    if kernel::now_ns().saturating_sub(listener.tried_ns.load(Relaxed)) > pause_ns && process::accelerates() {
        listener.retry_ns.store(pause_ns.saturating_mul(2), Relaxed);
        listener.tried_ns.store(kernel::now_ns(), Relaxed);
        let fits = if had_no_number { hidden::has_spare() } else { limits::may_serve().is_ok() };
        // As long as others serve the door it is theirs: this one would ask them for clients' sake, and find it taken.
        let serves_alone = || {
            // No other thread closes the listener meanwhile, with what is shared.
            let _guard = listener.lock.lock();
            listener.serves_alone()
        };
        if !fits || reason == Reason::HostileClients && !serves_alone() {
            return;
        }
        make(desc.fd.load(Relaxed), desc, listener);
    }
}

/// A connection was accepted as `number`: if over a door that has held for a while, what was tried in vain before is
/// forgotten.
pub(super) fn has_served(listener: &Listener, number: i32) {
    // One that came over an end that was kept says nothing of the door.
    if listener.retry_ns.load(Relaxed) != 0
        && listener.serves()
        && kernel::now_ns().saturating_sub(listener.tried_ns.load(Relaxed)) > RETRY_NS_MAX
        && table::get(number).is_some_and(Desc::is_lane)
    {
        listener.retry_ns.store(0, Relaxed);
    }
}

/// Opens a door. Returns whether this process did not serve it before.
#[cold]
fn open_now(listener: &'static Listener) -> bool {
    let _guard = listener.lock.lock();
    let Some(door) = listener.door.get() else { return false };
    let places = match limits::may_serve() {
        Ok(places) => i32::try_from(places).unwrap_or(i32::MAX),
        Err(reason) => {
            close(listener, false);
            listener.tried_ns.store(kernel::now_ns(), Relaxed);
            listener.set_doorless(reason);
            return false;
        }
    };
    if listener.begin_to_serve() {
        return false;
    }
    listener.lobby.open();
    listener.join_servers();
    if !listener.is_open() {
        let numbers = i32::try_from(sys::limit(libc::RLIMIT_NOFILE) / 4).unwrap_or(i32::MAX);
        let_in(listener, door, full_backlog().min(places).min(numbers));
        listener.set_open(true);
        stats::count(Counter::DoorsOpened, 1);
    }
    sleepers::door_opens(listener);
    super::reserve::keep_reserve();
    // While there are numbers for it.
    let _ = io::small_send_buffer();
    true
}

/// Lets clients in. The caller holds the listener's lock.
fn let_in(listener: &Listener, door: i32, backlog: i32) {
    let sized = listener.sized.load(Relaxed) != 0;
    if sized {
        // As long as the queue is full of fillers nobody else is in it; whoever comes in between is a client, and
        // behind the first there are only more of them, for whom the lobby is too small.
        for _ in 0..QUEUE_MAX {
            let kind = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let Ok(first) = kernel::accept4(door, None, kind) else { break };
            let first = first as i32;
            if hello_io::look(first) == Waiting::Gone {
                let _ = sys::close(first);
            } else {
                let _ = lobby::park(listener, first, trust::peer_uid(first));
                break;
            }
        }
    }
    // A `listen` by another user would put that user's name on the door.
    if !sized || listener.euid.load(Relaxed) == trust::euid().saturating_add(1) {
        let _ = kernel::listen(door, backlog);
        listener.sized.store(1, Relaxed);
    }
}

/// A client was accepted as `number`: when numbers run short, no more clients may wait at the door than will find one.
/// The others use TCP, where a client that finds no number waits as it would without us.
pub(super) fn fit_to_numbers(listener: &Listener, number: i32) {
    let is_narrow = listener.narrow.load(Relaxed) != 0;
    let places = reserve::places_left(number);
    if places.is_none() && !is_narrow || listener.euid.load(Relaxed) != trust::euid().saturating_add(1) {
        return;
    }
    let backlog = places.map_or(full_backlog(), |places| full_backlog().min(places));
    let narrow = u32::from(places.is_some()).saturating_mul(backlog.cast_unsigned().saturating_add(1));
    let _guard = listener.lock.lock();
    if let Some(door) = listener.door.get()
        && !listener.is_leaving()
        && listener.narrow.swap(narrow, Relaxed) != narrow
    {
        let _ = kernel::listen(door, backlog);
    }
}

/// This process stops serving. The caller holds the listener's lock.
///
/// If others hold the listener, the queue is left to those who serve; when there are none, the clients in it
/// are sent to TCP and the door is shut. `for_all` closes it for everybody, as `shutdown` does to the listener.
pub(super) fn close(listener: &'static Listener, for_all: bool) {
    sleepers::door_closes(listener);
    listener.lobby.close();
    let Some(door) = listener.door.take() else { return };
    let was_serving = listener.stop_serving();
    if was_serving {
        listener.leave_servers();
    }
    let last = was_serving && listener.serves_alone();
    if for_all || last && listener.may_be_held() {
        send_queue_away(door);
        if for_all {
            let _ = kernel::shutdown(door, libc::SHUT_RDWR);
        } else {
            fill_queue(listener);
        }
        listener.set_open(false);
    }
    if was_serving && (last || for_all) {
        stats::count(Counter::DoorsShut, 1);
    }
    hidden::close_hidden(door);
}

/// Sends the clients in a door's queue away.
pub(super) fn send_queue_away(door: i32) {
    let mut closing = Closing::new();
    for _ in 0..QUEUE_MAX {
        let Ok(client) = kernel::accept4(door, None, libc::SOCK_CLOEXEC) else { return };
        closing.add(client as i32);
    }
}

/// This process serves the door no more, for this reason. No epoll set and not the listener may be locked.
pub(super) fn leave_door(desc: &'static Desc, listener: &'static Listener, reason: Reason) {
    unwatch(desc);
    let _guard = listener.lock.lock();
    close(listener, false);
    listener.leaving.set(None);
    listener.set_doorless(reason);
}

/// The door is about to be left: the sets of this process lose it, and the lobby, while they have their numbers.
/// Another process may keep the file open, and with it what the kernel tells of it. In a set that others may have, too,
/// the door stays for them if they serve it. No epoll set and not the listener may be locked.
#[cold]
pub(super) fn unwatch(desc: &'static Desc) {
    let Some(listener) = Listener::of(desc) else { return };
    let is_last = listener.serves() && listener.serves_alone();
    let is_shut = |door| kernel::poll_now(door, libc::POLLRDHUP) != 0;
    if is_last || listener.door.get().is_some_and(is_shut) {
        unwatch_for_all(desc, listener);
    } else {
        listener.door.get().into_iter().for_each(|door| epoll::listener_lost(desc, door, false));
        listener.lobby.fd().into_iter().for_each(|lobby| epoll::listener_lost(desc, lobby, true));
    }
}

/// The same where nobody serves the door any more.
#[cold]
pub(super) fn unwatch_for_all(desc: &'static Desc, listener: &'static Listener) {
    held(listener).into_iter().flatten().for_each(|fd| epoll::listener_lost(desc, fd, true));
}

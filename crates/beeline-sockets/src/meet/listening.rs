//! Sockets that become listeners, are met as such, and end.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::{SideMemory, sys};
use beeline_stats::Reason;

use super::listener::{LISTENERS, Listener, Share, find, held};
use super::{door, lane, lobby, lookup, readable, sleepers, untended};
use crate::desc::{DESCS, Desc, Kind};
use crate::kept::table::OPTION;
use crate::linger::end_lingering;
use crate::operations::{FURTHER_FDS, FurtherFds, Operations};
use crate::{Errno, Outcome, changing, kept, kernel, process, table};

/// See [`crate::operations`].
static LISTENER: Operations = Operations {
    close: close_listener,
    end_lingering,
    // It may have been a connection that went on over TCP, and was disconnected then.
    retire: lane::retire,
    before_watch: door::open_door,
    before_forget: door::unwatch,
    further_fds: listener_fds,
    is_readable: readable::door_ready,
    is_contended: |desc| Listener::of(desc).is_some_and(Listener::is_shared),
    may_be_readable: readable::door_may_be_ready,
    ..Operations::NONE
};

/// `listen(2)`.
pub(crate) fn listen(fd: i32, backlog: i32) -> Outcome {
    let _changing = changing::changing();
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
    listener.set_reuses_port(kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1));
    desc.operations.set(&LISTENER);
    desc.listener.store(core::ptr::from_ref(listener).cast_mut().cast(), Relaxed);
    if local.is_ipv6() {
        desc.draft.note_v6_only(fd);
    }
    if is_chosen(local) {
        kept::note_chosen(&desc.draft);
    }
    desc.become_kind(Kind::Listener);
    door::make(fd, desc, listener);
    true
}

/// Takes over a listener that was not made under our eyes: inherited, received, or made by libc itself.
/// The caller holds `changing::changing`.
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
    // Before anybody finds it: what is set from then on counts.
    let is_known = kept::inherit(fd, family, &desc.draft);
    if !is_known || table::set(fd, Some(desc)).is_err() || !become_listener(fd, desc) {
        let _ = table::set(fd, None);
        desc.give_if_unused();
        return None;
    }
    Some(desc)
}

pub(crate) fn listens(fd: i32) -> bool {
    kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

/// The listener behind an fd that an app accepts on, if it is one that we can serve.
pub(crate) fn adopt_now(fd: i32) -> Option<&'static Desc> {
    let _changing = changing::changing();
    if !process::accelerates() {
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
pub fn listener_fds(desc: &'static Desc) -> FurtherFds {
    let Some(listener) = Listener::of(desc) else { return [None; FURTHER_FDS] };
    door::open_for_poll(desc, listener);
    held(listener)
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
        // It is shut for everybody from now on.
        door::unwatch_for_all(desc, listener);
        let _guard = listener.lock.lock();
        door::close(listener, true);
        listener.none_is_in_kernel();
    }
    result.into()
}

/// This process serves no door any more, for this reason: clients that wait at one, and those to come, use TCP. The
/// caller holds `changing::changing`.
pub fn leave_doors(reason: Reason) {
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && desc.fd.load(Relaxed) == fd
        {
            door::leave_door(desc, listener, reason);
        }
    });
}

/// An option may have been set on a listener that keeps it on TCP: it has no door from now on.
pub fn leave_door_if_blocked(desc: &'static Desc) {
    if let (Some(listener), Some(reason)) = (Listener::of(desc), desc.draft.connectable.reason()) {
        let _changing = changing::changing();
        door::leave_door(desc, listener, reason);
    }
}

/// The app has set `SO_REUSEPORT` on a listener. The caller holds `changing::changing`.
pub fn note_reuse_of_port(desc: &'static Desc, on: bool) {
    if let Some(listener) = Listener::of(desc) {
        listener.set_reuses_port(on);
    }
}

/// Whether the app has set `SO_REUSEPORT` on a listener.
pub fn reuses_port(desc: &'static Desc) -> bool {
    Listener::of(desc).is_some_and(Listener::reuses_port)
}

/// A program was attached to a socket that chooses, among the listeners of its address, which one gets a client
/// (`SO_ATTACH_REUSEPORT_CBPF` and `_EBPF`): all that are in this process go by TCP from now on, and those to come.
pub fn leave_doors_of_group(desc: &'static Desc) {
    kept::note_chosen(&desc.draft);
    let Some(local) = Listener::of(desc).map(|listener| listener.local.get()) else { return };
    let _changing = changing::changing();
    table::for_each(|_, member| {
        if let Some(listener) = Listener::of(member).filter(|listener| listener.local.get() == local) {
            kept::note_chosen(&member.draft);
            door::leave_door(member, listener, OPTION);
        }
    });
}

/// Whether a program chooses among the listeners of an address, as far as this process has seen.
fn is_chosen(local: SocketAddr) -> bool {
    let mut chosen = false;
    table::for_each(|_, member| {
        chosen |= Listener::of(member).is_some_and(|listener| listener.local.get() == local)
            && kept::is_chosen(&member.draft);
    });
    chosen
}

/// The last fd of this process that leads to the listener is about to be closed. The caller holds
/// `changing::changing`.
#[unsafe(link_section = ".text.served")]
fn close_listener(desc: &'static Desc) {
    let Some(listener) = Listener::of(desc) else { return };
    lookup::forget();
    {
        let _guard = listener.lock.lock();
        desc.listener.store(core::ptr::null_mut(), Relaxed);
        door::close(listener, false);
        untended::end(listener);
        sleepers::end(listener);
        let share = listener.share.swap(core::ptr::null_mut(), Relaxed);
        // Who waits for the accept lock uses it. A page that stays is better than one that is missed.
        if !share.is_null() && desc.keepers.pins() == 0 {
            // SAFETY: the page was mapped by `prepare_fork` and the listener was its only user here.
            unsafe { SideMemory::from_address(share as usize).unmap() };
        }
    }
    LISTENERS.give(listener);
}

/// This process ends, or becomes another program: other processes are not to count on it at the door any more. If the
/// program cannot be executed, the next call that waits for clients serves the door again.
#[inline(always)]
pub(crate) fn stop_serving(desc: &'static Desc) {
    if let Some(listener) = Listener::of(desc)
        && listener.serves()
        && listener.shared_state().is_some()
    {
        stop_serving_among_several(listener);
    }
}

#[cold]
fn stop_serving_among_several(listener: &'static Listener) {
    // Another thread may be about to close the listener, with what is shared.
    let _guard = listener.lock.lock();
    if listener.stop_serving() {
        listener.leave_servers();
    }
}

/// Before a `fork`: what parent and child must agree on gets its memory. The parent may leave the accepting to the
/// child from now on, so clients that it has put aside are sent away. The caller holds `changing::changing`.
pub(super) fn prepare_fork() {
    table::for_each(|fd, desc| {
        let Some(listener) = Listener::of(desc) else { return };
        if listener.lobby.may_speak() {
            lobby::dismiss(listener);
        }
        if desc.fd.load(Relaxed) != fd {
            return;
        }
        if listener.shared_state().is_none() {
            share(fd, listener);
        } else if listener.set.get().is_none() {
            // Descriptors were short once.
            let _guard = listener.lock.lock();
            sleepers::make_for_crowd(listener, fd);
        }
    });
}

/// After a `fork`, in the parent: what its threads have kept since [`prepare_fork`] the child has, too. The caller
/// holds `changing::changing`.
pub(super) fn give_up_kept() {
    table::for_each(|_, desc| {
        if let Some(listener) = Listener::of(desc).filter(|listener| listener.lobby.keeps_any()) {
            let _guard = listener.lock.lock();
            lobby::give_up_kept(&listener.lobby);
        }
    });
}

fn share(tcp: i32, listener: &'static Listener) {
    const { assert!(size_of::<Share>() <= 4096, "a page of a side") };
    let _guard = listener.lock.lock();
    // What this process's threads have is not the child's.
    sleepers::end(listener);
    // Without the memory the crowd still works: its members only cannot take turns.
    let Ok(base) = sys::map_shared_anonymous(size_of::<Share>()) else { return };
    let (open, reuses_port) = (listener.is_open(), listener.reuses_port());
    listener.share.store(base.cast(), Relaxed);
    listener.set_reuses_port(reuses_port);
    if let Some(share) = listener.shared_state() {
        if listener.serves() {
            listener.join_servers();
        }
        share.open.store(u32::from(open), Relaxed);
    }
    sleepers::make_for_crowd(listener, tcp);
}

/// In the child of a `fork`: clients that the parent has taken from the door are the parent's. This process serves no
/// door yet, and has no lobby, which both tell by its [`process::generation`]: nothing is written for that, as each
/// page would be a copy.
pub(super) fn reset_after_fork() {
    LISTENERS.reset_after_fork();
    table::for_each(|_, desc| {
        let Some(listener) = Listener::of(desc) else { return };
        listener.lock.reset();
        listener.lobby.leave_to_parent();
        listener.seats.begin();
        listener.none_is_in_kernel();
    });
}

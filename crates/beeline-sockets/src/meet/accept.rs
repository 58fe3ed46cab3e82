//! `accept(2)` over two queues: the door's and TCP's.
//!
//! # Turns
//!
//! A non-blocking listener is looked at ([`super::arrivals`]), and where both queues have somebody each is asked first
//! every other time, so that neither starves. A blocking one sleeps on both, with no lock held, and never in the TCP
//! `accept` itself: whoever finds the TCP queue ready takes from it with the accept lock ([`super::accept_lock`]), with
//! nobody in between. To look at all queues costs a tenth of a short connection: where TCP's alone had somebody, the
//! next [`TCP_RUN`] clients, a *run*, are looked for there first (unless one of a crowd had to wait), and a listener
//! that blocked is not asked for each of them whether it still does; a client that the app was told of is taken before
//! any look, [`LOBBY_RUN`] in a row at most.
//!
//! # Clients that break the rules, or say nothing
//!
//! A client that has not spoken yet, and need not for its lane's name ([`super::admit`], 3), waits in the lobby
//! ([`super::lobby`]), and nobody is told of it. One whose hello is bad is shown to the app as what it would be on TCP:
//! a connection that was reset before it was accepted ([`super::reset`]). So an `accept` on a listener that blocks,
//! made because the listener was called readable, always returns: whoever made it readable is there, in whichever
//! state. One that has just gone to begin again over TCP is waited for there.

mod over_tcp;
mod spoken;

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Reason;

use over_tcp::{
    Run, first_came_over_tcp, likely_over_tcp, next_came_over_tcp, next_of_run, note_look, take_from_tcp, take_if_there,
};
use spoken::{claimed_by, from_lobby, put_aside, told_of};

use super::accepting::Accepting;
use super::admit::{Visitor, judge, take_hello};
use super::arrivals::{Came, look, wait_for_client};
use super::hello_io::Refusal;
use super::listener::{Listener, Queues};
use super::listening;
use super::lobby::{self, send_away};
use super::reserve;
use super::{accept_lock, agent, door, pool, reset, retreat, seats, sleepers, watched};
use crate::desc::{Kind, Pin};
use crate::kernel::{self, SockAddr};
use crate::wait::{Patience, Woken};
use crate::{Errno, changing, guards, table};

/// Clients looked at in one call, so that a crowd of broken ones cannot hold it up for ever.
pub(super) const CLIENTS_MAX: usize = 64;

/// Those beside that have hung up, as many as a queue that was filled has by default and some more: a program that is
/// told by edges asks again only when the next client has come.
const GONE_MAX: usize = 320;

/// Clients taken from the lobby in a row, at most, before the door's queue is looked at.
const LOBBY_RUN: u32 = 8;

/// Clients taken from TCP's queue, at most, before the door's is looked at again, where a look found nobody.
const TCP_RUN: u32 = 4;

/// `accept4(2)`; `accept` is the same with no flags. The connection's number, and its peer. `None` if the kernel is to
/// be asked.
pub(crate) fn accept(fd: i32, flags: i32) -> Option<Result<(i32, SockAddr), Errno>> {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return None;
    }
    let desc = match table::get(fd) {
        Some(desc) if desc.kind() == Kind::Listener => desc,
        _ => listening::adopt_now(fd)?,
    };
    door::open_to_accept(desc);
    let listener = Listener::of(desc)?;
    if listener.told_ns.load(Relaxed) != 0 {
        listener.told_ns.store(0, Relaxed);
    }
    agent::enroll(desc, listener);
    // A listener that is closed while this call waits is kept until the end.
    let pin = guards::pin(fd, desc)?;
    let mut call = Accepting { fd, desc, listener, flags, peer: SockAddr::empty(), owed_until_ns: 0 };
    let attempt = |call: &mut Accepting| {
        let expected = match put_aside(call) {
            Ok(None) => told_of(call),
            expected => expected,
        };
        if let Some(accepted) = expected.transpose() {
            return Some(accepted);
        }
        let looked = match next_of_run(call, &pin) {
            Run::Taken(accepted) => return Some(accepted),
            Run::Over => true,
            Run::Unknown => false,
        };
        let mode = match kernel::status_flags(fd) {
            Ok(mode) => mode,
            Err(errno) => return Some(Err(errno)),
        };
        let blocks = mode & libc::O_NONBLOCK == 0;
        listener.note_blocks(blocks);
        match blocks {
            false => Some(accept_nonblocking(call)),
            // There is one queue, in which the kernel may sleep for as long as it likes.
            true if !has_door(call) && goes_to_kernel(call) => None,
            true => accept_blocking(call, &pin, looked).transpose(),
        }
    };
    let mut result = if reserve::is_full(fd) { Some(Err(Errno(libc::EMFILE))) } else { attempt(&mut call) };
    if is_short(&result) {
        result = with_fewer_descriptors(&mut call, attempt);
    }
    let mut result = result?;
    if listener.lobby.is_occupied() && listener.is_shared() {
        if result == Err(Errno(libc::EAGAIN)) {
            result = from_lobby(&mut call).and_then(|accepted| accepted.ok_or(Errno(libc::EAGAIN)));
        }
        lobby::leave_to_crowd(listener);
    }
    if let Ok(accepted) = result {
        listener.last.store(accepted, Relaxed);
        door::has_served(listener, accepted);
    }
    Some(result.map(|accepted| (accepted, call.peer)))
}

/// Whether the call is about more than TCP's queue: the door or the lobby, a client that is owed, or others that have
/// the door and take turns at TCP's queue.
fn has_door(call: &Accepting) -> bool {
    let Accepting { listener, owed_until_ns, .. } = *call;
    let is_one_of_several = || listener.is_shared() && listener.may_be_served_by_others();
    listener.door.get().is_some() || listener.lobby.is_occupied() || owed_until_ns != 0 || is_one_of_several()
}

/// The calling thread will wait in the kernel's `accept` if there is still no door: then nobody else makes one.
fn goes_to_kernel(call: &Accepting) -> bool {
    let _guard = call.listener.lock.lock();
    let goes = !has_door(call);
    if goes {
        call.listener.goes_to_kernel();
    }
    goes
}

fn is_short(result: &Option<Result<i32, Errno>>) -> bool {
    matches!(result, Some(Err(Errno(libc::EMFILE | libc::ENFILE))))
}

/// Tries again without what is hidden, which is in the way of what the program may have.
#[cold]
fn with_fewer_descriptors(
    call: &mut Accepting,
    attempt: impl Fn(&mut Accepting) -> Option<Result<i32, Errno>>,
) -> Option<Result<i32, Errno>> {
    let gave_up_kept = {
        let _guard = call.listener.lock.lock();
        lobby::give_up_kept(&call.listener.lobby)
    };
    if gave_up_kept {
        let result = attempt(call);
        if !is_short(&result) {
            return result;
        }
    }
    if let Some(last) = last_client(call) {
        return Some(Ok(last));
    }
    give_up_descriptors();
    attempt(call)
}

fn give_up_descriptors() {
    let _changing = changing::changing();
    retreat::give_up_descriptors();
}

/// No number is left but those that are hidden: takes a client that waits at the door with one of them, its lane with
/// another. Nobody is let in at the door any more.
#[cold]
fn last_client(call: &mut Accepting) -> Option<i32> {
    let Accepting { desc, listener, .. } = *call;
    let _changing = changing::changing();
    if !reserve::release_reserve() || !retreat::begin_now(desc, listener, Reason::DescriptorsShort) {
        return None;
    }
    let mut name = SockAddr::empty();
    let anchor = next(listener, &mut name, call.flags).ok().flatten();
    let gave_up = {
        let _guard = listener.lock.lock();
        sleepers::end(listener)
    };
    if !gave_up {
        // The door's own number is the last one, then.
        retreat::if_empty(desc, listener);
    }
    let taken = anchor.and_then(|anchor| {
        match judge(call, anchor, Some(&name)).and_then(|who| take_in_time(call, anchor, &who)) {
            Ok(()) => Some(anchor),
            Err(refusal) => {
                send_away(anchor, refusal);
                None
            }
        }
    });
    // What has come since cannot be taken: it begins again over TCP, and waits there.
    pool::release_descriptors();
    retreat::if_empty(desc, listener);
    taken
}

/// As [`take_hello`], but a client that has not spoken yet has a moment to do so: it has no other chance. The caller
/// holds `changing::changing`.
fn take_in_time(call: &mut Accepting, anchor: i32, who: &Visitor) -> Result<(), Refusal> {
    match take_hello(call, anchor, who) {
        Err(Refusal::Silence) if lobby::await_hello(call.desc, call.listener, anchor, who.user()) => {
            take_hello(call, anchor, who)
        }
        taken => taken,
    }
}

/// Accepts whoever is there.
fn accept_nonblocking(call: &mut Accepting) -> Result<i32, Errno> {
    let (fd, listener) = (call.fd, call.listener);
    if listener.is_shared() {
        // Nobody sits down for one that does not block.
        seats::came_otherwise(listener);
    }
    if likely_over_tcp(listener) {
        match take_from_tcp(call, fd) {
            Ok(accepted) => return Ok(next_came_over_tcp(call, accepted)),
            Err(errno) => {
                listener.tcp_run.store(0, Relaxed);
                if errno != Errno(libc::EAGAIN) {
                    return Err(errno);
                }
            }
        }
        let queues = look(fd, listener);
        return from_door(call, queues)?.ok_or(Errno(libc::EAGAIN));
    }
    let is_doors_turn = listener.turn.fetch_add(1, Relaxed) & 1 == 0;
    let queues = look(fd, listener);
    note_look(listener, queues);
    let door_first = queues.beside_tcp() && (is_doors_turn || !queues.over_tcp);
    if door_first && let Some(accepted) = from_door(call, queues)? {
        return Ok(accepted);
    }
    if !queues.any() && reserve::is_roomy(listener.last.load(Relaxed)) {
        // The kernel would make a socket before it says so. Where it may have no number for one, that is what it says.
        return Err(Errno(libc::EAGAIN));
    }
    match take_from_tcp(call, fd) {
        Err(Errno(libc::EAGAIN)) if !door_first => from_door(call, queues)?.ok_or(Errno(libc::EAGAIN)),
        result => result.map(|accepted| first_came_over_tcp(call, accepted)),
    }
}

/// Accepts whoever comes first. `looked` tells that the call has tried before, in vain. None if the kernel is to be
/// asked, as the door was given up meanwhile.
fn accept_blocking(call: &mut Accepting, pin: &Pin, mut looked: bool) -> Result<Option<i32>, Errno> {
    let Accepting { fd: given, desc, listener, .. } = *call;
    let timeout_ns = desc.draft.rcv_timeout_ns.load(Relaxed);
    let mut patience = Patience::timeout(timeout_ns);
    let door_first = listener.turn.fetch_add(1, Relaxed) & 1 == 0;
    // A door that is being left is closed by whoever finds it empty.
    if listener.is_leaving()
        && let Some(accepted) = from_door(call, Queues::UNKNOWN)?
    {
        return Ok(Some(accepted));
    }
    let mut contender = accept_lock::Contender::default();
    loop {
        let is_owed = call.owed_until_ns != 0 && patience.end_by(call.owed_until_ns);
        let came = wait_for_client(pin.fd(given), pin, listener, &mut patience, looked);
        let Came { woken, queues, at_once, claimed } = came;
        looked = true;
        if let Some(hidden) = claimed.filter(|_| is_still(pin, given, listener))
            && let Some(accepted) = claimed_by(call, hidden)?
        {
            return Ok(Some(accepted));
        }
        match woken {
            Woken::Ready(_) => {}
            // It has died meanwhile, or another process has it.
            Woken::TimedOut if is_owed => return shown_as_reset(call).map(Some),
            Woken::TimedOut => return Err(Errno(libc::EAGAIN)),
            Woken::Failed(errno) => return Err(errno),
            // A call with a timeout is never restarted, signal(7).
            Woken::Signal { restart } if !restart || timeout_ns != 0 => return Err(Errno(libc::EINTR)),
            // The kernel restarts a call with its number.
            Woken::Signal { .. } if !table::leads_to(given, desc) => return Err(Errno(libc::EBADF)),
            Woken::Signal { .. } => continue,
        }
        // The next client is likely to let itself be waited for as well: then the look at TCP's queue would be one
        // more.
        note_look(listener, Queues { over_tcp: queues.over_tcp && at_once, ..queues });
        if !is_still(pin, given, listener) {
            return Err(Errno(libc::EBADF));
        }
        let fd = pin.fd(given);
        if (door_first || !queues.over_tcp)
            && let Some(accepted) = from_door(call, queues)?
        {
            return Ok(Some(accepted));
        }
        let mut elsewhere = false;
        if queues.over_tcp {
            if let Some(held) = accept_lock::try_take(listener) {
                contender = accept_lock::Contender::default();
                if !has_door(call) {
                    listener.goes_to_kernel();
                    return Ok(None);
                }
                let taken = if listener.leaves_queue_to_kernel() { None } else { take_if_there(call, fd) };
                drop(held);
                if let Some(taken) = taken {
                    return taken.map(|accepted| Some(first_came_over_tcp(call, accepted)));
                }
            } else {
                elsewhere = true;
            }
        }
        if let Some(accepted) = from_door(call, queues)? {
            return Ok(Some(accepted));
        }
        if elsewhere {
            pin.while_waiting(|| contender.back_off(listener));
        } else if queues.any() {
            pin.while_waiting(|| patience.woke_in_vain());
        }
    }
}

/// Whether a call that waits for the listener's clients still does. Another thread may have closed it meanwhile, where
/// it could not be kept.
fn is_still(pin: &Pin, given: i32, listener: &'static Listener) -> bool {
    let desc = pin.desc();
    table::leads_to(pin.fd(given), desc) && listener.is_of(desc)
}

/// Takes a client from the lobby or the door, as far as a look has found somebody there, if there is one that has said
/// hello. Who is in the lobby has come first, or would have waited no less in the door's queue; but clients that come
/// again and again do not keep the door's waiting.
fn from_door(call: &mut Accepting, queues: Queues) -> Result<Option<i32>, Errno> {
    let listener = call.listener;
    if !queues.beside_tcp() {
        return Ok(None);
    }
    let lobby_first = listener.from_lobby.load(Relaxed) < LOBBY_RUN;
    // Whom one of a crowd does not take out of the lobby now it is about to send away.
    let in_lobby = queues.in_lobby || listener.is_shared();
    let from_lobby = |call: &mut Accepting| match in_lobby && listener.lobby.may_speak() {
        true => from_lobby(call),
        false => Ok(None),
    };
    if lobby_first && let Some(accepted) = from_lobby(call)? {
        listener.from_lobby.fetch_add(1, Relaxed);
        return Ok(Some(accepted));
    }
    listener.from_lobby.store(0, Relaxed);
    let queued = if queues.at_door { from_queue(call)? } else { None };
    match queued {
        None if !lobby_first => from_lobby(call),
        accepted => Ok(accepted),
    }
}

/// Takes a client from the door's queue, if there is one that has said hello.
fn from_queue(call: &mut Accepting) -> Result<Option<i32>, Errno> {
    let Accepting { desc, listener, flags, .. } = *call;
    let (mut clients, mut gone) = (0, 0);
    while clients < CLIENTS_MAX && gone < GONE_MAX {
        let (anchor, who, taken, forks) = {
            let _changing = changing::changing();
            if !listener.is_of(desc) {
                return Err(Errno(libc::EBADF));
            }
            let mut name = SockAddr::empty();
            let anchor = match next(listener, &mut name, flags) {
                Ok(Some(anchor)) => anchor,
                Ok(None) => {
                    retreat::if_empty(desc, listener);
                    return Ok(None);
                }
                // Another process that shares it has shut it.
                Err(Errno(libc::EINVAL)) => {
                    watched::give_up(desc, listener);
                    return Ok(None);
                }
                Err(errno) => return Err(errno),
            };
            let who = judge(call, anchor, Some(&name));
            let taken = who.as_ref().map_err(|refusal| *refusal).and_then(|who| take_hello(call, anchor, who));
            (anchor, who.ok(), taken, crate::forks())
        };
        let user = who.as_ref().and_then(Visitor::user);
        let taken = match (taken, who) {
            (Err(Refusal::Silence), Some(who)) if lobby::await_hello(desc, listener, anchor, user) => {
                let _changing = changing::changing();
                // A child that was forked meanwhile has the anchor, too, and knows nothing of it.
                let ours = crate::forks() == forks && listener.is_of(desc);
                if ours { take_hello(call, anchor, &who) } else { Err(Refusal::Gone) }
            }
            (taken, _) => taken,
        };
        *(if matches!(taken, Err(Refusal::Gone)) { &mut gone } else { &mut clients }) += 1;
        match taken {
            Ok(()) => {
                door::fit_to_numbers(listener, anchor);
                if listener.told.load(Relaxed) != 0 {
                    listener.told.store(0, Relaxed);
                }
                return Ok(Some(anchor));
            }
            Err(Refusal::Silence) => {
                let _changing = changing::changing();
                if !listener.is_of(desc) {
                    send_away(anchor, Refusal::Gone);
                    return Err(Errno(libc::EBADF));
                }
                if crate::forks() == forks {
                    let _guard = listener.lock.lock();
                    let _ = lobby::park(listener, anchor, user);
                } else {
                    send_away(anchor, Refusal::Gone);
                }
            }
            Err(refusal @ Refusal::Poison(_)) => return refuse(call, anchor, refusal).map(Some),
            Err(refusal) => send_away(anchor, refusal),
        }
    }
    Ok(None)
}

/// Sends a client away that has broken the rules.
fn refuse(call: &mut Accepting, anchor: i32, refusal: Refusal) -> Result<i32, Errno> {
    send_away(anchor, refusal);
    shown_as_reset(call)
}

/// What the app gets on TCP for a client that was reset before it was accepted.
fn shown_as_reset(call: &mut Accepting) -> Result<i32, Errno> {
    let accepted = reset::connection(call.desc.family.load(Relaxed) as i32, call.flags, &mut call.peer)?;
    crate::close::fd_reborn(accepted);
    Ok(accepted)
}

/// The next client in the door's queue, and the name of its anchor.
///
/// # Errors
/// Those of accept4(2): `EINVAL` from a door that was shut.
pub(super) fn next(listener: &'static Listener, name: &mut SockAddr, flags: i32) -> Result<Option<i32>, Errno> {
    let _guard = listener.lock.lock();
    let Some(door) = listener.door.get() else { return Ok(None) };
    match kernel::accept4(door, Some(name), flags) {
        Ok(anchor) => Ok(Some(anchor as i32)),
        Err(errno @ Errno(libc::EMFILE | libc::ENFILE)) => {
            if !pool::release_descriptors() {
                return Err(errno);
            }
            match kernel::accept4(door, Some(name), flags) {
                Ok(anchor) => Ok(Some(anchor as i32)),
                Err(errno @ Errno(libc::EMFILE | libc::ENFILE)) => Err(errno),
                // The kernel looks for a number first.
                Err(_) => Ok(None),
            }
        }
        Err(errno @ Errno(libc::EINVAL)) => Err(errno),
        // EAGAIN mostly.
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;

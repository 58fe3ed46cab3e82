//! Accepting those who came over TCP.

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Role;

use super::{TCP_RUN, has_door};
use crate::desc::Pin;
use crate::meet::accepting::Accepting;
use crate::meet::listener::{Listener, Queues};
use crate::meet::{accept_lock, agent, pool};
use crate::wait::{clients_are_near, note_client_over_tcp};
use crate::{Errno, kernel, stats};

/// Whether the next client is looked for in TCP's queue before any other.
pub(super) fn likely_over_tcp(listener: &Listener) -> bool {
    let take_one = |left: u32| left.checked_sub(1);
    // A door that is being left is closed by whoever finds it empty.
    !listener.is_leaving() && listener.tcp_run.fetch_update(Relaxed, Relaxed, take_one).is_ok()
}

/// All queues were looked at, and these had somebody at once.
pub(super) fn note_look(listener: &Listener, at_once: Queues) {
    listener.tcp_run.store(if at_once.over_tcp && !at_once.beside_tcp() { TCP_RUN } else { 0 }, Relaxed);
}

/// How a look for the next client of a run over TCP went.
pub(super) enum Run {
    Taken(Result<i32, Errno>),
    /// It is not there, or another process is about to take it.
    Over,
    /// Nobody looked: there is no run, the listener has no door, or it did not block when it was asked last.
    Unknown,
}

/// Takes the next client of a run over TCP, if it is there: then nobody need ask whether the listener still blocks.
pub(super) fn next_of_run(call: &mut Accepting, pin: &Pin) -> Run {
    let Accepting { fd: given, listener, .. } = *call;
    if !listener.blocked_when_asked.load(Relaxed) || !has_door(call) || !likely_over_tcp(listener) {
        return Run::Unknown;
    }
    let Some(held) = accept_lock::try_take(listener) else { return Run::Over };
    if !has_door(call) || listener.leaves_queue_to_kernel() {
        return Run::Unknown;
    }
    let fd = pin.fd(given);
    let taken = take_if_there(call, fd);
    drop(held);
    match taken {
        // It does not block any more, and others take clients without the lock.
        Some(Err(Errno(libc::EAGAIN))) if !kernel::is_blocking(fd) => {}
        Some(taken) => return Run::Taken(taken.map(|accepted| next_came_over_tcp(call, accepted))),
        None => {}
    }
    listener.tcp_run.store(0, Relaxed);
    Run::Over
}

/// Takes a connection from the TCP queue of a listener that blocks most likely, with the accept lock, if there is one.
pub(super) fn take_if_there(call: &mut Accepting, fd: i32) -> Option<Result<i32, Errno>> {
    (kernel::poll_now(fd, libc::POLLIN) != 0).then(|| take_from_tcp(call, fd))
}

/// Takes a connection from the TCP queue.
pub(super) fn take_from_tcp(call: &mut Accepting, fd: i32) -> Result<i32, Errno> {
    let accepted = match kernel::accept4(fd, Some(&mut call.peer), call.flags) {
        Err(Errno(libc::EMFILE | libc::ENFILE)) if pool::release_descriptors() => {
            kernel::accept4(fd, Some(&mut call.peer), call.flags)
        }
        result => result,
    };
    accepted.map(|accepted| accepted as i32)
}

/// As [`came_over_tcp`], of a client that may be the first of a run: where it runs is noted.
pub(super) fn first_came_over_tcp(call: &Accepting, accepted: i32) -> i32 {
    note_client_over_tcp(accepted, call.peer.to_internet().map(|peer| peer.ip()));
    came_over_tcp(call, accepted)
}

/// The same of the next ones. Where clients are taken to be near, as they are if the first was, nobody looks again.
pub(super) fn next_came_over_tcp(call: &Accepting, accepted: i32) -> i32 {
    if clients_are_near() { came_over_tcp(call, accepted) } else { first_came_over_tcp(call, accepted) }
}

/// A connection from the TCP queue is the kernel's business alone, unless its other end is in another network namespace
/// and the agent has a lane for it.
fn came_over_tcp(call: &Accepting, accepted: i32) -> i32 {
    crate::close::fd_reborn(accepted);
    if call.listener.told.load(Relaxed) != 0 {
        call.listener.told.store(0, Relaxed);
    }
    if let Err(reason) = agent::came_over_tcp(call.desc, call.listener, accepted, call.flags) {
        stats::fell_back(Role::Server, reason);
    }
    accepted
}

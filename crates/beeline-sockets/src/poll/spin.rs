//! The spin of a call, and what it learns from how its sleeps end.
//!
//! It is the lane's that was heard of last. Without any lane it is the first listener's that has a door: a client that
//! connects as soon as the last one was served is there before this thread would have gone to sleep. Then a look is a
//! system call.

use libc::pollfd;

use super::{ALWAYS, READABLE, io, look};
use crate::desc::{Desc, Kind};
use crate::table;
use crate::wait::{Look, Patience, Spun, Woken, clients_are_near, ticks};

/// Spins with the budget of the lane that was heard of last, or of a listener.
pub(super) fn spin(fds: &mut [pollfd], shadow: &mut [pollfd], patience: &mut Patience) -> Spun {
    match best(fds) {
        Some(best) => spin_on_lanes(best, fds, patience),
        None => listener(fds).map_or(Spun::Nothing, |listener| spin_for_clients(listener, fds, shadow, patience)),
    }
}

/// A sleep has ended without news of lanes; `rung` tells whether something of the listeners' own may have called.
pub(super) fn slept(fds: &[pollfd], patience: &Patience, rung: bool) {
    if let Some(best) = best(fds) {
        // One that is a lane no more has nothing to learn.
        let _ = best.if_lane(|| best.slept(patience, Woken::TimedOut));
    } else if let Some(listener) = listener(fds).filter(|_| !clients_are_near()) {
        listener.budget().slept(patience, rung);
    }
}

fn lane(entry: &pollfd) -> Option<&'static Desc> {
    table::get(entry.fd).filter(|desc| desc.is_lane())
}

/// The lane that was heard of last: the next news is most likely to come from there, and from the CPU that its peer
/// runs on.
fn best(fds: &[pollfd]) -> Option<&'static Desc> {
    fds.iter().filter_map(lane).max_by_key(|desc| desc.pace.heard())
}

/// The first listener with a door whose clients are waited for, and that no other process may have: a crowd would spin
/// for one client.
fn listener(fds: &[pollfd]) -> Option<&'static Desc> {
    let awaited = fds.iter().filter(|entry| entry.events & READABLE != 0);
    let mut listeners = awaited.filter_map(|entry| table::get(entry.fd).filter(|desc| desc.kind() == Kind::Listener));
    listeners.find(|desc| {
        let has_door = || (desc.operations.get().further_fds)(desc).into_iter().flatten().next().is_some();
        !(desc.operations.get().is_contended)(desc) && has_door()
    })
}

fn spin_on_lanes(best: &'static Desc, fds: &[pollfd], patience: &mut Patience) -> Spun {
    let budget = best.budget_anew();
    if best.if_lane(|| best.peer_is_near()) != Some(false) {
        budget.give_way(patience);
        return Spun::Nothing;
    }
    budget.spin(patience, || {
        let ready = |entry: &pollfd, desc: &'static Desc| io::poll_mask(desc) & (entry.events | ALWAYS) != 0;
        // A lane that is none any more is news, too.
        let mut lanes = fds.iter().filter_map(|entry| Some((entry, lane(entry)?)));
        let found = lanes.find(|(entry, desc)| desc.if_lane(|| ready(entry, desc)) != Some(false));
        found.is_some_and(|(_, desc)| {
            desc.pace.hear(ticks());
            true
        })
    })
}

fn spin_for_clients(
    listener: &'static Desc,
    fds: &mut [pollfd],
    shadow: &mut [pollfd],
    patience: &mut Patience,
) -> Spun {
    let budget = listener.budget_anew();
    // The next client is likely to be where the last one was.
    if clients_are_near() {
        budget.give_way(patience);
        return Spun::Nothing;
    }
    budget.spin_by(1, patience, || match look(fds, shadow) {
        Ok(0) => Look::Asked,
        Ok(_) if fds.iter().any(|entry| entry.revents != 0 && is(entry, listener)) => Look::News,
        // A failure is found again by the look that follows.
        Ok(_) | Err(_) => Look::Foreign,
    })
}

fn is(entry: &pollfd, desc: &'static Desc) -> bool {
    table::get(entry.fd) == Some(desc)
}

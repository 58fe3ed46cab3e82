//! Who has come to a listener: its two queues, looked at, spun for and waited for.

use beeline_stats::Counter;
use beeline_stats::tunables::{Wait, option};

use super::listener::{Listener, Queues, held};
use super::{accept_lock, listening, seats, sleepers};
use crate::desc::{Desc, Pin};
use crate::operations::{FURTHER_FDS, FurtherFds};
use crate::wait::looks::{Look, Looks};
use crate::wait::{Patience, Woken, clients_are_near, spares_cpus};
use crate::{kernel, stats};

/// Which queue may have somebody. An accept4(2) makes a socket before it looks, so that one in vain takes several times
/// as long as this.
pub(super) fn look(fd: i32, listener: &'static Listener) -> Queues {
    // A door that is being left is closed by whoever finds it empty.
    let leaving = listener.is_leaving();
    let mut fds = NOBODY;
    let count = fill(fd, &mut fds, held(listener));
    if count == 1 {
        return Queues { over_tcp: true, at_door: leaving, in_lobby: false };
    }
    let fds = fds.get_mut(..count).unwrap_or_default();
    if kernel::poll_at_once(fds).is_err() {
        return Queues::UNKNOWN;
    }
    let came = who_came(fds);
    Queues { at_door: came.at_door || leaving, ..came }
}

/// What a wait for a client ended with, and which queue has one.
pub(super) struct Came {
    pub woken: Woken,
    pub queues: Queues,
    /// Whether the call's first look found somebody, or may have: where that was the beginning of a sleep, nobody knows
    /// how long it took.
    pub at_once: bool,
    /// The hidden anchor of an end whose client has claimed this process ([`seats`]).
    pub claimed: Option<i32>,
}

impl Came {
    fn later(woken: Woken, queues: Queues) -> Self {
        Came { woken, queues, at_once: false, claimed: None }
    }
}

/// Waits until a queue has a client, with no lock held. `looked` tells that the call has looked before, in vain.
pub(super) fn wait_for_client(
    fd: i32,
    pin: &Pin,
    listener: &'static Listener,
    patience: &mut Patience,
    looked: bool,
) -> Came {
    let mut fds = NOBODY;
    let count = fill(fd, &mut fds, listening::listener_fds(pin.desc()));
    let fds = fds.get_mut(..count).unwrap_or_default();
    if !listener.is_shared() {
        let came = wait(fd, pin, listener, patience, fds, false);
        return Came { at_once: came.at_once && !looked, ..came };
    }
    // Who sits down has looked: clients that claim this process shall not keep others waiting.
    if !patience.signalled()
        && let Some(came) = who_is_there(fds)
    {
        return came;
    }
    let (came, claimed) = seats::while_seated(listener, |sits| wait(fd, pin, listener, patience, fds, !sits));
    if claimed.is_none() && came.queues.any() {
        seats::came_otherwise(listener);
    }
    Came { claimed, at_once: false, ..came }
}

/// Looks whether a queue has a client. Not through a set, which would wake another sleeper.
fn who_is_there(fds: &mut [libc::pollfd]) -> Option<Came> {
    let queues = kernel::poll_at_once(fds).map_or(Queues::default(), |_| who_came(fds));
    queues.any().then_some(Came { at_once: true, ..Came::later(Woken::Ready(1), queues) })
}

/// `in_crowd` tells whether one of a crowd may sleep where nobody hears of ends that this process keeps.
fn wait(
    fd: i32,
    pin: &Pin,
    listener: &'static Listener,
    patience: &mut Patience,
    fds: &mut [libc::pollfd],
    in_crowd: bool,
) -> Came {
    let spun = spin(pin.desc(), listener, patience, fds);
    let at_once = spun != Spun::InVain;
    if spun != Spun::Somebody {
        let set = match listener.is_shared() {
            true => in_crowd.then(|| sleepers::of_crowd(listener)).flatten(),
            false => sleepers::of_threads(pin, fd, listener),
        };
        if let Some(set) = set {
            let (woken, queues) = pin.while_waiting(|| sleepers::sleep(set, patience));
            return Came { at_once, ..Came::later(woken, queues) };
        }
        let woken = pin.while_waiting(|| sleepers::alone(listener, || patience.sleep(fds, None)));
        if !matches!(woken, Woken::Ready(_)) {
            return Came::later(woken, Queues::default());
        }
    }
    Came { at_once, ..Came::later(Woken::Ready(1), who_came(fds)) }
}

/// Which queue has somebody, of what [`fill`] has filled in.
fn who_came(fds: &[libc::pollfd]) -> Queues {
    let has = |index: usize| fds.get(index).is_some_and(|place: &libc::pollfd| place.revents != 0);
    Queues { over_tcp: has(0), at_door: has(1), in_lobby: has(2) }
}

/// How a spin for a client ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spun {
    Somebody,
    InVain,
    /// There was none.
    Not,
}

/// Looks again and again for a while, if that has paid lately: a client that connects as soon as it was served is there
/// before this thread would have gone to sleep, and waking up costs more than all the rest of a connection.
fn spin(desc: &Desc, listener: &'static Listener, patience: &Patience, fds: &mut [libc::pollfd]) -> Spun {
    let looks = Looks { least_ns: 2_000, probe_ns: 10_000, most_ns: crate::live(option::spin_ns_max) };
    let known_ns = match crate::live(option::wait) {
        Wait::Sleep => return Spun::Not,
        // The next client is likely to be where the last one was.
        _ if clients_are_near() => return Spun::Not,
        Wait::Lazy if spares_cpus() => return Spun::Not,
        Wait::Poll => looks.most_ns,
        Wait::Lazy => u64::from(desc.spin.ns()),
    };
    let Some(budget_ns) = looks.grant(known_ns, || desc.spin.skip()) else { return Spun::Not };
    if !accept_lock::may_spin(listener, budget_ns) {
        return Spun::Not;
    }
    let (came, next_ns) = looks.spin(budget_ns, kernel::now_ns, || match kernel::poll_at_once(fds) {
        Ok(0) if patience.signalled() => Look::Enough,
        Ok(0) => Look::Nothing,
        asked => Look::Something(asked.is_ok()),
    });
    accept_lock::end_spin(listener);
    desc.spin.set_ns(next_ns as u32);
    stats::count(if came.is_some() { Counter::SpinsPaid } else { Counter::SpinsFailed }, 1);
    if came == Some(true) { Spun::Somebody } else { Spun::InVain }
}

/// What may tell of clients: TCP's queue, the door and the lobby.
type Places = [libc::pollfd; 1 + FURTHER_FDS];

const NOBODY: Places = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 1 + FURTHER_FDS];

/// What tells of clients: TCP's queue, and then those that there are `further`, each in its place. Returns how many
/// places are looked at.
fn fill(fd: i32, places: &mut Places, further: FurtherFds) -> usize {
    let mut count = 0;
    for (index, (place, fd)) in places.iter_mut().zip(core::iter::once(Some(fd)).chain(further)).enumerate() {
        if let Some(fd) = fd {
            place.fd = fd;
            count = index + 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn each_queue_is_told_from_the_others() {
        let [tcp, door, lobby] = [0; 3].map(|_| UnixStream::pair().unwrap());
        let ends = [&tcp, &door, &lobby].map(|(end, _)| end.as_raw_fd());
        let came = |further: FurtherFds| {
            let mut fds = NOBODY;
            let count = fill(ends[0], &mut fds, further);
            kernel::poll_at_once(&mut fds[..count]).unwrap();
            (count, who_came(&fds[..count]))
        };
        let nobody = Queues::default();
        assert_eq!(came([None, None]), (1, nobody));
        assert_eq!(came([Some(ends[1]), Some(ends[2])]), (3, nobody));
        drop(lobby.1);
        assert_eq!(came([Some(ends[1]), Some(ends[2])]), (3, Queues { in_lobby: true, ..nobody }));
        assert_eq!(came([None, Some(ends[2])]), (3, Queues { in_lobby: true, ..nobody }));
        drop((door.1, tcp.1));
        assert_eq!(came([Some(ends[1]), None]), (2, Queues { over_tcp: true, at_door: true, ..nobody }));
    }
}

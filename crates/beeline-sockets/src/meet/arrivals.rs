//! Who has come to a listener: its two queues, looked at, spun for and waited for.

use beeline_stats::Counter;
use beeline_stats::tunables::{Wait, option};

use super::listener::{Listener, Queues, held};
use super::{accept_lock, listening, seats, sleepers};
use crate::desc::{Desc, Pin};
use crate::operations::{FURTHER_FDS, FurtherFds};
use crate::wait::looks::{Look, Looks};
use crate::wait::{Patience, Woken, peers_are_near, spares_cpus};
use crate::{kernel, stats};

/// Which queue may have somebody. An accept4(2) makes a socket before it looks, so that one in vain takes several times
/// as long as this.
pub(super) fn look(fd: i32, listener: &'static Listener) -> Queues {
    // A door that is being left is closed by whoever finds it empty.
    let leaving = listener.is_leaving();
    let mut fds = NOBODY;
    let count = fill(fd, &mut fds, held(listener));
    if count == 1 {
        return Queues { over_tcp: true, at_door: leaving };
    }
    let fds = fds.get_mut(..count).unwrap_or_default();
    if kernel::poll_at_once(fds).is_err() {
        return Queues { over_tcp: true, at_door: true };
    }
    let came = who_came(fds);
    Queues { at_door: came.at_door || leaving, ..came }
}

/// What a wait for a client ended with, and which queue has one.
pub(super) struct Came {
    pub woken: Woken,
    pub queues: Queues,
    /// Whether the first look found somebody, or may have: a sleep that began with it does not tell.
    pub at_once: bool,
    /// The hidden anchor of an end whose client has claimed this process ([`seats`]).
    pub claimed: Option<i32>,
}

impl Came {
    fn later(woken: Woken, queues: Queues) -> Self {
        Came { woken, queues, at_once: false, claimed: None }
    }
}

/// Waits until a queue has a client, with no lock held.
pub(super) fn wait_for_client(fd: i32, pin: &Pin, listener: &'static Listener, patience: &mut Patience) -> Came {
    let mut fds = NOBODY;
    let count = fill(fd, &mut fds, listening::listener_fds(pin.desc()));
    let fds = fds.get_mut(..count).unwrap_or_default();
    if !listener.is_shared() {
        return Came { at_once: true, ..wait(fd, pin, listener, patience, fds, false) };
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
    Came { claimed, ..came }
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
    let desc = pin.desc();
    if !spin(desc, listener, patience, fds) {
        let set = match listener.is_shared() {
            true => in_crowd.then(|| sleepers::of_crowd(listener)).flatten(),
            false => sleepers::of_threads(pin, fd, listener),
        };
        if let Some(set) = set {
            let (woken, queues) = pin.while_waiting(|| sleepers::sleep(set, patience));
            return Came::later(woken, queues);
        }
        let woken = pin.while_waiting(|| sleepers::alone(listener, || patience.sleep(fds, None)));
        if !matches!(woken, Woken::Ready(_)) {
            return Came::later(woken, Queues::default());
        }
    }
    Came::later(Woken::Ready(1), who_came(fds))
}

/// Which queue has somebody, of what [`fill`] has filled in.
fn who_came(fds: &[libc::pollfd]) -> Queues {
    let mut came = fds.iter().map(|place| place.revents != 0);
    Queues { over_tcp: came.next().unwrap_or(false), at_door: came.any(|came| came) }
}

/// Looks again and again for a while, if that has paid lately: a client that connects as soon as it was served is there
/// before this thread would have gone to sleep, and waking up costs more than all the rest of a connection.
fn spin(desc: &Desc, listener: &'static Listener, patience: &Patience, fds: &mut [libc::pollfd]) -> bool {
    let looks = Looks { least_ns: 2_000, probe_ns: 10_000, most_ns: crate::live(option::spin_ns_max) };
    let known_ns = match crate::live(option::wait) {
        Wait::Sleep => return false,
        // The next client is likely to be where the last one was.
        _ if peers_are_near() => return false,
        Wait::Lazy if spares_cpus() => return false,
        Wait::Poll => looks.most_ns,
        Wait::Lazy => u64::from(desc.spin.ns()),
    };
    let Some(budget_ns) = looks.grant(known_ns, || desc.spin.skip()) else { return false };
    if !accept_lock::may_spin(listener, budget_ns) {
        return false;
    }
    let (came, next_ns) = looks.spin(budget_ns, kernel::now_ns, || match kernel::poll_at_once(fds) {
        Ok(0) if patience.signalled() => Look::Enough,
        Ok(0) => Look::Nothing,
        asked => Look::Something(asked.is_ok()),
    });
    accept_lock::end_spin(listener);
    desc.spin.set_ns(next_ns as u32);
    stats::count(if came.is_some() { Counter::SpinsPaid } else { Counter::SpinsFailed }, 1);
    came == Some(true)
}

/// What may tell of clients: TCP's queue, the door and the lobby.
type Places = [libc::pollfd; 1 + FURTHER_FDS];

const NOBODY: Places = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 1 + FURTHER_FDS];

/// What tells of clients: TCP's queue, and then those that there are `further`. Returns how many.
fn fill(fd: i32, places: &mut Places, further: FurtherFds) -> usize {
    let mut count = 0;
    for (place, fd) in places.iter_mut().zip(core::iter::once(fd).chain(further.into_iter().flatten())) {
        place.fd = fd;
        count += 1;
    }
    count
}

//! Clients that have come through the door and said nothing yet.
//!
//! Connecting to the door and saying hello are two calls of the client, and the kernel wakes the server at the first.
//! Nearly always the hello is there when the server looks. If not, the client may have been preempted, be slow, or mean
//! to hold the server up, which nobody can tell. So:
//!
//! 1. A silent client is waited for, for [`AWAIT_NS`], and only while nobody else has come ([`await_hello`]).
//! 2. A wait in vain is charged to the client's user, who gets no other for [`RESPITE_NS`]: silence costs the server a
//!    thousandth of its time at most, and others' clients are waited for as ever. Users who come by the dozen share one
//!    account, [`STRANGERS_NS`]. On a CPU that both share the server wakes up before the client's next call, each time:
//!    so a client whose user has had his wait gets a glance, of [`GLANCE_NS`], as long as such are not in vain; of
//!    those that are there is one in [`GLANCE_RESPITE_NS`], whoever it is for. A client that lets the server wait and
//!    speaks just in time is charged as well: what a wait or a glance lasts beyond [`SOON_NS`], in which nearly all
//!    speak, comes out of an account that fills by a [`CHARGE`]th of the time and holds one wait. Both together, nobody
//!    has more than an eighth of the server's time.
//! 3. Then the client is put into the *lobby* ([`park`]): its anchor goes into a small epoll set of the listener, whose
//!    readability counts as the listener's. The set is there while the door is served, so every thread that waits for
//!    the listener waits for all clients in the lobby, whoever put them there.
//! 4. The lobby has room for [`PENDING_MAX`]. When it is full, the oldest client of the user who has most there goes.
//! 5. The lobby is this process's, while in TCP's queue anybody who shares the listener could serve a client. One of a
//!    crowd may leave `accept` with another client to serve, or to wait for its turn at a lock of the app's, and not
//!    come back for long. So it first takes one that it has put aside, if any has spoken, and then sends the others
//!    away ([`leave_to_crowd`]): they begin again over TCP. As that costs them something, one of a crowd waits longer
//!    before, and a moment, [`MOMENT_NS`], for a user who has had his wait: on a busy CPU the server's waking up is
//!    what keeps the client from its next call. Moments have an account of their own, as waits have, to which one in
//!    vain is charged with [`MOMENT_CHARGE_NS`]: after a few he has one in so long. Where no other process takes
//!    clients from the door, those that have spoken stay, for the next `accept`: a client that never calls anything
//!    again would never hear that it was sent away.
//!
//! Ends that wait for their client's next connection are here, too, in places of their own ([`kept`]).
//!
//! Nothing is told of a client that is here before it has spoken. What it has said stays in its anchor until somebody
//! accepts it. Whatever the kernel calls readable has spoken, is gone, or is heard once: nobody wakes a server again
//! and again.

mod kept;
mod spoken;

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::{Poison, Role};

pub(super) use kept::Again;
pub(super) use spoken::{Spoken, Who, any_spoken, spoken, spoken_at};

use super::hello_io::{self, Refusal, Waiting};
use super::listener::Listener;
use super::pool::PooledLane;
use super::{strangers, trust};
use crate::desc::Desc;
use crate::fd_cell::FdCell;
use crate::{hidden, kernel, process, stats};

/// Clients that the lobby has room for.
const PENDING_MAX: usize = 16;
/// How long a silent client is waited for. It speaks within microseconds, unless it has lost its CPU.
const AWAIT_NS: i64 = 2_000_000;
/// How long its user gets no other wait.
const RESPITE_NS: u64 = 2_000_000_000;
/// The same for one of a crowd.
const AWAIT_IN_CROWD_NS: i64 = 20_000_000;
/// How long one of a crowd waits for a user who has had his wait.
const MOMENT_NS: i64 = 300_000;
/// What one in vain is charged with: of a few that come at once all may be, on a busy CPU.
const MOMENT_CHARGE_NS: u64 = 10_000_000;
/// How long a client of such a user is waited for where there is no crowd, and how long none is after one such wait in
/// vain.
const GLANCE_NS: i64 = 100_000;
const GLANCE_RESPITE_NS: u64 = 100_000_000;
/// How long no user gets a wait who is not known to have cost one.
const STRANGERS_NS: u64 = 200_000_000;
/// How long a client that means well lets a server wait, by and large.
const SOON_NS: u64 = 32_000;
/// How many times longer than a wait went on beyond that its user has none, once the time of one wait is used up.
const CHARGE: u64 = 16;
/// What may be used up before.
const CREDIT_NS: u64 = AWAIT_NS as u64 * CHARGE;
/// Users who are remembered for what they have cost.
const USERS: usize = 8;

/// A client in the lobby.
#[derive(Default)]
#[repr(C)]
pub(super) struct Pending {
    /// Its anchor, hidden.
    pub anchor: FdCell,
    /// Its user, plus one; 0 when that is not known.
    user: AtomicU32,
    /// Since when, on `CLOCK_MONOTONIC`.
    since_ns: AtomicU64,
}

impl Pending {
    /// Its user, where that is known.
    fn user(&self) -> Option<u32> {
        self.user.load(Relaxed).checked_sub(1)
    }
}

/// Until when a user's waits are made up for; from [`CREDIT_NS`] before that on his silent clients are waited for
/// again.
#[derive(Default)]
#[repr(C)]
pub(super) struct Respite {
    /// The user, plus one.
    user: AtomicU32,
    until_ns: AtomicU64,
    /// The same of moments.
    moments_until_ns: AtomicU64,
}

/// The lobby of a listener; valid when zeroed. Used under the listener's lock, except `waiting` and the respites, which
/// are hints.
#[repr(C)]
pub(super) struct Lobby {
    /// The epoll set, hidden; none while the door is not open here. A child of a `fork` may have its parent's.
    set: FdCell,
    /// The [`process::generation`] of the process that has made it.
    opened: AtomicU32,
    /// How many places are taken.
    waiting: AtomicU32,
    places: [Pending; PENDING_MAX],
    respites: [Respite; USERS],
    strangers_until_ns: AtomicU64,
    /// [`Respite::moments_until_ns`] of all users who have no place among those.
    strangers_moments_until_ns: AtomicU64,
    /// When a client is glanced at again whose user has had his wait.
    glances_again_ns: AtomicU64,
    kept: kept::Ends,
}

impl Lobby {
    /// Empty, for a new listener.
    pub(super) fn begin(&self) {
        self.set.set(None);
        self.waiting.store(0, Relaxed);
        self.places.iter().for_each(|place| place.anchor.set(None));
        for respite in &self.respites {
            // Who is not known has the first place that is nobody's.
            respite.user.store(0, Relaxed);
            respite.until_ns.store(0, Relaxed);
            respite.moments_until_ns.store(0, Relaxed);
        }
        self.strangers_until_ns.store(0, Relaxed);
        self.strangers_moments_until_ns.store(0, Relaxed);
        self.glances_again_ns.store(0, Relaxed);
        self.kept.begin();
    }

    /// Makes the set, as the door opens. Without one, silent clients are sent away.
    pub(super) fn open(&self) {
        if self.fd().is_some() {
            return;
        }
        self.close_set();
        if let Ok(set) = kernel::epoll_create() {
            self.set.set(Some(hidden::hide(set)));
            self.opened.store(process::generation(), Relaxed);
        }
    }

    /// What is readable when a client in here has spoken, or is gone. Without the lock it may be closed by now.
    pub(super) fn fd(&self) -> Option<i32> {
        self.set.get().filter(|_| self.opened.load(Relaxed) == process::generation())
    }

    fn close_set(&self) {
        if let Some(set) = self.set.take() {
            hidden::close_hidden(set);
        }
    }

    /// Whether anybody is in here.
    pub(super) fn is_occupied(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Whether anybody in here may have spoken: a client, or an end that is kept.
    pub(super) fn may_speak(&self) -> bool {
        self.is_occupied() || self.kept.any()
    }

    /// Whether ends are kept in here.
    pub(super) fn keeps_any(&self) -> bool {
        self.kept.any()
    }

    /// Ends that are kept, as [`super::seats`] uses them. The caller holds the listener's lock.
    pub(super) fn kept(&self) -> (&kept::Ends, Option<i32>) {
        (&self.kept, self.fd())
    }

    /// Closes the set and sends everybody away: the door is shut.
    pub(super) fn close(&self) {
        self.dismiss();
        self.close_set();
    }

    /// In the child of a `fork`: closes copies of clients, counted or not. The set is used no more (`opened`).
    pub(super) fn leave_to_parent(&self) {
        self.kept.count_again();
        if self.may_speak() || self.places.iter().any(|place| place.anchor.get().is_some()) {
            self.close();
            self.waiting.store(0, Relaxed);
        }
    }

    /// Tells everybody in here to begin again over TCP, and changes nothing of this process.
    pub(super) fn hang_up(&self) {
        for anchor in self.places.iter().filter_map(|place| place.anchor.get()) {
            let _ = kernel::shutdown(anchor, libc::SHUT_RDWR);
        }
        self.kept.hang_up();
    }

    fn dismiss(&self) {
        self.kept.drop_all(self.fd());
        self.places.iter().for_each(|place| self.drop_client(place));
    }

    fn dismiss_silent(&self) {
        self.kept.drop_all(self.fd());
        let has_spoken = |anchor: i32| hello_io::look_closely(anchor) == Waiting::Message;
        let silent = self.places.iter().filter(|place| !place.anchor.get().is_some_and(has_spoken));
        silent.for_each(|place| self.drop_client(place));
    }

    /// Empties a place, and sends its client away.
    fn drop_client(&self, place: &Pending) {
        match self.vacate(place) {
            Some(hidden) if self.fd().is_some() => strangers::close_hidden(hidden),
            // What lies in there is for the parent of a `fork`, which has the client, too.
            Some(hidden) => hidden::close_hidden(hidden),
            None => {}
        }
    }

    /// Empties a place whose client has another number by now.
    fn leave_place(&self, place: &Pending) {
        if let Some(hidden) = self.vacate(place) {
            hidden::close_hidden(hidden);
        }
    }

    fn vacate(&self, place: &Pending) -> Option<i32> {
        let hidden = place.anchor.take()?;
        self.waiting.fetch_sub(1, AcqRel);
        // Its file may stay open under another number, so the set would not forget it by itself.
        if let Some(set) = self.fd() {
            let _ = kernel::epoll_ctl(set, libc::EPOLL_CTL_DEL, hidden, None);
        }
        Some(hidden)
    }

    /// A place for one more client. In a full lobby, the one that has to go for it is the oldest of the user who has
    /// most there.
    fn place(&self) -> Option<&Pending> {
        if let Some(free) = self.places.iter().find(|place| place.anchor.get().is_none()) {
            return Some(free);
        }
        let crowd = |user: u32| self.places.iter().filter(|place| place.user.load(Relaxed) == user).count();
        let age = |place: &&Pending| (usize::MAX - crowd(place.user.load(Relaxed)), place.since_ns.load(Relaxed));
        self.places.iter().min_by_key(age)
    }

    /// The place of a user who is remembered.
    fn respite_of(&self, user: u32) -> Option<&Respite> {
        self.respites.iter().find(|respite| respite.user.load(Relaxed) == user)
    }

    /// Whether a silent client of this user is waited for.
    fn may_await(&self, user: u32, now_ns: u64) -> bool {
        match self.respite_of(user) {
            Some(known) => now_ns.saturating_add(CREDIT_NS) >= known.until_ns.load(Relaxed),
            None => now_ns >= self.strangers_until_ns.load(Relaxed),
        }
    }

    /// A client of this user was waited for in vain.
    fn note_in_vain(&self, user: u32, now_ns: u64) {
        self.note_until(user, now_ns.saturating_add(CREDIT_NS).saturating_add(RESPITE_NS));
        self.strangers_until_ns.store(now_ns.saturating_add(STRANGERS_NS), Relaxed);
    }

    /// A client of this user has spoken after such a wait.
    fn note_wait(&self, user: u32, waited_ns: u64, now_ns: u64) {
        let charge_ns = charged(waited_ns);
        if charge_ns != 0 {
            let until_ns = self.respite_of(user).map_or(0, |known| known.until_ns.load(Relaxed));
            self.note_until(user, until_ns.max(now_ns).saturating_add(charge_ns));
        }
    }

    fn note_until(&self, user: u32, until_ns: u64) {
        let known = self.respite_of(user);
        let place = known.or_else(|| self.respites.iter().min_by_key(|respite| respite.until_ns.load(Relaxed)));
        if let Some(place) = place {
            if known.is_none() {
                place.moments_until_ns.store(0, Relaxed);
            }
            place.user.store(user, Relaxed);
            place.until_ns.store(until_ns, Relaxed);
        }
    }

    /// What this user's moments have cost.
    fn moments_of(&self, user: u32) -> &AtomicU64 {
        self.respite_of(user).map_or(&self.strangers_moments_until_ns, |known| &known.moments_until_ns)
    }

    /// Whether a silent client of this user, who has had his wait, gets a moment.
    fn may_have_moment(&self, user: u32, now_ns: u64) -> bool {
        now_ns.saturating_add(CREDIT_NS) >= self.moments_of(user).load(Relaxed)
    }

    /// Such a moment took so long, and the client spoke, or did not.
    fn note_moment(&self, user: u32, early: bool, took_ns: u64, now_ns: u64) {
        let account = self.moments_of(user);
        let charge_ns = if early { charged(took_ns) } else { MOMENT_CHARGE_NS };
        account.store(account.load(Relaxed).max(now_ns).saturating_add(charge_ns), Relaxed);
    }

    /// Whether a client of a user who has had his wait is glanced at.
    fn may_glance(&self, now_ns: u64) -> bool {
        now_ns >= self.glances_again_ns.load(Relaxed)
    }

    /// Such a glance took so long, and ended early, or showed nothing.
    fn note_glance(&self, early: bool, took_ns: u64, now_ns: u64) {
        let respite_ns = if early { charged(took_ns) } else { GLANCE_RESPITE_NS };
        if respite_ns != 0 {
            self.glances_again_ns.store(now_ns.saturating_add(respite_ns), Relaxed);
        }
    }

    /// How a silent client of this user is waited for, and for how long. `None` if it is not.
    fn wait_for(&self, user: u32, in_crowd: bool, now_ns: u64) -> Option<(Wait, i64)> {
        match (self.may_await(user, now_ns), in_crowd) {
            (true, true) => Some((Wait::Whole, AWAIT_IN_CROWD_NS)),
            (true, false) => Some((Wait::Whole, AWAIT_NS)),
            (false, true) => self.may_have_moment(user, now_ns).then_some((Wait::Moment, MOMENT_NS)),
            (false, false) => self.may_glance(now_ns).then_some((Wait::Glance, GLANCE_NS)),
        }
    }

    /// Such a wait took so long, and ended early: the client spoke, or somebody else came.
    fn note(&self, user: u32, wait: Wait, early: bool, took_ns: u64, now_ns: u64) {
        match wait {
            Wait::Whole if early => self.note_wait(user, took_ns, now_ns),
            Wait::Whole => self.note_in_vain(user, now_ns),
            Wait::Moment => self.note_moment(user, early, took_ns, now_ns),
            Wait::Glance => self.note_glance(early, took_ns, now_ns),
        }
    }
}

/// How a client that has not spoken is waited for.
#[derive(Clone, Copy)]
enum Wait {
    /// Its user has a wait.
    Whole,
    /// He has had his, and it is one of a crowd.
    Moment,
    /// He has had his, and there is no crowd.
    Glance,
}

/// What a wait of this length is charged with.
fn charged(waited_ns: u64) -> u64 {
    waited_ns.saturating_sub(SOON_NS).saturating_mul(CHARGE)
}

/// A client's user, as in [`Pending`].
fn as_pending(user: Option<u32>) -> u32 {
    user.map_or(0, |uid| uid.saturating_add(1))
}

/// Waits a moment for the hello of a client of this user that has just connected, unless others have come meanwhile, or
/// the user has had his wait. Returns whether it has spoken.
pub(super) fn await_hello(desc: &Desc, listener: &Listener, anchor: i32, user: Option<u32>) -> bool {
    let user = as_pending(user);
    let lobby = &listener.lobby;
    let in_crowd = listener.is_shared();
    let began_ns = kernel::now_ns();
    let Some((wait, await_ns)) = lobby.wait_for(user, in_crowd, began_ns) else { return false };
    let others = |fd: Option<i32>| libc::pollfd {
        // Whom one of a crowd puts aside it loses, so it waits whoever comes.
        fd: fd.filter(|_| !in_crowd).unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [
        libc::pollfd { fd: anchor, events: libc::POLLIN, revents: 0 },
        others(listener.door.get()),
        others(Some(desc.fd.load(Relaxed))),
        others(lobby.fd()),
    ];
    let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: await_ns };
    // SAFETY: a live timeout, which the kernel may write to; no mask.
    let woken = unsafe { kernel::ppoll(&mut fds, &raw mut timeout, core::ptr::null()) };
    let now_ns = kernel::now_ns();
    lobby.note(user, wait, woken != Ok(0), now_ns.saturating_sub(began_ns), now_ns);
    fds[0].revents != 0
}

/// Puts a client of this user that has not spoken yet into the lobby, under a hidden number. The caller holds the
/// listener's lock. Without room the client is sent away.
pub(super) fn park(listener: &Listener, anchor: i32, user: Option<u32>) -> Option<i32> {
    park_for(listener, anchor, as_pending(user))
}

/// Puts a client that has spoken there, for whoever accepts. Whether that one will find a client: not one that the
/// rules keep out, which is sent away.
pub(super) fn park_spoken(listener: &Listener, anchor: i32, user: Option<u32>) -> bool {
    if is_welcome(user) {
        park_for(listener, anchor, as_pending(user)).is_some()
    } else {
        strangers::close(anchor);
        false
    }
}

/// `user` is as in [`Pending`].
fn park_for(listener: &Listener, anchor: i32, user: u32) -> Option<i32> {
    let lobby = &listener.lobby;
    let (Some(set), Some(place)) = (lobby.fd(), lobby.place()) else {
        strangers::close(anchor);
        return None;
    };
    if place.anchor.get().is_some() {
        lobby.drop_client(place);
        stats::poisoned(Poison::HelloSilent);
    }
    // What wakes whoever waits is seen by whoever looks, and ends in the client's going.
    strangers::see_urgent(anchor);
    let hidden = hidden::hide(anchor);
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: hidden as u64 };
    if kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, hidden, Some(event)).is_err() {
        strangers::close_hidden(hidden);
        return None;
    }
    place.anchor.set(Some(hidden));
    place.user.store(user, Relaxed);
    place.since_ns.store(kernel::now_ns(), Relaxed);
    lobby.waiting.fetch_add(1, AcqRel);
    Some(hidden)
}

/// Sends all clients away that were put aside.
pub(super) fn dismiss(listener: &Listener) {
    let _guard = listener.lock.lock();
    listener.lobby.dismiss();
}

/// One of a crowd leaves `accept`: rule 5.
pub(super) fn leave_to_crowd(listener: &Listener) {
    let _guard = listener.lock.lock();
    match listener.serves_alone() {
        true => listener.lobby.dismiss_silent(),
        false => listener.lobby.dismiss(),
    }
}

/// Keeps an end for its client's next connection. Whether there is room. The caller holds the listener's lock.
pub(super) fn keep(lobby: &Lobby, lane: &'static PooledLane) -> bool {
    lobby.fd().is_some_and(|set| lobby.kept.add(lane, set))
}

/// Gives up the ends that are kept. The caller holds the listener's lock.
pub(super) fn give_up_kept(lobby: &Lobby) -> bool {
    let any = lobby.kept.any();
    lobby.kept.drop_all(lobby.fd());
    any
}

/// Whether the rules let clients of this user in, whatever they say. Who is told of it would find nobody to accept
/// otherwise.
pub(super) fn is_welcome(user: Option<u32>) -> bool {
    let welcome = user.is_some_and(|uid| trust::may_share(uid) || trust::may_bridge(uid));
    if !welcome {
        stats::fell_back(Role::Server, beeline_stats::Reason::ForeignUser);
    }
    welcome
}

/// Sends a client away, which begins again over TCP if it means well.
pub(super) fn send_away(anchor: i32, refusal: Refusal) {
    if let Refusal::Poison(poison) = refusal {
        stats::poisoned(poison);
    }
    // A child that another thread has forked meanwhile may hold a copy.
    let _ = kernel::shutdown(anchor, libc::SHUT_RDWR);
    strangers::close(anchor);
}

#[cfg(test)]
mod tests;

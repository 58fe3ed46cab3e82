//! Two processes that have met need not meet again: ends that are kept for the next connection.
//!
//! Making a connection of two sockets, a name, a door and a hello is some twenty system calls at either end, and most
//! of what a short connection takes. All of it tells both ends again what they know. So when a connection is closed in
//! good order, either end may keep its anchor, hidden, beside the idle lane: the end *stands*. The next connection
//! between the two is a word or two on that anchor ([`hello_io::say_again`]). It has the addresses of the one before,
//! unless the program has bound its port, and everything else anew: side, descriptor, options, offer.
//!
//! # While a connection lives
//!
//! 1. [`flags::STANDS`] in an end's flags says that it means to keep its anchor. The client says so before its hello
//!    (or before it is at the door, where there need not be one), the server when it takes that, if it may ([`offer`],
//!    [`welcome`]): the client's anchor has a plain name, they believe each other's user, nobody else has the lane, nor
//!    the listener unless by rule 9. By itself a client does from the second connection over a lane on: one that
//!    connects once would only leave a dead end.
//! 2. An end takes the flag back for good, under its lock for sending, when it is shared with another process, shut
//!    down for reading, or when somebody sleeps on its anchor who would not be rung: who asks for no bytes, or is one
//!    of several who watch exclusively ([`crate::ending::stand_no_more`]); and when its anchor has had a mode that the
//!    next connection must not have (`life::control`), but for `O_NONBLOCK`. Then it fences and looks at the peer's
//!    flags. That it sends no more it says without the kernel, if it can (`io/shutdown.rs`), and else takes the flag
//!    back, too.
//!
//! # Close
//!
//! 3. Who closes stores its flags with `CLOSED`, and with `STANDS` if all is in order ([`may_stand`]); fences; and
//!    looks at the peer's. Without the peer's `STANDS`, or with a writer of the peer's asleep, the anchor is closed as
//!    ever, and the kernel tells. Else it is kept ([`keep`]), and if the peer has not closed, and is armed, it is rung.
//!    By the fences of 2 and of arming, who goes to sleep finds `CLOSED`, or is seen, or rung.
//! 4. So both keep, or the second finds that the first has not. If one keeps and the other does not, its anchor is
//!    dead, which it finds when it is used next, or, a server, when the kernel reports it.
//! 5. A server's end goes to its listener's lobby when nobody here uses the lane any more ([`park`]), and only then the
//!    lane is `RELEASED`. From then on its memory is the client's.
//!
//! # Again
//!
//! 6. A client takes an idle lane of which both flags are there and its own end is closed ([`connect`]). The listener
//!    must be the one that a new connection would reach now, the user, namespace and server's address those of before.
//!    Its own address is the one that the anchor's name reserves, or that of its socket where the program has bound the
//!    port: the socket holds it, hidden, as long as the connection lasts. A name with such a port reserves it only as
//!    long, so it serves connections with bound ports alone. The client resets the lane, offers it, and says hello
//!    again. From there on everything is as after a hello: offer, late fallback, order at the listener.
//! 7. While a hello of its own lies at the listener's door a thread does not use what stands: it would overtake that.
//!    Nor while one may lie there that this process has closed or shared since, which serves the door itself. Connects
//!    of several threads or processes have no order but what they tell each other, which takes longer.
//! 8. The server takes what stands in its lobby when the hello is there ([`super::admit::take_again`]), after the same
//!    questions about options, rules, users and an address that is another than before as with a hello.
//!
//! # Among several
//!
//! 9. Where other processes take the listener's clients, too, an end is used only while its own waits in `accept`
//!    ([`super::seats`]): the client claims it first. Who finds nobody there says hello at the door.
//!
//! # Giving up
//!
//! 10. A `fork`, a program that is executed, descriptors that run short, a door that is left, another user: idle ends
//!     are closed. They are few ([`lobby`], `pool_lanes_max`), the oldest go first, and kept only while there are many
//!     numbers.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, LaneMemory, WAKE_ARMED, flags, seat};
use beeline_stats::tunables::{Standing as Wanted, option};
use beeline_stats::{Counter, Reason};
use beeline_wire::ConnName;

use super::client::Holder;
use super::connecting::Connecting;
use super::listener::Listener;
use super::pool::{self, Offer, PooledLane};
use super::route::Route;
use super::{client, hello_io, lobby, lookup, offers, seats, trust, watched};
use crate::anchor::{Anchor, Hasty};
use crate::close::changing_of;
use crate::desc::Desc;
use crate::side::{SideState, state};
use crate::{hidden, io, kernel, limits, stats, thread};
use beeline_meeting::paths::Ticket;

/// Whether ends are kept after a connection over a lane that has, or has not, had another before.
fn are_wanted(had_another: bool) -> bool {
    match crate::live(option::standing) {
        Wanted::Auto => had_another,
        Wanted::On => true,
        Wanted::Off => false,
    }
}

/// Before a hello: rule 1, of the client. `peer` is who opened the door, where the anchor has a plain name.
pub(super) fn offer(offer: &Offer, route: &Route, name: &ConnName, peer: Option<trust::Peer>) {
    offer.lane.stands.says_hello(thread::identity());
    offer.lane.stands.forget();
    if let Some(peer) = peer {
        offer.lane.stands.know(name, peer, route.ours.uid(), route.namespace());
        offer.lane.stands.set_borrows_port(route.bound_port.is_some());
    }
    // Ends are kept with processes of our own user and of root.
    let stands = peer.is_some_and(|peer| route.ours.believes(peer.uid)) && are_wanted(offer.was_served());
    offer.lane.memory().set_flags(End::Client, if stands { flags::STANDS } else { 0 });
}

/// Before a hello is taken: rule 1, of the server. `peer` is who brought the lane with a plain name.
pub(super) fn welcome(
    listener: &'static Listener,
    lane: &PooledLane,
    name: &ConnName,
    peer: Option<trust::Peer>,
    ours: &trust::OwnUser,
) {
    lane.stands.set_home(core::ptr::null_mut());
    lane.stands.forget();
    let Some(peer) = peer.filter(|_| lane.holder().is_none()) else { return };
    lane.stands.know(name, peer, ours.uid(), None);
    lane.cookie.store(listener.cookie.load(Relaxed), Relaxed);
    let offers = lane.memory().flags(End::Client) & flags::STANDS != 0;
    let is_wanted = crate::live(option::standing) != Wanted::Off;
    let is_home = || !listener.is_shared() || lane.is_ours_alone() && listener.seats.begin_keeping();
    if offers && is_wanted && ours.believes(peer.uid) && is_home() {
        lane.stands.set_home(core::ptr::from_ref(listener).cast_mut().cast());
    }
}

/// What a server says of its end with [`flags::TAKEN`].
pub(super) fn flag_of(lane: &PooledLane) -> u32 {
    if lane.stands.home().is_null() { 0 } else { flags::STANDS }
}

/// Whether the end, which is about to be closed and leaves nothing unread, is in good order: rule 3. The caller holds
/// both locks.
pub(super) fn may_stand(desc: &Desc, lane: &LaneMemory, side: &SideState) -> bool {
    let (ours, theirs) = (lane.flags(desc.end()), lane.flags(desc.end().peer()));
    let taken = desc.end() == End::Server || theirs & flags::TAKEN != 0;
    ours & flags::STANDS != 0
        && theirs & flags::STANDS != 0
        && (ours | theirs) & (flags::URGENT | flags::SIGNALLED | flags::RESET) == 0
        && taken
        && !desc.shared.load(Relaxed)
        && desc.keepers.pins() == 0
        && !side.is(state::RESET | state::SHUT_RD | state::POISONED)
        && side.linger.get().is_none()
        && !desc.draft.owned.load(Relaxed)
        // Nobody here has ever slept for room: that leaves an anchor without any.
        && lane.write_wake(desc.end()).load(Relaxed) == 0
        && desc.pooled().is_some_and(|pooled| pooled.is_ours_alone() && pooled.stands.anchor().is_none())
}

/// Keeps the anchor of an end whose flags are stored, with a fence behind. False if it is to be closed: rule 3. The
/// caller holds both locks.
pub(super) fn keep(desc: &'static Desc, lane: &LaneMemory, side: &SideState) -> bool {
    let peer = desc.end().peer();
    let Some(pooled) = desc.pooled() else { return false };
    if lane.flags(peer) & flags::STANDS == 0
        || lane.write_wake(peer).load(Relaxed) & WAKE_ARMED != 0
        || io::unread_hint(desc, side) != 0
    {
        return false;
    }
    // The number may be another file's by now: libc closes some of its own without a word. Such a file must not even be
    // closed.
    let known = side.origin.anchor_cookie.load(Relaxed);
    let is_ours = |fd| kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(known);
    let fd = desc.fd.load(Relaxed);
    if !is_ours(fd) {
        return false;
    }
    let Some(anchor) = hidden::twin_to_keep(fd) else { return false };
    // One that cannot be rung is told by the kernel.
    let is_told = io::ring_of_end(desc, &Hasty::new(Anchor(anchor)));
    if !is_ours(anchor) || !is_told {
        hidden::close_hidden(anchor);
        return false;
    }
    pooled.stands.keep_anchor(anchor, known, side.nonblock.load(Relaxed) != 0);
    true
}

/// The server's end of a lane is closed, nobody here uses it any more, and its anchor is kept: it waits for its client
/// at the listener, if that is still the same. Rule 5.
pub(super) fn park(lane: &'static PooledLane) -> bool {
    let is_wanted = lane.is_small() && crate::live(option::pool_lanes_max) != 0;
    if lane.stands.anchor().is_none() || !lane.is_ours_alone() || !is_wanted {
        return false;
    }
    // SAFETY: null, or an object of a slab, which is never unmapped: `welcome` alone has stored it.
    let Some(listener) = (unsafe { lane.stands.home().cast::<Listener>().as_ref() }) else { return false };
    let listener: &'static Listener = listener;
    // Whoever has it may be about to give all of them up; nothing is waited for here.
    let Some(_guard) = listener.lock.try_lock() else { return false };
    let is_same = listener.cookie.load(Relaxed) == lane.cookie.load(Relaxed) && listener.serves();
    if !is_same || listener.is_leaving() {
        return false;
    }
    seats::place(listener, lane);
    if !lobby::keep(&listener.lobby, lane) {
        return false;
    }
    seats::note_kept(listener);
    let memory = lane.memory();
    memory.set_flags(End::Server, memory.flags(End::Server) | flags::RELEASED);
    true
}

/// Connects over an end that stands. `None` if there is none that may be used. What [`lookup::is_untaken`] has said,
/// which is asked once for each connection, goes to `untaken`.
pub(super) fn connect(
    ours: Connecting,
    route: &Route,
    nonblocking: bool,
    ticket: Ticket,
    untaken: &mut Option<bool>,
) -> Option<Result<(), Reason>> {
    if !pool::any_idle() {
        return None;
    }
    let Connecting { fd, desc, .. } = ours;
    // Before anything is in nobody's hands: no fork comes between.
    let _changing = changing_of(fd, desc);
    let mut offer = seats::await_server(route)
        .or_else(|| pool::standing(route.destination, |stands| route.over(stands).is_some()))?;
    let cookie = offer.lane.cookie.load(Relaxed);
    if offers::any_at_door(cookie) || watched::may_have_visitor(cookie) {
        // Rule 7.
        offer.withdraw();
        return None;
    }
    let name = match judge(&offer, route, untaken) {
        Judged::Valid(name) => name,
        Judged::Elsewhere => {
            offer.withdraw();
            return None;
        }
        Judged::Dead => {
            close(offer);
            return None;
        }
    };
    // Nothing is given out by the kernel here, so numbers up to the limit will do.
    let limit = i32::try_from(kernel::recent_descriptor_limit()).unwrap_or(i32::MAX);
    let ready = ours.hindrance(ticket, limit).map_or(Ok(()), Err);
    // Nothing else reserves the address that the app chose.
    let ready = ready.and_then(|()| Holder::of(fd, route.explicit));
    let ready = ready.and_then(|holder| pool::side().map(|side| (holder, side)).map_err(limits::memory_reason));
    let (holder, side) = match ready {
        Ok(ready) => ready,
        Err(reason) => {
            offer.withdraw();
            return Some(Err(reason));
        }
    };
    let lane = offer.lane;
    let peer = lane.stands.peer();
    if !seat::claim(lane.memory().seat()) {
        // It is at something else by now: rule 9.
        side.retire(true);
        offer.withdraw();
        return None;
    }
    offer.begin_again();
    client::fill(side.state, desc, &name, nonblocking, lane.memory());
    lane.memory().set_flags(End::Client, flags::STANDS);
    let Some(anchor) = lane.stands.anchor().filter(|anchor| hello_io::say_again(*anchor, name.client).is_ok()) else {
        side.retire(true);
        close(offer);
        return None;
    };
    let lane = offer.sent();
    lane.stands.begin_again();
    let _ = lane.stands.take_anchor();
    if let Some(holder) = holder {
        holder.keep_with(lane);
    }
    let result = client::install(fd, desc, anchor, lane, side, nonblocking, Some(peer.pid));
    // It has the app's number now.
    hidden::close_hidden(anchor);
    stats::count(Counter::ConnectionsAgain, u64::from(result.is_ok()));
    Some(result)
}

/// What an end that stands is to a new connection.
enum Judged {
    /// What a new one would be, which is this connection: rule 6.
    Valid(ConnName),
    /// Somebody else's: of several listeners that share a port each has some clients' ports.
    Elsewhere,
    /// Of no use to any.
    Dead,
}

fn judge(offer: &Offer, route: &Route, untaken: &mut Option<bool>) -> Judged {
    let stands = &offer.lane.stands;
    let Some(name) = route.over(stands) else { return Judged::Elsewhere };
    let (ours, uid) = (&route.ours, stands.peer().uid);
    if stands.user() != ours.uid() || !ours.believes(uid) || !are_wanted(true) {
        return Judged::Dead;
    }
    let target = lookup::listener(route.destination, name.client.address());
    let cookie = offer.lane.cookie.load(Relaxed);
    let Some(target) = target.ok().filter(|target| target.cookie == cookie) else {
        let is_cut = || stands.anchor().is_none_or(|anchor| kernel::poll_now(anchor, 0) & libc::POLLHUP != 0);
        return if name == stands.name() || is_cut() { Judged::Dead } else { Judged::Elsewhere };
    };
    let may = trust::may_serve(uid, target.uid)
        && !lookup::is_doorless(route.destination, cookie)
        // Last: who is told that it is not may be the one that tries.
        && !*untaken.get_or_insert_with(|| lookup::is_untaken(route.destination));
    if may { Judged::Valid(name) } else { Judged::Dead }
}

/// The anchor is of no use any more; the lane may be.
fn close(mut offer: Offer) {
    offer.lane.stands.close_anchor();
    offer.begin_again();
    offer.withdraw();
}

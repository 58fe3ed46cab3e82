//! Connections between network namespaces that begin on TCP and move to a lane: `docs/design/0009-moving.md`, whose rules the comments
//! cite by number. `client` offers and goes, `server` joins and follows; who is inside a call is counted here.

mod client;
mod server;

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_lane::{End, offer};

use super::connecting::{BUSY, CANDIDATE};
use super::listener::Listener;
use super::{agent, pool};
use crate::desc::{DESCS, Desc, Kind, Parts, Stage};
use crate::operations::Operations;
use crate::{cancel, close, hidden, io, kernel, process, table};
use beeline_meeting::agent::is_there;

pub use crate::desc::Way;

/// See [`crate::operations`].
static MOVING: Operations =
    Operations { close: close_candidate, before_send: client::before_send, settle, ..Operations::NONE };

/// Between two looks at somebody who switches, or who has to leave before a switch.
const PAUSE_NS: i64 = 20_000;
/// So many looks are made by who has something to share: some 20 ms.
const LOOKS_MAX: u32 = 400;

/// What becomes of a call that the kernel is to get.
#[derive(Clone, Copy)]
pub enum Entered {
    /// The kernel gets it; nobody need know.
    Plain,
    /// The connection has changed: the call begins again.
    Again,
    /// Somebody is just changing it, and ends without anybody's help: the call begins again, however often.
    Wait,
    /// The kernel gets it, and [`go_out`] is told of the result.
    Inside(Inside),
}

/// A call that is inside.
#[derive(Clone, Copy)]
pub struct Inside {
    desc: &'static Desc,
    /// Which use of the description it came into.
    begun: u32,
}

/// Whether connections to other namespaces begin on TCP, and there is an agent by whom they may move.
pub(super) fn is_wanted() -> bool {
    crate::config().namespaces_move && is_there()
}

/// How long it is believed that a destination is another namespace's. If it is this one's by now, all that is missed is a door.
const AFAR_NS: u64 = 1_000_000_000;
/// Destinations of which that is known, each by a number made of it, and until when.
static AFAR: [(AtomicU64, AtomicU64); 16] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 16];

fn number_of(destination: SocketAddr) -> u64 {
    let ip = match destination.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let (high, low) = ((u128::from(ip) >> 64) as u64, u128::from(ip) as u64);
    let mixed = (high ^ low.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(destination.port());
    mixed.wrapping_mul(0x5851_f42d_4c95_7f2d)
}

fn place_of(number: u64) -> &'static (AtomicU64, AtomicU64) {
    &AFAR[(number >> 60) as usize]
}

/// Whether a destination was found to be another namespace's a moment ago, and nothing keeps connections there from moving.
pub(super) fn was_afar(destination: SocketAddr) -> bool {
    let number = number_of(destination);
    let (known, until_ns) = place_of(number);
    is_wanted() && known.load(Relaxed) == number && kernel::now_ns() < until_ns.load(Relaxed)
}

/// Takes note of that.
pub(super) fn note_afar(destination: SocketAddr) {
    if was_afar(destination) {
        return;
    }
    let number = number_of(destination);
    let (known, until_ns) = place_of(number);
    until_ns.store(0, Relaxed);
    known.store(number, Relaxed);
    until_ns.store(kernel::now_ns().saturating_add(AFAR_NS), Relaxed);
}

/// The kernel connects a client's socket, which may move later (rule 1).
pub(super) fn begin_client(desc: &'static Desc) {
    // Another thread may have found a reason why not.
    if desc.draft.blocked_by.compare_exchange(BUSY, CANDIDATE, Relaxed, Relaxed).is_ok() {
        desc.operations.set(&MOVING);
        desc.moving.set(Stage::Client);
    }
}

/// A socket was accepted, which may move later (rule 1).
pub(super) fn begin_server(listening: &'static Desc, listener: &'static Listener, accepted: i32) {
    let Some(place) = listener.place.load(Relaxed).checked_sub(1) else { return };
    if !agent::may_serve(listener) || (0..=2).contains(&accepted) {
        return;
    }
    let _changing = close::changing_reborn(accepted);
    let Some(desc) = DESCS.take() else { return };
    desc.begin(Kind::Tcp, accepted, listening.family.load(Relaxed), crate::forks());
    desc.draft.inherit(&listening.draft);
    desc.draft.blocked_by.store(CANDIDATE, Relaxed);
    desc.operations.set(&MOVING);
    desc.moving.place.store(place.saturating_add(1), Relaxed);
    desc.moving.set(Stage::Server);
    if table::set(accepted, Some(desc)).is_err() {
        desc.give_if_unused();
    }
}

/// Whether nothing has come up that keeps a candidate on TCP.
fn may_move(fd: i32, desc: &'static Desc) -> bool {
    desc.draft.blocked_by.load(Relaxed) == CANDIDATE
        && desc.draft.rcv_lowat.load(Relaxed) <= 1
        // The kernel counts the sends that it will tell of.
        && desc.draft.option(libc::SOL_SOCKET, libc::SO_ZEROCOPY).unwrap_or(0) == 0
        && desc.born.load(Relaxed) == crate::forks()
        && process::accelerates()
        && !process::is_guest_of_parent()
        && table::leads_to(fd, desc)
}

/// Before the kernel gets a call on a number. `is_plain`: it ends by itself as soon as some bytes come, or does not block (rule 7).
#[inline]
pub fn come_in(fd: i32, way: Way, is_plain: impl FnOnce() -> bool) -> Entered {
    if !crate::config().namespaces_move {
        return Entered::Plain;
    }
    match table::get(fd) {
        Some(desc) if desc.moving.is_candidate() => come_into(fd, desc, way, is_plain),
        // It has moved since the call found that it is not ours.
        Some(desc) if desc.is_lane() && desc.moving.has_moved() => Entered::Again,
        _ => Entered::Plain,
    }
}

#[cold]
fn come_into(fd: i32, desc: &'static Desc, way: Way, is_plain: impl FnOnce() -> bool) -> Entered {
    let (moving, begun) = (&desc.moving, desc.begun());
    if !moving.come_in(way, begun) {
        return Entered::Again;
    }
    let stage = moving.stage();
    if stage == Stage::Switching {
        moving.go_out(way, begun);
        kernel::sleep_ns(PAUSE_NS);
        return Entered::Wait;
    }
    if desc.kind() != Kind::Tcp || !table::leads_to(fd, desc) {
        moving.go_out(way, begun);
        return Entered::Again;
    }
    if stage == Stage::Joined {
        let settles = !is_plain() || way == Way::Reads && moving.inside(way) > 1 || server::is_left(desc);
        if settles || io::crossing::is_overdue(fd, desc) {
            moving.go_out(way, begun);
            settle(fd, desc);
            return Entered::Again;
        }
    }
    if way == Way::Writes && matches!(stage, Stage::Client | Stage::Offered) && moving.count_message() {
        client::is_due(fd, desc, begun);
    }
    Entered::Inside(Inside { desc, begun })
}

/// Makes the call; if its thread is cancelled in it, or jumps out, it goes out.
pub fn while_inside<R>(inside: Option<Inside>, way: Way, call: impl FnOnce() -> R) -> R {
    unsafe extern "C" fn undo(argument: *mut core::ffi::c_void) {
        // SAFETY: what is given below, which lives as long as the call does.
        let (Inside { desc, begun }, way) = unsafe { *argument.cast::<(Inside, Way)>() };
        desc.moving.go_out(way, begun);
    }
    match inside {
        Some(inside) => cancel::undoing(undo, &(inside, way), call),
        None => call(),
    }
}

/// After the call, with its result.
pub fn go_out(fd: i32, inside: Inside, way: Way, result: isize) {
    let Inside { desc, begun } = inside;
    if desc.begun() != begun {
        // Another thread has closed the number meanwhile, and this is another connection's by now.
        return;
    }
    if way == Way::Reads && result > 0 {
        server::received(fd, desc, begun);
    }
    desc.moving.go_out(way, begun);
}

/// A connection goes on over TCP for good if it can; else it moves now (rule 7). No lock may be held, and the caller is not inside.
pub(crate) fn settle(fd: i32, desc: &'static Desc) {
    for _ in 0..LOOKS_MAX {
        match desc.moving.stage() {
            stage @ (Stage::Offered | Stage::Joined) => {
                if give_up(fd, desc, stage) || stage == Stage::Joined && server::follow(fd, desc, 0) {
                    return;
                }
            }
            Stage::Busy | Stage::Switching => {}
            _ => return,
        }
        kernel::sleep_ns(PAUSE_NS);
    }
}

/// See [`settle`], of the connection that a number leads to.
pub(crate) fn settle_number(fd: i32) {
    if let Some(desc) = table::get(fd).filter(|desc| desc.moving.is_candidate()) {
        settle(fd, desc);
    }
}

/// Before something is done to a number that keeps its connection on TCP for good, unless that moves now: a half-close, which lanes are told
/// of in their own way; another connection; a splice.
pub fn leave_on_tcp(fd: i32) {
    if let Some(desc) = table::get(fd).filter(|desc| desc.moving.is_candidate()) {
        settle(fd, desc);
        let _ = desc.moving.step(Stage::Client, Stage::None) || desc.moving.step(Stage::Server, Stage::None);
    }
}

/// See [`settle`], of all connections.
pub(crate) fn settle_all() {
    if crate::config().namespaces_move {
        table::for_each(|fd, desc| {
            if desc.moving.is_candidate() {
                settle(fd, desc);
            }
        });
    }
}

/// Whether a connection is on its way to a lane, in a table that nobody changes. The caller may have to [`settle_all`] once more.
pub(crate) fn is_any_between() -> bool {
    let mut any = false;
    if crate::config().namespaces_move {
        table::for_each(|_, desc| any |= matches!(desc.moving.stage(), Stage::Offered | Stage::Joined));
    }
    any
}

/// Something has come up that keeps a candidate on TCP. Locks may be held, so nothing is waited for, and the parts stay where they are.
pub(crate) fn stay_on_tcp(desc: &Desc) {
    let _ = desc.moving.look(|lane| offer::give_up(lane.memory().offer()));
}

/// Takes an offer or a join back. False if the client has gone, or somebody else is at it. No lock may be held but `changing`.
fn give_up(fd: i32, desc: &'static Desc, stage: Stage) -> bool {
    // A fork does not come in between.
    let _changing = close::changing_of(fd, desc);
    if !desc.moving.step(stage, Stage::Busy) {
        return false;
    }
    if desc.moving.look(|lane| offer::give_up(lane.memory().offer())) == Some(false) {
        desc.moving.set(stage);
        return false;
    }
    release(desc);
    desc.moving.put_off();
    desc.moving.set(if stage == Stage::Offered { Stage::Client } else { Stage::Server });
    true
}

fn release(desc: &Desc) {
    if let Some(parts) = desc.moving.take() {
        give_back(&parts);
    }
}

/// Nobody uses the parts any more. The caller has `changing`.
fn give_back(parts: &Parts) {
    hidden::close_hidden(parts.anchor);
    parts.lane.spoil();
    pool::retire(parts.lane, End::Client, false);
    parts.side.retire(false);
}

/// What the app has said of lingering is the lane's from now on: nobody is to wait in the close of a socket that is out of sight. With a time of
/// none it stays the socket's, too, which resets what is under way.
fn stop_lingering(desc: &Desc, holder: i32) {
    if desc.draft.linger.load(Relaxed) > 1 {
        let _ =
            kernel::setsockopt(holder, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 0, l_linger: 0 });
    }
}

/// The last number of a candidate is about to be closed.
fn close_candidate(desc: &'static Desc) {
    let stage = desc.moving.stage();
    // Who is at the parts finds that the number leads elsewhere, and gives them back.
    if matches!(stage, Stage::Offered | Stage::Joined) && desc.moving.step(stage, Stage::Busy) {
        stay_on_tcp(desc);
        release(desc);
        desc.moving.set(Stage::None);
    }
}

//! The server's part: rules 4, 6, 7 and 10.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, flags, offer};
use beeline_meeting::agent::{Carrier, Said, is_there, page};
use beeline_stats::{Counter, Reason, Role};
use beeline_wire::agent::{Answer, Question};

use super::super::agent::{keep_alive, mode_of, name_of};
use super::super::route::OwnedAnchor;
use super::super::{admit, lane, pool, taking, trust};
use super::{LOOKS_MAX, PAUSE_NS, give_back, may_move, release, stop_lingering};
use crate::desc::{Desc, Kind, Parts, Stage, Way};
use crate::side::state;
use crate::stream;
use crate::thread::Section;
use crate::{changing, close, epoll, hidden, io, kernel, limits, slots, stats, table};
use beeline_meeting::pool::PooledLane;

/// How long the agent's answer is waited for.
const PATIENCE_NS: u64 = 30_000_000;

/// A call has received something, and is still inside.
pub(super) fn received(fd: i32, desc: &'static Desc, begun: u32) {
    let moving = &desc.moving;
    match moving.stage() {
        Stage::Server if moving.count_message() => is_due(fd, desc, begun),
        // Busy is who finds that he can take nothing back.
        Stage::Joined | Stage::Busy if moving.look(|_| ()).is_some() => follow_if_due(fd, desc),
        _ => {}
    }
}

/// Whether the client has given up a lane that this end has taken.
pub(super) fn is_left(desc: &'static Desc) -> bool {
    desc.moving.look(|lane| lane.memory().offer().load(Relaxed)) == Some(offer::WITHDRAWN)
}

/// So many messages have come that the client may be at the agent.
fn is_due(fd: i32, desc: &'static Desc, begun: u32) {
    let place = desc.moving.place.load(Relaxed).checked_sub(1);
    if is_there() && place.is_some_and(page::tells_of) && may_move(fd, desc) {
        ask(fd, desc, begun);
    }
}

#[cold]
fn ask(fd: i32, desc: &'static Desc, begun: u32) {
    let moving = &desc.moving;
    if !moving.step(Stage::Server, Stage::Busy) {
        return;
    }
    if desc.begun() != begun {
        return moving.set(Stage::Server);
    }
    let _section = Section::enter();
    let found = parts(fd, desc);
    // Nothing is closed, and nothing forked, between the last looks and the step.
    let _changing = changing::changing();
    if desc.begun() != begun {
        // Another thread has closed the number meanwhile, and this is another connection's by now.
        return found.iter().for_each(give_back);
    }
    if let Ok(parts) = found {
        moving.keep(&parts);
        moving.set(Stage::Switching);
        if join(fd, desc) {
            return moving.set(Stage::Joined);
        }
        release(desc);
    }
    moving.put_off();
    moving.set(Stage::Server);
}

/// Takes the lane, if nobody else is inside, nor the number closed (rule 6). The caller has `changing`.
fn join(fd: i32, desc: &'static Desc) -> bool {
    let alone = desc.moving.inside(Way::Reads) == 1 && desc.moving.inside(Way::Writes) == 0;
    let take = |lane: &'static PooledLane| {
        let memory = lane.memory();
        let taken = offer::take(memory.offer());
        if taken {
            memory.set_flags(End::Server, memory.flags(End::Server) | flags::TAKEN);
        }
        taken
    };
    alone && may_move(fd, desc) && desc.moving.look(take) == Some(true)
}

/// The lane that the agent has for a connection, ready to be used.
fn parts(fd: i32, desc: &'static Desc) -> Result<Parts, Reason> {
    if io::small_send_buffer().is_none() {
        return Err(Reason::KernelUnsupported);
    }
    let name = name_of(fd).ok_or(Reason::Internal)?;
    let (local, remote) = (name.server.address(), name.client.address());
    let carrier = Carrier::open()?;
    carrier.say(Question::Ask { socket: fd.cast_unsigned(), local, remote, moves: true })?;
    let Said { answer, besides, descriptor } = carrier.answer_soon(PATIENCE_NS, mode_of(Role::Server, local))?;
    let (Answer::Lane, Some(parcel)) = (answer, descriptor) else { return Err(Reason::CameOverTcp) };
    if !besides.own_user && !trust::may_share_with_anybody() {
        return Err(Reason::ForeignUser);
    }
    let _changing = changing::changing();
    if !may_move(fd, desc) {
        return Err(Reason::SharedBeforeConnect);
    }
    let parcel = OwnedAnchor(parcel.keep().ok_or(Reason::CameOverTcp)?);
    let lane = match admit::lane_of(parcel.0) {
        Ok((lane, None)) => lane,
        Ok((lane, Some(_))) => {
            taking::give_back(lane);
            return Err(Reason::PeerRefused);
        }
        Err(_) => return Err(Reason::CameOverTcp),
    };
    lane.spend();
    let ready = || {
        let twin = hidden::hidden_twin(fd).ok_or(Reason::DescriptorsShort)?;
        lane.hold(twin);
        let anchor = hidden::hidden_twin(parcel.0).ok_or(Reason::DescriptorsShort)?;
        let side = pool::side().map_err(limits::memory_reason).inspect_err(|_| hidden::close_hidden(anchor))?;
        Ok((anchor, side))
    };
    let (anchor, side) = ready().inspect_err(|_| taking::give_back(lane))?;
    trust::refuse_rights(anchor);
    let known = side.state;
    known.holders.store(1, Relaxed);
    known.family.store(desc.family.load(Relaxed), Relaxed);
    known.local.set(local);
    known.remote.set(remote);
    known.rx.begin_armed();
    Ok(Parts { lane, anchor, side, cuts: besides.cuts })
}

/// Follows a client that has gone, once all was read that came before. The caller is inside, as one who reads.
fn follow_if_due(fd: i32, desc: &'static Desc) {
    // Those who write are out of the kernel soon, and nobody else reads (rule 7); but a call that was left in the middle stays in for ever. If
    // this one gives up the next one tries again.
    for _ in 0..LOOKS_MAX {
        match desc.moving.stage() {
            Stage::Joined if !io::crossing::is_overdue(fd, desc) || follow(fd, desc, 1) => return,
            Stage::Joined | Stage::Busy | Stage::Switching => kernel::sleep_ns(PAUSE_NS),
            _ => return,
        }
    }
}

/// Puts the lane in the socket's place, where the client has gone before (rule 10). `mine` is how many calls of the caller's are inside, as
/// readers. False if others are, or somebody else is at it.
pub(super) fn follow(fd: i32, desc: &'static Desc, mine: u32) -> bool {
    let moving = &desc.moving;
    let _section = Section::enter();
    let _changing = close::changing_of(fd, desc);
    if !table::leads_to(fd, desc) || desc.kind() != Kind::Tcp || !moving.step(Stage::Joined, Stage::Switching) {
        return false;
    }
    if moving.inside(Way::Reads) > mine || moving.inside(Way::Writes) != 0 {
        moving.set(Stage::Joined);
        return false;
    }
    let Some(parts) = moving.take() else {
        moving.set(Stage::None);
        return false;
    };
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    if place(fd, desc, &parts) {
        hidden::close_hidden(parts.anchor);
        slots::open_slot(desc, None);
        stats::count(Counter::ConnectionsAcceleratedServer, 1);
        stats::count(Counter::ConnectionsMoved, 1);
    } else {
        // The client is not on TCP any more: it finds the lane closed.
        give_back(&parts);
        let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
    }
    moving.set(Stage::None);
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    true
}

fn place(fd: i32, desc: &'static Desc, parts: &Parts) -> bool {
    let (memory, side) = (parts.lane.memory(), parts.side.state);
    let (Some(holder), Some(theirs)) = (parts.lane.holder(), memory.seam(End::Client)) else { return false };
    let Some(sent) = stream::sent(holder, End::Server) else { return false };
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32 & libc::O_NONBLOCK;
    let _ = kernel::fcntl(parts.anchor, libc::F_SETFL, mode as usize);
    // Whatever was set on the socket: what lanes do not have came too late to be heard.
    lane::carry_draft(&desc.draft, side);
    let owned = desc.draft.owned.load(Relaxed);
    if owned {
        lane::carry_owner(fd, parts.anchor);
    }
    if !table::put_under(fd, desc, parts.anchor) {
        return false;
    }
    side.nonblock.store(u32::from(mode != 0), Relaxed);
    side.mark(state::MET | state::MOVED | if parts.cuts { state::CUTS } else { 0 });
    if !stream::is_read_up_to(holder, theirs) {
        side.cross(true);
    }
    memory.set_seam(End::Server, sent.written);
    stop_lingering(desc, holder);
    lane::begin_lane(desc, fd, parts.lane, parts.side, End::Server);
    if parts.cuts {
        keep_alive(holder);
    }
    if owned {
        io::own(fd);
    }
    true
}

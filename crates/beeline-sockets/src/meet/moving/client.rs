//! The client's part: rules 3 and 8.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, flags, offer};
use beeline_meeting::agent::Carrier;
use beeline_meeting::agent::passing::Passing;
use beeline_shm::sys::call;
use beeline_stats::{Counter, Reason};
use beeline_wire::Endpoint;
use beeline_wire::agent::Question;

use super::super::agent::{Asked, Prepared, answer, confirm};
use super::super::{client, lane, lookup, trust};
use super::{give_back, give_up, may_move, stop_lingering};
use crate::desc::{Desc, Kind, Parts, Stage, Way};
use crate::side::state;
use crate::stream::{self, Sent};
use crate::thread::Section;
use crate::{Errno, changing, close, epoll, guards, hidden, io, kernel, limits, slots, stats, table};
use beeline_meeting::pool::PooledLane;

/// How long the agent's answers are waited for.
const PATIENCE_NS: u64 = 10_000_000;
/// Bytes of a call that go over TCP at most when the client goes.
const TRIGGER_BYTES: usize = 512;
/// Tries to send the rest of the trigger.
const TRIES_MAX: u32 = 200;

/// So many messages have gone that the agent is to be asked, or that somebody should have taken the lane.
#[cold]
pub(super) fn is_due(fd: i32, desc: &'static Desc, begun: u32) {
    let moving = &desc.moving;
    if !may_move(fd, desc) {
        return;
    }
    if moving.stage() == Stage::Offered {
        // One that is taken is on its way.
        if moving.look(is_taken) == Some(false) {
            give_up(fd, desc, Stage::Offered);
        }
        return;
    }
    if !moving.step(Stage::Client, Stage::Busy) {
        return;
    }
    if desc.begun() != begun {
        return moving.set(Stage::Client);
    }
    let _section = Section::enter();
    let found = offered(fd, desc);
    let _changing = changing::changing();
    if desc.begun() != begun {
        // Another thread has closed the number meanwhile, and this is another connection's by now.
        return found.iter().for_each(take_back);
    }
    moving.put_off();
    match found {
        Ok(parts) if table::leads_to(fd, desc) => {
            moving.keep(&parts);
            moving.set(Stage::Offered);
        }
        found => {
            found.iter().for_each(take_back);
            moving.set(Stage::Client);
        }
    }
}

/// Gives back what nobody has seen but the agent. The caller has `changing`.
fn take_back(parts: &Parts) {
    let _ = offer::give_up(parts.lane.memory().offer());
    give_back(parts);
}

/// Whether a server has taken the lane, and has not given it up.
fn is_taken(lane: &PooledLane) -> bool {
    let memory = lane.memory();
    memory.flags(End::Server) & flags::TAKEN != 0 && memory.offer().load(Relaxed) == offer::TAKEN
}

/// A lane that is at the agent, for the connection of this socket.
fn offered(fd: i32, desc: &'static Desc) -> Result<Parts, Reason> {
    if !trust::may_share_with_anybody() {
        return Err(Reason::ForeignUser);
    }
    if io::small_send_buffer().is_none() {
        return Err(Reason::KernelUnsupported);
    }
    if limits::address_space_is_limited() || !beeline_meeting::agent::is_there() {
        return Err(Reason::AddressSpaceLimited);
    }
    let destination = kernel::getpeername(fd).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
    let destination = Endpoint::new(destination).address();
    lookup::afar(destination).met?;
    // By a number of ours: another thread may close the app's, and open something else there. It becomes the holder.
    let twin = Passing::make(|| hidden::hidden_twin(fd).ok_or(Reason::DescriptorsShort))?.ok_or(Reason::AgentFull)?;
    let carrier = Carrier::open()?;
    carrier.say(Question::Query { destination })?;
    let prepared = Prepared::make(desc, destination, false)?;
    let (anchor, cuts) = match answer(&carrier, destination, PATIENCE_NS) {
        Ok(Asked::Lane { anchor, cuts }) => (anchor, cuts),
        Ok(Asked::Probe) => {
            prepared.put_aside();
            confirm(&carrier, twin.fd(), PATIENCE_NS, true);
            return Err(Reason::AgentUnknown);
        }
        Err(reason) => {
            prepared.put_aside();
            return Err(reason);
        }
    };
    let offered = prepared.say_hello(fd, desc, anchor, cuts)?;
    confirm(&carrier, twin.fd(), PATIENCE_NS, true);
    let _changing = changing::changing();
    let local = twin.fd().and_then(|socket| kernel::getsockname(socket).ok()?.to_internet());
    let (Some(local), Some(_), Some(_)) = (local, offered.anchor.fd(), twin.fd()) else {
        offered.take_back();
        return Err(Reason::SharedBeforeConnect);
    };
    offered.side.state.local.set(Endpoint::new(local).address());
    let (lane, side) = (offered.lane, offered.side);
    // Both were there a moment ago, and nobody forks meanwhile.
    let anchor = hidden::hide(offered.anchor.keep().unwrap_or(-1));
    lane.hold(twin.keep().unwrap_or(-1));
    Ok(Parts { lane, anchor, side, cuts })
}

/// See [`crate::operations::Operations::before_send`].
///
/// # Safety
/// The address must be readable for that many bytes, as for send(2).
pub(super) unsafe fn before_send(fd: i32, desc: &'static Desc, bytes: *const u8, length: usize, how: i32) -> usize {
    let moving = &desc.moving;
    if moving.stage() != Stage::Offered || length == 0 || how & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) != 0 {
        return 0;
    }
    if moving.look(is_taken) != Some(true) || !may_move(fd, desc) {
        return 0;
    }
    let trigger = length.min(TRIGGER_BYTES);
    let _section = Section::enter();
    if go(fd, desc, bytes, trigger) { trigger } else { 0 }
}

/// Goes over to the lane with the first bytes of a call (rule 8). False if the connection stays on TCP as yet.
fn go(fd: i32, desc: &'static Desc, bytes: *const u8, trigger: usize) -> bool {
    let Some(sent) = switch(fd, desc, bytes, trigger) else { return false };
    // The kernel was short of memory. Nobody else sends over TCP, and nobody is kept from anything meanwhile.
    if sent < trigger
        && let Some(pin) = guards::pin(fd, desc)
        && let Some(holder) = desc.pooled().and_then(PooledLane::holder)
    {
        let rest = trigger.saturating_sub(sent);
        if pin.while_waiting(|| send_trigger(holder, bytes.wrapping_add(sent), rest, TRIES_MAX)) != Some(rest) {
            crate::side::reset(desc.side(), libc::ECONNRESET);
        }
    }
    true
}

/// Puts the lane in the socket's place. How much of the trigger was sent then; `None` if the connection stays on TCP as yet.
fn switch(fd: i32, desc: &'static Desc, bytes: *const u8, trigger: usize) -> Option<usize> {
    let moving = &desc.moving;
    let _changing = close::changing_of(fd, desc);
    if !may_move(fd, desc) || desc.kind() != Kind::Tcp || !moving.step(Stage::Offered, Stage::Switching) {
        return None;
    }
    let alone = moving.inside(Way::Reads) == 0 && moving.inside(Way::Writes) == 0;
    let written = match stream::sent(fd, End::Client) {
        Some(Sent { written, pending: 0 }) if alone && stream::is_established(fd) => written,
        _ => {
            moving.set(Stage::Offered);
            return None;
        }
    };
    let Some(parts) = moving.take() else {
        moving.set(Stage::Client);
        return None;
    };
    if client::catch_up(desc, parts.side.state).is_err() {
        give_back_on_tcp(desc, &parts);
        return None;
    }
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    let went = place(fd, desc, &parts, written.saturating_add(trigger as u64), (bytes, trigger));
    if went.is_some() {
        hidden::close_hidden(parts.anchor);
        moving.set(Stage::None);
        slots::open_slot(desc, None);
        stats::count(Counter::ConnectionsAcceleratedClient, 1);
        stats::count(Counter::ConnectionsMoved, 1);
    } else {
        give_back_on_tcp(desc, &parts);
    }
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    went
}

fn give_back_on_tcp(desc: &'static Desc, parts: &Parts) {
    take_back(parts);
    desc.moving.put_off();
    desc.moving.set(Stage::Client);
}

/// Puts the anchor in the socket's place, and sends the trigger over the socket, as much of it as goes at once.
fn place(
    fd: i32,
    desc: &'static Desc,
    parts: &Parts,
    seam: u64,
    (bytes, trigger): (*const u8, usize),
) -> Option<usize> {
    let (memory, side) = (parts.lane.memory(), parts.side.state);
    let holder = parts.lane.holder()?;
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32 & libc::O_NONBLOCK;
    let _ = kernel::fcntl(parts.anchor, libc::F_SETFL, mode as usize);
    let owned = desc.draft.owned.load(Relaxed);
    if owned {
        lane::carry_owner(fd, parts.anchor);
    }
    if !table::put_under(fd, desc, parts.anchor) {
        return None;
    }
    memory.set_seam(End::Client, seam);
    if !offer::go(memory.offer()) {
        // The server has taken it back. The socket goes where it was a moment ago.
        table::put_under(fd, desc, holder);
        return None;
    }
    let sent = send_trigger(holder, bytes, trigger, 1);
    stop_lingering(desc, holder);
    side.nonblock.store(u32::from(mode != 0), Relaxed);
    side.mark(state::MET | state::MOVED | state::TAKEN | if parts.cuts { state::CUTS } else { 0 });
    side.cross(true);
    lane::begin_lane(desc, fd, parts.lane, parts.side, End::Client);
    if sent.is_none() {
        crate::side::reset(side, libc::ECONNRESET);
    }
    if owned {
        io::own(fd);
    }
    Some(sent.unwrap_or(trigger))
}

/// Sends the trigger, in so many tries, a millisecond apart: there is room for it, since nothing is pending, but the kernel may be short of memory. How
/// many bytes went; `None` if the connection has ended.
fn send_trigger(holder: i32, bytes: *const u8, length: usize, tries: u32) -> Option<usize> {
    let (mut sent, flags) = (0usize, (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize);
    for attempt in 1..=tries {
        let args = [holder as usize, bytes as usize + sent, length - sent, flags, 0, 0];
        // SAFETY: readable for that many bytes, as the caller of `before_send` guarantees; else the kernel says so.
        match unsafe { call(libc::SYS_sendto, args) } {
            Ok(count) => sent += count,
            Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) if attempt < tries => kernel::sleep_ms(),
            Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR)) => {}
            Err(_) => return None,
        }
        if sent >= length {
            break;
        }
    }
    Some(sent)
}

//! The client's part of meeting through the agent: rules 1 to 9 of the design.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::End;
use beeline_meeting::agent::{Carrier, Said, reason_of};
use beeline_stats::Reason;
use beeline_wire::agent::{Answer, Question};
use beeline_wire::{ConnName, Endpoint};

use super::super::client;
use super::super::lane::{carry_draft, carry_owner};
use super::super::pool::{self, PooledLane};
use super::super::route::{Anchor, Route};
use super::super::{greeting, late, lookup, trust};
use super::Made;
use crate::desc::Desc;
use crate::kernel::{self, SockAddr, tcp_state};
use crate::side::{BEING_STORED, option_of, state};
use crate::wait::{self, Woken};
use crate::{Errno, changing, epoll, hidden, io, limits, process, table};

/// How long a `connect` waits for the agent's answer, and how long one that must not block does. An agent that runs answers
/// within microseconds; where there is more work than CPUs it may wait for its turn.
const PATIENCE_NS: u64 = 200_000_000;
const BRIEF_PATIENCE_NS: u64 = 10_000_000;
/// How long the handshake may take. On one host it is over when the call returns, unless CPUs are short.
const HANDSHAKE_NS: u64 = 2_000_000;
/// In the pool the lanes of this module stand for one listener, with a cookie that the kernel gives to none. None of
/// them is ever used again.
const AGENT_COOKIE: u64 = u64::MAX - 1;

const TCP_ESTABLISHED: u8 = 1;
const TCP_SYN_SENT: u8 = 2;

/// Connects over TCP, with a lane that the server is offered through the agent.
///
/// # Errors
/// Why the kernel has to connect.
pub(in crate::meet) fn attempt(fd: i32, desc: &'static Desc, route: &Route, nonblocking: bool) -> Result<Made, Reason> {
    if route.explicit {
        return Err(Reason::ExplicitBindUnsupported);
    }
    if !trust::may_share_with_anybody() {
        return Err(Reason::ForeignUser);
    }
    let side = pool::side().map_err(limits::memory_reason)?;
    let made = attempt_with(fd, desc, route, nonblocking, &side);
    match made {
        Ok(Asked { carrier, socket, anchor, cuts }) => {
            let offer = prepare(fd, desc, route, nonblocking, anchor, side, cuts)?;
            let shaken = shake_hands(&socket, desc, route.destination, nonblocking);
            offer.settle(fd, desc, &carrier, socket, shaken, nonblocking)
        }
        Err(reason) => {
            side.retire(true);
            Err(reason)
        }
    }
}

/// What a query has brought.
struct Asked {
    /// Over which the agent will be told that the connection stands.
    carrier: Carrier,
    /// The socket that is under the app's numbers now, by a number of ours: another thread may close the app's, and open
    /// something else there.
    socket: Anchor,
    anchor: Anchor,
    cuts: bool,
}

/// Asks the agent, and puts the socket with its number in the place of the app's.
///
/// The agent never gets the app's own socket, but a new one like it (rule 3): one that is late, or dies in the middle, then
/// has nothing that anybody will use.
fn attempt_with(
    fd: i32,
    desc: &'static Desc,
    route: &Route,
    nonblocking: bool,
    side: &pool::Side,
) -> Result<Asked, Reason> {
    let fresh = like(fd, desc, side)?;
    let carrier = Carrier::open()?;
    let patience_ns = if nonblocking { BRIEF_PATIENCE_NS } else { PATIENCE_NS };
    carrier.say(Question::Query { destination: route.destination }, Some(fresh.0))?;
    let Said { answer, besides, descriptor } = carrier.answer(patience_ns)?;
    match (answer, descriptor) {
        (Answer::Likely, Some(anchor)) => {
            let anchor = Anchor(anchor.give_away());
            put_in_place(fd, desc, &fresh)?;
            Ok(Asked { carrier, socket: fresh, anchor, cuts: besides.cuts })
        }
        _ => {
            let reason = reason_of(answer);
            if reason != Reason::AgentFull {
                lookup::note_unmet(route.destination, reason);
            }
            if answer == Answer::Probe {
                put_in_place(fd, desc, &fresh)?;
            }
            Err(reason)
        }
    }
}

/// A lane and its anchor, whose other end the agent has.
struct Offered {
    anchor: Anchor,
    lane: &'static PooledLane,
    side: pool::Side,
}

/// How a TCP connection was begun.
enum Shaken {
    /// It stands.
    Stands,
    /// It is under way.
    Pending,
    /// The kernel has said this.
    Failed(Errno),
}

/// Makes the lane, and says hello to whom the agent will give the other end.
fn prepare(
    fd: i32,
    desc: &'static Desc,
    route: &Route,
    nonblocking: bool,
    anchor: Anchor,
    side: pool::Side,
    cuts: bool,
) -> Result<Offered, Reason> {
    let there = Endpoint::new(route.destination);
    // Where it comes from is known when the kernel has connected.
    let name = ConnName { client: there, server: there };
    let given = if io::small_send_buffer().is_none() {
        Err(Reason::KernelUnsupported)
    } else if !table::may_be_put_under(fd, desc, anchor.0) {
        Err(Reason::DescriptorsShort)
    } else {
        side.state.mark(state::MET | if cuts { state::CUTS } else { 0 });
        client::prepare(side.state, desc, &name, AGENT_COOKIE, nonblocking)
            .and_then(|offer| greeting::say_hello(&anchor, offer, None))
    };
    match given {
        Ok(lane) => {
            lane.spoil();
            trust::refuse_rights(anchor.0);
            Ok(Offered { anchor, lane, side })
        }
        Err(reason) => {
            side.retire(true);
            Err(reason)
        }
    }
}

/// Makes the TCP connection, without blocking whatever the socket is (rule 5). No lock is held.
fn shake_hands(socket: &Anchor, desc: &'static Desc, destination: SocketAddr, nonblocking: bool) -> Shaken {
    let fd = socket.0;
    let address = SockAddr::internet(destination, desc.family.load(Relaxed) as i32);
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    if !nonblocking {
        let _ = kernel::fcntl(fd, libc::F_SETFL, mode | libc::O_NONBLOCK as usize);
    }
    let said = kernel::connect(fd, &address);
    if !nonblocking {
        let _ = kernel::fcntl(fd, libc::F_SETFL, mode);
    }
    match said {
        Ok(_) => return Shaken::Stands,
        Err(Errno(libc::EINPROGRESS)) => {}
        Err(errno) => return Shaken::Failed(errno),
    }
    let deadline = kernel::now_ns().saturating_add(HANDSHAKE_NS);
    loop {
        match tcp_state(fd) {
            Some(TCP_ESTABLISHED) => return Shaken::Stands,
            Some(TCP_SYN_SENT) => {}
            _ => return Shaken::Pending,
        }
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        match wait::sleep(&mut fds, Some(deadline), None) {
            Woken::Ready(_) => {}
            Woken::Signal { .. } if kernel::now_ns() < deadline => {}
            _ => return Shaken::Pending,
        }
    }
}

impl Offered {
    /// Puts the anchor in the TCP socket's place if the connection stands; else takes the lane back.
    ///
    /// Until the agent hears that the anchor is in its place it gives the other end to nobody (rule 7). So whatever fails
    /// before leaves a TCP connection of which nobody else thinks otherwise, and nothing can fail after.
    fn settle(
        self,
        fd: i32,
        desc: &'static Desc,
        carrier: &Carrier,
        socket: Anchor,
        shaken: Shaken,
        nonblocking: bool,
    ) -> Result<Made, Reason> {
        let reason = match shaken {
            Shaken::Stands => {
                let _changing = changing::changing();
                match self.may_replace(fd, desc, &socket) {
                    Ok(local) => {
                        // Below the lane from now on, and what the connection goes on over if nobody takes that.
                        self.lane.hold(hidden::hide(socket.give_away()));
                        return self.replace(fd, desc, carrier, local, nonblocking);
                    }
                    Err(reason) => reason,
                }
            }
            Shaken::Pending => Reason::AgentPending,
            Shaken::Failed(Errno(errno)) => {
                self.take_back();
                return Ok(Made::Answered(Reason::NoListener, errno));
            }
        };
        if !self.take_back() {
            // An agent that has broken rule 7. Somebody reads from a lane to which nobody will write: no path is right.
            let _ = kernel::connect(socket.0, &SockAddr::empty());
            return Ok(Made::Answered(reason, libc::ECONNRESET));
        }
        // Who blocks is connected by a second call, which the kernel takes for a part of the first.
        if nonblocking { Ok(Made::Answered(reason, libc::EINPROGRESS)) } else { Err(reason) }
    }

    /// Whether the number still leads to the socket, and no other process has it; the connection's own address. The caller
    /// holds `changing::changing`.
    fn may_replace(&self, fd: i32, desc: &'static Desc, socket: &Anchor) -> Result<SocketAddr, Reason> {
        if !table::leads_to(fd, desc) || !process::accelerates() {
            return Err(process::stopped().unwrap_or(Reason::Internal));
        }
        if desc.born.load(Relaxed) != crate::forks() {
            return Err(Reason::SharedBeforeConnect);
        }
        let local = kernel::getsockname(socket.0).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
        let local = Endpoint::new(local).address();
        self.side.state.local.set(local);
        Ok(local)
    }

    fn replace(
        self,
        fd: i32,
        desc: &'static Desc,
        carrier: &Carrier,
        local: SocketAddr,
        nonblocking: bool,
    ) -> Result<Made, Reason> {
        match client::install(fd, desc, &self.anchor, self.lane, self.side, nonblocking) {
            Ok(()) => {
                // If the agent does not get this, the offer is one that nobody takes.
                let _ = carrier.say(Question::Confirm { local }, None);
                Ok(Made::Lane { nonblocking })
            }
            // The TCP connection stands.
            Err(reason) if nonblocking => Ok(Made::Answered(reason, libc::EINPROGRESS)),
            Err(reason) => Err(reason),
        }
    }

    /// The connection is left to TCP. False if somebody has the lane.
    fn take_back(self) -> bool {
        let is_free = beeline_lane::offer::withdraw(self.lane.memory().offer());
        pool::retire(self.lane, End::Client, false);
        self.side.retire(true);
        is_free
    }
}

/// A new TCP socket like the app's, which is not connected, nor bound.
fn like(fd: i32, desc: &'static Desc, side: &pool::Side) -> Result<Anchor, Reason> {
    /// In the names of options that are no integers, of which the draft has parts.
    const PART: i32 = 0x8000;
    let is_integer = |key: u32| key & BEING_STORED == 0 && option_of(key).1 & PART == 0;
    if !desc.draft.options.iter().map(|option| option.key.load(Relaxed)).all(is_integer) {
        return Err(Reason::OptionUnsupported);
    }
    let mode = kernel::fcntl(fd, libc::F_GETFL, 0).map_err(|_| Reason::Internal)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let new = match kernel::socket(desc.family.load(Relaxed) as i32, kind, libc::IPPROTO_TCP) {
        Ok(new) => Anchor(new as i32),
        Err(Errno(libc::EMFILE | libc::ENFILE)) => return Err(Reason::DescriptorsShort),
        Err(_) => return Err(Reason::SystemCallDenied),
    };
    if kernel::namespace(new.0) != kernel::namespace(fd) {
        return Err(Reason::OtherNamespace);
    }
    carry_draft(&desc.draft, side.state);
    late::carry_options(side.state, new.0);
    let _ = kernel::fcntl(new.0, libc::F_SETFL, mode);
    Ok(new)
}

/// Puts a socket that is not connected in the place of the app's, which is not either.
fn put_in_place(fd: i32, desc: &'static Desc, new: &Anchor) -> Result<(), Reason> {
    let _changing = changing::changing();
    if !table::leads_to(fd, desc) || !process::accelerates() {
        return Err(process::stopped().unwrap_or(Reason::Internal));
    }
    // A fork that is not counted now waits for us.
    if desc.born.load(Relaxed) != crate::forks() {
        return Err(Reason::SharedBeforeConnect);
    }
    if !table::may_be_put_under(fd, desc, new.0) {
        return Err(Reason::DescriptorsShort);
    }
    carry_owner(fd, new.0);
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    let done = table::put_under(fd, desc, new.0);
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    if done { Ok(()) } else { Err(Reason::Internal) }
}

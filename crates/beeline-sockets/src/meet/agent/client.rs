//! The client's part of meeting through the agent: rules 1 to 9 of the design.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::End;
use beeline_meeting::agent::passing::Passing;
use beeline_meeting::agent::{Carrier, Said, reason_of};
use beeline_shm::Fd;
use beeline_stats::{Reason, Role};
use beeline_wire::agent::{Answer, Question};
use beeline_wire::{ConnName, Endpoint};

use super::super::client;
use super::super::connecting::Connecting;
use super::super::pool::{self, PooledLane};
use super::super::route::Route;
use super::super::{greeting, lookup, trust};
use super::Made;
use crate::desc::Desc;
use crate::kernel::{self, SockAddr, tcp_state};
use crate::linux::{TCP_ESTABLISHED, TCP_SYN_SENT};
use crate::side::state;
use crate::thread::Section;
use crate::wait;
use crate::{Errno, changing, hidden, io, limits, process, table};

/// How long a `connect` waits for the agent's answer, and how long one that must not block does. An agent that runs
/// answers within microseconds; where there is more work than CPUs it may wait for its turn.
const PATIENCE_NS: u64 = 200_000_000;
const BRIEF_PATIENCE_NS: u64 = 10_000_000;
/// How long the handshake may take. On one host it is over when the call returns, unless CPUs are short.
const HANDSHAKE_NS: u64 = 2_000_000;
/// In the pool the lanes of this module stand for one listener, with a cookie that the kernel gives to none. None of
/// them is ever used again.
const AGENT_COOKIE: u64 = u64::MAX - 1;

/// Why there is no lane, and whether the kernel was asked to connect: then it is the kernel's connection for good.
pub(in crate::meet) struct Unmet {
    pub reason: Reason,
    pub is_begun: bool,
}

impl From<Reason> for Unmet {
    fn from(reason: Reason) -> Self {
        Self { reason, is_begun: false }
    }
}

fn begun(reason: Reason) -> Unmet {
    Unmet { reason, is_begun: true }
}

/// Connects over TCP, with a lane that the server is offered through the agent.
///
/// # Errors
/// Why the kernel has to connect.
pub(in crate::meet) fn attempt(ours: Connecting, route: &Route, nonblocking: bool) -> Result<Made, Unmet> {
    let Connecting { fd, desc, .. } = ours;
    if !trust::may_share_with_anybody() {
        return Err(Reason::ForeignUser.into());
    }
    io::small_send_buffer()?;
    if !pool::may_hold() {
        return Err(Reason::DescriptorsShort.into());
    }
    // A handler that jumped out of here would leave connection and lane behind.
    let _section = Section::enter();
    if limits::address_space_is_limited() {
        return Err(Reason::AddressSpaceLimited.into());
    }
    // What is connected is reached by a number of ours: another thread may close the app's, and open something else
    // there.
    let twin = Passing::make(|| twin_of(ours))?.ok_or(Reason::AgentFull)?;
    let carrier = Carrier::open_or(|| lookup::note_unmet(route.destination, Reason::AgentFull))?;
    carrier.say(Question::Query { destination: route.destination })?;
    // The lane is made while the agent is at its answer.
    let prepared = Prepared::make(desc, route, nonblocking).inspect_err(|reason| {
        // The answer is not read: a program that cannot make lanes is not to ask again and again.
        if *reason != Reason::DescriptorsShort {
            lookup::note_unmet(route.destination, *reason);
        }
    })?;
    match answer(&carrier, route, nonblocking) {
        Ok(Asked::Lane { anchor, cuts }) => {
            let offered = prepared.say_hello(fd, desc, anchor, cuts)?;
            let shaken = shake_hands(&twin, desc, route.destination, nonblocking);
            offered.settle(ours, &carrier, twin, shaken, nonblocking)
        }
        Ok(Asked::Probe) => {
            prepared.put_aside();
            probe(desc, &carrier, &twin, route.destination, nonblocking)
        }
        Err(reason) => {
            prepared.put_aside();
            Err(reason.into())
        }
    }
}

fn patience_ns(nonblocking: bool) -> u64 {
    if nonblocking { BRIEF_PATIENCE_NS } else { PATIENCE_NS }
}

fn twin_of(ours: Connecting) -> Result<i32, Reason> {
    if !ours.still() {
        return Err(Reason::Internal);
    }
    hidden::hidden_twin(ours.fd).ok_or(Reason::DescriptorsShort)
}

/// What a query has brought.
enum Asked {
    /// The client's end of a lane, and whether that ends when the TCP connection does.
    Lane { anchor: Passing, cuts: bool },
    /// Nobody is known there; the agent will learn from the connection.
    Probe,
}

fn answer(carrier: &Carrier, route: &Route, nonblocking: bool) -> Result<Asked, Reason> {
    let Said { answer, besides, descriptor } =
        carrier.answer_soon(patience_ns(nonblocking), super::mode_of(Role::Client, route.destination))?;
    let asked = match (answer, descriptor) {
        (Answer::Likely, Some(anchor)) => Asked::Lane { anchor, cuts: besides.cuts },
        (Answer::Probe, _) => Asked::Probe,
        _ => {
            let reason = reason_of(answer);
            lookup::note_unmet(route.destination, reason);
            return Err(reason);
        }
    };
    lookup::note_room(route.destination);
    Ok(asked)
}

/// Connects over TCP, and shows the agent where that comes out (rule 20).
fn probe(
    desc: &'static Desc,
    carrier: &Carrier,
    twin: &Passing,
    destination: SocketAddr,
    nonblocking: bool,
) -> Result<Made, Unmet> {
    match shake_hands(twin, desc, destination, nonblocking) {
        Shaken::Failed(Errno(errno)) => return Ok(Made::Answered(Reason::AgentUnknown, errno)),
        // The first byte must not have gone when the agent looks, so it is waited for.
        Shaken::Stands => confirm(carrier, twin.fd(), nonblocking),
        Shaken::Pending => {}
    }
    left_to_kernel(Reason::AgentUnknown, nonblocking)
}

/// The kernel has been asked to connect, and goes on with it.
fn left_to_kernel(reason: Reason, nonblocking: bool) -> Result<Made, Unmet> {
    // Who blocks is connected by a second call, which the kernel takes for a part of the first.
    if nonblocking { Ok(Made::Answered(reason, libc::EINPROGRESS)) } else { Err(begun(reason)) }
}

/// Tells the agent of the connection that stands, and waits until it knows it (rule 7).
fn confirm(carrier: &Carrier, socket: Option<i32>, nonblocking: bool) {
    let name = |fd| Some((kernel::getsockname(fd).ok()?.to_internet()?, kernel::getpeername(fd).ok()?.to_internet()?));
    let Some((local, remote)) = socket.and_then(name) else { return };
    let socket = socket.unwrap_or(-1).cast_unsigned();
    // If the agent does not get this, or does not believe it, the offer is one that nobody takes.
    let _ = carrier
        .say(Question::Confirm { socket, local, remote })
        .and_then(|()| carrier.answer(patience_ns(nonblocking)));
}

/// A lane and its anchor, whose other end the agent has.
struct Offered {
    anchor: Passing,
    lane: &'static PooledLane,
    side: pool::Side,
    /// As in [`Prepared`].
    born: u32,
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

/// A lane that nobody has seen, and the client's side of it.
struct Prepared {
    offer: pool::Offer,
    side: pool::Side,
    /// The forks of this process when both were made. Who was forked since then has the side, too, whatever becomes of
    /// it here.
    born: u32,
}

impl Prepared {
    fn make(desc: &'static Desc, route: &Route, nonblocking: bool) -> Result<Prepared, Reason> {
        let there = Endpoint::new(route.destination);
        // Where it comes from is known when the kernel has connected.
        let name = ConnName { client: there, server: there };
        // No fork comes between the two.
        let _changing = changing::changing();
        let born = crate::forks();
        let side = pool::side().map_err(limits::memory_reason)?;
        match client::prepare(side.state, desc, &name, AGENT_COOKIE, nonblocking) {
            Ok(offer) => {
                client::arm_server(offer.lane.memory());
                Ok(Prepared { offer: offer.step_aside(), side, born })
            }
            Err(reason) => {
                side.put_back(born);
                Err(reason)
            }
        }
    }

    /// There is nobody to offer it to.
    fn put_aside(self) {
        // A fork neither comes between what the pool sees and what it does.
        let _changing = changing::changing();
        self.offer.withdraw();
        self.side.put_back(self.born);
    }

    /// Says hello to whom the agent will give the other end.
    fn say_hello(self, fd: i32, desc: &'static Desc, anchor: Passing, cuts: bool) -> Result<Offered, Reason> {
        let _changing = changing::changing();
        let number = match anchor.fd() {
            None => Err(Reason::SharedBeforeConnect),
            Some(number) if !table::may_be_put_under(fd, desc, number) => Err(Reason::DescriptorsShort),
            Some(number) => Ok(number),
        };
        let number = match number {
            Ok(number) => number,
            Err(reason) => {
                self.put_aside();
                return Err(reason);
            }
        };
        let Prepared { offer, side, born } = self;
        side.state.mark(state::MET | if cuts { state::CUTS } else { 0 });
        match greeting::say_hello(number, offer, None) {
            Ok(lane) => {
                trust::refuse_rights(number);
                lane.spend();
                Ok(Offered { anchor, lane, side, born })
            }
            Err(reason) => {
                side.put_back(born);
                Err(reason)
            }
        }
    }
}

/// Makes the TCP connection, without blocking whatever the socket is (rule 5). No lock is held.
fn shake_hands(twin: &Passing, desc: &'static Desc, destination: SocketAddr, nonblocking: bool) -> Shaken {
    let Some(fd) = twin.fd() else { return Shaken::Pending };
    let address = SockAddr::internet(destination, desc.family.load(Relaxed) as i32);
    let mode = kernel::status_flags(fd).unwrap_or(0);
    if !nonblocking {
        let _ = kernel::set_status_flags(fd, mode | libc::O_NONBLOCK);
    }
    let said = kernel::connect(fd, &address);
    if !nonblocking {
        let _ = kernel::set_status_flags(fd, mode);
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
        if wait::for_events(fd, libc::POLLOUT, deadline) == 0 {
            return Shaken::Pending;
        }
    }
}

impl Offered {
    /// Puts the anchor in the TCP socket's place if the connection stands; else takes the lane back.
    ///
    /// Until the agent hears that the anchor is in its place it gives the other end to nobody (rule 7). So whatever
    /// fails before leaves a TCP connection of which nobody else thinks otherwise, and nothing can fail after.
    fn settle(
        self,
        ours: Connecting,
        carrier: &Carrier,
        twin: Passing,
        shaken: Shaken,
        nonblocking: bool,
    ) -> Result<Made, Unmet> {
        let reason = match shaken {
            Shaken::Stands => {
                let placed = {
                    let _changing = changing::changing();
                    match self.may_replace(ours, &twin) {
                        Ok(()) => Ok(self.place(ours.fd, ours.desc, twin, nonblocking)),
                        Err(reason) => Err((reason, self)),
                    }
                };
                match placed {
                    Ok(Ok(holder)) => {
                        // A client that dies with bytes in the ring after this does so after the agent knows its
                        // connection.
                        confirm(carrier, Some(holder), nonblocking);
                        return Ok(Made::Lane { nonblocking });
                    }
                    Ok(Err(reason)) => return left_to_kernel(reason, nonblocking),
                    Err((reason, offered)) => return offered.leave(reason, nonblocking),
                }
            }
            Shaken::Pending => Reason::AgentPending,
            Shaken::Failed(Errno(errno)) => {
                self.take_back();
                return Ok(Made::Answered(Reason::NoListener, errno));
            }
        };
        self.leave(reason, nonblocking)
    }

    /// Goes on over TCP. Nobody can have the lane, since the agent was not told that it is in place.
    fn leave(self, reason: Reason, nonblocking: bool) -> Result<Made, Unmet> {
        self.take_back();
        left_to_kernel(reason, nonblocking)
    }

    /// Whether the number still leads to the socket, no other process has it, and a lane can do all that was set on it
    /// meanwhile, which the side has then. The caller holds `changing::changing`.
    fn may_replace(&self, ours: Connecting, twin: &Passing) -> Result<(), Reason> {
        if !ours.still() || !process::accelerates() {
            return Err(process::reason_to_count().unwrap_or(Reason::Internal));
        }
        if ours.desc.born.load(Relaxed) != crate::forks() || self.anchor.fd().is_none() {
            return Err(Reason::SharedBeforeConnect);
        }
        let local =
            twin.fd().and_then(|socket| kernel::getsockname(socket).ok()?.to_internet()).ok_or(Reason::Internal)?;
        client::catch_up(ours.desc, self.side.state)?;
        self.side.state.local.set(Endpoint::new(local).address());
        Ok(())
    }

    /// Puts everything in place. The number of the connection's socket, which is below the lane from now on, and what
    /// it goes on over if nobody takes that. The caller holds `changing::changing`.
    fn place(self, fd: i32, desc: &'static Desc, twin: Passing, nonblocking: bool) -> Result<i32, Reason> {
        let Offered { anchor, lane, side, .. } = self;
        let anchor = anchor.keep().map(Fd::own);
        let (Some(anchor), Some(holder)) = (anchor, twin.keep()) else { return Err(Reason::SharedBeforeConnect) };
        lane.hold(holder);
        client::install(fd, desc, anchor.get(), lane, side, nonblocking, None).map(|()| holder)
    }

    /// The connection is left to TCP.
    fn take_back(self) {
        let _changing = changing::changing();
        if self.anchor.fd().is_none() {
            // In the child of a fork: lane and side are the parent's.
            return;
        }
        let _ = beeline_lane::offer::withdraw(self.lane.memory().offer());
        pool::retire(self.lane, End::Client, false);
        self.side.put_back(self.born);
    }
}

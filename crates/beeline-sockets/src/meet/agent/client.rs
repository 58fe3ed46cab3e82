//! The client's part of meeting through the agent: rules 1 to 8 of the design.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::End;
use beeline_shm::sys;
use beeline_stats::Reason;
use beeline_wire::agent::{Answer, Kind, Question};
use beeline_wire::{ConnName, Endpoint};

use super::super::client;
use super::super::lane::{carry_draft, carry_owner};
use super::super::pool::{self, PooledLane};
use super::super::route::{Anchor, Route};
use super::super::{late, lookup, trust};
use super::{Carrier, Made, about, reason_of};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr, tcp_state};
use crate::side::state;
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

const TCP_REPAIR: i32 = 19;
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
    lookup::may_be_met(route.destination)?;
    let carrier = Carrier::open()?;
    let patience_ns = if nonblocking { BRIEF_PATIENCE_NS } else { PATIENCE_NS };
    let query = Question { kind: Kind::Query, destination: Some(route.destination) };
    let said =
        carrier.say(query, Some(fd)).and_then(|()| carrier.answer(patience_ns)).inspect_err(|_| mend(fd, desc))?;
    if said.answer != Answer::Likely {
        let reason = reason_of(said.answer);
        if reason != Reason::AgentFull {
            lookup::note_unmet(route.destination, reason);
        }
        return Err(reason);
    }
    let offer = prepare(fd, desc, route, nonblocking, &carrier, said.cuts)?;
    drop(carrier);
    let shaken = shake_hands(fd, desc, route.destination, nonblocking);
    offer.settle(fd, desc, shaken, nonblocking)
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

/// Makes the lane, and gives the agent the parcel.
fn prepare(
    fd: i32,
    desc: &'static Desc,
    route: &Route,
    nonblocking: bool,
    carrier: &Carrier,
    cuts: bool,
) -> Result<Offered, Reason> {
    if io::small_send_buffer().is_none() {
        return Err(Reason::KernelUnsupported);
    }
    let (anchor, parcel) = pair()?;
    if kernel::namespace(anchor.0) != kernel::namespace(fd) {
        return Err(Reason::OtherNamespace);
    }
    // By the higher number of the two.
    if !table::may_be_put_under(fd, desc, anchor.0.max(parcel.0)) {
        return Err(Reason::DescriptorsShort);
    }
    let side = pool::side().map_err(limits::memory_reason)?;
    side.state.mark(state::MET | if cuts { state::CUTS } else { 0 });
    let there = Endpoint::new(route.destination);
    // Where it comes from is known when the kernel has connected.
    let name = ConnName { client: there, server: there };
    let given = client::prepare(side.state, desc, &name, AGENT_COOKIE, nonblocking)
        .and_then(|offer| client::say_hello(&anchor, offer, None));
    let lane = match given {
        Ok(lane) => lane,
        Err(reason) => {
            side.retire(true);
            return Err(reason);
        }
    };
    lane.spoil();
    // After the hello, which brings a descriptor.
    trust::refuse_rights(anchor.0);
    trust::refuse_rights(parcel.0);
    let offered = Offered { anchor, lane, side };
    match carrier.say(about(Kind::Give), Some(parcel.0)) {
        Ok(()) => Ok(offered),
        Err(reason) => {
            offered.take_back();
            Err(reason)
        }
    }
}

/// The two ends of a connected pair: the anchor, and the parcel.
fn pair() -> Result<(Anchor, Anchor), Reason> {
    let mut ends = [0i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, ends.as_mut_ptr() as usize, 0, 0];
    // SAFETY: a live place for two descriptors.
    match unsafe { sys::call(libc::SYS_socketpair, args) } {
        Ok(_) => Ok((Anchor(ends[0]), Anchor(ends[1]))),
        Err(Errno(libc::EMFILE | libc::ENFILE)) => Err(Reason::DescriptorsShort),
        Err(Errno(libc::EPERM | libc::EACCES)) => Err(Reason::SystemCallDenied),
        Err(_) => Err(Reason::MemoryShort),
    }
}

/// Makes the TCP connection, without blocking whatever the socket is (rule 7). No lock is held.
fn shake_hands(fd: i32, desc: &'static Desc, destination: SocketAddr, nonblocking: bool) -> Shaken {
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
    /// Puts the anchor in the TCP socket's place if the connection stands; else takes the parcel back.
    fn settle(self, fd: i32, desc: &'static Desc, shaken: Shaken, nonblocking: bool) -> Result<Made, Reason> {
        let reason = match shaken {
            Shaken::Stands => {
                let _changing = changing::changing();
                match self.may_replace(fd, desc) {
                    Ok(()) => return self.replace(fd, desc, nonblocking),
                    Err(reason) => reason,
                }
            }
            Shaken::Pending => Reason::AgentPending,
            Shaken::Failed(Errno(errno)) => {
                self.take_back();
                return Ok(Made::Answered(Reason::NoListener, errno));
            }
        };
        self.take_back();
        // Who blocks is connected by a second call, which the kernel takes for a part of the first.
        if nonblocking { Ok(Made::Answered(reason, libc::EINPROGRESS)) } else { Err(reason) }
    }

    /// Whether the number still leads to the socket, and no other process has it. The caller holds `changing::changing`.
    fn may_replace(&self, fd: i32, desc: &'static Desc) -> Result<(), Reason> {
        if !table::leads_to(fd, desc) || !process::accelerates() {
            return Err(process::stopped().unwrap_or(Reason::Internal));
        }
        if desc.born.load(Relaxed) != crate::forks() {
            return Err(Reason::SharedBeforeConnect);
        }
        let local = kernel::getsockname(fd).ok().and_then(|name| name.to_internet()).ok_or(Reason::Internal)?;
        self.side.state.local.set(Endpoint::new(local).address());
        match hidden::hidden_twin(fd) {
            Some(twin) => self.lane.hold(twin),
            None => return Err(Reason::DescriptorsShort),
        }
        Ok(())
    }

    fn replace(self, fd: i32, desc: &'static Desc, nonblocking: bool) -> Result<Made, Reason> {
        match client::install(fd, desc, &self.anchor, self.lane, self.side, nonblocking) {
            Ok(()) => Ok(Made::Lane { nonblocking }),
            // The TCP connection stands.
            Err(reason) if nonblocking => Ok(Made::Answered(reason, libc::EINPROGRESS)),
            Err(reason) => Err(reason),
        }
    }

    /// The connection is left to TCP. Whoever gets the parcel finds the lane withdrawn.
    fn take_back(self) {
        let _ = beeline_lane::offer::withdraw(self.lane.memory().offer());
        pool::retire(self.lane, End::Client, false);
        self.side.retire(true);
    }
}

/// An agent that died while it gave the socket its number may have left it in repair mode, in which nothing would ever
/// be sent. Such a socket is replaced by a new one (rule 5).
fn mend(fd: i32, desc: &'static Desc) {
    if kernel::getsockopt::<i32>(fd, libc::IPPROTO_TCP, TCP_REPAIR).is_ok_and(|on| on != 0) {
        replace_socket(fd, desc);
    }
}

#[cold]
fn replace_socket(fd: i32, desc: &'static Desc) {
    let Ok(mode) = kernel::fcntl(fd, libc::F_GETFL, 0) else { return };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let Ok(new) = kernel::socket(desc.family.load(Relaxed) as i32, kind, libc::IPPROTO_TCP) else { return };
    let new = Anchor(new as i32);
    let Ok(side) = pool::side() else { return };
    carry_draft(&desc.draft, side.state);
    late::carry_options(side.state, new.0);
    side.retire(true);
    let _ = kernel::fcntl(new.0, libc::F_SETFL, mode);
    let _changing = changing::changing();
    if !table::leads_to(fd, desc) || desc.born.load(Relaxed) != crate::forks() {
        return;
    }
    carry_owner(fd, new.0);
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
    let _ = table::put_under(fd, desc, new.0);
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
}

//! Meeting across network namespaces, through the host's agent.
//!
//! The kernel makes the TCP connection; then both ends learn from the agent that they hold its two ends, and go on over a
//! lane, before the first byte. `docs/design/0008-namespaces.md` has the rules, which the comments here cite by number. The
//! rooms: `client` and `server` (with `enroll`) are the two ends, `message` and `page` what they have in common with the agent,
//! `syn` what is read of a connection's beginning.
//!
//! Without an agent everything is as if this module were not there: all ways into it begin with [`is_there`], which looks
//! for a file once a second.

mod client;
mod enroll;
pub(crate) mod message;
pub(crate) mod page;
mod server;
pub(crate) mod syn;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use beeline_lane::flags;
use beeline_shm::sys::{self, call};
use beeline_stats::Reason;
use beeline_stats::tunables::Policy;
use beeline_wire::agent::{ANSWER_BYTES, Answer, Besides, Question, SOCKET};

use super::listener::Listener;
use super::pool::PooledLane;
use super::route::Anchor;
use super::trust;
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::state;
use crate::wait::{self, Woken};
use crate::{Errno, ending, io};

pub(super) use client::attempt;
pub(super) use enroll::enroll;
pub(super) use server::came_over_tcp;

/// How an attempt to connect has ended, if it was one.
pub(super) enum Made {
    /// There is a lane.
    Lane {
        /// Whether the socket is non-blocking.
        nonblocking: bool,
    },
    /// The kernel was asked to connect, and this is its answer; why there is no lane.
    Answered(Reason, i32),
}

/// How long it counts that there is an agent, or none (rule 1).
const KNOWN_NS: u64 = 1_000_000_000;
/// How long a silent agent is left alone, at first and at last (rule 4).
const SILENT_NS_MIN: u64 = 500_000_000;
const SILENT_NS_MAX: u64 = 60_000_000_000;

/// Until when the answer of [`is_there`] holds.
static KNOWN_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static THERE: AtomicBool = AtomicBool::new(false);
/// How long the agent is to be left alone the next time that it is silent.
static SILENT_PAUSE_NS: AtomicU64 = AtomicU64::new(SILENT_NS_MIN);

/// Whether this host has an agent that we may ask.
#[inline]
pub(super) fn is_there() -> bool {
    if !crate::config().agent {
        return false;
    }
    let now_ns = kernel::now_ns();
    if now_ns < KNOWN_UNTIL_NS.load(Relaxed) {
        return THERE.load(Relaxed);
    }
    look(now_ns)
}

#[cold]
fn look(now_ns: u64) -> bool {
    /// The path with the NUL that the kernel wants.
    const PATH: [u8; SOCKET.len() + 1] = {
        let mut bytes = [0; SOCKET.len() + 1];
        let mut at = 0;
        while at < SOCKET.len() {
            bytes[at] = SOCKET.as_bytes()[at];
            at += 1;
        }
        bytes
    };
    let args = [libc::AT_FDCWD as usize, PATH.as_ptr() as usize, libc::W_OK as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    let there = unsafe { call(libc::SYS_faccessat, args) }.is_ok();
    THERE.store(there, Relaxed);
    KNOWN_UNTIL_NS.store(now_ns.saturating_add(KNOWN_NS), Relaxed);
    there
}

/// Leaves the agent alone for a time.
fn leave_alone(time_ns: u64) {
    THERE.store(false, Relaxed);
    KNOWN_UNTIL_NS.store(kernel::now_ns().saturating_add(time_ns), Relaxed);
}

/// The agent has not answered in time.
fn note_silence() {
    let pause_ns = SILENT_PAUSE_NS.load(Relaxed);
    SILENT_PAUSE_NS.store(pause_ns.saturating_mul(2).min(SILENT_NS_MAX), Relaxed);
    leave_alone(pause_ns);
}

/// A connection to the agent.
struct Carrier(i32);

impl Drop for Carrier {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

/// What the agent has said.
struct Said {
    answer: Answer,
    besides: Besides,
    /// What came with it.
    descriptor: Option<Anchor>,
}

impl Carrier {
    /// Connects to the agent, and sees to it that it is the host's.
    fn open() -> Result<Carrier, Reason> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let carrier = match kernel::socket(libc::AF_UNIX, kind, 0) {
            Ok(fd) => Carrier(fd as i32),
            Err(Errno(libc::EMFILE | libc::ENFILE)) => return Err(Reason::DescriptorsShort),
            Err(_) => return Err(Reason::SystemCallDenied),
        };
        let address = SockAddr::unix_file(SOCKET).ok_or(Reason::Internal)?;
        match kernel::connect(carrier.0, &address) {
            Ok(_) if trust::is_the_hosts(carrier.0) => Ok(carrier),
            Ok(_) => {
                leave_alone(KNOWN_NS);
                Err(Reason::AgentNotTrusted)
            }
            Err(Errno(libc::EAGAIN)) => Err(Reason::AgentFull),
            // A socket file that an agent has left behind.
            Err(_) => {
                leave_alone(KNOWN_NS);
                Err(Reason::AgentSilent)
            }
        }
    }

    fn say(&self, question: Question, descriptor: Option<i32>) -> Result<(), Reason> {
        match message::send(self.0, &question.encode(), descriptor) {
            Ok(()) => Ok(()),
            Err(Errno(libc::ETOOMANYREFS)) => Err(Reason::RightsShort),
            Err(_) => Err(Reason::AgentSilent),
        }
    }

    /// Waits for the answer. Handlers of the app may run meanwhile; the wait goes on.
    fn answer(&self, patience_ns: u64) -> Result<Said, Reason> {
        let deadline = kernel::now_ns().saturating_add(patience_ns);
        loop {
            let mut bytes = [0; ANSWER_BYTES];
            match message::receive(self.0, &mut bytes, io::disarm) {
                Ok(came) => return understood(&came, &bytes),
                Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
                Err(_) => return Err(Reason::AgentSilent),
            }
            let mut fds = [libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 }];
            match wait::sleep(&mut fds, Some(deadline), None) {
                Woken::Ready(_) => {}
                Woken::Signal { .. } if kernel::now_ns() < deadline => {}
                _ => {
                    note_silence();
                    return Err(Reason::AgentSilent);
                }
            }
        }
    }
}

fn understood(came: &message::Came, bytes: &[u8]) -> Result<Said, Reason> {
    // Root's own, so that closing it holds nobody up.
    let descriptor = came.descriptor.map(Anchor);
    match bytes.get(..came.length).and_then(Answer::decode) {
        Some((answer, besides)) if answer.has_descriptor().is_none_or(|has| has == descriptor.is_some()) => {
            SILENT_PAUSE_NS.store(SILENT_NS_MIN, Relaxed);
            Ok(Said { answer, besides, descriptor })
        }
        // It ended without a word, or says what nobody has asked.
        _ => Err(Reason::AgentSilent),
    }
}

/// The reason in an answer that is no.
fn reason_of(answer: Answer) -> Reason {
    match answer {
        Answer::Unknown | Answer::Probe => Reason::AgentUnknown,
        Answer::Full => Reason::AgentFull,
        Answer::Version => Reason::VersionMismatch,
        _ => Reason::AgentRefused,
    }
}

/// Whether clients from other namespaces may have lanes: under the conditions that hold for those at the door.
fn may_serve(listener: &Listener) -> bool {
    let is_at_door = listener.door.get().is_some() && listener.serving.load(Relaxed) != 0;
    is_at_door && listener.leaving.load(Relaxed) == 0 && crate::config().policy != Policy::Strict
}

/// Whether the TCP connection below a lane was cut, so that the lane has to end ("When a filter changes later").
///
/// Looked for by whoever is about to sleep for the connection, and now and then by who sends.
pub(crate) fn end_if_cut(desc: &'static Desc) {
    if desc.is_lane() && desc.side().is(state::CUTS) {
        look_at_holder(desc);
    }
}

#[cold]
fn look_at_holder(desc: &'static Desc) {
    let side = desc.side();
    if side.is(state::RESET | state::PEER_CLOSED | state::OFFERED) {
        return;
    }
    let Some(holder) = PooledLane::of(desc).and_then(PooledLane::holder) else { return };
    // A peer that has closed its end has closed its holder, too: that is CLOSE_WAIT here, and no cut.
    if kernel::tcp_state(holder) != Some(kernel::TCP_CLOSE) || desc.lane().flags(desc.end().peer()) & flags::CLOSED != 0
    {
        return;
    }
    let errno = match kernel::getsockopt::<i32>(holder, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(errno) if errno != 0 => errno,
        _ => libc::ECONNRESET,
    };
    ending::cut(desc, errno);
}

/// Asks the kernel to find out when nobody can be reached through a TCP connection any more.
fn keep_alive(holder: i32) {
    let tcp = [(libc::TCP_KEEPIDLE, 5), (libc::TCP_KEEPINTVL, 2), (libc::TCP_KEEPCNT, 3)];
    for (name, value) in tcp {
        let _ = kernel::setsockopt(holder, libc::IPPROTO_TCP, name, &value);
    }
    let _ = kernel::setsockopt(holder, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32);
}

/// In the child of a `fork`.
pub(super) fn reset_after_fork() {
    page::reset_after_fork();
}

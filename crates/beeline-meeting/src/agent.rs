//! The host's agent, which brings network namespaces together: what both ends of a connection and the agent have in common.
//!
//! `docs/design/0008-namespaces.md` has the rules, which the comments here cite by number. Whoever asks the agent begins with
//! [`is_there`], which looks for a file once a second: without an agent everything is as if this module were not there.
//!
//! [`message`]: messages with descriptors. [`page`]: where the agent tells of offers. [`syn`]: what is read of a connection's
//! beginning. [`host`]: what the agent itself needs.

pub mod host;
pub mod message;
pub mod page;
pub mod syn;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys::{self, call};
use beeline_stats::Reason;
use beeline_wire::agent::{ANSWER_BYTES, Answer, Besides, Question, SOCKET, SOCKET_PATH};

use crate::Errno;
use crate::disarm::disarm;
use crate::kernel::{self, SockAddr};
use crate::trust;
use crate::wait::{self, Woken};

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
#[must_use]
pub fn is_there() -> bool {
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
    let args = [libc::AT_FDCWD as usize, SOCKET_PATH.as_ptr() as usize, libc::W_OK as usize, 0, 0, 0];
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

/// A descriptor that closes itself unless it is given away.
#[derive(Debug)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Its number.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.0
    }

    /// The descriptor, for good.
    #[must_use]
    pub fn give_away(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

/// A connection to the agent.
#[derive(Debug)]
pub struct Carrier(i32);

impl Drop for Carrier {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

/// What the agent has said.
#[derive(Debug)]
pub struct Said {
    /// The answer.
    pub answer: Answer,
    /// What it says besides.
    pub besides: Besides,
    /// What came with it.
    pub descriptor: Option<Descriptor>,
}

impl Carrier {
    /// Connects to the agent, and sees to it that it is the host's.
    ///
    /// # Errors
    /// Why there is no agent to ask.
    pub fn open() -> Result<Carrier, Reason> {
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

    /// Asks.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn say(&self, question: Question, descriptor: Option<i32>) -> Result<(), Reason> {
        match message::send(self.0, &question.encode(), descriptor) {
            Ok(()) => Ok(()),
            Err(Errno(libc::ETOOMANYREFS)) => Err(Reason::RightsShort),
            Err(_) => Err(Reason::AgentSilent),
        }
    }

    /// Waits for the answer. Handlers of the app may run meanwhile; the wait goes on.
    ///
    /// # Errors
    /// [`Reason::AgentSilent`].
    pub fn answer(&self, patience_ns: u64) -> Result<Said, Reason> {
        let deadline = kernel::now_ns().saturating_add(patience_ns);
        loop {
            let mut bytes = [0; ANSWER_BYTES];
            match message::receive(self.0, &mut bytes, disarm) {
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
    let descriptor = came.descriptor.map(Descriptor);
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
#[must_use]
pub fn reason_of(answer: Answer) -> Reason {
    match answer {
        Answer::Unknown | Answer::Probe => Reason::AgentUnknown,
        Answer::Full => Reason::AgentFull,
        Answer::Version => Reason::VersionMismatch,
        _ => Reason::AgentRefused,
    }
}

/// In the child of a `fork`.
pub fn reset_after_fork() {
    page::reset_after_fork();
}

//! The host's agent, which brings network namespaces together: what both ends of a connection and the agent have in
//! common.
//!
//! `docs/design/0008-namespaces.md` has the rules, which the comments here cite by number. Whoever asks the agent
//! begins with [`is_there`], which looks for one once a second: without an agent everything is as if this module were
//! not there.
//!
//! [`finding`]: where it is. [`farewell`]: how a lane that is taken back is told from one whose client has died.
//! [`message`]: messages with descriptors. [`page`]: where the agent tells of itself and of offers. [`passing`]:
//! descriptors for the length of a call. [`host`]: what the agent itself needs.

pub mod farewell;
mod finding;
pub mod host;
pub mod message;
pub mod page;
pub mod passing;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_guest::changing;
use beeline_guest::reason_cell::ReasonCell;
use beeline_guest::thread::Section;
use beeline_stats::Reason;
use beeline_wire::agent::{ANSWER_BYTES, Answer, Besides, Question};

use crate::Errno;
use crate::disarm::disarm;
use crate::wait::{self, Mode};
use crate::{kernel, trust};
use passing::Passing;

/// How long an answer is waited for that the agent has at once, and how long it is left alone if none came: at first,
/// if it runs, as it is late then; and at last, or if it does not.
const AT_ONCE_NS: u64 = 10_000_000;
const LATE_PAUSE_NS_MIN: u64 = 100_000_000;
const AT_ONCE_PAUSE_NS: u64 = 2_000_000_000;
/// How long it counts that there is no agent (rule 1).
const KNOWN_NS: u64 = 1_000_000_000;
/// An agent that has not shown itself for so long does not run. It does so four times as often.
const STALE_NS: u64 = 4_000_000_000;
/// How long a silent agent is left alone, at first and at last (rule 4).
const SILENT_NS_MIN: u64 = 500_000_000;
const SILENT_NS_MAX: u64 = 60_000_000_000;

/// How long an answer that the agent is about to give is looked for before the thread sleeps: to wake it takes as long.
const SPIN_NS: u64 = 40_000;
/// A gap in that time means that another task ran here: the CPU is wanted.
const GAP_NS: u64 = 20_000;

/// Until when there is no agent for us.
static LEFT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Why, if there is one all the same.
static LEFT_BECAUSE: ReasonCell = ReasonCell::new();
/// How long the agent is to be left alone the next time that it is silent.
static SILENT_PAUSE_NS: AtomicU64 = AtomicU64::new(SILENT_NS_MIN);
/// The same of one that runs, and was late with what it has at once.
static LATE_PAUSE_NS: AtomicU64 = AtomicU64::new(LATE_PAUSE_NS_MIN);

/// Whether this host has an agent that we may ask, and that runs.
#[inline]
#[must_use]
pub fn is_there() -> bool {
    if !crate::config().agent {
        return false;
    }
    let now_ns = kernel::now_ns();
    now_ns >= LEFT_UNTIL_NS.load(Relaxed) && (page::is_fresh(now_ns, STALE_NS) || look(now_ns))
}

/// Why a connection to elsewhere, or from there, is the kernel's: the agent that this host has may be left alone at the
/// moment, so that [`is_there`] says that there is none. That tells more than that nobody else goes there.
#[must_use]
pub fn why_unmet(reason: Reason) -> Reason {
    let is_vague = matches!(reason, Reason::NotLocal | Reason::CameOverTcp);
    let is_left = is_vague && crate::config().agent && kernel::now_ns() < LEFT_UNTIL_NS.load(Relaxed);
    LEFT_BECAUSE.get().filter(|_| is_left).unwrap_or(reason)
}

#[cold]
fn look(now_ns: u64) -> bool {
    let has_looked = finding::find();
    // Since then it may have shown itself.
    let there = page::is_fresh(now_ns, STALE_NS);
    if !there && has_looked {
        leave_alone(KNOWN_NS, None);
    }
    there
}

/// Leaves the agent alone for a time; why, if there is one. What lasts longest counts.
fn leave_alone(time_ns: u64, because: Option<Reason>) {
    let until_ns = kernel::now_ns().saturating_add(time_ns);
    if LEFT_UNTIL_NS.fetch_max(until_ns, Relaxed) < until_ns {
        LEFT_BECAUSE.set(because);
    }
}

/// The agent has not answered in time.
fn note_silence() {
    let pause_ns = SILENT_PAUSE_NS.load(Relaxed);
    SILENT_PAUSE_NS.store(pause_ns.saturating_mul(2).min(SILENT_NS_MAX), Relaxed);
    leave_alone(pause_ns, Some(Reason::AgentSilent));
}

/// How long the agent is left alone that has not said in time what it has at once. `runs`: by its page.
fn late_pause_ns(runs: bool) -> u64 {
    if !runs {
        return AT_ONCE_PAUSE_NS;
    }
    let pause_ns = LATE_PAUSE_NS.load(Relaxed);
    LATE_PAUSE_NS.store(pause_ns.saturating_mul(2).min(AT_ONCE_PAUSE_NS), Relaxed);
    pause_ns
}

/// A connection to the agent.
#[derive(Debug)]
pub struct Carrier {
    socket: Passing,
    /// Whether who is at the other end is known to be the agent.
    proven: bool,
}

/// What the agent has said.
#[derive(Debug)]
pub struct Said {
    /// The answer.
    pub answer: Answer,
    /// What it says besides.
    pub besides: Besides,
    /// What came with it.
    pub descriptor: Option<Passing>,
}

impl Carrier {
    /// Connects to the agent, and sees to it that it is the host's.
    ///
    /// # Errors
    /// Why there is no agent to ask.
    pub fn open() -> Result<Carrier, Reason> {
        Self::open_or(|| ())
    }

    /// The same; `full` is called if it is the agent that has no room, and not this process.
    ///
    /// # Errors
    /// Why there is no agent to ask.
    pub fn open_or(full: impl FnOnce()) -> Result<Carrier, Reason> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let made = Passing::make(|| kernel::socket(libc::AF_UNIX, kind, 0).map(|fd| fd as i32));
        let socket = match made {
            Ok(socket) => socket.ok_or(Reason::AgentFull)?,
            Err(Errno(libc::EMFILE | libc::ENFILE)) => return Err(Reason::DescriptorsShort),
            Err(_) => return Err(Reason::SystemCallDenied),
        };
        let connected = finding::connect(socket.fd().ok_or(Reason::SharedBeforeConnect)?);
        match connected {
            Ok(proven) => Carrier { socket, proven }.proven(full),
            Err(reason) => {
                if reason == Reason::AgentFull {
                    full();
                } else {
                    leave_alone(KNOWN_NS, None);
                }
                Err(reason)
            }
        }
    }

    /// Under its name anybody may listen: lets the other end prove that it is the agent before anything else is said,
    /// and before it may send a descriptor.
    fn proven(mut self, full: impl FnOnce()) -> Result<Carrier, Reason> {
        if !self.proven {
            // A handler that jumped out of here would leave the carrier.
            let _section = Section::enter();
            match self.ask_at_once(Question::Hail)?.answer {
                Answer::Done => {}
                answer => {
                    if answer == Answer::Full {
                        full();
                    }
                    return Err(reason_of(answer));
                }
            }
            trust::accept_rights(self.fd()?);
            self.proven = true;
        }
        Ok(self)
    }

    /// Asks for the page.
    fn take_page(&self) -> Result<(), Reason> {
        let said = self.ask_at_once(Question::Page)?;
        match (said.answer, &said.descriptor) {
            (Answer::Page, Some(file)) => {
                page::take(file.fd().ok_or(Reason::SharedBeforeConnect)?);
                Ok(())
            }
            (answer, _) => {
                leave_alone(KNOWN_NS, Some(reason_of(answer)));
                Err(reason_of(answer))
            }
        }
    }

    /// Asks what the agent answers at once, whatever it has to do. One that does not, or is none, is looked for again
    /// soon.
    fn ask_at_once(&self, question: Question) -> Result<Said, Reason> {
        self.say(question)?;
        let deadline = kernel::now_ns().saturating_add(AT_ONCE_NS);
        self.await_answer(deadline, || ()).inspect_err(|reason| {
            // Who is not known to be the agent is none.
            let runs = page::is_fresh(kernel::now_ns(), STALE_NS);
            leave_alone(late_pause_ns(runs), Some(*reason).filter(|_| self.proven || runs));
        })
    }

    fn fd(&self) -> Result<i32, Reason> {
        self.socket.fd().ok_or(Reason::SharedBeforeConnect)
    }

    /// Asks.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn say(&self, question: Question) -> Result<(), Reason> {
        message::send(self.fd()?, &question.encode(), None).map_err(|_| Reason::AgentSilent)
    }

    /// Waits for the answer. Handlers of the app may run meanwhile; the wait goes on.
    ///
    /// # Errors
    /// [`Reason::AgentSilent`].
    pub fn answer(&self, patience_ns: u64) -> Result<Said, Reason> {
        self.await_answer(kernel::now_ns().saturating_add(patience_ns), note_silence)
    }

    /// The same for an answer that only the agent has to be awake for. It is looked for before this thread sleeps, if
    /// the connection's waits do so.
    ///
    /// # Errors
    /// [`Reason::AgentSilent`].
    pub fn answer_soon(&self, patience_ns: u64, mode: Mode) -> Result<Said, Reason> {
        let spin_ns = SPIN_NS.min(mode.spin_ns_max().into()).min(patience_ns);
        let may_spin = spin_ns != 0 && !wait::spares_cpus();
        let began = kernel::now_ns();
        let (mut last, mut now) = (began, began);
        while may_spin && now.saturating_sub(last) < GAP_NS && now.saturating_sub(began) < spin_ns {
            // With no lock held: others want to change what numbers lead to meanwhile, and to fork.
            if kernel::poll_now(self.fd()?, libc::POLLIN) != 0 {
                break;
            }
            (last, now) = (now, kernel::now_ns());
        }
        self.await_answer(began.saturating_add(patience_ns), note_silence)
    }

    fn await_answer(&self, deadline: u64, silent: impl FnOnce()) -> Result<Said, Reason> {
        loop {
            match self.take() {
                Ok(said) => return said,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
                Err(_) => return Err(Reason::AgentSilent),
            }
            if wait::for_events(self.fd()?, libc::POLLIN, deadline) == 0 {
                silent();
                return Err(Reason::AgentSilent);
            }
        }
    }

    fn take(&self) -> Result<Result<Said, Reason>, Errno> {
        let mut bytes = [0; ANSWER_BYTES];
        // No fork comes between the arrival of a descriptor and its slot.
        let _changing = changing::changing();
        let fd = self.fd().map_err(|_| Errno(libc::EBADF))?;
        let came = message::receive(fd, &mut bytes, disarm)?;
        if !self.proven && !came.sender.is_some_and(finding::is_the_agent) {
            return Ok(Err(Reason::AgentNotTrusted));
        }
        Ok(understood(&came, &bytes))
    }
}

fn understood(came: &message::Came, bytes: &[u8]) -> Result<Said, Reason> {
    // Root's own, so that closing it holds nobody up.
    let (had, descriptor) = (came.descriptor.is_some(), came.descriptor.and_then(Passing::of));
    match bytes.get(..came.length).and_then(Answer::decode) {
        Some((answer, besides)) if answer.has_descriptor() == had => {
            SILENT_PAUSE_NS.store(SILENT_NS_MIN, Relaxed);
            LATE_PAUSE_NS.store(LATE_PAUSE_NS_MIN, Relaxed);
            if had && descriptor.is_none() {
                return Err(Reason::AgentFull);
            }
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
        Answer::Unproved => Reason::AgentUnproved,
        Answer::Version => Reason::VersionMismatch,
        _ => Reason::AgentRefused,
    }
}

/// In the child of a `fork`.
pub fn reset_after_fork() {
    finding::reset_after_fork();
    page::reset_after_fork();
    passing::reset_after_fork();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one test of this, as a process has one agent.
    #[test]
    fn why_the_agent_is_left_alone_is_remembered_for_as_long_as_it_is() {
        const LONG_NS: u64 = 3_600_000_000_000;
        let why = || why_unmet(Reason::NotLocal);
        assert_eq!(why(), Reason::NotLocal);
        leave_alone(LONG_NS, Some(Reason::AgentSilent));
        leave_alone(KNOWN_NS, None);
        assert!(!is_there());
        assert_eq!((why(), why_unmet(Reason::BridgeFull)), (Reason::AgentSilent, Reason::BridgeFull));
        assert_eq!(why_unmet(Reason::CameOverTcp), Reason::AgentSilent, "at the server");
        leave_alone(2 * LONG_NS, None);
        assert_eq!(why(), Reason::NotLocal);
        LEFT_UNTIL_NS.store(0, Relaxed);
        LEFT_BECAUSE.set(Some(Reason::AgentSilent));
        assert_eq!(why(), Reason::NotLocal, "it is over");
    }

    /// One late answer used to be two seconds of TCP, also of an agent that says that it runs.
    #[test]
    fn an_agent_that_runs_and_is_late_is_left_alone_for_a_moment_and_longer_each_time() {
        assert_eq!(late_pause_ns(false), AT_ONCE_PAUSE_NS);
        let pauses = [(); 7].map(|()| late_pause_ns(true) / 1_000_000);
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
    }
}

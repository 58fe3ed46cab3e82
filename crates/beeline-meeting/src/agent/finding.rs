//! Where the agent is: at its socket file, or, for programs that do not see that, under an abstract name in their
//! network namespace (rules 24 to 27).

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_guest::thread::Section;
use beeline_shm::sys::getpid;
use beeline_stats::Reason;
use beeline_wire::agent::{NAME, SOCKET};

use super::{Carrier, message};
use crate::kernel::{self, SockAddr};
use crate::{Errno, trust};

/// A thread looks for the agent. Others go on over TCP meanwhile.
#[unsafe(link_section = ".fork")]
static LOOKING: AtomicBool = AtomicBool::new(false);

/// Looks for the agent, and takes its page. False if another thread is about to.
pub(super) fn find() -> bool {
    // A handler that jumped out of here would leave the mark.
    let _section = Section::enter();
    let is_first = LOOKING.compare_exchange(false, true, Acquire, Relaxed).is_ok();
    if is_first {
        let _ = Carrier::open().and_then(|carrier| carrier.take_page());
        LOOKING.store(false, Release);
    }
    is_first
}

/// Connects a socket to the agent's file, or to its name. Whether it is the file: under the name everybody may listen,
/// and has to prove that he is the agent ([`is_the_agent`]). Until then he cannot send a descriptor, which it might
/// take any time to close; where the kernel cannot refuse those (before Linux 6.16), nobody is looked for there.
pub(super) fn connect(fd: i32) -> Result<bool, Reason> {
    match by(fd, SockAddr::unix_file(SOCKET), trust::is_the_hosts) {
        Ok(()) => return Ok(true),
        Err(Unmet::Reason(reason)) => return Err(reason),
        Err(Unmet::Unseen) => {}
    }
    if !trust::refuse_rights(fd) {
        return Err(Reason::AgentSilent);
    }
    message::name_senders(fd).map_err(|_| Reason::SystemCallDenied)?;
    by(fd, SockAddr::abstract_unix(NAME), trust::is_root).map(|()| false).map_err(|unmet| match unmet {
        Unmet::Unseen => Reason::AgentSilent,
        Unmet::Reason(reason) => reason,
    })
}

/// Whether a message is of somebody with the host's power: the kernel lets nobody else send it in this very process's
/// name, as root.
pub(super) fn is_the_agent(sender: libc::ucred) -> bool {
    sender.uid == 0 && sender.pid.cast_unsigned() == getpid()
}

/// Why somebody is not met.
#[derive(PartialEq, Eq)]
enum Unmet {
    /// There is nothing of that name.
    Unseen,
    Reason(Reason),
}

fn by(fd: i32, address: Option<SockAddr>, is_the_hosts: fn(i32) -> bool) -> Result<(), Unmet> {
    let address = address.ok_or(Unmet::Reason(Reason::Internal))?;
    match kernel::connect(fd, &address) {
        Ok(_) if is_the_hosts(fd) => Ok(()),
        Ok(_) => Err(Unmet::Reason(Reason::AgentNotTrusted)),
        Err(Errno(libc::EAGAIN)) => Err(Unmet::Reason(Reason::AgentFull)),
        // A directory that is out of sight, a socket file that an agent has left behind, no such name.
        Err(Errno(libc::ENOENT | libc::EACCES | libc::ENOTDIR | libc::ECONNREFUSED)) => Err(Unmet::Unseen),
        Err(_) => Err(Unmet::Reason(Reason::AgentSilent)),
    }
}

/// In the child of a `fork`: nobody looks.
pub(super) fn reset_after_fork() {
    if LOOKING.load(Relaxed) {
        LOOKING.store(false, Relaxed);
    }
}

//! Whom to share memory with.
//!
//! 1. A door is trusted when the user that opened it (`SO_PEERCRED`, which is the caller of `listen`) is the
//!    owner of the TCP listener that sock_diag names. A rule may trust whoever serves a listener of root.
//! 2. The overflow uid stands for every user outside our user namespace. It proves nothing and never counts.
//! 3. A peer can attach descriptors to a message, and whoever drops a socket with a long linger waits for it.
//!    `SO_PASSRIGHTS` (Linux 6.16) forbids that; without it, only our own user and root are peers.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_shm::Fd;
use beeline_shm::sys::call;
use beeline_stats::tunables::ForeignUid;

use crate::linux::SO_PASSRIGHTS;
use crate::{kernel, proc};

const OVERFLOW_UID_DEFAULT: u32 = 65534;
/// `PROC_USER_INIT_INO` of include/linux/proc_ns.h.
const FIRST_USER_NAMESPACE: u32 = 0xEFFF_FFFD;

/// The effective user of the process, geteuid(2). Asked each time: apps drop privileges.
pub fn euid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_geteuid, [0; 6]) }.map_or(0, |uid| uid as u32)
}

/// The effective user of the process while it makes one connection: asked once, when it is wanted first.
#[derive(Default)]
pub struct OwnUser(Cell<Option<u32>>);

impl OwnUser {
    /// Its uid.
    pub fn uid(&self) -> u32 {
        self.0.get().unwrap_or_else(|| {
            let uid = euid();
            self.0.set(Some(uid));
            uid
        })
    }

    /// Whether `uid` is our own user, who may take this process's memory itself, or root.
    pub fn believes(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid()
    }

    /// Whether the rules let us share a lane with `uid`.
    pub fn may_share(&self, uid: u32) -> bool {
        self.believes(uid) || may_share_with_anybody()
    }

    /// Whether a server of this user takes our word for a port that we have bound ([`super::claims`], 2).
    pub fn is_believed_by(&self, uid: u32) -> bool {
        let ours = self.uid();
        ours == 0 || ours == uid
    }
}

/// Who was at the other end of an `AF_UNIX` connection when it was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// As our pid namespace names the process; 0 if it does not.
    pub pid: u32,
    pub uid: u32,
}

/// Who is at the other end, unless it is somebody outside our user namespace.
pub fn peer(fd: i32) -> Option<Peer> {
    let found: libc::ucred = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    (found.uid != overflow_uid()).then_some(Peer { pid: found.pid.cast_unsigned(), uid: found.uid })
}

/// The user at the other end.
pub fn peer_uid(fd: i32) -> Option<u32> {
    peer(fd).map(|peer| peer.uid)
}

/// The uid that stands for all users outside our user namespace, user_namespaces(7).
pub fn overflow_uid() -> u32 {
    /// The uid, plus one.
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    if let Some(uid) = KNOWN.load(Relaxed).checked_sub(1) {
        return uid;
    }
    let mut buffer = [0; 16];
    let read = proc::read(c"/proc/sys/kernel/overflowuid", &mut buffer);
    let uid = read.and_then(|text| proc::numbers(text).next()).unwrap_or(OVERFLOW_UID_DEFAULT);
    KNOWN.store(uid.saturating_add(1), Relaxed);
    uid
}

/// Whether a door opened by `door` may serve a listener that belongs to `listener`.
pub fn may_serve(door: u32, listener: u32) -> bool {
    listener != overflow_uid() && (door == listener || listener == 0 && crate::config().trust_root_listeners)
}

/// Whether `uid`, as a process sees it, may bind any port: root, of the first user namespace.
pub fn may_have_any_port(uid: u32) -> bool {
    uid == 0 && proc::user_namespace() == FIRST_USER_NAMESPACE
}

/// Whether `uid` may run the bridge, which speaks for other hosts.
pub fn may_bridge(uid: u32) -> bool {
    uid == 0 || u64::from(uid) == crate::config().bridge_uid
}

/// Whether the other end of a connection to the agent's socket file is the host's: root, or, where this process is in a
/// user namespace of its own, somebody from outside of it. Only root writes where that file is.
#[must_use]
pub fn is_the_hosts(fd: i32) -> bool {
    let found: Result<libc::ucred, _> = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
    found.is_ok_and(|found| {
        found.uid == 0 || found.uid == overflow_uid() && proc::user_namespace() != FIRST_USER_NAMESPACE
    })
}

/// Whether the other end of a connection to the agent's name is root, in this process's user namespace. Anybody may
/// take a name, and whoever is outside of that namespace is nobody that this process can tell from others.
#[must_use]
pub fn is_root(fd: i32) -> bool {
    peer_uid(fd) == Some(0)
}

/// Whether to share a lane with a server whose user is not known before it has the lane.
#[must_use]
pub fn may_share_with_anybody() -> bool {
    match crate::config().foreign_uid {
        ForeignUid::On => true,
        ForeignUid::Off => false,
        ForeignUid::Auto => has_pass_rights(),
    }
}

/// Whether the rules let us share a lane with `uid`. Who we are is asked only where that matters.
pub fn may_share(uid: u32) -> bool {
    OwnUser::default().may_share(uid)
}

const UNKNOWN: u32 = 0;
const YES: u32 = 1;
const NO: u32 = 2;
static PASS_RIGHTS: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Refuses descriptors on an `AF_UNIX` socket from now on, where the kernel can. Whether it can.
pub fn refuse_rights(socket: i32) -> bool {
    if PASS_RIGHTS.load(Relaxed) != NO {
        let done = kernel::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &0i32).is_ok();
        PASS_RIGHTS.store(if done { YES } else { NO }, Relaxed);
    }
    PASS_RIGHTS.load(Relaxed) == YES
}

/// Accepts descriptors again.
pub fn accept_rights(socket: i32) {
    let _ = kernel::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &1i32);
}

fn has_pass_rights() -> bool {
    if PASS_RIGHTS.load(Relaxed) == UNKNOWN
        && let Ok(probe) = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
    {
        let _ = refuse_rights(Fd::own(probe as i32).get());
    }
    PASS_RIGHTS.load(Relaxed) == YES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_uid_owns_nothing() {
        assert!(!may_serve(65534, 65534));
        assert!(may_serve(7, 7) && !may_serve(7, 8) && !may_serve(7, 0));
    }
}

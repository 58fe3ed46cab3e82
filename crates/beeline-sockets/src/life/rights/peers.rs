//! Whether the process at the other end of an `AF_UNIX` socket receives through the library.
//!
//! The kernel tells which process made that end (`SO_PEERCRED`), and /proc shows a user what is mapped into the user's
//! own processes. An answer is remembered for a moment, because programs pass connections one after the other.
//!
//! 1. A pair of sockets was made by this process or by one that it was forked from, and its other end is held by a
//!    relative, which the library follows, or which has left a mark ([`super::super::pairs`]).
//! 2. Of an end that was made by accept(2) the kernel names who called listen(2). Where that is this process, it hardly
//!    sends to itself: who accepts is a program that it was given to, and nothing is known of that. The same where this
//!    process has called connect(2) and sends to that end.
//! 3. Of everybody else nothing is known.
//! 4. A process that has shut itself in has the library, and receives past it. One that shares a pair with this process
//!    has left a mark on it before; of others /proc shows that they are under a filter ([`sandbox::may_be_sealed`]).
//!
//! A ring of io_uring(7) receives messages past the library. So who has one open counts as a process without it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::sys::{self, call};
use beeline_stats::Text;

use super::super::{config, pairs, rings, sandbox};
use crate::{io, kernel};

/// What the mapping of the library is called.
const LIBRARY: &[u8] = b"/libbeeline.so";
const REMEMBERED_NS: u64 = 1_000_000_000;
/// The same of its filters. Asking costs one small file, and a program may shut itself in at any time.
const UNSEALED_NS: u64 = 10_000_000;

/// What is known of a process that was asked about.
struct Known {
    /// Which one, twice, plus 1 if it receives through the library; 0 for none.
    process: AtomicU32,
    /// When it was asked.
    asked_ns: AtomicU64,
    /// When it was found to be under no filter.
    unsealed_since_ns: AtomicU64,
}

/// As many receivers as somebody who deals connections out to them mostly has.
const PLACES: usize = 16;

static KNOWN: [Known; PLACES] = [const { Known::nobody() }; PLACES];

/// Whether who receives what is sent into `socket` does so through the library.
pub(super) fn knows_us(socket: i32) -> bool {
    let Ok(peer) = kernel::getsockopt::<libc::ucred>(socket, libc::SOL_SOCKET, libc::SO_PEERCRED) else { return false };
    if peer.pid <= 0 || pairs::is_marked(socket) {
        return false;
    }
    let pid = peer.pid as u32;
    if pid == sys::getpid() {
        return pairs::is_pair(socket) && config().follow && !rings::has_made_ring();
    }
    // Of those that are not known the one that was asked about first makes room.
    let place = KNOWN.iter().find(|known| known.is_of(pid));
    let Some(place) = place.or_else(|| KNOWN.iter().min_by_key(|known| known.asked_ns.load(Relaxed))) else {
        return false;
    };
    place.knows_us(pid)
}

impl Known {
    const fn nobody() -> Self {
        Self { process: AtomicU32::new(0), asked_ns: AtomicU64::new(0), unsealed_since_ns: AtomicU64::new(0) }
    }

    fn is_of(&self, pid: u32) -> bool {
        self.process.load(Relaxed) >> 1 == pid
    }

    /// Whether a process receives through the library, which is asked for if this place does not tell.
    fn knows_us(&self, pid: u32) -> bool {
        let now = kernel::now_ns();
        let is_recent = |since: &AtomicU64, ns| now.saturating_sub(since.load(Relaxed)) < ns;
        let process = self.process.load(Relaxed);
        if process >> 1 == pid && is_recent(&self.asked_ns, REMEMBERED_NS) {
            if process & 1 == 0 || is_recent(&self.unsealed_since_ns, UNSEALED_NS) {
                return process & 1 != 0;
            }
        } else if !has_library(pid) || rings::has_ring(pid) {
            return self.remember(pid, false, now);
        } else {
            self.asked_ns.store(now, Relaxed);
        }
        self.remember(pid, !sandbox::may_be_sealed(pid), now)
    }

    /// Remembers whether a process receives through the library, and returns that.
    fn remember(&self, pid: u32, knows: bool, now: u64) -> bool {
        let since = if knows { &self.unsealed_since_ns } else { &self.asked_ns };
        since.store(now, Relaxed);
        self.process.store(pid << 1 | u32::from(knows), Relaxed);
        knows
    }
}

/// Whether the library is mapped into a process.
fn has_library(pid: u32) -> bool {
    let Some(path) = Text::<32>::format(format_args!("/proc/{pid}/maps")) else { return false };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, path.as_c_str().as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated string and plain numbers.
    let Ok(maps) = (unsafe { call(libc::SYS_openat, args) }) else { return false };
    let found = io::with_part(|buffer| tells_of_library(maps as i32, buffer));
    let _ = sys::close(maps as i32);
    found
}

/// Whether it stands in what can be read.
fn tells_of_library(maps: i32, buffer: &mut [u8]) -> bool {
    let mut found = false;
    // The end of the part before stays in front: a name may lie across.
    let mut kept = 0;
    while !found {
        let room = buffer.get_mut(kept..).unwrap_or_default();
        // SAFETY: a live buffer of the length given.
        let read = unsafe { call(libc::SYS_read, [maps as usize, room.as_mut_ptr() as usize, room.len(), 0, 0, 0]) };
        let Ok(length @ 1..) = read else { break };
        let end = kept + length;
        let text = buffer.get(..end).unwrap_or_default();
        found = text.windows(LIBRARY.len()).any(|window| window == LIBRARY);
        kept = end.min(LIBRARY.len() - 1);
        buffer.copy_within(end - kept..end, 0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn a_process_without_the_library_is_a_stranger() {
        assert!(!has_library(std::process::id()));
        assert!(!has_library(u32::MAX));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(knows_us(one.as_raw_fd()), "a relative");
        let address = SocketAddr::from_abstract_name(format!("peers-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let client = UnixStream::connect_addr(&address).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(!knows_us(client.as_raw_fd()) && !knows_us(server.as_raw_fd()), "anybody may have it");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!knows_us(file.as_raw_fd()));
    }
}

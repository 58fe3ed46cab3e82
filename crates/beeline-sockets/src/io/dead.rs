//! Sends on connections that take no more.

use beeline_lane::flags;

use crate::desc::TxGuard;
use crate::ending::SHUT_BOTH;
use crate::side::reset;
use crate::side::{SideState, state};
use crate::{Errno, Outcome, kernel, watchers};

/// Whether the peer reads no more: TCP takes the first send to it, and is reset for that.
pub(super) fn peer_reads_no_more(guard: &TxGuard) -> bool {
    guard.side.is(state::PEER_CLOSED) || guard.lane.flags(guard.desc.end().peer()) & SHUT_BOTH == SHUT_BOTH
}

/// A send to a peer that reads no more, which takes so many bytes.
#[cold]
pub(super) fn send_to_closed_reader(fd: i32, mut guard: TxGuard, taken: usize) -> Outcome {
    reset(guard.side, libc::ECONNRESET);
    let end = guard.desc.end();
    let tell = || guard.lane.set_flags(end, guard.lane.flags(end) | flags::RESET);
    if guard.shares() && !guard.is_awaited() {
        // Whoever has the lock and stands still: what follows tells the peer as well.
        let _ = guard.side.tx_lock.run(|_| tell());
    } else {
        tell();
    }
    guard.let_others_in();
    // The peer, if it is still there, is reset as well.
    let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
    let desc = guard.desc;
    drop(guard);
    // Who sleeps on a set that knows the peer's close already hears nothing by the kernel: a dead anchor is in none.
    watchers::notify(fd, desc);
    Outcome::Done(taken as isize)
}

/// The errno of a send on a dead connection, with SIGPIPE where TCP raises it (sk_stream_error()).
#[cold]
pub(super) fn broken(side: &SideState, sent: usize, how: i32) -> Outcome {
    if sent != 0 {
        return Outcome::Done(sent as isize);
    }
    let errno = side.take_error().unwrap_or(Errno(libc::EPIPE));
    if errno == Errno(libc::EPIPE) && how & libc::MSG_NOSIGNAL == 0 {
        raise_sigpipe();
    }
    Outcome::Fail(errno)
}

pub(super) fn raise_sigpipe() {
    let args = [beeline_shm::sys::getpid() as usize, crate::thread::tid() as usize, libc::SIGPIPE as usize, 0, 0, 0];
    // SAFETY: plain numbers; the signal goes to this very thread, as the kernel's would.
    let _ = unsafe { beeline_shm::sys::call(libc::SYS_tgkill, args) };
}

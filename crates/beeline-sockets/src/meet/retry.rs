//! Trying a door again that is shut.
//!
//! A door is shut until its server accepts for the first time ([`super::door`]). A program that listens and starts its
//! client at once has a client there before that `accept`, microseconds mostly, and the connection would be TCP for all
//! its life. Kernel TCP makes such a client wait, too, if only for its first answer. So a socket that blocks tries
//! again for a moment; but once in vain is enough for each listener and client.
//!
//! Between hosts a door that is shut or full is worth a longer wait: clients come faster than the server accepts, whom
//! the bridges keep from running where there are few CPUs, and TCP's own queue makes them wait as well, for a second.

use core::net::SocketAddr;

use beeline_stats::Reason;

use super::lookup;
use crate::kernel;

/// How long it is worth while to try a door again that is there and shut.
const SHUT_NS: u64 = 1_000_000;
/// The same where no door is seen. A server of no privileges has only given its door a name until it opens it
/// ([`super::door`], 1), which from outside looks like none, as at every server without Beeline. That of a server of
/// root's is seen, shut as it may be.
const UNSEEN_NS: u64 = 200_000;
/// Between two tries. The kernel adds its timer slack, some 50 us (prctl(2), `PR_SET_TIMERSLACK`).
const PAUSE_NS: i64 = 40_000;
/// The same for a listener on another host.
const FAR_NS: u64 = 100_000_000;
const FAR_PAUSE_NS: i64 = 2_000_000;

/// Makes attempts to connect until one is let in, or fails for another reason than a shut door.
///
/// # Errors
/// The reason of the last attempt.
pub(super) fn patiently<T>(
    fd: i32,
    destination: SocketAddr,
    mut attempt: impl FnMut() -> Result<T, Reason>,
) -> Result<T, Reason> {
    let mut begin_ns = 0;
    loop {
        let (reason, patience_ns, pause_ns) = match attempt() {
            Err(reason @ Reason::DoorFull) => (reason, SHUT_NS, PAUSE_NS),
            Err(reason @ Reason::NoDoor) if lookup::is_roots(destination) => return Err(reason),
            Err(reason @ Reason::NoDoor) => (reason, UNSEEN_NS, PAUSE_NS),
            Err(reason @ Reason::BridgeFull) => (reason, FAR_NS, FAR_PAUSE_NS),
            decided => return decided,
        };
        let now_ns = kernel::now_ns();
        if begin_ns == 0 {
            if lookup::was_in_vain(destination) || !kernel::is_blocking(fd) {
                return Err(reason);
            }
            begin_ns = now_ns;
        }
        if now_ns.saturating_sub(begin_ns) >= patience_ns {
            lookup::note_in_vain(destination);
            return Err(reason);
        }
        lookup::forget_doorless(destination);
        kernel::sleep_ns(pause_ns);
    }
}

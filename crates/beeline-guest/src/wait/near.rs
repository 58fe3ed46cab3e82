//! Which peers are near: they run on the CPU of whoever waits for them, so that a spin would only keep them from
//! running.
//!
//! 1. Each end shows in the lane the CPU that it runs on: when it connects or accepts, when a wait of it goes on for
//!    longer than a moment, when it is about to sleep in a set, and when it wakes up. The word is written only where it
//!    changes, so the peer keeps its cache line.
//! 2. Whoever is about to spin compares. A peer that is near needs this CPU, and so does one that wants whatever CPU
//!    there is: the waiter sleeps at once.
//! 3. News that came after a sleep came because the CPU was free, if the peer is near. It tells nothing about spinning,
//!    so the budget stays as it is.
//! 4. Some peers have not shown where they run: clients that are still to come, the members of a set of which no
//!    lane is hot, brand-new lanes. They are taken to be near if the last peer of this process was that was looked at.
//! 5. A client that comes over TCP shows where it runs, too: its first segments were taken in there
//!    (`SO_INCOMING_CPU`), over loopback. So a server whose clients all come over TCP does not spin for them on their
//!    CPU.
//! 6. What a peer shows is old by the time it is read, and may be a lie. It decides whether to spin, nothing else: a
//!    lie costs the one who tells it answers that come later, and those of rule 4 a sleep instead of a spin, as a peer
//!    that is near would.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::kernel;

/// What a peer shows in place of its CPU that has to run for every byte, on a host with few CPUs: a bridge.
pub const ANY_CPU: u32 = u32::MAX;

/// Whether the peer that this process looked at last was near.
#[unsafe(link_section = ".fork.written")]
static LAST_WAS_NEAR: AtomicBool = AtomicBool::new(false);

/// What to think of a peer that has not shown where it runs.
pub fn peers_are_near() -> bool {
    LAST_WAS_NEAR.load(Relaxed)
}

/// A peer that has shown where it runs was looked at.
pub fn note_near(near: bool) {
    LAST_WAS_NEAR.store(near, Relaxed);
}

/// A connection over TCP was accepted.
pub fn note_where_it_comes_from(fd: i32) {
    let theirs = kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_INCOMING_CPU).map(u32::try_from);
    if let Ok(Ok(theirs)) = theirs {
        let near = theirs == kernel::cpu_by_libc();
        if near != peers_are_near() {
            note_near(near);
        }
    }
}

/// Whether an end that shows `theirs` is near one that shows `mine`; `None` if it has not shown anything.
pub fn is_near(theirs: u32, mine: u32) -> Option<bool> {
    match theirs {
        0 => None,
        ANY_CPU => Some(true),
        theirs => Some(theirs == mine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_is_who_shows_the_same_cpu_or_wants_any() {
        assert_eq!(is_near(3, 3), Some(true));
        assert_eq!(is_near(3, 4), Some(false));
        assert_eq!(is_near(ANY_CPU, 4), Some(true));
        assert_eq!(is_near(0, 4), None);
        assert_eq!(is_near(0, 0), None);
    }
}

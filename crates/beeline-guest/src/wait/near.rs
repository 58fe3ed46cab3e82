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
//! 5. A client that comes over TCP from a loopback address shows where it runs, too: its last segment was taken in
//!    there (`SO_INCOMING_CPU`). Of several that came one after the other the first may stand for all. Where the last
//!    that was looked at was near, nobody spins for the next client, nor on a set without hot lanes. Peers that have a
//!    lane do not count as near for that.
//! 6. What a peer shows is old by the time it is read, and may be a lie. It decides whether to spin, nothing else: a
//!    lie costs the one who tells it answers that come later, and those of rule 4 a sleep instead of a spin, as a peer
//!    that is near would.

use core::net::IpAddr;
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

/// Whether the last client of this process that was looked at came over TCP, and was near.
#[unsafe(link_section = ".fork.written")]
static LAST_CLIENT_WAS_NEAR: AtomicBool = AtomicBool::new(false);

/// What to think of clients that are still to come, over whichever way.
pub fn clients_are_near() -> bool {
    peers_are_near() || LAST_CLIENT_WAS_NEAR.load(Relaxed)
}

/// A client has come over a lane.
pub fn note_client_over_lane() {
    note_client_near(false);
}

/// A client has come over TCP: this is its connection.
pub fn note_client_over_tcp(fd: i32, from: Option<IpAddr>) {
    let is_loopback = from.is_some_and(|ip| ip.to_canonical().is_loopback());
    let came_in = || kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_INCOMING_CPU);
    note_client_near(is_loopback && came_in().is_ok_and(|cpu| u32::try_from(cpu) == Ok(kernel::cpu_by_libc())));
}

fn note_client_near(near: bool) {
    if near != LAST_CLIENT_WAS_NEAR.load(Relaxed) {
        LAST_CLIENT_WAS_NEAR.store(near, Relaxed);
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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// Pins the calling thread.
    fn run_on(cpu: usize) -> bool {
        // SAFETY: a set of CPUs is plain bits, and lives during the call.
        unsafe {
            let mut cpus = core::mem::zeroed::<libc::cpu_set_t>();
            libc::CPU_SET(cpu, &mut cpus);
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus) == 0
        }
    }

    #[test]
    fn a_client_over_tcp_is_near_where_its_segments_are_taken_in() {
        let here = kernel::cpu_by_libc() as usize;
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        assert!(run_on(here));
        let accept = |cpu| {
            let client = std::thread::spawn(move || run_on(cpu).then(|| TcpStream::connect(address).unwrap()));
            let client = client.join().unwrap()?;
            let (accepted, from) = server.accept().unwrap();
            note_client_over_tcp(accepted.as_raw_fd(), Some(from.ip()));
            // Only now: its end is a segment of this thread's.
            drop(client);
            Some((accepted, clients_are_near()))
        };
        let (accepted, near) = accept(here).unwrap();
        assert!(near);
        note_client_over_lane();
        assert!(!clients_are_near());
        note_client_over_tcp(accepted.as_raw_fd(), Some("192.0.2.1".parse().unwrap()));
        assert!(!clients_are_near(), "nobody of this host");
        let elsewhere = (0..64).filter(|cpu| *cpu != here).find_map(accept);
        assert!(elsewhere.is_none_or(|(_, near)| !near));
    }

    #[test]
    fn near_is_who_shows_the_same_cpu_or_wants_any() {
        assert_eq!(is_near(3, 3), Some(true));
        assert_eq!(is_near(3, 4), Some(false));
        assert_eq!(is_near(ANY_CPU, 4), Some(true));
        assert_eq!(is_near(0, 4), None);
        assert_eq!(is_near(0, 0), None);
    }
}

//! The client's port on a lane.
//!
//! The kernel hands out ports of `ip_local_port_range` to TCP sockets, so a lane takes one from outside the range: no
//! live TCP connection of somebody else has the address that a lane shows. Ports below 1024, and those below
//! `ip_unprivileged_port_start`, mean privilege to some servers and are left alone. What makes a choice exclusive is
//! the name that the anchor is bound to; here only the candidates come from.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{kernel, proc};

const FIRST: u32 = 1024;
const LAST: u32 = 65535;
const DEFAULT_RANGE: (u32, u32) = (32768, 60999);
const DEFAULT_UNPRIVILEGED: u32 = 1024;
/// How far apart two candidates are that follow each other: a prime, so that all come by, unless it divides their
/// number.
const STRIDE: u32 = 7919;
/// How long what was read counts: an administrator may change it.
const COUNTS_NS: u64 = 1_000_000_000;

/// `low << 16 | high`; 0 when not read yet.
static RANGE: AtomicU32 = AtomicU32::new(0);
/// The first port that takes no privilege.
static UNPRIVILEGED: AtomicU32 = AtomicU32::new(DEFAULT_UNPRIVILEGED);
/// When both were read.
static READ_NS: AtomicU64 = AtomicU64::new(0);
/// Where the next search begins; 0 when not seeded.
#[unsafe(link_section = ".fork.written")]
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The next candidate. `None` when the ephemeral range leaves none.
pub(super) fn next() -> Option<u16> {
    if NEXT.load(Relaxed) == 0 {
        // Processes that begin together begin at different places, most likely.
        let seed = beeline_shm::sys::getpid().wrapping_mul(0x9E37_79B1) ^ kernel::now_ns() as u32;
        NEXT.store(seed | 1, Relaxed);
    }
    let range = range();
    pick(range, UNPRIVILEGED.load(Relaxed), NEXT.fetch_add(1, Relaxed))
}

/// In the child of a `fork`: takes another place than the parent.
pub fn reset_after_fork() {
    if NEXT.load(Relaxed) != 0 {
        NEXT.store(0, Relaxed);
    }
}

/// `ip_unprivileged_port_start`, ip(7).
pub fn first_unprivileged() -> u16 {
    range();
    u16::try_from(UNPRIVILEGED.load(Relaxed)).unwrap_or(u16::MAX)
}

/// Whether the kernel hands this port out to TCP sockets that ask for none.
#[must_use]
pub fn is_handed_out(port: u16) -> bool {
    let (low, high) = range();
    (low..=high).contains(&u32::from(port))
}

/// Whether a port that [`next`] has given is still one for lanes.
pub(super) fn may_be_had(port: u16) -> bool {
    !is_handed_out(port) && port >= first_unprivileged()
}

/// How many ports the kernel finds at once for sockets that connect: it tries every other one of its range first. The
/// last eighth it has to look for.
///
/// By the kernel's default as long as nobody had to read the range.
pub(super) fn found_at_once() -> u32 {
    let known = RANGE.load(Relaxed);
    let (low, high) = if known == 0 { DEFAULT_RANGE } else { (known >> 16, known & 0xFFFF) };
    (high - low + 1) / 16 * 7
}

fn range() -> (u32, u32) {
    let now_ns = kernel::now_ns();
    let known = RANGE.load(Relaxed);
    if known != 0 && now_ns.saturating_sub(READ_NS.load(Relaxed)) < COUNTS_NS {
        return (known >> 16, known & 0xFFFF);
    }
    let mut buffer = [0; 32];
    let read = proc::read(c"/proc/sys/net/ipv4/ip_unprivileged_port_start", &mut buffer);
    let first = read.and_then(|text| proc::numbers(text).next());
    UNPRIVILEGED.store(first.unwrap_or(DEFAULT_UNPRIVILEGED), Relaxed);
    let mut numbers =
        proc::read(c"/proc/sys/net/ipv4/ip_local_port_range", &mut buffer).map(proc::numbers).into_iter().flatten();
    let range = match (numbers.next(), numbers.next()) {
        (Some(low @ 1..=LAST), Some(high)) if low <= high && high <= LAST => (low, high),
        _ => DEFAULT_RANGE,
    };
    RANGE.store(range.0 << 16 | range.1, Relaxed);
    READ_NS.store(now_ns, Relaxed);
    range
}

/// The candidate number `index` outside the range and not below `unprivileged`, counted round and round.
///
/// Candidates that follow each other lie apart. Otherwise a program would meet all the ports that another has left in
/// TIME_WAIT in a row, and each of its connections that goes back to TCP would lose its port (`late.rs`).
fn pick((low, high): (u32, u32), unprivileged: u32, index: u32) -> Option<u16> {
    let first = unprivileged.clamp(FIRST, LAST + 1);
    let below = low.saturating_sub(first);
    let above_from = high.saturating_add(1).max(first);
    let above = (LAST + 1).saturating_sub(above_from);
    let count = below + above;
    let stride = if count.is_multiple_of(STRIDE) { 1 } else { STRIDE };
    let index = (u64::from(index) * u64::from(stride)).checked_rem(u64::from(count))? as u32;
    let port = if index < below { first + index } else { above_from + (index - below) };
    u16::try_from(port).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_all_ports_outside_the_range_and_no_others() {
        for (low, high) in [(32768, 60999), (1024, 60999), (1, 1500), (10000, 65535), (500, 600)] {
            for (first, unprivileged) in [(1024, 0), (1024, 1024), (5000, 5000)] {
                let outside: Vec<u16> =
                    (first..=65535).filter(|port| !(low..=high).contains(port)).map(|port| port as u16).collect();
                let pick = |index| pick((low, high), unprivileged, index);
                let mut found: Vec<u16> = (0..outside.len() as u32).map(|index| pick(index).unwrap()).collect();
                found.sort_unstable();
                assert_eq!(found, outside);
            }
        }
        assert_eq!(pick((1024, 65535), 1024, 5), None);
        assert_eq!(pick((1, 65535), 0, 5), None);
        assert_eq!(pick((32768, 60999), 65536, 5), None);
    }

    #[test]
    fn a_number_of_candidates_that_the_stride_divides_hides_none() {
        let low = 65536 - 2 * STRIDE;
        let mut found: Vec<u16> = (0..2 * STRIDE).map(|index| pick((1, low - 1), 0, index).unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, (low as u16..=65535).collect::<Vec<u16>>());
    }

    #[test]
    fn candidates_that_follow_each_other_lie_apart() {
        let ports: Vec<i32> = (0..12).map(|index| i32::from(pick((32768, 60999), 1024, index).unwrap())).collect();
        let mut apart = ports.iter().enumerate().flat_map(|(at, one)| ports[..at].iter().map(move |other| one - other));
        assert!(apart.all(|distance| distance.abs() >= 1000), "{ports:?}");
    }

    #[test]
    fn ports_are_outside_the_range() {
        let (low, high) = range();
        for _ in 0..1000 {
            let port = u32::from(next().unwrap());
            assert!(port >= 1024 && !(low..=high).contains(&port));
        }
    }
}

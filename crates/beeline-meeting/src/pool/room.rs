//! How much idle lanes may take of what others want, too.

use beeline_stats::tunables::option;

use crate::{kernel, limits};

/// A server's idle lanes that keep their memfds. The last used comes back first, and with its memfd still there a hello
/// costs three system calls less; those of lanes in use have the better claim to numbers.
const MEMFDS_IDLE_MAX: u32 = 128;

pub(super) fn memfds_idle_max() -> u32 {
    MEMFDS_IDLE_MAX.min((kernel::recent_descriptor_limit() / NUMBERS_SHARE) as u32)
}

/// What idle lanes may take of the numbers: a sixteenth of what may be hidden below the limit.
const NUMBERS_SHARE: usize = 128;

/// How many lanes of a role are idle at most, and sides: as many as is wished, but more than `IDLE_FEW` only as far
/// as their numbers and their rings, counted as if they were full, are few of those that there may be. Nothing else
/// makes room for what is not idle.
pub(super) fn idle_max() -> u64 {
    /// So many there may always be.
    const IDLE_FEW: u64 = 32;
    /// What their rings may take of all.
    const RINGS_SHARE: u64 = 8;
    let by_numbers = (kernel::recent_descriptor_limit() / NUMBERS_SHARE) as u64;
    let by_rings = limits::ring_bytes_max() / RINGS_SHARE / crate::live(option::ring_bytes).max(1);
    crate::live(option::pool_lanes_max).min(by_numbers.min(by_rings).max(IDLE_FEW))
}

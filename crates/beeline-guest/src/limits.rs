//! What the process may still have: mappings, memory that is not locked, memory of its cgroup.
//!
//! A lane takes what a TCP connection does not take from the program: mappings of its address space, memory that counts
//! for its cgroup, and, where the program locks what it maps, locked memory. The program's own limits are meant for the
//! program, so lanes stop well before them, and connections go on over TCP with the reason.
//!
//! 1. **Mappings** (`vm.max_map_count`). A lane takes [`LANE_MAPPINGS`]. Lanes may take a half of the limit at most,
//!    and an eighth of it is always left to the program. How many mappings the program has is counted by reading
//!    `/proc/self/maps`, which takes about a microsecond a mapping: when the first door opens, and whenever the number
//!    of lanes has grown by about as much as it was.
//! 2. **Locked memory** (`mlockall(MCL_FUTURE)`, `RLIMIT_MEMLOCK`). What is mapped then is made resident and locked as
//!    a whole, a ring of megabytes as well. Nobody tells us, as the program may have called the kernel itself or before
//!    we were loaded; but `MADV_DONTNEED` is refused for locked memory, so each fresh mapping is asked. New connections
//!    are TCP; a lane that a client has offered already is unlocked.
//! 3. **Memory of the cgroup** ([`cgroup`]). The pages of a ring count for the cgroup of whoever writes it first, so a
//!    process answers for the rings that it writes: a quarter of the limit at most, and of what is free no more than a
//!    quarter. A client makes its rings small enough for many to have room ([`ring_bytes`]); a server, which
//!    has to take the rings as they come, stops serving its door when three quarters of its share are gone.
//! 4. **Address space and size of files** (`RLIMIT_AS`, `RLIMIT_FSIZE`). With the first of them set there are no lanes.
//!    The other would raise `SIGXFSZ` when a memory file gets its size ([`beeline_shm::memfd::create`]).
//! 5. **Memory that is counted strictly** (`vm.overcommit_memory`, [`overcommit`]). A page that the kernel then refuses
//!    ends the program: there are no lanes. Where that is set while programs run they have lanes until the next look.
//!
//! All figures are this process's, atomics, and roughly right: nothing but the time at which a connection becomes TCP
//! hangs on them. A child of `fork` goes on with its parent's, as it has its mappings.

mod cgroup;
mod hostile;
mod lockall;
mod mappings;
mod overcommit;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::{LaneMemory, RING_BYTES_MIN, sys};
use beeline_stats::Reason;

use crate::{Errno, kernel};

pub use lockall::mlockall;

/// A lane's memory and its side.
const LANE_MAPPINGS: u32 = 2;
/// Lanes that a process may have before it looks at its limits again.
const LOOK_STEP: u32 = 64;
/// After a refusal limits are looked at again at the earliest after so long.
const PAUSE_NS: u64 = 5_000_000_000;
/// A client's ring takes this part of what is left for rings.
const RING_SHARE: u64 = 32;

/// Lanes mapped.
static LANES: AtomicU32 = AtomicU32::new(0);
/// Bytes of the rings that this process writes.
static RING_BYTES: AtomicU64 = AtomicU64::new(0);
/// Lanes that mappings allow.
static LANES_MAX: AtomicU32 = AtomicU32::new(u32::MAX);
/// What the cgroup allows of [`RING_BYTES`].
static RING_BYTES_MAX: AtomicU64 = AtomicU64::new(u64::MAX);
/// How many lanes there are when limits are looked at again; 0 before the first look.
static LOOK_AT: AtomicU32 = AtomicU32::new(0);
/// When they were looked at last.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
/// While this lasts nobody is let in at doors, as clients have been hostile.
static HOSTILE: hostile::Pause = hostile::Pause::new();
/// Whether mappings have ever been counted.
static COUNTED: AtomicBool = AtomicBool::new(false);
/// Whether memory is counted strictly: [`UNKNOWN`], [`NO`] or [`YES`].
static STRICT: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;
/// Whether fresh memory was found locked.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// A lane has been mapped.
pub fn lane_begins(ring_bytes: u32) {
    LANES.fetch_add(1, Relaxed);
    RING_BYTES.fetch_add(u64::from(ring_bytes), Relaxed);
}

/// A lane has been unmapped.
pub fn lane_ends(ring_bytes: u32) {
    LANES.fetch_sub(1, Relaxed);
    RING_BYTES.fetch_sub(u64::from(ring_bytes), Relaxed);
}

/// Whether the kernel may refuse pages of shared memory, when that was looked at last.
#[must_use]
pub fn counts_memory_strictly() -> bool {
    match STRICT.load(Relaxed) {
        NO => false,
        YES if !is_pause_over() => true,
        _ => look_whether_strict(),
    }
}

/// The same, if it was looked at.
#[must_use]
pub fn is_known_strict() -> bool {
    STRICT.load(Relaxed) == YES && counts_memory_strictly()
}

#[cold]
fn look_whether_strict() -> bool {
    LOOKED_NS.store(kernel::now_ns(), Relaxed);
    let is_strict = overcommit::is_strict();
    STRICT.store(if is_strict { YES } else { NO }, Relaxed);
    is_strict
}

/// How large the rings of a new lane may be; `wanted` at most.
///
/// # Errors
/// The limit that does not allow one.
pub fn ring_bytes(wanted: u32) -> Result<u32, Reason> {
    let lanes = LANES.load(Relaxed);
    if lanes >= LOOK_AT.load(Relaxed) {
        look(lanes >= LOOK_STEP);
    }
    if counts_memory_strictly() {
        return Err(Reason::OvercommitStrict);
    }
    if LOCKED.load(Relaxed) && finds_locked() {
        return Err(Reason::MemoryLocked);
    }
    if lanes >= LANES_MAX.load(Relaxed) {
        look_again();
        return Err(Reason::MappingsShort);
    }
    let left = RING_BYTES_MAX.load(Relaxed).saturating_sub(RING_BYTES.load(Relaxed));
    if left < u64::from(RING_BYTES_MIN) {
        look_again();
        return Err(Reason::MemoryLimited);
    }
    let share = u32::try_from(left / RING_SHARE).unwrap_or(u32::MAX).clamp(RING_BYTES_MIN, wanted.max(RING_BYTES_MIN));
    // The greatest power of two that is not above it.
    Ok(1 << share.ilog2())
}

/// Clients have sent what would hold up whoever closes it: this process lets nobody in at its doors for a while.
pub fn note_hostile_client() {
    HOSTILE.begin(kernel::now_ns());
}

/// Whether that has happened lately.
#[must_use]
pub fn had_hostile_clients() -> bool {
    HOSTILE.lasts(kernel::now_ns)
}

/// Whether clients may go on coming to the doors of this process; if so, how many may wait there unseen.
///
/// # Errors
/// The limit that is near.
pub fn may_serve() -> Result<u32, Reason> {
    if had_hostile_clients() {
        return Err(Reason::HostileClients);
    }
    let lanes = LANES.load(Relaxed);
    if lanes >= LOOK_AT.load(Relaxed) || !COUNTED.load(Relaxed) {
        if !COUNTED.load(Relaxed) {
            let _ = finds_locked();
        }
        look(true);
    }
    let most = LANES_MAX.load(Relaxed);
    let rings = RING_BYTES_MAX.load(Relaxed);
    let spare = most.saturating_sub(lanes) / 2;
    let reason = if sys::limit(libc::RLIMIT_AS) != libc::RLIM_INFINITY {
        return Err(Reason::AddressSpaceLimited);
    } else if counts_memory_strictly() {
        Reason::OvercommitStrict
    } else if LOCKED.load(Relaxed) && finds_locked() {
        Reason::MemoryLocked
    } else if spare < LOOK_STEP {
        Reason::MappingsShort
    } else if RING_BYTES.load(Relaxed) > rings - rings / 4 {
        Reason::MemoryLimited
    } else {
        return Ok(spare);
    };
    look_again();
    Err(reason)
}

/// Whether `reason` is a limit of this module, which may not hold for ever.
pub fn may_pass(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::AddressSpaceLimited
            | Reason::OvercommitStrict
            | Reason::MemoryLocked
            | Reason::MappingsShort
            | Reason::MemoryLimited
            | Reason::HostileClients
    )
}

/// The most memory that rings should keep.
pub fn ring_bytes_max() -> u64 {
    RING_BYTES_MAX.load(Relaxed)
}

/// Whether the process is known to lock what it maps.
pub fn locks_memory() -> bool {
    LOCKED.load(Relaxed)
}

/// Asks a fresh mapping of a lane whether it is locked, and unlocks it if so.
pub fn unlock(memory: LaneMemory) -> bool {
    let locked = memory.is_locked();
    if locked {
        LOCKED.store(true, Relaxed);
        memory.unlock();
    }
    locked
}

/// Whether what the process maps now is locked.
#[cold]
fn finds_locked() -> bool {
    const PROBE_BYTES: usize = 4096;
    let Ok(base) = sys::map_private(PROBE_BYTES) else { return true };
    // SAFETY: mapped just now, with no other user.
    let locked = unsafe { sys::is_locked(base) };
    // SAFETY: as above.
    unsafe { sys::unmap(base, PROBE_BYTES) };
    LOCKED.store(locked, Relaxed);
    locked
}

/// After a refusal: a limit may have been lifted, or the program may have given back what it had.
#[cold]
fn look_again() {
    if is_pause_over() {
        look(true);
    }
}

fn is_pause_over() -> bool {
    kernel::now_ns().saturating_sub(LOOKED_NS.load(Relaxed)) > PAUSE_NS
}

#[cold]
fn look(at_mappings: bool) {
    look_whether_strict();
    let held = RING_BYTES.load(Relaxed);
    let allowed = cgroup::memory().map_or(u64::MAX, |memory| {
        let free = memory.limit.saturating_sub(memory.used);
        (memory.limit / 4).min(held.saturating_add(free / 4))
    });
    RING_BYTES_MAX.store(allowed, Relaxed);
    let lanes = LANES.load(Relaxed);
    let mut step = lanes.max(LOOK_STEP);
    if at_mappings {
        COUNTED.store(true, Relaxed);
        let most = mappings::most();
        // A program whose mappings cannot be counted is taken to have few.
        let ours = lanes.saturating_mul(LANE_MAPPINGS);
        let others = mappings::count(most).unwrap_or(0).saturating_sub(ours);
        let allowed = lanes_for(most, others);
        LANES_MAX.store(allowed, Relaxed);
        step = step.min((allowed.saturating_sub(lanes) / 4).max(4 * LOOK_STEP));
    }
    LOOK_AT.store(lanes.saturating_add(step), Relaxed);
}

/// How many lanes fit beside `others` mappings where `most` are allowed.
fn lanes_for(most: u32, others: u32) -> u32 {
    (most - most / 8).saturating_sub(others).min(most / 2) / LANE_MAPPINGS
}

pub fn memory_reason(errno: Errno) -> Reason {
    match errno.0 {
        libc::EFBIG => Reason::FileSizeLimited,
        // As a page is refused whose memory is counted strictly.
        libc::ENOSPC => Reason::OvercommitStrict,
        // RLIMIT_MEMLOCK, mmap(2).
        libc::EAGAIN => Reason::MemoryLocked,
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::EPERM | libc::EACCES | libc::ENOSYS => Reason::SystemCallDenied,
        _ => Reason::MemoryShort,
    }
}

/// Whether the process may run out of addresses: each lane takes as many as both its rings.
pub fn address_space_is_limited() -> bool {
    sys::limit(libc::RLIMIT_AS) != libc::RLIM_INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_leave_an_eighth_and_take_a_half() {
        assert_eq!(lanes_for(65_530, 100), 65_530 / 2 / 2);
        assert_eq!(lanes_for(65_530, 50_000), (65_530 - 8_191 - 50_000) / 2);
        assert_eq!(lanes_for(65_530, 60_000), 0);
        assert_eq!(lanes_for(0, 1), 0);
    }

    #[test]
    fn what_hostile_clients_cost_passes() {
        assert!(may_pass(Reason::HostileClients) && !may_pass(Reason::ForeignUser));
    }

    #[test]
    fn memory_that_is_locked_is_found() {
        // Other tests of this process map meanwhile, so only one mapping is locked.
        let base = sys::map_private(8192).unwrap();
        let args = [base as usize, 4096, libc::MLOCK_ONFAULT as usize, 0, 0, 0];
        // SAFETY: mapped above, with no other user.
        unsafe {
            assert!(!sys::is_locked(base));
            let locked = sys::call(libc::SYS_mlock2, args);
            assert!(locked.is_err() || sys::is_locked(base));
            sys::unmap(base, 8192);
        }
    }
}

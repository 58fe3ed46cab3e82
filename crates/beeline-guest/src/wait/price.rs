//! What a system call that does not block costs this process: under a tracer many times what it costs without.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::kernel;

/// In nanoseconds: a moving average.
#[unsafe(link_section = ".fork.written")]
static CALL_NS: AtomicU32 = AtomicU32::new(0);
/// No call is thought to be dearer: this thread was kept from running meanwhile.
const CALL_NS_MAX: u32 = 50_000;
/// Calls that a sleep and a wake-up take, of both ends together.
const CALLS_PER_SLEEP: u64 = 8;

/// Makes a system call that does not block, and notes what it costs.
pub fn priced<T>(call: impl FnOnce() -> T) -> T {
    priced_without(0, call)
}

/// As [`priced`], for a call that does some nanoseconds more than a short one.
pub fn priced_without<T>(more_ns: u64, call: impl FnOnce() -> T) -> T {
    let before = kernel::now_ns();
    let result = call();
    let took = (kernel::now_ns() - before).saturating_sub(more_ns).min(u64::from(CALL_NS_MAX)) as u32;
    let known = CALL_NS.load(Relaxed);
    CALL_NS.store(known - known / 4 + took / 4, Relaxed);
    result
}

/// What a sleep and a wake-up cost.
pub(super) fn of_sleep_ns() -> u64 {
    u64::from(CALL_NS.load(Relaxed)) * CALLS_PER_SLEEP
}

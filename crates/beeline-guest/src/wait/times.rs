//! Times as system calls have them.

use crate::{Errno, kernel};

/// The deadline that a relative timeout means; `Some(0)` for no wait.
pub fn deadline(timeout: Option<&libc::timespec>) -> Result<Option<u64>, Errno> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout.tv_sec < 0 || !(0..1_000_000_000).contains(&timeout.tv_nsec) {
        return Err(Errno(libc::EINVAL));
    }
    let wait = (timeout.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(timeout.tv_nsec as u64);
    Ok(Some(if wait == 0 { 0 } else { kernel::now_ns().saturating_add(wait) }))
}

/// So many nanoseconds, as system calls have them.
#[must_use]
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

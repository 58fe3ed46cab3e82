//! What libfabric's calls return.

use std::ffi::c_int;

/// libfabric's error number, as it returned it (negative).
pub(crate) type Number = i32;

/// Whether an operation was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// It is in flight; its completion will come.
    Taken,
    /// A queue is full. Poll, and post again when completions have come.
    Full,
}

pub(super) fn check(number: c_int) -> Result<(), Number> {
    if number == 0 { Ok(()) } else { Err(number) }
}

pub(super) fn posted(number: c_int) -> Result<Posted, Number> {
    match number {
        0 => Ok(Posted::Taken),
        EAGAIN => Ok(Posted::Full),
        other => Err(other),
    }
}

pub(super) const EAGAIN: Number = -libc::EAGAIN;
/// `FI_EAVAIL`: an error entry waits in the completion queue.
pub(super) const EAVAIL: Number = -259;
/// `FI_ENODATA`: nothing matches the hints.
pub(crate) const ENODATA: Number = -libc::ENODATA;
/// `FI_ENOKEY` (libfabric has a number of its own for it): the requested key is taken.
pub(crate) const ENOKEY: Number = -266;

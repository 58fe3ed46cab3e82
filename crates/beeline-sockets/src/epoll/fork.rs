//! What a `fork` means to sets.

use super::set::SETS;
use super::{all, copies, faults};
use crate::io;

/// In the child of a `fork`: no other thread holds any lock or sleeps.
pub(crate) fn reset_after_fork() {
    SETS.reset_after_fork();
    faults::reset_after_fork();
    io::reset_after_fork();
    all::reset_after_fork();
    copies::reset_after_fork();
}

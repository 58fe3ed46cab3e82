//! What a `fork` means to listeners, offers and pools.

use super::listening;
use super::{lookup, offers, pool, ports};

/// Before a `fork`: idle lanes go, so that the child has none of them, and listeners get what a crowd needs.
/// The caller holds `changing::changing`.
pub(crate) fn purge_pools() {
    pool::purge();
    listening::prepare_fork();
}

/// After a `fork`, in the parent: lanes and sides that other threads gave back since [`purge_pools`] are the child's,
/// too. The caller holds `changing::changing`.
pub(crate) fn purge_pools_again() {
    listening::give_up_kept();
    pool::purge();
}

/// In the child of a `fork`.
pub(crate) fn reset_after_fork() {
    beeline_meeting::agent::reset_after_fork();
    offers::reset_after_fork();
    lookup::reset_after_fork();
    pool::reset_after_fork();
    ports::reset_after_fork();
    listening::reset_after_fork();
}

//! What a `fork` means to listeners, offers and pools.

use core::sync::atomic::Ordering::Relaxed;

use super::listener::Listener;
use super::{listening, lobby, lookup, offers, pool, ports};
use crate::table;

/// Before a `fork`: whom a listener has put aside is about to be sent away ([`purge_pools`]). Clients of this process
/// could not begin again then, as the child has them, too. So they do now, all of that listener in their order, and
/// whoever accepts finds them in TCP's queue. No lock may be held.
pub(crate) fn send_visitors_on() {
    if !offers::any() {
        return;
    }
    table::for_each(|fd, desc| {
        if let Some(listener) = Listener::of(desc)
            && desc.fd.load(Relaxed) == fd
            && lobby::any_spoken(listener) != lobby::Who::Nobody
        {
            offers::take_to_tcp(listener.cookie.load(Relaxed));
        }
    });
}

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

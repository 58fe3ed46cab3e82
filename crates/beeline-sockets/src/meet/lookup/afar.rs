//! What is remembered of destinations in other network namespaces ([`super::super::agent`]).

use core::net::{IpAddr, SocketAddr};

use beeline_stats::Reason;

use super::{Place, REFUSED_NS, change, leaves, place, recall};
use crate::kernel;

/// Whether the agent is to be asked about a destination.
///
/// # Errors
/// Why not.
pub(in crate::meet) fn may_be_met(destination: SocketAddr) -> Result<(), Reason> {
    let Some(entry) = recall(destination) else { return Ok(()) };
    let now_ns = kernel::now_ns();
    match entry.unmet {
        Some((reason, until_ns)) if now_ns < until_ns => Err(reason),
        _ if entry.untaken_until_ns != 0 && now_ns < entry.untaken_until_ns => Err(Reason::AgentNotTaken),
        _ if entry.brief.is_known() && leaves(destination) => Err(Reason::AgentShortLived),
        _ => Ok(()),
    }
}

/// Notes what the agent has said against a destination.
pub(in crate::meet) fn note_unmet(destination: SocketAddr, reason: Reason) {
    let until_ns = kernel::now_ns().saturating_add(REFUSED_NS);
    change(destination, |entry| entry.unmet = Some((reason, until_ns)));
}

/// Where a destination that is not this namespace's own is reached from.
///
/// # Errors
/// [`Reason::NotLocal`] when there is no route, or [`Reason::LookupFailed`].
pub(in crate::meet) fn source_for(destination: SocketAddr) -> Result<IpAddr, Reason> {
    match place(destination)? {
        Place::Elsewhere(Some(source)) => Ok(source),
        Place::Here(_) | Place::Elsewhere(None) => Err(Reason::NotLocal),
    }
}

//! What is remembered of destinations on other hosts, and in other network namespaces ([`super::super::agent`]).

use core::net::{IpAddr, SocketAddr};

use beeline_stats::Reason;

use super::{Place, REFUSED_NS, change, place, recall};
use crate::kernel;

/// The address from which a destination on another host is reached.
///
/// # Errors
/// [`Reason::NotLocal`] when there is no route, [`Reason::LookupFailed`], or why the bridge does not take us there.
pub fn elsewhere(destination: SocketAddr) -> Result<IpAddr, Reason> {
    may_be_bridged(destination)?;
    match place(destination)? {
        Place::Elsewhere(Some(_)) if is_left(destination) => Err(Reason::BridgeShortLived),
        Place::Elsewhere(Some(source)) => Ok(source),
        Place::Here(_) | Place::Elsewhere(None) => Err(Reason::NotLocal),
    }
}

/// Whether the bridge has said nothing against a destination of late.
///
/// # Errors
/// What it has said.
fn may_be_bridged(destination: SocketAddr) -> Result<(), Reason> {
    match recall(destination).and_then(|entry| entry.refused) {
        Some((reason, until_ns)) if kernel::now_ns() < until_ns => Err(reason),
        _ => Ok(()),
    }
}

/// Whether a connection is left to TCP because those before it were short-lived. To be asked once for each connection, of
/// which it counts so many.
fn is_left(destination: SocketAddr) -> bool {
    let mut left = false;
    if recall(destination).is_some_and(|entry| entry.brief.is_known()) {
        change(destination, |entry| left = entry.brief.leaves(kernel::now_ns()));
    }
    left
}

/// Which ways to a destination are open, and why the others are not.
pub struct Afar {
    /// By the agent.
    pub met: Result<(), Reason>,
    /// By the bridge.
    pub bridged: Result<(), Reason>,
}

/// Which ways to a destination are open. To be asked once for each connection: those to places where they are short-lived
/// are counted.
pub fn afar(destination: SocketAddr) -> Afar {
    if is_left(destination) {
        return Afar { met: Err(Reason::AgentShortLived), bridged: Err(Reason::BridgeShortLived) };
    }
    Afar { met: may_be_met(destination), bridged: may_be_bridged(destination) }
}

fn may_be_met(destination: SocketAddr) -> Result<(), Reason> {
    let Some(entry) = recall(destination) else { return Ok(()) };
    let now_ns = kernel::now_ns();
    match entry.unmet {
        Some((reason, until_ns)) if now_ns < until_ns => Err(reason),
        _ if entry.untaken_until_ns != 0 && now_ns < entry.untaken_until_ns => Err(Reason::AgentNotTaken),
        _ => Ok(()),
    }
}

/// Notes what the agent has said against a destination.
pub fn note_unmet(destination: SocketAddr, reason: Reason) {
    let until_ns = kernel::now_ns().saturating_add(REFUSED_NS);
    change(destination, |entry| entry.unmet = Some((reason, until_ns)));
}

/// Where a destination that is not this namespace's own is reached from.
///
/// # Errors
/// [`Reason::NotLocal`] when there is no route, or [`Reason::LookupFailed`].
pub fn source_for(destination: SocketAddr) -> Result<IpAddr, Reason> {
    match place(destination)? {
        Place::Elsewhere(Some(source)) => Ok(source),
        Place::Here(_) | Place::Elsewhere(None) => Err(Reason::NotLocal),
    }
}

#[cfg(test)]
mod tests {
    use super::super::note_life;
    use super::*;
    use crate::brief::Life;

    #[test]
    fn one_connection_in_sixty_four_tries_a_place_of_short_lives_again() {
        let there = "192.0.2.1:80".parse().unwrap();
        for _ in 0..8 {
            assert!(afar(there).met.is_ok());
            note_life(there, Life { sends: 1, bytes: 2 });
        }
        let ways: Vec<Afar> = (0..128).map(|_| afar(there)).collect();
        assert_eq!(ways.iter().filter(|way| way.met.is_ok() && way.bridged.is_ok()).count(), 2);
        note_unmet(there, Reason::AgentRefused);
        let way = (0..64).map(|_| afar(there)).find(|way| way.bridged.is_ok());
        assert_eq!(way.map(|way| way.met), Some(Err(Reason::AgentRefused)));
    }
}

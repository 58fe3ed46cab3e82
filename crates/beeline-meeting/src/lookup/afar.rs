//! What is remembered of destinations on other hosts, and in other network namespaces ([`super::super::agent`]).

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use beeline_stats::Reason;

use super::{Place, REFUSED_NS, asked_for, change, is_untaken, place, recall, remembered};
use crate::kernel;

/// The address from which a destination on another host is reached.
///
/// # Errors
/// [`Reason::NotLocal`] when there is no route, [`Reason::LookupFailed`], or why the bridge does not take us there.
pub fn elsewhere(destination: SocketAddr) -> Result<IpAddr, Reason> {
    may_be_bridged(destination)?;
    match place(destination)? {
        Place::Elsewhere(Some(source)) => Ok(source),
        Place::Here(_) | Place::Elsewhere(None) => Err(Reason::NotLocal),
    }
}

/// Whether the bridge has said nothing against a destination of late.
///
/// # Errors
/// What it has said.
fn may_be_bridged(destination: SocketAddr) -> Result<(), Reason> {
    match recall(destination, |entry| entry.refused).flatten() {
        Some((reason, until_ns)) if kernel::now_ns() < until_ns => Err(reason),
        _ => Ok(()),
    }
}

/// Whether a connection to a place on another host, or in another network namespace, is left to TCP because those
/// before it were short-lived; the reason, after the way that the last of those took. To be asked once for each
/// connection, of which it counts so many, and before anything else: such a connection shall cost nothing.
pub fn left_to_tcp(destination: SocketAddr) -> Option<Reason> {
    remembered(|entries| {
        asked_for(entries, destination)
            .filter(|entry| entry.brief.is_known())
            .and_then(|entry| entry.brief.decide_to_leave(kernel::now_ns()).then_some(entry.left_as))
    })
}

/// A connection that was not left looks for a way to a place.
pub fn looked_again(destination: SocketAddr) {
    remembered(|entries| {
        if let Some(known) = entries.iter_mut().flatten().find(|entry| entry.destination == destination) {
            known.brief.looked();
        }
    });
}

/// Which ways to a destination are open, and why the others are not.
pub struct Afar {
    /// By the agent.
    pub met: Result<(), Reason>,
    /// By the bridge.
    pub bridged: Result<(), Reason>,
}

/// Which ways to a destination are open, where connections are not left to TCP ([`left_to_tcp`]). Asked once for each.
pub fn afar(destination: SocketAddr) -> Afar {
    Afar { met: may_be_met(destination), bridged: may_be_bridged(destination) }
}

fn may_be_met(destination: SocketAddr) -> Result<(), Reason> {
    match recall(destination, |entry| entry.unmet).flatten() {
        Some((reason, until_ns)) if kernel::now_ns() < until_ns => Err(reason),
        _ if is_untaken(destination) => Err(Reason::AgentNotTaken),
        _ => Ok(()),
    }
}

/// Notes what the agent has said against a destination. That it has no room passes sooner than others: it counts for
/// [`FULL_NS_MIN`], and twice as long each time, up to as long as they do. To ask costs a connection some 30 us.
pub fn note_unmet(destination: SocketAddr, reason: Reason) {
    let now_ns = kernel::now_ns();
    let is_full = reason == Reason::AgentFull;
    if is_full {
        HEARD_FULL.store(true, Relaxed);
    }
    change(destination, |entry| {
        let noted = entry.unmet.filter(|(before, until_ns)| *before == reason && now_ns < *until_ns);
        if is_full && noted.is_some() {
            // By another thread, which asked at the same time.
            return;
        }
        entry.full_ns = if is_full { entry.full_ns.saturating_mul(2).clamp(FULL_NS_MIN, REFUSED_NS) } else { 0 };
        let time_ns = if is_full { entry.full_ns } else { REFUSED_NS };
        entry.unmet = Some((reason, now_ns.saturating_add(time_ns)));
    });
}

/// Notes that the agent has had room for a connection.
pub fn note_room(destination: SocketAddr) {
    if HEARD_FULL.load(Relaxed) {
        change(destination, |entry| entry.full_ns = 0);
    }
}

/// How long it counts at first that the agent has no room.
const FULL_NS_MIN: u64 = 100_000_000;
/// Whether it ever had none.
static HEARD_FULL: AtomicBool = AtomicBool::new(false);

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
    use super::super::tests::ONE_AT_A_TIME;
    use super::super::{ENTRIES, note_life};
    use super::*;
    use crate::brief::Life;

    #[test]
    fn one_connection_in_sixty_four_tries_a_place_of_short_lives_again() {
        let _turn = ONE_AT_A_TIME.lock();
        let there = "192.0.2.1:80".parse().unwrap();
        for _ in 0..8 {
            assert_eq!(left_to_tcp(there), None);
            note_life(there, Life { sends: 1, bytes: 2 }, Reason::AgentShortLived);
        }
        let mut tried = 0;
        for _ in 0..128 {
            match left_to_tcp(there) {
                Some(reason) => assert_eq!(reason, Reason::AgentShortLived),
                None => {
                    looked_again(there);
                    tried += 1;
                }
            }
        }
        assert_eq!(tried, 2);
        note_unmet(there, Reason::AgentRefused);
        let Afar { met, bridged } = afar(there);
        assert_eq!((met, bridged), (Err(Reason::AgentRefused), Ok(())));
    }

    #[test]
    fn a_full_agent_is_asked_again_soon_and_then_later_each_time() {
        let _turn = ONE_AT_A_TIME.lock();
        let there = "192.0.2.4:80".parse().unwrap();
        let until = |until_ns| change(there, |entry| entry.unmet = Some((Reason::AgentFull, until_ns)));
        let counts_for = || recall(there, |entry| entry.full_ns).unwrap();
        note_unmet(there, Reason::AgentFull);
        assert_eq!(counts_for(), FULL_NS_MIN);
        until(u64::MAX);
        assert_eq!(afar(there).met, Err(Reason::AgentFull));
        // Another thread's answer to the same question.
        note_unmet(there, Reason::AgentFull);
        assert_eq!(counts_for(), FULL_NS_MIN);
        for times in [2, 4, 8, 16, 20, 20] {
            until(0);
            assert_eq!(afar(there).met, Ok(()));
            note_unmet(there, Reason::AgentFull);
            assert_eq!(counts_for(), times * FULL_NS_MIN);
        }
        until(0);
        note_room(there);
        note_unmet(there, Reason::AgentFull);
        assert_eq!(counts_for(), FULL_NS_MIN);
        // Another answer tells that it had room for the question.
        note_unmet(there, Reason::AgentUnknown);
        assert_eq!(counts_for(), 0);
    }

    #[test]
    fn a_place_that_comes_to_be_in_this_namespace_is_not_left() {
        let _turn = ONE_AT_A_TIME.lock();
        let there = "127.0.0.3:80".parse().unwrap();
        for _ in 0..8 {
            note_life(there, Life { sends: 1, bytes: 2 }, Reason::BridgeShortLived);
        }
        assert_eq!(left_to_tcp(there), Some(Reason::BridgeShortLived));
        // One of those that are not left looks where it is.
        assert!(matches!(place(there), Ok(Place::Here(_))) && left_to_tcp(there).is_none());
    }

    #[test]
    fn a_place_whose_connections_are_left_is_in_use() {
        let _turn = ONE_AT_A_TIME.lock();
        let there = "192.0.2.2:80".parse().unwrap();
        for _ in 0..8 {
            note_life(there, Life { sends: 1, bytes: 2 }, Reason::AgentShortLived);
        }
        for port in 1..=2 * ENTRIES as u16 {
            assert_eq!(left_to_tcp(there), Some(Reason::AgentShortLived), "after {port}");
            note_unmet(SocketAddr::new([192, 0, 2, 3].into(), port), Reason::AgentRefused);
        }
    }
}

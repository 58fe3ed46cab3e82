//! Where servers are known to run under Beeline: a guess, for clients that have not begun to connect.
//!
//! 1. A server's announcement makes its addresses known; so does a connection of which it has asked, whose destination may
//!    be another one (a service address).
//! 2. A destination at which nobody took an offer is forgotten, and only a connection brings it back for [`BARRED`]; unless
//!    an offer was asked for there lately: then its server is slow.
//! 3. One address may be served in several namespaces. Which of them a client reaches is for the kernel to say.
//! 4. What is remembered is bounded, in all and for each user. The oldest goes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::offers::Holder;

/// How long a disappointment lasts.
const BARRED: Duration = Duration::from_secs(60);
/// How long a server that has asked for an offer counts as one that does.
const PROVEN: Duration = Duration::from_secs(20);
/// Places that are remembered, in all and for each user.
const PLACES_MAX: usize = 16_384;
const PLACES_OF_USER_MAX: usize = 2048;
/// Namespaces at one address.
const SHARERS_MAX: usize = 256;

/// A namespace in which an address is served.
#[derive(Clone, Copy, Debug)]
struct Place {
    namespace: u64,
    user: u32,
    groups: u64,
    seen: Instant,
    proven: Option<Instant>,
}

impl Place {
    fn holder(&self) -> Holder {
        (self.user, self.namespace)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Served {
    places: HashMap<SocketAddr, Vec<Place>>,
    of_users: HashMap<Holder, usize>,
    count: usize,
    barred: HashMap<SocketAddr, Instant>,
}

/// A server.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Its network namespace.
    pub namespace: u64,
    /// Its user.
    pub user: u32,
    /// The groups that it is in.
    pub groups: u64,
}

impl Served {
    /// A server says that it serves an address.
    pub fn announced(&mut self, address: SocketAddr, server: Server, now: Instant) {
        if self.barred.get(&address).is_none_or(|until| *until <= now) {
            self.insert(address, server, now, None);
        }
    }

    /// A connection to the address has come to the server, which has asked for its offer.
    pub fn reached(&mut self, address: SocketAddr, server: Server, now: Instant) {
        self.barred.remove(&address);
        self.insert(address, server, now, Some(now));
    }

    /// Nobody there took an offer.
    pub fn disappointed(&mut self, address: SocketAddr, now: Instant) {
        let Some(places) = self.places.remove(&address) else { return };
        let is_slow = |place: &Place| place.proven.is_some_and(|at| now.saturating_duration_since(at) < PROVEN);
        let (slow, gone): (Vec<Place>, Vec<Place>) = places.into_iter().partition(is_slow);
        gone.iter().for_each(|place| self.count_out(place.holder()));
        if !slow.is_empty() {
            self.places.insert(address, slow);
            return;
        }
        if self.barred.len() >= PLACES_MAX {
            self.barred.retain(|_, until| *until > now);
        }
        if self.barred.len() < PLACES_MAX {
            self.barred.insert(address, now + BARRED);
        }
    }

    /// Whether a client of these groups, in this namespace, may find a server there.
    pub fn is_likely(&self, address: SocketAddr, namespace: u64, groups: u64) -> bool {
        let fits = |place: &Place| place.namespace != namespace && place.groups & groups != 0;
        self.places.get(&address).is_some_and(|places| places.iter().any(fits))
    }

    fn insert(&mut self, address: SocketAddr, server: Server, now: Instant, proven: Option<Instant>) {
        let Server { namespace, user, groups } = server;
        let mut new = Place { namespace, user, groups, seen: now, proven };
        let known = self.places.get_mut(&address);
        if let Some(place) = known.and_then(|places| places.iter_mut().find(|place| place.namespace == namespace)) {
            new.proven = proven.or(place.proven);
            let former = std::mem::replace(place, new).holder();
            self.count_out(former);
            self.count_in(new.holder());
            return;
        }
        if self.of_users.get(&new.holder()).is_some_and(|count| *count >= PLACES_OF_USER_MAX) {
            self.forget_oldest(|place| place.holder() == new.holder());
        } else if self.count >= PLACES_MAX {
            self.forget_oldest(|_| true);
        }
        let places = self.places.entry(address).or_default();
        if places.len() < SHARERS_MAX {
            places.push(new);
            self.count_in(new.holder());
        }
    }

    fn forget_oldest(&mut self, of: impl Fn(&Place) -> bool) {
        let all = self.places.iter().flat_map(|(address, places)| places.iter().map(move |place| (*address, *place)));
        let oldest = all.filter(|(_, place)| of(place)).min_by_key(|(_, place)| place.seen);
        let Some((address, oldest)) = oldest else { return };
        if let Some(places) = self.places.get_mut(&address) {
            places.retain(|place| place.namespace != oldest.namespace);
            if places.is_empty() {
                self.places.remove(&address);
            }
        }
        self.count_out(oldest.holder());
    }

    fn count_in(&mut self, holder: Holder) {
        *self.of_users.entry(holder).or_default() += 1;
        self.count += 1;
    }

    fn count_out(&mut self, holder: Holder) {
        self.count -= 1;
        if let Some(count) = self.of_users.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn server(namespace: u64, user: u32) -> Server {
        Server { namespace, user, groups: 1 }
    }

    #[test]
    fn a_place_is_known_to_those_who_may_meet_it_from_elsewhere() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(5, 0), now);
        assert!(served.is_likely(at(1), 6, 1));
        assert!(!served.is_likely(at(1), 5, 1), "its own namespace");
        assert!(!served.is_likely(at(1), 6, 2), "another group");
        assert!(!served.is_likely(at(2), 6, 1), "another port");
    }

    #[test]
    fn only_a_connection_brings_a_disappointment_back() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(5, 0), now);
        served.disappointed(at(1), now);
        assert!(!served.is_likely(at(1), 6, 1));
        served.announced(at(1), server(5, 0), now);
        assert!(!served.is_likely(at(1), 6, 1));
        served.reached(at(1), server(5, 0), now);
        assert!(served.is_likely(at(1), 6, 1));
        served.disappointed(at(1), now);
        assert!(served.is_likely(at(1), 6, 1), "it is slow");
        let later = now + PROVEN;
        served.disappointed(at(1), later);
        assert!(!served.is_likely(at(1), 6, 1));
        served.announced(at(1), server(5, 0), later + BARRED);
        assert!(served.is_likely(at(1), 6, 1));
    }

    #[test]
    fn a_user_who_announces_much_forgets_his_own() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(1, 2), now);
        for port in 0..3000 {
            served.announced(at(port), server(2, 2), now + Duration::from_millis(u64::from(port)));
        }
        assert_eq!(served.count, PLACES_OF_USER_MAX + 1);
        assert!(served.is_likely(at(1), 3, 1));
        assert!(served.is_likely(at(2999), 3, 1) && !served.is_likely(at(10), 3, 1));
        for port in 0..3000 {
            served.disappointed(at(port), now);
        }
        assert_eq!((served.count, served.of_users.len(), served.places.len()), (0, 0, 0));
    }
}

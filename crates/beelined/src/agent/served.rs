//! Where servers are known to run under Beeline: a guess, for clients that have not begun to connect.
//!
//! 1. A server's announcement makes its addresses known, those that the kernel says its namespace has; so does a connection of
//!    which it has asked.
//! 2. Where a client wanted to go is its own word. If the connection came out at another address (a service address), that
//!    place is known to this client's user in this client's namespace only.
//! 3. A destination at which nobody took a client's offer is left to TCP for [`BARRED`], for that client's user and namespace;
//!    unless an offer was asked for there lately: then its server is slow.
//! 4. One address may be served in several namespaces. Which of them a client reaches is for the kernel to say.
//! 5. What is remembered is bounded, in all, for each user, and for each user in each namespace. The oldest goes, and what
//!    nobody has announced for [`FORGOTTEN`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::offers::Server;
use super::shares::{Holder, Limits, Room, Shares};

/// How long a disappointment lasts.
const BARRED: Duration = Duration::from_secs(60);
/// How long a server that has asked for an offer counts as one that does.
const PROVEN: Duration = Duration::from_secs(20);
/// How long a place is known.
const FORGOTTEN: Duration = Duration::from_secs(600);
const PLACES: Limits = Limits { all: 16_384, of_user: 8192, of_holder: 2048 };
const BARRED_MAX: usize = 16_384;
/// Namespaces at one address.
const SHARERS_MAX: usize = 256;

/// A namespace in which an address is served.
#[derive(Clone, Copy, Debug)]
struct Place {
    server: Server,
    /// For whom only, if not for everybody.
    only: Option<Holder>,
    seen: Instant,
    proven: Option<Instant>,
}

impl Place {
    /// Who has caused it, and pays for it.
    fn payer(&self) -> Holder {
        self.only.unwrap_or(self.server.holder)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Served {
    places: HashMap<SocketAddr, Vec<Place>>,
    shares: Shares,
    barred: HashMap<(SocketAddr, Holder), Instant>,
}

impl Default for Served {
    fn default() -> Self {
        Self { places: HashMap::new(), shares: Shares::new(PLACES), barred: HashMap::new() }
    }
}

impl Served {
    /// A server says that it serves an address, which is its namespace's.
    pub fn announced(&mut self, address: SocketAddr, server: Server, now: Instant) {
        self.insert(address, Place { server, only: None, seen: now, proven: None });
    }

    /// A client's connection to `destination` has come to the server, which has asked for its offer. `own`: the address at
    /// which it came out, if that is its namespace's.
    pub fn reached(
        &mut self,
        destination: SocketAddr,
        client: Holder,
        server: Server,
        own: Option<SocketAddr>,
        now: Instant,
    ) {
        self.barred.remove(&(destination, client));
        let place = Place { server, only: None, seen: now, proven: Some(now) };
        if let Some(own) = own {
            self.insert(own, place);
        }
        if own != Some(destination) {
            self.insert(destination, Place { only: Some(client), ..place });
        }
    }

    /// Nobody there took this client's offer.
    pub fn disappointed(&mut self, address: SocketAddr, client: Holder, now: Instant) {
        let is_slow = |place: &Place| place.proven.is_some_and(|at| now.saturating_duration_since(at) < PROVEN);
        if self.places.get(&address).is_some_and(|places| places.iter().any(is_slow)) {
            return;
        }
        if self.barred.len() >= BARRED_MAX {
            self.barred.retain(|_, until| *until > now);
        }
        if self.barred.len() < BARRED_MAX {
            self.barred.insert((address, client), now + BARRED);
        }
    }

    /// Whether a client of these groups may find a server there.
    pub fn is_likely(&self, address: SocketAddr, client: Holder, groups: u64, now: Instant) -> bool {
        let fits = |place: &Place| {
            place.server.holder.1 != client.1
                && place.server.groups & groups != 0
                && place.only.is_none_or(|only| only == client)
                && now.saturating_duration_since(place.seen) < FORGOTTEN
        };
        let is_barred = self.barred.get(&(address, client)).is_some_and(|until| *until > now);
        !is_barred && self.places.get(&address).is_some_and(|places| places.iter().any(fits))
    }

    fn insert(&mut self, address: SocketAddr, new: Place) {
        let known = self.places.get_mut(&address).into_iter().flatten();
        let same = |place: &&mut Place| place.server.holder == new.server.holder && place.only == new.only;
        if let Some(place) = known.into_iter().find(same) {
            *place = Place { proven: new.proven.or(place.proven), ..new };
            return;
        }
        match self.shares.room(new.payer()) {
            Room::Yes => {}
            Room::No => {
                if !self.forget_oldest(|place| place.payer() == new.payer()) {
                    self.forget_oldest(|place| place.payer().0 == new.payer().0);
                }
            }
            Room::InPlaceOf(user) => {
                self.forget_oldest(|place| place.payer().0 == user);
            }
        }
        let places = self.places.entry(address).or_default();
        if places.len() < SHARERS_MAX && self.shares.take(new.payer()) {
            places.push(new);
        } else if places.is_empty() {
            self.places.remove(&address);
        }
    }

    /// Whether there was one.
    fn forget_oldest(&mut self, of: impl Fn(&Place) -> bool) -> bool {
        let all = self.places.iter().flat_map(|(address, places)| places.iter().map(move |place| (*address, *place)));
        let oldest = all.filter(|(_, place)| of(place)).min_by_key(|(_, place)| place.seen);
        let Some((address, oldest)) = oldest else { return false };
        if let Some(places) = self.places.get_mut(&address) {
            places.retain(|place| place.server.holder != oldest.server.holder || place.only != oldest.only);
            if places.is_empty() {
                self.places.remove(&address);
            }
        }
        self.shares.give(oldest.payer());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn server(user: u32, namespace: u64) -> Server {
        Server { holder: (user, namespace), groups: 1 }
    }

    const CLIENT: Holder = (3, 6);

    #[test]
    fn a_place_is_known_to_those_who_may_meet_it_from_elsewhere() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(0, 5), now);
        assert!(served.is_likely(at(1), CLIENT, 1, now));
        assert!(!served.is_likely(at(1), (3, 5), 1, now), "its own namespace");
        assert!(!served.is_likely(at(1), CLIENT, 2, now), "another group");
        assert!(!served.is_likely(at(2), CLIENT, 1, now), "another port");
        assert!(!served.is_likely(at(1), CLIENT, 1, now + FORGOTTEN));
    }

    #[test]
    fn where_a_client_wanted_to_go_is_its_own_word_and_matters_to_no_other() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.reached(at(80), CLIENT, server(0, 5), Some(at(8080)), now);
        assert!(served.is_likely(at(80), CLIENT, 1, now) && served.is_likely(at(8080), CLIENT, 1, now));
        assert!(!served.is_likely(at(80), (3, 7), 1, now) && served.is_likely(at(8080), (3, 7), 1, now));
    }

    #[test]
    fn a_disappointment_is_its_clients_own_and_only_a_connection_ends_it() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(0, 5), now);
        served.disappointed(at(1), CLIENT, now);
        assert!(!served.is_likely(at(1), CLIENT, 1, now) && served.is_likely(at(1), (4, 6), 1, now));
        served.announced(at(1), server(0, 5), now);
        assert!(!served.is_likely(at(1), CLIENT, 1, now));
        served.reached(at(1), CLIENT, server(0, 5), Some(at(1)), now);
        assert!(served.is_likely(at(1), CLIENT, 1, now));
        served.disappointed(at(1), CLIENT, now);
        assert!(served.is_likely(at(1), CLIENT, 1, now), "it is slow");
        served.disappointed(at(1), CLIENT, now + PROVEN);
        assert!(!served.is_likely(at(1), CLIENT, 1, now + PROVEN));
        assert!(served.is_likely(at(1), CLIENT, 1, now + PROVEN + BARRED));
    }

    #[test]
    fn a_user_who_announces_much_forgets_his_own() {
        let (mut served, now) = (Served::default(), Instant::now());
        served.announced(at(1), server(2, 1), now);
        for port in 0..3000 {
            served.announced(at(port), server(2, 2), now + Duration::from_millis(1 + u64::from(port)));
        }
        let mine = (0..3000).filter(|port| served.is_likely(at(*port), CLIENT, 1, now)).count();
        assert!((PLACES.of_holder - 1..=PLACES.of_holder + 1).contains(&mine), "{mine}");
        assert!(served.is_likely(at(2999), CLIENT, 1, now) && !served.is_likely(at(10), CLIENT, 1, now));
    }
}

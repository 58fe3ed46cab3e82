//! Where servers are known to run under Beeline: a guess, for clients that have not begun to connect.
//!
//! 1. A server's announcement makes its addresses known, those that the kernel says its namespace has; so does a
//!    connection of which it has asked.
//! 2. Where a client wanted to go is its own word. If the connection came out at another address (a service address),
//!    that place is known to this client's user in this client's namespace only.
//! 3. A destination at which nobody took a client's offer is left to TCP for [`BARRED`], for that client's user and
//!    namespace; unless one of its own was asked for there lately: then its server is slow. Meanwhile a connection may
//!    tell where it comes out, which ends that: the server was only late, or is another than the one that was known.
//! 4. Where a connection has told nothing of its server, nothing is tried to be learnt for [`FRUITLESS`], for that
//!    client's user and namespace, and for [`FRUITLESS_BARRED`] where it is barred. What is learnt otherwise counts at
//!    once.
//! 5. One address may be served in several namespaces. Which of them a client reaches is for the kernel to say; its
//!    offer is marked for [`MARKS_MAX`] of them.
//! 6. What is remembered is bounded, in all, for each user, and for each user in each namespace. The oldest goes, found
//!    by its age and not by a search, and what nobody has announced for [`FORGOTTEN`].

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_wire::agent::place_of;

use super::lately::Remembered;
use super::offers::Server;
use super::quotas::{Holder, Limits, Quotas, Room};

/// How long a disappointment lasts.
const BARRED: Duration = Duration::from_secs(60);
/// How long it counts that a destination's server did not ask.
const FRUITLESS: Duration = Duration::from_secs(3);
const FRUITLESS_BARRED: Duration = Duration::from_secs(10);
/// How long a server that has asked for an offer counts as one that does.
const PROVEN: Duration = Duration::from_secs(20);
/// How long a place is known.
const FORGOTTEN: Duration = Duration::from_secs(600);
const PLACES: Limits = Limits { all: 16_384, of_user: 8192, of_holder: 2048 };
/// Destinations that are remembered for clients.
const REMEMBERED: Limits = PLACES;
/// Namespaces at one address.
const SHARERS_MAX: usize = 256;

/// Listeners that an offer is marked for.
const MARKS_MAX: usize = 8;

/// A namespace in which an address is served.
#[derive(Clone, Copy, Debug)]
struct Place {
    server: Server,
    /// The listener's own port.
    port: u16,
    /// For whom only, if not for everybody.
    only: Option<Holder>,
    seen: Instant,
    proven: Option<Instant>,
    /// Its number in the order of what was seen.
    order: u64,
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
    /// Of each who pays, and of each user, what was seen longest ago comes first.
    by_payer: BTreeMap<(Holder, u64), SocketAddr>,
    by_user: BTreeMap<(u32, u64), SocketAddr>,
    seen: u64,
    quotas: Quotas,
    barred: Remembered,
    /// Where a client's connections have come to a server that asked for its offer.
    proven: Remembered,
    /// The same of destinations at which nothing was learnt.
    fruitless: HashMap<(SocketAddr, Holder), Instant>,
}

impl Served {
    /// Nothing is known.
    pub fn new(now: Instant) -> Self {
        Self {
            places: HashMap::new(),
            by_payer: BTreeMap::new(),
            by_user: BTreeMap::new(),
            seen: 0,
            quotas: Quotas::new(PLACES),
            barred: Remembered::new(BARRED, REMEMBERED, now),
            proven: Remembered::new(PROVEN, REMEMBERED, now),
            fruitless: HashMap::new(),
        }
    }

    /// A server says that it serves an address, which is its namespace's.
    pub fn announced(&mut self, address: SocketAddr, server: Server, now: Instant) {
        let port = address.port();
        self.insert(address, Place { server, port, only: None, seen: now, proven: None, order: 0 });
    }

    /// A client's connection to `destination` has come to the server, at this address, and the server has asked for its
    /// offer. `is_own`: the address is one of its namespace's.
    pub fn reached(
        &mut self,
        destination: SocketAddr,
        client: Holder,
        server: Server,
        (at, is_own): (SocketAddr, bool),
        now: Instant,
    ) {
        self.barred.remove(destination, client);
        self.proven.insert(destination, client, now);
        let place = Place { server, port: at.port(), only: None, seen: now, proven: Some(now), order: 0 };
        if is_own {
            self.insert(at, place);
        }
        if !is_own || at != destination {
            self.insert(destination, Place { only: Some(client), ..place });
        }
    }

    /// A client's connection has come to nobody who asked.
    pub fn fruitless(&mut self, address: SocketAddr, client: Holder, now: Instant) {
        // Few are made in a second, so few are remembered.
        self.fruitless.retain(|_, until| *until > now);
        let lasts = if self.is_barred(address, client, now) { FRUITLESS_BARRED } else { FRUITLESS };
        self.fruitless.insert((address, client), now + lasts);
    }

    /// Whether it is worth while to learn where a client's connection to a destination comes out.
    pub fn may_learn(&self, address: SocketAddr, client: Holder, now: Instant) -> bool {
        self.fruitless.get(&(address, client)).is_none_or(|until| *until <= now)
    }

    /// Nobody there took this client's offer.
    pub fn disappointed(&mut self, address: SocketAddr, client: Holder, now: Instant) {
        // Whom others have met there tells nothing: not all of them go the same way.
        if !self.proven.has(address, client, now) {
            self.barred.insert(address, client, now);
        }
    }

    /// Whether this client is to leave a destination to TCP.
    fn is_barred(&self, address: SocketAddr, client: Holder, now: Instant) -> bool {
        self.barred.has(address, client, now)
    }

    /// The places, on the agent's page, of the listeners that a client of these groups may find there.
    pub fn likely(&self, address: SocketAddr, client: Holder, groups: u64, now: Instant) -> Vec<u32> {
        if self.is_barred(address, client, now) {
            return Vec::new();
        }
        let fits = |place: &&Place| {
            place.server.holder.1 != client.1
                && place.server.groups & groups != 0
                && place.only.is_none_or(|only| only == client)
                && now.saturating_duration_since(place.seen) < FORGOTTEN
        };
        let mut marks = Vec::new();
        let mut places: Vec<&Place> = self.places.get(&address).into_iter().flatten().filter(fits).collect();
        // Those that asked lately first, so that nobody is crowded out by who only announces himself there.
        places.sort_by_key(|place| std::cmp::Reverse(place.proven));
        for place in places {
            let mark = place_of(place.server.holder.1, place.port);
            if !marks.contains(&mark) && marks.len() < MARKS_MAX {
                marks.push(mark);
            }
        }
        marks
    }

    fn insert(&mut self, address: SocketAddr, mut new: Place) {
        self.seen += 1;
        new.order = self.seen;
        let known = self.places.get_mut(&address).into_iter().flatten();
        let is_same = |place: &&mut Place| {
            (place.server.holder, place.only, place.port) == (new.server.holder, new.only, new.port)
        };
        if let Some(place) = known.into_iter().find(is_same) {
            new.proven = new.proven.or(place.proven);
            let old = std::mem::replace(place, new);
            self.note(address, Some(&old), Some(&new));
            return;
        }
        match self.quotas.room(new.payer()) {
            Room::Yes => {}
            Room::No => {
                // Whoever has all that one may have in a namespace loses some of that; else it is the user's.
                let has_all = self.quotas.of_holder(new.payer()) >= PLACES.of_holder;
                let oldest =
                    if has_all { self.oldest_of_payer(new.payer()) } else { self.oldest_of_user(new.payer().0) };
                oldest.into_iter().for_each(|oldest| self.forget(oldest));
            }
            Room::InPlaceOf(user) => self.oldest_of_user(user).into_iter().for_each(|oldest| self.forget(oldest)),
        }
        let places = self.places.entry(address).or_default();
        if places.len() < SHARERS_MAX && self.quotas.take(new.payer()) {
            places.push(new);
            self.note(address, None, Some(&new));
        } else if places.is_empty() {
            self.places.remove(&address);
        }
    }

    /// Keeps the order of what was seen.
    fn note(&mut self, address: SocketAddr, old: Option<&Place>, new: Option<&Place>) {
        if let Some(old) = old {
            self.by_payer.remove(&(old.payer(), old.order));
            self.by_user.remove(&(old.payer().0, old.order));
        }
        if let Some(new) = new {
            self.by_payer.insert((new.payer(), new.order), address);
            self.by_user.insert((new.payer().0, new.order), address);
        }
    }

    fn oldest_of_payer(&self, payer: Holder) -> Option<(SocketAddr, u64)> {
        let oldest = self.by_payer.range((payer, 0)..=(payer, u64::MAX)).next();
        oldest.map(|(&(_, order), &address)| (address, order))
    }

    fn oldest_of_user(&self, user: u32) -> Option<(SocketAddr, u64)> {
        let oldest = self.by_user.range((user, 0)..=(user, u64::MAX)).next();
        oldest.map(|(&(_, order), &address)| (address, order))
    }

    fn forget(&mut self, (address, order): (SocketAddr, u64)) {
        let Some(places) = self.places.get_mut(&address) else { return };
        let Some(index) = places.iter().position(|place| place.order == order) else { return };
        let old = places.swap_remove(index);
        if places.is_empty() {
            self.places.remove(&address);
        }
        self.note(address, Some(&old), None);
        self.quotas.give(old.payer());
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

    fn is_likely(served: &Served, address: SocketAddr, client: Holder, groups: u64, now: Instant) -> bool {
        !served.likely(address, client, groups, now).is_empty()
    }

    #[test]
    fn a_place_is_known_to_those_who_may_meet_it_from_elsewhere() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        served.announced(at(1), server(0, 5), now);
        assert!(is_likely(&served, at(1), CLIENT, 1, now));
        assert!(!is_likely(&served, at(1), (3, 5), 1, now), "its own namespace");
        assert!(!is_likely(&served, at(1), CLIENT, 2, now), "another group");
        assert!(!is_likely(&served, at(2), CLIENT, 1, now), "another port");
        assert!(!is_likely(&served, at(1), CLIENT, 1, now + FORGOTTEN));
    }

    #[test]
    fn where_a_client_wanted_to_go_is_its_own_word_and_matters_to_no_other() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        served.reached(at(80), CLIENT, server(0, 5), (at(8080), true), now);
        assert!(is_likely(&served, at(80), CLIENT, 1, now) && is_likely(&served, at(8080), CLIENT, 1, now));
        assert!(!is_likely(&served, at(80), (3, 7), 1, now) && is_likely(&served, at(8080), (3, 7), 1, now));
    }

    #[test]
    fn a_disappointment_is_its_clients_own_and_only_a_connection_ends_it() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        served.announced(at(1), server(0, 5), now);
        served.disappointed(at(1), CLIENT, now);
        assert!(!is_likely(&served, at(1), CLIENT, 1, now) && is_likely(&served, at(1), (4, 6), 1, now));
        served.announced(at(1), server(0, 5), now);
        assert!(!is_likely(&served, at(1), CLIENT, 1, now));
        served.reached(at(1), CLIENT, server(0, 5), (at(1), true), now);
        assert!(is_likely(&served, at(1), CLIENT, 1, now));
        served.disappointed(at(1), CLIENT, now);
        assert!(is_likely(&served, at(1), CLIENT, 1, now), "it is slow");
        // Another one's connections may all go another way, through a proxy of its own.
        served.disappointed(at(1), (4, 6), now);
        assert!(!is_likely(&served, at(1), (4, 6), 1, now));
        served.disappointed(at(1), CLIENT, now + PROVEN);
        assert!(!is_likely(&served, at(1), CLIENT, 1, now + PROVEN));
        assert!(is_likely(&served, at(1), CLIENT, 1, now + PROVEN + BARRED));
    }

    #[test]
    fn a_user_who_announces_much_forgets_his_own() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        served.announced(at(1), server(2, 1), now);
        for port in 0..3000 {
            served.announced(at(port), server(2, 2), now + Duration::from_millis(1 + u64::from(port)));
        }
        let mine = (0..3000).filter(|port| is_likely(&served, at(*port), CLIENT, 1, now)).count();
        assert!((PLACES.of_holder - 1..=PLACES.of_holder + 1).contains(&mine), "{mine}");
        assert!(is_likely(&served, at(2999), CLIENT, 1, now) && !is_likely(&served, at(10), CLIENT, 1, now));
    }

    /// A scan of all places for each address, under the desk's lock, was how one container held up the agent for all.
    #[test]
    fn the_oldest_is_found_by_its_age_and_all_is_counted() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        for namespace in 0..20 {
            for port in 0..1000 {
                served.announced(at(port), server(2, namespace), now);
            }
        }
        let count: usize = served.places.values().map(Vec::len).sum();
        assert_eq!(
            (count, served.by_payer.len(), served.by_user.len()),
            (PLACES.of_user, PLACES.of_user, PLACES.of_user)
        );
        // Somebody else has room, and what was announced again is not the oldest any more.
        served.announced(at(1), server(3, 99), now);
        served.announced(at(999), server(2, 19), now);
        assert_eq!(served.by_user.len(), PLACES.of_user + 1);
        assert_ne!(served.oldest_of_payer((2, 19)).map(|(address, _)| address), Some(at(999)));
        while let Some(oldest) = served.oldest_of_user(2).or_else(|| served.oldest_of_user(3)) {
            served.forget(oldest);
        }
        assert!(served.places.is_empty() && served.by_payer.is_empty() && served.quotas.is_unused());
    }

    #[test]
    fn the_marks_are_those_of_the_listeners_own_ports() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        for namespace in 5..15 {
            served.announced(at(1), server(0, namespace), now);
        }
        assert_eq!(served.likely(at(1), CLIENT, 1, now).len(), MARKS_MAX);
        served.reached(at(80), CLIENT, server(0, 5), (at(8080), true), now);
        assert_eq!(served.likely(at(80), CLIENT, 1, now), [place_of(5, 8080)]);
        served.fruitless(at(80), CLIENT, now);
        assert!(!served.likely(at(80), CLIENT, 1, now).is_empty(), "it is known");
        assert!(!served.may_learn(at(80), CLIENT, now) && served.may_learn(at(80), CLIENT, now + FRUITLESS));
    }

    /// A bar used to leave no way to find out that the server was only late, or is another one.
    #[test]
    fn who_is_barred_may_learn_otherwise_now_and_then() {
        let (mut served, now) = (Served::new(Instant::now()), Instant::now());
        served.announced(at(1), server(0, 5), now);
        served.disappointed(at(1), CLIENT, now);
        assert!(!is_likely(&served, at(1), CLIENT, 1, now) && served.may_learn(at(1), CLIENT, now));
        served.fruitless(at(1), CLIENT, now);
        assert!(!served.may_learn(at(1), CLIENT, now + FRUITLESS));
        let later = now + FRUITLESS_BARRED;
        assert!(served.may_learn(at(1), CLIENT, later) && !is_likely(&served, at(1), CLIENT, 1, later));
        // Its connections come out elsewhere than where the server that has announced itself is.
        served.reached(at(1), CLIENT, server(0, 7), (at(8080), true), later);
        assert!(served.likely(at(1), CLIENT, 1, later).contains(&place_of(7, 8080)));
    }
}

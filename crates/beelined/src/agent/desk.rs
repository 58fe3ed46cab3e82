//! What the agent knows, and what it decides. Nothing in here waits, nor asks the kernel: [`super::serving`] does.
//!
//! 1. A client's query reserves a number ([`Desk::query`]), which is given to the socket without the desk's lock; then the client
//!    gets its end of a lane, and the desk the server's ([`Desk::offered`]).
//! 2. That one is given to nobody before the client has said that its own end is in place ([`Desk::confirmed`]). Whatever
//!    fails at the client before has no witness.
//! 3. A server that asks before that waits ([`Desk::asked`]), [`ASKED`] at most. A client who lets servers wait too often has
//!    no offers for the rest of a minute.
//! 4. An offer is given once. Who asks for what there is not may do so [`WRONG_MAX`] times a second: a number is not to be
//!    guessed.
//!
//! `C` is a carrier, `D` the server's end of a lane. Both are closed with care by whoever drops them last.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_meeting::agent::host::Page;
use beeline_wire::agent::{Answer, Besides};

use super::offers::{ASKED, Client, Content, KEPT, Offer, Offers, PROBED, Server, Waiting, judge};
use super::served::Served;
use super::shares::{Holder, Limits, Room, Shares};

/// A carrier that says nothing.
const SPEAKS_WITHIN: Duration = Duration::from_secs(4);
/// An offer whose client left so soon was not left lying: its client has closed it, or has died.
const HARDLY_OFFERED: Duration = Duration::from_millis(50);
const CARRIERS: Limits = Limits { all: 4096, of_user: 2048, of_holder: 512 };
/// Questions about numbers that there are not, in a second.
const WRONG_MAX: Limits = Limits { all: usize::MAX, of_user: 256, of_holder: 64 };
/// Servers that a client may let wait in vain, in a minute.
const VAIN_MAX: Limits = Limits { all: usize::MAX, of_user: 64, of_holder: 16 };

/// An answer to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Say<C, D> {
    /// On this carrier.
    pub to: C,
    /// The answer.
    pub answer: Answer,
    /// What it says besides.
    pub besides: Besides,
    /// The lane that goes with it, which is the server's from now on.
    pub with: Option<D>,
}

/// What becomes of a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Queried {
    /// No.
    No(Answer),
    /// The socket is to get this number.
    Number {
        /// The number.
        number: u32,
        /// Whether the destination seems to be served, so that there is to be a lane.
        likely: bool,
    },
}

/// Counts within a stretch of time.
#[derive(Debug)]
struct Lately {
    since: Instant,
    lasts: Duration,
    limits: Limits,
    counts: Shares,
}

impl Lately {
    fn new(lasts: Duration, limits: Limits, now: Instant) -> Self {
        Self { since: now, lasts, limits, counts: Shares::new(limits) }
    }

    fn counts(&mut self, now: Instant) -> &mut Shares {
        if now.saturating_duration_since(self.since) >= self.lasts {
            (self.since, self.counts) = (now, Shares::new(self.limits));
        }
        &mut self.counts
    }
}

#[derive(Debug)]
struct Entry<C> {
    carrier: C,
    holder: Holder,
    /// The number that the client's socket was given, until it says that it is connected.
    number: Option<u32>,
    until: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Desk<C, D> {
    cuts: bool,
    page: Page,
    carriers: HashMap<u64, Entry<C>>,
    by_time: BTreeMap<(Instant, u64), ()>,
    shares: Shares,
    offers: Offers<D>,
    served: Served,
    wrong: Lately,
    vain: Lately,
}

impl<C: Clone, D: Clone> Desk<C, D> {
    /// A desk at which nobody has been. `cuts`: whether lanes end with their TCP connections.
    pub fn new(page: Page, cuts: bool, now: Instant) -> Self {
        Self {
            cuts,
            page,
            carriers: HashMap::new(),
            by_time: BTreeMap::new(),
            shares: Shares::new(CARRIERS),
            offers: Offers::default(),
            served: Served::default(),
            wrong: Lately::new(Duration::from_secs(1), WRONG_MAX, now),
            vain: Lately::new(Duration::from_secs(60), VAIN_MAX, now),
        }
    }

    /// When there is something to do, even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        let carrier = self.by_time.first_key_value().map(|(&(until, _), ())| until);
        carrier.into_iter().chain(self.offers.deadline()).min()
    }

    /// The page's descriptor.
    pub fn page(&self) -> i32 {
        self.page.memfd()
    }

    // ---- carriers

    /// A new carrier. False if there is no room for it.
    pub fn come(&mut self, id: u64, carrier: C, holder: Holder, now: Instant) -> bool {
        if let Room::InPlaceOf(user) = self.shares.room(holder) {
            let of_user = |(_, id): &&(Instant, u64)| self.carriers.get(id).is_some_and(|entry| entry.holder.0 == user);
            if let Some(&(_, oldest)) = self.by_time.keys().find(of_user) {
                let _ = self.gone(oldest);
            }
        }
        let taken = self.shares.take(holder);
        if taken {
            let until = now + SPEAKS_WITHIN;
            self.by_time.insert((until, id), ());
            self.carriers.insert(id, Entry { carrier, holder, number: None, until });
        }
        taken
    }

    /// A carrier, and whose it is.
    pub fn carrier(&self, id: u64) -> Option<(C, Holder)> {
        self.carriers.get(&id).map(|entry| (entry.carrier.clone(), entry.holder))
    }

    /// A carrier has ended. A client that has not said that it is connected takes its offer with it.
    pub fn gone(&mut self, id: u64) -> Vec<Say<C, D>> {
        let Some(entry) = self.carriers.remove(&id) else { return Vec::new() };
        self.by_time.remove(&(entry.until, id));
        self.shares.give(entry.holder);
        entry.number.map(|number| self.refuse_waiting(number)).unwrap_or_default()
    }

    /// Ends an offer. Who waits for it hears that there is none.
    fn refuse_waiting(&mut self, number: u32) -> Vec<Say<C, D>> {
        match self.forget(number).map(|offer| offer.content) {
            Some(Content::Offered { waiting: Some(waiting), .. }) => self.none(waiting.carrier),
            _ => Vec::new(),
        }
    }

    fn none(&self, carrier: u64) -> Vec<Say<C, D>> {
        self.say(carrier, Answer::None, Besides::default(), None).into_iter().collect()
    }

    fn say(&self, carrier: u64, answer: Answer, besides: Besides, with: Option<D>) -> Option<Say<C, D>> {
        self.carriers.get(&carrier).map(|entry| Say { to: entry.carrier.clone(), answer, besides, with })
    }

    // ---- clients

    /// A client of these groups asks. `learn`: whether a number is worth its while where nobody is known.
    pub fn query(
        &mut self,
        id: u64,
        destination: SocketAddr,
        groups: u64,
        learn: bool,
        random: impl FnMut() -> Option<u32>,
        now: Instant,
    ) -> Queried {
        let Some(entry) = self.carriers.get(&id).filter(|entry| entry.number.is_none()) else {
            return Queried::No(Answer::Refused);
        };
        let holder = entry.holder;
        if groups == 0 {
            return Queried::No(Answer::Refused);
        }
        let likely = self.served.is_likely(destination, holder, groups, now);
        if !likely && !learn {
            return Queried::No(Answer::Unknown);
        }
        if likely && !self.vain.counts(now).has_room(holder) {
            return Queried::No(Answer::Full);
        }
        if let Room::InPlaceOf(user) = self.offers.room(holder)
            && let Some(oldest) = self.offers.oldest_of(user)
        {
            // Whoever waits for it has its own patience.
            self.forget(oldest);
        }
        let Some(number) = self.offers.fresh_number(random) else { return Queried::No(Answer::Full) };
        match self.offers.reserve(number, Client { destination, holder, groups }, now) {
            true => Queried::Number { number, likely },
            false => Queried::No(Answer::Full),
        }
    }

    /// The socket has its number, by which its server may be learnt.
    pub fn probed(&mut self, number: u32, now: Instant) {
        if self.offers.change(number, now + PROBED, |_, _| Content::Probe) {
            self.page.add(number);
        }
    }

    /// The socket has its number, and there is a lane. False if the client has gone meanwhile.
    pub fn offered(&mut self, id: u64, number: u32, parcel: D, now: Instant) -> bool {
        let Some(entry) = self.carriers.get_mut(&id) else {
            self.offers.remove(number);
            return false;
        };
        entry.number = Some(number);
        let until = now + super::offers::UNCONFIRMED;
        let is_there = self.offers.change(number, until, |_, _| Content::Offered { parcel, waiting: None });
        if is_there {
            self.page.add(number);
        }
        is_there
    }

    /// An offer ends.
    pub fn forget(&mut self, number: u32) -> Option<Offer<D>> {
        let offer = self.offers.remove(number)?;
        if !matches!(offer.content, Content::Reserved) {
            self.page.remove(number);
        }
        Some(offer)
    }

    /// The client's end is in place, and its connection comes from `local`; with that address it is in these groups.
    pub fn confirmed(&mut self, id: u64, local: SocketAddr, groups: u64, now: Instant) -> Vec<Say<C, D>> {
        let number = self.carriers.get_mut(&id).and_then(|entry| entry.number.take());
        let Some(number) = number else { return Vec::new() };
        let mut was_asked = None;
        self.offers.change(number, now + KEPT, |client, content| {
            client.groups &= groups;
            match content {
                Content::Offered { parcel, waiting } => {
                    was_asked = waiting;
                    Content::Confirmed { parcel, local }
                }
                other => other,
            }
        });
        match was_asked {
            Some(Waiting { carrier, server, remote }) => self.answer(carrier, number, server, remote),
            None => Vec::new(),
        }
    }

    /// The client's end of an offer's lane is closed: it has been taken back, or its client has died. What that has written is
    /// kept for its server.
    pub fn hung_up(&mut self, number: u32, now: Instant) {
        let Some(Offer { client, content: Content::Confirmed { .. }, since, .. }) = self.offers.get(number) else {
            return;
        };
        if now.saturating_duration_since(*since) >= HARDLY_OFFERED {
            self.served.disappointed(client.destination, client.holder, now);
        }
    }

    // ---- servers

    /// A server serves these addresses, each with the groups that it is in there.
    pub fn announced(&mut self, holder: Holder, addresses: impl IntoIterator<Item = (SocketAddr, u64)>, now: Instant) {
        for (address, groups) in addresses {
            if groups != 0 {
                self.served.announced(address, Server { holder, groups }, now);
            }
        }
    }

    /// A server has accepted a connection from `remote` whose SYN had this number. With what is to be said, the client if there
    /// is one, of whom it is told ([`Desk::learnt`]).
    pub fn asked(
        &mut self,
        id: u64,
        number: u32,
        server: Server,
        remote: SocketAddr,
        now: Instant,
    ) -> (Vec<Say<C, D>>, Option<Client>) {
        if !self.wrong.counts(now).has_room(server.holder) {
            return (self.none(id), None);
        }
        let found = self.offers.get(number).map(|offer| (offer.client, &offer.content));
        match found {
            Some((client, Content::Confirmed { local, .. })) if *local == remote => {
                (self.answer(id, number, server, remote), Some(client))
            }
            Some((client, Content::Offered { waiting: None, .. })) => {
                let waiting = Some(Waiting { carrier: id, server, remote });
                self.offers.change(number, now + ASKED, |_, content| match content {
                    Content::Offered { parcel, .. } => Content::Offered { parcel, waiting },
                    other => other,
                });
                (Vec::new(), Some(client))
            }
            Some((client, Content::Probe)) if client.holder.1 != server.holder.1 => (self.none(id), Some(client)),
            _ => {
                self.wrong.counts(now).take(server.holder);
                (self.none(id), None)
            }
        }
    }

    /// What a question tells of where its server can be found. `own`: the server's address, if the kernel says that its
    /// namespace has it.
    pub fn learnt(&mut self, client: Client, server: Server, own: Option<SocketAddr>, now: Instant) {
        if server.groups != 0 && client.holder.1 != server.holder.1 {
            self.served.reached(client.destination, client.holder, server, own, now);
        }
    }

    /// The answer to a server about an offer whose client is connected: the offer ends by it.
    fn answer(&mut self, carrier: u64, number: u32, server: Server, remote: SocketAddr) -> Vec<Say<C, D>> {
        let Some(Offer { client, content: Content::Confirmed { parcel, local }, .. }) = self.forget(number) else {
            return self.none(carrier);
        };
        if judge(&client, local, &server, remote).is_err() {
            // The lane is closed, and the client goes on over TCP at once.
            return self.none(carrier);
        }
        let own_user = client.holder.0 == 0 || client.holder.0 == server.holder.0;
        let besides = Besides { cuts: self.cuts, own_user };
        self.say(carrier, Answer::Lane, besides, Some(parcel)).into_iter().collect()
    }

    // ---- time

    /// What is over by now is over.
    pub fn expire(&mut self, now: Instant) -> Vec<Say<C, D>> {
        let mut says = Vec::new();
        while let Some(number) = self.offers.expired(now) {
            match self.offers.get(number) {
                Some(Offer { client, content: Content::Offered { waiting: Some(_), .. }, .. }) => {
                    let holder = client.holder;
                    self.vain.counts(now).take(holder);
                }
                Some(Offer { client, content: Content::Confirmed { .. }, .. }) => {
                    let (destination, holder) = (client.destination, client.holder);
                    self.served.disappointed(destination, holder, now);
                }
                _ => {}
            }
            says.extend(self.refuse_waiting(number));
        }
        while let Some((&(until, id), ())) = self.by_time.first_key_value() {
            if until > now {
                break;
            }
            says.extend(self.gone(id));
        }
        says
    }
}

#[cfg(test)]
mod tests;

//! Offers: what the agent keeps of a connection from the client's query to the server's `accept`.
//!
//! 1. An offer is marked on the page, at the place of each listener that its client may be on its way to, from before
//!    the client's SYN until it ends. One of which nobody knows where it will come out, a probe, is marked everywhere.
//! 2. It is found by the connection that it is for ([`Pair`]), and by nothing else; and it has that only once its
//!    client is in place.
//! 3. Then the rest has to fit, too ([`judge`]). What decides is here and in [`super::desk`], without a system call.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_meeting::agent::host::{Page, Pair};

use super::quotas::{Holder, Limits, Quotas, Room};

/// How long an offer is kept for a server that is slow to accept.
pub const KEPT: Duration = Duration::from_secs(30);
/// How long a client may take to be connected.
pub const UNCONFIRMED: Duration = Duration::from_secs(3);
/// How long a connection is waited for of which nobody knew where it would come out.
pub const PROBED: Duration = Duration::from_millis(200);
const OFFERS: Limits = Limits { all: 8192, of_user: 4096, of_holder: 2048 };

/// The client of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Where it wanted to go, by its own word.
    pub destination: SocketAddr,
    /// Who and where it is.
    pub holder: Holder,
    /// The groups that it may be in; its address was not known yet.
    pub groups: u64,
}

/// A server that has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Who and where it is.
    pub holder: Holder,
    /// The groups that it is in.
    pub groups: u64,
}

/// What an offer consists of. `D` is a descriptor.
#[derive(Debug)]
pub enum Content<D> {
    /// A client is on its way, and its lane is being made.
    Reserved,
    /// A client is on its way to nobody knows where.
    Probe,
    /// It stands.
    Probed(Pair),
    /// A lane whose client is on its way. Nobody gets it.
    Offered(D),
    /// A lane whose client is in place, over this connection.
    Confirmed(D, Pair),
}

impl<D> Content<D> {
    /// The connection, once it is known.
    fn pair(&self) -> Option<Pair> {
        match self {
            Self::Probed(pair) | Self::Confirmed(_, pair) => Some(*pair),
            _ => None,
        }
    }

    fn is_probe(&self) -> bool {
        matches!(self, Self::Probe | Self::Probed(_))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Offer<D> {
    /// Who made it.
    pub client: Client,
    /// What it consists of.
    pub content: Content<D>,
    /// When it was made.
    pub since: Instant,
    /// Where it is marked.
    pub places: Vec<u32>,
    until: Instant,
    /// Its number in the order in which they were made.
    pub made: u64,
}

/// Where an offer was, and the oldest that is still on its way there, by its number in the order in which they were
/// made.
pub type Left = Vec<(u32, Option<u64>)>;

/// Why a connection does not get the offer that is for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Both are in one namespace, where doors are the way.
    SameNamespace,
    /// They may not meet.
    Rules,
}

/// Whether a server that holds the other end of the client's connection may have a lane.
///
/// # Errors
/// Why not.
pub fn judge(client: &Client, server: &Server) -> Result<(), Misfit> {
    if server.holder.1 == client.holder.1 {
        return Err(Misfit::SameNamespace);
    }
    if server.groups & client.groups == 0 {
        return Err(Misfit::Rules);
    }
    Ok(())
}

/// All offers, and the page that tells of them.
#[derive(Debug)]
pub struct Offers<D> {
    page: Page,
    next: u32,
    by_id: HashMap<u32, Offer<D>>,
    by_pair: HashMap<Pair, u32>,
    by_time: BTreeMap<(Instant, u32), ()>,
    /// Of each user, in the order in which they were made.
    by_user: BTreeMap<(u32, u64), u32>,
    made: u64,
    /// Those whose client is not in place yet, at each place.
    open_at: HashMap<u32, BTreeMap<u64, u32>>,
    probes: u32,
    quotas: Quotas,
}

impl<D> Offers<D> {
    /// None, told of on this page.
    pub fn new(page: Page) -> Self {
        Self {
            page,
            next: 0,
            by_id: HashMap::new(),
            by_pair: HashMap::new(),
            by_time: BTreeMap::new(),
            by_user: BTreeMap::new(),
            made: 0,
            open_at: HashMap::new(),
            probes: 0,
            quotas: Quotas::new(OFFERS),
        }
    }

    /// The page.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.by_pair.is_empty() && self.by_user.is_empty() && self.open_at.is_empty()
    }

    /// Whether there is room for one more.
    pub fn room(&self, holder: Holder) -> Room {
        self.quotas.room(holder)
    }

    /// A user's oldest offer.
    pub fn oldest_of(&self, user: u32) -> Option<u32> {
        let of_user = (user, 0)..=(user, u64::MAX);
        self.by_user.range(of_user).next().map(|(_, id)| *id)
    }

    /// A new offer, marked at these places; a probe if there are none. None if there is no room.
    pub fn reserve(&mut self, client: Client, places: Vec<u32>, now: Instant) -> Option<u32> {
        if !self.quotas.take(client.holder) {
            return None;
        }
        self.next = (1..=u32::MAX).map(|step| self.next.wrapping_add(step)).find(|id| !self.by_id.contains_key(id))?;
        let (id, until) = (self.next, now + UNCONFIRMED);
        self.made += 1;
        for place in &places {
            self.page.add(*place);
            self.open_at.entry(*place).or_default().insert(self.made, id);
        }
        let content = if places.is_empty() { Content::Probe } else { Content::Reserved };
        self.count_probes(content.is_probe(), true);
        self.by_time.insert((until, id), ());
        self.by_user.insert((client.holder.0, self.made), id);
        self.by_id.insert(id, Offer { client, content, since: now, places, until, made: self.made });
        Some(id)
    }

    fn count_probes(&mut self, is_probe: bool, more: bool) {
        if is_probe {
            self.probes = if more { self.probes + 1 } else { self.probes - 1 };
            self.page.set_probes(self.probes);
        }
    }

    /// Whether any client is on its way to nobody knows where.
    pub fn has_probes(&self) -> bool {
        self.probes != 0
    }

    /// An offer.
    pub fn get(&self, id: u32) -> Option<&Offer<D>> {
        self.by_id.get(&id)
    }

    /// The offer for a connection.
    pub fn of_pair(&self, pair: Pair) -> Option<u32> {
        self.by_pair.get(&pair).copied()
    }

    /// Offers at a place whose client is not in place yet.
    pub fn open_at(&self, place: u32) -> impl Iterator<Item = &Offer<D>> {
        self.open_at.get(&place).into_iter().flat_map(BTreeMap::values).filter_map(|id| self.by_id.get(id))
    }

    /// The number of the newest of all, in the order in which they were made.
    pub fn newest(&self) -> u64 {
        self.made
    }

    /// Its lane is made.
    pub fn offer(&mut self, id: u32, parcel: D) -> bool {
        match self.by_id.get_mut(&id) {
            Some(offer) if matches!(offer.content, Content::Reserved) => {
                offer.content = Content::Offered(parcel);
                true
            }
            _ => false,
        }
    }

    /// Its client is in place, over this connection, and in these groups. Where it is on the way no more; none if there
    /// is no such offer, or another one for that connection.
    pub fn confirm(&mut self, id: u32, pair: Pair, groups: u64, now: Instant) -> Option<Left> {
        if self.by_pair.contains_key(&pair) {
            return None;
        }
        let mut offer = self.by_id.remove(&id)?;
        self.by_time.remove(&(offer.until, id));
        offer.client.groups &= groups;
        let (content, lasts) = match offer.content {
            Content::Probe => (Content::Probed(pair), PROBED),
            Content::Offered(parcel) => (Content::Confirmed(parcel, pair), KEPT),
            other => (other, UNCONFIRMED),
        };
        (offer.content, offer.until) = (content, now + lasts);
        let left = self.close(offer.made, &offer.places);
        if offer.content.pair().is_some() {
            self.by_pair.insert(pair, id);
        }
        self.by_time.insert((offer.until, id), ());
        self.by_id.insert(id, offer);
        Some(left)
    }

    /// Nobody is on the way to these places for this offer any more.
    fn close(&mut self, made: u64, places: &[u32]) -> Left {
        let mut left = Vec::new();
        for place in places {
            let Some(open) = self.open_at.get_mut(place) else { continue };
            if open.remove(&made).is_none() {
                continue;
            }
            left.push((*place, open.keys().next().copied()));
            if open.is_empty() {
                self.open_at.remove(place);
            }
        }
        left
    }

    /// Takes an offer out. With it where it is on the way no more.
    pub fn remove(&mut self, id: u32) -> Option<(Offer<D>, Left)> {
        let offer = self.by_id.remove(&id)?;
        self.by_time.remove(&(offer.until, id));
        self.by_user.remove(&(offer.client.holder.0, offer.made));
        if let Some(pair) = offer.content.pair() {
            self.by_pair.remove(&pair);
        }
        self.count_probes(offer.content.is_probe(), false);
        let left = self.close(offer.made, &offer.places);
        for place in &offer.places {
            self.page.remove(*place);
        }
        self.quotas.give(offer.client.holder);
        Some((offer, left))
    }

    /// One whose time is over.
    pub fn expired(&self, now: Instant) -> Option<u32> {
        self.by_time.first_key_value().filter(|((until, _), ())| *until <= now).map(|(&(_, id), ())| id)
    }

    /// When the next one's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|(&(until, _), ())| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::desk::tests::page;

    fn client() -> Client {
        Client { destination: "10.0.0.2:80".parse().unwrap(), holder: (0, 1), groups: 1 }
    }

    const PAIR: Pair = Pair { client: 1, server: 2 };

    #[test]
    fn whatever_is_not_as_it_should_be_is_refused() {
        let server = Server { holder: (0, 2), groups: 1 };
        assert_eq!(judge(&client(), &server), Ok(()));
        assert_eq!(judge(&client(), &Server { holder: (0, 1), ..server }), Err(Misfit::SameNamespace));
        assert_eq!(judge(&client(), &Server { groups: 2, ..server }), Err(Misfit::Rules));
    }

    #[test]
    fn an_offer_ends_in_its_time_and_counts_for_its_user() {
        let (mut offers, begin) = (Offers::<u8>::new(page()), Instant::now());
        let probe = offers.reserve(client(), vec![], begin).unwrap();
        let lane = offers.reserve(client(), vec![7, 8], begin + PROBED).unwrap();
        assert!(offers.has_probes() && offers.open_at(7).count() == 1 && offers.open_at(9).count() == 0);
        assert!(offers.offer(lane, 5) && !offers.offer(lane, 5) && !offers.offer(probe, 5));
        assert_eq!(offers.oldest_of(0), Some(probe));
        assert_eq!(offers.oldest_of(1), None);
        assert_eq!(offers.confirm(probe, PAIR, 1, begin), Some(vec![]));
        assert_eq!(offers.confirm(lane, PAIR, 1, begin), None, "it is another's");
        let other = Pair { client: 3, ..PAIR };
        assert_eq!(offers.confirm(lane, other, 1, begin), Some(vec![(7, None), (8, None)]));
        assert_eq!((offers.of_pair(PAIR), offers.of_pair(other)), (Some(probe), Some(lane)));
        assert_eq!(offers.expired(begin), None);
        assert_eq!(offers.deadline(), Some(begin + PROBED));
        assert_eq!(offers.expired(begin + PROBED), Some(probe));
        assert!(offers.remove(probe).is_some() && !offers.has_probes());
        assert_eq!(offers.expired(begin + PROBED), None);
        assert!(matches!(offers.remove(lane).unwrap().0.content, Content::Confirmed(5, _)));
        assert!(offers.is_empty() && offers.deadline().is_none() && offers.quotas.is_unused());
    }

    #[test]
    fn each_users_oldest_is_found() {
        let (mut offers, begin) = (Offers::<u8>::new(page()), Instant::now());
        let mut made = Vec::new();
        for user in [6, 4, 5, 5, 5] {
            let who = Client { holder: (user, 1), ..client() };
            made.push(offers.reserve(who, vec![1], begin).unwrap());
        }
        assert_eq!([4, 5, 6].map(|user| offers.oldest_of(user)), [1, 2, 0].map(|index| Some(made[index])));
        assert_eq!(offers.remove(made[1]).unwrap().1, [(1, Some(1))], "the first is older");
        for (id, oldest) in [(made[0], 3), (made[2], 4), (made[3], 5)] {
            assert_eq!(offers.remove(id).unwrap().1, [(1, Some(oldest))]);
        }
        assert_eq!(offers.remove(made[4]).unwrap().1, [(1, None)], "the last one there");
    }
}

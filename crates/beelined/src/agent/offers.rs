//! Offers: what clients have left with the agent for the moment between their SYN and the server's `accept`.
//!
//! Rules 15 to 17 of the design. An offer is found by its number, and nothing else; then all the rest has to fit, too. What
//! decides is here, without a system call; [`super::serving`] gets the facts.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_sockets::agent::{Facts, tcp};

/// How long an offer is kept for a server that is slow to accept.
pub const KEPT: Duration = Duration::from_secs(30);
/// How long a client that was given a number may take to leave its parcel.
pub const UNCLAIMED: Duration = Duration::from_secs(1);
/// How long a number without an offer may be asked after.
pub const PROBED: Duration = Duration::from_millis(200);
/// Offers and numbers, in all and for each user.
const OFFERS_MAX: usize = 8192;
const OFFERS_OF_USER_MAX: usize = 2048;

/// The client of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Where it wanted to go.
    pub destination: SocketAddr,
    /// Its network namespace.
    pub namespace: u64,
    /// Its user.
    pub user: u32,
    /// The groups that it may be in; its address was not known yet.
    pub groups: u64,
}

/// Whom things are counted for: a user, within a network namespace, since root of one container is not that of another.
pub type Holder = (u32, u64);

impl Client {
    fn holder(&self) -> Holder {
        (self.user, self.namespace)
    }
}

/// What an offer consists of. `D` is a descriptor.
#[derive(Debug)]
pub enum Content<D> {
    /// A number, to learn where it leads.
    Probe,
    /// A client's socket that has its number, and no parcel yet.
    Claimed {
        /// The socket.
        socket: D,
    },
    /// The whole.
    Whole {
        /// The client's socket.
        socket: D,
        /// The parcel.
        parcel: D,
    },
    /// The client has died, and left behind what it had written.
    Orphaned {
        /// Where the client's socket was bound.
        local: SocketAddr,
        /// The parcel.
        parcel: D,
    },
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
    until: Instant,
}

/// Why a connection does not get the offer of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The socket that asks is not a connection that has just been accepted.
    Asker,
    /// It comes from another address than the client's.
    Address,
    /// The client's socket is not connected, or was moved.
    Client,
    /// Bytes have gone over TCP already.
    Touched,
    /// Both are in one namespace, where doors are the way.
    SameNamespace,
}

/// What the kernel says of the client's socket now.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Its facts.
    pub facts: Facts,
    /// What it would send next.
    pub next_number: Option<u32>,
    /// Whether no byte has come or gone.
    pub is_untouched: bool,
}

/// Whether a client's socket, as the kernel sees it now, and an accepted one are the ends of the connection that the number
/// `number` was given to. `client` is `None` for a client that has died.
pub fn judge(
    number: u32,
    client: &Client,
    now: Option<&Now>,
    local: SocketAddr,
    asker: &Facts,
    asker_is_untouched: bool,
) -> Result<(), Misfit> {
    let Some(comes_from) = asker.remote else { return Err(Misfit::Asker) };
    if !matches!(asker.state, tcp::ESTABLISHED | tcp::CLOSE_WAIT) {
        return Err(Misfit::Asker);
    }
    if comes_from != local {
        return Err(Misfit::Address);
    }
    if asker.namespace == client.namespace {
        return Err(Misfit::SameNamespace);
    }
    if !asker_is_untouched {
        return Err(Misfit::Touched);
    }
    let Some(now) = now else { return Ok(()) };
    if !matches!(now.facts.state, tcp::ESTABLISHED | tcp::CLOSE_WAIT) || now.facts.namespace != client.namespace {
        return Err(Misfit::Client);
    }
    if now.next_number != Some(number.wrapping_add(1)) || !now.is_untouched {
        return Err(Misfit::Touched);
    }
    Ok(())
}

/// All offers, by their numbers.
#[derive(Debug)]
pub struct Offers<D> {
    by_number: HashMap<u32, Offer<D>>,
    by_time: BTreeMap<(Instant, u32), ()>,
    of_users: HashMap<Holder, usize>,
}

impl<D> Default for Offers<D> {
    fn default() -> Self {
        Self { by_number: HashMap::new(), by_time: BTreeMap::new(), of_users: HashMap::new() }
    }
}

impl<D> Offers<D> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether these may have one more.
    pub fn is_room(&self, holder: Holder) -> bool {
        self.len() < OFFERS_MAX && self.of_users.get(&holder).is_none_or(|count| *count < OFFERS_OF_USER_MAX)
    }

    /// A number that is nobody's, of random ones.
    pub fn fresh_number(&self, mut random: impl FnMut() -> Option<u32>) -> Option<u32> {
        (0..64).filter_map(|_| random()).find(|number| *number != 0 && !self.by_number.contains_key(number))
    }

    /// A new offer.
    pub fn insert(&mut self, number: u32, client: Client, content: Content<D>, now: Instant) {
        let lasts = if matches!(content, Content::Probe) { PROBED } else { UNCLAIMED };
        *self.of_users.entry(client.holder()).or_default() += 1;
        let until = now + lasts;
        self.by_time.insert((until, number), ());
        self.by_number.insert(number, Offer { client, content, since: now, until });
    }

    /// The offer of a number.
    pub fn get(&self, number: u32) -> Option<&Offer<D>> {
        self.by_number.get(&number)
    }

    /// Gives an offer another content, and [`KEPT`] from now on. Tells whether there is that offer.
    pub fn change(&mut self, number: u32, now: Instant, change: impl FnOnce(Content<D>) -> Content<D>) -> bool {
        let Some(mut offer) = self.by_number.remove(&number) else { return false };
        self.by_time.remove(&(offer.until, number));
        offer.content = change(offer.content);
        offer.until = now + KEPT;
        self.by_time.insert((offer.until, number), ());
        self.by_number.insert(number, offer);
        true
    }

    /// Takes an offer out.
    pub fn remove(&mut self, number: u32) -> Option<Offer<D>> {
        let offer = self.by_number.remove(&number)?;
        self.by_time.remove(&(offer.until, number));
        if let Some(count) = self.of_users.get_mut(&offer.client.holder()) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&offer.client.holder());
            }
        }
        Some(offer)
    }

    /// Takes out one whose time is over.
    pub fn expired(&mut self, now: Instant) -> Option<(u32, Offer<D>)> {
        let (&(until, number), ()) = self.by_time.first_key_value()?;
        if until > now {
            return None;
        }
        Some((number, self.remove(number)?))
    }

    /// When the next one's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|(&(until, _), ())| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u32 = 0xffff_ffff;

    fn client() -> Client {
        Client { destination: "10.0.0.2:80".parse().unwrap(), namespace: 1, user: 0, groups: 1 }
    }

    fn facts(namespace: u64, local: &str, remote: &str) -> Facts {
        Facts { state: tcp::ESTABLISHED, namespace, local: local.parse().unwrap(), remote: remote.parse().ok() }
    }

    fn now() -> Now {
        Now { facts: facts(1, "10.0.0.1:4000", "10.0.0.2:80"), next_number: Some(0), is_untouched: true }
    }

    fn asker() -> Facts {
        facts(2, "10.0.0.2:80", "10.0.0.1:4000")
    }

    fn judged(now: &Now, asker: &Facts) -> Result<(), Misfit> {
        judge(NUMBER, &client(), Some(now), now.facts.local, asker, true)
    }

    #[test]
    fn two_ends_of_one_connection_fit() {
        assert_eq!(judged(&now(), &asker()), Ok(()));
        // Behind a service address.
        let translated = Facts { local: "10.9.9.9:8080".parse().unwrap(), ..asker() };
        assert_eq!(judged(&now(), &translated), Ok(()));
        assert_eq!(judge(NUMBER, &client(), None, now().facts.local, &asker(), true), Ok(()), "a client that died");
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_refused() {
        assert_eq!(judged(&now(), &Facts { remote: None, ..asker() }), Err(Misfit::Asker));
        assert_eq!(judged(&now(), &Facts { state: tcp::CLOSE, ..asker() }), Err(Misfit::Asker));
        let elsewhere = Facts { remote: "10.0.0.1:4001".parse().ok(), ..asker() };
        assert_eq!(judged(&now(), &elsewhere), Err(Misfit::Address));
        assert_eq!(judged(&now(), &Facts { namespace: 1, ..asker() }), Err(Misfit::SameNamespace));
        let closed = Now { facts: Facts { state: tcp::CLOSE, ..now().facts }, ..now() };
        assert_eq!(judged(&closed, &asker()), Err(Misfit::Client));
        let moved = Now { facts: Facts { namespace: 3, ..now().facts }, ..now() };
        assert_eq!(judged(&moved, &asker()), Err(Misfit::Client));
        for next_number in [None, Some(1), Some(NUMBER)] {
            assert_eq!(judged(&Now { next_number, ..now() }, &asker()), Err(Misfit::Touched));
        }
        assert_eq!(judged(&Now { is_untouched: false, ..now() }, &asker()), Err(Misfit::Touched));
        assert_eq!(judge(NUMBER, &client(), Some(&now()), now().facts.local, &asker(), false), Err(Misfit::Touched));
    }

    #[test]
    fn an_offer_ends_in_its_time_and_counts_for_its_user() {
        let (mut offers, begin) = (Offers::<u8>::default(), Instant::now());
        offers.insert(1, client(), Content::Probe, begin);
        offers.insert(2, client(), Content::Claimed { socket: 7 }, begin);
        assert!(offers.change(2, begin, |content| match content {
            Content::Claimed { socket } => Content::Whole { socket, parcel: 8 },
            other => other,
        }));
        assert!(!offers.change(3, begin, |content| content));
        assert_eq!(offers.deadline(), Some(begin + PROBED));
        assert!(offers.expired(begin).is_none());
        assert_eq!(offers.expired(begin + UNCLAIMED).map(|(number, _)| number), Some(1));
        assert!(offers.expired(begin + UNCLAIMED).is_none());
        assert_eq!(offers.fresh_number(|| Some(2)), None);
        assert_eq!(offers.fresh_number(|| Some(1)), Some(1));
        assert!(matches!(offers.remove(2).unwrap().content, Content::Whole { socket: 7, parcel: 8 }));
        assert!(offers.is_empty() && offers.deadline().is_none() && offers.of_users.is_empty());
    }

    #[test]
    fn a_user_has_a_share() {
        let (mut offers, now) = (Offers::<u8>::default(), Instant::now());
        for number in 1..=OFFERS_OF_USER_MAX as u32 {
            assert!(offers.is_room((0, 1)));
            offers.insert(number, client(), Content::Probe, now);
        }
        assert!(!offers.is_room((0, 1)) && offers.is_room((1, 1)) && offers.is_room((0, 2)));
    }
}

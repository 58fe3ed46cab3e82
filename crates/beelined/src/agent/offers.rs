//! Offers: what the agent keeps of a connection from the client's query to the server's `accept`.
//!
//! An offer is found by its number, and nothing else; then the rest has to fit, too ([`judge`]). What decides is here and in
//! [`super::desk`], without a system call.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::shares::{Holder, Limits, Room, Shares};

/// How long an offer is kept for a server that is slow to accept.
pub const KEPT: Duration = Duration::from_secs(30);
/// How long a client that was given a number may take to be connected.
pub const UNCONFIRMED: Duration = Duration::from_secs(3);
/// How long it may take once its server has asked: so long that server waits.
pub const ASKED: Duration = Duration::from_millis(20);
/// How long a number without an offer may be asked after.
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

/// A server that waits for an offer's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The carrier to answer on.
    pub carrier: u64,
    /// Who it is.
    pub server: Server,
    /// Where its connection comes from.
    pub remote: SocketAddr,
}

/// What an offer consists of. `D` is a descriptor.
#[derive(Debug)]
pub enum Content<D> {
    /// A number that is being given to a socket.
    Reserved,
    /// A number, to learn where it leads.
    Probe,
    /// A lane whose client is on its way. Nobody gets it.
    Offered {
        /// The server's end.
        parcel: D,
        /// Who has asked for it.
        waiting: Option<Waiting>,
    },
    /// A lane whose client is connected, from this address.
    Confirmed {
        /// The server's end.
        parcel: D,
        /// The client's address.
        local: SocketAddr,
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
    /// It comes from another address than the client's.
    Address,
    /// Both are in one namespace, where doors are the way.
    SameNamespace,
    /// They may not meet.
    Rules,
}

/// Whether a server that knows the number of an offer holds the other end of the client's connection, and may have a lane.
///
/// # Errors
/// Why not.
pub fn judge(client: &Client, local: SocketAddr, server: &Server, remote: SocketAddr) -> Result<(), Misfit> {
    if remote != local {
        return Err(Misfit::Address);
    }
    if server.holder.1 == client.holder.1 {
        return Err(Misfit::SameNamespace);
    }
    if server.groups & client.groups == 0 {
        return Err(Misfit::Rules);
    }
    Ok(())
}

/// All offers, by their numbers.
#[derive(Debug)]
pub struct Offers<D> {
    by_number: HashMap<u32, Offer<D>>,
    by_time: BTreeMap<(Instant, u32), ()>,
    shares: Shares,
}

impl<D> Default for Offers<D> {
    fn default() -> Self {
        Self { by_number: HashMap::new(), by_time: BTreeMap::new(), shares: Shares::new(OFFERS) }
    }
}

impl<D> Offers<D> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Whether there is room for one more.
    pub fn room(&self, holder: Holder) -> Room {
        self.shares.room(holder)
    }

    /// The number of a user's oldest offer.
    pub fn oldest_of(&self, user: u32) -> Option<u32> {
        let of_user = self.by_number.iter().filter(|(_, offer)| offer.client.holder.0 == user);
        of_user.min_by_key(|(_, offer)| offer.since).map(|(number, _)| *number)
    }

    /// A number that is nobody's, of random ones.
    pub fn fresh_number(&self, mut random: impl FnMut() -> Option<u32>) -> Option<u32> {
        (0..64).filter_map(|_| random()).find(|number| *number != 0 && !self.by_number.contains_key(number))
    }

    /// A new offer, of which there is only a number that is being given. False if there is no room.
    pub fn reserve(&mut self, number: u32, client: Client, now: Instant) -> bool {
        let taken = self.shares.take(client.holder);
        if taken {
            let until = now + UNCONFIRMED;
            self.by_time.insert((until, number), ());
            self.by_number.insert(number, Offer { client, content: Content::Reserved, since: now, until });
        }
        taken
    }

    /// The offer of a number.
    pub fn get(&self, number: u32) -> Option<&Offer<D>> {
        self.by_number.get(&number)
    }

    /// Gives an offer another content, and so much time from now on. Tells whether there is that offer.
    pub fn change(
        &mut self,
        number: u32,
        until: Instant,
        change: impl FnOnce(&mut Client, Content<D>) -> Content<D>,
    ) -> bool {
        let Some(mut offer) = self.by_number.remove(&number) else { return false };
        self.by_time.remove(&(offer.until, number));
        offer.content = change(&mut offer.client, offer.content);
        offer.until = until;
        self.by_time.insert((until, number), ());
        self.by_number.insert(number, offer);
        true
    }

    /// Takes an offer out.
    pub fn remove(&mut self, number: u32) -> Option<Offer<D>> {
        let offer = self.by_number.remove(&number)?;
        self.by_time.remove(&(offer.until, number));
        self.shares.give(offer.client.holder);
        Some(offer)
    }

    /// The number of one whose time is over.
    pub fn expired(&self, now: Instant) -> Option<u32> {
        self.by_time.first_key_value().filter(|((until, _), ())| *until <= now).map(|(&(_, number), ())| number)
    }

    /// When the next one's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|(&(until, _), ())| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client { destination: "10.0.0.2:80".parse().unwrap(), holder: (0, 1), groups: 1 }
    }

    #[test]
    fn whatever_is_not_as_it_should_be_is_refused() {
        let (here, there) = ("10.0.0.1:4000".parse().unwrap(), "10.0.0.1:4001".parse().unwrap());
        let server = Server { holder: (0, 2), groups: 1 };
        assert_eq!(judge(&client(), here, &server, here), Ok(()));
        assert_eq!(judge(&client(), here, &server, there), Err(Misfit::Address));
        assert_eq!(judge(&client(), here, &Server { holder: (0, 1), ..server }, here), Err(Misfit::SameNamespace));
        assert_eq!(judge(&client(), here, &Server { groups: 2, ..server }, here), Err(Misfit::Rules));
    }

    #[test]
    fn an_offer_ends_in_its_time_and_counts_for_its_user() {
        let (mut offers, begin) = (Offers::<u8>::default(), Instant::now());
        assert!(offers.reserve(1, client(), begin) && offers.reserve(2, client(), begin));
        assert!(offers.change(1, begin + PROBED, |_, _| Content::Probe));
        assert!(offers.change(2, begin + KEPT, |_, _| Content::Offered { parcel: 8, waiting: None }));
        assert!(!offers.change(3, begin, |_, content| content));
        assert_eq!(offers.deadline(), Some(begin + PROBED));
        assert_eq!(offers.expired(begin), None);
        assert_eq!(offers.expired(begin + PROBED), Some(1));
        assert!(offers.remove(1).is_some());
        assert_eq!(offers.expired(begin + PROBED), None);
        assert_eq!(offers.fresh_number(|| Some(2)), None);
        assert_eq!(offers.fresh_number(|| Some(1)), Some(1));
        assert_eq!(offers.oldest_of(0), Some(2));
        assert!(matches!(offers.remove(2).unwrap().content, Content::Offered { parcel: 8, .. }));
        assert!(offers.is_empty() && offers.deadline().is_none() && offers.shares.is_unused());
    }
}

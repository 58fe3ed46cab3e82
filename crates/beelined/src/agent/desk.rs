//! What the agent knows, and what it decides. Nothing in here waits, nor asks the kernel: [`super::serving`] does.
//!
//! 1. A client's query makes an offer, marked on the page ([`Desk::query`]); then the client gets its end of a lane,
//!    and the desk the server's ([`Desk::offered`]).
//! 2. That one is given to nobody before the client has said that its own end is in place, and the kernel over which
//!    connection ([`Desk::confirmed`]). Whatever fails at the client before has no witness.
//! 3. A server that asks before that waits ([`super::waiting`]), 20 ms at most, and for no offer that was made later;
//!    where others were kept waiting for too long, 1 ms. A client who lets servers wait too often, and confirms too
//!    late or not at all, has no offers for the rest of a minute; what it confirms in time makes up for some of that.
//! 4. An offer is given once, to who holds the other end of that connection, by the kernel's word.
//! 5. Everybody has a share of the agent's time: so many messages in a second ([`Desk::may_speak`]), so many
//!    announcements, and so many probes, since all servers of the host ask for those. And who proves connections for
//!    which there is no offer is not heard any more for the rest of a second ([`Desk::may_ask`]): nobody finds an offer
//!    by trying. Nor is a client heard that has no offer to confirm, or that shows too often what proves nothing
//!    ([`Desk::may_confirm`]): a proof costs more than a message.
//!
//! 6. A client whose connection is a probe hears that it is known when its server has asked, or [`shares::HELD`] later:
//!    bytes that it sends before the server has asked leave nothing to prove.
//!
//! `C` is a carrier, `D` the server's end of a lane. Both are closed with care by whoever drops them last.

mod shares;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_meeting::agent::host::{Page, Pair};
use beeline_wire::agent::{Answer, Besides};

use self::shares::{
    ANNOUNCED, CARRIERS, HARDLY_OFFERED, HASTE, HELD, MAKES_UP, MESSAGES, MISLED, MISSED, NEVER_IN_PLACE, PROBES,
    SPEAKS_TIMES, SPEAKS_WITHIN, STALLED_MAX, TARDY, UNPROVED, UNREAD, VAIN_MAX,
};
use super::lately::{Faults, Lately, Stalls};
use super::offers::{Client, Content, Left, Offer, Offers, Server, judge};
use super::quotas::{Holder, Quotas, Room};
use super::served::Served;
use super::waiting::{ASKED, Asked, Waiting};

/// An answer to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The destination seems to be served: there is to be a lane for this offer.
    Likely(u32),
    /// Nobody knows; the connection will tell.
    Probe,
}

#[derive(Debug)]
struct Entry<C> {
    carrier: C,
    holder: Holder,
    /// The client's offer, until that says that it is connected.
    offer: Option<u32>,
    until: Instant,
    /// How often it has spoken.
    spoken: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Desk<C, D> {
    cuts: bool,
    has_ended: bool,
    carriers: HashMap<u64, Entry<C>>,
    by_time: BTreeMap<(Instant, u64), ()>,
    /// Of each user, in the order in which they came.
    by_user: BTreeMap<(u32, u64), ()>,
    quotas: Quotas,
    offers: Offers<D>,
    waiting: Waiting,
    /// Until when which carriers' answers are kept, for which probes.
    held: VecDeque<(Instant, u64, u32)>,
    served: Served,
    messages: Lately,
    unread: Lately,
    announced: Lately,
    probes: Lately,
    missed: Lately,
    misled: Lately,
    unproved: Lately,
    vain: Faults,
    stalls: Stalls,
}

impl<C: Clone, D: Clone> Desk<C, D> {
    /// A desk at which nobody has been. `cuts`: whether lanes end with their TCP connections.
    pub fn new(page: Page, cuts: bool, now: Instant) -> Self {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Self {
            cuts,
            has_ended: false,
            carriers: HashMap::new(),
            by_time: BTreeMap::new(),
            by_user: BTreeMap::new(),
            quotas: Quotas::new(CARRIERS),
            offers: Offers::new(page),
            waiting: Waiting::default(),
            held: VecDeque::new(),
            served: Served::new(now),
            messages: Lately::new(second, MESSAGES, now),
            unread: Lately::new(second, UNREAD, now),
            announced: Lately::new(second, ANNOUNCED, now),
            probes: Lately::new(second, PROBES, now),
            missed: Lately::new(second, MISSED, now),
            misled: Lately::new(second, MISLED, now),
            unproved: Lately::new(second, UNPROVED, now),
            vain: Faults::new(minute, VAIN_MAX, MAKES_UP, now),
            stalls: Stalls::new(minute, STALLED_MAX, now),
        }
    }

    /// When there is something to do, even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        let carrier = self.by_time.first_key_value().map(|(&(until, _), ())| until);
        let held = self.held.front().map(|&(until, ..)| until);
        carrier.into_iter().chain(self.offers.deadline()).chain(self.waiting.deadline()).chain(held).min()
    }

    /// The thread that calls this shows on the page that the agent runs.
    pub fn begin_beating(&self) {
        self.offers.page().is_this_threads();
    }

    /// Shows on the page that the agent runs, until it ends.
    pub fn beat(&self) {
        if !self.has_ended {
            self.offers.page().beat();
        }
    }

    /// Shows that it runs no more.
    pub fn end(&mut self) {
        self.has_ended = true;
        self.offers.page().end();
    }

    // ---- carriers

    /// A new carrier. False if there is no room for it. Carriers come with rising numbers.
    pub fn come(&mut self, id: u64, carrier: C, holder: Holder, now: Instant) -> bool {
        if let Room::InPlaceOf(user) = self.quotas.room(holder) {
            let oldest = self.by_user.range((user, 0)..=(user, u64::MAX)).next().map(|(&(_, id), ())| id);
            if let Some(oldest) = oldest {
                // Whoever waits there has its own patience.
                let _ = self.gone(oldest, now);
            }
        }
        let taken = self.may_speak(holder, now) && self.quotas.take(holder);
        if taken {
            let until = now + SPEAKS_WITHIN;
            self.by_time.insert((until, id), ());
            self.by_user.insert((holder.0, id), ());
            self.carriers.insert(id, Entry { carrier, holder, offer: None, until, spoken: 0 });
        }
        taken
    }

    /// Whether a holder has a message left in this second. It has one less then.
    pub fn may_speak(&mut self, holder: Holder, now: Instant) -> bool {
        self.messages.take(holder, now)
    }

    /// Whether a holder, who asks more and has not read what he has asked for, does so seldom.
    pub fn seldom_leaves_unread(&mut self, holder: Holder, now: Instant) -> bool {
        self.unread.take(holder, now)
    }

    /// Whether a holder may announce something in this second.
    pub fn may_announce(&mut self, holder: Holder, now: Instant) -> bool {
        self.announced.take(holder, now)
    }

    /// Whether a carrier may speak once more.
    pub fn goes_on(&mut self, id: u64) -> bool {
        let Some(entry) = self.carriers.get_mut(&id).filter(|entry| entry.spoken < SPEAKS_TIMES) else { return false };
        entry.spoken += 1;
        true
    }

    /// Whether a server at this place may ask about a connection: so many that have no offer are proved for it in a
    /// second.
    pub fn may_ask(&mut self, holder: Holder, place: u32, now: Instant) -> bool {
        self.misses_at(place).counts(now).has_room(holder)
    }

    /// Where it counts that a server at this place has asked in vain. What makes it ask is none of its doing.
    fn misses_at(&mut self, place: u32) -> &mut Lately {
        match self.offers.page().tells_of(place) {
            true => &mut self.misled,
            false => &mut self.missed,
        }
    }

    /// The offer for which it is worth a proof that a client says that it is connected: it must have one, which is
    /// there still, and to the address that the offer is for. That it is connected there is part of the proof.
    ///
    /// # Errors
    /// What it is told else; there is nothing more to hear from it.
    pub fn may_confirm(&mut self, id: u64, remote: SocketAddr, now: Instant) -> Result<u32, Answer> {
        let entry = self.carriers.get(&id).ok_or(Answer::Refused)?;
        let (holder, offer) = (entry.holder, entry.offer.ok_or(Answer::Refused)?);
        if self.offers.get(offer).is_none_or(|offer| offer.client.destination != remote) {
            return Err(Answer::Refused);
        }
        if self.unproved.counts(now).has_room(holder) { Ok(offer) } else { Err(Answer::Full) }
    }

    /// A carrier, and whose it is.
    pub fn carrier(&self, id: u64) -> Option<(C, Holder)> {
        self.carriers.get(&id).map(|entry| (entry.carrier.clone(), entry.holder))
    }

    /// A carrier has ended. A client that has not said that it is connected takes its offer with it.
    pub fn gone(&mut self, id: u64, now: Instant) -> Vec<Say<C, D>> {
        let Some(entry) = self.carriers.remove(&id) else { return Vec::new() };
        self.by_time.remove(&(entry.until, id));
        self.by_user.remove(&(entry.holder.0, id));
        self.quotas.give(entry.holder);
        entry.offer.map(|offer| self.forget(offer, now)).unwrap_or_default()
    }

    fn say(&self, carrier: u64, answer: Answer, besides: Besides, with: Option<D>) -> Vec<Say<C, D>> {
        let entry = self.carriers.get(&carrier);
        entry.map(|entry| Say { to: entry.carrier.clone(), answer, besides, with }).into_iter().collect()
    }

    fn plainly(&self, carrier: u64, answer: Answer) -> Vec<Say<C, D>> {
        self.say(carrier, answer, Besides::default(), None)
    }

    // ---- clients

    /// A client of these groups asks. `learn`: whether a probe is worth its while where nobody is known.
    pub fn query(&mut self, id: u64, destination: SocketAddr, groups: u64, learn: bool, now: Instant) -> Queried {
        let Some(entry) = self.carriers.get(&id).filter(|entry| entry.offer.is_none() && groups != 0) else {
            return Queried::No(Answer::Refused);
        };
        let holder = entry.holder;
        let places = self.served.likely(destination, holder, groups, now);
        if places.is_empty() {
            let may_learn = learn && self.served.may_learn(destination, holder, now);
            if !may_learn || !self.probes.take(holder, now) {
                return Queried::No(Answer::Unknown);
            }
        } else if !self.vain.counts(now).has_room(holder) {
            return Queried::No(Answer::Full);
        }
        if let Room::InPlaceOf(user) = self.offers.room(holder)
            && let Some(oldest) = self.offers.oldest_of(user)
        {
            // Whoever waits for it has its own patience.
            let _ = self.forget(oldest, now);
        }
        let is_likely = !places.is_empty();
        let Some(offer) = self.offers.reserve(Client { destination, holder, groups }, places, now) else {
            return Queried::No(Answer::Full);
        };
        if is_likely {
            return Queried::Likely(offer);
        }
        if let Some(entry) = self.carriers.get_mut(&id) {
            entry.offer = Some(offer);
        }
        Queried::Probe
    }

    /// There is a lane for an offer. False if the client has gone meanwhile.
    pub fn offered(&mut self, id: u64, offer: u32, parcel: D, now: Instant) -> bool {
        let is_there = match self.carriers.get_mut(&id) {
            Some(entry) => {
                entry.offer = Some(offer);
                self.offers.offer(offer, parcel)
            }
            None => false,
        };
        if !is_there {
            let _ = self.forget(offer, now);
        }
        is_there
    }

    /// An offer ends. Who waits for it perhaps hears that there is none; and if its client was never in place, that is
    /// counted.
    pub fn forget(&mut self, offer: u32, now: Instant) -> Vec<Say<C, D>> {
        let Some((Offer { client, content, made, .. }, left)) = self.offers.remove(offer) else { return Vec::new() };
        let has_made_wait = left.iter().any(|(place, _)| self.waiting.any_for(*place, made));
        if has_made_wait && matches!(content, Content::Reserved | Content::Offered(_)) {
            self.vain.take(client.holder, now);
        }
        self.nobody_comes(left, NEVER_IN_PLACE, now).0
    }

    /// An offer is on its way to these places no more: whoever waited for it, or for older ones, does so no more. And
    /// how long that was, at most. It counts so many times.
    fn nobody_comes(&mut self, left: Left, times: u32, now: Instant) -> (Vec<Say<C, D>>, Duration) {
        let in_vain = left.into_iter().flat_map(|(place, oldest)| self.waiting.take_before(place, oldest));
        let in_vain: Vec<_> = in_vain.collect();
        let (mut says, mut longest) = (Vec::new(), Duration::ZERO);
        for (pair, asked) in in_vain {
            longest = longest.max(now.saturating_duration_since(asked.since));
            says.extend(self.waited_in_vain(pair, asked, times, now));
        }
        (says, longest)
    }

    /// A server has waited, and nobody has come.
    fn waited_in_vain(&mut self, pair: Pair, asked: Asked, times: u32, now: Instant) -> Vec<Say<C, D>> {
        let waited = now.saturating_duration_since(asked.since);
        self.stalls.count(asked.listener(), waited.saturating_sub(HASTE) * times, now);
        // Its client may be slow, and is told at once that the server has gone on.
        self.waiting.remember(pair, asked, now);
        self.plainly(asked.carrier, Answer::None)
    }

    /// The client's end is in place, over this connection by the kernel's word, if it is one; with its address the
    /// client is in these groups. It hears that, and so does who waits for it.
    pub fn confirmed(&mut self, id: u64, pair: Option<Pair>, groups: u64, now: Instant) -> Vec<Say<C, D>> {
        let offer = self.carriers.get_mut(&id).and_then(|entry| entry.offer.take());
        let Some(offer) = offer else { return self.plainly(id, Answer::Refused) };
        let Some((pair, left)) = pair.and_then(|pair| Some((pair, self.offers.confirm(offer, pair, groups, now)?)))
        else {
            // The lane is closed, and the client goes on over TCP.
            if let Some(holder) = self.carriers.get(&id).map(|entry| entry.holder) {
                self.unproved.take(holder, now);
            }
            let mut says = self.forget(offer, now);
            says.extend(self.plainly(id, Answer::Unproved));
            return says;
        };
        let holder = self.carriers.get(&id).map(|entry| entry.holder);
        let is_in_time = |offer: &Offer<D>| now.saturating_duration_since(offer.since) < TARDY;
        if let Some(holder) = holder.filter(|_| self.offers.get(offer).is_some_and(is_in_time)) {
            self.vain.make_up(holder, now);
        }
        let mut says = self.plainly(id, Answer::Done);
        if let Some(asked) = self.waiting.take(pair) {
            says.extend(self.answer(offer, &asked, now));
        } else if let Some(asked) = self.waiting.remembered(pair, now) {
            // The server has gone on over TCP.
            self.learn(offer, &asked, now);
            says.extend(self.forget(offer, now));
        } else if self.offers.get(offer).is_some_and(|offer| matches!(offer.content, Content::Probed(_))) {
            self.held.push_back((now + HELD, id, offer));
            says.clear();
        }
        let (in_vain, waited) = self.nobody_comes(left, 1, now);
        if let Some(holder) = holder.filter(|_| waited >= TARDY) {
            self.vain.take(holder, now);
        }
        says.extend(in_vain);
        says
    }

    /// The lane of an offer whose client is in place.
    pub fn parcel_of(&self, offer: u32) -> Option<D> {
        match &self.offers.get(offer)?.content {
            Content::Confirmed(parcel, _) => Some(parcel.clone()),
            _ => None,
        }
    }

    /// The client's end of an offer's lane is closed. If it has been taken back there is nothing to take, and nobody
    /// asks for it any more. If its client has died, what that has written is kept for its server, of which that tells
    /// nothing.
    pub fn hung_up(&mut self, offer: u32, taken_back: bool, now: Instant) -> Vec<Say<C, D>> {
        let Some(Offer { client, content: Content::Confirmed(..), since, .. }) = self.offers.get(offer) else {
            return Vec::new();
        };
        if taken_back && now.saturating_duration_since(*since) >= HARDLY_OFFERED {
            self.served.disappointed(client.destination, client.holder, now);
        }
        if taken_back { self.forget(offer, now) } else { Vec::new() }
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

    /// A server has accepted this connection.
    pub fn asked(&mut self, pair: Pair, asked: Asked, now: Instant) -> Vec<Say<C, D>> {
        if let Some(offer) = self.offers.of_pair(pair) {
            return self.answer(offer, &asked, now);
        }
        let is_open = self.offers.open_at(asked.place).next().is_some();
        let patience = if self.stalls.are_enough(asked.listener(), now) { HASTE } else { ASKED };
        let asked = Asked { newest: self.offers.newest(), patience, ..asked };
        if is_open && self.waiting.add(pair, asked) {
            return Vec::new();
        }
        self.misses_at(asked.place).take(asked.server.holder, now);
        if self.offers.has_probes() {
            self.waiting.remember(pair, asked, now);
        }
        self.plainly(asked.carrier, Answer::None)
    }

    /// The answer to a server about the offer for its connection, which ends by it.
    fn answer(&mut self, offer: u32, asked: &Asked, now: Instant) -> Vec<Say<C, D>> {
        self.learn(offer, asked, now);
        let Some((Offer { client, content, .. }, left)) = self.offers.remove(offer) else { return Vec::new() };
        let mut says = match content {
            Content::Confirmed(parcel, _) if judge(&client, &asked.server).is_ok() => {
                let own_user = client.holder.0 == 0 || client.holder.0 == asked.server.holder.0;
                self.say(asked.carrier, Answer::Lane, Besides { cuts: self.cuts, own_user }, Some(parcel))
            }
            // If there is a lane it is closed, and the client goes on over TCP at once.
            _ => self.plainly(asked.carrier, Answer::None),
        };
        says.extend(self.nobody_comes(left, 1, now).0);
        if let Some(index) = self.held.iter().position(|&(.., held)| held == offer) {
            says.extend(self.held.remove(index).map(|(_, id, _)| self.plainly(id, Answer::Done)).unwrap_or_default());
        }
        says
    }

    /// What a question tells of where its server can be found.
    fn learn(&mut self, offer: u32, asked: &Asked, now: Instant) {
        let Some(Offer { client, .. }) = self.offers.get(offer) else { return };
        if asked.server.groups != 0 && client.holder.1 != asked.server.holder.1 {
            let (destination, holder) = (client.destination, client.holder);
            self.served.reached(destination, holder, asked.server, (asked.at, asked.is_own), now);
        }
    }

    // ---- time

    /// What is over by now is over.
    pub fn expire(&mut self, now: Instant) -> Vec<Say<C, D>> {
        let mut says = Vec::new();
        while let Some(&(until, id, _)) = self.held.front()
            && until <= now
        {
            self.held.pop_front();
            says.extend(self.plainly(id, Answer::Done));
        }
        while let Some((pair, asked)) = self.waiting.expired(now) {
            // Those that were on their way all the time are to blame, each once, if that was long.
            let slow = self.offers.open_at(asked.place).filter(|offer| offer.made <= asked.newest);
            let slow = slow.filter(|_| asked.patience > HASTE);
            let slow: HashSet<Holder> = slow.map(|offer| offer.client.holder).collect();
            for holder in slow {
                self.vain.take(holder, now);
            }
            self.misses_at(asked.place).take(asked.server.holder, now);
            says.extend(self.waited_in_vain(pair, asked, NEVER_IN_PLACE, now));
        }
        while let Some(id) = self.offers.expired(now) {
            if let Some(Offer { client, content, .. }) = self.offers.get(id) {
                let (destination, holder) = (client.destination, client.holder);
                match content {
                    Content::Confirmed(..) => self.served.disappointed(destination, holder, now),
                    Content::Probe | Content::Probed(_) => self.served.fruitless(destination, holder, now),
                    _ => {}
                }
            }
            says.extend(self.forget(id, now));
        }
        while let Some((&(until, id), ())) = self.by_time.first_key_value() {
            if until > now {
                break;
            }
            says.extend(self.gone(id, now));
        }
        says
    }
}

#[cfg(test)]
pub mod tests;

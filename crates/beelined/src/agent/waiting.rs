//! Servers that ask before their client is in place.
//!
//! 1. A server waits if a client is on its way to its place, for [`ASKED`] at most, and not longer than any of those is
//!    that were on their way when it asked: one that comes later cannot be the one that it has accepted. Where others
//!    have been kept waiting for too long it waits all the same, but only as long as a client takes that makes haste:
//!    one that is woken by the kernel's last step of the handshake asks before its client can be in place.
//! 2. While there are probes, whoever has asked in vain is remembered for a moment: the probe's client may be told of
//!    later. So is whoever has waited in vain: its client hears at once that the server has gone on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use beeline_meeting::agent::host::Pair;

use super::offers::{PROBED, Server};

/// How long a server waits for a client that is on its way.
pub const ASKED: Duration = Duration::from_millis(20);
const LATELY_MAX: usize = 1024;

/// A server's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The carrier to answer on.
    pub carrier: u64,
    /// Who it is.
    pub server: Server,
    /// Its own address.
    pub at: SocketAddr,
    /// Whether that is one of its namespace's.
    pub is_own: bool,
    /// Its place on the page.
    pub place: u32,
    /// When it has asked.
    pub since: Instant,
    /// How long it waits at most, which the desk says.
    pub patience: Duration,
    /// The newest offer that there was then, by its number in the order of offers.
    pub newest: u64,
}

impl Asked {
    /// Its listener, as far as the page tells: network namespace and place.
    pub fn listener(&self) -> (u64, u32) {
        (self.server.holder.1, self.place)
    }

    /// When it waits no more.
    fn until(&self) -> Instant {
        self.since + self.patience
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Waiting {
    by_pair: HashMap<Pair, Asked>,
    by_time: BTreeMap<(Instant, Pair), ()>,
    at: HashMap<u32, BTreeSet<Pair>>,
    lately: HashMap<Pair, Asked>,
    in_turn: BTreeMap<(Instant, Pair), ()>,
}

impl Waiting {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.by_pair.is_empty() && self.by_time.is_empty() && self.at.is_empty()
    }

    /// A server waits. False if one does for that connection already.
    pub fn add(&mut self, pair: Pair, asked: Asked) -> bool {
        if self.by_pair.contains_key(&pair) {
            return false;
        }
        self.by_time.insert((asked.until(), pair), ());
        self.at.entry(asked.place).or_default().insert(pair);
        self.by_pair.insert(pair, asked);
        true
    }

    /// Who waits for this connection does so no more.
    pub fn take(&mut self, pair: Pair) -> Option<Asked> {
        let asked = self.by_pair.remove(&pair)?;
        self.by_time.remove(&(asked.until(), pair));
        if let Some(there) = self.at.get_mut(&asked.place) {
            there.remove(&pair);
            if there.is_empty() {
                self.at.remove(&asked.place);
            }
        }
        Some(asked)
    }

    /// Whether anybody waits at a place for an offer.
    pub fn any_for(&self, place: u32, offer: u64) -> bool {
        let mut there = self.at.get(&place).into_iter().flatten().filter_map(|pair| self.by_pair.get(pair));
        there.any(|asked| asked.newest >= offer)
    }

    /// All who wait at a place for offers older than this one do so no more; all, if there is none.
    pub fn take_before(&mut self, place: u32, oldest: Option<u64>) -> Vec<(Pair, Asked)> {
        let there = self.at.get(&place).into_iter().flatten().copied();
        let is_over =
            |pair: &Pair| self.by_pair.get(pair).is_some_and(|asked| oldest.is_none_or(|oldest| asked.newest < oldest));
        let there: Vec<Pair> = there.filter(is_over).collect();
        there.into_iter().filter_map(|pair| self.take(pair).map(|asked| (pair, asked))).collect()
    }

    /// One that has waited long enough.
    pub fn expired(&mut self, now: Instant) -> Option<(Pair, Asked)> {
        let (&(until, pair), ()) = self.by_time.first_key_value()?;
        if until > now { None } else { self.take(pair).map(|asked| (pair, asked)) }
    }

    /// When the next one has.
    pub fn deadline(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|(&(until, _), ())| until)
    }

    /// A server has asked in vain.
    pub fn remember(&mut self, pair: Pair, asked: Asked, now: Instant) {
        if let Some(before) = self.lately.remove(&pair) {
            self.in_turn.remove(&(before.since, pair));
        }
        while let Some((&(since, oldest), ())) = self.in_turn.first_key_value()
            && (since + PROBED <= now || self.in_turn.len() >= LATELY_MAX)
        {
            self.in_turn.remove(&(since, oldest));
            self.lately.remove(&oldest);
        }
        self.lately.insert(pair, asked);
        self.in_turn.insert((asked.since, pair), ());
    }

    /// Who has asked for this connection lately.
    pub fn remembered(&mut self, pair: Pair, now: Instant) -> Option<Asked> {
        let asked = self.lately.remove(&pair)?;
        self.in_turn.remove(&(asked.since, pair));
        (now < asked.since + PROBED).then_some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(carrier: u64, place: u32, since: Instant) -> Asked {
        let server = Server { holder: (0, 1), groups: 1 };
        Asked {
            carrier,
            server,
            at: "10.0.0.2:80".parse().unwrap(),
            is_own: true,
            place,
            since,
            patience: ASKED,
            newest: carrier,
        }
    }

    fn pair(client: u64) -> Pair {
        Pair { client, server: 0 }
    }

    #[test]
    fn who_waits_is_found_by_connection_by_place_and_by_time() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        for number in 0..4u32 {
            let carrier = u64::from(number);
            assert!(waiting.add(pair(carrier), asked(carrier, number % 2, now)));
        }
        assert!(!waiting.add(pair(0), asked(9, 0, now)));
        assert_eq!(waiting.take(pair(0)).map(|asked| asked.carrier), Some(0));
        // They wait for offers up to their carrier's number here.
        assert!(waiting.any_for(1, 3) && !waiting.any_for(1, 4) && !waiting.any_for(7, 1));
        assert_eq!(waiting.take_before(1, Some(1)).len(), 0);
        assert_eq!(waiting.take_before(1, Some(2)).len(), 1);
        assert_eq!(waiting.take_before(1, None).len(), 1);
        assert_eq!((waiting.expired(now), waiting.deadline()), (None, Some(now + ASKED)));
        assert_eq!(waiting.expired(now + ASKED).map(|(pair, _)| pair), Some(pair(2)));
        assert!(waiting.is_empty() && waiting.deadline().is_none());
    }

    #[test]
    fn who_has_asked_in_vain_is_remembered_for_a_moment_and_not_without_end() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.remember(pair(1), asked(1, 0, now), now);
        assert!(waiting.remembered(pair(1), now).is_some() && waiting.remembered(pair(1), now).is_none());
        waiting.remember(pair(2), asked(2, 0, now), now);
        assert!(waiting.remembered(pair(2), now + PROBED).is_none());
        for number in 0..3000 {
            waiting.remember(pair(number), asked(1, 0, now), now);
            waiting.remember(pair(number), asked(1, 0, now), now);
        }
        assert_eq!((waiting.lately.len(), waiting.in_turn.len()), (LATELY_MAX, LATELY_MAX));
        waiting.remember(pair(1), asked(1, 0, now + PROBED), now + PROBED);
        assert_eq!((waiting.lately.len(), waiting.in_turn.len()), (1, 1));
    }
}

//! When to connect to a configured peer.
//!
//! 1. There is one attempt at a time, at each of the peer's addresses in turn.
//! 2. After a failure the wait doubles, up to [`WAIT_MAX`]; half of it is chance, so that two bridges, or all bridges
//!    after a power cut, do not keep step.
//! 3. A connection that stood and ended is made anew soon: that is how a restart looks. The wait doubles with each that
//!    ends before [`STEADY`], too, as where the other bridge says good-bye as soon as it has heard who we are.
//! 4. The bridge with the greater name lets the other begin, since its connection would win anyway.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::end::End;
use super::event::PeerId;
use super::random::random;
use crate::config::Peer;
use crate::name::BridgeName;

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
const COURTESY: Duration = Duration::from_millis(500);
/// A connection that has stood for so long was a good one.
const STEADY: Duration = Duration::from_secs(10);

/// Connects to one peer.
#[derive(Debug)]
pub struct Dialer {
    /// Whom.
    pub peer: Peer,
    /// The attempt that is going on.
    pub attempt: Option<PeerId>,
    /// Why the last attempt failed.
    pub last_end: Option<String>,
    next_address: usize,
    failures: u32,
    /// Connections in a row that stood, and not for long.
    brief: u32,
    at: Instant,
}

impl Dialer {
    /// Begins soon.
    pub fn new(peer: Peer, own: &BridgeName, now: Instant) -> Self {
        let at = if *own < peer.name { now } else { now + COURTESY };
        Self { peer, attempt: None, last_end: None, next_address: 0, failures: 0, brief: 0, at }
    }

    /// When the next attempt is due, if none is going on.
    pub fn due(&self) -> Option<Instant> {
        self.attempt.is_none().then_some(self.at)
    }

    /// The address to try now.
    pub fn next_address(&mut self) -> SocketAddr {
        let address = self.peer.control[self.next_address % self.peer.control.len()];
        self.next_address = self.next_address.wrapping_add(1);
        address
    }

    /// A connection to the peer stands, whoever made it.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.last_end = None;
    }

    /// A connection to the peer has ended that stood for a time, or an attempt has failed. Says whether that is news.
    pub fn ended(&mut self, why: &End, stood: Option<Duration>, now: Instant, chance: f64) -> bool {
        if stood.is_some() {
            // Where it was good it may well be good at once.
            self.next_address = self.next_address.wrapping_sub(1);
        }
        if stood.is_some_and(|stood| stood >= STEADY) {
            self.brief = 0;
        }
        let failures = if stood.is_some() { &mut self.brief } else { &mut self.failures };
        let full = WAIT_MIN.saturating_mul(1 << (*failures).min(16)).min(WAIT_MAX);
        *failures = failures.saturating_add(1);
        self.at = now + full.mul_f64(0.5 + chance / 2.0);
        let text = why.to_string();
        let is_news = self.last_end.as_ref() != Some(&text);
        self.last_end = Some(text);
        is_news
    }
}

/// A number from 0 to 1, for the part of a wait that is chance.
pub fn chance() -> f64 {
    f64::from(u32::from_le_bytes(random().unwrap_or_default())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer(own: &str, now: Instant) -> Dialer {
        let control = vec!["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()];
        let peer = Peer { name: "beta".parse().unwrap(), control, addresses: Vec::new() };
        Dialer::new(peer, &own.parse().unwrap(), now)
    }

    #[test]
    fn the_smaller_name_begins() {
        let now = Instant::now();
        assert_eq!(dialer("alpha", now).due(), Some(now));
        assert_eq!(dialer("gamma", now).due(), Some(now + COURTESY));
    }

    #[test]
    fn waits_double_to_a_bound_and_begin_again_after_success() {
        let now = Instant::now();
        let mut dialer = dialer("alpha", now);
        let mut waits = Vec::new();
        for _ in 0..10 {
            dialer.ended(&End::Slow, None, now, 1.0);
            waits.push(dialer.due().unwrap() - now);
        }
        assert_eq!(waits[..3], [WAIT_MIN, 2 * WAIT_MIN, 4 * WAIT_MIN]);
        assert_eq!(waits[9], WAIT_MAX);
        dialer.ended(&End::Slow, None, now, 0.0);
        assert_eq!(dialer.due(), Some(now + WAIT_MAX / 2));
        dialer.succeeded();
        dialer.ended(&End::Slow, None, now, 1.0);
        assert_eq!(dialer.due(), Some(now + WAIT_MIN));
    }

    #[test]
    fn connections_that_end_at_once_are_made_ever_less_often() {
        let now = Instant::now();
        let mut dialer = dialer("alpha", now);
        let mut wait = |stood| {
            dialer.succeeded();
            dialer.ended(&End::Bye("no".into()), Some(stood), now, 1.0);
            dialer.due().unwrap() - now
        };
        let brief = Duration::from_millis(1);
        assert_eq!([wait(brief), wait(brief), wait(brief)], [WAIT_MIN, 2 * WAIT_MIN, 4 * WAIT_MIN]);
        assert_eq!((0..10).map(|_| wait(brief)).max(), Some(WAIT_MAX));
        assert_eq!(wait(STEADY), WAIT_MIN);
    }

    #[test]
    fn addresses_take_turns_but_a_good_one_is_tried_first() {
        let now = Instant::now();
        let mut dialer = dialer("alpha", now);
        let port = |dialer: &mut Dialer| dialer.next_address().ip().to_string();
        assert_eq!([port(&mut dialer), port(&mut dialer)], ["10.0.0.1", "10.0.0.2"]);
        dialer.ended(&End::Closed, Some(STEADY), now, 1.0);
        assert_eq!([port(&mut dialer), port(&mut dialer)], ["10.0.0.2", "10.0.0.1"]);
    }

    #[test]
    fn the_same_failure_is_news_once() {
        let now = Instant::now();
        let mut dialer = dialer("alpha", now);
        let news: Vec<bool> = [End::Slow, End::Slow, End::Closed, End::Slow]
            .iter()
            .map(|end| dialer.ended(end, None, now, 0.0))
            .collect();
        assert_eq!(news, [true, false, true, true]);
    }
}

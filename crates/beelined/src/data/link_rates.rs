//! The measured rates of a peer's links, by link.
//!
//! A link that comes takes the place of one that is gone, so reconnecting for years costs nothing.

use beeline_topo::stripe::{RailLife, Rates};

use super::sender::LinkId;

/// Bytes that may be unacknowledged on one link: those of all windows. With a bound of their own streams would wait
/// for acknowledgements that are not due, as what has come is acknowledged when a quarter of a window is used. What is
/// not on its way yet the rail's places bound.
const IN_FLIGHT_BYTES_MAX: u64 = u64::MAX;

/// See the module.
#[derive(Default)]
pub struct LinkRates {
    rates: Rates,
    links: Vec<(LinkId, RailLife)>,
    /// Places of links that are gone.
    free: Vec<usize>,
}

impl LinkRates {
    /// A link is there.
    pub fn join(&mut self, link: LinkId, speed_mbps: u32) {
        let free = self.free.pop();
        let again = free.and_then(|rail| self.rates.replace(rail, speed_mbps, IN_FLIGHT_BYTES_MAX));
        let life = again.unwrap_or_else(|| self.rates.add(speed_mbps, IN_FLIGHT_BYTES_MAX));
        self.links.push((link, life));
    }

    /// A link is gone.
    pub fn leave(&mut self, link: LinkId) {
        if let Some(life) = self.life(link) {
            self.rates.down(life.rail);
            self.links.retain(|(other, _)| *other != link);
            self.free.push(life.rail);
        }
    }

    fn life(&self, link: LinkId) -> Option<RailLife> {
        self.links.iter().find(|(other, _)| *other == link).map(|(_, life)| *life)
    }

    /// Bytes were given to a link.
    pub fn sent(&mut self, link: LinkId, bytes: u64, now_ns: u64) {
        if let Some(life) = self.life(link) {
            self.rates.sent(life, bytes, now_ns);
        }
    }

    /// An acknowledgement of a connection that uses several links has come, so long after the one before, and the first
    /// of its bytes were on this one.
    pub fn waited_for(&mut self, link: LinkId, waited_ns: u64) {
        if let Some(life) = self.life(link) {
            self.rates.waited_for(life, waited_ns);
        }
    }

    /// Bytes were acknowledged.
    pub fn acknowledged(&mut self, link: LinkId, bytes: u64, now_ns: u64) {
        if let Some(life) = self.life(link) {
            self.rates.acknowledged(life, bytes, now_ns);
        }
    }

    /// Bytes are not waited for any more: their connection is over.
    pub fn dropped(&mut self, link: LinkId, bytes: u64) {
        if let Some(life) = self.life(link) {
            self.rates.dropped(life, bytes);
        }
    }

    /// The link on which a chunk would arrive first; `None` if none of them is known. `links` are ids with what to
    /// return.
    #[must_use]
    pub fn pick(&self, links: &[(LinkId, usize)], bytes: u64, now_ns: u64) -> Option<usize> {
        let lives: Vec<(usize, usize)> =
            links.iter().filter_map(|(id, index)| Some((self.life(*id)?.rail, *index))).collect();
        let rails: Vec<usize> = lives.iter().map(|(rail, _)| *rail).collect();
        let picked = self.rates.pick(&rails, bytes, now_ns)?;
        lives.iter().find(|(rail, _)| *rail == picked.rail).map(|(_, index)| *index)
    }

    /// Bytes a second that a link was measured at.
    #[must_use]
    pub fn measured(&self, link: LinkId, now_ns: u64) -> Option<u64> {
        self.rates.measured(self.life(link)?.rail, now_ns)
    }

    /// Bytes on a link that are not acknowledged.
    #[must_use]
    pub fn in_flight(&self, link: LinkId) -> u64 {
        self.life(link).map_or(0, |life| self.rates.in_flight(life.rail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_are_made_again_take_the_places_of_those_that_are_gone() {
        let mut rates = LinkRates::default();
        rates.join(1, 10_000);
        for link in 2..10_000 {
            rates.join(link, 1_000);
            rates.sent(link, 7, 0);
            rates.leave(link);
            // What comes late of one that is gone is nobody's.
            rates.acknowledged(link, 7, 0);
        }
        assert_eq!((rates.rates.places(), rates.links.len()), (2, 1));
        rates.join(10_000, 100_000);
        assert_eq!((rates.in_flight(10_000), rates.pick(&[(1, 5), (10_000, 6)], 1 << 20, 0)), (0, Some(6)));
        assert_eq!(rates.in_flight(9_999), 0);
    }
}

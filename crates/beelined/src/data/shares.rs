//! The measured rates of a peer's links, by link.

use beeline_topo::stripe::{RailLife, Rates};

use super::sender::LinkId;

/// Bytes that may be unacknowledged on one link.
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;

/// See the module.
#[derive(Default)]
pub struct Shares {
    rates: Rates,
    links: Vec<(LinkId, RailLife)>,
}

impl Shares {
    /// A link is there.
    pub fn join(&mut self, link: LinkId, speed_mbps: u32) {
        let life = self.rates.add(speed_mbps, IN_FLIGHT_BYTES_MAX);
        self.links.push((link, life));
    }

    /// A link is gone.
    pub fn leave(&mut self, link: LinkId) {
        if let Some(life) = self.life(link) {
            self.rates.down(life.rail);
            self.links.retain(|(other, _)| *other != link);
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

    /// Bytes were acknowledged.
    pub fn acknowledged(&mut self, link: LinkId, bytes: u64, now_ns: u64) {
        if let Some(life) = self.life(link) {
            self.rates.acknowledged(life, bytes, now_ns);
        }
    }

    /// The link on which a chunk would arrive first. `links` are ids with what to return.
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

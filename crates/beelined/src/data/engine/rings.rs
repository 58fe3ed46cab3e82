//! The rings of connections as network cards know them: registered, granted, given back.
//!
//! 1. A sender asks for the other ring (`more` in a [`Record::Data`]) when it has a piece of [`STREAM_BYTES_MIN`], or
//!    has sent as much in large pieces within [`STREAM_NS`]. So connections that say little pin no memory, however many
//!    there are.
//! 2. It registers its own ring when the other one is granted, and offers nothing before. So who cannot register a ring
//!    grants nothing, and what is large comes to it in messages.
//! 3. A rail knows at most `registered_max` bytes of rings. When it refused to register one it is asked for none for
//!    [`REFUSED_NS`].
//! 4. A sender that has sent nothing large for [`IDLE_NS`], of which all is acknowledged, gives its grants back
//!    ([`Record::Return`]). Each end closes a region that no link may use any more, and that nothing of its own uses.
//! 5. Who reads what is offered can read the whole ring. So a ring is registered for that only where it may be read,
//!    and if no connection before has left its bytes there: a lane that is used again has its pieces pushed.

use std::sync::{Arc, OnceLock};

use beeline_fabric::{Access, RegionId};
use beeline_meeting::bridge::LaneEnd;
use nix::unistd::SysconfVar;

use super::super::record::Record;
use super::super::ring::Ring;
use super::{Engine, Entry, KnownRing, Large, OpenRail};

/// What makes a stream: so many bytes, within so long.
const STREAM_BYTES_MIN: u64 = 64 << 10;
const STREAM_NS: u64 = 1_000_000_000;
/// See the module.
const IDLE_NS: u64 = 5_000_000_000;
const REFUSED_NS: u64 = 1_000_000_000;

impl Large {
    /// Whether so many bytes more are a stream.
    pub(super) fn is_stream(&mut self, bytes: u64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) > STREAM_NS {
            (self.since_ns, self.bytes) = (now_ns, 0);
        }
        self.bytes.saturating_add(bytes) >= STREAM_BYTES_MIN
    }

    /// Bytes were sent in a message.
    pub(super) fn copied(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Bytes were written or offered.
    pub(super) fn moved(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
    }
}

impl OpenRail {
    /// Whether so many bytes more may be registered.
    fn may_register(&self, bytes: u64, registered_max: u64, now_ns: u64) -> bool {
        let registered = self.rail.registered_bytes() as u64;
        now_ns >= self.register_again_ns && registered.saturating_add(bytes) <= registered_max
    }

    /// It has refused to register a ring.
    fn refused_ring(&mut self, error: &beeline_fabric::Error, now_ns: u64) {
        self.register_again_ns = now_ns.saturating_add(REFUSED_NS);
        if self.trouble.is_none() {
            crate::log::line(format_args!("large transfers are copied: {error}"));
            self.trouble = Some(error.to_string());
        }
    }
}

impl Engine {
    /// The region of a connection's ring on a rail, registered when it is first asked for.
    pub(super) fn region(&mut self, number: u64, rail: usize, written: bool) -> Option<RegionId> {
        let may_read = self.may_read_over(rail);
        let entry = self.connections.get_mut(number)?;
        let known = entry.rings.iter().find(|known| known.rail == rail && known.written == written);
        if let Some(known) = known {
            return Some(known.region);
        }
        let lane = entry.connection.lane()?;
        let open = self.rails.get_mut(rail)?;
        if !open.may_register(lane.ring_bytes().into(), registered_max(self.tunables.registered_max), self.now_ns) {
            return None;
        }
        // SAFETY: the lane is given back in `finish` only, after all regions of the connection are closed.
        let ring = unsafe { Ring::of(lane, written) }?;
        let offered = !written && may_read && lane.is_fresh();
        let access = match written {
            true => Access::REMOTE_WRITE | Access::TARGET,
            false if offered => Access::SOURCE | Access::REMOTE_READ,
            false => Access::SOURCE,
        };
        match open.rail.register(Arc::new(ring), access) {
            Ok(region) => {
                entry.rings.push(KnownRing { rail, written, offered, region });
                Some(region)
            }
            Err(error) => {
                open.refused_ring(&error, self.now_ns);
                None
            }
        }
    }

    /// Whether bytes of a connection's ring may be offered over a rail (rule 5).
    pub(super) fn may_offer(&self, number: u64, rail: usize) -> bool {
        let Some(entry) = self.connections.get(number).filter(|_| self.may_read_over(rail)) else { return false };
        match entry.rings.iter().find(|known| known.rail == rail && !known.written) {
            Some(known) => known.offered,
            None => entry.connection.lane().is_some_and(LaneEnd::is_fresh),
        }
    }

    /// Closes the region of a ring; [`Engine::region_closed`] follows.
    pub(super) fn close_ring(&mut self, number: u64, known: KnownRing) {
        // Where closing fails, the network card may know the ring for ever: the lane is never given back.
        if let Some(entry) = self.connections.get_mut(number) {
            entry.closing = entry.closing.saturating_add(1);
        }
        match self.rails.get_mut(known.rail).map(|rail| rail.rail.close_region(known.region)) {
            Some(Err(error)) => crate::log::line(format_args!("a lane is lost: {error}")),
            _ => _ = self.closing.insert((known.rail, known.region), number),
        }
    }

    /// Nothing can touch a region any more.
    pub(super) fn region_closed(&mut self, rail: usize, region: RegionId) {
        if let Some(number) = self.closing.remove(&(rail, region))
            && let Some(entry) = self.connections.get_mut(number)
        {
            entry.closing = entry.closing.saturating_sub(1);
            self.heat(number);
        }
    }

    /// Lets go of rings that nobody needs (rule 4).
    pub(super) fn care_for_rings(&mut self) {
        let rests = |entry: &Entry| !entry.rings.is_empty() && entry.in_flight == 0;
        let resting: Vec<u64> =
            self.connections.iter().filter(|(_, entry)| rests(entry)).map(|(number, _)| number).collect();
        for number in resting {
            self.give_back(number);
            for known in self.unused_rings(number) {
                self.close_ring(number, known);
            }
        }
    }

    /// Gives the grants of an idle connection back.
    fn give_back(&mut self, number: u64) {
        let Some(entry) = self.connections.get(number) else { return };
        let idle_ns = self.now_ns.saturating_sub(entry.large.moved_ns);
        if entry.connection.under_way() != 0 || idle_ns < IDLE_NS {
            return;
        }
        let to = entry.connection.theirs;
        let links: Vec<u64> = entry.grants.iter().map(|grant| grant.link).collect();
        for id in links {
            let index = self.links.iter().position(|link| link.as_ref().is_some_and(|link| link.id == id));
            // Without room for it, it is said the next time.
            if index.is_some_and(|index| self.push(index, &Record::Return { to }))
                && let Some(entry) = self.connections.get_mut(number)
            {
                entry.grants.retain(|grant| grant.link != id);
            }
        }
    }

    /// Takes those rings of a connection without operations that no link may use.
    fn unused_rings(&mut self, number: u64) -> Vec<KnownRing> {
        let links = &self.links;
        let Some(entry) = self.connections.get_mut(number) else { return Vec::new() };
        let is_granted =
            |rail: usize| links.iter().flatten().any(|link| link.rail == rail && entry.granted.contains(&link.id));
        // What is offered is not acknowledged.
        let reads = !entry.grants.is_empty() || entry.connection.under_way() != 0;
        entry.rings.extract_if(.., |known| if known.written { !is_granted(known.rail) } else { !reads }).collect()
    }
}

/// Bytes of rings that each rail may know, by the setting.
fn registered_max(setting: u64) -> u64 {
    static MEMORY_BYTES: OnceLock<u64> = OnceLock::new();
    let number = |what| nix::unistd::sysconf(what).ok().flatten().and_then(|number| u64::try_from(number).ok());
    let memory_bytes = || match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(page_bytes)) => pages.saturating_mul(page_bytes),
        _ => u64::MAX,
    };
    match setting {
        0 => MEMORY_BYTES.get_or_init(memory_bytes) / 4,
        most => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_or_a_second_of_64_kib_is_a_stream() {
        let (mut large, now_ns) = (Large::default(), 7_000_000_000);
        assert!(large.is_stream(64 << 10, now_ns));
        for _ in 0..11 {
            assert!(!large.is_stream(5 << 10, now_ns));
            large.copied(5 << 10);
        }
        // Eleven answers of 5 KiB a second are none, for ever.
        assert!(!large.is_stream(5 << 10, now_ns) && large.is_stream(9 << 10, now_ns));
        assert!(!large.is_stream(9 << 10, now_ns + STREAM_NS + 1));
    }
}

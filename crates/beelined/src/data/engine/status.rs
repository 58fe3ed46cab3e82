//! What the engine tells the administrator.

use beeline_status::document::{ConnectionStatus, Counts, Data, LinkStatus, REFUSALS, RailStatus};
use beeline_topo::report::Path;
use beeline_wire::Verdict;

use super::super::connection::Stage;
use super::super::link::Link;
use super::{Engine, Entry};

impl Engine {
    /// Everything, now.
    #[must_use]
    pub fn status(&self) -> Data {
        let rails = self.rails.iter().zip(self.loaded_rails()).map(|(open, rail)| RailStatus {
            id: open.id,
            rail,
            trouble: open.trouble.clone(),
            registered_bytes: open.rail.registered_bytes() as u64,
        });
        Data {
            uptime_s: self.started.elapsed().as_secs(),
            rails: rails.collect(),
            links: self.links.iter().flatten().map(|link| self.link_status(link)).collect(),
            connections: self
                .connections
                .iter()
                .filter(|(_, entry)| !entry.probe)
                .map(|(_, entry)| self.connection_status(entry))
                .collect(),
            paths: self.path_statuses(),
            draining: self.draining(),
            refusals: self.refusals_by_reason(),
            totals: self.counts.by_name(),
            share: self.own_time.medians(),
        }
    }

    fn link_status(&self, link: &Link) -> LinkStatus {
        let rates = self.peers.get(link.peer).and_then(Option::as_ref).map(|peer| &peer.rates);
        let Path { rail, peer_rail } = self.path(link);
        LinkStatus {
            peer: self.peer_name(link.peer),
            rail,
            peer_rail: link.their_rail,
            peer_rail_name: peer_rail,
            up: link.up,
            messages_sent: link.messages_sent,
            messages_received: link.messages_received,
            bytes_sent: link.bytes_sent,
            in_flight_bytes: rates.map_or(0, |rates| rates.in_flight(link.id)),
            measured_mbps: rates.and_then(|rates| rates.measured(link.id, self.now_ns)).map(|rate| rate / 125_000),
        }
    }

    fn connection_status(&self, entry: &Entry) -> ConnectionStatus {
        let (bytes_sent, bytes_received) = entry.connection.bytes();
        let others = entry.stripe.iter().filter(|index| Some(**index) != entry.home);
        let links = entry.home.iter().chain(others).filter_map(|index| self.links.get(*index)?.as_ref());
        let state = match (entry.connection.stage, entry.connection.lane()) {
            (Stage::Asked, _) => "asked",
            (Stage::Open, Some(_)) => "open",
            (Stage::Open, None) => "closing",
        };
        ConnectionStatus {
            client: entry.name.client.address().to_string(),
            server: entry.name.server.address().to_string(),
            client_is_here: !entry.accepted,
            peer: self.peer_name(entry.peer),
            state: state.into(),
            cpu: entry.cpu,
            paths: links.map(|link| self.path(link)).collect(),
            bytes_sent,
            bytes_received,
            age_s: self.now_ns.saturating_sub(entry.since_ns) / 1_000_000_000,
        }
    }

    /// A rail that is not offered any more has no name.
    fn path(&self, link: &Link) -> Path {
        let ours = self.rails.get(link.rail).map(|rail| rail.described.name.clone());
        let offered = self.peers.get(link.peer).and_then(Option::as_ref).map(|peer| &peer.rails);
        let theirs = offered.and_then(|rails| rails.iter().find(|rail| rail.id == link.their_rail));
        Path {
            rail: ours.unwrap_or_default(),
            peer_rail: theirs.map(|rail| rail.described.name.clone()).unwrap_or_default(),
        }
    }

    fn peer_name(&self, index: usize) -> String {
        self.peers.get(index).and_then(Option::as_ref).map_or_else(String::new, |peer| peer.name.to_string())
    }

    fn refusals_by_reason(&self) -> Counts {
        let verdicts = [
            Verdict::NoPeer,
            Verdict::NoDoor,
            Verdict::NoRail,
            Verdict::Full,
            Verdict::Rejected,
            Verdict::Slower,
            Verdict::Leaving,
        ];
        let count = |verdict: Verdict| self.refusals.get(usize::from(verdict.byte())).copied().unwrap_or(0);
        REFUSALS.iter().zip(verdicts).map(|(name, verdict)| ((*name).to_owned(), count(verdict))).collect()
    }
}

impl super::Counts {
    fn by_name(&self) -> Counts {
        let named = [
            ("opened", self.opened),
            ("accepted", self.accepted),
            ("closed", self.closed),
            ("reset", self.reset),
            ("breaches", self.breaches),
            ("links_made", self.links_made),
            ("links_lost", self.links_lost),
            ("pushes", self.pushes),
            ("pulls", self.pulls),
            ("inlined_bytes", self.inlined),
            ("spins", self.spins),
            ("crowds", self.crowds),
            ("sleeps", self.sleeps),
        ];
        named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }
}

//! The link of a connection: one choice, and the reason for each link that was not taken.
//!
//! The links that reach the peer over rails that are up are put in order by these rules, the earlier deciding first:
//!
//! 1. **Protocol.** A link past the kernel comes before kernel TCP.
//! 2. **Effective speed**: at each end the rail's nominal speed, divided by how much farther than the nearest possible
//!    its adapter is from the app's CPU (`speed x 10 / distance`, the distance being the firmware's); the slower end
//!    counts. So a local adapter comes before an equal one across the interconnect, and a far one of 100 Gb/s before a
//!    near one of 10. Nominal and not measured, so that what other connections do moves nobody across the interconnect.
//! 3. **Load**, among links within a tenth of the fastest one's effective speed: the time that the bytes in flight on
//!    the local rail take, then the connections for each Gb/s of speed.
//! 4. **Name** of the local rail. Of the peer's rails that are the same to it, the first local rail takes the first
//!    one, the second the second and so on, all in the order of their names, so that none is left out at the other end.
//!
//! The links after the first are the order in which to try others. A **stripe** takes, in this order, each link whose
//! two ports no link before it uses, as long as it speaks past the kernel if the first does, and adds at least an
//! eighth of the first's effective speed: less would cost more in reordering than it brings.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::host::{Distance, Host, LOCAL_DISTANCE};
use crate::rail::{PeerRail, Rail};
use crate::reach::Link;

/// Links that reach this share of the fastest are as fast as it is: in percent.
const AS_FAST_PERCENT: u64 = 90;
/// A link belongs into a stripe if it brings at least the first link's speed divided by this.
const STRIPE_DIVISOR: u64 = 8;

/// All that a choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// This host.
    pub host: &'a Host,
    /// The CPU on which the app's thread was when it asked for the connection.
    pub cpu: Option<u32>,
    /// The local rails.
    pub rails: &'a [Rail],
    /// The peer's rails.
    pub peer: &'a [PeerRail],
    /// Which reach each other.
    pub links: &'a [Link],
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Every link, the best first, and every local rail that has none. The first one is chosen if it is usable.
    pub candidates: Vec<Candidate>,
    /// The links that large transfers are striped over, as indices into `candidates`, the chosen one first.
    pub stripe: Vec<usize>,
}

impl Choice {
    /// The chosen link, if any rail reaches the peer.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|first| first.verdict == Verdict::Chosen)
    }

    /// The chosen link, and those that only load or name put behind it.
    pub fn as_good(&self) -> impl Iterator<Item = &Candidate> {
        let is_as_good = |link: &&Candidate| matches!(link.verdict, Verdict::Chosen | Verdict::Busier | Verdict::Equal);
        self.candidates.iter().filter(is_as_good)
    }

    /// The links of a stripe.
    pub fn striped(&self) -> impl Iterator<Item = &Candidate> {
        self.stripe.iter().filter_map(|&index| self.candidates.get(index))
    }
}

/// A link that could be taken, or a local rail that reaches nobody, with what was found of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Index of the local rail.
    pub local: usize,
    /// Index of the peer's rail.
    pub peer: Option<usize>,
    /// The local rail's name.
    pub rail: String,
    /// The peer's rail's name.
    pub peer_rail: Option<String>,
    /// From the app's CPU to the local adapter.
    pub distance: Distance,
    /// The slower end's speed, each discounted by its distance.
    pub effective_mbps: u64,
    /// Whether it was taken, and if not, why.
    pub verdict: Verdict,
}

/// Why a link was taken or not, in comparison with the one that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is the one.
    Chosen,
    /// It goes through the kernel's network stack, the chosen one does not.
    ThroughKernel,
    /// It would be as good or better, were its adapter not so far from the app's CPU.
    Farther,
    /// It is slower.
    Slower,
    /// It has more to carry already.
    Busier,
    /// It is as good as the chosen one, which comes first by name.
    Equal,
    /// The rail is down.
    Down,
    /// The rail's port reaches the peer past the kernel, so it is used in that way alone.
    PortTaken,
    /// The rail reaches none of the peer's.
    Unreachable,
}

impl Verdict {
    /// One sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Chosen => "It is the best one.",
            Self::ThroughKernel => "It goes through the kernel, and there is one that does not.",
            Self::Farther => "An adapter of it is farther from the CPU.",
            Self::Slower => "It is slower.",
            Self::Busier => "It has more to carry already.",
            Self::Equal => "It is as good as the chosen one, which comes first by name.",
            Self::Down => "The rail is down.",
            Self::PortTaken => "Its port is used past the kernel instead.",
            Self::Unreachable => "It reaches none of the peer's rails.",
        }
    }
}

/// A link under comparison.
struct Contender<'a> {
    link: Link,
    rail: &'a Rail,
    peer: &'a PeerRail,
    distance: Distance,
    effective_mbps: u64,
    /// What it would be if its adapters were at the CPUs.
    undiscounted_mbps: u32,
    /// Where the peer's rail stands in the local one's order of them.
    turn: usize,
}

impl<'a> Question<'a> {
    /// The choice.
    pub fn choose(&self) -> Choice {
        let ranked = rank(self.contenders());
        let mut candidates: Vec<Candidate> = Vec::with_capacity(self.rails.len().max(ranked.len()));
        for contender in &ranked {
            let verdict = ranked.first().map_or(Verdict::Chosen, |chosen| compare(contender, chosen));
            candidates.push(Candidate {
                local: contender.link.local,
                peer: Some(contender.link.peer),
                rail: contender.rail.name.clone(),
                peer_rail: Some(contender.peer.name.clone()),
                distance: contender.distance,
                effective_mbps: contender.effective_mbps,
                verdict,
            });
        }
        candidates.extend(self.left_out());
        Choice { candidates, stripe: stripe(&ranked) }
    }

    fn contenders(&self) -> Vec<Contender<'a>> {
        let ends = |link: &Link| {
            let rail = self.rails.get(link.local).filter(|rail| rail.up)?;
            Some((*link, rail, self.peer.get(link.peer)?))
        };
        let usable: Vec<_> = self.links.iter().filter_map(ends).collect();
        let own_names: BTreeSet<&str> = usable.iter().map(|(_, rail, _)| rail.name.as_str()).collect();
        let peer_names: BTreeSet<&str> = usable.iter().map(|(.., peer)| peer.name.as_str()).collect();
        let contender = |&(link, rail, peer): &(Link, &'a Rail, &'a PeerRail)| {
            let distance = self.host.distance(self.cpu, &rail.nodes(self.host));
            let there = discounted(peer.speed_or_assumed(), peer.distance.unwrap_or(LOCAL_DISTANCE));
            let own_place = own_names.range(..rail.name.as_str()).count();
            let peer_place = peer_names.range(..peer.name.as_str()).count();
            Contender {
                link,
                rail,
                peer,
                distance,
                effective_mbps: discounted(rail.speed_or_assumed(), distance.value).min(there),
                undiscounted_mbps: rail.speed_or_assumed().min(peer.speed_or_assumed()),
                turn: turn(own_place, peer_place, peer_names.len()),
            }
        };
        usable.iter().map(contender).collect()
    }

    fn has_link(&self, local: usize) -> bool {
        self.links.iter().any(|link| link.local == local)
    }

    /// Whether a kernel rail has no link of its own because the same port has a better one.
    fn is_port_taken(&self, rail: &Rail) -> bool {
        let is_better = |(local, other): (usize, &Rail)| {
            other.up && !other.protocol.is_kernel() && other.shares_port_with(rail) && self.has_link(local)
        };
        rail.protocol.is_kernel() && self.rails.iter().enumerate().any(is_better)
    }

    /// Rails that are down or reach nobody, in the order of their names.
    fn left_out(&self) -> Vec<Candidate> {
        let mut out: Vec<Candidate> = Vec::new();
        for (local, rail) in self.rails.iter().enumerate() {
            let verdict = match (rail.up, self.has_link(local)) {
                (true, true) => continue,
                (true, false) if self.is_port_taken(rail) => Verdict::PortTaken,
                (true, false) => Verdict::Unreachable,
                (false, _) => Verdict::Down,
            };
            let distance = self.host.distance(self.cpu, &rail.nodes(self.host));
            out.push(Candidate {
                local,
                peer: None,
                rail: rail.name.clone(),
                peer_rail: None,
                distance,
                effective_mbps: discounted(rail.speed_or_assumed(), distance.value),
                verdict,
            });
        }
        out.sort_by(|a, b| a.rail.cmp(&b.rail));
        out
    }
}

/// How many places after the one it takes first the local rail at `own` comes to the peer's rail at `peer`, of `count`.
fn turn(own: usize, peer: usize, count: usize) -> usize {
    let first = own.checked_rem(count).unwrap_or(0);
    peer.saturating_add(count).saturating_sub(first).checked_rem(count).unwrap_or(0)
}

fn discounted(speed_mbps: u32, distance: u32) -> u64 {
    let scaled = u64::from(speed_mbps).saturating_mul(LOCAL_DISTANCE.into());
    scaled.checked_div(distance.max(LOCAL_DISTANCE).into()).unwrap_or(0)
}

/// By the rules above. "As fast as" is not transitive, so it is asked of the fastest that is left, group by group.
fn rank(mut contenders: Vec<Contender<'_>>) -> Vec<Contender<'_>> {
    contenders.sort_by(|a, b| {
        let kernel = a.rail.protocol.is_kernel().cmp(&b.rail.protocol.is_kernel());
        kernel.then(b.effective_mbps.cmp(&a.effective_mbps)).then_with(|| by_load_and_name(a, b))
    });
    let mut ranked = Vec::with_capacity(contenders.len());
    while let Some(fastest) = contenders.first() {
        let size = contenders.iter().take_while(|other| is_as_fast(other, fastest)).count();
        let rest = contenders.split_off(size);
        contenders.sort_by(by_load_and_name);
        ranked.append(&mut contenders);
        contenders = rest;
    }
    ranked
}

fn is_as_fast(contender: &Contender<'_>, fastest: &Contender<'_>) -> bool {
    contender.rail.protocol.is_kernel() == fastest.rail.protocol.is_kernel()
        && contender.effective_mbps.saturating_mul(100) >= fastest.effective_mbps.saturating_mul(AS_FAST_PERCENT)
}

fn by_load_and_name(a: &Contender<'_>, b: &Contender<'_>) -> Ordering {
    by_load(a, b).then_with(|| (&a.rail.name, a.turn).cmp(&(&b.rail.name, b.turn)))
}

fn by_load(a: &Contender<'_>, b: &Contender<'_>) -> Ordering {
    // x / speed of a < y / speed of b, without division.
    let per_speed = |load_a: u64, load_b: u64| {
        let crosswise =
            |load: u64, other: &Contender<'_>| u128::from(load).saturating_mul(other.rail.speed_or_assumed().into());
        crosswise(load_a, b).cmp(&crosswise(load_b, a))
    };
    let (load_a, load_b) = (a.rail.load, b.rail.load);
    per_speed(load_a.in_flight_bytes, load_b.in_flight_bytes)
        .then_with(|| per_speed(load_a.connections.into(), load_b.connections.into()))
}

fn compare(contender: &Contender<'_>, chosen: &Contender<'_>) -> Verdict {
    if contender.link == chosen.link {
        return Verdict::Chosen;
    }
    if contender.rail.protocol.is_kernel() != chosen.rail.protocol.is_kernel() {
        return Verdict::ThroughKernel;
    }
    if contender.effective_mbps < chosen.effective_mbps && !is_as_fast(contender, chosen) {
        let peer_distance = |contender: &Contender<'_>| contender.peer.distance.unwrap_or(LOCAL_DISTANCE);
        let is_far =
            contender.distance.value > chosen.distance.value || peer_distance(contender) > peer_distance(chosen);
        let would_do = contender.undiscounted_mbps >= chosen.undiscounted_mbps;
        return if is_far && would_do { Verdict::Farther } else { Verdict::Slower };
    }
    if by_load(contender, chosen) == Ordering::Greater { Verdict::Busier } else { Verdict::Equal }
}

fn stripe(ranked: &[Contender<'_>]) -> Vec<usize> {
    let mut taken: Vec<(usize, &Contender<'_>)> = Vec::new();
    let Some(first) = ranked.first() else { return Vec::new() };
    for (index, contender) in ranked.iter().enumerate() {
        let adds = contender.effective_mbps >= first.effective_mbps.div_ceil(STRIPE_DIVISOR);
        let same_class = contender.rail.protocol.is_kernel() == first.rail.protocol.is_kernel();
        let is_free = taken.iter().all(|(_, other)| {
            !contender.rail.shares_port_with(other.rail) && !contender.peer.shares_port_with(other.peer)
        });
        if adds && same_class && is_free {
            taken.push((index, contender));
        }
    }
    taken.into_iter().map(|(index, _)| index).collect()
}

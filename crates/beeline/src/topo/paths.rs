//! The path from each CPU: chosen by the code that the bridge chooses by. CPUs of one node have the same path, so they
//! are told together.

use std::collections::BTreeMap;

use beeline_topo::host::Host;
use beeline_topo::reach::{Link, links};
use beeline_topo::report::Report;
use beeline_topo::{Choice, PeerRail, Question};
use serde::Serialize;

/// The paths to a peer.
#[derive(Serialize)]
pub struct Towards {
    /// Its name; none for a peer that is assumed to be reached by all rails, because no other one is known.
    pub peer: Option<String>,
    pub from: Vec<From>,
}

/// The path from the CPUs of a node.
#[derive(Serialize)]
pub struct From {
    pub node: Option<u32>,
    pub cpus: Vec<u32>,
    #[serde(flatten)]
    pub choice: Choice,
}

/// The ports that are nearest to the CPUs of a node.
#[derive(Serialize)]
pub struct Nearest {
    pub node: Option<u32>,
    pub cpus: Vec<u32>,
    pub ports: Vec<String>,
    pub distance: u32,
    /// Whether the ports' place is known; otherwise the distance is an assumption.
    pub known: bool,
}

pub fn towards(host: &Host, report: &Report) -> Vec<Towards> {
    if report.rails.is_empty() {
        return Vec::new();
    }
    if report.peers.is_empty() {
        let peer: Vec<PeerRail> = report.rails.iter().map(PeerRail::from).collect();
        let links: Vec<Link> = (0..peer.len()).map(|index| Link { local: index, peer: index }).collect();
        return vec![Towards { peer: None, from: from_all(host, report, &peer, &links) }];
    }
    let towards = report.peers.iter().map(|peer| {
        let links = links(&report.rails, &peer.rails, &report.segments);
        Towards { peer: Some(peer.name.clone()), from: from_all(host, report, &peer.rails, &links) }
    });
    towards.collect()
}

fn from_all(host: &Host, report: &Report, peer: &[PeerRail], links: &[Link]) -> Vec<From> {
    let from = cpus_by_node(host).into_iter().map(|(node, cpus)| {
        let question = Question { host, cpu: cpus.first().copied(), rails: &report.rails, peer, links };
        From { node, cpus, choice: question.choose() }
    });
    from.collect()
}

pub fn nearest(host: &Host) -> Vec<Nearest> {
    let mut all = Vec::new();
    for (node, cpus) in cpus_by_node(host) {
        let distance = |nodes: &[u32]| host.distance(cpus.first().copied(), nodes);
        let Some(least) = host.ports.iter().map(|port| distance(&port.nodes).value).min() else { continue };
        let near: Vec<_> = host.ports.iter().filter(|port| distance(&port.nodes).value == least).collect();
        let known = near.iter().all(|port| distance(&port.nodes).known);
        let ports = near.iter().map(|port| port.name().to_owned()).collect();
        all.push(Nearest { node, cpus, ports, distance: least, known });
    }
    all
}

fn cpus_by_node(host: &Host) -> BTreeMap<Option<u32>, Vec<u32>> {
    let mut by_node: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for cpu in &host.cpus {
        by_node.entry(cpu.node).or_default().push(cpu.id);
    }
    by_node
}

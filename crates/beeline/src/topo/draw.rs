//! The drawing: the host as a tree, then the paths.

use std::collections::BTreeSet;

use beeline_status::number::{bytes, plural, speed};
use beeline_topo::Rail;
use beeline_topo::choice::{Candidate, Verdict};
use beeline_topo::host::{Host, Node, Package, Port};

use super::document::Document;
use super::paths::{From, Nearest, Towards};
use super::tree::Tone::{Faint, Plain, Strong};
use super::tree::{Forest, Tree};

/// How many connections are drawn; JSON has all of them.
const CONNECTIONS_DRAWN: usize = 20;

pub fn draw(document: &Document, why: bool) -> Forest {
    let mut trees = vec![host(document)];
    if document.host.nodes.len() > 1 {
        trees.push(distances(&document.host));
    }
    if document.rails.is_empty() {
        trees.extend(nearest(&document.nearest));
    }
    trees.extend(document.paths.iter().map(|towards| paths(towards, why)));
    trees.extend(connections(document));
    trees.extend(namespaces(document));
    trees.extend(document.rails_unknown.as_ref().map(|why| Tree::new(Plain, format!("Rails are unknown: {why}."))));
    if document.rails_unknown.is_none() && document.rails.is_empty() {
        trees.push(Tree::new(Plain, "The bridge has no rails."));
    }
    Forest(trees)
}

fn host(document: &Document) -> Tree {
    let host = &document.host;
    let mut drawn = Tree::new(Strong, host.name.as_deref().unwrap_or("this host"))
        .and(Faint, format!("as described by {}", host.source));
    let drawer = Drawer { document };
    // Usually a package holds whole nodes; where a node spans packages (several of them in one chassis), it is the
    // other way round.
    let is_usual = host.nodes.iter().all(|node| packages_of(host, node.id).len() <= 1);
    for package in host.packages.iter().filter(|_| is_usual) {
        drawn.push(drawer.package(package));
    }
    for node in &host.nodes {
        let packages = packages_of(host, node.id);
        if !is_usual || packages.is_empty() {
            drawn.push(drawer.node(node, &packages));
        }
    }
    drawer.shared(&mut drawn);
    drawer.elsewhere(&mut drawn);
    drawn
}

/// Network namespaces, and where the lanes of each lead.
fn namespaces(document: &Document) -> Option<Tree> {
    let mut drawn = Tree::new(Strong, "network namespaces");
    for namespace in &document.namespaces {
        let mut its = Tree::new(Strong, namespace.name.as_str()).and(Plain, plural(namespace.processes, "program"));
        for (to, lanes) in &namespace.lanes {
            its = its.and(Plain, format!("lanes to {to}: {lanes}"));
        }
        drawn.push(its);
    }
    (!document.namespaces.is_empty()).then_some(drawn)
}

fn packages_of(host: &Host, node: u32) -> BTreeSet<u32> {
    host.cpus.iter().filter(|cpu| cpu.node == Some(node)).map(|cpu| cpu.package).collect()
}

struct Drawer<'a> {
    document: &'a Document,
}

impl Drawer<'_> {
    fn package(&self, package: &Package) -> Tree {
        let host = &self.document.host;
        let own: Vec<_> = host.cpus.iter().filter(|cpu| cpu.package == package.id).collect();
        let cores: BTreeSet<u32> = own.iter().map(|cpu| cpu.core).collect();
        let mut drawn = Tree::new(Strong, format!("package {}", package.id))
            .and(Plain, package.model.clone().unwrap_or_default())
            .and(Plain, plural(cores.len() as u64, "core"));
        if host.nodes.is_empty() {
            return drawn.and(Plain, cpus(&own.iter().map(|cpu| cpu.id).collect::<Vec<_>>()));
        }
        for node in host.nodes.iter().filter(|node| packages_of(host, node.id).contains(&package.id)) {
            drawn.push(self.node(node, &BTreeSet::new()));
        }
        drawn
    }

    /// A node with the ports that are at it and no other. `packages` are named if they are not drawn around it.
    fn node(&self, node: &Node, packages: &BTreeSet<u32>) -> Tree {
        let host = &self.document.host;
        let own: Vec<u32> = host.cpus.iter().filter(|cpu| cpu.node == Some(node.id)).map(|cpu| cpu.id).collect();
        let spanned: Vec<u32> = packages.iter().copied().collect();
        let mut drawn = Tree::new(Strong, format!("node {}", node.id))
            .and(Plain, node.memory_bytes.map(bytes).unwrap_or_default())
            .and(Plain, if spanned.is_empty() { String::new() } else { format!("packages {}", ranges(&spanned)) })
            .and(Plain, if own.is_empty() { "no CPUs".into() } else { cpus(&own) });
        self.ports(&mut drawn, |nodes| nodes == [node.id]);
        drawn
    }

    /// Ports that are equally near to several nodes.
    fn shared(&self, drawn: &mut Tree) {
        let places = self.document.host.ports.iter().map(|port| &port.nodes).filter(|nodes| nodes.len() > 1);
        for place in places.collect::<BTreeSet<_>>() {
            let mut group = Tree::new(Plain, format!("at nodes {}", ranges(place)));
            self.ports(&mut group, |nodes| nodes == place.as_slice());
            drawn.push(group);
        }
    }

    /// Ports without a place, and rails without a port.
    fn elsewhere(&self, drawn: &mut Tree) {
        let host = &self.document.host;
        let mut group = Tree::new(Plain, if host.nodes.is_empty() { "network ports" } else { "place unknown" });
        self.ports(&mut group, <[u32]>::is_empty);
        let is_drawn = |rail: &Rail| host.ports.iter().any(|port| belongs(rail, port, host));
        self.document.rails.iter().filter(|rail| !is_drawn(rail)).for_each(|drawn| group.push(rail(drawn)));
        if !group.is_leaf() {
            drawn.push(group);
        }
    }

    fn ports(&self, drawn: &mut Tree, is_here: impl Fn(&[u32]) -> bool) {
        let host = &self.document.host;
        for port in host.ports.iter().filter(|port| is_here(&port.nodes)) {
            let mut line = Tree::new(Strong, port.name());
            if port.netdev.is_some() {
                line = line.and(Plain, port.rdma.clone().unwrap_or_default());
            }
            line = line
                .and(Plain, port.speed_mbps.map(|mbps| speed(mbps.into())).unwrap_or_default())
                .and(Faint, port.pci.clone().unwrap_or_default())
                .and(Faint, port.model.clone().unwrap_or_default());
            let is_called = |name: &String| [&port.netdev, &port.rdma].into_iter().flatten().any(|own| own == name);
            for unused in self.document.unused.iter().filter(|unused| is_called(&unused.name)) {
                line = line.and(Faint, format!("no rail: {}", unused.reason));
            }
            self.document
                .rails
                .iter()
                .filter(|rail| belongs(rail, port, host))
                .for_each(|rail_here| line.push(rail(rail_here)));
            drawn.push(line);
        }
    }
}

/// A rail is drawn at the port of its interface; one without an interface at the first port of its PCI function.
fn belongs(rail: &Rail, port: &Port, host: &Host) -> bool {
    match (&rail.netdev, &rail.pci) {
        (Some(netdev), _) if host.port(netdev).is_some() => port.netdev.as_ref() == Some(netdev),
        (_, Some(pci)) => host.port(pci).is_some_and(|first| first.name() == port.name()),
        _ => false,
    }
}

fn rail(rail: &Rail) -> Tree {
    let protocol = if rail.protocol.is_kernel() {
        rail.protocol.to_string()
    } else {
        format!("{} ({})", rail.protocol, rail.provider)
    };
    let load = &rail.load;
    let carried =
        format!("{}, {} in flight", plural(load.connections.into(), "connection"), bytes(load.in_flight_bytes));
    Tree::new(Plain, "rail")
        .and(Strong, &rail.name)
        .and(Plain, protocol)
        .and(Plain, rail.address.to_string())
        .and(Plain, rail.speed_mbps.map_or_else(|| "speed unknown".into(), |mbps| speed(mbps.into())))
        .and(Plain, if load.connections == 0 && load.in_flight_bytes == 0 { String::new() } else { carried })
        .and(Strong, if rail.up { "" } else { "down" })
}

fn distances(host: &Host) -> Tree {
    let mut drawn =
        Tree::new(Plain, "Distances between nodes").and(Faint, "as the firmware says: 10 is the node itself");
    for from in &host.nodes {
        let row: Vec<String> = host.nodes.iter().map(|to| format!("{:3}", host.between(from.id, to.id))).collect();
        drawn.push(Tree::new(Plain, format!("node {:<3}", from.id)).and(Plain, row.join(" ")));
    }
    drawn
}

fn nearest(nearest: &[Nearest]) -> Option<Tree> {
    let mut drawn = Tree::new(Plain, "Nearest ports");
    for place in nearest {
        let distance = match (place.known, place.node) {
            (true, _) => format!("distance {}", place.distance),
            (false, _) => "place unknown".into(),
        };
        drawn.push(start(place.node, &place.cpus).and(Strong, place.ports.join(", ")).and(Faint, distance));
    }
    (!drawn.is_leaf()).then_some(drawn)
}

fn paths(towards: &Towards, why: bool) -> Tree {
    let mut drawn = match &towards.peer {
        Some(peer) => Tree::new(Plain, format!("Paths to {peer}")),
        None => Tree::new(Plain, "Paths to a peer that all rails reach").and(Faint, "(no peer is connected)"),
    };
    towards.from.iter().for_each(|from| drawn.push(path(from, why)));
    drawn
}

fn path(from: &From, why: bool) -> Tree {
    let line = start(from.node, &from.cpus);
    let Some(chosen) = from.choice.chosen() else {
        return with_reasons(line.and(Strong, "kernel TCP").and(Plain, "no rail reaches this peer"), from, why);
    };
    let others: Vec<String> = from.choice.striped().skip(1).map(route).collect();
    with_reasons(line.and(Strong, route(chosen)).and(Faint, distance(chosen)).and(Plain, also_over(&others)), from, why)
}

fn with_reasons(mut line: Tree, from: &From, why: bool) -> Tree {
    let others = from.choice.candidates.iter().filter(|candidate| candidate.verdict != Verdict::Chosen);
    for other in others.filter(|_| why) {
        let figures = format!("{}, counts as {}", distance(other), speed(other.effective_mbps));
        let has_figures = other.peer.is_some();
        line.push(
            Tree::new(Plain, route(other))
                .and(Plain, other.verdict.sentence())
                .and(Faint, if has_figures { figures } else { String::new() }),
        );
    }
    line
}

/// The connections that are carried, each with its ends, the app's CPU, and its path: from a rail here to one of the
/// peer's.
fn connections(document: &Document) -> Option<Tree> {
    let mut drawn = Tree::new(Plain, "Connections");
    for connection in document.connections.iter().take(CONNECTIONS_DRAWN) {
        let paths = connection.paths.iter().map(|path| format!("{} → {}", path.rail, path.peer_rail));
        let (own, others) = split_first(paths.collect());
        drawn.push(
            Tree::new(Plain, format!("{} ↔ {}", connection.local, connection.remote))
                .and(Plain, connection.cpu.map(|cpu| format!("CPU {cpu}")).unwrap_or_default())
                .and(Strong, own.unwrap_or_else(|| "no rail at the moment".into()))
                .and(Plain, format!("of {}", connection.peer))
                .and(Plain, also_over(&others)),
        );
    }
    let more = document.connections.len().saturating_sub(CONNECTIONS_DRAWN);
    if more > 0 {
        drawn.push(Tree::new(Faint, format!("and {more} more; --json lists them all")));
    }
    (!drawn.is_leaf()).then_some(drawn)
}

fn split_first(mut all: Vec<String>) -> (Option<String>, Vec<String>) {
    let rest = all.split_off(all.len().min(1));
    (all.pop(), rest)
}

/// The other paths of large transfers.
fn also_over(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!("large transfers also over {}", paths.join(", ")) }
}

fn start(node: Option<u32>, own: &[u32]) -> Tree {
    Tree::new(Plain, node.map(|node| format!("node {node}")).unwrap_or_default()).and(Plain, cpus(own))
}

fn route(candidate: &Candidate) -> String {
    match &candidate.peer_rail {
        Some(peer) => format!("{} → {peer}", candidate.rail),
        None => candidate.rail.clone(),
    }
}

fn distance(candidate: &Candidate) -> String {
    if candidate.distance.known { format!("distance {}", candidate.distance.value) } else { "distance unknown".into() }
}

fn cpus(ids: &[u32]) -> String {
    format!("{} {}", if ids.len() == 1 { "CPU" } else { "CPUs" }, ranges(ids))
}

/// Ascending numbers as the kernel writes them: `0-3,8`.
fn ranges(ids: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some(run) if run.1.checked_add(1) == Some(id) => run.1 = id,
            _ => runs.push((id, id)),
        }
    }
    let run = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_written_short() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!((cpus(&[4]), cpus(&[4, 5])), ("CPU 4".into(), "CPUs 4-5".into()));
        assert_eq!(ranges(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
    }
}

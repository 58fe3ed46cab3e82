//! Where programs and rails stand to each other on hosts of several NUMA nodes: the three layouts that adapters with a
//! port at each package are compared in.
//!
//! - **local**: programs at the node of the rail that carries them;
//! - **remote**: over the same rail, programs at another node;
//! - **both**: programs at two nodes, each over the rail of its own.
//!
//! 1. The bridge chooses a rail when a connection is made, by the CPU that the client is on. So a `remote` client
//!    connects at the rail's node, and moves to the other one before it is measured.
//! 2. Messages are too small to be striped over several rails, and answers go back the way that the client chose; what
//!    the bridges have counted must confirm both.
//! 3. A server stands as its client does, if its host has several nodes and the node of its rail is known.
//! 4. The last CPU of a node is left to the loads, where there are several: on each node a program that copies memory,
//!    of its own node or of the next one, so that what it copies crosses the link between the two.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};

use super::bridges::Common;
use super::post::{About, Nodes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Local,
    Remote,
    Both,
}

/// Where the two ends of a connection run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// What the rail is called at the client's host, and at the server's.
    pub rails: [String; 2],
    /// The client's CPU when it connects.
    pub begin: usize,
    pub client: usize,
    pub server: Option<usize>,
    /// What TCP is to connect to, so that it takes the same rail.
    pub address: IpAddr,
}

/// A program that loads memory: on a CPU, with the memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// 0 for the client's host, 1 for the server's.
    pub end: usize,
    pub cpu: usize,
    pub memory_node: u32,
}

/// A rail, and the CPUs near to it and far from it.
#[derive(Clone, Debug)]
struct Site {
    rails: [String; 2],
    address: IpAddr,
    node: u32,
    near: [Vec<usize>; 2],
    away: [Vec<usize>; 2],
}

/// The layouts of two hosts.
#[derive(Clone, Debug)]
pub struct Layouts {
    home: Site,
    /// A rail at another node.
    far: Option<Site>,
    loads: Vec<Load>,
}

impl Layouts {
    /// # Errors
    /// Why there are none.
    pub fn find(hosts: [&About; 2], rails: &[Common]) -> Result<Layouts> {
        ensure!(hosts[0].nodes.len() > 1, "the client's host has one NUMA node");
        let mut sites = rails.iter().filter_map(|rail| Site::new(rail, hosts));
        let home = sites.next().context("nobody knows at which NUMA node the client's rails are")?;
        let far = sites.find(|site| site.node != home.node);
        let loads = loads(hosts.map(|about| &about.nodes), true);
        Ok(Layouts { home, far, loads })
    }

    /// Whether there is this one.
    pub fn has(&self, layout: Layout) -> bool {
        layout != Layout::Both || self.far.is_some()
    }

    /// Two connections, so that each layout has as many.
    pub fn stands(&self, layout: Layout) -> Vec<Stand> {
        let far = self.far.as_ref().unwrap_or(&self.home);
        match layout {
            Layout::Local => (0..2).map(|i| self.home.stand(i, false)).collect(),
            Layout::Remote => (0..2).map(|i| self.home.stand(i, true)).collect(),
            Layout::Both => vec![self.home.stand(0, false), far.stand(0, false)],
        }
    }

    /// Those between the nodes.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }
}

impl Site {
    fn new(rail: &Common, hosts: [&About; 2]) -> Option<Site> {
        let node = rail.nodes[0]?;
        // Where the other node begins does not matter; it has to be the same for every connection.
        let split = |end: usize| {
            let all = &hosts[end].nodes;
            let near = rail.nodes[end].and_then(|node| Some((node, all.get(&node)?)));
            let away = near.and_then(|(node, _)| all.iter().find(|(other, _)| **other != node));
            near.zip(away).map(|((_, near), (_, away))| [near, away].map(|cpus| workers(cpus).to_vec()))
        };
        let [client_near, client_away] = split(0)?;
        let [server_near, server_away] = split(1).unwrap_or_default();
        Some(Site {
            rails: rail.names.clone(),
            address: rail.server_address,
            node,
            near: [client_near, server_near],
            away: [client_away, server_away],
        })
    }

    fn stand(&self, index: usize, is_remote: bool) -> Stand {
        let cpu = |cpus: &[usize]| cpus.get(index % cpus.len().max(1)).copied();
        let run = if is_remote { &self.away } else { &self.near };
        let begin = cpu(&self.near[0]).unwrap_or_default();
        Stand {
            rails: self.rails.clone(),
            begin,
            client: cpu(&run[0]).unwrap_or(begin),
            server: cpu(&run[1]),
            address: self.address,
        }
    }
}

/// The CPUs of a node that are not the loads'.
fn workers(cpus: &[usize]) -> &[usize] {
    match cpus.split_last() {
        Some((_, rest)) if !rest.is_empty() => rest,
        _ => cpus,
    }
}

/// On each node of both hosts a program with its own memory; or, on hosts of several, with that of the next one.
pub fn loads(hosts: [&Nodes; 2], are_between: bool) -> Vec<Load> {
    let on = |end: usize| {
        let nodes = hosts[end];
        let next = nodes.keys().cycle().skip(usize::from(are_between));
        let is_wanted = !are_between || nodes.len() > 1;
        let each = nodes.values().zip(next).filter(move |_| is_wanted);
        each.filter_map(move |(cpus, &memory_node)| Some(Load { end, cpu: *cpus.last()?, memory_node }))
    };
    on(0).chain(on(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(nodes: &[&[usize]]) -> About {
        let nodes = nodes.iter().zip(0..).map(|(cpus, node)| (node, cpus.to_vec())).collect();
        About { nodes, ..About::here(None).unwrap() }
    }

    fn rail(name: &str, client: Option<u32>, server: Option<u32>) -> Common {
        Common {
            names: [name.into(), format!("{name}'")],
            server_address: [10, 9, 0, 2].into(),
            nodes: [client, server],
        }
    }

    #[test]
    fn programs_stand_at_the_rail_away_from_it_and_at_two() {
        let two = about(&[&[0, 1, 2], &[3, 4, 5]]);
        let rails = [rail("x", None, None), rail("a", Some(1), Some(0)), rail("b", Some(0), Some(1))];
        let layouts = Layouts::find([&two, &two], &rails).unwrap();
        let show = |layout| {
            let stands = layouts.stands(layout).into_iter();
            stands.map(|s| (s.rails.join(" "), s.begin, s.client, s.server.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(show(Layout::Local), [("a a'".into(), 3, 3, 0), ("a a'".into(), 4, 4, 1)]);
        assert_eq!(show(Layout::Remote), [("a a'".into(), 3, 0, 3), ("a a'".into(), 4, 1, 4)]);
        assert_eq!(show(Layout::Both), [("a a'".into(), 3, 3, 0), ("b b'".into(), 0, 0, 3)]);
    }

    #[test]
    fn loads_are_on_each_node_with_memory_of_it_or_of_the_next() {
        let load = |end, cpu, memory_node| Load { end, cpu, memory_node };
        let (one, two) = (about(&[&[0, 1]]).nodes, about(&[&[0, 1, 2], &[3, 4, 5]]).nodes);
        assert_eq!(loads([&two, &two], true), [load(0, 2, 1), load(0, 5, 0), load(1, 2, 1), load(1, 5, 0)]);
        assert_eq!(loads([&two, &two], false), [load(0, 2, 0), load(0, 5, 1), load(1, 2, 0), load(1, 5, 1)]);
        assert_eq!(loads([&one, &two], true), [load(1, 2, 1), load(1, 5, 0)]);
        assert_eq!(loads([&one, &two], false)[0], load(0, 1, 0));
        assert!(loads([&one, &one], true).is_empty());
    }

    #[test]
    fn a_host_of_one_node_has_none_and_a_server_of_one_stands_anywhere() {
        let (one, two) = (about(&[&[0, 1]]), about(&[&[0], &[1]]));
        let rails = [rail("a", Some(0), Some(0))];
        let why = Layouts::find([&one, &two], &rails).unwrap_err().to_string();
        assert!(why.contains("one NUMA node"), "{why}");
        assert!(Layouts::find([&two, &one], &[rail("a", None, Some(0))]).is_err());
        let layouts = Layouts::find([&two, &one], &rails).unwrap();
        assert!(!layouts.has(Layout::Both) && layouts.has(Layout::Remote));
        let [stand, _] = layouts.stands(Layout::Remote).try_into().unwrap();
        assert_eq!((stand.begin, stand.client, stand.server), (0, 1, None));
        assert_eq!(layouts.loads().len(), 2);
    }
}

//! What else is done while a cell is measured: programs that copy memory, and what they achieve together.
//!
//! 1. `memory` on one host is a program on a CPU that neither end uses, where there is one. Between hosts it is one on
//!    the client's; where programs stand by the nodes of rails, it is one on each node of both hosts, with memory of
//!    its own.
//! 2. `between-nodes` is a program on each node, with memory of the next one: what it copies crosses the link between
//!    the two. Between hosts it is so on each host that has several nodes.
//! 3. Where memory is, is bound, and looked at by the program itself; on which node it ran, it tells. A load that was
//!    elsewhere is none.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use beeline_topo::host::Cpu;

use super::cell::Load;
use crate::conductor::{Launcher, Worker};
use crate::hosts::{self, Nodes};
use crate::transport::Transport;
use crate::worker::args::{Role, WorkerArgs};
use crate::worker::events::Outcome;

/// A program that copies memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loader {
    /// 0 for the client's host, 1 for the server's.
    pub end: usize,
    /// `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// The node of its memory; `None` leaves it to the kernel.
    pub memory_node: Option<u32>,
    /// Whether it is meant to run on another node than that.
    pub is_between: bool,
}

/// What there is to be loaded.
pub enum Ground<'a> {
    /// This host's CPUs, and those of the two ends; `None` where nobody knows them.
    OneHost { cpus: &'a [Cpu], ends: [Option<usize>; 2] },
    /// The nodes of two hosts, and whether programs stand by them.
    TwoHosts { nodes: &'a [Nodes; 2], is_by_nodes: bool },
}

/// The programs of a load.
///
/// # Errors
/// Why there are none.
pub fn loaders(load: Load, ground: &Ground) -> Result<Vec<Loader>, String> {
    let anywhere = |cpu| Loader { end: 0, cpu, memory_node: None, is_between: false };
    match (load, ground) {
        (Load::None, _) => Ok(Vec::new()),
        (Load::Memory, Ground::OneHost { cpus, ends }) => Ok(vec![anywhere(free(cpus, *ends, |_| true))]),
        (Load::BetweenNodes, Ground::OneHost { cpus, ends }) => between_nodes(cpus, *ends),
        (Load::Memory, Ground::TwoHosts { is_by_nodes: false, .. }) => Ok(vec![anywhere(None)]),
        (load, Ground::TwoHosts { nodes, .. }) => {
            let is_between = load == Load::BetweenNodes;
            let loader = |hosts::Load { end, cpu, memory_node }| Loader {
                end,
                cpu: Some(cpu),
                memory_node: Some(memory_node),
                is_between,
            };
            let loads = hosts::loads(nodes.each_ref(), is_between);
            match loads.is_empty() {
                true => {
                    Err("neither host has a second NUMA node, so there is nothing between nodes to be loaded".into())
                }
                false => Ok(loads.into_iter().map(loader).collect()),
            }
        }
    }
}

/// On each node of this host one, on a CPU that neither end uses where there is one.
fn between_nodes(cpus: &[Cpu], ends: [Option<usize>; 2]) -> Result<Vec<Loader>, String> {
    let nodes: BTreeSet<u32> = cpus.iter().filter_map(|cpu| cpu.node).collect();
    if nodes.len() < 2 {
        return Err("this host has no second NUMA node, so there is nothing between nodes to be loaded".into());
    }
    let loader = |(&own, &next): (&u32, &u32)| {
        let on_it = |node: Option<u32>| node == Some(own);
        let any = || cpus.iter().find(|cpu| on_it(cpu.node)).map(|cpu| cpu.id as usize);
        Loader { end: 0, cpu: free(cpus, ends, on_it).or_else(any), memory_node: Some(next), is_between: true }
    };
    Ok(nodes.iter().zip(nodes.iter().cycle().skip(1)).map(loader).collect())
}

/// A CPU of such a node that neither end uses.
fn free(cpus: &[Cpu], ends: [Option<usize>; 2], is_wanted: impl Fn(Option<u32>) -> bool) -> Option<usize> {
    // Nobody knows where programs are that the scheduler puts.
    ends[0]?;
    let free = cpus.iter().filter(|cpu| !ends.contains(&Some(cpu.id as usize)));
    free.filter(|cpu| is_wanted(cpu.node)).map(|cpu| cpu.id as usize).next()
}

/// Loads that go on.
pub struct Running(Vec<(Worker, Loader)>);

impl Running {
    /// Starts them, and waits until all copy.
    pub fn begin(loads: &[Loader], launcher: &Launcher, args: &WorkerArgs) -> Result<Running> {
        let begin = |load: &Loader| {
            let role = if load.end == 0 { Role::Client } else { Role::Server };
            let args = WorkerArgs { role, cpu: load.cpu, memory_node: load.memory_node, ..args.clone() };
            let mut worker = launcher.start(Transport::Tcp, &args, None)?;
            worker.reach("loading")?;
            Ok((worker, *load))
        };
        loads.iter().map(begin).collect::<Result<_>>().map(Running)
    }

    /// Ends them. What they copied in a second, all together; none where there was no load.
    pub fn end(mut self) -> Result<Option<f64>> {
        self.0.iter_mut().try_for_each(|(worker, _)| worker.go_on())?;
        let mut achieved = None;
        for (worker, load) in &mut self.0 {
            *achieved.get_or_insert(0.0) += load.achieved(&worker.result()?)?;
        }
        Ok(achieved)
    }
}

impl Loader {
    /// What it copied in a second, if it was where it was to be.
    fn achieved(&self, outcome: &Outcome) -> Result<f64> {
        let told =
            |name: &str| outcome.values.get(name).copied().with_context(|| format!("the load did not tell {name}"));
        if let Some(node) = self.memory_node {
            let (memory, cpu) = (told("memory_node")?, told("cpu_node")?);
            ensure!(memory == f64::from(node), "the load's memory is of node {memory}, not of {node}");
            ensure!(
                (cpu != memory) == self.is_between,
                "the load ran on node {cpu} with memory of node {memory}: it was to be {}",
                if self.is_between { "between two nodes" } else { "on one" }
            );
        }
        let rate = told("bytes_per_second")?;
        ensure!(rate > 0.0, "the load copied nothing");
        Ok(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(end: usize, cpu: usize, memory_node: u32, is_between: bool) -> Loader {
        Loader { end, cpu: Some(cpu), memory_node: Some(memory_node), is_between }
    }

    #[test]
    fn on_one_host_memory_is_loaded_beside_both_ends_and_the_link_from_both_nodes() {
        let cpu = |id, node| Cpu { id, core: id, package: node, node: Some(node) };
        let of = |load, cpus: &[Cpu], ends: [usize; 2]| loaders(load, &Ground::OneHost { cpus, ends: ends.map(Some) });
        let big = [cpu(0, 0), cpu(1, 0), cpu(2, 1)];
        let beside = Loader { end: 0, cpu: Some(1), memory_node: None, is_between: false };
        assert_eq!(of(Load::Memory, &big, [0, 2]).unwrap(), [beside]);
        // Node 1 has no CPU that is free.
        let between = [loader(0, 1, 1, true), loader(0, 2, 0, true)];
        assert_eq!(of(Load::BetweenNodes, &big, [0, 2]).unwrap(), between);
        assert_eq!(of(Load::None, &big, [0, 2]).unwrap(), []);
        let small = [cpu(0, 0), cpu(1, 0)];
        assert_eq!(of(Load::Memory, &small, [0, 1]).unwrap()[0].cpu, None);
        assert!(of(Load::BetweenNodes, &small, [0, 1]).unwrap_err().contains("no second NUMA node"));
    }

    #[test]
    fn between_hosts_the_nodes_of_both_are_loaded() {
        let nodes =
            |count: usize| -> Nodes { (0..count).map(|node| (node as u32, vec![2 * node, 2 * node + 1])).collect() };
        let of = |counts: [usize; 2], load, is_by_nodes| {
            loaders(load, &Ground::TwoHosts { nodes: &counts.map(nodes), is_by_nodes })
        };
        let between = [loader(0, 1, 1, true), loader(0, 3, 0, true), loader(1, 1, 1, true), loader(1, 3, 0, true)];
        assert_eq!(of([2, 2], Load::BetweenNodes, true).unwrap(), between);
        assert_eq!(of([1, 2], Load::BetweenNodes, false).unwrap(), between[2..]);
        let why = of([1, 1], Load::BetweenNodes, false).unwrap_err();
        assert!(why.contains("neither host"), "{why}");
        let own = [loader(0, 1, 0, false), loader(0, 3, 1, false), loader(1, 1, 0, false)];
        assert_eq!(of([2, 1], Load::Memory, true).unwrap(), own);
        let anywhere = Loader { end: 0, cpu: None, memory_node: None, is_between: false };
        assert_eq!(of([2, 2], Load::Memory, false).unwrap(), [anywhere]);
    }

    #[test]
    fn a_load_that_was_elsewhere_is_none() {
        let told = |rate: f64, cpu: f64, memory: f64| {
            let mut outcome = Outcome::of("bytes_per_second", rate, Vec::new());
            outcome.values.extend([("cpu_node".to_owned(), cpu), ("memory_node".to_owned(), memory)]);
            outcome
        };
        let (between, own) = (loader(0, 3, 1, true), loader(0, 3, 1, false));
        assert_eq!(between.achieved(&told(5e9, 0.0, 1.0)).unwrap(), 5e9);
        assert_eq!(own.achieved(&told(5e9, 1.0, 1.0)).unwrap(), 5e9);
        for (load, outcome, word) in [
            (between, told(5e9, 1.0, 1.0), "to be between two nodes"),
            (own, told(5e9, 0.0, 1.0), "to be on one"),
            (between, told(5e9, 1.0, 0.0), "not of 1"),
            (between, told(0.0, 0.0, 1.0), "copied nothing"),
            (between, Outcome::of("bytes_per_second", 1.0, Vec::new()), "memory_node"),
        ] {
            let error = load.achieved(&outcome).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

//! What a host is made of, as far as the choice of a rail depends on it.
//!
//! 1. Numbers are the operating system's: CPU 3 is `cpu3`, node 1 is `node1`. They may have gaps.
//! 2. Distances are those of the firmware's table (ACPI SLIT): 10 is the node itself, 20 takes twice as long.
//! 3. What is not known is absent and never guessed here; [`Host::distance`] says what it assumed.

use serde::{Deserialize, Serialize};

/// The distance of a node to itself, by definition of the firmware's table.
pub const LOCAL_DISTANCE: u32 = 10;
/// What Linux assumes between two nodes when the firmware does not say.
pub const REMOTE_DISTANCE: u32 = 20;

/// A host: its packages, nodes, CPUs and network ports, each list in the order of its numbers or names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The host's name, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where this description comes from, for people.
    #[serde(default)]
    pub source: String,
    /// Processor packages (sockets).
    pub packages: Vec<Package>,
    /// NUMA nodes.
    pub nodes: Vec<Node>,
    /// Distances between nodes, rows and columns in the order of `nodes`; empty if unknown.
    #[serde(default)]
    pub distances: Vec<Vec<u32>>,
    /// CPUs (hardware threads).
    pub cpus: Vec<Cpu>,
    /// Network ports.
    #[serde(default)]
    pub ports: Vec<Port>,
}

/// A processor package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its number.
    pub id: u32,
    /// The processor's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A CPU: one hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// The core it belongs to; unique within the package only.
    pub core: u32,
    /// The package it belongs to.
    pub package: u32,
    /// The node its memory is nearest on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
}

/// A network port: a network interface, an RDMA device, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The network interface, such as `eth2` or `ib0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// The RDMA device, such as `mlx5_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// The PCI function, such as `0000:81:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The adapter's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The nodes it is attached to, all equally near; empty if unknown.
    #[serde(default)]
    pub nodes: Vec<u32>,
    /// Its speed in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
}

impl Port {
    /// The name people know it by.
    pub fn name(&self) -> &str {
        self.netdev.as_deref().or(self.rdma.as_deref()).or(self.pci.as_deref()).unwrap_or("?")
    }

    fn is_called(&self, name: &str) -> bool {
        [&self.netdev, &self.rdma, &self.pci].into_iter().flatten().any(|own| own == name)
    }
}

/// How far a port is from a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distance {
    /// In the unit of the firmware's table.
    pub value: u32,
    /// Whether it follows from what is known of both; otherwise it is an assumption.
    pub known: bool,
}

/// What an administrator says about a port because the host says it wrongly or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The port's interface, RDMA device or PCI function.
    pub port: String,
    /// The nodes it is attached to; empty to leave them as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<u32>,
    /// Its speed in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
}

/// An override that does not fit the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideError {
    /// No port has this name.
    NoPort(String),
    /// The host has no such node.
    NoNode {
        /// The port of the override.
        port: String,
        /// The node it names.
        node: u32,
    },
}

impl std::fmt::Display for OverrideError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoPort(port) => write!(f, "this host has no network port {port}"),
            Self::NoNode { port, node } => write!(f, "this host has no NUMA node {node} for port {port}"),
        }
    }
}

impl std::error::Error for OverrideError {}

impl Host {
    /// Applies what the administrator says, all of it or, at the first error, nothing.
    pub fn apply(&mut self, overrides: &[Override]) -> Result<(), OverrideError> {
        let mut ports = self.ports.clone();
        for entry in overrides {
            let port = ports
                .iter_mut()
                .find(|port| port.is_called(&entry.port))
                .ok_or_else(|| OverrideError::NoPort(entry.port.clone()))?;
            if let Some(&node) = entry.nodes.iter().find(|&&node| self.nodes.iter().all(|known| known.id != node)) {
                return Err(OverrideError::NoNode { port: entry.port.clone(), node });
            }
            if !entry.nodes.is_empty() {
                port.nodes = entry.nodes.clone();
            }
            port.speed_mbps = entry.speed_mbps.or(port.speed_mbps);
        }
        self.ports = ports;
        Ok(())
    }

    /// Takes from another description of the same host what this one lacks: ports, and what is known of a port.
    pub fn complete_from(&mut self, other: Self) {
        for theirs in other.ports {
            match self.ports.iter_mut().find(|own| own.name() == theirs.name()) {
                Some(own) => {
                    own.rdma = own.rdma.take().or(theirs.rdma);
                    own.pci = own.pci.take().or(theirs.pci);
                    own.model = own.model.take().or(theirs.model);
                    own.speed_mbps = own.speed_mbps.or(theirs.speed_mbps);
                }
                None => self.ports.push(theirs),
            }
        }
        self.name = self.name.take().or(other.name);
        self.put_in_order();
    }

    /// Every list in the order of its numbers or names, and no port that pretends to know its place by naming all
    /// nodes.
    pub(crate) fn put_in_order(&mut self) {
        self.packages.sort_by_key(|package| package.id);
        self.cpus.sort_by_key(|cpu| cpu.id);
        self.ports.sort_by(|a, b| a.name().cmp(b.name()));
        for port in &mut self.ports {
            port.nodes.sort_unstable();
            port.nodes.dedup();
            if self.nodes.len() > 1 && port.nodes.len() >= self.nodes.len() {
                port.nodes.clear();
            }
        }
    }

    /// The node of a CPU; `None` for a CPU that this host does not have, or on a host without nodes.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.cpus.iter().find(|known| known.id == cpu)?.node
    }

    /// The port with this interface, RDMA device or PCI function.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.is_called(name))
    }

    /// The firmware's distance between two nodes, or what Linux assumes.
    pub fn between(&self, from: u32, to: u32) -> u32 {
        let place = |id| self.nodes.iter().position(|node| node.id == id);
        let told = || self.distances.get(place(from)?)?.get(place(to)?).copied();
        let assumed = if from == to { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
        told().filter(|&distance| distance >= LOCAL_DISTANCE).unwrap_or(assumed)
    }

    /// How far a port that is attached to `nodes` is from `cpu`.
    ///
    /// A port whose place is unknown counts as lying in the middle: farther than a port at the CPU's own node, nearer
    /// than one that is known to be far. Where there is nothing to choose (one node, or a CPU that is not known, so
    /// that all ports are the same to it) the distance is 10.
    pub fn distance(&self, cpu: Option<u32>, nodes: &[u32]) -> Distance {
        let Some(own) = cpu.and_then(|cpu| self.node_of_cpu(cpu)) else {
            return Distance { value: LOCAL_DISTANCE, known: false };
        };
        if self.nodes.len() <= 1 {
            return Distance { value: LOCAL_DISTANCE, known: true };
        }
        if let Some(value) = nodes.iter().map(|&node| self.between(own, node)).min() {
            return Distance { value, known: true };
        }
        let sum = self.nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(self.between(own, node.id).into()));
        let count = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        let value = u32::try_from(sum.div_ceil(count)).unwrap_or(u32::MAX);
        Distance { value, known: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sockets() -> Host {
        Host {
            nodes: vec![Node { id: 0, memory_bytes: None }, Node { id: 2, memory_bytes: None }],
            distances: vec![vec![10, 21], vec![21, 10]],
            cpus: vec![
                Cpu { id: 0, core: 0, package: 0, node: Some(0) },
                Cpu { id: 1, core: 0, package: 1, node: Some(2) },
            ],
            ports: vec![Port { netdev: Some("eth0".into()), pci: Some("0000:01:00.0".into()), ..Port::default() }],
            ..Host::default()
        }
    }

    #[test]
    fn distance_is_that_of_the_nearest_node() {
        let host = two_sockets();
        assert_eq!(host.distance(Some(0), &[0]), Distance { value: 10, known: true });
        assert_eq!(host.distance(Some(0), &[2]), Distance { value: 21, known: true });
        assert_eq!(host.distance(Some(1), &[0, 2]), Distance { value: 10, known: true });
    }

    #[test]
    fn an_unknown_place_lies_in_the_middle() {
        let host = two_sockets();
        assert_eq!(host.distance(Some(0), &[]), Distance { value: 16, known: false });
        assert_eq!(host.distance(None, &[2]), Distance { value: 10, known: false });
        assert_eq!(host.distance(Some(7), &[2]), Distance { value: 10, known: false });
    }

    #[test]
    fn a_table_that_is_absent_or_impossible_is_replaced_by_linux_s_own() {
        let mut host = two_sockets();
        host.distances = vec![vec![0, 0], vec![0, 0]];
        assert_eq!((host.between(0, 0), host.between(0, 2)), (10, 20));
        host.distances.clear();
        assert_eq!((host.between(2, 2), host.between(2, 0)), (10, 20));
    }

    #[test]
    fn overrides_are_applied_wholly_or_not_at_all() {
        let mut host = two_sockets();
        let good = Override { port: "0000:01:00.0".into(), nodes: vec![2], speed_mbps: Some(25_000) };
        let no_node = Override { port: "eth0".into(), nodes: vec![0, 1], speed_mbps: None };
        let no_port = Override { port: "eth1".into(), ..Override::default() };
        let before = host.clone();
        assert_eq!(host.apply(&[good.clone(), no_node]), Err(OverrideError::NoNode { port: "eth0".into(), node: 1 }));
        assert_eq!(host.apply(&[good.clone(), no_port]), Err(OverrideError::NoPort("eth1".into())));
        assert_eq!(host, before);
        host.apply(&[good]).unwrap();
        assert_eq!((host.ports[0].nodes.clone(), host.ports[0].speed_mbps), (vec![2], Some(25_000)));
    }
}

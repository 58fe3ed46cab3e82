//! What a bridge knows of its own rails and of a peer's.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// What a port is spoken to with. Rails of different protocols never reach each other, even within one subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RDMA over InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// RDMA over TCP, by the adapter.
    Iwarp,
    /// The kernel's TCP.
    Tcp,
    /// Something else that libfabric drives past the kernel.
    #[serde(other)]
    Other,
}

impl Protocol {
    /// Whether every byte goes through the kernel's network stack.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Tcp)
    }

    /// As it is written in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "infiniband",
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
            Self::Tcp => "tcp",
            Self::Other => "other",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Tcp => "TCP",
            Self::Other => "other",
        })
    }
}

/// The speed that a rail is taken to have when nobody can say.
pub const ASSUMED_SPEED_MBPS: u32 = 10_000;

/// What is on a rail at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes sent and not yet acknowledged.
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// Connections that took this rail.
    #[serde(default)]
    pub connections: u32,
}

/// One of this host's rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail {
    /// Unique on this host; libfabric's domain with its provider, such as `verbs/mlx5_0`.
    pub name: String,
    /// libfabric's provider, such as `verbs` or `tcp`.
    pub provider: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its address and how much of it is the subnet's.
    pub address: IpNet,
    /// The network interface that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// The adapter's PCI function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The NUMA node of the adapter, if the bridge knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Its nominal speed in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// Whether it can be used now.
    pub up: bool,
    /// What is on it.
    #[serde(default)]
    pub load: Load,
}

impl Rail {
    /// The nominal speed, or what is assumed of it.
    pub fn speed_or_assumed(&self) -> u32 {
        speed_or_assumed(self.speed_mbps)
    }

    /// Whether both are the same port, driven in two ways, so that they share its bandwidth.
    pub fn shares_port_with(&self, other: &Self) -> bool {
        same_port((&self.netdev, &self.address), (&other.netdev, &other.address))
    }

    /// The nodes that the adapter is attached to: as the bridge says, or as the host's port of that name says.
    pub fn nodes(&self, host: &Host) -> Vec<u32> {
        if let Some(node) = self.node {
            return vec![node];
        }
        let port = [&self.netdev, &self.pci].into_iter().flatten().find_map(|name| host.port(name));
        port.map(|port| port.nodes.clone()).unwrap_or_default()
    }
}

/// A rail of the peer, as the peer's bridge describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRail {
    /// Unique on the peer.
    pub name: String,
    /// libfabric's provider.
    pub provider: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its address and how much of it is the subnet's.
    pub address: IpNet,
    /// The peer's network interface: rails with the same one share its bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// Its nominal speed in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// How far it is from the CPU of the app at that end, if the peer said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
}

impl PeerRail {
    /// The nominal speed, or what is assumed of it.
    pub fn speed_or_assumed(&self) -> u32 {
        speed_or_assumed(self.speed_mbps)
    }

    /// Whether both are the same port, driven in two ways.
    pub fn shares_port_with(&self, other: &Self) -> bool {
        same_port((&self.netdev, &self.address), (&other.netdev, &other.address))
    }
}

impl From<&Rail> for PeerRail {
    /// What a bridge tells its peers of a rail.
    fn from(rail: &Rail) -> Self {
        Self {
            name: rail.name.clone(),
            provider: rail.provider.clone(),
            protocol: rail.protocol,
            address: rail.address,
            netdev: rail.netdev.clone(),
            speed_mbps: rail.speed_mbps,
            distance: None,
        }
    }
}

fn speed_or_assumed(speed_mbps: Option<u32>) -> u32 {
    speed_mbps.filter(|&speed| speed > 0).unwrap_or(ASSUMED_SPEED_MBPS)
}

type Place<'a> = (&'a Option<String>, &'a IpNet);

/// A port is known by its interface or its address. Two ports of one adapter may be one PCI function, so that says
/// nothing.
fn same_port((netdev_a, address_a): Place<'_>, (netdev_b, address_b): Place<'_>) -> bool {
    let address = |net: &IpNet| -> IpAddr { net.addr() };
    (netdev_a.is_some() && netdev_a == netdev_b) || address(address_a) == address(address_b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_of_later_versions_are_read_as_other() {
        let read = |text: &str| serde_json::from_str::<Protocol>(text).unwrap();
        for protocol in [Protocol::InfiniBand, Protocol::Roce, Protocol::Iwarp, Protocol::Tcp, Protocol::Other] {
            let text = serde_json::to_string(&protocol).unwrap();
            assert_eq!((text.trim_matches('"'), read(&text)), (protocol.name(), protocol));
        }
        assert_eq!(read("\"ultraethernet\""), Protocol::Other);
    }

    #[test]
    fn a_rail_is_read_with_what_must_be_there() {
        let text =
            r#"{"name": "tcp/eth0", "provider": "tcp", "protocol": "tcp", "address": "10.0.0.1/24", "up": true}"#;
        let rail: Rail = serde_json::from_str(text).unwrap();
        assert_eq!((rail.speed_or_assumed(), rail.load, rail.node), (ASSUMED_SPEED_MBPS, Load::default(), None));
        assert_eq!(serde_json::from_str::<Rail>(&serde_json::to_string(&rail).unwrap()).unwrap(), rail);
    }
}

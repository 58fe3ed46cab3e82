//! Which local rail reaches which rail of the peer.
//!
//! 1. Both ends speak the same protocol with the same provider.
//! 2. Both are in one segment of the network: their addresses are in each other's subnet, or the administrator joined
//!    their subnets because a router connects them.
//! 3. Addresses that mean something else on each host or on each interface (loopback, link-local, multicast,
//!    unspecified) say nothing about segments and reach nobody. Nor does an address that both ends have: it belongs to
//!    a network of the same make inside each of them (bridges of containers and virtual machines).
//! 4. Where a pair of ports can be used in two ways, the one past the kernel is kept and the other is not a link of its
//!    own: it would share the wire. Other pairs of ports are not touched by that: a segment that can only do TCP is
//!    used with TCP, and only there.
//! 5. A port with several addresses (of both families, say) is one wire: between two ports there is one link, over IPv4
//!    if they reach each other over both. So nothing is striped over a wire and itself, and a port's load is counted
//!    once.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::rail::{PeerRail, Rail};

/// A local rail and a rail of the peer that reach each other, as indices into the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    /// Index of the local rail.
    pub local: usize,
    /// Index of the peer's rail.
    pub peer: usize,
}

/// Subnets that routers join, each entry one segment. Without an entry a subnet is a segment by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments {
    /// The joined subnets.
    pub joined: Vec<Vec<IpNet>>,
}

impl Segments {
    /// Whether two addresses with their subnets are in one segment.
    pub fn are_one(&self, a: &IpNet, b: &IpNet) -> bool {
        if !is_telling(a.addr()) || !is_telling(b.addr()) || a.addr() == b.addr() {
            return false;
        }
        let own_subnet = a.contains(&b.addr()) && b.contains(&a.addr());
        own_subnet
            || self.joined.iter().any(|subnets| {
                let holds = |address: IpAddr| subnets.iter().any(|subnet| subnet.contains(&address));
                holds(a.addr()) && holds(b.addr())
            })
    }
}

fn is_telling(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// All links between the rails of this host and those of a peer, in the order of the local rails and then of the
/// peer's. A rail that is down keeps its links, but stands in the way of no other.
pub fn links(rails: &[Rail], peer: &[PeerRail], segments: &Segments) -> Vec<Link> {
    let mut all = Vec::new();
    for (local_index, local) in rails.iter().enumerate() {
        for (peer_index, remote) in peer.iter().enumerate() {
            let speak = local.protocol == remote.protocol && local.provider == remote.provider;
            if speak && segments.are_one(&local.address, &remote.address) {
                all.push((Link { local: local_index, peer: peer_index }, local, remote));
            }
        }
    }
    let is_shadowed = |&(_, local, remote): &(Link, &Rail, &PeerRail)| {
        local.protocol.is_kernel()
            && all.iter().any(|(_, better, better_remote)| {
                better.up
                    && !better.protocol.is_kernel()
                    && better.shares_port_with(local)
                    && better_remote.shares_port_with(remote)
            })
    };
    let is_again = |&(link, local, remote): &(Link, &Rail, &PeerRail)| {
        let rank = |link: &Link, local: &Rail| (local.address.addr().is_ipv6(), *link);
        all.iter().any(|(other, first, first_remote)| {
            first.up
                && first.protocol == local.protocol
                && rank(other, first) < rank(&link, local)
                && first.shares_port_with(local)
                && first_remote.shares_port_with(remote)
        })
    };
    all.iter().filter(|link| !is_shadowed(link) && !is_again(link)).map(|(link, _, _)| *link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::{Load, Protocol};

    fn rail(protocol: Protocol, netdev: &str, address: &str) -> Rail {
        let provider = if protocol.is_kernel() { "tcp" } else { "verbs" };
        Rail {
            name: format!("{provider}/{netdev}"),
            provider: provider.into(),
            protocol,
            address: address.parse().unwrap(),
            netdev: Some(netdev.into()),
            pci: None,
            node: None,
            speed_mbps: None,
            up: true,
            load: Load::default(),
        }
    }

    fn peer(rails: &[Rail]) -> Vec<PeerRail> {
        rails.iter().map(PeerRail::from).collect()
    }

    fn pairs(links: &[Link]) -> Vec<(usize, usize)> {
        links.iter().map(|link| (link.local, link.peer)).collect()
    }

    #[test]
    fn a_segment_with_tcp_alone_does_not_drag_the_others_down() {
        // Virtual Protocol Interconnect: InfiniBand between the back ends, Ethernet towards the front.
        let here = [
            rail(Protocol::InfiniBand, "ib0", "10.1.0.1/24"),
            rail(Protocol::Tcp, "ib0", "10.1.0.1/24"),
            rail(Protocol::Tcp, "eth0", "10.2.0.1/24"),
        ];
        let there = [
            rail(Protocol::InfiniBand, "ib0", "10.1.0.2/24"),
            rail(Protocol::Tcp, "ib0", "10.1.0.2/24"),
            rail(Protocol::Tcp, "eth0", "10.2.0.2/24"),
        ];
        assert_eq!(pairs(&links(&here, &peer(&there), &Segments::default())), [(0, 0), (2, 2)]);
        let front = [rail(Protocol::Tcp, "eth0", "10.2.0.9/24")];
        assert_eq!(pairs(&links(&here, &peer(&front), &Segments::default())), [(2, 0)]);
    }

    #[test]
    fn tcp_of_a_port_is_a_link_where_its_rdma_is_down_or_the_peer_has_none() {
        let mut here = [rail(Protocol::Roce, "eth0", "10.1.0.1/24"), rail(Protocol::Tcp, "eth0", "10.1.0.1/24")];
        let there = [rail(Protocol::Roce, "eth0", "10.1.0.2/24"), rail(Protocol::Tcp, "eth0", "10.1.0.2/24")];
        assert_eq!(pairs(&links(&here, &peer(&there), &Segments::default())), [(0, 0)]);
        assert_eq!(pairs(&links(&here, &peer(&there[1..]), &Segments::default())), [(1, 0)]);
        here[0].up = false;
        assert_eq!(pairs(&links(&here, &peer(&there), &Segments::default())), [(0, 0), (1, 1)]);
    }

    #[test]
    fn the_addresses_of_a_port_are_one_wire() {
        let port = |netdev: &str, own: u8| {
            let v6 = rail(Protocol::Roce, netdev, &format!("fd00::{own}/64"));
            let v4 = rail(Protocol::Roce, netdev, &format!("10.1.0.{own}/24"));
            let other = rail(Protocol::Roce, netdev, &format!("10.2.0.{own}/24"));
            [v6, v4, other]
        };
        let (mut here, there) = (port("eth0", 1), port("eth0", 2));
        let joined = Segments::default();
        assert_eq!(pairs(&links(&here, &peer(&there), &joined)), [(1, 1)]);
        // A peer that has the one family only is reached over that.
        assert_eq!(pairs(&links(&here, &peer(&there[..1]), &joined)), [(0, 0)]);
        assert_eq!(pairs(&links(&here, &peer(&there[2..]), &joined)), [(2, 0)]);
        // One that is down stands in the way of no other, and other ports are other wires.
        here[1].up = false;
        assert_eq!(pairs(&links(&here, &peer(&there), &joined)), [(1, 1), (2, 2)]);
        let second = port("eth1", 3);
        assert_eq!(pairs(&links(&second, &peer(&there), &joined)), [(1, 1)]);
    }

    #[test]
    fn roce_and_iwarp_do_not_meet_in_one_subnet() {
        let here = [rail(Protocol::Roce, "eth0", "10.1.0.1/24")];
        let there = [rail(Protocol::Iwarp, "eth0", "10.1.0.2/24")];
        assert_eq!(links(&here, &peer(&there), &Segments::default()), []);
    }

    #[test]
    fn subnets_are_segments_of_their_own_unless_they_are_joined() {
        let here = [rail(Protocol::Tcp, "eth0", "10.1.0.1/24"), rail(Protocol::Tcp, "eth1", "fd00:1::1/64")];
        let there = [rail(Protocol::Tcp, "eth0", "10.2.0.2/24"), rail(Protocol::Tcp, "eth1", "fd00:1::2/64")];
        assert_eq!(pairs(&links(&here, &peer(&there), &Segments::default())), [(1, 1)]);
        let joined = Segments { joined: vec![vec!["10.1.0.0/24".parse().unwrap(), "10.2.0.0/16".parse().unwrap()]] };
        assert_eq!(pairs(&links(&here, &peer(&there), &joined)), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_subnet_must_hold_both_addresses_in_the_eyes_of_both() {
        let here = [rail(Protocol::Tcp, "eth0", "10.1.0.1/16")];
        let there = [rail(Protocol::Tcp, "eth0", "10.1.7.2/24")];
        assert_eq!(links(&here, &peer(&there), &Segments::default()), []);
    }

    #[test]
    fn addresses_that_say_nothing_reach_nobody() {
        for (own, other) in [
            ("127.0.0.1/8", "127.0.0.2/8"),
            ("169.254.1.1/16", "169.254.1.2/16"),
            ("fe80::1/64", "fe80::2/64"),
            ("0.0.0.0/0", "10.0.0.1/0"),
            ("224.0.0.1/4", "224.0.0.2/4"),
            ("172.17.0.1/16", "172.17.0.1/16"),
        ] {
            let (here, there) = ([rail(Protocol::Tcp, "a", own)], [rail(Protocol::Tcp, "b", other)]);
            assert_eq!(links(&here, &peer(&there), &Segments::default()), [], "{own}");
        }
    }

    #[test]
    fn every_port_of_a_flat_network_reaches_every_other() {
        let here = [rail(Protocol::Roce, "a", "10.0.0.1/24"), rail(Protocol::Roce, "b", "10.0.0.2/24")];
        let there = [rail(Protocol::Roce, "a", "10.0.0.3/24"), rail(Protocol::Roce, "b", "10.0.0.4/24")];
        assert_eq!(pairs(&links(&here, &peer(&there), &Segments::default())), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }
}

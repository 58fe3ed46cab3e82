//! This host's ports as rails: what `beelined rails` shows, and what the choice among them goes by.

use std::net::IpAddr;

use beeline_fabric::Port;
use beeline_topo::rail::Load;
use beeline_topo::{Protocol, Rail};
use ipnet::IpNet;

/// A port in the words of the choice. Its load is nothing: only the data plane knows of one.
#[must_use]
pub fn describe(port: &Port) -> Rail {
    Rail {
        name: format!("{}/{}", port.provider, port.domain),
        provider: port.provider.clone(),
        protocol: protocol(&port.provider, &port.link_layer, port.iwarp),
        address: subnet(port.address),
        netdev: port.netdev.clone(),
        pci: port.pci.as_ref().map(ToString::to_string),
        node: port.numa_node,
        speed_mbps: port.link_bits_per_second.map(|bits| u32::try_from(bits / 1_000_000).unwrap_or(u32::MAX)),
        up: port.link_up != Some(false),
        load: Load::default(),
    }
}

/// What goes over the wire: rails of different kinds do not understand each other.
fn protocol(provider: &str, link_layer: &str, iwarp: bool) -> Protocol {
    match (provider, link_layer) {
        ("tcp", _) => Protocol::Tcp,
        ("verbs", _) if iwarp => Protocol::Iwarp,
        ("verbs", "InfiniBand") => Protocol::InfiniBand,
        ("verbs", _) => Protocol::Roce,
        _ => Protocol::Other,
    }
}

/// A local address with the length of its interface's prefix; by itself when no interface has it.
fn subnet(address: IpAddr) -> IpNet {
    let found = nix::ifaddrs::getifaddrs().ok().into_iter().flatten().find_map(|interface| {
        let own = interface.address.as_ref().and_then(ip)?;
        let mask = interface.netmask.as_ref().and_then(ip)?;
        if own == address { IpNet::with_netmask(own, mask).ok() } else { None }
    });
    found.unwrap_or_else(|| IpNet::from(address))
}

fn ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_interface_s_subnet() {
        assert_eq!(subnet("127.0.0.1".parse().unwrap()).to_string(), "127.0.0.1/8");
        assert_eq!(subnet("192.0.2.1".parse().unwrap()).to_string(), "192.0.2.1/32");
    }

    #[test]
    fn verbs_over_ethernet_is_roce_or_iwarp() {
        assert_eq!(protocol("tcp", "", false), Protocol::Tcp);
        assert_eq!(protocol("verbs", "InfiniBand", false), Protocol::InfiniBand);
        assert_eq!(protocol("verbs", "Ethernet", false), Protocol::Roce);
        assert_eq!(protocol("verbs", "Ethernet", true), Protocol::Iwarp);
        assert_eq!(protocol("efa", "Ethernet", false), Protocol::Other);
    }
}

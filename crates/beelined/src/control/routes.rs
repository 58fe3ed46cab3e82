//! Who speaks for which address.
//!
//! 1. The longest prefix wins, then the smaller name. This host's own prefixes take part, and win against equal ones.
//! 2. An address that one of this host's interfaces has is this host's, whatever certificates say; and so is loopback.

use std::net::IpAddr;

use super::event::PeerId;
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// All prefixes that somebody speaks for now.
#[derive(Debug, Default)]
pub struct Routes {
    own: Vec<Prefix>,
    interfaces: Vec<IpAddr>,
    peers: Vec<PeerRoutes>,
}

#[derive(Debug)]
struct PeerRoutes {
    name: BridgeName,
    peer: PeerId,
    prefixes: Vec<Prefix>,
}

impl Routes {
    /// Of a host that speaks for these.
    pub fn new(own: Vec<Prefix>) -> Self {
        Self { own, ..Self::default() }
    }

    /// What the host speaks for.
    pub fn own(&self) -> &[Prefix] {
        &self.own
    }

    /// Says which addresses the interfaces have now.
    pub fn set_interfaces(&mut self, addresses: Vec<IpAddr>) {
        self.interfaces = addresses;
    }

    /// Adds a peer.
    pub fn add(&mut self, name: BridgeName, peer: PeerId, prefixes: Vec<Prefix>) {
        self.peers.push(PeerRoutes { name, peer, prefixes });
        self.peers.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Forgets a peer.
    pub fn remove(&mut self, peer: PeerId) {
        self.peers.retain(|routes| routes.peer != peer);
    }

    /// Whether the peer may speak for the address.
    pub fn speaks_for(&self, peer: PeerId, address: IpAddr) -> bool {
        let routes = self.peers.iter().find(|routes| routes.peer == peer);
        let theirs = routes.and_then(|routes| longest(&routes.prefixes, address));
        theirs.is_some_and(|theirs| !self.is_ours(address, theirs))
    }

    /// The peer to ask about the address.
    pub fn peer_for(&self, address: IpAddr) -> Option<PeerId> {
        let mut best: Option<(Prefix, PeerId)> = None;
        for routes in &self.peers {
            if let Some(prefix) = longest(&routes.prefixes, address)
                && best.is_none_or(|(best, _)| prefix.length() > best.length())
            {
                best = Some((prefix, routes.peer));
            }
        }
        best.filter(|(prefix, _)| !self.is_ours(address, *prefix)).map(|(_, peer)| peer)
    }

    fn is_ours(&self, address: IpAddr, theirs: Prefix) -> bool {
        let address = address.to_canonical();
        self.interfaces.contains(&address)
            || longest(&self.own, address).is_some_and(|ours| ours.length() >= theirs.length())
    }
}

fn longest(prefixes: &[Prefix], address: IpAddr) -> Option<Prefix> {
    prefixes.iter().copied().filter(|prefix| prefix.contains(address)).max_by_key(|prefix| prefix.length())
}

/// The addresses of this host's interfaces.
pub fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address_of = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    interfaces.filter_map(address_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const BETA: PeerId = PeerId(1);
    const GAMMA: PeerId = PeerId(2);

    fn routes() -> Routes {
        let mut routes = Routes::new(prefixes(&["10.0.0.1", "10.9.0.0/16"]));
        routes.set_interfaces(vec![ip("10.0.0.1"), ip("10.0.7.7"), ip("127.0.0.1")]);
        routes.add("gamma".parse().unwrap(), GAMMA, prefixes(&["10.0.3.0/24", "10.0.0.0/16", "10.5.0.5"]));
        routes.add("beta".parse().unwrap(), BETA, prefixes(&["10.0.2.0/24", "10.0.0.0/8", "10.5.0.5"]));
        routes
    }

    #[test]
    fn the_longest_prefix_wins_then_the_smaller_name() {
        let routes = routes();
        for (address, peer) in [
            ("10.0.2.1", Some(BETA)),
            ("10.0.3.1", Some(GAMMA)),
            ("::ffff:10.0.3.1", Some(GAMMA)),
            ("10.0.4.1", Some(GAMMA)),
            ("10.1.0.1", Some(BETA)),
            ("10.5.0.5", Some(BETA)),
            ("11.0.0.1", None),
            ("2001:db8::1", None),
        ] {
            assert_eq!(routes.peer_for(ip(address)), peer, "{address}");
        }
    }

    #[test]
    fn nobody_speaks_for_this_host_or_for_loopback() {
        let mut routes = routes();
        routes.add(
            "omega".parse().unwrap(),
            PeerId(3),
            prefixes(&["0.0.0.0/0", "10.0.7.7", "10.9.1.0/24", "10.9.0.0/16"]),
        );
        let omega = PeerId(3);
        for ours in ["10.0.0.1", "10.0.7.7", "::ffff:10.0.7.7", "127.0.0.1", "0.0.0.0", "10.9.2.2"] {
            assert_eq!(routes.peer_for(ip(ours)), None, "{ours}");
            assert!(!routes.speaks_for(omega, ip(ours)), "{ours}");
        }
        // A longer prefix than our own is somebody else's, as in every routing table.
        assert_eq!(routes.peer_for(ip("10.9.1.1")), Some(omega));
        assert!(routes.speaks_for(omega, ip("8.8.8.8")));
    }

    #[test]
    fn a_peer_speaks_for_all_its_prefixes_until_it_is_gone() {
        let mut routes = routes();
        assert!(routes.speaks_for(BETA, ip("10.0.3.1")) && routes.speaks_for(GAMMA, ip("10.0.3.1")));
        assert!(!routes.speaks_for(GAMMA, ip("10.1.0.1")));
        routes.remove(BETA);
        assert!(!routes.speaks_for(BETA, ip("10.0.3.1")));
        assert_eq!(routes.peer_for(ip("10.0.2.1")), Some(GAMMA));
        assert_eq!(routes.peer_for(ip("10.1.0.1")), None);
    }

    #[test]
    fn interfaces_have_the_loopback_address_at_least() {
        assert!(interface_addresses().contains(&ip("127.0.0.1")));
    }
}

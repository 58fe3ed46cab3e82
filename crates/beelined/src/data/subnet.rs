//! Which subnet a local address is in.

use std::net::IpAddr;

use ipnet::IpNet;

/// The address with the length of its interface's prefix; a single address when no interface has it.
#[must_use]
pub fn of(address: IpAddr) -> IpNet {
    let found = nix::ifaddrs::getifaddrs().ok().into_iter().flatten().find_map(|interface| {
        let ip = interface.address.as_ref().and_then(ip_of)?;
        let mask = interface.netmask.as_ref().and_then(ip_of)?;
        (ip == address).then(|| IpNet::with_netmask(ip, mask).ok()).flatten()
    });
    found.unwrap_or_else(|| IpNet::from(address))
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_has_its_network() {
        assert_eq!(super::of("127.0.0.1".parse().unwrap()).to_string(), "127.0.0.1/8");
        assert_eq!(super::of("192.0.2.1".parse().unwrap()).to_string(), "192.0.2.1/32");
    }
}

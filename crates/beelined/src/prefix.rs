//! Addresses that a bridge may speak for.
//!
//! 1. A prefix has no host bits set. An address alone is a prefix of full length.
//! 2. A prefix never covers loopback, unspecified, multicast, broadcast or link-local addresses: they are not addresses
//!    of one host as seen from another. `contains` says no to them even when the prefix is wide enough.
//! 3. IPv4 addresses that are written as IPv6 (`::ffff:10.0.0.1`) are the IPv4 addresses.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A range of addresses that a bridge may speak for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(IpNet);

impl Prefix {
    /// The prefix that holds this address alone, if another host could have it.
    pub fn host(address: IpAddr) -> Result<Self, String> {
        Self::checked(IpNet::from(address.to_canonical()))
    }

    fn checked(net: IpNet) -> Result<Self, String> {
        let net = without_host_bits(net)?;
        // 0.0.0.0/0 and ::/0 begin with the unspecified address, but are more than it.
        if (net.prefix_len() > 0 || net.max_prefix_len() == 0)
            && let Some(kind) = local_kind(net.addr())
        {
            return Err(format!("`{}` is {kind}, which means another host's address nowhere", Self(net)));
        }
        Ok(Self(net))
    }

    /// Whether the address is one of these, and one that a host can have towards others.
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        local_kind(address).is_none() && self.0.contains(&address)
    }

    /// Whether every address of `other` is one of these.
    pub fn covers(self, other: Self) -> bool {
        self.0.contains(&other.0)
    }

    /// Whether some address belongs to both.
    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// How many leading bits are fixed: the longer, the closer.
    pub fn length(self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether it is one single address.
    pub fn is_host(self) -> bool {
        self.0.prefix_len() == self.0.max_prefix_len()
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// As a network.
    pub fn net(self) -> IpNet {
        self.0
    }

    /// Whether it is so wide that somebody probably mistyped it: more than 2^16 IPv4 addresses, or more than a
    /// site's /48 of IPv6.
    pub fn is_wide(self) -> bool {
        self.length() < if self.0.addr().is_ipv4() { 16 } else { 48 }
    }
}

/// The prefix, unless it is an address within a prefix: one host is not silently taken for its whole network.
pub(crate) fn without_host_bits(net: IpNet) -> Result<IpNet, String> {
    if net.addr() == net.network() {
        return Ok(net);
    }
    Err(format!("`{net}` has bits beyond its length; did you mean `{}`?", net.trunc()))
}

/// What kind of address it is that says nothing about another host.
fn local_kind(address: IpAddr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if matches!(address, IpAddr::V4(v4) if v4.is_broadcast()) {
        Some("the broadcast address")
    } else if match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    } {
        Some("a link-local address")
    } else {
        None
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Self::host(address);
        }
        let net: IpNet = text.parse().map_err(|_| {
            let shown: String = text.chars().take(80).collect();
            format!("`{}` is neither an IP address nor a prefix like 10.0.0.0/24", shown.escape_debug())
        })?;
        if let IpNet::V6(v6) = net
            && v6.addr().to_ipv4_mapped().is_some()
        {
            return Err(format!("`{net}` is IPv4 written as IPv6; write it as IPv4"));
        }
        Self::checked(net)
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() { write!(f, "{}", self.0.addr()) } else { write!(f, "{}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_and_prefixes_are_printed_as_they_are_written() {
        for text in ["10.0.0.1", "10.0.0.0/24", "0.0.0.0/0", "::/0", "2001:db8::1", "2001:db8::/32"] {
            assert_eq!(prefix(text).to_string(), text);
        }
        assert_eq!(prefix("10.0.0.1/32").to_string(), "10.0.0.1");
        assert_eq!(prefix("::ffff:10.0.0.1"), prefix("10.0.0.1"));
    }

    #[test]
    fn what_is_nobodys_address_is_refused() {
        for bad in [
            "",
            "x",
            "10.0.0.1/33",
            "10.0.0.1/24",
            "127.0.0.1",
            "127.0.0.0/8",
            "0.0.0.0",
            "::",
            "::1",
            "224.0.0.1",
            "255.255.255.255",
            "169.254.1.1",
            "fe80::1",
            "fe80::/64",
            "ff02::1",
            "::ffff:10.0.0.0/120",
            "::ffff:127.0.0.1",
        ] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_holds_its_addresses_but_never_local_ones() {
        assert!(prefix("10.0.0.0/24").contains("10.0.0.9".parse().unwrap()));
        assert!(prefix("10.0.0.0/24").contains("::ffff:10.0.0.9".parse().unwrap()));
        assert!(!prefix("10.0.0.0/24").contains("10.0.1.9".parse().unwrap()));
        assert!(!prefix("::/0").contains("10.0.0.1".parse().unwrap()));
        for local in ["127.0.0.1", "0.0.0.0", "255.255.255.255", "169.254.0.1"] {
            assert!(!prefix("0.0.0.0/0").contains(local.parse().unwrap()), "{local}");
        }
        assert!(!prefix("::/0").contains("::1".parse().unwrap()));
    }

    #[test]
    fn covering_is_not_symmetric_and_overlapping_is() {
        let (wide, narrow, other) = (prefix("10.0.0.0/8"), prefix("10.1.0.0/16"), prefix("11.0.0.1"));
        assert!(wide.covers(narrow) && !narrow.covers(wide) && wide.covers(wide));
        assert!(wide.overlaps(narrow) && narrow.overlaps(wide) && !other.overlaps(wide));
        assert!(prefix("10.0.0.0/15").is_wide() && !prefix("10.0.0.0/16").is_wide());
    }
}

//! Which rails are used, and which of them routers connect.
//!
//! 1. A rule holds for a rail when all that it names holds: provider, network device, an address.
//! 2. A rail is used if some `allow` rule holds for it, or there are none, and no `deny` rule does.
//! 3. Rails of different subnets reach each other only if an entry of `joined` has both subnets.

use std::net::IpAddr;

use beeline_topo::Segments;
use serde::{Deserialize, Serialize};

use crate::prefix::Prefix;

/// `[rails]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RailRules {
    /// Use nothing but these, if there are any.
    #[serde(default)]
    pub allow: Vec<RailRule>,
    /// Never use these.
    #[serde(default)]
    pub deny: Vec<RailRule>,
    /// Subnets that a router connects.
    #[serde(default)]
    joined: Vec<Joined>,
}

/// Subnets that a router connects with each other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Vec<Prefix>")]
struct Joined(Vec<Prefix>);

impl TryFrom<Vec<Prefix>> for Joined {
    type Error = &'static str;

    fn try_from(subnets: Vec<Prefix>) -> Result<Self, &'static str> {
        if subnets.len() < 2 {
            return Err("an entry of `joined` has at least two subnets: those that a router connects");
        }
        Ok(Self(subnets))
    }
}

/// What a rail has to be for the rule to hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, try_from = "WrittenRule")]
pub struct RailRule {
    /// libfabric's provider: `verbs`, `tcp`. Layered ones (`verbs;ofi_rxm`) go by their first part, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The network device, as `ip link` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// One of its addresses is among these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Prefix>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    provider: Option<String>,
    netdev: Option<String>,
    address: Option<Prefix>,
}

impl TryFrom<WrittenRule> for RailRule {
    type Error = &'static str;

    fn try_from(written: WrittenRule) -> Result<Self, &'static str> {
        let WrittenRule { provider, netdev, address } = written;
        if provider.is_none() && netdev.is_none() && address.is_none() {
            return Err("a rule for rails names a provider, a netdev or an address");
        }
        Ok(Self { provider, netdev, address })
    }
}

impl RailRules {
    /// Whether a rail is used.
    pub fn admit(&self, provider: &str, netdev: Option<&str>, addresses: &[IpAddr]) -> bool {
        let any = |rules: &[RailRule]| rules.iter().any(|rule| rule.holds(provider, netdev, addresses));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }

    /// The subnets that routers connect, for the choice of rails.
    pub fn segments(&self) -> Segments {
        let nets = |joined: &Joined| joined.0.iter().map(|subnet| subnet.net()).collect();
        Segments { joined: self.joined.iter().map(nets).collect() }
    }
}

impl RailRule {
    fn holds(&self, provider: &str, netdev: Option<&str>, addresses: &[IpAddr]) -> bool {
        let first = provider.split(';').next().unwrap_or_default();
        self.provider.as_deref().is_none_or(|wanted| wanted == provider || wanted == first)
            && self.netdev.as_deref().is_none_or(|wanted| Some(wanted) == netdev)
            && self.address.is_none_or(|wanted| addresses.iter().any(|address| wanted.contains(*address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> RailRules {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn without_rules_every_rail_is_used() {
        assert!(rules("").admit("tcp", None, &[]));
    }

    #[test]
    fn all_that_a_rule_names_must_hold() {
        let rules = rules("allow = [{ provider = 'verbs', netdev = 'ib0' }, { address = '10.0.0.0/24' }]");
        let inside = ["10.0.0.7".parse().unwrap()];
        assert!(rules.admit("verbs", Some("ib0"), &[]));
        assert!(rules.admit("verbs;ofi_rxm", Some("ib0"), &[]));
        assert!(!rules.admit("verbs", Some("ib1"), &[]));
        assert!(!rules.admit("verbs", None, &[]));
        assert!(!rules.admit("tcp", Some("ib0"), &[]));
        assert!(rules.admit("tcp", None, &inside));
    }

    #[test]
    fn deny_wins() {
        let rules = rules("allow = [{ provider = 'tcp' }]\ndeny = [{ netdev = 'wlan0' }]");
        assert!(rules.admit("tcp", Some("eth0"), &[]));
        assert!(!rules.admit("tcp", Some("wlan0"), &[]));
    }

    #[test]
    fn subnets_are_joined_as_they_are_written() {
        let joined = rules("joined = [['10.1.0.0/24', '10.2.0.0/16'], ['fd00:1::/64', 'fd00:2::/64']]");
        let segments = joined.segments();
        let are_one = |a: &str, b: &str| segments.are_one(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(are_one("10.1.0.1/24", "10.2.7.1/24") && are_one("fd00:1::1/64", "fd00:2::1/64"));
        assert!(!are_one("10.1.0.1/24", "10.3.0.1/24"));
        assert_eq!(rules("").segments(), Segments::default());
        for wrong in
            ["joined = [['10.1.0.0/24']]", "joined = [[]]", "joined = ['10.1.0.0/24']", "joined = [['x', 'y']]"]
        {
            assert!(toml::from_str::<RailRules>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rule_that_names_nothing_is_refused() {
        assert!(toml::from_str::<RailRules>("deny = [{}]").is_err());
        assert!(toml::from_str::<RailRules>("deny = [{ device = 'x' }]").is_err());
    }
}

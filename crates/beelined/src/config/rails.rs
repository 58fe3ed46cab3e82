//! Which rails are used, and which of them routers connect.
//!
//! 1. A rule holds for a rail when all that it names holds: provider, network device, an address.
//! 2. A rail is used if some `allow` rule holds for it, or there are none, and no `deny` rule does.
//! 3. A provider that goes over the kernel's sockets ([`OVER_SOCKETS`]) is TCP with a bridge in its way, which costs
//!    more than TCP itself. Its rails are used only if an `allow` rule that holds for them names their provider.
//! 4. Rails of different subnets reach each other only if an entry of `joined` has both subnets.

use std::net::IpAddr;

use beeline_topo::Segments;
use serde::{Deserialize, Serialize};

use crate::prefix::Prefix;

/// Providers of libfabric that go over the kernel's sockets.
const OVER_SOCKETS: [&str; 4] = ["tcp", "sockets", "net", "udp"];

/// Whether a rail is used, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is.
    Used,
    /// A `deny` rule is against it.
    Denied,
    /// There are `allow` rules, and none holds for it.
    NotAllowed,
    /// It goes over the kernel's sockets, and nobody has asked for that (rule 3).
    NotAsked,
}

impl Admission {
    /// A sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Used => "It is used.",
            Self::Denied => "It is denied by a rule of the configuration.",
            Self::NotAllowed => "No allow rule of the configuration holds for it.",
            Self::NotAsked => "It goes over TCP, and no rule of the configuration allows its provider by name.",
        }
    }

    /// For a table; nothing for what is used.
    pub fn remark(self) -> &'static str {
        match self {
            Self::Used => "",
            Self::Denied => "denied by a rule of the configuration",
            Self::NotAllowed => "not used: no allow rule holds for it",
            Self::NotAsked => "not used: TCP underneath, and no rule allows its provider by name",
        }
    }
}

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
    pub fn admit(&self, provider: &str, netdev: Option<&str>, addresses: &[IpAddr]) -> Admission {
        let holds = |rule: &&RailRule| rule.holds(provider, netdev, addresses);
        let over_sockets = OVER_SOCKETS.contains(&first_part(provider));
        if self.deny.iter().any(|rule| holds(&rule)) {
            Admission::Denied
        } else if !self.allow.is_empty() && !self.allow.iter().any(|rule| holds(&rule)) {
            Admission::NotAllowed
        } else if over_sockets && !self.allow.iter().filter(holds).any(|rule| rule.provider.is_some()) {
            Admission::NotAsked
        } else {
            Admission::Used
        }
    }

    /// The subnets that routers connect, for the choice of rails.
    pub fn segments(&self) -> Segments {
        let nets = |joined: &Joined| joined.0.iter().map(|subnet| subnet.net()).collect();
        Segments { joined: self.joined.iter().map(nets).collect() }
    }
}

impl RailRule {
    fn holds(&self, provider: &str, netdev: Option<&str>, addresses: &[IpAddr]) -> bool {
        self.provider.as_deref().is_none_or(|wanted| wanted == provider || wanted == first_part(provider))
            && self.netdev.as_deref().is_none_or(|wanted| Some(wanted) == netdev)
            && self.address.is_none_or(|wanted| addresses.iter().any(|address| wanted.contains(*address)))
    }
}

/// The provider that has the network, of one that is layered over it.
fn first_part(provider: &str) -> &str {
    provider.split(';').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Admission::{Denied, NotAllowed, NotAsked, Used};
    use super::*;

    fn rules(text: &str) -> RailRules {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn without_rules_every_rail_is_used_but_those_over_sockets() {
        assert_eq!(rules("").admit("verbs", None, &[]), Used);
        assert_eq!(rules("").admit("efa", None, &[]), Used);
        for provider in ["tcp", "tcp;ofi_rxm", "sockets", "udp;ofi_rxd"] {
            assert_eq!(rules("").admit(provider, None, &[]), NotAsked, "{provider}");
        }
    }

    #[test]
    fn rails_over_sockets_are_asked_for_by_the_name_of_their_provider() {
        let inside = ["10.0.0.7".parse().unwrap()];
        let by_address = rules("allow = [{ address = '10.0.0.0/24' }]");
        assert_eq!(by_address.admit("verbs", None, &inside), Used);
        assert_eq!(by_address.admit("tcp", None, &inside), NotAsked);
        let by_name = rules("allow = [{ provider = 'tcp', address = '10.0.0.0/24' }]");
        assert_eq!(by_name.admit("tcp", None, &inside), Used);
        assert_eq!(by_name.admit("tcp;ofi_rxm", None, &inside), Used);
        assert_eq!(by_name.admit("tcp", None, &[]), NotAllowed);
        assert_eq!(by_name.admit("sockets", None, &inside), NotAllowed);
    }

    #[test]
    fn all_that_a_rule_names_must_hold() {
        let rules = rules("allow = [{ provider = 'verbs', netdev = 'ib0' }, { address = '10.0.0.0/24' }]");
        let inside = ["10.0.0.7".parse().unwrap()];
        assert_eq!(rules.admit("verbs", Some("ib0"), &[]), Used);
        assert_eq!(rules.admit("verbs;ofi_rxm", Some("ib0"), &[]), Used);
        assert_eq!(rules.admit("verbs", Some("ib1"), &[]), NotAllowed);
        assert_eq!(rules.admit("verbs", None, &[]), NotAllowed);
        assert_eq!(rules.admit("tcp", Some("ib0"), &[]), NotAllowed);
        assert_eq!(rules.admit("verbs", None, &inside), Used);
    }

    #[test]
    fn deny_wins() {
        let rules = rules("allow = [{ provider = 'tcp' }]\ndeny = [{ netdev = 'wlan0' }]");
        assert_eq!(rules.admit("tcp", Some("eth0"), &[]), Used);
        assert_eq!(rules.admit("tcp", Some("wlan0"), &[]), Denied);
        assert_eq!(rules.admit("verbs", Some("wlan0"), &[]), Denied);
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

//! Which rails are used.
//!
//! 1. A rule holds for a rail when all that it names holds: provider, network device, an address.
//! 2. A rail is used if some `allow` rule holds for it, or there are none, and no `deny` rule does.

use std::net::IpAddr;

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
    fn a_rule_that_names_nothing_is_refused() {
        assert!(toml::from_str::<RailRules>("deny = [{}]").is_err());
        assert!(toml::from_str::<RailRules>("deny = [{ device = 'x' }]").is_err());
    }
}

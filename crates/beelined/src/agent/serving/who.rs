//! Who asks: the groups that somebody is in, by what the kernel says of its network namespace.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::super::care::Strange;
use super::super::quotas::Holder;
use super::Serving;

impl Serving {
    /// The groups that a carrier's holder is in, at an address, or while none is known.
    fn groups(&self, carrier: &Strange, holder: Holder, address: Option<IpAddr>, now: Instant) -> u64 {
        self.rules.groups(self.name(carrier, holder, now).as_deref(), address, holder.0)
    }

    /// The name of its namespace, where names matter.
    fn name(&self, carrier: &Strange, holder: Holder, now: Instant) -> Option<String> {
        if self.rules.name_namespaces() { self.namespaces.name(holder.1, carrier.fd(), now) } else { None }
    }

    /// The groups that a carrier's holder may turn out to be in at any of the addresses that its namespace has: who has
    /// none of a group's is told nothing, and keeps nobody waiting. None if nobody knows at the moment.
    pub(super) fn groups_anywhere(&self, carrier: &Strange, holder: Holder, now: Instant) -> Option<u64> {
        let most = self.groups(carrier, holder, None, now);
        if most == 0 || !self.rules.name_addresses() {
            return Some(most);
        }
        let name = self.name(carrier, holder, now);
        let at = |ip| self.rules.groups(name.as_deref(), Some(ip), holder.0);
        let _section = self.care.enter(holder)?;
        self.namespaces.sum(holder.1, carrier.fd(), now, at)
    }

    /// Those at an address that the holder claims to be at. Where addresses matter its namespace must have it. None if
    /// nobody knows at the moment.
    pub(super) fn groups_at(&self, carrier: &Strange, holder: Holder, ip: IpAddr, now: Instant) -> Option<u64> {
        let is_so = !self.rules.name_addresses() || self.has(carrier, holder, ip, now)?;
        Some(if is_so { self.groups(carrier, holder, Some(ip), now) } else { 0 })
    }

    /// Whether the kernel says that a holder's namespace has an address. None if nobody knows at the moment.
    pub(super) fn has(&self, carrier: &Strange, holder: Holder, ip: IpAddr, now: Instant) -> Option<bool> {
        let _section = self.care.enter(holder)?;
        self.namespaces.has(holder.1, carrier.fd(), ip, now)
    }

    /// A server announces itself.
    pub(super) fn announce(&self, carrier: &Strange, holder: Holder, local: SocketAddr, now: Instant) {
        let addresses = {
            let Some(_section) = self.care.enter(holder) else { return };
            self.namespaces.addresses(holder.1, carrier.fd(), now)
        };
        let Some(addresses) = addresses else { return };
        let is_any = local.ip().is_unspecified();
        let is_v4_only = is_any && local.is_ipv4();
        let at = |ip: &IpAddr| if is_any { !is_v4_only || ip.is_ipv4() } else { *ip == local.ip() };
        let at: Vec<(SocketAddr, u64)> = addresses
            .iter()
            .filter(|ip| at(ip))
            .map(|ip| (SocketAddr::new(*ip, local.port()), self.groups(carrier, holder, Some(*ip), now)))
            .collect();
        self.desk().announced(holder, at, now);
    }
}

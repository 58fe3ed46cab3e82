//! Network namespaces, as they are found from a socket that belongs to one: their names and addresses.

use std::collections::HashMap;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use beeline_sockets::agent;
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, setns};

use super::rules::HOST;

const NAMED: &str = "/run/netns";
/// How long a namespace is known: names come and go, addresses as well.
const KNOWN: Duration = Duration::from_secs(2);
const KNOWN_MAX: usize = 4096;

/// What is known of a namespace.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its addresses, if they were asked for.
    addresses: Option<Vec<IpAddr>>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Namespaces {
    known: HashMap<u64, (Instant, About)>,
}

impl Namespaces {
    /// The name of the namespace that a socket belongs to; `cookie` is that namespace's.
    pub fn name(&mut self, cookie: u64, socket: i32, now: Instant) -> Option<String> {
        let known = self.fresh(cookie, now, || About {
            name: agent::namespace_of(socket).ok().and_then(|namespace| name_of(&namespace)),
            addresses: None,
        });
        known.name.clone()
    }

    /// The addresses of that namespace, without those of its loopback.
    pub fn addresses(&mut self, cookie: u64, socket: i32, now: Instant) -> Vec<IpAddr> {
        let name = self.name(cookie, socket, now);
        let known = self.fresh(cookie, now, || About { name, addresses: None });
        if known.addresses.is_none() {
            known.addresses = Some(agent::namespace_of(socket).map(addresses_in).unwrap_or_default());
        }
        known.addresses.clone().unwrap_or_default()
    }

    fn fresh(&mut self, cookie: u64, now: Instant, ask: impl FnOnce() -> About) -> &mut About {
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, (until, _)| *until > now);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
        }
        let place = self.known.entry(cookie);
        let (until, about) = place.or_insert_with(|| (now, About::default()));
        if *until <= now {
            (*until, *about) = (now + KNOWN, ask());
        }
        about
    }
}

fn name_of(namespace: &OwnedFd) -> Option<String> {
    let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
    let wanted = identity(&File::from(namespace.try_clone().ok()?))?;
    if File::open("/proc/self/ns/net").ok().and_then(|file| identity(&file)) == Some(wanted) {
        return Some(HOST.into());
    }
    let is_it = |entry: &std::fs::DirEntry| {
        std::fs::metadata(entry.path()).is_ok_and(|about| (about.dev(), about.ino()) == wanted)
    };
    let mut entries = std::fs::read_dir(NAMED).ok()?.flatten();
    entries.find(is_it)?.file_name().into_string().ok()
}

/// The addresses of a namespace, found by a thread that enters it.
fn addresses_in(namespace: OwnedFd) -> Vec<IpAddr> {
    let inside = move || -> Option<Vec<IpAddr>> {
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).ok()?;
        let all = getifaddrs().ok()?.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        let is_reachable = |ip: &IpAddr| !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if is_link_local(v6));
        Some(all.filter(is_reachable).take(1024).collect())
    };
    std::thread::Builder::new().spawn(inside).ok().and_then(|thread| thread.join().ok()).flatten().unwrap_or_default()
}

/// An address that means another host on each link.
fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_own_namespace_is_the_hosts() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        if agent::namespace_of(socket.as_raw_fd()).is_err() {
            eprintln!("skipped: no power over the network namespace");
            return;
        }
        let mut namespaces = Namespaces::default();
        let now = Instant::now();
        assert_eq!(namespaces.name(1, socket.as_raw_fd(), now).as_deref(), Some(HOST));
        assert!(!namespaces.addresses(1, socket.as_raw_fd(), now).iter().any(IpAddr::is_loopback));
    }
}

//! Network namespaces, as they are found from a carrier that was made in one: their names and addresses.
//!
//! A namespace belongs to a stranger, who may give it as many addresses as he likes, and hold the locks under which
//! they are told. So of its addresses only so many are read, by a thread that enters it, and whoever asks is in a
//! section of [`super::care`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use beeline_meeting::agent::host as agent;
use beeline_wire::addresses::{DATAGRAM_BYTES, dump, read};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::rules::HOST;
use crate::log;

/// Where named ones are.
pub const NAMED: &str = "/run/netns";
/// How long a name is known, and how long addresses are: names come and go.
const NAME_KNOWN: Duration = Duration::from_secs(2);
const ADDRESSES_KNOWN: Duration = Duration::from_secs(10);
/// Within which addresses that were not found are not looked for again.
const ADDRESSES_FRESH: Duration = Duration::from_secs(1);
/// How long those count that were found before a look that has failed, as it does where CPUs or memory are short.
const ADDRESSES_OLD: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 4096;
/// Addresses of a namespace that count, and datagrams that are read to find them.
const ADDRESSES_MAX: usize = 256;
const DATAGRAMS_MAX: usize = 16;

/// The addresses of a namespace.
pub type Addresses = Arc<HashSet<IpAddr>>;

/// What the last look at a namespace's addresses has brought.
#[derive(Debug)]
struct Looked {
    /// When it was.
    at: Instant,
    /// Until when nobody looks again, but for one that is not there.
    until: Instant,
    /// The last that was found, and when.
    found: Option<(Instant, Addresses)>,
}

impl Looked {
    fn known(&self, now: Instant) -> Option<Known> {
        let (since, addresses) = self.found.as_ref()?;
        let is_known = now.saturating_duration_since(*since) < ADDRESSES_OLD;
        is_known.then(|| Known { addresses: Arc::clone(addresses), is_old: *since != self.at })
    }
}

/// Addresses that count.
struct Known {
    addresses: Addresses,
    /// The last look has failed: there may be others by now.
    is_old: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Namespaces {
    home: File,
    /// One of the agent's own, where nobody else is.
    own: File,
    names: Mutex<HashMap<u64, (Instant, Option<String>)>>,
    addresses: Mutex<HashMap<u64, Looked>>,
}

impl Namespaces {
    /// With the calling thread's own one as home.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn new() -> std::io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        let own = match made() {
            Ok(own) => own,
            Err(error) => {
                log::line(format_args!("names of lanes can be taken by others: no namespace for them: {error}"));
                home.try_clone()?
            }
        };
        Ok(Self { home, own, names: Mutex::default(), addresses: Mutex::default() })
    }

    /// Does something in a namespace where nobody but the agent is: where nobody else takes a name.
    pub fn apart<R>(&self, inside: impl FnOnce() -> R) -> Option<R> {
        self.inside(&self.own, inside)
    }

    /// Does something in the namespace that a carrier was made in. None where that cannot be entered.
    pub fn within<R>(&self, carrier: i32, inside: impl FnOnce() -> R) -> Option<R> {
        self.inside(&agent::namespace_of(carrier).ok()?, inside)
    }

    /// Does something in a namespace. None where that cannot be entered.
    pub fn inside<R>(&self, there: &impl AsFd, inside: impl FnOnce() -> R) -> Option<R> {
        setns(there.as_fd(), CloneFlags::CLONE_NEWNET).ok()?;
        let result = inside();
        if setns(self.home.as_fd(), CloneFlags::CLONE_NEWNET).is_err() {
            // A thread that is somewhere else must not go on, and connections do not need this process.
            std::process::abort();
        }
        Some(result)
    }

    /// The name of the namespace that a carrier was made in; `cookie` is that namespace's.
    pub fn name(&self, cookie: u64, carrier: i32, now: Instant) -> Option<String> {
        known(&self.names, cookie, now, NAME_KNOWN).unwrap_or_else(|| {
            let name = agent::namespace_of(carrier).ok().and_then(|namespace| name_of(&namespace));
            keep(&self.names, cookie, now, name)
        })
    }

    /// The addresses of that namespace, without those of its loopback; none if nothing is known of them. To be asked in
    /// a section of care.
    pub fn addresses(&self, cookie: u64, carrier: i32, now: Instant) -> Option<Addresses> {
        self.seen(cookie, carrier, now).map(|known| known.addresses)
    }

    /// All that `of` says of its addresses, as a set, if that is known. They are looked for again if that is nothing:
    /// one may be new. To be asked in a section of care.
    pub fn sum(&self, cookie: u64, carrier: i32, now: Instant, of: impl Fn(IpAddr) -> u64) -> Option<u64> {
        let sum = |known: &Known| known.addresses.iter().fold(0, |set, ip| set | of(*ip));
        self.told(cookie, carrier, now, sum, 0)
    }

    /// Whether that namespace has an address, if that is known. To be asked in a section of care.
    pub fn has(&self, cookie: u64, carrier: i32, ip: IpAddr, now: Instant) -> Option<bool> {
        self.told(cookie, carrier, now, |known| known.addresses.contains(&ip), false)
    }

    /// What its addresses tell. If that is `nothing` they are looked for again, and if that fails nobody knows.
    fn told<R: PartialEq>(
        &self,
        cookie: u64,
        carrier: i32,
        now: Instant,
        tell: impl Fn(&Known) -> R,
        nothing: R,
    ) -> Option<R> {
        let known = self.seen(cookie, carrier, now);
        if let Some(told) = known.as_ref().map(&tell).filter(|told| *told != nothing) {
            return Some(told);
        }
        let known = if self.is_fresh(cookie, now) { known } else { self.look(cookie, carrier, now) }?;
        Some(tell(&known)).filter(|told| *told != nothing || !known.is_old)
    }

    fn seen(&self, cookie: u64, carrier: i32, now: Instant) -> Option<Known> {
        self.remembered(cookie, now).unwrap_or_else(|| self.look(cookie, carrier, now))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Looked>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known without a look; none if it is time for one. Then one looks, and others go on with what was known.
    fn remembered(&self, cookie: u64, now: Instant) -> Option<Option<Known>> {
        let mut all = self.all();
        let looked = all.get_mut(&cookie)?;
        if now >= looked.until {
            looked.until = now + ADDRESSES_FRESH;
            return None;
        }
        Some(looked.known(now))
    }

    fn is_fresh(&self, cookie: u64, now: Instant) -> bool {
        self.all().get(&cookie).is_some_and(|looked| now.saturating_duration_since(looked.at) < ADDRESSES_FRESH)
    }

    fn look(&self, cookie: u64, carrier: i32, now: Instant) -> Option<Known> {
        let found = agent::namespace_of(carrier).ok().and_then(addresses_in);
        let mut all = self.all();
        if all.len() >= KNOWN_MAX && !all.contains_key(&cookie) {
            all.retain(|_, looked| now.saturating_duration_since(looked.at) < ADDRESSES_FRESH);
            if all.len() >= KNOWN_MAX {
                all.clear();
            }
        }
        let lasts = if found.is_some() { ADDRESSES_KNOWN } else { ADDRESSES_FRESH };
        let looked = all.entry(cookie).or_insert(Looked { at: now, until: now, found: None });
        (looked.at, looked.until) = (now, now + lasts);
        if let Some(found) = found {
            looked.found = Some((now, Arc::new(found)));
        }
        looked.known(now)
    }
}

/// A new one, which lives as long as it is open: the thread that has made it ends.
fn made() -> std::io::Result<File> {
    let make = || -> std::io::Result<File> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(make)?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("its thread has panicked")))
}

fn known<T: Clone>(all: &Mutex<HashMap<u64, (Instant, T)>>, cookie: u64, now: Instant, lasts: Duration) -> Option<T> {
    let all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let (since, known) = all.get(&cookie)?;
    (now.saturating_duration_since(*since) < lasts).then(|| known.clone())
}

fn keep<T: Clone>(all: &Mutex<HashMap<u64, (Instant, T)>>, cookie: u64, now: Instant, found: T) -> T {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= KNOWN_MAX {
        all.retain(|_, (since, _)| now.saturating_duration_since(*since) < ADDRESSES_FRESH);
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
    }
    all.insert(cookie, (now, found.clone()));
    found
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

/// The addresses of a namespace, found by a thread that enters it; none if that cannot be done.
fn addresses_in(namespace: OwnedFd) -> Option<HashSet<IpAddr>> {
    let inside = move || -> nix::Result<HashSet<IpAddr>> {
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let netlink =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
        setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::new(1, 0))?;
        nix::sys::socket::connect(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        send(netlink.as_raw_fd(), &dump(1), MsgFlags::empty())?;
        let (mut found, mut bytes) = (HashSet::new(), vec![0; DATAGRAM_BYTES]);
        for _ in 0..DATAGRAMS_MAX {
            let length = recv(netlink.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
            let goes_on = read(bytes.get(..length).unwrap_or_default(), 1, |ip| {
                if is_reachable(&ip) && found.len() < ADDRESSES_MAX {
                    found.insert(ip);
                }
            });
            if !goes_on || found.len() >= ADDRESSES_MAX {
                break;
            }
        }
        Ok(found)
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(inside);
    thread.ok()?.join().ok()?.ok()
}

/// Whether an address leads from elsewhere to one namespace.
fn is_reachable(ip: &IpAddr) -> bool {
    !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if is_link_local(v6))
}

/// An address that means another host on each link.
fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_the_hosts() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let Ok(namespace) = agent::namespace_of(socket.as_raw_fd()) else {
            eprintln!("skipped: no power over the network namespace");
            return;
        };
        let namespaces = Namespaces::new().unwrap();
        let now = Instant::now();
        assert_eq!(namespaces.name(1, socket.as_raw_fd(), now).as_deref(), Some(HOST));
        let found = namespaces.addresses(1, socket.as_raw_fd(), now);
        let wanted: HashSet<IpAddr> = nix::ifaddrs::getifaddrs()
            .unwrap()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            })
            .filter(is_reachable)
            .collect();
        assert_eq!(found.as_deref(), Some(&wanted));
        assert_eq!(addresses_in(namespace).as_ref(), Some(&wanted));
        assert_eq!(namespaces.within(socket.as_raw_fd(), || 7), Some(7));
        assert_eq!(namespaces.within(-1, || 7), None);
        assert_eq!(namespaces.has(1, socket.as_raw_fd(), "192.0.2.1".parse().unwrap(), now), Some(false));
        assert_eq!(
            namespaces.sum(1, socket.as_raw_fd(), now, |ip| u64::from(wanted.contains(&ip))),
            Some(u64::from(!wanted.is_empty()))
        );
        assert_eq!(namespaces.sum(1, socket.as_raw_fd(), now, |_| 0), Some(0));
    }

    /// A look that had failed used to tell that there are no addresses.
    #[test]
    fn where_a_look_fails_what_was_found_before_counts_for_a_while() {
        const NOBODY: i32 = -1;
        let (namespaces, now) = (Namespaces::new().unwrap(), Instant::now());
        let (own, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!(namespaces.has(7, NOBODY, own, now), None);
        assert_eq!(namespaces.sum(7, NOBODY, now, |_| 1), None);
        let until = now + ADDRESSES_KNOWN;
        let found = Some((now, Arc::new(HashSet::from([own]))));
        namespaces.all().insert(7, Looked { at: now, until, found });
        assert_eq!(
            (namespaces.has(7, NOBODY, own, now), namespaces.has(7, NOBODY, other, now)),
            (Some(true), Some(false))
        );
        // One looks, and meanwhile others go on with what was known.
        assert!(namespaces.remembered(7, until).is_none());
        assert!(namespaces.remembered(7, until).is_some_and(|known| known.is_some_and(|known| !known.is_old)));
        assert!(namespaces.look(7, NOBODY, until).is_some_and(|known| known.is_old));
        assert_eq!(
            (namespaces.has(7, NOBODY, own, until), namespaces.has(7, NOBODY, other, until)),
            (Some(true), None)
        );
        assert_eq!((namespaces.sum(7, NOBODY, until, |_| 4), namespaces.sum(7, NOBODY, until, |_| 0)), (Some(4), None));
        let late = now + ADDRESSES_OLD;
        assert_eq!((namespaces.has(7, NOBODY, own, late), namespaces.addresses(7, NOBODY, late)), (None, None));
    }

    /// A name in the host's namespace can be taken by whoever guesses it.
    #[test]
    fn what_is_named_apart_meets_no_name_of_the_hosts() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let namespaces = Namespaces::new().unwrap();
        let (home, own) = (namespaces.home.metadata().unwrap().ino(), namespaces.own.metadata().unwrap().ino());
        if home == own {
            eprintln!("skipped: no power to make a network namespace");
            return;
        }
        let address = SocketAddr::from_abstract_name(format!("beeline-apart-{}", std::process::id())).unwrap();
        let _taken = UnixListener::bind_addr(&address).unwrap();
        assert!(UnixListener::bind_addr(&address).is_err());
        assert!(namespaces.apart(|| UnixListener::bind_addr(&address)).unwrap().is_ok());
        assert!(UnixListener::bind_addr(&address).is_err(), "the thread is at home again");
    }
}

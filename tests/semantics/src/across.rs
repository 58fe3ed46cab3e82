//! Runs in which servers are in another network namespace than their clients (`tests/containers/cases_semantics.py`).
//!
//! `BEELINE_TEST_ACROSS` has the file of the servers' namespace, and the IPv4 and the IPv6 address by which clients
//! reach it.

use beeline_testkit::sys::{self, RawAddress, Ret};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

const VARIABLE: &str = "BEELINE_TEST_ACROSS";

/// Cases that are left out of such a run, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("connect/to_own_address", "binds a server's address in the client's namespace"),
    ("connect/unspecified_address", "the unspecified address is the client's namespace"),
    ("connect/unspecified_address_of_the_bound", "the unspecified address is the client's namespace"),
    ("data/other_descriptors_are_left_alone", "binds a server's address in the client's namespace"),
    ("groups/member_of_a_device", "binds a server's address in the client's namespace"),
    ("groups/program_that_chooses", "binds a server's address in the client's namespace"),
    ("listeners/implicit_bind", "listens in the client's namespace"),
    ("listeners/reopened_on_the_same_port", "binds a server's address in the client's namespace"),
    ("listeners/reuseport_group", "binds a server's address in the client's namespace"),
    ("listeners/reuseport_member_leaves", "binds a server's address in the client's namespace"),
    ("listeners/v6only_takes_one", "binds a server's address in the client's namespace"),
    ("listeners/wildcard_and_exact", "binds a server's address in the client's namespace"),
    ("names/client_port_is_not_free", "differs at doors only: here the kernel has bound the port"),
    ("closing/accept", "docs/limits.md: an accept whose listener another thread closes hears of no TCP client"),
    ("fork/holder_of_many_killed", "docs/limits.md: equal data in a set, with members over TCP"),
];

/// Cases that are listed as different on one host and are not between namespaces, and why.
const AS_THE_KERNEL: &[(&str, &str)] =
    &[("accept/of_a_silent_client_put_off", "an offer comes with a TCP connection, which the kernel puts off")];

pub struct Across {
    home: File,
    servers: File,
    addresses: (Ipv4Addr, Ipv6Addr),
}

impl Across {
    fn parse(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let [file, v4, v6] = words[..] else { return None };
        Some(Self {
            home: File::open("/proc/thread-self/ns/net").ok()?,
            servers: File::open(file).ok()?,
            addresses: (v4.parse().ok()?, v6.parse().ok()?),
        })
    }

    /// How this run is to be, if servers are in another namespace.
    fn wanted() -> Option<&'static Self> {
        static WANTED: OnceLock<Option<Across>> = OnceLock::new();
        let wanted = WANTED.get_or_init(|| {
            let words = std::env::var(VARIABLE).ok()?;
            Some(Self::parse(&words).unwrap_or_else(|| panic!("{VARIABLE} is not FILE IPV4 IPV6: {words}")))
        });
        wanted.as_ref()
    }

    /// Whether a case may differ now and then in such a run, seldom more than once:
    ///
    /// * It is about numbers that are closed and used again while others wait on them. If one of its connections went
    ///   over TCP, and an offer was to be looked after meanwhile, the wait was begun anew, by number.
    /// * A client under Beeline is killed, and its server is none, but has the port of one in the ten minutes before,
    ///   which the agent remembers (2,000 ports in such a run). What is said to it before it is found out is lost
    ///   (docs/limits.md).
    /// * A set has members of equal data, of which one went over TCP (docs/limits.md).
    /// * Its members become ready one by one, and one of them `went_over_tcp`: their order (docs/limits.md).
    /// * Its listener leaves clients to TCP, of which the client's agent may not know yet. Then the client goes there
    ///   when its process next asks the library for anything, and this one only counts what lies at the server's end.
    pub fn may_differ_once(name: &str, went_over_tcp: bool) -> bool {
        const CASES: [&str; 3] =
            ["closing/", "epoll/room_among_members_of_equal_data@", "foreign/what_lanes_do_not_have@"];
        let is_killed_at_a_strangers = name.starts_with("duo/client_is_killed") && name.ends_with("+client");
        let is_of_an_order =
            ["epoll_order/", "epoll_sets/nested_with_direct_entry@"].iter().any(|of| name.starts_with(of));
        let is_listed = CASES.iter().any(|case| name.starts_with(case));
        Self::is_wanted() && (is_listed || is_killed_at_a_strangers || is_of_an_order && went_over_tcp)
    }

    pub fn is_wanted() -> bool {
        Self::wanted().is_some()
    }

    /// Before a case is tried again: the agent hears of so many listeners in a second.
    pub fn rest() {
        if Self::is_wanted() {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }

    /// Whether a case is not for such a run.
    pub fn leaves_out(name: &str) -> bool {
        Self::is_wanted() && lists(LEFT_OUT, name)
    }

    /// Whether a case that is listed as different is to be equal in such a run.
    pub fn is_as_the_kernel(name: &str) -> bool {
        Self::is_wanted() && lists(AS_THE_KERNEL, name)
    }

    /// By which addresses clients reach their servers.
    pub fn addresses() -> (Ipv4Addr, Ipv6Addr) {
        Self::wanted().map_or((Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST), |across| across.addresses)
    }

    /// Does something in the servers' namespace.
    pub fn at_the_server<R>(act: impl FnOnce() -> R) -> R {
        let Some(across) = Self::wanted() else { return act() };
        enter(&across.servers);
        let done = act();
        enter(&across.home);
        done
    }
}

/// `accept` where the listener is: who accepts elsewhere has no lanes.
pub fn accept(listener: i32) -> Ret {
    Across::at_the_server(|| sys::accept(listener))
}

pub fn accept4(listener: i32, flags: i32) -> Ret {
    Across::at_the_server(|| sys::accept4(listener, flags))
}

pub fn accept_address(listener: i32, room: u32) -> (Ret, RawAddress) {
    Across::at_the_server(|| sys::accept_address(listener, room))
}

/// Takes this thread into a network namespace.
fn enter(namespace: &File) {
    // SAFETY: a descriptor that is open, and a plain number.
    let ret = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert!(ret == 0, "setns: {}", std::io::Error::last_os_error());
}

/// Whether a list names the case of an instance, such as `group/case@v4`.
fn lists(cases: &[(&str, &str)], instance: &str) -> bool {
    let case = instance.split_once('@').map_or(instance, |(case, _)| case);
    cases.iter().any(|(listed, _)| *listed == case)
}

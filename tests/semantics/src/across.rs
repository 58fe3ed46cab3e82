//! Runs in which servers are in another network namespace than their clients (`tests/containers`): there connections begin on TCP
//! and move to a lane in mid-stream.
//!
//! `BEELINE_TEST_ACROSS` has the file of the servers' namespace, the IPv4 and the IPv6 address by which clients reach it, and how many messages
//! the ends of a pair exchange before the case begins: so many that they have moved, or so many that they are just about to.

use beeline_testkit::sys;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

const VARIABLE: &str = "BEELINE_TEST_ACROSS";

pub struct Across {
    home: File,
    servers: File,
    addresses: (Ipv4Addr, Ipv6Addr),
    messages: u32,
}

impl Across {
    fn parse(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let [file, v4, v6, messages] = words[..] else { return None };
        Some(Self {
            home: File::open("/proc/thread-self/ns/net").ok()?,
            servers: File::open(file).ok()?,
            addresses: (v4.parse().ok()?, v6.parse().ok()?),
            messages: messages.parse().ok()?,
        })
    }

    /// How this run is to be, if servers are in another namespace.
    fn wanted() -> Option<&'static Self> {
        static WANTED: OnceLock<Option<Across>> = OnceLock::new();
        let wanted = WANTED.get_or_init(|| {
            let words = std::env::var(VARIABLE).ok()?;
            Some(Self::parse(&words).unwrap_or_else(|| panic!("{VARIABLE} is not FILE IPV4 IPV6 MESSAGES: {words}")))
        });
        wanted.as_ref()
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

    /// Exchanges the messages after which the ends of a pair have moved, or are about to.
    pub fn talk(client: i32, server: i32) {
        let Some(across) = Self::wanted() else { return };
        for _ in 0..across.messages {
            say(client, server);
        }
        say(server, client);
    }
}

fn say(from: i32, to: i32) {
    let sent = sys::send(from, b"x", 0);
    let received = sys::recv(to, &mut [0; 1], 0);
    assert!(sent.value == 1 && received.value == 1, "{sent} {received}");
}

/// Takes this thread into a network namespace.
fn enter(namespace: &File) {
    // SAFETY: a descriptor that is open, and a plain number.
    let ret = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert!(ret == 0, "setns: {}", std::io::Error::last_os_error());
}

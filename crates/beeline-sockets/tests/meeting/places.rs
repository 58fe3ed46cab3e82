//! Where listeners are: families, wildcards, groups, inheritance; and what both ends see of each other.

use crate::stage::{Role, visit};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

fn fields(answer: &str) -> (SocketAddr, SocketAddr) {
    let mut fields = answer.split(' ').skip(1).map(|field| field.parse().expect("an address"));
    (fields.next().unwrap(), fields.next().unwrap())
}

/// Visits a server until its door is open, which its first accept does.
fn warm_up(address: &str) {
    visit(address, 1, "first", true);
}

#[test]
fn every_local_address_of_a_wildcard_listener_leads_over_a_lane() {
    for (listens, visits) in [
        ("127.0.0.1:0", &["127.0.0.1"][..]),
        ("0.0.0.0:0", &["127.0.0.1", "127.8.7.6", "0.0.0.0"]),
        ("[::1]:0", &["[::1]"]),
        ("[::]:0", &["[::1]", "127.0.0.1", "[::ffff:127.0.0.1]", "[::]"]),
    ] {
        let mut server = Role::new("server").set("ADDRESS", listens).start();
        let bound: SocketAddr = server.line().parse().unwrap();
        let port = bound.port();
        warm_up(&format!("{}:{port}", visits[0]));
        for visited in visits {
            let address = format!("{visited}:{port}");
            let (answer, carried) = visit(&address, 3, "hello", true);
            assert_eq!((carried.accelerated, carried.fallen_back.len()), (3, 0), "{listens} {address}: {carried}");
            let (local, peer) = fields(&answer);
            assert_eq!(local.port(), port);
            assert_eq!(local.is_ipv4(), bound.is_ipv4(), "the server sees its own family");
            assert_eq!(peer.is_ipv4(), bound.is_ipv4(), "the server sees its own family");
            // What kernel TCP shows for the same visit.
            let (over_tcp, _) = visit(&address, 1, "hello", false);
            let (local_tcp, peer_tcp) = fields(&over_tcp);
            assert_eq!((local, peer.ip()), (local_tcp, peer_tcp.ip()), "{listens} {address}");
        }
        server.end();
    }
}

#[test]
fn members_of_a_reuseport_group_each_get_their_share() {
    let mut server = Role::new("pair").set("ADDRESS", "127.0.0.1:0").set("REUSEPORT", 1).start();
    let address = server.line();
    let mut served = std::collections::BTreeMap::<String, usize>::new();
    let mut accelerated = 0;
    for _ in 0..40 {
        let (answer, carried) = visit(&address, 1, "hello", true);
        *served.entry(answer).or_default() += 1;
        accelerated += carried.accelerated;
    }
    // By the kernel's own choice: all of 40 on one side has a chance of two in 2^40.
    assert_eq!(served.len(), 2, "{served:?}");
    // The first visit of each member may come before its door is open.
    assert!(accelerated >= 38, "{accelerated}");
    server.end();
}

#[test]
fn a_listener_inherited_from_a_plain_program_gets_a_door() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut role = Role::new("inherited").set("LISTENER", listener.as_raw_fd());
    crate::places::inherit(&mut role, listener.as_raw_fd());
    let mut server = role.start();
    assert_eq!(server.line(), address);
    drop(listener);
    warm_up(&address);
    let (_, carried) = visit(&address, 5, "hello", true);
    assert_eq!(carried.accelerated, 5, "{carried}");
    server.end();
}

/// Lets a guest inherit a descriptor.
pub fn inherit(role: &mut Role, fd: i32) {
    use std::os::unix::process::CommandExt;
    // SAFETY: fcntl is async-signal-safe, and is all that happens between fork and exec.
    unsafe {
        role.command().pre_exec(move || {
            if libc::fcntl(fd, libc::F_SETFD, 0) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

#[test]
fn a_door_does_not_outlive_the_program_that_opened_it() {
    for accept_first in [0, 1] {
        let mut server =
            Role::new("supervisor").set("ADDRESS", "127.0.0.1:0").set("ACCEPT_FIRST", accept_first).start();
        let address = server.line();
        let _cookie = server.line();
        if accept_first != 0 {
            warm_up(&address);
        }
        assert_eq!(server.line(), address, "the next program has the listener");
        let (_, carried) = visit(&address, 3, "hello", true);
        assert_eq!(carried.accelerated, 0, "{carried}");
        assert_eq!(carried.fallen_back.get("no_door"), Some(&3), "{carried}");
        server.end();
    }
}

#[test]
fn the_next_program_opens_the_door_again() {
    let mut server =
        Role::new("supervisor").set("ADDRESS", "127.0.0.1:0").set("ACCEPT_FIRST", 1).set("NEXT_PLAIN", 0).start();
    let address = server.line();
    let _cookie = server.line();
    warm_up(&address);
    assert_eq!(server.line(), address);
    warm_up(&address);
    let (_, carried) = visit(&address, 3, "hello", true);
    assert_eq!(carried.accelerated, 3, "{carried}");
    server.end();
}

#[test]
fn a_server_that_drops_its_privileges_keeps_its_door() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let mut server = Role::new("server").set("ADDRESS", "127.0.0.1:0").set("DROP_TO", 12345).start();
    let address = server.line();
    warm_up(&address);
    let (_, carried) = visit(&address, 3, "hello", true);
    assert_eq!(carried.accelerated, 3, "{carried}");
    server.end();
}

#[test]
fn lanes_are_used_again() {
    let mut server = Role::new("server").set("ADDRESS", "127.0.0.1:0").start();
    let address = server.line();
    warm_up(&address);
    let mut client = Role::new("sequence").set("ADDRESS", &address).set("COUNT", 300).start();
    assert_eq!(client.number(), 300);
    assert_eq!(client.carried().accelerated, 300);
    let inodes = std::fs::read_to_string(format!("/proc/{}/maps", server.id())).unwrap();
    let lanes = inodes.lines().filter(|line| line.contains("beeline-lane")).count();
    assert!(lanes <= 20, "the server has {lanes} lanes mapped");
    client.end();
    server.end();
}

//! Running out: of descriptors, and of places at the door.

use crate::stage::{Guest, Role, visit};
use beeline_testkit::statistics::Carried;
use beeline_testkit::sys::{self, RawAddress, Ret};
use std::ffi::CString;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;

fn limit(role: &mut Role, descriptors: u64) {
    let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: descriptors };
    // SAFETY: setrlimit is async-signal-safe, and is all that happens between fork and exec.
    unsafe {
        role.command().pre_exec(move || {
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}

/// How many epoll sets the caller can make: a guest's part.
pub fn sets_that_fit() -> usize {
    // SAFETY: a plain number.
    (0..).take_while(|_| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } >= 0).count()
}

fn many_server(descriptors: u64) -> (Guest, String) {
    let mut role = Role::new("many_server").set("ADDRESS", "127.0.0.1:0").set("BACKLOG", 4096);
    limit(&mut role, descriptors);
    let mut server = role.start();
    let address = server.line();
    let _cookie = server.line();
    (server, address)
}

#[test]
fn a_thousand_connections_fit_under_the_usual_limit() {
    let (server, address) = many_server(1024);
    let mut role = Role::new("many").set("ADDRESS", &address).set("COUNT", 1000);
    limit(&mut role, 1024);
    let mut client = role.start();
    assert_eq!(client.line(), "held");
    let mut carried = client.carried();
    // How many find the door full depends on how fast the server comes round, and the last few find no room for
    // all that a lane needs while it is made. Nothing else may keep them away.
    let full = carried.fallen_back.remove("door_full").unwrap_or(0);
    let short = carried.fallen_back.remove("descriptors_short").unwrap_or(0);
    assert!(carried.accelerated > 256 && short < 24, "{carried}, short {short}");
    assert_eq!(carried.accelerated + full + short, 1000, "{carried}");
    client.end();
    server.end();
}

#[test]
fn a_table_that_is_full_of_hidden_descriptors_makes_room_for_epoll_sets() {
    let (server, address) = many_server(1024);
    let fits = |role: Role| {
        let mut role = role.set("ADDRESS", &address).set("COUNT", 40);
        limit(&mut role, 256);
        let mut client = role.start();
        assert_eq!(client.line(), "held");
        client.go();
        (client.number(), client)
    };
    let (with, client) = fits(Role::new("many"));
    let carried = client.carried();
    assert!(carried.accelerated > 0, "{carried}");
    client.end();
    let (without, client) = fits(Role::new("many").plain());
    client.end();
    assert_eq!(with, without);
    server.end();
}

/// Connects as a guest does: from a port of its own where `BOUND` is set.
pub fn connected(address: &str) -> io::Result<TcpStream> {
    if std::env::var_os("BOUND").is_none() {
        return TcpStream::connect(address);
    }
    let done = |ret: Ret| if ret.is_ok() { Ok(ret.value as i32) } else { Err(io::Error::from_raw_os_error(ret.errno)) };
    let fd = done(sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
    // SAFETY: a fresh descriptor that nobody else owns.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    done(sys::bind(fd, &RawAddress::new(SocketAddr::from(([127, 0, 0, 1], 0)))))?;
    done(sys::connect(fd, &RawAddress::new(address.parse().expect("an address"))))?;
    Ok(stream)
}

/// The sockets that hold the ports take an eighth of the numbers; connections beyond go over TCP.
#[test]
fn connections_from_bound_ports_fit_under_the_usual_limit() {
    const COUNT: u64 = 850;
    let (server, address) = many_server(1024);
    let mut role = Role::new("many").set("ADDRESS", &address).set("COUNT", COUNT).set("BOUND", 1);
    limit(&mut role, 1024);
    let mut client = role.start();
    assert_eq!(client.line(), "held");
    let mut carried = client.carried();
    let full = carried.fallen_back.remove("door_full").unwrap_or(0);
    let short = carried.fallen_back.remove("descriptors_short").unwrap_or(0);
    assert!(carried.accelerated > 100, "{carried}, short {short}");
    assert_eq!(carried.accelerated + full + short, COUNT, "{carried}");
    client.end();
    server.end();
}

/// A server without room for more than one descriptor, and a client of eight connections. What each has carried.
fn at_the_brim() -> [Carried; 2] {
    let mut role = Role::new("brim").set("ADDRESS", "127.0.0.1:0").set("COUNT", 8);
    limit(&mut role, 256);
    let mut server = role.start();
    let address = server.line();
    let _cookie = server.line();
    let mut client = Role::new("many").set("ADDRESS", &address).set("COUNT", 8).start();
    assert_eq!(client.line(), "held");
    let carried = [server.carried(), client.carried()];
    client.end();
    server.end();
    carried
}

#[test]
fn one_free_descriptor_is_enough_for_a_lane() {
    // On a busy machine the server may take longer than the client's patience, but not each time.
    for last in [false, false, true] {
        let [server, client] = at_the_brim();
        if server.accelerated == 8 {
            return;
        }
        let late = client.fallen_back.get("hello_not_taken").copied().unwrap_or(0);
        assert!(!last && server.accelerated + late == 8, "server: {server}; client: {client}");
    }
}

#[test]
fn twenty_thousand_attempts_against_the_limit_end_as_over_tcp() {
    let (server, address) = many_server(1024);
    let mut role = Role::new("many").set("ADDRESS", &address).set("COUNT", 20_000);
    limit(&mut role, 1024);
    let mut client = role.start();
    let line = client.line();
    let (held, error) = line.split_once(' ').unwrap();
    assert!(error.contains("os error 24"), "{line}");
    assert!(held.parse::<u32>().unwrap() >= 1000, "{line}");
    client.end();
    server.end();
}

#[test]
fn clients_beyond_the_door_s_places_go_over_tcp() {
    let mut server =
        Role::new("stalled").set("ADDRESS", "127.0.0.1:0").set("BACKLOG", 64).options("door_backlog=4").start();
    let address = server.line();
    let _cookie = server.line();
    let mut first = Role::new("writer").set("ADDRESS", &address).start();
    assert_eq!(first.line(), "written");
    assert_eq!(server.line(), "stalled");
    let mut held = Vec::new();
    let (mut lanes, mut full) = (0, 0);
    for _ in 0..12 {
        let mut client = Role::new("writer").set("ADDRESS", &address).start();
        assert_eq!(client.line(), "written");
        let carried = client.carried();
        lanes += carried.accelerated;
        full += carried.fallen_back.get("door_full").copied().unwrap_or(0);
        held.push(client);
    }
    assert_eq!((lanes, full), (5, 7), "the queue holds one more than its backlog");
    drop(held);
    drop(first);
    server.end();
}

#[test]
fn a_server_that_has_never_accepted_is_visited_over_tcp() {
    let mut server = Role::new("stalled").set("ADDRESS", "127.0.0.1:0").start();
    let address = server.line();
    let _cookie = server.line();
    let mut writers = Vec::new();
    // The first of them is accepted, and by that opens the door; it came before.
    let mut first = Role::new("writer").set("ADDRESS", &address).start();
    assert_eq!(first.line(), "written");
    assert_eq!(server.line(), "stalled");
    assert_eq!(first.carried().accelerated + first.carried().fallen_back.values().sum::<u64>(), 1);
    writers.push(first);
    drop(writers);
    server.end();
}

#[test]
fn the_strict_policy_and_switching_off_keep_connections_on_tcp() {
    let mut server = Role::new("server").set("ADDRESS", "127.0.0.1:0").start();
    let address = server.line();
    visit(&address, 1, "first", true);
    let mut strict = Role::new("client").set("ADDRESS", &address).set("TEXT", "x").options("policy=strict").start();
    strict.line();
    assert_eq!(strict.carried().fallen_back.get("policy_strict"), Some(&1));
    strict.end();
    server.end();
}

#[test]
fn a_client_that_is_a_moment_early_tries_again() {
    let mut guest = Role::new("early").set("COUNT", 20).start();
    // It tells of each listener first.
    while guest.line() != "served" {}
    let carried = guest.carried();
    // On a busy machine the server may take longer than the clients' patience.
    assert!(carried.accelerated >= 2, "{carried}");
    guest.end();
}

/// Has the guest read `said` where the kernel tells how it counts memory.
fn count_memory(mut role: Role, said: &CString) -> Guest {
    let said = said.clone();
    // SAFETY: plain system calls, with strings that end with NUL.
    unsafe {
        role.command().pre_exec(move || {
            let place = c"/proc/sys/vm/overcommit_memory".as_ptr();
            let (private, none) = (libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
            if libc::unshare(libc::CLONE_NEWNS) != 0
                || libc::mount(none, c"/".as_ptr(), none, private, none.cast()) != 0
                || libc::mount(said.as_ptr(), place, none, libc::MS_BIND, none.cast()) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    role.start()
}

#[test]
fn where_memory_is_counted_strictly_connections_are_tcp() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let path = std::env::temp_dir().join(format!("beeline-overcommit-{}", std::process::id()));
    std::fs::write(&path, "2\n").unwrap();
    let said = CString::new(path.to_str().unwrap()).unwrap();
    let server = || Role::new("server").set("ADDRESS", "127.0.0.1:0");
    let mut strict = count_memory(server(), &said);
    let (_, client) = visit(&strict.line(), 1, "text", true);
    let carried = strict.carried();
    assert_eq!((client.accelerated, carried.fallen_back.get("overcommit_strict")), (0, Some(&1)), "{carried}");
    strict.end();

    let mut other = server().start();
    let address = other.line();
    // Its door is open.
    visit(&address, 1, "text", true);
    let mut client = count_memory(Role::new("client").set("ADDRESS", &address).set("TEXT", "text"), &said);
    assert!(client.line().ends_with(" text"));
    let carried = client.carried();
    assert_eq!((carried.accelerated, carried.fallen_back.get("overcommit_strict")), (0, Some(&1)), "{carried}");
    client.end();
    other.end();
    std::fs::remove_file(path).unwrap();
}

//! Clients that attach what takes long to close. A process stays wary of clients for a minute once they were hostile,
//! so the test runs in one of its own.

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use beeline_testkit::hostile::{Client, Lingering};

use super::*;

/// What tells the test that it is in that process.
const ALONE: &str = "BEELINED_TEST_ALONE";
const CLIENTS: usize = 20;
/// Eight are made without more ado (`BURIALS_MAX` of beeline-meeting), one shuts the door, one is for all the others.
const UNDERTAKERS_MAX: usize = 10;

/// Says something wrong with a socket attached that only the client's end of it is left of here.
fn offend(client: &Client) -> Lingering {
    let lingering = Lingering::new(10).unwrap();
    client.send(b"wrong", &[lingering.socket.as_raw_fd()]).unwrap();
    let null = File::open("/dev/null").unwrap();
    beeline_testkit::sys::dup2(null.as_raw_fd(), lingering.socket.as_raw_fd());
    lingering
}

/// Processes in this network namespace that close something.
fn undertakers() -> usize {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let ours = namespace("thread-self");
    let closes = |process: &str| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        name.is_ok_and(|name| name.trim_end() == "beeline-close") && namespace(process) == ours
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter(|process| closes(&process.file_name().to_string_lossy())).count()
}

/// Whether the kernel tells of clients that have not spoken.
fn is_told_of_clients(engine: &Engine) -> bool {
    let mut events = [EpollEvent::empty(); 64];
    let count = engine.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
    events[..count].iter().any(|event| matches!(Tag::unpack(event.data()), Some(Tag::Silent(_))))
}

#[test]
fn clients_that_are_hostile_together_cost_a_few_processes() {
    if std::env::var_os(ALONE).is_none() {
        let name = concat!(module_path!(), "::clients_that_are_hostile_together_cost_a_few_processes");
        let (_, name) = name.split_once("::").unwrap();
        let program = std::env::current_exe().unwrap();
        let done = Command::new(program).args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{said}\n{complaint}");
        return;
    }
    be_alone();
    let mut engine = engine();
    // The engine's own is none.
    engine.shut_door();
    engine.care_for_door(false);
    let door = SocketAddr::from_abstract_name(beeline_wire::bridge::DOOR).unwrap();
    let knock = || Client::of(UnixStream::connect_addr(&door).unwrap().into());

    // One that has said nothing for too long, until this very moment.
    let late = knock();
    engine.take_clients();
    assert_eq!(engine.silent.len(), 1);
    let mut kept = vec![offend(&late)];
    engine.now_ns += 2_000_000_000;
    engine.care_for_clients();
    assert_eq!((engine.silent.len(), undertakers()), (0, 1));
    assert!(!is_told_of_clients(&engine), "what another process closes is still watched");

    let clients: Vec<Client> = (0..CLIENTS).map(|_| knock()).collect();
    engine.take_clients();
    assert_eq!(engine.silent.len(), CLIENTS);
    kept.extend(clients.iter().map(offend));
    while !engine.silent.is_empty() {
        engine.hear_kernel(Duration::ZERO, &mut |_| false).unwrap();
    }
    let made = undertakers();
    assert!((2..=UNDERTAKERS_MAX).contains(&made), "{made} processes");
    assert!(engine.door.is_shut);
    // Nothing keeps the undertakers any more.
    drop(kept);
    assert!(clients.iter().all(Client::is_sent_away));
}

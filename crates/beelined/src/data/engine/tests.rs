//! The engine without peers: what becomes of its rails.

use std::os::fd::OwnedFd;
use std::process::Command;

use super::super::record::Refusal;
use super::rails::EVENTS_PER_ROUND;
use super::*;
use crate::config::Config;

/// Puts this thread into a network namespace of its own where libfabric finds a port. Only root may; others have the
/// host's ports.
fn be_alone() {
    if nix::unistd::geteuid().is_root() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for command in [
            "link set lo up",
            "link add v0 type veth peer name v1",
            "addr add 198.51.100.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
            "addr add 198.51.100.9/32 dev lo",
        ] {
            ip(command);
        }
        // The kernel sees to that when it has time, and until then libfabric finds no port.
        while !ip("-o link show v0").contains("state UP") {}
    }
}

fn ip(command: &str) -> String {
    let done = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {command}");
    String::from_utf8(done.stdout).unwrap()
}

/// The control connections of a bridge, with a peer at this port that speaks for these addresses.
fn control(name: &str, addresses: &str, peer: (&str, u16, &str)) -> (Config, Control) {
    let (peer, port, theirs) = peer;
    let text = format!(
        "name = '{name}'\nlisten = ['127.0.0.1:0']\ninsecure = true\naddresses = ['{addresses}']\n[rails]\n\
         allow = [{{ provider = 'tcp' }}]\n[[peers]]\nname = '{peer}'\ncontrol = '127.0.0.1:{port}'\n\
         addresses = ['{theirs}']\n"
    );
    let config = Config::parse("test", &text).unwrap();
    let control = Control::new(&config, Instant::now()).unwrap();
    (config, control)
}

/// An engine with this host's rails, and its door, at which nobody knocks.
fn engine() -> Engine {
    let (config, control) = control("a-1", "198.51.100.1", ("a-0", 9, "203.0.113.0/24"));
    let door: OwnedFd = std::os::unix::net::UnixStream::pair().unwrap().0.into();
    let parts = Parts {
        name: control.name().clone(),
        control,
        tunables: Tunables::DEFAULT,
        door,
        host: Host::default(),
        ports: crate::serve::ports(&config.rails).unwrap(),
        segments: Segments::default(),
        patience: Duration::from_secs(3),
        nice: 0,
    };
    Engine::new(parts).unwrap()
}

#[test]
fn a_rail_that_fails_for_good_is_retired_and_asked_no_more() {
    be_alone();
    let mut engine = engine();
    let count = engine.rails.len();
    assert!(count > 0, "libfabric finds no port here");
    assert_eq!(engine.our_offer().len(), count);
    let broken = beeline_fabric::Error::RegionGone { rail: "the first".into() };

    // Failures that pass do nothing.
    for _ in 0..100 {
        engine.now_ns += 100_000_000;
        engine.rail_failed(0, Asked::Completions, &broken);
        engine.rails[0].answered(Asked::Completions);
    }
    assert!(!engine.rails[0].retired && engine.rails[0].trouble.is_none());

    // What answers one question may fail at another.
    for _ in 0..100 {
        engine.now_ns += 100_000_000;
        engine.rail_failed(0, Asked::Completions, &broken);
        engine.rails[0].answered(Asked::Events);
    }
    assert!(engine.rails[0].retired);
    assert_eq!(engine.our_offer().len(), count - 1);
    let status = engine.status();
    let trouble = status.rails[0].trouble.as_deref().unwrap();
    assert!(trouble.starts_with("given up: ") && trouble.contains("the first"), "{trouble}");
    assert!(!status.rails[0].rail.up && status.rails[1..].iter().all(|rail| rail.trouble.is_none()));

    // It keeps nobody awake, and wakes nobody.
    (engine.rails[0].ready, engine.rails[0].events_ready) = (true, true);
    for rail in &mut engine.rails[1..] {
        (rail.ready, rail.events_ready) = (false, false);
    }
    engine.asks_for_events = false;
    assert!(!engine.poll_rails(true));
    engine.care_for_retired();
    assert!(engine.epoll.delete(engine.rails[0].rail.completion_fd()).is_err(), "it is not watched");
}

#[test]
fn a_peer_reaches_nobody_at_an_address_that_it_was_not_told_of() {
    be_alone();
    let mut engine = engine();
    let port = engine.control.local_addresses()[0].port();
    let (_, mut peer) = control("a-0", "203.0.113.0/24", ("a-1", port, "198.51.100.1"));
    while engine.peers.is_empty() {
        peer.turn(Instant::now());
        engine.turn_control();
    }
    let client = "203.0.113.7:9000".parse().unwrap();
    let mut ask = |server: &str| engine.serve(0, 1, 1 << 16, client, server.parse().unwrap()).err();
    for hidden in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "198.51.100.9:80", "0.0.0.0:80"] {
        assert_eq!(ask(hidden), Some(Refusal::NotYours), "{hidden}");
    }
    if nix::unistd::geteuid().is_root() {
        // It may ask, and nobody listens there.
        assert_eq!(ask("198.51.100.1:80"), Some(Refusal::NoDoor));
    }
}

#[test]
fn what_is_outside_is_looked_at_once_in_a_while() {
    be_alone();
    let mut calls = 0;
    let outside = |_: &mut Engine| {
        calls += 1;
        calls == 3
    };
    engine().run(outside).unwrap();
    assert_eq!(calls, 3);
}

#[test]
fn strangers_at_a_rail_get_a_part_of_each_round() {
    be_alone();
    let mut engine = engine();
    let rail = &engine.rails[0].rail;
    let address = std::net::SocketAddr::new(rail.port().address, rail.listening_on().unwrap().port());
    let mut strangers = beeline_fabric::Rail::open(rail.port(), beeline_fabric::Options::default()).unwrap();
    const STRANGERS: usize = 3 * EVENTS_PER_ROUND;
    for _ in 0..STRANGERS {
        strangers.connect(address, b"let me in").unwrap();
    }
    let mut heard = vec![0];
    while heard.iter().sum::<usize>() < STRANGERS {
        while let Ok(Some(_)) = strangers.next_event() {}
        engine.rails[0].events_ready = false;
        let count = engine.hear_events(0);
        assert_eq!(engine.rails[0].events_ready, count == EVENTS_PER_ROUND, "what is left is heard in the next round");
        heard.push(count);
    }
    assert!(heard.iter().all(|count| *count <= EVENTS_PER_ROUND), "{heard:?}");
    assert!(engine.links.is_empty());
}

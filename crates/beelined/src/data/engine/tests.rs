//! The engine without peers: what becomes of its rails.

use std::os::fd::OwnedFd;
use std::process::Command;

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
        ] {
            assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "ip {command}");
        }
    }
}

/// An engine with this host's rails, and its door, at which nobody knocks.
fn engine() -> Engine {
    let text = "name = 'a-1'\nlisten = ['127.0.0.1:0']\ninsecure = true\naddresses = ['198.51.100.1']\n[rails]\nallow = [{ provider = 'tcp' }]\n";
    let config = Config::parse("test", text).unwrap();
    let control = Control::new(&config, Instant::now()).unwrap();
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

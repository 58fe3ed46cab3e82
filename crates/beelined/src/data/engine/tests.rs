//! The engine without the links of another bridge: what becomes of its rails, whom a peer may reach, and what is kept
//! of one. [`losses`] has what becomes of links that are lost, between two engines as well; [`hostile`] clients.

mod hostile;
mod losses;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::OnceLock;

use beeline_meeting::bridge::{self, LaneEnd};
use beeline_wire::ConnName;

use super::super::connection::Stage;
use super::super::record::Refusal;
use super::super::sender::How;
use super::rails::EVENTS_PER_ROUND;
use super::*;
use crate::config::Config;
use crate::control::message::{Rail, Token};
use crate::control::{PeerId, PeerUp};

/// Puts this thread into these tests' network namespace, where libfabric finds a port. Only root may; others have the
/// host's ports.
fn be_alone() {
    static ALONE: OnceLock<File> = OnceLock::new();
    if nix::unistd::geteuid().is_root() {
        let namespace = ALONE.get_or_init(|| {
            make_network();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    }
}

fn make_network() {
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
    engine_of(control("a-1", "198.51.100.1", ("a-0", 9, "203.0.113.0/24")))
}

fn engine_of((config, control): (Config, Control)) -> Engine {
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

/// A peer that is up and offers these rails.
fn peer_up(engine: &mut Engine, name: &str, rails: Vec<Rail>) {
    engine.peer_up(PeerUp {
        peer: PeerId(1),
        name: name.parse().unwrap(),
        instance: 1,
        speaks_for: Vec::new(),
        rails,
        token_for_us: Token::from_bytes([7; 32]),
        measure_port: 0,
        address: "198.51.100.2:4797".parse().unwrap(),
    });
}

/// Rails like ours at other addresses, with so many numbers from one on.
fn their_rails(engine: &Engine, from: u32, count: u32) -> Vec<Rail> {
    let ours = engine.our_offer().remove(0);
    let rail = |id: u32| {
        let mut rail = Rail { id, port: 9, ..ours.clone() };
        let address = format!("198.51.100.{}/24", 2 + id % 250);
        rail.description.address = address.parse().unwrap();
        rail.description.name = address;
        rail.description.netdev = None;
        rail
    };
    (from..from + count).map(rail).collect()
}

/// A link that is up, to a rail of the peer's.
fn link_up(engine: &mut Engine, id: u64, their_rail: u32) -> usize {
    let index = engine.links.len();
    engine.links.push(Some(Link::new(id, 0, 0, their_rail, EndpointId::default(), engine.now_ns)));
    engine.begin(index);
    index
}

/// A connection with the peer, and its app.
fn connection(engine: &mut Engine) -> (u64, LaneEnd) {
    let (app, lane) = bridge::pair().unwrap();
    let window = lane.ring_bytes().into();
    let address = |text: &str| text.parse::<SocketAddr>().unwrap().into();
    let name = ConnName { client: address("198.51.100.1:1000"), server: address("198.51.100.2:80") };
    (engine.enter(name, lane, 0, Stage::Open, window, None).ok().unwrap(), app)
}

#[test]
fn what_a_reset_leaves_unacknowledged_burdens_no_link() {
    be_alone();
    let mut engine = engine();
    let rails = their_rails(&engine, 1, 1);
    peer_up(&mut engine, "a-0", rails);
    link_up(&mut engine, 5, 1);
    let in_flight = |engine: &Engine| engine.status().links[0].in_flight_bytes;
    for _ in 0..5 {
        let (number, _app) = connection(&mut engine);
        let entry = engine.connections.get_mut(number).unwrap();
        entry.sending(0, 1000, (5, How::Inline), 0);
        entry.sending(1000, 1 << 20, (5, How::Written), 0);
        entry.sending(1000 + (1 << 20), 1 << 20, (5, How::Offered), 0);
        engine.peers[0].as_mut().unwrap().rates.sent(5, 2 << 20, 0);
        assert_eq!(in_flight(&engine), 2 << 20);
        engine.connections.get_mut(number).unwrap().connection.unheard();
        assert!(engine.finish(number));
        assert_eq!(in_flight(&engine), 0);
    }
}

#[test]
fn a_ring_is_offered_where_it_may_be_read_and_holds_nothing_of_another_connection() {
    be_alone();
    let mut engine = engine();
    let rails = their_rails(&engine, 1, 1);
    peer_up(&mut engine, "a-0", rails);
    let mut kept = Vec::new();
    // Another test may take the lane that this one gives back.
    for attempt in 0.. {
        assert!(attempt < 100, "no lane comes again");
        engine.tunables.pull_over_tcp = 1;
        let (number, app) = connection(&mut engine);
        if !engine.may_offer(number, 0) {
            kept.push(app);
            continue;
        }
        let ring = app.ring(true).0;
        assert!(engine.region(number, 0, false).is_some());
        let known = engine.connections.get(number).unwrap().rings[0];
        assert!(known.offered && engine.may_offer(number, 0));
        engine.connections.get_mut(number).unwrap().rings.clear();
        engine.close_ring(number, known);
        while engine.connections.get(number).unwrap().closing != 0 {
            engine.hear_events(0);
        }
        app.say(bridge::flags::FIN | bridge::flags::CLOSED);
        engine.connections.get_mut(number).unwrap().connection.unheard();
        assert!(engine.finish(number));
        app.retire();

        let (number, app) = connection(&mut engine);
        let is_again = app.ring(true).0 == ring;
        kept.push(app);
        if is_again {
            assert!(!engine.may_offer(number, 0));
            break;
        }
    }
    // What was registered for nobody to read is not offered later.
    let number = loop {
        engine.tunables.pull_over_tcp = 1;
        let (number, app) = connection(&mut engine);
        kept.push(app);
        if engine.may_offer(number, 0) {
            break number;
        }
    };
    engine.tunables.pull_over_tcp = 0;
    assert!(!engine.may_offer(number, 0) && engine.region(number, 0, false).is_some());
    engine.tunables.pull_over_tcp = 1;
    assert!(!engine.may_offer(number, 0));
}

#[test]
fn links_that_come_and_go_at_once_are_one_placing() {
    be_alone();
    let mut engine = engine();
    let rails = their_rails(&engine, 1, 4);
    peer_up(&mut engine, "a-0", rails);
    let made: Vec<_> = (0..8).map(|_| connection(&mut engine)).collect();
    let homes = |engine: &Engine| -> Vec<Option<usize>> {
        made.iter().map(|(number, _)| engine.connections.get(*number).unwrap().home).collect()
    };
    let links = [1, 2, 3].map(|rail| link_up(&mut engine, rail.into(), rail));
    assert!(engine.has_to_place() && !engine.may_sleep() && homes(&engine).iter().all(Option::is_none));
    engine.place_again();
    assert!(!engine.has_to_place() && homes(&engine).iter().all(Option::is_some));

    // What is lost is nobody's home any more, even before the next placing.
    let lost = links.into_iter().find(|index| homes(&engine).contains(&Some(*index))).unwrap();
    engine.link_lost(lost, "a test");
    assert!(engine.has_to_place() && !homes(&engine).contains(&Some(lost)));
    let others = |engine: &Engine| {
        made.iter().all(|(number, _)| !engine.connections.get(*number).unwrap().stripe.contains(&lost))
    };
    assert!(others(&engine));
    engine.place_again();
    assert!(homes(&engine).iter().all(|home| home.is_some() && *home != Some(lost)) && others(&engine));
    assert_eq!(engine.loaded_rails()[0].load.connections, 8);

    // A peer that is gone takes all with it, and nothing is placed.
    let links_lost = engine.counts.links_lost;
    engine.peer_down(PeerId(1), "a test");
    assert_eq!(engine.counts.links_lost, links_lost + 2);
    assert!(
        !engine.has_to_place() && engine.links.iter().all(Option::is_none) && engine.connections.numbers().count() == 0
    );
    assert_eq!(engine.loaded_rails()[0].load.connections, 0);
}

#[test]
fn a_peer_with_ever_new_rails_has_no_more_links_than_others() {
    be_alone();
    let mut engine = engine();
    peer_up(&mut engine, "b-1", Vec::new());
    let index = engine.peer_index(PeerId(1)).unwrap();
    for round in 0..10 {
        let rails = their_rails(&engine, 16 * round, 16);
        engine.offered(index, rails);
        engine.now_ns += 10_000_000_000;
        engine.connect_links(index);
        let links = engine.links.iter().flatten().filter(|link| link.rail == 0).count();
        assert!((1..=16).contains(&links), "{links} links in round {round}");
        let peer = engine.peers[index].as_ref().unwrap();
        assert!(peer.retry.keys().chain(peer.asked.keys()).all(|(_, id)| (16 * round..16 * (round + 1)).contains(id)));
    }
}

#[test]
fn a_door_that_is_shut_lets_nobody_in_until_it_is_opened_anew() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    be_alone();
    let mut engine = engine();
    let knock = || UnixStream::connect_addr(&SocketAddr::from_abstract_name(beeline_wire::bridge::DOOR).unwrap());
    let leaves = |mut client: UnixStream| std::io::Read::read(&mut client, &mut [0]).unwrap_or(0) == 0;
    // The engine's own is none.
    engine.shut_door();
    engine.care_for_door(false);
    let silent = knock().unwrap();
    engine.take_clients();
    assert_eq!(engine.silent.len(), 1);
    let waiting = knock().unwrap();
    engine.shut_door();
    assert!(engine.silent.is_empty() && leaves(silent) && leaves(waiting));
    engine.care_for_door(true);
    assert!(knock().is_err());
    engine.care_for_door(false);
    let client = knock().unwrap();
    engine.take_clients();
    assert_eq!(engine.silent.len(), 1);
    drop(client);
}

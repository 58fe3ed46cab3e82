//! Links that are lost: at one end alone, all at once, and while a connection ends.

use beeline_fabric::Remote;
use beeline_meeting::bridge::{Readable, flags};

use super::super::super::connection::Broken;
use super::super::super::record::Record;
use super::*;
use crate::control::message::{LinkDown, Message};

/// Puts this thread into a network namespace of its own with two ports in one segment.
fn be_between_two_ports() {
    make_network();
    for command in
        ["link add v2 type veth peer name v3", "addr add 198.51.100.2/24 dev v2", "link set v2 up", "link set v3 up"]
    {
        ip(command);
    }
    while !ip("-o link show v2").contains("state UP") {}
}

/// Everything that an engine does in a round, but for what the kernel's epoll would tell.
fn turn(engine: &mut Engine) {
    engine.now_ns = monotonic_ns();
    engine.look_at_memory(true);
    engine.care();
}

/// Takes what lies in the ring that an app reads.
fn read(app: &LaneEnd, into: &mut Vec<u8>) {
    let Readable::Bytes(count, position) = app.readable().unwrap() else { panic!("nothing urgent was sent") };
    let mut bytes = vec![0; count as usize];
    app.copy_out(position, &mut bytes);
    app.consume(count).unwrap();
    into.extend(bytes);
}

/// Two engines on one host, and two links between them.
fn engines() -> [Engine; 2] {
    let mut near = engine_of(control("a-0", "198.51.100.1", ("a-1", 9, "198.51.100.2")));
    let port = near.control.local_addresses()[0].port();
    let mut far = engine_of(control("a-1", "198.51.100.2", ("a-0", port, "198.51.100.1")));
    for engine in [&mut near, &mut far] {
        engine.tunables.compare_s = 0;
        // Everything is a large piece, and goes over both.
        (engine.tunables.inline_max, engine.tunables.stripe_min) = (64, 1);
    }
    let is_linked = |engine: &Engine| engine.peers.iter().flatten().any(|peer| peer.links.len() == 2);
    let until = Instant::now() + Duration::from_secs(20);
    while !is_linked(&near) || !is_linked(&far) {
        assert!(Instant::now() < until, "{} and {} links", near.links.len(), far.links.len());
        [&mut near, &mut far].into_iter().for_each(turn);
    }
    [near, far]
}

#[test]
fn no_byte_is_lost_on_a_connection_that_is_made_while_one_end_alone_knows_of_a_lost_link() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    be_between_two_ports();
    let [mut near, mut far] = engines();
    let (number, writer) = connection(&mut far);
    far.choose_home(number, None);
    let home = far.connections.get(number).and_then(|entry| entry.home).unwrap();
    // The link that the first piece is to take.
    let lost = far.link_for(number, home, 1 << 16);
    let id = far.links[lost].as_ref().unwrap().id;
    let known = near.links.iter().position(|link| link.as_ref().is_some_and(|link| link.id == id)).unwrap();
    near.link_lost(known, "a test");
    let (theirs, reader) = connection(&mut near);
    near.choose_home(theirs, None);
    near.connections.get_mut(theirs).unwrap().connection.theirs = number;
    far.connections.get_mut(number).unwrap().connection.theirs = theirs;

    // What is sent before anything is heard goes nowhere.
    let bytes: Vec<u8> = (0..256_u32 << 10).map(|place| (place / 7) as u8).collect();
    let mut written = writer.write(&bytes).unwrap();
    let before = far.links[lost].as_ref().map(|link| link.bytes_sent);
    far.heat(number);
    far.pump_hot();
    far.flush_links();
    assert_ne!(far.links[lost].as_ref().map(|link| link.bytes_sent), before, "nothing was sent over it");

    let mut come = Vec::new();
    let until = Instant::now() + Duration::from_secs(10);
    while come.len() < bytes.len() {
        assert!(Instant::now() < until, "{} bytes of {} have come, {written} were written", come.len(), bytes.len());
        written += writer.write(&bytes[written..]).unwrap();
        far.heat(number);
        near.heat(theirs);
        [&mut near, &mut far].into_iter().for_each(turn);
        read(&reader, &mut come);
    }
    assert!(come == bytes);
}

/// A connection over one of the first engine's links: both numbers, and both apps.
fn connect(near: &mut Engine, far: &mut Engine, home: usize) -> (u64, u64, LaneEnd, LaneEnd) {
    let id = near.links[home].as_ref().unwrap().id;
    let their_home = far.links.iter().position(|link| link.as_ref().is_some_and(|link| link.id == id));
    let ((number, app), (theirs, their_app)) = (connection(near), connection(far));
    for (engine, number, theirs, home) in [(near, number, theirs, Some(home)), (far, theirs, number, their_home)] {
        let entry = engine.connections.get_mut(number).unwrap();
        (entry.connection.theirs, entry.home, entry.stripe) = (theirs, home, Vec::new());
    }
    (number, theirs, app, their_app)
}

/// Eight streams of which nothing is granted, over one link, until 128 MiB have come: more than a round's credits are
/// for. What has come of each. Of the first engine those are heated that `rings` says; `after_turn` is done to it.
fn copied_streams(rings: impl Fn(&Engine, u64) -> bool, after_turn: impl Fn(&mut Engine)) -> Vec<usize> {
    be_between_two_ports();
    let [mut near, mut far] = engines();
    for engine in [&mut near, &mut far] {
        // Nothing goes over the other link.
        (engine.tunables.registered_max, engine.tunables.stripe_min) = (1, u64::MAX);
    }
    let home = near.links.iter().position(Option::is_some).unwrap();
    let mut apps: Vec<_> = (0..8).map(|_| (connect(&mut near, &mut far, home), Vec::new())).collect();
    let much = vec![7; 1 << 20];
    let until = Instant::now() + Duration::from_secs(40);
    while apps.iter().map(|(_, come)| come.len()).sum::<usize>() < 128 << 20 {
        assert!(Instant::now() < until);
        for ((number, theirs, writer, reader), come) in &mut apps {
            writer.write(&much).unwrap();
            if rings(&near, *number) {
                near.heat(*number);
            }
            far.heat(*theirs);
            read(reader, come);
        }
        // Whoever is rung for first is another one each time.
        apps.rotate_left(1);
        [&mut near, &mut far].into_iter().for_each(turn);
        after_turn(&mut near);
    }
    assert_eq!(near.counts.pushes, 0);
    apps.iter().map(|(_, come)| come.len()).collect()
}

#[test]
fn streams_that_are_copied_share_the_credits_of_their_link() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let come = copied_streams(|_, _| true, |_| ());
    let most = come.iter().max().unwrap();
    assert!(come.iter().all(|bytes| *bytes > most / 2), "{come:?}");
}

#[test]
fn streams_that_are_copied_share_their_link_with_a_bridge_that_sleeps() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // Who waits for the link is not rung for.
    let rings = |near: &Engine, number| near.connections.get(number).unwrap().waits.is_none();
    let come = copied_streams(rings, |near| {
        let _ = near.arm_hot();
    });
    let most = come.iter().max().unwrap();
    assert!(come.iter().all(|bytes| *bytes > most / 4), "{come:?}");
}

#[test]
fn who_waits_for_a_link_is_not_looked_at_because_another_one_carries_something() {
    const CONNECTIONS: usize = 100;
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    be_between_two_ports();
    let [mut near, mut far] = engines();
    let [stalled, other] = [0, 1].map(|nth| {
        let mut up = near.links.iter().enumerate().filter(|(_, link)| link.is_some());
        up.nth(nth).unwrap().0
    });
    near.tunables.registered_max = 1;
    let apps: Vec<_> = (0..CONNECTIONS).map(|_| connect(&mut near, &mut far, stalled)).collect();
    for (number, _, app, _) in &apps {
        app.write(&vec![7; 1 << 20]).unwrap();
        near.heat(*number);
    }
    // The other end is not there, so nothing comes back; but of each link some messages go out.
    for round in 0..WAITING_COLD_AFTER + 32 {
        if round % 2 == 0 && round / 2 < 40 {
            assert!(near.push(other, &Record::Ping { number: 1 }));
        }
        let until = Instant::now() + Duration::from_millis(1);
        while Instant::now() < until {
            near.now_ns = monotonic_ns();
            near.poll_rails(true);
        }
        near.pump_hot();
        near.flush_links();
    }
    assert_eq!((near.hot.len(), near.waiters), (0, CONNECTIONS));
    // What comes over their own lets them try again.
    let until = Instant::now() + Duration::from_secs(10);
    while near.hot.len() < CONNECTIONS {
        assert!(Instant::now() < until, "{} are hot", near.hot.len());
        [&mut near, &mut far].into_iter().for_each(|engine| {
            engine.now_ns = monotonic_ns();
            engine.poll_rails(true);
            engine.flush_links();
        });
    }
}

/// The lost links of which a connection would say a word.
fn owed(engine: &mut Engine) -> Option<u64> {
    let (number, _app) = connection(engine);
    engine.connections.get(number).unwrap().losses.next()
}

#[test]
fn a_connection_begins_with_the_losses_that_its_peer_may_not_know() {
    be_alone();
    let mut engine = engine();
    let rails = their_rails(&engine, 1, 2);
    peer_up(&mut engine, "a-0", rails);
    link_up(&mut engine, 5, 1);
    let lost = link_up(&mut engine, 6, 2);
    assert_eq!(owed(&mut engine), None);
    engine.link_lost(lost, "a test");
    assert_eq!(owed(&mut engine), Some(6));
    engine.peer_said(PeerId(1), Message::LinkDown(LinkDown { link: 6, why: "it knows".into() }));
    assert_eq!(owed(&mut engine), None);

    // With very many that it does not know there is no new connection.
    let links: Vec<_> = (100..250).map(|id| link_up(&mut engine, id, 2)).collect();
    links.into_iter().for_each(|index| engine.link_lost(index, "a test"));
    let (app, lane) = bridge::pair().unwrap();
    let window = lane.ring_bytes().into();
    let address = |text: &str| text.parse::<SocketAddr>().unwrap().into();
    let name = ConnName { client: address("198.51.100.1:1000"), server: address("198.51.100.2:80") };
    let refused = engine.enter(name, lane, 0, Stage::Open, window, None).err().unwrap();
    refused.retire();
    app.retire();
    // In a while it has found out, whatever it says.
    engine.now_ns += 61_000_000_000;
    let now_ns = engine.now_ns;
    engine.links.iter_mut().flatten().for_each(|link| link.heard_ns = now_ns);
    engine.care_for_links();
    assert_eq!(owed(&mut engine), None);
}

#[test]
fn links_that_fail_together_do_not_end_the_control_connection() {
    const LINKS: u64 = 300;
    be_alone();
    let mut engine = engine();
    let port = engine.control.local_addresses()[0].port();
    let (_, mut peer) = control("a-0", "203.0.113.0/24", ("a-1", port, "198.51.100.1"));
    let mut now = Instant::now();
    while engine.peers.is_empty() {
        peer.turn(now);
        engine.turn_control();
    }
    let links: Vec<_> = (1..=LINKS).map(|id| link_up(&mut engine, id, 1)).collect();
    links.into_iter().for_each(|index| engine.link_lost(index, "a test"));
    let mut heard = 0;
    while heard < LINKS {
        for event in peer.turn(now) {
            match event {
                control::Event::PeerDown { why, .. } => panic!("{why}"),
                control::Event::Message(_, Message::LinkDown(_)) => heard += 1,
                _ => {}
            }
        }
        engine.turn_control();
        assert!(engine.peers.iter().flatten().next().is_some());
        (now, engine.now_ns) = (now + Duration::from_millis(100), engine.now_ns + 100_000_000);
        engine.care_for_links();
    }
}

#[test]
fn what_is_sent_again_after_the_end_was_told_is_written_into_no_ring() {
    be_alone();
    let mut engine = engine();
    engine.tunables.inline_max = 64;
    let rails = their_rails(&engine, 1, 2);
    peer_up(&mut engine, "a-0", rails);
    let lost = link_up(&mut engine, 5, 1);
    let other = link_up(&mut engine, 6, 2);
    let (number, app) = connection(&mut engine);
    engine.place_again();
    let window = u64::from(app.ring_bytes());
    assert_eq!(app.write(&[7; 1000]), Ok(1000));
    app.say(flags::FIN | flags::CLOSED);
    let entry = engine.connections.get_mut(number).unwrap();
    entry.grants.push(Grant { link: 6, remote: Remote { address: 0, key: 0 }, base: 0, ring: window });
    entry.sending(0, 1000, (5, How::Written), 0);
    entry.connection.ended(1000, flags::FIN | flags::CLOSED);
    engine.link_lost(lost, "a test");
    engine.place_again();

    // The peer's app has aborted: its ring may be gone since it heard the end.
    let entry = engine.connections.get_mut(number).unwrap();
    entry.connection.resynced(5, 0, window, std::iter::empty(), |_| {}).unwrap();
    engine.heat(number);
    engine.pump_hot();
    assert!(engine.links[other].is_some(), "the write was refused, and cost the link");
    assert_eq!((engine.counts.inlined, engine.counts.pushes, engine.counts.pulls), (1000, 0, 0));
}

#[test]
fn a_connection_that_is_reset_is_broken_once() {
    be_alone();
    let mut engine = engine();
    let rails = their_rails(&engine, 1, 1);
    peer_up(&mut engine, "a-0", rails);
    let (number, _app) = connection(&mut engine);
    for _ in 0..3 {
        engine.conclude(number, Err(Broken::Bridge("a test")));
    }
    assert_eq!((engine.counts.breaches, engine.counts.reset), (1, 1));
}

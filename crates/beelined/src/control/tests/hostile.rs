//! Peers that do what no bridge would, and bridges without certificates.

use std::net::TcpStream;

use super::super::message::{LinkDown, Ping, VERSION};
use super::super::*;
use super::world::{Host, Raw, World, drain, fill, hello, rail};

/// Alpha without certificates, which knows beta by its address.
fn alpha_alone() -> (Host, Host, World) {
    let (mut alpha, beta) = (Host::new("alpha", "10.0.0.1"), Host::new("beta", "10.0.0.2"));
    let mut world = World::new();
    alpha.start_insecure(&mut world, &[&beta], "10.0.0.1");
    (alpha, beta, world)
}

/// The same, and a beta that has said hello.
fn with_beta_up() -> (Host, Raw, World) {
    let (alpha, _beta, mut world) = alpha_alone();
    let mut raw = Raw::connect(alpha.address(), None);
    raw.say(&hello("10.0.0.2"));
    world.until("it is up", |world| raw.exchange().is_ok() && world.up(0).is_some());
    (alpha, raw, world)
}

#[test]
fn without_certificates_addresses_say_who_is_who() {
    let (mut alpha, mut beta) = (Host::new("alpha", "10.0.0.1"), Host::new("beta", "10.0.0.2"));
    let mut world = World::new();
    let a = alpha.start_insecure(&mut world, &[&beta], "10.0.0.1");
    let b = beta.start_insecure(&mut world, &[&alpha], "10.0.0.2");
    world.both_up();
    let peer = world.up(a).unwrap().peer;
    assert_eq!(world.control(a).peer_for("10.0.0.2".parse().unwrap()), Some(peer));
    assert!(world.control(a).is_insecure());
    let now = world.now;
    assert!(world.control(b).reload(now).is_err());
}

#[test]
fn without_certificates_strangers_and_wide_claims_are_refused() {
    let (alpha, _beta, mut world) = alpha_alone();
    let Frame::Hello(mut stranger) = hello("10.0.0.2") else { unreachable!() };
    stranger.name = "gamma".parse().unwrap();
    let mut raw = Raw::connect(alpha.address(), None);
    raw.say(&Frame::Hello(stranger.clone()));
    assert!(raw.last_word(&mut world).contains("no bridge of this name"));
    stranger.name = "alpha".parse().unwrap();
    let mut raw = Raw::connect(alpha.address(), None);
    raw.say(&Frame::Hello(stranger));
    raw.last_word(&mut world);
    let mut raw = Raw::connect(alpha.address(), None);
    raw.say(&hello("10.0.1.2"));
    assert!(raw.last_word(&mut world).contains("it claims 10.0.1.2"));
    assert!(world.up(0).is_none());
}

#[test]
fn a_peer_that_takes_us_for_a_stranger_is_met_ever_less_often() {
    let (mut alpha, mut beta) = (Host::new("alpha", "10.0.0.1"), Host::new("beta", "10.9.0.2"));
    let mut world = World::new();
    // Alpha knows beta by other addresses than beta says. Beta sees no fault in alpha, and hears its good-bye.
    alpha.start_insecure(&mut world, &[&beta], "10.0.0.1");
    let b = beta.start_insecure(&mut world, &[&alpha], "10.9.0.2");
    world.pass(Duration::from_secs(60));
    let met = world.events[b].iter().filter(|event| matches!(event, Event::PeerUp(_))).count();
    assert!((1..50).contains(&met), "{met} times in a minute");
}

#[test]
fn plain_tcp_means_nothing_where_there_are_certificates_nor_tls_where_there_are_none() {
    let (mut alpha, mut beta) = super::world::friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    let b = beta.start_insecure(&mut world, &[&alpha], "10.0.0.2");
    world.pass(Duration::from_secs(10));
    assert!(world.up(a).is_none() && world.up(b).is_none());
}

#[test]
fn another_version_is_told_so() {
    let (alpha, _beta, mut world) = alpha_alone();
    let mut raw = Raw::connect(alpha.address(), None);
    let mut bytes = Vec::new();
    frame::write(&mut bytes, br#"{"hello":{"version":99,"name":"beta","colour":"red"}}"#);
    raw.say_bytes(&bytes);
    let word = raw.last_word(&mut world);
    assert!(word.contains(&format!("versions differ: 99 and {VERSION}")), "{word}");
    assert_eq!(world.ended(0, "version"), 1);
}

#[test]
fn silence_ends_a_connection_and_a_word_keeps_it() {
    let (_alpha, mut raw, mut world) = with_beta_up();
    for n in 0..10 {
        world.pass(Duration::from_secs(3));
        raw.say(&Frame::Ping(Ping { n }));
        raw.exchange().unwrap();
    }
    assert!(world.up(0).is_some());
    let before = world.now;
    world.until("it is missed", |world| world.up(0).is_none());
    assert!(matches!(world.last_down(0), Some(End::Silent)));
    assert!(world.now - before <= Duration::from_secs(6));
}

#[test]
fn floods_are_cut_off() {
    let (_alpha, mut raw, mut world) = with_beta_up();
    for n in 0..1000 {
        raw.say(&Frame::Ping(Ping { n }));
    }
    let _ = raw.exchange();
    world.until("it is gone", |world| world.up(0).is_none());
    assert!(matches!(world.last_down(0), Some(End::Flood)));
}

#[test]
fn who_never_reads_is_cut_off() {
    let (_alpha, raw, mut world) = with_beta_up();
    let peer = world.up(0).unwrap().peer;
    let message = Message::LinkDown(LinkDown { link: 3, why: "x".repeat(500) });
    // Far more than the kernel's buffers and ours hold together.
    let sent = (0..100_000).take_while(|_| world.control(0).send(peer, message.clone())).count();
    assert!(sent > 500 && sent < 99_000, "{sent}");
    world.until("it is gone", |world| world.up(0).is_none());
    assert!(matches!(world.last_down(0), Some(End::NotReading)));
    drop(raw);
}

#[test]
fn a_hello_that_comes_byte_by_byte_is_heard() {
    let (alpha, _beta, mut world) = alpha_alone();
    let mut raw = Raw::connect(alpha.address(), None);
    let mut bytes = Vec::new();
    frame::write(&mut bytes, &hello("10.0.0.2").encode());
    for byte in bytes {
        raw.say_bytes(&[byte]);
        raw.exchange().unwrap();
        let now = world.now;
        let events = world.control(0).turn(now);
        world.events[0].extend(events);
    }
    world.until("it is up", |world| world.up(0).is_some());
}

#[test]
fn what_is_no_message_ends_the_connection() {
    for (bytes, end) in [
        (&b"\xff\xff\xff\xff"[..], "too_long"),
        (b"\x02\0\0\0{}", "malformed"),
        (b"\x00\0\0\0", "malformed"),
        (b"\x10\0\0\0{\"ping\":{\"n\":-1}}", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "too_long"),
        (b"\x0e\0\0\0{\"bye\":{\"why\":", "malformed"),
    ] {
        let (_alpha, mut raw, mut world) = with_beta_up();
        raw.say_bytes(bytes);
        let _ = raw.exchange();
        world.until("it is gone", |world| world.up(0).is_none());
        assert_eq!(world.ended(0, end), 1, "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_connection_that_is_cut_in_a_frame_is_closed() {
    let (_alpha, mut raw, mut world) = with_beta_up();
    raw.say_bytes(b"\x10\0\0\0{\"pi");
    raw.exchange().unwrap();
    drop(raw);
    world.until("it is gone", |world| world.up(0).is_none());
    assert!(matches!(world.last_down(0), Some(End::Closed | End::Io(_))));
}

#[test]
fn a_crowd_of_strangers_keeps_no_friend_out() {
    let (mut alpha, mut beta) = super::world::friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(alpha.address()).unwrap()).collect();
    let b = beta.start(&mut world, &[&alpha]);
    world.until("the friend is in", |world| world.up(a).is_some() && world.up(b).is_some());
    assert!(world.ended(a, "crowded") > 0 || world.ended(a, "slow") > 0);
    world.pass(Duration::from_secs(10));
    let connections = &world.controls[a].as_ref().unwrap().connections;
    assert_eq!(connections.len(), 1, "the crowd has been sent home");
    for stranger in &crowd {
        stranger.set_nonblocking(true).unwrap();
        drain(stranger);
    }
}

#[test]
fn garbage_before_tls_is_refused() {
    let (mut alpha, _beta) = super::world::friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    let socket = TcpStream::connect(alpha.address()).unwrap();
    assert!(fill(&socket, &[0x55; 20_000]));
    world.until("it is refused", |world| world.ended(a, "tls") == 1);
}

#[test]
fn rails_that_do_not_fit_are_not_announced() {
    let (_alpha, _beta, mut world) = alpha_alone();
    let long = |id: u32| {
        let mut rail = rail(id);
        rail.description.netdev = Some("x".repeat(250));
        rail.description.name = "x".repeat(250);
        rail.description.provider = "x".repeat(250);
        rail
    };
    assert!(world.control(0).announce_rails((0..64).map(long).collect()).is_err());
    assert!(world.control(0).announce_rails((0..8).map(long).collect()).is_ok());
}

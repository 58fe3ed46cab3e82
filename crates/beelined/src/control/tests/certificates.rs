//! Bridges that know each other by certificate, and some that do not.

use super::super::message::LinkDown;
use super::super::*;
use super::world::{DAY, Host, Raw, World, friends, hello, rail};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn friends_meet_and_talk() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    world.control(a).announce_rails(vec![rail(1)]).unwrap();
    let b = beta.start(&mut world, &[]);
    world.both_up();
    let (at_a, at_b) = (world.up(a).unwrap().clone(), world.up(b).unwrap().clone());
    assert_eq!((at_a.name.as_str(), at_b.name.as_str()), ("beta", "alpha"));
    assert_eq!(at_b.speaks_for, ["10.0.0.1".parse().unwrap()]);
    assert_eq!(at_b.rails, [rail(1)]);
    assert_eq!(at_a.address, beta.address());

    assert_eq!(world.control(b).my_token(at_b.peer), Some(at_a.token_for_us));
    assert_eq!(world.control(a).peer_with_token(at_b.token_for_us.as_bytes()), Some(at_a.peer));
    assert_eq!(world.control(a).peer_with_token(at_a.token_for_us.as_bytes()), None);
    assert_eq!(world.control(a).peer_for(ip("10.0.0.2")), Some(at_a.peer));
    assert_eq!(world.control(a).peer_for(ip("10.0.0.1")), None);
    assert!(world.control(b).speaks_for(at_b.peer, ip("10.0.0.1")));
    assert!(!world.control(b).speaks_for(at_b.peer, ip("10.0.0.2")));
    assert!(!world.control(b).speaks_for(at_b.peer, ip("127.0.0.1")));

    let down = Message::LinkDown(LinkDown { link: 3, why: "flushed".into() });
    assert!(world.control(a).send(at_a.peer, down.clone()));
    assert!(!world.control(a).send(PeerId(1), down.clone()));
    world.control(b).announce_rails(vec![rail(7), rail(8)]).unwrap();
    let said = |world: &World, index: usize, what: &Message| {
        world.events[index].iter().any(|event| matches!(event, Event::Message(_, message) if message == what))
    };
    world.until("both have heard", |world| {
        said(world, b, &down) && said(world, a, &Message::Rails(Rails { rails: vec![rail(7), rail(8)] }))
    });

    world.pass(Duration::from_secs(30));
    assert!(world.up(a).is_some() && world.up(b).is_some(), "pings keep it alive");
    let status = &world.controls[a].as_ref().unwrap().peers(world.now)[0];
    assert!(status.is_up && status.up_s >= 29 && status.round_trip_us.is_some(), "{status:?}");
    assert_eq!((status.rails.len(), status.certificate_days), (2, Some(28)));
}

#[test]
fn an_unknown_certificate_is_refused_by_either_end() {
    for accepting_trusts in [true, false] {
        let (mut alpha, mut beta) = (Host::new("alpha", "10.0.0.1"), Host::new("beta", "10.0.0.2"));
        if accepting_trusts {
            beta.trust(&alpha)
        } else {
            alpha.trust(&beta)
        }
        let mut world = World::new();
        let a = alpha.start(&mut world, &[&beta]);
        let b = beta.start(&mut world, &[]);
        world.pass(Duration::from_secs(20));
        assert!(world.up(a).is_none() && world.up(b).is_none());
        assert!(world.ended(a, "tls") > 2);
        let last_end = world.control(a).peers(Instant::now())[0].last_end.clone().unwrap();
        assert!(last_end.contains("TLS"), "{last_end}");
    }
}

#[test]
fn a_certificate_of_the_same_name_with_another_key_is_unknown() {
    let (mut alpha, beta) = friends();
    let mut impostor = Host::new("beta", "10.0.0.2");
    impostor.trust(&alpha);
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&impostor]);
    impostor.start(&mut world, &[]);
    world.pass(Duration::from_secs(5));
    assert!(world.up(a).is_none());
    drop(beta);
}

#[test]
fn a_stolen_certificate_without_its_key_is_refused() {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject;
    let (alpha, beta) = friends();
    let certificate = crate::keys::Certificate::from_pem(&beta.generated.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_slice(alpha.generated.key.as_bytes()).unwrap();
    assert!(Tls::new(certificate, key, Default::default()).is_err());
}

#[test]
fn certificates_outside_their_validity_are_refused() {
    let now = SystemTime::now();
    for (not_before, alert) in [(now - 3 * DAY, "CertificateExpired"), (now + DAY, "Certificate")] {
        let mut alpha = Host::new("alpha", "10.0.0.1");
        let beta = Host::with_validity("beta", "10.0.0.2", not_before, DAY);
        alpha.trust(&beta);
        let mut world = World::new();
        let a = alpha.start(&mut world, &[]);
        let tls = beta.tls(&alpha);
        let mut raw = Raw::connect(alpha.address(), Some(&tls));
        raw.say(&hello("10.0.0.2"));
        let word = raw.last_word(&mut world);
        assert!(word.contains(alert), "{word}");
        assert!(world.up(a).is_none());
        assert_eq!(world.ended(a, "tls"), 1);
    }
}

#[test]
fn claims_beyond_the_certificate_are_refused() {
    for (claim, stays) in [("10.0.0.2", true), ("10.0.0.3", false), ("10.0.0.0/24", false)] {
        let (mut alpha, beta) = friends();
        let mut world = World::new();
        let a = alpha.start(&mut world, &[]);
        let tls = beta.tls(&alpha);
        let mut raw = Raw::connect(alpha.address(), Some(&tls));
        raw.say(&hello(claim));
        if stays {
            world.until("it is up", |world| raw.exchange().is_ok() && world.up(a).is_some());
        } else {
            let word = raw.last_word(&mut world);
            assert!(word.contains(&format!("it claims {claim}")), "{word}");
            assert!(world.up(a).is_none());
        }
    }
}

#[test]
fn a_name_that_is_not_the_certificates_is_refused() {
    let mut alpha = Host::new("alpha", "10.0.0.1");
    let gamma = Host::new("gamma", "10.0.0.2");
    alpha.trust(&gamma);
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    let tls = gamma.tls(&alpha);
    let mut raw = Raw::connect(alpha.address(), Some(&tls));
    raw.say(&hello("10.0.0.2"));
    assert!(raw.last_word(&mut world).contains("it says it is `beta`, but it is `gamma`"));
    assert!(world.up(a).is_none());
}

#[test]
fn a_trusted_peer_where_another_was_dialed_is_refused() {
    let (mut alpha, mut beta) = friends();
    let mut gamma = Host::new("gamma", "10.0.0.3");
    alpha.trust(&gamma);
    gamma.trust(&alpha);
    gamma.port = beta.port;
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&gamma]);
    beta.start(&mut world, &[]);
    world.pass(Duration::from_secs(5));
    assert!(world.up(a).is_none());
    assert!(world.ended(a, "wrong_name") > 0);
}

#[test]
fn of_two_connections_that_of_the_smaller_name_stays() {
    for turn in 0..8 {
        let (mut alpha, mut beta) = friends();
        let mut world = World::new();
        let a = alpha.start(&mut world, &[&beta]);
        let b = beta.start(&mut world, &[&alpha]);
        // Both are due at once, and each in turn gets ahead.
        world.now += Duration::from_secs(1);
        for _ in 0..turn {
            let now = world.now;
            let ahead = if turn % 2 == 0 { a } else { b };
            let events = world.control(ahead).turn(now);
            world.events[ahead].extend(events);
        }
        world.pass(Duration::from_secs(3));
        let (at_a, at_b) = (world.up(a).expect("alpha has it").clone(), world.up(b).expect("beta has it").clone());
        assert_eq!(at_a.address, beta.address(), "alpha began the one that stays");
        assert_ne!(at_b.address, alpha.address());
        let seen = (world.events[a].len(), world.events[b].len());
        world.pass(Duration::from_secs(30));
        assert_eq!((world.events[a].len(), world.events[b].len()), seen, "and it is settled");
    }
}

#[test]
fn a_bridge_that_dies_is_met_again() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    let b = beta.start(&mut world, &[]);
    world.both_up();
    let first = world.up(a).unwrap().clone();
    world.controls[b] = None;
    world.until("it is missed", |world| world.up(a).is_none());
    assert_eq!(world.control(a).peer_for(ip("10.0.0.2")), None);
    assert_eq!(world.control(a).my_token(first.peer), None);
    world.pass(Duration::from_secs(30));
    beta.start(&mut world, &[]);
    world.until("it is back", |world| world.up(a).is_some());
    let second = world.up(a).unwrap();
    assert!(second.peer != first.peer && second.instance != first.instance);
    assert!(second.token_for_us != first.token_for_us);
}

#[test]
fn a_restart_that_nobody_noticed_replaces_the_old_connection() {
    let (mut alpha, beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    let tls = beta.tls(&alpha);
    let mut old = Raw::connect(alpha.address(), Some(&tls));
    old.say(&hello("10.0.0.2"));
    world.until("it is up", |world| old.exchange().is_ok() && world.up(a).is_some());
    let mut new = Raw::connect(alpha.address(), Some(&tls));
    let Frame::Hello(mut restarted) = hello("10.0.0.2") else { unreachable!() };
    restarted.instance = 8;
    new.say(&Frame::Hello(restarted));
    world.until("the new is up", |world| new.exchange().is_ok() && world.up(a).is_some_and(|up| up.instance == 8));
    assert!(matches!(world.last_down(a), Some(End::Restarted)));
    assert!(old.last_word(&mut world).contains("started again"));
}

#[test]
fn peers_that_are_no_longer_trusted_are_gone() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    let b = beta.start(&mut world, &[&alpha]);
    world.both_up();
    let now = world.now;
    world.control(a).reload(now).unwrap();
    assert!(world.up(a).is_some());
    alpha.distrust(&beta);
    // As when the bridge has become a user who may not read the key.
    std::fs::remove_file(alpha.directory.path().join("own.key")).unwrap();
    world.control(a).reload(now).unwrap();
    world.until("it is gone", |world| world.up(a).is_none() && world.up(b).is_none());
    assert!(matches!(world.last_down(a), Some(End::NoLongerTrusted)));
    world.pass(Duration::from_secs(10));
    assert!(world.up(a).is_none() && world.up(b).is_none());
    alpha.trust(&beta);
    let now = world.now;
    world.control(a).reload(now).unwrap();
    world.both_up();
}

#[test]
fn a_renewed_certificate_ends_no_connection() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    beta.start(&mut world, &[&alpha]);
    world.both_up();
    let peer = world.up(a).unwrap().peer;
    let renew = |world: &mut World, address: &str| {
        alpha.trust(&Host::new("beta", address));
        let now = world.now;
        world.control(a).reload(now).unwrap();
        world.pass(Duration::from_secs(3));
    };
    renew(&mut world, "10.0.0.2");
    assert_eq!(world.up(a).map(|up| up.peer), Some(peer));
    assert_eq!(world.control(a).peers(Instant::now())[0].certificate_days, Some(28));
    // One that no longer names what it speaks for.
    renew(&mut world, "10.0.0.3");
    assert!(world.up(a).is_none());
    assert!(matches!(world.last_down(a), Some(End::NoLongerTrusted)));
}

#[test]
fn a_certificate_that_expires_ends_no_connection_and_makes_none() {
    const SOON: Duration = Duration::from_secs(3);
    let (mut alpha, mut beta) =
        (Host::new("alpha", "10.0.0.1"), Host::with_validity("beta", "10.0.0.2", SystemTime::now() - DAY, DAY + SOON));
    alpha.trust(&beta);
    beta.trust(&alpha);
    let mut world = World::new();
    let a = alpha.start(&mut world, &[]);
    beta.start(&mut world, &[&alpha]);
    world.both_up();
    let peer = world.up(a).unwrap().peer;
    assert_eq!(world.control(a).peer_for(ip("10.0.0.2")), Some(peer));
    std::thread::sleep(SOON + Duration::from_secs(1));
    world.pass(Duration::from_secs(3));
    assert_eq!(world.up(a).map(|up| up.peer), Some(peer));
    assert_eq!(world.control(a).peer_for(ip("10.0.0.2")), None);
    assert!(!world.control(a).speaks_for(peer, ip("10.0.0.2")));

    alpha.trust(&Host::new("beta", "10.0.0.2"));
    let now = world.now;
    world.control(a).reload(now).unwrap();
    world.pass(Duration::from_secs(3));
    assert_eq!(world.control(a).peer_for(ip("10.0.0.2")), Some(peer));
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    beta.start(&mut world, &[]);
    world.both_up();
    std::fs::write(alpha.directory.path().join("own.crt"), "nothing").unwrap();
    let now = world.now;
    assert!(world.control(a).reload(now).is_err());
    world.pass(Duration::from_secs(5));
    assert!(world.up(a).is_some());
}

#[test]
fn a_reload_without_the_directory_of_trusted_certificates_changes_nothing() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    beta.start(&mut world, &[]);
    world.both_up();
    std::fs::remove_dir_all(alpha.directory.path().join("trusted")).unwrap();
    let now = world.now;
    assert!(world.control(a).reload(now).is_err());
    world.pass(Duration::from_secs(5));
    assert!(world.up(a).is_some());
}

#[test]
fn a_bridge_whose_configuration_names_a_directory_that_is_not_there_does_not_start() {
    let (alpha, beta) = friends();
    std::fs::remove_dir_all(alpha.directory.path().join("trusted")).unwrap();
    let started = Control::with_listeners(&alpha.config(&[&beta], None), Vec::new(), Instant::now());
    assert!(started.map(|_| ()).unwrap_err().to_string().contains("cannot use the trusted certificates"));
}

#[test]
fn stopping_is_told() {
    let (mut alpha, mut beta) = friends();
    let mut world = World::new();
    let a = alpha.start(&mut world, &[&beta]);
    let b = beta.start(&mut world, &[]);
    world.both_up();
    world.control(a).stop();
    world.until("it is heard", |world| world.up(b).is_none());
    assert!(matches!(world.last_down(b), Some(End::Bye(why)) if why == "the bridge stops"));
}

#[test]
fn a_bridge_with_another_name_than_its_certificate_does_not_start() {
    let (alpha, beta) = friends();
    let start = |config: &Config| Control::with_listeners(config, Vec::new(), Instant::now()).map(|_| ());
    let mut config = alpha.config(&[&beta], None);
    start(&config).unwrap();
    config.name = Some("omega".parse().unwrap());
    assert!(start(&config).unwrap_err().to_string().contains("its certificate `alpha`"));
    let config = alpha.config(&[&alpha], None);
    assert!(start(&config).unwrap_err().to_string().contains("own name"));
    use std::os::unix::fs::PermissionsExt;
    let key = alpha.directory.path().join("own.key");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = format!("{:#}", start(&alpha.config(&[], None)).unwrap_err());
    assert!(error.contains("others have access"), "{error}");
}

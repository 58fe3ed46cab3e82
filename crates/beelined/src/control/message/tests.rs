//! The form of frames.

use beeline_topo::Protocol;

use super::*;

fn rail(id: u32) -> Rail {
    let description = PeerRail {
        name: format!("verbs/mlx5_{id}"),
        provider: "verbs".into(),
        protocol: Protocol::Roce,
        address: "10.0.0.1/24".parse().unwrap(),
        netdev: Some("eth0".into()),
        speed_mbps: Some(100_000),
        distance: None,
    };
    Rail { id, port: 4242, description }
}

fn frames() -> Vec<Frame> {
    vec![
        Frame::Hello(Hello {
            version: VERSION,
            name: "alpha".parse().unwrap(),
            instance: u64::MAX,
            speaks_for: vec!["10.0.0.0/24".parse().unwrap()],
            rails: vec![rail(1), rail(2)],
            token: Token::from_bytes([0xa5; 32]),
            measure_port: 7,
        }),
        Frame::Ping(Ping { n: 1 }),
        Frame::Pong(Ping { n: 1 }),
        Frame::Rails(Rails { rails: vec![rail(3)] }),
        Frame::LinkDown(LinkDown { link: 3, why: "flushed".into() }),
        Frame::Bye(Bye { why: "stopping".into() }),
    ]
}

#[test]
fn each_frame_survives() {
    for frame in frames() {
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }
}

#[test]
fn the_form_is_the_documented_one() {
    let texts: Vec<String> = frames()[1..].iter().map(|frame| String::from_utf8(frame.encode()).unwrap()).collect();
    assert_eq!(texts[0], r#"{"ping":{"n":1}}"#);
    assert_eq!(texts[3], r#"{"link_down":{"link":3,"why":"flushed"}}"#);
}

#[test]
fn unknown_members_are_errors_everywhere() {
    for (index, frame) in frames().iter().enumerate() {
        let text = String::from_utf8(frame.encode()).unwrap();
        for (at, _) in text.match_indices('{') {
            let (before, after) = text.split_at(at + 1);
            // Rails' descriptions are another crate's, which takes what later versions add.
            if before.ends_with("\"description\":{") {
                continue;
            }
            assert!(Frame::decode(format!("{before}\"x\":1,{after}").as_bytes()).is_err(), "{index} {at}");
        }
    }
    assert!(Frame::decode(br#"{"ping":{"n":1},"pong":{"n":1}}"#).is_err());
    assert!(Frame::decode(br#"{"ping":{"n":1,"n":2}}"#).is_err());
    assert!(Frame::decode(br#"{"ping":{"n":1}} "#).is_ok());
    assert!(Frame::decode(br#"{"ping":{"n":1}} x"#).is_err());
}

#[test]
fn the_version_is_found_in_hellos_of_any_version() {
    assert_eq!(Frame::hello_version(br#"{"hello":{"version":7,"new":[1]},"also":2}"#), Some(7));
    assert_eq!(Frame::hello_version(br#"{"ping":{"n":7}}"#), None);
    assert_eq!(Frame::hello_version(b"\xff"), None);
}

#[test]
fn offers_have_bounds() {
    assert!(check_rails(&[rail(1), rail(2)]).is_ok());
    assert!(check_rails(&[rail(1), rail(1)]).is_err());
    let many: Vec<Rail> = (0..=RAILS_MAX as u32).map(rail).collect();
    assert!(check_rails(&many).is_err());
    let mut long = rail(1);
    long.description.netdev = Some("x".repeat(257));
    assert!(check_rails(&[long]).is_err());
    let mut odd = rail(1);
    odd.description.name = "tcp\n".into();
    assert!(check_rails(&[odd]).is_err());
    let bye = Frame::Bye(Bye { why: shortened("ä".repeat(400)) });
    assert!(Frame::decode(&bye.encode()).is_ok());
    let moving = Frame::Bye(Bye { why: "no\x1b[2J".into() });
    assert_eq!(Frame::decode(&moving.encode()), Ok(Frame::Bye(Bye { why: "no?[2J".into() })));
    assert!(Frame::decode(&Frame::Bye(Bye { why: "x".repeat(513) }).encode()).is_err());
}

#[test]
fn tokens_are_compared_and_read_exactly_and_not_printed() {
    let token = Token::from_bytes([7; 32]);
    assert!(token.is(&[7; 32]));
    assert!(!token.is(&[7; 31]) && !token.is(&[7; 33]) && !token.is(&[0; 32]) && !token.is(&[]));
    assert_eq!(format!("{token:?}"), "Token(..)");
    let text = String::from(token);
    assert_eq!(Token::try_from(text.clone()), Ok(token));
    for bad in [&text[1..], &format!("{text}0"), &text.replace('7', "x"), &"A".repeat(64), &"+1".repeat(32)] {
        assert!(Token::try_from(bad.to_owned()).is_err(), "{bad}");
    }
}

proptest::proptest! {
    #[test]
    fn whatever_is_understood_is_said_again_in_the_same_way(index in 0..frames().len(), at: usize, value: u8) {
        let mut body = frames()[index].encode();
        let at = at % body.len();
        body[at] = value;
        let _ = Frame::hello_version(&body);
        if let Ok(frame) = Frame::decode(&body) {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
    }
}

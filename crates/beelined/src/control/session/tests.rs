//! The protocol of one connection, without a socket.

use super::*;
use crate::control::message::{Rails, Token};

const TIMEOUT: Duration = Duration::from_secs(5);

fn hello() -> Frame {
    Frame::Hello(Hello {
        version: VERSION,
        name: "beta".parse().unwrap(),
        instance: 7,
        speaks_for: vec!["10.0.0.2".parse().unwrap()],
        rails: Vec::new(),
        token: Token::from_bytes([1; 32]),
        measure_port: 7,
    })
}

fn bytes(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(frames.iter().all(|frame| frame::write(&mut out, &frame.encode())));
    out
}

/// All that a session makes of what it hears at one time.
fn hear(session: &mut Session, bytes: &[u8], now: Instant) -> Result<Vec<Heard>, End> {
    session.receive(bytes, now)?;
    let mut heard = Vec::new();
    while let Some(what) = session.next_heard(now)? {
        heard.push(what);
    }
    Ok(heard)
}

fn said(session: &mut Session) -> Vec<Frame> {
    let mut reader = frame::Reader::default();
    reader.push(session.outbox());
    session.outbox().clear();
    let mut frames = Vec::new();
    while let Some(body) = reader.next_body().unwrap() {
        frames.push(Frame::decode(body).unwrap());
    }
    frames
}

fn greeted(now: Instant) -> Session {
    let mut session = Session::new(now, TIMEOUT);
    assert_eq!(hear(&mut session, &bytes(&[hello()]), now).unwrap().len(), 1);
    session
}

#[test]
fn the_hello_comes_first_and_once() {
    let now = Instant::now();
    for frame in [Frame::Ping(Ping { n: 1 }), Frame::Rails(Rails { rails: Vec::new() })] {
        let mut session = Session::new(now, TIMEOUT);
        assert!(matches!(hear(&mut session, &bytes(&[frame]), now), Err(End::OutOfTurn(_))));
    }
    let mut session = greeted(now);
    assert!(matches!(hear(&mut session, &bytes(&[hello()]), now), Err(End::OutOfTurn(_))));
    let mut session = Session::new(now, TIMEOUT);
    let bye = Frame::Bye(Bye { why: "no".into() });
    assert!(matches!(hear(&mut session, &bytes(&[bye]), now), Err(End::Bye(why)) if why == "no"));
}

#[test]
fn another_version_is_told_whatever_else_its_hello_holds() {
    let now = Instant::now();
    let mut session = Session::new(now, TIMEOUT);
    let mut out = Vec::new();
    frame::write(&mut out, br#"{"hello":{"version":99,"cookies":[]}}"#);
    assert!(matches!(hear(&mut session, &out, now), Err(End::Version(99))));
}

#[test]
fn pings_are_answered_and_asked() {
    let start = Instant::now();
    let mut session = greeted(start);
    assert!(hear(&mut session, &bytes(&[Frame::Ping(Ping { n: 9 })]), start).unwrap().is_empty());
    assert_eq!(said(&mut session), [Frame::Pong(Ping { n: 9 })]);
    let now = start + PING_INTERVAL;
    assert_eq!(session.deadline(), now);
    session.tick(now).unwrap();
    session.tick(now).unwrap();
    assert_eq!(said(&mut session), [Frame::Ping(Ping { n: 1 })]);
    let later = now + Duration::from_millis(3);
    hear(&mut session, &bytes(&[Frame::Pong(Ping { n: 1 })]), later).unwrap();
    assert_eq!(session.round_trip(), Some(Duration::from_millis(3)));
    let made_up = Frame::Pong(Ping { n: 2 });
    assert!(matches!(hear(&mut session, &bytes(&[made_up]), later), Err(End::OutOfTurn(_))));
}

#[test]
fn silence_ends_it_and_any_frame_is_a_sign_of_life() {
    let start = Instant::now();
    let mut session = greeted(start);
    let before = start + TIMEOUT - Duration::from_millis(1);
    session.tick(before).unwrap();
    hear(&mut session, &bytes(&[Frame::Ping(Ping { n: 1 })]), before).unwrap();
    session.tick(start + TIMEOUT).unwrap();
    assert!(matches!(session.tick(before + TIMEOUT), Err(End::Silent)));
    let mut stranger = Session::new(start, TIMEOUT);
    // Half a frame is no sign of life.
    stranger.receive(&[9, 0, 0, 0, b'{'], before).unwrap();
    assert!(matches!(stranger.tick(start + TIMEOUT), Err(End::Slow)));
}

#[test]
fn floods_are_cut_off_and_what_a_bridge_says_is_not() {
    let start = Instant::now();
    let ping = Frame::Ping(Ping { n: 1 });
    let mut session = greeted(start);
    assert!(matches!(hear(&mut session, &bytes(&vec![ping.clone(); 1000]), start), Err(End::Flood)));
    let mut session = greeted(start);
    assert!(matches!(session.receive(&vec![0; 1 << 20], start), Err(End::Flood)));
    let mut session = greeted(start);
    for second in 0..100 {
        let now = start + Duration::from_secs(second);
        hear(&mut session, &bytes(&vec![ping.clone(); 50]), now).unwrap();
    }
}

#[test]
fn who_does_not_read_is_cut_off() {
    let now = Instant::now();
    let mut session = greeted(now);
    let frame = Frame::Bye(Bye { why: "x".repeat(500) });
    let sent = std::iter::repeat_with(|| session.send(&frame)).take_while(Result::is_ok).count();
    assert!((1000..2000).contains(&sent), "{sent}");
    assert!(session.outbox().len() < OUTBOX_BYTES_MAX + frame::BODY_BYTES_MAX);
}

proptest::proptest! {
    #[test]
    fn however_a_stream_is_cut_the_same_is_heard(cuts in proptest::collection::vec(0_usize..400, 0..6)) {
        let now = Instant::now();
        let stream = bytes(&[hello(), Frame::Ping(Ping { n: 1 }), Frame::Rails(Rails { rails: Vec::new() })]);
        let whole = hear(&mut Session::new(now, TIMEOUT), &stream, now).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % stream.len()).chain([0, stream.len()]).collect();
        cuts.sort_unstable();
        let mut session = Session::new(now, TIMEOUT);
        let mut heard = Vec::new();
        for pair in cuts.windows(2) {
            heard.extend(hear(&mut session, &stream[pair[0]..pair[1]], now).unwrap());
        }
        assert_eq!(heard, whole);
        assert_eq!(said(&mut session), [Frame::Pong(Ping { n: 1 })]);
    }

    #[test]
    fn mutated_streams_do_no_harm(damage in proptest::collection::vec((0_usize..600, proptest::prelude::any::<u8>()), 1..4)) {
        let now = Instant::now();
        let mut stream = bytes(&[hello(), Frame::Ping(Ping { n: 1 }), Frame::Rails(Rails { rails: Vec::new() })]);
        for (at, value) in damage {
            let at = at % stream.len();
            stream[at] = value;
        }
        let mut session = Session::new(now, TIMEOUT);
        match hear(&mut session, &stream, now) {
            Ok(heard) => assert!(heard.len() <= 3),
            Err(end) => assert!(!end.to_string().is_empty()),
        }
        assert!(session.outbox().len() < 1000);
    }
}

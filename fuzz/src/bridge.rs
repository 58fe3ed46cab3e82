//! What strangers say to a bridge.

use std::time::{Duration, Instant, SystemTime};

use beelined::control::message::{Bye, Frame, Hello, Message, Ping, LinkDown, Rails, Token, VERSION};
use beelined::control::session::{Heard, OUTBOX_BYTES_MAX, Session};
use beelined::control::{end::End, frame};
use beelined::keys::{ADDRESSES_MAX, Certificate};

/// A connection survives anything: what was understood could have been said, and what waits to be sent is bounded. The
/// bytes are tried as a body, as a stream, and as a stream behind a right hello.
pub fn control(bytes: &[u8]) {
    let _ = Frame::hello_version(bytes);
    if let Ok(frame) = Frame::decode(bytes) {
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }
    let mut behind = stream(&[hello()]);
    behind.extend(bytes);
    for bytes in [bytes, &behind] {
        let now = Instant::now();
        let mut session = Session::new(now, Duration::from_secs(5));
        let end = hear(&mut session, bytes, now);
        assert!(end.is_none_or(|end| !end.to_string().is_empty()));
        assert!(session.outbox().len() <= OUTBOX_BYTES_MAX + frame::BODY_BYTES_MAX);
        assert!(session.deadline() > now);
    }
}

fn hear(session: &mut Session, bytes: &[u8], now: Instant) -> Option<End> {
    let mut greeted = false;
    for piece in bytes.chunks(97) {
        if let Err(end) = session.receive(piece, now) {
            return Some(end);
        }
        loop {
            match session.next_heard(now) {
                Err(end) => return Some(end),
                Ok(None) => break,
                Ok(Some(Heard::Hello(hello))) => {
                    assert!(!std::mem::replace(&mut greeted, true) && hello.version == VERSION);
                }
                Ok(Some(Heard::Message(message))) => {
                    assert!(greeted);
                    if let Message::Rails(rails) = message {
                        assert!(beelined::control::message::check_rails(&rails.rails).is_ok());
                    }
                }
            }
        }
    }
    None
}

/// A certificate that can be read is within bounds, and is its bytes and no others.
pub fn certificate(bytes: &[u8]) {
    if let Ok(certificate) = Certificate::from_der(bytes.to_vec().into()) {
        assert!(certificate.is(bytes) && certificate.addresses.len() <= ADDRESSES_MAX);
        assert!(!certificate.addresses.iter().any(|prefix| prefix.contains([127, 0, 0, 1].into())));
        let _ = certificate.is_valid_at(SystemTime::now());
    }
    let _ = Certificate::from_pem(&String::from_utf8_lossy(bytes));
}

fn hello() -> Frame {
    Frame::Hello(Hello {
        version: VERSION,
        name: "beta".parse().expect("a name"),
        instance: 7,
        speaks_for: vec!["10.0.0.2".parse().expect("an address")],
        rails: Vec::new(),
        token: Token::from_bytes([1; 32]),
    })
}

fn stream(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        assert!(frame::write(&mut out, &frame.encode()));
    }
    out
}

/// One right message of each kind, for the smoke test.
pub fn beginnings() -> Vec<Vec<u8>> {
    // A file, since a new key would not come from the seed.
    let pem = include_str!("../fixtures/alpha.crt");
    let certificate = Certificate::from_pem(pem).expect("a certificate");
    let frames = [
        Frame::Ping(Ping { n: 1 }),
        Frame::Rails(Rails { rails: Vec::new() }),
        Frame::LinkDown(LinkDown { link: 3, why: "flushed".into() }),
        Frame::Bye(Bye { why: "no".into() }),
    ];
    let mut beginnings: Vec<Vec<u8>> = frames.iter().map(Frame::encode).collect();
    beginnings.extend([hello().encode(), stream(&frames), stream(&[hello(), frames[1].clone()])]);
    beginnings.extend([certificate.der().to_vec(), pem.as_bytes().to_vec()]);
    beginnings
}

//! What the fuzzer and the smoke test do with arbitrary bytes: one function a decoder.
//!
//! Each function feeds the bytes to a decoder and then checks what must hold for whatever came out. It
//! panics when that does not hold; the decoder itself must never panic.

#[cfg(feature = "bridge")]
pub mod bridge;

use beeline_stats::layout::{HEADER_BYTES, MAGIC, SLOT_BYTES, VERSION};
use beeline_stats::{Counter, Poison, Reason, Role, Snapshot, Tunables};
use beeline_wire::again::AGAIN;
use beeline_wire::diag::ListenerQuery;
use beeline_wire::names::{ConnName, DoorName};
use beeline_wire::route::RouteQuery;
use beeline_wire::{Again, Endpoint, Hello};

/// A decoder under test.
pub type Target = fn(&[u8]);

/// All of them, by the names of their fuzz targets.
pub const TARGETS: &[(&str, Target)] = &[
    ("hello", hello),
    ("names", names),
    ("diag", diag),
    ("route", route),
    ("snapshot", snapshot),
    ("tunables", tunables),
    #[cfg(feature = "bridge")]
    ("control", bridge::control),
    #[cfg(feature = "bridge")]
    ("certificate", bridge::certificate),
];

/// What decodes is exactly what would have been sent, as a hello and as one that is said again. The bytes are tried as
/// they are, and behind a right magic number and version, which a fuzzer rarely guesses.
pub fn hello(bytes: &[u8]) {
    const GUESSED: usize = 10;
    let right = Hello { reuse: false, ring_bytes: 1 << 20, generation: 0, pid_hint: 0, lane_inode: 0, held: None };
    let behind = [&right.encode()[..GUESSED], bytes].concat();
    for bytes in [bytes, &behind] {
        if let Ok(hello) = Hello::decode(bytes) {
            assert_eq!(hello.encode(), bytes);
        }
    }
    let behind = [&[AGAIN], bytes].concat();
    for message in [bytes, &behind].iter().filter_map(|bytes| bytes.first_chunk()) {
        if let Some(again) = Again::decode(message) {
            assert_eq!(again.encode(), *message);
        }
    }
}

/// A name that parses is the only name of its value.
pub fn names(bytes: &[u8]) {
    if let Some(conn) = ConnName::parse(bytes) {
        assert_eq!(conn.encode().as_bytes(), bytes);
        assert_eq!(Endpoint::new(conn.client.address()), conn.client);
        assert_eq!(Endpoint::new(conn.server.address()), conn.server);
    }
    if let Some(door) = DoorName::parse(bytes) {
        assert_eq!(DoorName::encode(door.cookie).as_bytes(), bytes);
    }
}

const SEQUENCE: u32 = 1;
const PORT_ID: u32 = 2;

/// An answer belongs to its question.
pub fn diag(bytes: &[u8]) {
    for destination in ["127.0.0.1:80", "[::1]:80"] {
        let destination = destination.parse().expect("an address");
        let query = ListenerQuery::new(destination, None);
        if let Ok(listener) = query.decode(bytes, SEQUENCE, PORT_ID) {
            assert_eq!(listener.local.port(), 80);
            assert!(listener.cookie != 0 && listener.cookie != u64::MAX);
        }
    }
}

/// An answer is of the family of its question.
pub fn route(bytes: &[u8]) {
    for destination in ["10.0.0.1:0", "[::1]:0"] {
        let destination: std::net::SocketAddr = destination.parse().expect("an address");
        let query = RouteQuery::new(destination);
        if let Ok(route) = query.decode(bytes, SEQUENCE, PORT_ID) {
            assert!(route.source.is_none_or(|ip| ip.is_ipv4() == destination.is_ipv4()));
        }
    }
}

/// Whatever a process wrote can be read to the end. The bytes are tried as they are, and as the slots
/// behind a right header, which is too long for a fuzzer to guess.
pub fn snapshot(bytes: &[u8]) {
    let mut behind = vec![0; HEADER_BYTES];
    behind[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    behind[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    behind[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
    behind[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
    behind[44..48].copy_from_slice(&(SLOT_BYTES as u32).to_ne_bytes());
    behind.extend(bytes);
    assert!(Snapshot::parse(&behind).is_ok());
    for bytes in [bytes, &behind] {
        read_snapshot(bytes);
    }
}

fn read_snapshot(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::parse(bytes) else {
        return;
    };
    assert!(snapshot.program().len() <= 64);
    assert!(snapshot.connections().count() <= bytes.len() / SLOT_BYTES);
    for counter in Counter::ALL {
        let _ = snapshot.counter(*counter);
    }
    for reason in Reason::ALL {
        let _ = snapshot.reason(Role::Client, *reason);
        let _ = snapshot.reason(Role::Server, *reason);
    }
    for poison in Poison::ALL {
        let _ = snapshot.poison(*poison);
    }
}

/// A list without an error means the same when it is given twice.
pub fn tunables(bytes: &[u8]) {
    let (tunables, error) = Tunables::parse_env(bytes);
    if let Some(error) = error {
        assert!(error.offset <= bytes.len());
    } else {
        let twice = [bytes, b",", bytes].concat();
        assert_eq!(Tunables::parse_env(&twice), (tunables, None));
    }
    assert!(tunables.ring_bytes.is_power_of_two());
}

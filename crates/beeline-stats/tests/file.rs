//! Writer and reader of the statistics file against each other.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use beeline_stats::layout::{ConnectionSlot, FileName, HEADER_BYTES, Opening, SLOT_BYTES, StatsHeader};
use beeline_stats::{Connection, Counter, LayoutError, Poison, Reason, Role, Snapshot};
use proptest::prelude::*;

/// A file as a process would have it mapped.
#[repr(C)]
struct File {
    header: StatsHeader,
    slots: [ConnectionSlot; 4],
}

fn new_file() -> Box<File> {
    // SAFETY: all fields are integer atomics, for which all-zero bytes are valid.
    Box::new(unsafe { std::mem::zeroed() })
}

fn bytes_of(file: &File) -> Vec<u8> {
    // SAFETY: the structure has no padding (its parts have the sizes asserted in `layout`), the
    // bytes are copied before anything else changes them, and no other thread has the file.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(file).cast::<u8>(), size_of::<File>()) }.to_vec()
}

fn opening(local: &str, remote: &str) -> Opening {
    Opening {
        fd: 7,
        role: Role::Server,
        local: local.parse().unwrap(),
        remote: remote.parse().unwrap(),
        peer_pid: 99,
        opened_unix_ns: 5,
        lane_inode: 6,
        own: [2, 0, 9],
    }
}

const NAME: FileName = FileName { pid: 42, start_ticks: 1_234_567 };

#[test]
fn what_is_written_is_read() {
    let file = new_file();
    file.header.publish(NAME, 1000, 77, b"redis-server");
    file.header.add(Counter::BytesSent, 10);
    file.header.add(Counter::HiddenFds, 3);
    file.header.subtract(Counter::HiddenFds, 1);
    file.header.fell_back(Role::Client, Reason::NoDoor);
    file.header.fell_back(Role::Server, Reason::CameOverTcp);
    file.header.poisoned(Poison::BadBellByte);
    assert_eq!(Snapshot::parse(&bytes_of(&file)).unwrap().stopped(), None);
    file.header.stop(Reason::RawSystemCalls);
    assert!(file.slots[0].try_take());
    assert!(!file.slots[0].try_take());
    file.slots[0].open(&opening("127.0.0.1:80", "10.0.0.2:4000"));
    file.slots[0].tx_bytes.store(11, Ordering::Relaxed);
    assert!(file.slots[2].try_take());
    file.slots[2].open(&opening("[2001:db8::1]:80", "[::1]:65535"));
    file.slots[2].rx_bytes.store(12, Ordering::Relaxed);
    file.header.raise_high_water(3);

    let bytes = bytes_of(&file);
    let snapshot = Snapshot::parse(&bytes).unwrap();
    assert_eq!((snapshot.pid(), snapshot.uid()), (42, 1000));
    assert_eq!((snapshot.start_ticks(), snapshot.created_unix_ns()), (1_234_567, 77));
    assert_eq!(snapshot.program(), b"redis-server");
    assert_eq!(snapshot.counter(Counter::BytesSent), 10);
    assert_eq!(snapshot.counter(Counter::HiddenFds), 2);
    assert_eq!(snapshot.counter(Counter::ConnectionsFallenBackClient), 1);
    assert_eq!(snapshot.reason(Role::Client, Reason::NoDoor), 1);
    assert_eq!(snapshot.reason(Role::Server, Reason::NoDoor), 0);
    assert_eq!(snapshot.reason(Role::Server, Reason::CameOverTcp), 1);
    assert_eq!(snapshot.poison(Poison::BadBellByte), 1);
    assert_eq!(snapshot.stopped(), Some(Reason::RawSystemCalls));
    let connections: Vec<Connection> = snapshot.connections().collect();
    assert_eq!(connections.len(), 2);
    assert_eq!(connections[0].local, "127.0.0.1:80".parse::<SocketAddr>().unwrap());
    assert_eq!(connections[0].remote, "10.0.0.2:4000".parse::<SocketAddr>().unwrap());
    assert_eq!((connections[0].fd, connections[0].tx_bytes), (7, 11));
    assert_eq!((connections[0].role, connections[0].peer_pid), (Role::Server, 99));
    assert_eq!(connections[1].local, "[2001:db8::1]:80".parse::<SocketAddr>().unwrap());
    assert_eq!(connections[1].remote, "[::1]:65535".parse::<SocketAddr>().unwrap());
    assert_eq!(connections[1].rx_bytes, 12);
    assert_eq!((connections[0].slot, connections[1].slot), (0, 2));
}

#[test]
fn what_was_set_is_read_and_what_is_impossible_is_nothing() {
    use beeline_stats::tunables::{OptionSpec, Tunables, Value, option, said};
    let file = new_file();
    file.header.publish(NAME, 0, 0, b"");
    for (place, word) in file.header.options.iter().zip(Tunables::DEFAULT.words()) {
        place.store(word, Ordering::Relaxed);
    }
    file.header.said.store(said(b"stats=on,wait=lazy,nonsense=1"), Ordering::Relaxed);
    file.header.settings[option::wait.index()].store(2, Ordering::Relaxed);
    file.header.settings[option::spin_ns_max.index()].store(10_000_002, Ordering::Relaxed);
    file.header.rules.store(3, Ordering::Relaxed);
    assert!(file.slots[0].try_take());
    file.slots[0].open(&opening("127.0.0.1:80", "10.0.0.2:4000"));
    file.header.raise_high_water(1);
    let bytes = bytes_of(&file);
    let snapshot = Snapshot::parse(&bytes).unwrap();
    let (wait, spin) = (option::wait.index(), option::spin_ns_max.index());
    assert_eq!(snapshot.option(wait), Some(Value::Choice("lazy")));
    assert_eq!((snapshot.was_said(wait), snapshot.was_said(spin)), (true, false));
    assert_eq!(snapshot.setting(wait), Some(Value::Choice("poll")));
    assert_eq!(snapshot.setting(spin), None);
    assert_eq!((snapshot.option(63), snapshot.setting(63), snapshot.was_said(63)), (None, None, false));
    assert_eq!(snapshot.rules(), 3);
    let connection = snapshot.connections().next().unwrap();
    assert_eq!(connection.own(option::wait.place()), Some(Value::Choice("poll")));
    assert_eq!(connection.own(option::spin_ns_max.place()), None);
    assert_eq!(connection.own(2), None, "no option has this place");
    for spec in OptionSpec::all() {
        let word = spec.kind.word_of_text(spec.default.to_string().as_bytes());
        assert_eq!(word.and_then(|word| spec.kind.value_of_word(word)), Some(spec.default), "{}", spec.key);
    }
    let turns = OptionSpec::all()[option::turn_bytes.index()].kind;
    for (text, word, value) in [
        ("auto", 1, Some(Value::Choice("auto"))),
        ("off", 2, Some(Value::Choice("off"))),
        ("16K", 16_385, Some(Value::Number(16_384))),
    ] {
        assert_eq!((turns.word_of_text(text.as_bytes()), turns.value_of_word(word)), (Some(word), value), "{text}");
    }
    for impossible in [0, 3, 16_384, 8_388_610] {
        assert_eq!(turns.value_of_word(impossible), None, "{impossible}");
    }
}

#[test]
fn a_closed_connection_moves_into_the_totals() {
    let file = new_file();
    file.header.publish(NAME, 0, 0, b"");
    assert!(file.slots[1].try_take());
    file.slots[1].open(&opening("127.0.0.1:1", "127.0.0.1:2"));
    file.slots[1].tx_bytes.store(100, Ordering::Relaxed);
    file.slots[1].rx_bells.store(3, Ordering::Relaxed);
    file.slots[1].close(&file.header);
    file.header.raise_high_water(2);
    let bytes = bytes_of(&file);
    let snapshot = Snapshot::parse(&bytes).unwrap();
    assert_eq!(snapshot.connections().count(), 0);
    assert_eq!(snapshot.counter(Counter::BytesSent), 100);
    assert_eq!(snapshot.counter(Counter::DoorbellsDrained), 3);
    assert_eq!(snapshot.counter(Counter::ConnectionsClosed), 1);
    assert!(file.slots[1].try_take());
}

#[test]
fn a_program_name_of_full_length_needs_no_nul() {
    let file = new_file();
    file.header.publish(NAME, 0, 0, &[b'x'; 80]);
    let bytes = bytes_of(&file);
    assert_eq!(Snapshot::parse(&bytes).unwrap().program(), &[b'x'; 64]);
}

#[test]
fn damaged_headers_are_refused_with_their_reason() {
    let file = new_file();
    assert_eq!(Snapshot::parse(&bytes_of(&file)).unwrap_err(), LayoutError::Magic);
    file.header.publish(NAME, 0, 0, b"");
    let good = bytes_of(&file);
    assert_eq!(Snapshot::parse(&good[..HEADER_BYTES - 1]).unwrap_err(), LayoutError::Short);
    assert_eq!(Snapshot::parse(&[]).unwrap_err(), LayoutError::Short);
    let changed = |offset: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        Snapshot::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(changed(8, u32::from(u16::MAX)), LayoutError::Version(u32::from(u16::MAX)));
    for offset in [12, 44, 48, 52, 56] {
        assert_eq!(changed(offset, u32::MAX), LayoutError::Sizes);
    }
}

#[test]
fn slots_are_read_no_further_than_the_file_and_the_claim() {
    let file = new_file();
    file.header.publish(NAME, 0, 0, b"");
    for slot in &file.slots {
        assert!(slot.try_take());
        slot.open(&opening("127.0.0.1:1", "127.0.0.1:2"));
    }
    file.header.raise_high_water(u32::MAX);
    let bytes = bytes_of(&file);
    assert_eq!(Snapshot::parse(&bytes).unwrap().connections().count(), 4);
    let cut = &bytes[..HEADER_BYTES + 2 * SLOT_BYTES + 5];
    assert_eq!(Snapshot::parse(cut).unwrap().connections().count(), 2);
    assert_eq!(Snapshot::parse(&bytes[..HEADER_BYTES]).unwrap().connections().count(), 0);
}

proptest! {
    #[test]
    fn any_content_is_survived(noise in prop::collection::vec((0..HEADER_BYTES + 4 * SLOT_BYTES, any::<u8>()), 0..200), cut in 0..HEADER_BYTES + 4 * SLOT_BYTES) {
        let file = new_file();
        file.header.publish(NAME, 0, 0, b"name");
        file.header.raise_high_water(4);
        let mut bytes = bytes_of(&file);
        for (offset, byte) in noise {
            bytes[offset] = byte;
        }
        for part in [&bytes[..], &bytes[..cut]] {
            if let Ok(snapshot) = Snapshot::parse(part) {
                let _ = snapshot.program();
                let _ = snapshot.connections().count();
                for reason in Reason::ALL {
                    let _ = snapshot.reason(Role::Client, *reason);
                }
            }
        }
    }
}

//! What a process that is killed in the middle of a call leaves to its siblings and to the peer.

use beeline_lane::End;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::Acquire;
use loom::thread;

use super::calls::Ended;
use super::model::{Holder, Lane};
use super::{check, prefill, stream};

/// A holder of the writing side is killed at any step of a `send`; a second one goes on.
#[test]
fn a_writer_killed_at_any_step_leaves_a_lane_that_its_sibling_can_use() {
    a_killed_writer_has_a_sibling(Holder::new);
}

fn a_killed_writer_has_a_sibling(reader: fn(&Arc<Lane>, End) -> Holder) {
    for step in 0..12 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| assert!(mortal.send(&[1, 2])));
                assert!(Holder::new(&mortal.lane, End::Client).send(&[9]));
            });
            let server = reader(&lane, End::Server);
            let mut bytes = Vec::new();
            while bytes.last() != Some(&9) {
                bytes.extend(server.recv_all(1).0);
            }
            assert!(bytes == [9] || bytes == [1, 2, 9], "step {step}: {bytes:?}");
            thread.join().unwrap();
        });
    }
}

/// As above, with a reader that takes its bells out before it arms.
#[test]
fn a_writer_killed_at_any_step_leaves_no_lone_reader_asleep() {
    a_killed_writer_has_a_sibling(Holder::alone);
}

/// A writer is killed while it goes to sleep on a full ring; its sibling sleeps there, too, and the reader
/// reads twice and never touches the lane again.
#[test]
fn a_writer_killed_while_plugging_leaves_its_sibling_awake() {
    for step in 2..10 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Client, step);
            let mortal = thread::spawn(move || {
                mortal.lives_through(|| assert!(mortal.send(&[9])));
            });
            let sibling = Holder::new(&lane, End::Client);
            let sibling = thread::spawn(move || assert!(sibling.send(&[8])));
            let server = Holder::new(&lane, End::Server);
            for _ in 0..2 {
                let mut buffer = [0; 8];
                assert!(matches!(server.recv(&mut buffer), Ended::Bytes(_)));
            }
            mortal.join().unwrap();
            sibling.join().unwrap();
        });
    }
}

/// The peer is killed at any step of going to sleep on a full ring: its bytes are read, although nobody
/// can be told of the room any more.
#[test]
fn a_peer_killed_while_waiting_for_room_leaves_its_bytes() {
    for step in 0..12 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.send(&[16]);
                });
                mortal.close();
            });
            let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(99);
            thread.join().unwrap();
            let published = (lane.fronts[0].cursor.load(Acquire) >> 32) as u8;
            assert_eq!((bytes, ended), (stream(0..published), Some(Ended::Gone)));
        });
    }
}

/// A holder of the reading side is killed at any step of a `recv` that sleeps; a second one goes on.
#[test]
fn a_reader_killed_at_any_step_leaves_a_lane_that_its_sibling_can_use() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.recv_all(2);
                });
                // What the dead one had taken is gone with it; what follows is not.
                let sibling = Holder::new(&mortal.lane, End::Server);
                let mut last = sibling.recv_all(1).0;
                while last != [3] {
                    let next = sibling.recv_all(1).0;
                    assert_eq!(next[0], last[0] + 1);
                    last = next;
                }
            });
            let writer = Holder::new(&lane, End::Client);
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2, 3]));
            thread.join().unwrap();
        });
    }
}

/// A reader is killed between taking bytes and saying so, while the writer waits for room.
#[test]
fn a_reader_killed_while_it_makes_room_leaves_the_writer_to_its_sibling() {
    for step in 0..12 {
        check(1, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    let mut buffer = [0; 16];
                    assert_eq!(mortal.recv(&mut buffer), Ended::Bytes(16));
                });
                let sibling = Holder::new(&mortal.lane, End::Server);
                while sibling.recv_all(1).0 != [16] {}
            });
            assert!(Holder::new(&lane, End::Client).send(&[16]));
            thread.join().unwrap();
        });
    }
}

/// The peer's last holder is killed at any step of a `send`: exactly what it published is read.
#[test]
fn a_peer_killed_while_sending_leaves_its_published_bytes() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.send(&[1, 2]);
                    mortal.send(&[3]);
                });
                mortal.close();
            });
            let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(9);
            thread.join().unwrap();
            let published = (lane.fronts[0].cursor.load(Acquire) >> 32) as u8;
            assert_eq!((bytes, ended), (stream(1..published + 1), Some(Ended::Gone)));
        });
    }
}

/// The peer's last holder is killed at any step of a `recv`: a sender never sleeps for ever.
#[test]
fn a_peer_killed_while_receiving_ends_a_send() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.recv_all(12);
                });
                mortal.close();
            });
            Holder::new(&lane, End::Client).send(&stream(0..18));
            thread.join().unwrap();
        });
    }
}

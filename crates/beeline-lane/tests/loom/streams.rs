//! Bytes arrive whole and in order, and the stream ends after them.

use beeline_lane::{Armed, End, Since};
use loom::thread;

use super::calls::Ended;
use super::model::{Holder, Lane};
use super::{check, prefill, stream};

#[test]
fn a_stream_longer_than_the_ring_arrives_whole() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 14);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&stream(14..24)));
        });
        let (bytes, _) = Holder::new(&lane, End::Server).recv_all(24);
        assert_eq!(bytes, stream(0..24));
        thread.join().unwrap();
    });
}

#[test]
fn question_and_answer_use_both_directions_and_rewind() {
    check(2, || {
        let lane = Lane::new();
        let server = Holder::new(&lane, End::Server);
        let thread = thread::spawn(move || {
            for round in 0..2 {
                assert_eq!(server.recv_all(2).0, [round, 7]);
                assert!(server.send(&[round + 10]));
            }
        });
        let client = Holder::new(&lane, End::Client);
        for round in 0..2 {
            assert!(client.send(&[round, 7]));
            assert_eq!(client.recv_all(1).0, [round + 10]);
        }
        thread.join().unwrap();
    });
}

/// A look may find the echo of a reply whose cursor is not there yet. What it says is used all the same.
#[test]
fn an_echo_that_runs_ahead_of_its_cursor_orders_reads_before_reuse() {
    check(2, || {
        let lane = Lane::new();
        let server = Holder::new(&lane, End::Server);
        let thread = thread::spawn(move || {
            assert_eq!(server.recv_all(1).0, [1]);
            assert!(server.send(&[7]));
            assert_eq!(server.recv_all(1).0, [2]);
        });
        let client = Holder::new(&lane, End::Client);
        assert!(client.send(&[1]));
        client.reading(|reader| reader.unread()).unwrap();
        assert!(client.send(&[2]));
        thread.join().unwrap();
    });
}

#[test]
fn close_after_send_delivers_all_then_the_end() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1, 2]));
            writer.finish();
            writer.close();
        });
        let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(9);
        assert_eq!((bytes, ended), (vec![1, 2], Some(Ended::Eof)));
        thread.join().unwrap();
    });
}

#[test]
fn close_of_the_reader_ends_a_blocked_send() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(!writer.send(&stream(0..17)));
        });
        Holder::new(&lane, End::Server).close();
        thread.join().unwrap();
    });
}

/// Rule 4 of the ring: once before the word is stored, and once behind the fence.
#[test]
fn who_arms_looks_at_the_peers_cursor_twice() {
    loom::model(|| {
        let lane = Lane::new();
        prefill(&lane, 1);
        let server = Holder::new(&lane, End::Server);
        assert_eq!(server.reading(|reader| reader.arm(Since::Tail(1), &server)), Ok(Armed::Sleep));
        assert_eq!(server.looks.get(), 2);
    });
}

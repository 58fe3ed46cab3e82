//! Whoever sleeps is woken for what it waits for.

use beeline_lane::{Armed, End, Since, Sink, Sleeping, flags};
use loom::thread;

use super::calls::Ended;
use super::model::{Holder, Lane};
use super::{check, prefill, stream};

/// The ring runs empty and full: the reader sleeps for data, and the producer rewinds.
#[test]
fn a_sleeping_reader_is_woken_by_each_message() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2, 3]));
        });
        let (bytes, _) = Holder::new(&lane, End::Server).recv_all(3);
        assert_eq!(bytes, [1, 2, 3]);
        thread.join().unwrap();
        assert!(lane.kernel.lock().unwrap().ends[1].queued <= 3);
    });
}

/// As above, by a reader that takes its bells out before it arms, as nobody else sleeps there: none of them is that of
/// the arming.
#[test]
fn a_lone_reader_that_takes_its_bells_out_first_is_woken_by_each_message() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2, 3]));
            writer.finish();
            writer.close();
        });
        let (bytes, ended) = Holder::alone(&lane, End::Server).recv_all(9);
        assert_eq!((bytes, ended), (vec![1, 2, 3], Some(Ended::Eof)));
        thread.join().unwrap();
    });
}

/// Writers that share an end ring at the same time, and in any order.
#[test]
fn a_lone_reader_is_woken_by_each_of_two_writers() {
    check(2, || {
        let lane = Lane::new();
        let writers = [1, 2].map(|byte| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || assert!(writer.send(&[byte])))
        });
        let (mut bytes, _) = Holder::alone(&lane, End::Server).recv_all(2);
        bytes.sort_unstable();
        assert_eq!(bytes, [1, 2]);
        writers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_sleeping_writer_is_woken_by_room() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[16]));
        });
        // Exactly half of the ring is read, in small steps, and then nothing any more: that must do.
        let server = Holder::new(&lane, End::Server);
        for _ in 0..2 {
            let mut buffer = [0; 4];
            assert_eq!(server.recv(&mut buffer), Ended::Bytes(4));
        }
        thread.join().unwrap();
    });
}

/// The reader looks while the ring is half empty, and copies while the writer fills it and goes to sleep.
#[test]
fn a_reader_that_looked_before_the_ring_was_full_still_wakes_the_writer() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 7);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&stream(7..17)));
        });
        let mut buffer = [0; 7];
        assert_eq!(Holder::new(&lane, End::Server).recv(&mut buffer), Ended::Bytes(7));
        thread.join().unwrap();
    });
}

#[test]
fn two_waiting_readers_share_what_comes() {
    check(2, || {
        let lane = Lane::new();
        let readers = [0, 1].map(|_| {
            let reader = Holder::new(&lane, End::Server);
            thread::spawn(move || {
                let mut byte = [0];
                assert_eq!(reader.recv(&mut byte), Ended::Bytes(1));
                byte[0]
            })
        });
        let writer = Holder::new(&lane, End::Client);
        assert!(writer.send(&[1]));
        assert!(writer.send(&[2]));
        let mut bytes = readers.map(|thread| thread.join().unwrap());
        bytes.sort_unstable();
        assert_eq!(bytes, [1, 2]);
    });
}

/// The other end's anchor stays as it is: its flag and one bell are all that tells.
fn two_waiting_readers_both_hear(what: u32) {
    check(3, move || {
        let lane = Lane::new();
        let readers = [0, 1].map(|_| {
            let reader = Holder::new(&lane, End::Server);
            thread::spawn(move || reader.await_end())
        });
        Holder::new(&lane, End::Client).end_and_keep(what);
        readers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_waiting_readers_both_hear_of_a_close_that_the_kernel_does_not_tell() {
    two_waiting_readers_both_hear(flags::FIN | flags::CLOSED);
}

#[test]
fn two_waiting_readers_both_hear_of_an_end_that_the_kernel_does_not_tell() {
    two_waiting_readers_both_hear(flags::FIN);
}

/// Whichever comes first: it sees what the peer has said, or the peer that it stands no more.
#[test]
fn who_gives_its_standing_up_for_a_sleep_is_told_by_the_kernel() {
    check(3, || {
        let lane = Lane::new();
        let ends = [End::Server, End::Client].map(|end| Holder::new(&lane, end));
        ends.iter().for_each(|end| end.say(flags::STANDS));
        let [server, client] = ends;
        let sleeper = thread::spawn(move || server.await_end_by_kernel());
        client.finish_standing();
        sleeper.join().unwrap();
    });
}

/// As [`two_waiting_readers_both_see_the_end`], where the byte's bell and one for the end are all that tells.
#[test]
fn two_waiting_readers_both_see_an_end_that_the_kernel_does_not_tell() {
    two_waiting_readers_both_see_what(|writer| writer.end_and_keep(flags::FIN));
}

#[test]
fn two_waiting_readers_both_see_the_end() {
    two_waiting_readers_both_see_what(Holder::finish);
}

fn two_waiting_readers_both_see_what(ends: impl Fn(&Holder) + Sync + Send + 'static) {
    check(2, move || {
        let lane = Lane::new();
        let readers = [0, 1].map(|_| {
            let reader = Holder::new(&lane, End::Server);
            thread::spawn(move || reader.recv_all(9))
        });
        let writer = Holder::new(&lane, End::Client);
        assert!(writer.send(&[1]));
        ends(&writer);
        let results = readers.map(|thread| thread.join().unwrap());
        assert!(results.iter().all(|(_, ended)| *ended == Some(Ended::Eof)));
        assert_eq!(results.iter().map(|(bytes, _)| bytes.len()).sum::<usize>(), 1);
    });
}

/// A second holder wakes, arms, drains and loses interest, whatever it was told. The first, which sleeps
/// in the kernel all the time, is nevertheless woken for the byte.
#[test]
fn a_holder_that_arms_and_leaves_takes_no_wake_up_with_it() {
    check(3, || {
        let lane = Lane::new();
        let sleeper = Holder::new(&lane, End::Server);
        let sleeper = thread::spawn(move || {
            let mut byte = [0];
            assert_eq!(sleeper.recv(&mut byte), Ended::Bytes(1));
        });
        let passer = Holder::new(&lane, End::Server);
        let passer = thread::spawn(move || {
            for _ in 0..2 {
                passer.side().rx.note_bell();
                passer.reading(|reader| reader.arm(Since::Read, &passer)).unwrap();
            }
        });
        assert!(Holder::new(&lane, End::Client).send(&[1]));
        sleeper.join().unwrap();
        passer.join().unwrap();
    });
}

/// As above with an edge-triggered holder, which leaves the byte unread.
#[test]
fn an_edge_triggered_holder_leaves_level_triggered_ones_awake() {
    check(2, || {
        let lane = Lane::new();
        let sleeper = Holder::new(&lane, End::Server);
        let sleeper = thread::spawn(move || {
            let mut byte = [0];
            assert_eq!(sleeper.recv(&mut byte), Ended::Bytes(1));
        });
        let edge = Holder::new(&lane, End::Server);
        let edge = thread::spawn(move || {
            let tail = edge.reading(|reader| reader.tail());
            edge.side().rx.note_bell();
            let _ = edge.reading(|reader| reader.arm(Since::Tail(tail), &edge)).unwrap();
        });
        assert!(Holder::new(&lane, End::Client).send(&[1]));
        sleeper.join().unwrap();
        edge.join().unwrap();
    });
}

/// An edge-triggered waiter that reads nothing learns of every tail, in the end of the last.
#[test]
fn an_edge_triggered_waiter_learns_of_news_beside_unread_data() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 1);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2]));
        });
        let waiter = Holder::new(&lane, End::Server);
        let mut reported = 1;
        while reported != 3 {
            let armed = waiter.reading(|reader| reader.arm(Since::Tail(reported), &waiter)).unwrap();
            if armed == Armed::Sleep {
                waiter.sleep_edge();
                waiter.side().rx.note_bell();
            }
            reported = waiter.reading(|reader| reader.tail());
        }
        thread.join().unwrap();
    });
}

/// Reads as whoever is told of each bell once, and leaves the bells where they lie (rule 9 of waking a reader).
fn receive_by_edges(reader: &Holder, count: usize) -> Vec<u8> {
    let by_edges = Sleeping { number: 0, by_edges: true };
    let mut got = Vec::new();
    while got.len() < count {
        let mut bytes = [0; 4];
        match reader.reading(|half| half.read(Sink::from(&mut bytes[..]), reader)).unwrap() {
            0 if reader.reading(|half| half.arm_for(Since::Read, by_edges, reader)) == Ok(Armed::Sleep) => {
                reader.sleep_edge();
                reader.side().rx.note_bell();
            }
            length => got.extend_from_slice(&bytes[..length]),
        }
    }
    got
}

#[test]
fn who_is_told_of_each_bell_once_may_leave_it_where_it_lies() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            for byte in 1..4 {
                assert!(writer.send(&[byte]));
            }
        });
        assert_eq!(receive_by_edges(&Holder::new(&lane, End::Server), 3), [1, 2, 3]);
        thread.join().unwrap();
    });
}

/// What it has left there is counted by whoever arms next, who sleeps as long as any lies there.
#[test]
fn bells_that_were_left_wake_nobody_else_for_ever() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            for byte in 1..4 {
                assert!(writer.send(&[byte]));
            }
        });
        let server = Holder::new(&lane, End::Server);
        let mut bytes = receive_by_edges(&server, 1);
        bytes.extend(server.recv_all(3 - bytes.len()).0);
        assert_eq!(bytes, [1, 2, 3]);
        thread.join().unwrap();
    });
}

/// Bells that lie there keep the writer plugged, and the reader takes all but one of them out for it.
#[test]
fn a_writer_finds_room_beside_bells_that_were_left() {
    check(2, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[0]));
            assert!(writer.send(&stream(1..20)));
        });
        assert_eq!(receive_by_edges(&Holder::new(&lane, End::Server), 20), stream(0..20));
        thread.join().unwrap();
    });
}

/// Both writers get on although the reader reads once and never touches the lane again.
#[test]
fn two_waiting_writers_both_find_the_room() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writers = [0, 1].map(|_| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || {
                assert!(writer.send(&[99]));
            })
        });
        let mut buffer = [0; 12];
        assert_eq!(Holder::new(&lane, End::Server).recv(&mut buffer), Ended::Bytes(12));
        for thread in writers {
            thread.join().unwrap();
        }
    });
}

/// As above for processes that arm when they do not have the lock any more.
#[test]
fn two_processes_that_wait_for_room_both_find_it() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writers = [0, 1].map(|_| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || {
                assert!(writer.send_beside_others(&[99]));
            })
        });
        let mut buffer = [0; 12];
        assert_eq!(Holder::new(&lane, End::Server).recv(&mut buffer), Ended::Bytes(12));
        for thread in writers {
            thread.join().unwrap();
        }
    });
}

/// Processes that ring when they do not have the lock any more.
#[test]
fn what_two_processes_send_wakes_the_reader() {
    check(2, || {
        let lane = Lane::new();
        let writers = [1, 2].map(|byte| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || {
                assert!(writer.send_beside_others(&[byte]));
            })
        });
        let (mut bytes, _) = Holder::new(&lane, End::Server).recv_all(2);
        bytes.sort_unstable();
        assert_eq!(bytes, [1, 2]);
        for thread in writers {
            thread.join().unwrap();
        }
    });
}

/// A reader that goes to sleep itself tells the writer even of the smallest step across the threshold.
#[test]
fn a_reader_that_sleeps_beside_unread_data_tells_of_room() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 13);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            // A poller that wants to know when there is room.
            while writer.writing(|end| end.arm(&writer)).unwrap() == Armed::Sleep {
                writer.sleep_writable();
            }
        });
        let server = Holder::new(&lane, End::Server);
        let mut buffer = [0];
        assert_eq!(server.recv(&mut buffer), Ended::Bytes(1));
        let armed = server.reading(|reader| reader.arm(Since::Tail(13), &server)).unwrap();
        assert_eq!(armed, Armed::Sleep);
        thread.join().unwrap();
    });
}

/// On one CPU: the writer sleeps for its turn with no time limit, so a word that nobody looks at would be for ever.
#[test]
fn a_writer_that_waits_for_its_turn_is_woken_by_a_reader_that_sleeps() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 8);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || writer.send_in_turns(&stream(8..12), 8));
        let (bytes, _) = Holder::new(&lane, End::Server).recv_all(12);
        assert_eq!(bytes, stream(0..12));
        thread.join().unwrap();
    });
}

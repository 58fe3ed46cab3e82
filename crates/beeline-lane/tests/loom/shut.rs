//! An end that is shut: what it says is found, and who waits for it gets on.

use beeline_lane::{Armed, End, Since, Source, flags};
use loom::thread;

use super::calls::Ended;
use super::model::{Holder, Lane};
use super::{check, prefill};

/// Rule 6 of waking a writer. The end reads what lay there, and never touches the lane again.
#[test]
fn a_writer_finds_the_room_that_an_end_makes_which_reads_no_more() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || assert!(writer.send(&[16])));
        let server = Holder::new(&lane, End::Server);
        server.shut(flags::SHUT_RD);
        let mut buffer = [0; 12];
        assert_eq!(server.recv(&mut buffer), Ended::Bytes(12));
        server.settle();
        thread.join().unwrap();
        // Those of one arming, before the writer found that, and one for the byte.
        let sent = lane.kernel.lock().unwrap().ends[0].sent;
        assert!(sent <= 5, "{sent} bells");
    });
}

/// As above for two writers, of which one may have plugged the anchor before, and the other joins it or takes the plug
/// away.
#[test]
fn two_writers_find_the_room_that_an_end_makes_which_reads_no_more() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writers = [0, 1].map(|_| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || assert!(writer.send_beside_others(&[99])))
        });
        let server = Holder::new(&lane, End::Server);
        server.shut(flags::SHUT_RD);
        let mut buffer = [0; 12];
        assert_eq!(server.recv(&mut buffer), Ended::Bytes(12));
        server.settle();
        for thread in writers {
            thread.join().unwrap();
        }
    });
}

/// Nobody would find the bells that who waits for room leaves at its peer.
#[test]
fn who_waits_for_room_leaves_no_bells_at_an_end_that_reads_no_more() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let before = lane.kernel.lock().unwrap().ends[0].sent;
        Holder::new(&lane, End::Server).shut(flags::SHUT_RD);
        assert_eq!(writer.writing(|end| end.arm(&writer)), Ok(Armed::Sleep));
        assert_eq!(lane.kernel.lock().unwrap().ends[0].sent, before);
    });
}

/// Sends a byte as the sockets do. Whether it went the short way, which looks at no flag.
fn sends_shortly(writer: &Holder, byte: u8) -> bool {
    writer.writing(|end| {
        let shortly = end.write_small(Source::from(&[byte][..]), writer);
        if !shortly {
            assert_eq!(end.write(Source::from(&[byte][..]), writer), Ok(1));
        }
        shortly
    })
}

/// Rule 6 of waking a reader. Writes that are under way may have found the end as it was; none that comes later does.
#[test]
fn who_writes_to_an_end_that_was_shut_both_ways_finds_that() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            sends_shortly(&writer, 1);
            sends_shortly(&writer, 2);
        });
        Holder::new(&lane, End::Server).shut(flags::SHUT_BOTH);
        thread.join().unwrap();
        assert!(!sends_shortly(&Holder::new(&lane, End::Client), 3));
    });
}

/// As above, while a poller of the same end arms, and takes out what it was rung.
#[test]
fn an_end_that_was_shut_both_ways_stays_armed_for_a_poller_that_goes() {
    check(2, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let writing = thread::spawn(move || {
            sends_shortly(&writer, 1);
        });
        let poller = Holder::new(&lane, End::Server);
        let polling = thread::spawn(move || {
            poller.reading(|reader| {
                let _ = reader.arm(Since::Tail(0), &poller).unwrap();
            });
        });
        let server = Holder::new(&lane, End::Server);
        server.shut(flags::SHUT_BOTH);
        polling.join().unwrap();
        server.reading(|reader| reader.drain_bells(&server)).unwrap();
        writing.join().unwrap();
        assert!(!sends_shortly(&Holder::new(&lane, End::Client), 2));
    });
}

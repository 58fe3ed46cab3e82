//! Who watches several connections learns which of them had news first.

use beeline_lane::End;
use loom::sync::Arc;
use loom::thread;

use super::check;
use super::model::{Holder, Lane};

/// The server's end of a lane, which asks for stamps.
fn watched(lane: &Arc<Lane>) -> Holder {
    let server = Holder::new(lane, End::Server);
    server.side().rx.ask_order(&&server, End::Server);
    server
}

#[test]
fn of_two_lanes_that_have_news_the_first_has_the_older_stamp() {
    check(2, || {
        let lanes = [(); 2].map(|()| Lane::new());
        let [first, second] = [0, 1].map(|index| watched(&lanes[index]));
        let writers = [0, 1].map(|index| Holder::new(&lanes[index], End::Client));
        let thread = thread::spawn(move || writers.map(|writer| assert!(writer.send(&[1]))));
        assert_eq!(second.recv_all(1).0, [1]);
        assert!(first.reading(|reader| reader.has_news()));
        let stamps = [&first, &second].map(Holder::peer_stamp);
        assert!(0 < stamps[0] && stamps[0] < stamps[1], "{stamps:?}");
        thread.join().unwrap();
    });
}

/// Whether the reader sleeps for the second question or is still awake then, and whoever has cleared its word.
#[test]
fn each_question_is_stamped() {
    check(2, || {
        let lane = Lane::new();
        let server = watched(&lane);
        let client = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(client.send(&[1]));
            assert_eq!(client.recv_all(1).0, [7]);
            assert!(client.send(&[2]));
        });
        assert_eq!(server.recv_all(1).0, [1]);
        let first = server.peer_stamp();
        assert!(server.send(&[7]));
        assert_eq!(server.recv_all(1).0, [2]);
        let second = server.peer_stamp();
        assert!(0 < first && first < second, "{first}, {second}");
        thread.join().unwrap();
    });
}

/// A reader that asks while it is about to sleep is told from the arming after that one on, at the latest.
#[test]
fn an_end_that_asks_for_stamps_beside_an_arming_has_them_after_the_next() {
    check(3, || {
        let lane = Lane::new();
        let sleeper = Holder::new(&lane, End::Server);
        let thread = thread::spawn(move || assert_eq!(sleeper.recv_all(2).0, [1, 2]));
        let asking = Holder::new(&lane, End::Server);
        let writer = Holder::new(&lane, End::Client);
        asking.side().rx.ask_order(&&asking, End::Server);
        assert!(writer.send(&[1]));
        assert!(writer.send(&[2]));
        thread.join().unwrap();
        let news = asking.reading(|reader| reader.arm(beeline_lane::Since::Read, &asking)).unwrap();
        assert_eq!(news, beeline_lane::Armed::Sleep);
        asking.reading(|reader| reader.drain_bells(&asking)).unwrap();
        let before = lane.fronts[0].stamp.load(loom::sync::atomic::Ordering::Relaxed);
        assert!(writer.send(&[3]));
        assert!(before < lane.fronts[0].stamp.load(loom::sync::atomic::Ordering::Relaxed));
    });
}

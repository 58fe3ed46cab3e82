//! Who gets what lies in a ring: the server that takes the hello, or the other way that the client goes.

use beeline_lane::offer;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Release};
use loom::thread;

/// A lane that is offered, and the bytes in it, which loom watches.
struct Offered {
    word: AtomicU32,
    bytes: UnsafeCell<u8>,
}

// SAFETY: loom checks at run time that no two accesses race.
unsafe impl Sync for Offered {}
// SAFETY: as above.
unsafe impl Send for Offered {}

impl Offered {
    fn new() -> Arc<Self> {
        Self::with(offer::OFFERED)
    }

    fn with(word: u32) -> Arc<Self> {
        Arc::new(Self { word: AtomicU32::new(word), bytes: UnsafeCell::new(0) })
    }

    /// Reads, and leaves the ring as a reader does: nobody else may be at it.
    fn consume(&self) {
        // SAFETY: loom reports whoever has access at the same time.
        self.bytes.with_mut(|byte| unsafe { *byte += 1 });
    }

    fn serve(&self) -> bool {
        let taken = offer::take(&self.word);
        if taken {
            self.consume();
        }
        taken
    }

    fn withdraw(&self) -> bool {
        let withdrawn = offer::withdraw(&self.word);
        if withdrawn {
            self.consume();
        }
        withdrawn
    }
}

#[test]
fn one_of_both_gets_the_bytes() {
    loom::model(|| {
        let lane = Offered::new();
        let server = {
            thread::spawn({
                let lane = lane.clone();
                move || lane.serve()
            })
        };
        let withdrawn = lane.withdraw();
        let taken = server.join().unwrap();
        assert!(taken != withdrawn, "taken {taken}, withdrawn {withdrawn}");
    });
}

/// Two processes have the anchor of a server that has forked, or two think that they have.
#[test]
fn one_of_two_servers_gets_them() {
    loom::model(|| {
        let lane = Offered::new();
        let servers = [(); 2].map(|()| {
            thread::spawn({
                let lane = lane.clone();
                move || lane.serve()
            })
        });
        let withdrawn = lane.withdraw();
        let taken = servers.map(|server| server.join().unwrap());
        let all = taken.into_iter().chain([withdrawn]).filter(|got| *got).count();
        assert_eq!(all, 1);
    });
}

/// The client finds no other way, offers the lane again, and withdraws once more when the server has sent it away
/// meanwhile.
#[test]
fn an_offer_that_is_made_again_is_taken_or_withdrawn_in_the_end() {
    loom::model(|| {
        let lane = Offered::new();
        let server = thread::spawn({
            let lane = lane.clone();
            move || lane.serve()
        });
        let mut withdrawn = false;
        if offer::withdraw(&lane.word) {
            offer::offer_again(&lane.word);
            withdrawn = lane.withdraw();
        }
        let taken = server.join().unwrap();
        // A server that looked in between has closed the anchor.
        let sent_away = !taken && !withdrawn;
        assert!(!(taken && withdrawn));
        if sent_away {
            assert!(lane.withdraw());
        }
    });
}

/// The client's bytes are there for a server that has taken the lane, and what a server that died in between has seen
/// is nothing.
#[test]
fn who_withdraws_after_the_servers_end_knows_what_it_did() {
    loom::model(|| {
        let lane = Offered::new();
        let dies_first = thread::spawn({
            let lane = lane.clone();
            move || offer::take(&lane.word)
        });
        // The kernel's report of its end orders what it did before.
        let taken = dies_first.join().unwrap();
        assert_eq!(lane.withdraw(), !taken);
    });
}

const NAMED: u32 = offer::named(5);

/// A hello is said by the client or heard without, and what the client has written before is there for who hears it.
#[test]
fn a_hello_is_said_or_heard_and_not_both() {
    loom::model(|| {
        let lane = Offered::with(offer::WITHDRAWN);
        let server = thread::spawn({
            let lane = lane.clone();
            move || {
                let heard = offer::hear(&lane.word, NAMED);
                (heard, heard && lane.serve())
            }
        });
        lane.consume();
        lane.word.store(NAMED, Release);
        let said = offer::say(&lane.word);
        let (heard, served) = server.join().unwrap();
        assert!(said != heard, "said {said}, heard {heard}");
        assert_eq!(served, heard);
        assert!(said == lane.withdraw(), "who was not heard has the lane");
    });
}

/// The client gives up at the door, while the server hears it, and takes the lane.
#[test]
fn who_gives_up_unsaid_has_the_lane_or_the_server_has() {
    loom::model(|| {
        let lane = Offered::with(NAMED);
        let server = thread::spawn({
            let lane = lane.clone();
            move || offer::hear(&lane.word, NAMED) && lane.serve()
        });
        let ours = offer::take_back(&lane.word);
        if ours {
            lane.consume();
        }
        assert!(ours != server.join().unwrap());
        assert!(!offer::say(&lane.word));
    });
}

/// What is known by another name is not heard.
#[test]
fn another_name_is_not_heard() {
    loom::model(|| {
        let lane = Offered::with(NAMED);
        assert!(!offer::hear(&lane.word, offer::named(6)));
        assert!(offer::say(&lane.word));
        assert!(!offer::hear(&lane.word, NAMED) && lane.serve());
    });
}

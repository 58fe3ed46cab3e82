//! Who serves a client that says hello again where several processes take a listener's clients: the server that it has
//! claimed.

use beeline_lane::seat::{self, Rise};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

const EMPTY: u32 = 5 << 2 | 1;

/// A lane that nobody uses. Its memory is the client's from its claim on, and the server's once it finds itself claimed
/// and has had the hello.
struct Kept {
    seat: AtomicU32,
    memory: UnsafeCell<u8>,
    /// What the kernel's socket is to both: the hello.
    hello: loom::sync::Mutex<bool>,
}

// SAFETY: loom checks at run time that no two accesses race.
unsafe impl Sync for Kept {}
// SAFETY: as above.
unsafe impl Send for Kept {}

impl Kept {
    fn new() -> Arc<Self> {
        let seat = AtomicU32::new(seat::NONE);
        seat::place(&seat, seat::empty(EMPTY));
        Arc::new(Self { seat, memory: UnsafeCell::new(0), hello: loom::sync::Mutex::new(false) })
    }

    /// Whether the client has the server.
    fn claim(&self) -> bool {
        let claimed = seat::claim(&self.seat);
        if claimed {
            // SAFETY: loom reports whoever has access at the same time.
            self.memory.with_mut(|byte| unsafe { *byte += 1 });
            *self.hello.lock().unwrap() = true;
        }
        claimed
    }

    /// Waits once. Whether it had a client, and served it.
    fn wait(&self) -> (bool, bool) {
        seat::sit(&self.seat, EMPTY);
        let claimed = seat::rise(&self.seat, EMPTY) == Rise::Claimed;
        let served = claimed && *self.hello.lock().unwrap();
        if served {
            // SAFETY: as above.
            self.memory.with_mut(|byte| unsafe { *byte += 1 });
        }
        (claimed, served)
    }
}

#[test]
fn a_server_that_goes_knows_whether_it_has_a_client() {
    loom::model(|| {
        let kept = Kept::new();
        let client = thread::spawn({
            let kept = kept.clone();
            move || kept.claim()
        });
        let (claimed, served) = kept.wait();
        let has_server = client.join().unwrap();
        assert!(has_server == claimed, "the client: {has_server}, the server: {claimed}");
        assert!(!served || claimed);
    });
}

/// One that waits again is no other's: a claim of the first wait counts, and nobody claims between the two.
#[test]
fn nobody_claims_who_is_at_something_else() {
    loom::model(|| {
        let kept = Kept::new();
        let client = thread::spawn({
            let kept = kept.clone();
            move || kept.claim()
        });
        let (claimed, _) = kept.wait();
        let at_work = seat::rise(&kept.seat, EMPTY) == Rise::Claimed;
        let has_server = client.join().unwrap();
        assert!(at_work == claimed && has_server == claimed);
    });
}

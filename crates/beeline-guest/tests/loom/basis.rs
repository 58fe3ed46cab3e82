//! What `src/changing/seats.rs` stands on, for loom.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use loom::lazy_static;
use loom::sync::{Condvar, Mutex};

pub(super) use loom::sync::atomic::{AtomicU32, fence};

/// The kernel's queue of those who nap.
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

lazy_static! {
    static ref FUTEX: Futex = Futex { lock: Mutex::new(()), woken: Condvar::new() };
}

/// As `lock::await_owner`, of a thread that lives: naps until the word is not its present owner's any more.
pub(super) fn await_owner(word: &AtomicU32, waiters: &AtomicU32) -> Result<(), u32> {
    let owner = word.load(Acquire);
    while owner != 0 && word.load(Acquire) == owner {
        waiters.fetch_add(1, Relaxed);
        {
            let napping = FUTEX.lock.lock().unwrap();
            // futex(2) makes what came before visible, and looks at the word under its own lock.
            fence(SeqCst);
            if word.load(Relaxed) == owner {
                drop(FUTEX.woken.wait(napping).unwrap());
            }
        }
        waiters.fetch_sub(1, Relaxed);
    }
    Ok(())
}

pub(super) fn wake(_: &AtomicU32) {
    let _napping = FUTEX.lock.lock().unwrap();
    FUTEX.woken.notify_all();
}

//! Changes of what fd numbers lead to.
//!
//! What leads from fd numbers to descriptions changes under [`changing`]: it is outermost in the lock order,
//! and a `fork` holds it from before to after, so that a child never inherits half a change.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::lock::{Guard, Lock};
use crate::thread;

static CHANGE: Lock = Lock::new();

/// The thread that holds [`CHANGE`], 0 if none.
static CHANGER: AtomicU32 = AtomicU32::new(0);

/// Permission to change what fd numbers lead to.
#[must_use]
pub struct Changing {
    guard: Option<Guard<'static>>,
}

/// Keeps other changes and forks out for as long as the result lives. Taken before any other lock; nests.
pub fn changing() -> Changing {
    let tid = thread::tid();
    if CHANGER.load(Relaxed) == tid {
        return Changing { guard: None };
    }
    let guard = CHANGE.lock();
    CHANGER.store(tid, Relaxed);
    Changing { guard: Some(guard) }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.guard.is_some() {
            CHANGER.store(0, Relaxed);
        }
    }
}

/// In the child of a `fork`: its only thread may change.
pub fn reset_after_fork() {
    CHANGE.reset();
}

//! What calls of the program look after for the process while they wait, or have nothing to report: hellos that nobody
//! has taken yet (`offers` of beeline-sockets).
//!
//! There is no thread of ours that could. So every call comes by here that could wait or look, in layers which know
//! nothing of what there is to do. Mostly there is nothing, and then it costs one load.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::static_ref::StaticRef;

/// What there is to do.
pub struct Upkeep {
    /// Until when a wait of this process may sleep without looking after it, on `CLOCK_MONOTONIC`.
    pub due_ns: fn() -> Option<u64>,
    /// Does what is due. Whether there was anything. No lock may be held.
    pub look_after: fn() -> bool,
    /// Whether something is due.
    pub is_due: fn() -> bool,
}

/// Whether there is anything to do, now or later.
static ANY: AtomicBool = AtomicBool::new(false);
static UPKEEP: StaticRef<Upkeep> = StaticRef::none();

/// There is something to do from now on.
pub fn begin(upkeep: &'static Upkeep) {
    UPKEEP.store(Some(upkeep), Release);
    ANY.store(true, Relaxed);
}

/// Whether there is anything left to do.
pub fn goes_on(any: bool) {
    if ANY.load(Relaxed) != any {
        ANY.store(any, Relaxed);
    }
}

#[cold]
fn upkeep() -> Option<&'static Upkeep> {
    UPKEEP.load(Acquire)
}

/// See [`Upkeep::due_ns`].
#[inline]
pub fn due_ns() -> Option<u64> {
    if ANY.load(Relaxed) { upkeep().and_then(|upkeep| (upkeep.due_ns)()) } else { None }
}

/// See [`Upkeep::look_after`].
#[inline]
pub fn look_after() -> bool {
    ANY.load(Relaxed) && upkeep().is_some_and(|upkeep| (upkeep.look_after)())
}

/// See [`Upkeep::is_due`].
#[inline]
pub fn is_due() -> bool {
    ANY.load(Relaxed) && upkeep().is_some_and(|upkeep| (upkeep.is_due)())
}

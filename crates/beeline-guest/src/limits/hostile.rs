//! Doors that are shut because clients were hostile, and for how long.
//!
//! Any user of the host can be hostile, so what it costs a server ends: the first time after a minute, the next time
//! after twice as long, up to a day. What such clients have left behind for good grows no faster than that.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long doors stay shut at first, and at most.
const PAUSE_NS_MIN: u64 = 60_000_000_000;
const PAUSE_NS_MAX: u64 = 24 * 60 * PAUSE_NS_MIN;

pub(super) struct Pause {
    /// Until when; 0 if never yet.
    until_ns: AtomicU64,
    /// How often there was one.
    count: AtomicU64,
}

impl Pause {
    pub(super) const fn new() -> Self {
        Self { until_ns: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    /// Clients have been hostile. What they do while the doors are shut counts once.
    pub(super) fn begin(&self, now_ns: u64) {
        let until_ns = self.until_ns.load(Relaxed);
        if now_ns < until_ns {
            return;
        }
        let doublings = self.count.load(Relaxed).min(16);
        let next_ns = now_ns.saturating_add((PAUSE_NS_MIN << doublings).min(PAUSE_NS_MAX));
        if self.until_ns.compare_exchange(until_ns, next_ns, Relaxed, Relaxed).is_ok() {
            self.count.fetch_add(1, Relaxed);
        }
    }

    /// Whether it lasts. The clock is asked only if there ever was one.
    #[inline]
    pub(super) fn lasts(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until_ns = self.until_ns.load(Relaxed);
        until_ns != 0 && now_ns() < until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_are_shut_for_a_minute_then_twice_as_long_and_never_for_more_than_a_day() {
        let pause = Pause::new();
        assert!(!pause.lasts(|| unreachable!("nothing has happened")));
        let mut now_ns = 7;
        for minutes in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440, 1440] {
            pause.begin(now_ns);
            let end_ns = now_ns + minutes * PAUSE_NS_MIN;
            assert!(pause.lasts(|| now_ns));
            // Clients that were in the queue already.
            pause.begin(end_ns - 1);
            assert!(pause.lasts(|| end_ns - 1), "{minutes}");
            assert!(!pause.lasts(|| end_ns), "{minutes}");
            now_ns = end_ns + 5;
        }
    }
}

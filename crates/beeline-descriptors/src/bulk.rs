//! How long messages are copied into the ring: through the caches or around them.
//!
//! What the reader has just read lies in its cache. Where both CPUs share a cache behind that, fetching the lines from
//! there is the fastest way (34 GB/s against 13 around the caches on an EPYC); between two complexes of one chip it is the
//! slowest (2.4 GB/s against 14), and a virtual machine is moved from one to the other. So both ways are tried while the
//! connection runs:
//!
//! 1. Time is taken of whole sends, with what they wait for room, and added up over windows of [`WINDOW_BYTES`].
//! 2. Now and then one window is sent the other way. If that costs less than three quarters, it is the way from then on;
//!    if not, the next trial comes after twice as many windows, up to [`PAUSE_MAX`].
//! 3. A window that costs twice as much as those before it is followed by a trial: something has changed.
//!
//! All of it is only a choice of speed: concurrent senders may spoil each other's figures, and nothing else.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_shm::HAS_COPY_AROUND;

/// The shortest message for which there is a choice.
pub const BULK_BYTES: usize = 16 * 1024;
const WINDOW_BYTES: u64 = 512 * 1024;
/// Windows between the first trials.
const PAUSE_MIN: u32 = 8;
/// Windows between trials that keep failing: a gigabyte.
const PAUSE_MAX: u32 = 2048;

/// What a sender knows of its ways. Valid when zeroed.
#[derive(Debug, Default)]
pub struct Bulk {
    /// Whether the usual way is around the caches.
    around: AtomicBool,
    /// Whether the present window goes the other way.
    trial: AtomicBool,
    /// Ticks and bytes of the present window.
    ticks: AtomicU64,
    bytes: AtomicU64,
    /// What a window of the usual way costs, in ticks for [`WINDOW_BYTES`]; 0 before the first.
    cost: AtomicU64,
    /// Windows before the next trial.
    left: AtomicU32,
    /// Windows between the last trial and the next.
    pause: AtomicU32,
}

impl Bulk {
    /// Begins anew, for another connection.
    pub fn reset(&self) {
        for flag in [&self.around, &self.trial] {
            flag.store(false, Relaxed);
        }
        for figure in [&self.ticks, &self.bytes, &self.cost] {
            figure.store(0, Relaxed);
        }
        self.pause.store(PAUSE_MIN, Relaxed);
        self.left.store(PAUSE_MIN, Relaxed);
    }

    /// Whether the next message is to be copied around the caches.
    #[inline]
    pub fn goes_around(&self) -> bool {
        HAS_COPY_AROUND && self.around.load(Relaxed) != self.trial.load(Relaxed)
    }

    /// A send of so many bytes took so long.
    pub fn sent(&self, bytes: usize, ticks: u64) {
        let bytes = self.bytes.load(Relaxed).saturating_add(bytes as u64);
        let ticks = self.ticks.load(Relaxed).saturating_add(ticks);
        if bytes < WINDOW_BYTES {
            self.bytes.store(bytes, Relaxed);
            self.ticks.store(ticks, Relaxed);
            return;
        }
        self.bytes.store(0, Relaxed);
        self.ticks.store(0, Relaxed);
        let cost = (u128::from(ticks) * u128::from(WINDOW_BYTES) / u128::from(bytes)) as u64;
        self.window(cost.max(1));
    }

    fn window(&self, cost: u64) {
        let usual = self.cost.load(Relaxed);
        if self.trial.swap(false, Relaxed) {
            let better = cost < usual - usual / 4;
            let pause = match better {
                true => PAUSE_MIN,
                false => self.pause.load(Relaxed).saturating_mul(2).min(PAUSE_MAX),
            };
            if better {
                self.around.store(!self.around.load(Relaxed), Relaxed);
                self.cost.store(cost, Relaxed);
            }
            self.pause.store(pause, Relaxed);
            self.left.store(pause, Relaxed);
            return;
        }
        let left = match self.left.load(Relaxed) {
            _ if usual != 0 && cost / 2 > usual => 0,
            left => left.saturating_sub(1),
        };
        self.cost.store(if usual == 0 { cost } else { usual - usual / 8 + cost / 8 }, Relaxed);
        self.left.store(left, Relaxed);
        self.trial.store(left == 0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `windows` windows on a machine where a window costs so much; returns how many went around the caches.
    fn run(bulk: &Bulk, windows: u32, through: u64, around: u64) -> u32 {
        let mut went_around = 0;
        for _ in 0..windows {
            for _ in 0..WINDOW_BYTES / BULK_BYTES as u64 {
                let cost = if bulk.goes_around() { around } else { through };
                bulk.sent(BULK_BYTES, cost * BULK_BYTES as u64 / WINDOW_BYTES);
            }
            went_around += u32::from(bulk.goes_around());
        }
        went_around
    }

    #[test]
    fn the_cheaper_way_is_taken_and_a_move_is_noticed() {
        let bulk = Bulk::default();
        bulk.reset();
        assert!(run(&bulk, 1000, 40_000, 100_000) < 10);
        if HAS_COPY_AROUND {
            // To another complex, and back.
            assert!(run(&bulk, 1000, 600_000, 100_000) > 980);
            assert!(run(&bulk, 1000, 600_000, 100_000) > 980);
            assert!(run(&bulk, 3000, 40_000, 100_000) < 2500);
            assert!(run(&bulk, 1000, 40_000, 100_000) < 10);
        }
    }

    #[test]
    fn trials_that_fail_become_rare() {
        let bulk = Bulk::default();
        bulk.reset();
        run(&bulk, 5000, 40_000, 100_000);
        assert!(run(&bulk, 20_000, 40_000, 100_000) <= 12);
        // A difference too small to be sure of changes nothing.
        assert!(run(&bulk, 20_000, 40_000, 35_000) <= 12);
    }
}

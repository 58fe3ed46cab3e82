//! Sleeps that end at once with nothing to tell.
//!
//! A bell that wakes a thread may be one that others need: bytes that are fewer than it waits for, on a connection that
//! processes share. It is there to stay, and the thread would be woken again and again.

use crate::kernel;
use crate::wait::ticks;

/// How often a call is woken in vain before it rests.
const VAIN_MAX: u32 = 256;
/// Ticks within which one sleep in vain follows the other: some 0.2 ms.
const SOON_TICKS: u64 = 500_000;

/// The sleeps of one call.
#[derive(Default)]
pub(super) struct Vain {
    count: u32,
    last: u64,
}

impl Vain {
    /// One more has ended. After many the thread rests for a moment before it looks again. Whether it has.
    pub(super) fn count(&mut self) -> bool {
        let now = ticks();
        self.count = if now.wrapping_sub(self.last) < SOON_TICKS { self.count.saturating_add(1) } else { 0 };
        self.last = now;
        let rests = self.count >= VAIN_MAX;
        if rests {
            kernel::sleep_ms();
            self.last = ticks();
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_woken_in_vain_again_and_again_rests() {
        let mut vain = Vain::default();
        let began = kernel::now_ns();
        for _ in 0..VAIN_MAX * 2 {
            // As if it had followed at once, however busy the machine is.
            vain.last = ticks();
            let _ = vain.count();
        }
        let rested_ns = u64::from(VAIN_MAX) * 1_000_000;
        assert!(kernel::now_ns().saturating_sub(began) >= rested_ns / 2);
        vain.last = vain.last.wrapping_sub(SOON_TICKS);
        assert!(!vain.count());
        assert_eq!(vain.count, 0, "a while later");
    }
}

//! Which fd numbers are ours and hidden from the app.
//!
//! An app that closes all fds it does not know (`closefrom`, loops over the limit) must not close ours, and
//! must not learn of them: to it such a number is not open. One bit for each number, in memory that is never
//! touched where no bit was set.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_stats::Counter;

use crate::stats;
use crate::table::FDS;

static BITS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];
static COUNT: AtomicU32 = AtomicU32::new(0);

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((BITS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Says that `fd` is ours.
pub fn hidden_add(fd: i32) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_or(bit, Relaxed) & bit == 0
    {
        COUNT.fetch_add(1, Relaxed);
        stats::count_if_open(Counter::HiddenFds);
    }
}

/// Says that `fd` is no longer ours. To be called before it is closed: afterwards the number may be the app's.
pub fn hidden_remove(fd: i32) {
    if let Some((word, bit)) = place(fd)
        && word.fetch_and(!bit, Relaxed) & bit != 0
    {
        COUNT.fetch_sub(1, Relaxed);
        stats::uncount_if_open(Counter::HiddenFds);
    }
}

/// How many are ours.
pub(crate) fn hidden_count() -> u32 {
    COUNT.load(Relaxed)
}

/// Whether `fd` is ours.
#[must_use]
#[inline]
pub fn is_hidden(fd: i32) -> bool {
    COUNT.load(Relaxed) != 0 && place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// The first hidden fd in `first..=last`.
pub(super) fn next_hidden(first: u32, last: u32) -> Option<u32> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    let last = last.min(FDS as u32 - 1);
    let mut fd = first;
    while fd <= last {
        let rest = BITS.get(fd as usize / 64)?.load(Relaxed) >> (fd % 64);
        if rest != 0 {
            let found = fd + rest.trailing_zeros();
            return (found <= last).then_some(found);
        }
        fd = (fd / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_numbers_are_found_in_order() {
        for fd in [100_000, 100_063, 100_064, 300_000] {
            hidden_add(fd);
        }
        assert!(is_hidden(100_063) && !is_hidden(100_062) && !is_hidden(-1) && !is_hidden(i32::MAX));
        assert_eq!(next_hidden(90_000, u32::MAX), Some(100_000));
        assert_eq!(next_hidden(100_001, u32::MAX), Some(100_063));
        assert_eq!(next_hidden(100_064, 100_064), Some(100_064));
        assert_eq!(next_hidden(100_065, 200_000), None);
        for fd in [100_000, 100_063, 100_064, 300_000] {
            hidden_remove(fd);
        }
        assert_eq!(next_hidden(90_000, u32::MAX), None);
    }
}

//! Descriptors of ours that are put aside: each close of one may take as long as somebody likes, the last one or not.
//!
//! A file of a FUSE file system is such a one, as each close is a question to whoever serves it. A stranger may send
//! it; it keeps its number, hidden, for as long as the process lives.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// As many as can be hidden.
const FDS: usize = 1 << 20;

static BITS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];
/// Above all of them.
static END: AtomicU32 = AtomicU32::new(0);

/// Notes that nobody closes `fd`.
pub fn put(fd: i32) {
    let Ok(number) = u32::try_from(fd) else { return };
    if let Some(word) = BITS.get(number as usize / 64) {
        word.fetch_or(1 << (number % 64), Relaxed);
        END.fetch_max(number.saturating_add(1), Relaxed);
    }
}

/// The first such number that is not below `from`.
pub fn next(from: u32) -> Option<u32> {
    let end = END.load(Relaxed);
    let mut number = from;
    while number < end {
        let rest = BITS.get(number as usize / 64)?.load(Relaxed) >> (number % 64);
        if rest != 0 {
            return Some(number.saturating_add(rest.trailing_zeros()));
        }
        number = (number / 64).saturating_add(1).saturating_mul(64);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_aside_is_found_in_its_order() {
        assert_eq!(next(0), None);
        [-1, 700_001, 700_064, 700_127, i32::MAX].into_iter().for_each(put);
        let found = [0, 700_002, 700_064, 700_065].map(next);
        assert_eq!(found, [Some(700_001), Some(700_064), Some(700_064), Some(700_127)]);
        assert_eq!(next(700_128), None);
    }
}

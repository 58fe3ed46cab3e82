//! Options that are more than an integer: each takes several places, under names that no option has, which are the
//! option's own plus `0x8000`, `0x9000`, `0xA000` and `0xB000`.

use super::{OptionValue, SideState, store_option};

fn part_of(name: i32, part: usize) -> i32 {
    name | (0x8000 + 0x1000 * part as i32)
}

/// Stores a string option. `false` when there are no places left.
pub fn store_name(options: &[OptionValue], level: i32, name: i32, text: &[u8; 16]) -> bool {
    let (words, _) = text.as_chunks::<4>();
    words
        .iter()
        .enumerate()
        .all(|(part, word)| store_option(options, level, part_of(name, part), i32::from_ne_bytes(*word)))
}

/// Stores `SO_MAX_PACING_RATE`, likewise.
pub fn store_rate(options: &[OptionValue], rate: u64) -> bool {
    [rate as i32, (rate >> 32) as i32]
        .iter()
        .enumerate()
        .all(|(part, word)| store_option(options, libc::SOL_SOCKET, part_of(libc::SO_MAX_PACING_RATE, part), *word))
}

impl SideState {
    /// A stored string option.
    #[must_use]
    pub fn name_option(&self, level: i32, name: i32) -> Option<[u8; 16]> {
        let mut text = [0; 16];
        for (part, word) in text.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = self.option(level, part_of(name, part))?.to_ne_bytes();
        }
        Some(text)
    }

    /// `SO_MAX_PACING_RATE`, if it was set.
    #[must_use]
    pub fn pacing_rate(&self) -> Option<u64> {
        let part = |part| self.option(libc::SOL_SOCKET, part_of(libc::SO_MAX_PACING_RATE, part));
        Some(u64::from(part(0)? as u32) | u64::from(part(1)? as u32) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_options_survive_their_places() {
        // SAFETY: all fields are atomics, for which zero is valid.
        let side: Box<SideState> = Box::new(unsafe { core::mem::zeroed() });
        assert_eq!((side.name_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION), side.pacing_rate()), (None, None));
        let text = *b"abcdefghijklmnop";
        assert!(store_name(&side.options, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &text));
        assert_eq!(side.name_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION), Some(text));
        assert_eq!(side.option(libc::IPPROTO_TCP, libc::TCP_CONGESTION), None);
        for rate in [u64::MAX, 1 << 33 | 7] {
            assert!(store_rate(&side.options, rate));
            assert_eq!(side.pacing_rate(), Some(rate));
        }
    }
}

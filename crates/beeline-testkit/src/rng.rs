//! Seeded random numbers and recognisable data.
//!
//! Every random test prints its seed; equal seeds give equal runs on every machine. SplitMix64 is enough for that and
//! is ten lines (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).

/// A SplitMix64 generator.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; zero when `limit` is zero.
    pub fn below(&mut self, limit: usize) -> usize {
        match limit {
            0 => 0,
            _ => (self.next_u64() % limit as u64) as usize,
        }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// The byte at `position` of the stream with this `seed`: position dependent, so that a loss, a repetition or a swap
/// anywhere changes the data that follows.
#[must_use]
pub fn stream_byte(seed: u64, position: u64) -> u8 {
    let mut mixed = (position >> 3).wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^= mixed >> 32;
    (mixed >> ((position & 7) * 8)) as u8
}

/// Fills `buffer` with the part of stream `seed` that begins at `position`.
pub fn fill_stream(seed: u64, position: u64, buffer: &mut [u8]) {
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = stream_byte(seed, position + at as u64);
    }
}

/// FNV-1a, 64 bits, over everything that was fed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = Self::default();
        hash.feed(bytes);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
        let (mut one, mut two) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| one.next_u64() == two.next_u64()));
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let mut whole = [0; 64];
        fill_stream(3, 100, &mut whole);
        let mut tail = [0; 31];
        fill_stream(3, 133, &mut tail);
        assert_eq!(whole[33..], tail);
    }
}

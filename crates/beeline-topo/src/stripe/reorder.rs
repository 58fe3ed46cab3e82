//! How far a direction of a connection is complete, when its chunks come over several rails.
//!
//! 1. `prefix` is how many bytes from the beginning are complete. Above it lie at most `intervals_max` separate
//!    intervals, in order, none touching another or the prefix. That is all the memory there is, taken at the
//!    beginning.
//! 2. A range is accepted if it lies within `[prefix, prefix + window)` and nothing of it was accepted before. A sender
//!    that keeps the rules of [`super`] never sends another one, so each refusal is a reason to end the connection.

/// Why a range was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no bytes.
    Empty,
    /// Its end is beyond what can be counted, or beyond the window.
    BeyondWindow,
    /// Some of it was accepted before.
    Overlap,
    /// It would be one interval too many.
    TooScattered,
}

impl Refusal {
    /// One sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Empty => "A range without bytes was announced.",
            Self::BeyondWindow => "A range beyond the granted space was announced.",
            Self::Overlap => "Bytes that had come before were announced again.",
            Self::TooScattered => "The ranges that were announced leave more gaps than any sender may.",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.sentence())
    }
}

impl std::error::Error for Refusal {}

/// The received ranges of one direction.
#[derive(Clone, Debug)]
pub struct Reorder {
    prefix: u64,
    window_bytes: u64,
    /// `(start, end)` with `start < end`, ascending, never touching.
    intervals: Vec<(u64, u64)>,
    intervals_max: usize,
}

impl Reorder {
    /// Nothing has come yet. The window is the space of the ring that bytes are written into.
    pub fn new(window_bytes: u64, intervals_max: usize) -> Self {
        Self { prefix: 0, window_bytes, intervals: Vec::with_capacity(intervals_max), intervals_max }
    }

    /// How many bytes from the beginning are complete.
    pub fn prefix(&self) -> u64 {
        self.prefix
    }

    /// The ranges above the prefix that have come, as `(offset, end)`.
    pub fn above(&self) -> &[(u64, u64)] {
        &self.intervals
    }

    /// Accepts `[offset, offset + bytes)` and returns by how much the prefix grew.
    pub fn insert(&mut self, offset: u64, bytes: u64) -> Result<u64, Refusal> {
        let end = end_of(offset, bytes)?;
        // The first interval that ends above the offset: the only one that can overlap from below.
        let place = self.intervals.partition_point(|&(_, interval_end)| interval_end <= offset);
        let overlaps_next = self.intervals.get(place).is_some_and(|&(start, _)| start < end);
        if offset < self.prefix {
            return Err(Refusal::Overlap);
        }
        if overlaps_next && end <= self.window_end() {
            return Err(Refusal::Overlap);
        }
        if end > self.window_end() {
            return Err(Refusal::BeyondWindow);
        }
        let (mut start, mut end) = (offset, end);
        // The intervals that the range touches become one with it.
        let from = self.intervals.partition_point(|&(_, interval_end)| interval_end < start);
        let to = self.intervals.partition_point(|&(interval_start, _)| interval_start <= end);
        let touched = self.intervals.get(from..to).unwrap_or_default();
        if let (Some(low), Some(high)) = (touched.first(), touched.last()) {
            (start, end) = (start.min(low.0), end.max(high.1));
        }
        let grown = if start == self.prefix { end.saturating_sub(start) } else { 0 };
        if grown > 0 {
            self.prefix = end;
            self.intervals.drain(from..to);
        } else if touched.is_empty() && self.intervals.len() >= self.intervals_max {
            return Err(Refusal::TooScattered);
        } else {
            self.intervals.splice(from..to, [(start, end)]);
        }
        Ok(grown)
    }

    fn window_end(&self) -> u64 {
        self.prefix.saturating_add(self.window_bytes)
    }
}

fn end_of(offset: u64, bytes: u64) -> Result<u64, Refusal> {
    if bytes == 0 {
        return Err(Refusal::Empty);
    }
    offset.checked_add(bytes).ok_or(Refusal::BeyondWindow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_advances_over_what_came_before() {
        let mut reorder = Reorder::new(1_000, 4);
        assert_eq!(reorder.insert(10, 10), Ok(0));
        assert_eq!(reorder.insert(30, 10), Ok(0));
        assert_eq!(reorder.insert(20, 10), Ok(0));
        assert_eq!(reorder.above(), [(10, 40)]);
        assert_eq!(reorder.insert(0, 10), Ok(40));
        assert_eq!((reorder.prefix(), reorder.above()), (40, &[][..]));
    }

    #[test]
    fn what_no_sender_may_announce_is_refused_and_changes_nothing() {
        let mut reorder = Reorder::new(100, 2);
        reorder.insert(0, 10).unwrap();
        reorder.insert(20, 10).unwrap();
        reorder.insert(40, 10).unwrap();
        for (offset, bytes, refusal) in [
            (15, 0, Refusal::Empty),
            (9, 1, Refusal::Overlap),
            (5, 20, Refusal::Overlap),
            (10, 11, Refusal::Overlap),
            (29, 1, Refusal::Overlap),
            (20, 10, Refusal::Overlap),
            (30, 30, Refusal::Overlap),
            (105, 6, Refusal::BeyondWindow),
            (110, 1, Refusal::BeyondWindow),
            (u64::MAX, 1, Refusal::BeyondWindow),
            (u64::MAX - 1, 1, Refusal::BeyondWindow),
            (60, 1, Refusal::TooScattered),
            (12, 1, Refusal::TooScattered),
        ] {
            assert_eq!(reorder.insert(offset, bytes), Err(refusal), "{offset} {bytes}");
            assert_eq!((reorder.prefix(), reorder.above()), (10, &[(20, 30), (40, 50)][..]));
        }
        // What fills a gap or extends an interval needs no new one.
        assert_eq!(reorder.insert(50, 60), Ok(0));
        assert_eq!(reorder.insert(30, 10), Ok(0));
        assert_eq!(reorder.insert(19, 1), Ok(0));
        assert_eq!(reorder.insert(10, 9), Ok(100));
    }
}

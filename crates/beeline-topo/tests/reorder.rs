//! The receiver's order against a model that marks every byte.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use beeline_topo::stripe::{Refusal, Reorder};
use proptest::prelude::*;

/// One flag for each byte.
struct Model {
    came: Vec<bool>,
    window: usize,
    intervals_max: usize,
}

impl Model {
    fn prefix(&self) -> usize {
        self.came.iter().position(|came| !came).unwrap_or(self.came.len())
    }

    fn intervals(&self) -> Vec<(u64, u64)> {
        let mut intervals: Vec<(u64, u64)> = Vec::new();
        for offset in (self.prefix()..self.came.len()).filter(|&offset| self.came[offset]) {
            let offset = offset as u64;
            match intervals.last_mut() {
                Some(last) if last.1 == offset => last.1 = offset + 1,
                _ => intervals.push((offset, offset + 1)),
            }
        }
        intervals
    }

    fn insert(&mut self, offset: usize, bytes: usize) -> Result<u64, Refusal> {
        let before = self.prefix();
        if bytes == 0 {
            return Err(Refusal::Empty);
        }
        if offset < before {
            return Err(Refusal::Overlap);
        }
        if offset + bytes > before + self.window {
            return Err(Refusal::BeyondWindow);
        }
        if self.came[offset..offset + bytes].contains(&true) {
            return Err(Refusal::Overlap);
        }
        let saved = self.came.clone();
        self.came[offset..offset + bytes].fill(true);
        if self.intervals().len() > self.intervals_max {
            self.came = saved;
            return Err(Refusal::TooScattered);
        }
        Ok((self.prefix() - before) as u64)
    }
}

proptest! {
    #[test]
    fn it_is_what_the_model_says(
        ranges in proptest::collection::vec((0_usize..220, 0_usize..24), 1..120),
        window in 1_usize..200,
        intervals_max in 0_usize..6,
    ) {
        let mut model = Model { came: vec![false; 600], window, intervals_max };
        let mut reorder = Reorder::new(window as u64, intervals_max);
        for (offset, bytes) in ranges {
            prop_assert_eq!(reorder.insert(offset as u64, bytes as u64), model.insert(offset, bytes));
            prop_assert_eq!(reorder.prefix(), model.prefix() as u64);
            prop_assert_eq!(reorder.above(), &model.intervals()[..]);
        }
    }

    #[test]
    fn no_number_breaks_it(ranges in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..60), window: u64) {
        let mut reorder = Reorder::new(window, 4);
        for (offset, bytes) in ranges {
            let before = reorder.prefix();
            if let Ok(grown) = reorder.insert(offset, bytes) {
                prop_assert_eq!(reorder.prefix(), before + grown);
            }
            prop_assert!(reorder.above().len() <= 4);
        }
    }
}

//! The three mixes (clause 5.2.2): for each interaction, which one a browser goes to next.
//!
//! A row belongs to the interaction a browser comes from. A number from 1 to 9999 is drawn, and the first column whose
//! threshold is not below it is where it goes; a zero is a way that does not exist.

use crate::interaction::Interaction;
use clap::ValueEnum;
use rand::Rng;
use serde::Serialize;

/// The largest number that is drawn.
const DRAWN_MAX: u16 = 9999;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    Browsing,
    Shopping,
    Ordering,
}

type Table = [[u16; 14]; 14];

// Copies of these tables that are in circulation disagree in one number, shopping cart to home of the shopping mix:
// 9552 or
// 9992. With 9552 the shares come out as the specification has them to 0.004 %, with 9992 carts are 0.45 % too few.
//
// Columns: admin confirm, admin request, best sellers, buy confirm, buy request, customer registration, home, new
// products, order display, order inquiry, product detail, search request, search result, shopping cart. Rows: the same.
#[rustfmt::skip]
const BROWSING: Table = [
    [   0,    0,    0,    0,    0,    0, 9877,    0,    0,    0,    0, 9999,    0,    0],
    [8999,    0,    0,    0,    0,    0, 9999,    0,    0,    0,    0,    0,    0,    0],
    [   0,    0,    0,    0,    0,    0, 4607,    0,    0,    0, 5259, 9942,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  342,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0, 9199,    0,    0, 9595,    0,    0,    0,    0,    0,    0, 9999],
    [   0,    0,    0,    0, 9145,    0, 9619,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0, 3792,    0,    0,    0,    0, 7585,    0, 7688,    0, 9559,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  299,    0,    0,    0, 9867, 9941,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  802,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0,    0,    0,    0,  523,    0, 8856,    0,    0, 9999,    0,    0],
    [   0,   47,    0,    0,    0,    0, 8346,    0,    0,    0, 9749, 9890,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  788,    0,    0,    0,    0,    0, 9955, 9999],
    [   0,    0,    0,    0,    0,    0, 3674,    0,    0,    0, 9868, 9942,    0, 9999],
    [   0,    0,    0,    0,    0, 4099, 8883,    0,    0,    0,    0,    0,    0, 9999],
];

#[rustfmt::skip]
const SHOPPING: Table = [
    [   0,    0,    0,    0,    0,    0, 9952,    0,    0,    0,    0, 9999,    0,    0],
    [8999,    0,    0,    0,    0,    0, 9999,    0,    0,    0,    0,    0,    0,    0],
    [   0,    0,    0,    0,    0,    0,  167,    0,    0,    0,  472, 9927,    0, 9999],
    [   0,    0,    0,    0,    0,    0,   84,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0, 4614,    0,    0, 6546,    0,    0,    0,    0,    0,    0, 9999],
    [   0,    0,    0,    0, 8666,    0, 8760,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0, 3124,    0,    0,    0,    0, 6249,    0, 6718,    0, 7026,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  156,    0,    0,    0, 9735, 9784,    0, 9999],
    [   0,    0,    0,    0,    0,    0,   69,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0,    0,    0,    0,   72,    0, 8872,    0,    0, 9999,    0,    0],
    [   0,   58,    0,    0,    0,    0,  832,    0,    0,    0, 1288, 8603,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  635,    0,    0,    0,    0,    0, 9135, 9999],
    [   0,    0,    0,    0,    0,    0, 2657,    0,    0,    0, 9294, 9304,    0, 9999],
    [   0,    0,    0,    0,    0, 2585, 9552,    0,    0,    0,    0,    0,    0, 9999],
];

#[rustfmt::skip]
const ORDERING: Table = [
    [   0,    0,    0,    0,    0,    0, 8348,    0,    0,    0,    0, 9999,    0,    0],
    [8999,    0,    0,    0,    0,    0, 9999,    0,    0,    0,    0,    0,    0,    0],
    [   0,    0,    0,    0,    0,    0,    1,    0,    0,    0,  333, 9998,    0, 9999],
    [   0,    0,    0,    0,    0,    0,    2,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0, 7999,    0,    0, 9453,    0,    0,    0,    0,    0,    0, 9999],
    [   0,    0,    0,    0, 9899,    0, 9901,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,  499,    0,    0,    0,    0,  999,    0, 1269,    0, 1295,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  504,    0,    0,    0, 9942, 9976,    0, 9999],
    [   0,    0,    0,    0,    0,    0, 9939,    0,    0,    0,    0, 9999,    0,    0],
    [   0,    0,    0,    0,    0,    0, 1168,    0, 9968,    0,    0, 9999,    0,    0],
    [   0,   99,    0,    0,    0,    0, 3750,    0,    0,    0, 5621, 6341,    0, 9999],
    [   0,    0,    0,    0,    0,    0,  815,    0,    0,    0,    0,    0, 9815, 9999],
    [   0,    0,    0,    0,    0,    0,  486,    0,    0,    0, 7817, 9998,    0, 9999],
    [   0,    0,    0,    0,    0, 9499, 9918,    0,    0,    0,    0,    0,    0, 9999],
];

impl Mix {
    fn table(self) -> &'static Table {
        match self {
            Mix::Browsing => &BROWSING,
            Mix::Shopping => &SHOPPING,
            Mix::Ordering => &ORDERING,
        }
    }

    pub fn next(self, from: Interaction, random: &mut impl Rng) -> Interaction {
        let drawn = random.random_range(1..=DRAWN_MAX);
        let row = &self.table()[from.index()];
        let column = row.iter().position(|threshold| drawn <= *threshold);
        Interaction::ALL[column.expect("every row ends with the largest number")]
    }

    /// An interaction as it is met in the middle of a run: each as likely as its share.
    pub fn somewhere(self, random: &mut impl Rng) -> Interaction {
        let mut left = random.random::<f64>() * self.shares().iter().sum::<f64>();
        for (interaction, share) in Interaction::ALL.into_iter().zip(self.shares()) {
            left -= share;
            if left < 0.0 {
                return interaction;
            }
        }
        Interaction::Home
    }

    /// How large a part of all interactions each is in the long run, in percent: what the specification's table says.
    #[rustfmt::skip]
    pub fn shares(self) -> [f64; 14] {
        match self {
            Mix::Browsing => [0.09, 0.10, 11.00, 0.69, 0.75, 0.82, 29.00, 11.00, 0.25, 0.30, 21.00, 12.00, 11.00, 2.00],
            Mix::Shopping => [0.09, 0.10, 5.00, 1.20, 2.60, 3.00, 16.00, 5.00, 0.66, 0.75, 17.00, 20.00, 17.00, 11.60],
            Mix::Ordering => [0.11, 0.12, 0.46, 10.18, 12.73, 12.86, 9.12, 0.46, 0.22, 0.25, 12.35, 14.53, 13.08, 13.53],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    const MIXES: [Mix; 3] = [Mix::Browsing, Mix::Shopping, Mix::Ordering];

    fn probabilities(mix: Mix) -> [[f64; 14]; 14] {
        let mut all = [[0.0; 14]; 14];
        for (row, thresholds) in mix.table().iter().enumerate() {
            let mut below = 0;
            for (column, &threshold) in thresholds.iter().enumerate() {
                if threshold > 0 {
                    assert!(threshold > below, "{mix:?}: row {row} does not rise at column {column}");
                    all[row][column] = f64::from(threshold - below) / f64::from(DRAWN_MAX);
                    below = threshold;
                }
            }
            assert_eq!(below, DRAWN_MAX, "{mix:?}: row {row}");
        }
        all
    }

    fn stationary(mix: Mix) -> [f64; 14] {
        let probabilities = probabilities(mix);
        let mut share = [1.0 / 14.0; 14];
        for _ in 0..10_000 {
            let mut next = [0.0; 14];
            for row in 0..14 {
                for column in 0..14 {
                    next[column] += share[row] * probabilities[row][column];
                }
            }
            share = next;
        }
        share
    }

    #[test]
    fn the_tables_lead_to_the_shares_of_the_specification() {
        for mix in MIXES {
            for (interaction, (found, wanted)) in
                Interaction::ALL.iter().zip(stationary(mix).into_iter().zip(mix.shares()))
            {
                let difference = found * 100.0 - wanted;
                assert!(difference.abs() < 0.01, "{mix:?} {interaction:?}: {:.3} % for {wanted} %", found * 100.0);
            }
        }
    }

    #[test]
    fn somewhere_follows_the_shares() {
        let mut random = SmallRng::seed_from_u64(2);
        let count = 100_000;
        let homes = (0..count).filter(|_| Mix::Browsing.somewhere(&mut random) == Interaction::Home).count();
        assert!((homes as f64 / f64::from(count) - 0.29).abs() < 0.01, "{homes}");
    }

    #[test]
    fn shares_add_up() {
        for mix in MIXES {
            assert!((mix.shares().iter().sum::<f64>() - 100.0).abs() < 0.011, "{mix:?}");
        }
    }

    #[test]
    fn drawing_follows_the_table() {
        let mut random = SmallRng::seed_from_u64(1);
        for mix in MIXES {
            let expected = probabilities(mix);
            for from in Interaction::ALL {
                let mut counts = [0_u32; 14];
                for _ in 0..20_000 {
                    counts[mix.next(from, &mut random).index()] += 1;
                }
                for (column, &count) in counts.iter().enumerate() {
                    let share = f64::from(count) / 20_000.0;
                    assert!((share - expected[from.index()][column]).abs() < 0.02, "{mix:?} {from:?} column {column}");
                }
            }
        }
    }
}

//! Who sits down at a browser: most are customers already, and some of them come more often than others.

use rand::Rng;

/// How many of a hundred sessions are those of a known customer.
const KNOWN_PERCENT: u32 = 80;

/// The customer of a new session, if he is known.
pub fn known(customers: u32, random: &mut impl Rng) -> Option<u32> {
    (random.random_range(0..100) < KNOWN_PERCENT).then(|| some(customers, random))
}

/// NURand(A, 1, customers) of clause 2.3.2.
pub fn some(customers: u32, random: &mut impl Rng) -> u32 {
    let bits = random.random_range(0..=spread(customers));
    (bits | random.random_range(1..=customers)) % customers + 1
}

/// The constant A: 1,023 for less than 10,000 customers, and two bits more for each four times as many.
fn spread(customers: u32) -> u32 {
    let (mut spread, mut below) = (1023, 10_000);
    while u64::from(customers) >= below {
        spread = spread * 4 + 3;
        below *= 4;
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[test]
    fn the_constant_is_the_specifications() {
        let of = [9_999, 10_000, 39_999, 40_000, 144_000, 576_000].map(spread);
        assert_eq!(of, [1023, 4095, 4095, 16_383, 16_383, 65_535]);
    }

    #[test]
    fn some_come_more_often() {
        let mut random = SmallRng::seed_from_u64(5);
        let drawn: Vec<u32> = (0..50_000).map(|_| some(144_000, &mut random)).collect();
        assert!(drawn.iter().all(|customer| (1..=144_000).contains(customer)));
        // A bit of either number sets it: three quarters of the low bits, where even numbers would have a half.
        let bits: u32 = drawn.iter().map(|customer| ((customer - 1) & 1023).count_ones()).sum();
        let share = f64::from(bits) / 10.0 / drawn.len() as f64;
        assert!((share - 0.75).abs() < 0.01, "{share}");
    }

    #[test]
    fn four_of_five_are_known() {
        let mut random = SmallRng::seed_from_u64(5);
        let count = (0..20_000).filter(|_| known(144_000, &mut random).is_some()).count();
        assert!((15_600..16_400).contains(&count), "{count}");
    }
}

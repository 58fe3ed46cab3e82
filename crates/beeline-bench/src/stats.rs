//! The few statistics that the reports need. Medians, because a shared machine has outliers in one direction only.

/// The median, or `None` when there is nothing. NaN sorts last and so never becomes the median of mostly sane numbers.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Relative spread of the rounds: median absolute deviation over the median.
pub fn spread(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|v| (v - centre).abs()).collect();
    let mad = median(&deviations)?;
    (centre != 0.0).then(|| mad / centre.abs())
}

/// Where a median lies, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The probability that the median lies within, whatever the distribution.
    pub confidence: f64,
}

/// [`median_interval_at`] 0.95.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    median_interval_at(values, 0.95)
}

/// The narrowest pair of order statistics that holds the median with at least the wanted probability, or, where there
/// are too few values, all of them with what they give. The number of values below the median is binomial: see Conover,
/// Practical Nonparametric Statistics, on confidence intervals for quantiles.
pub fn median_interval_at(values: &[f64], wanted: f64) -> Option<Interval> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let mut interval = None;
    // P(fewer than k of n values lie below the median), which is also that of fewer than k above it.
    let (mut tail, mut term) = (0.0, 0.5_f64.powi(count as i32));
    for outer in 0..count.div_ceil(2) {
        tail += term;
        term *= (count - outer) as f64 / (outer + 1) as f64;
        let confidence = (1.0 - 2.0 * tail).max(0.0);
        if interval.is_some() && confidence < wanted {
            break;
        }
        let (low, high) = (*sorted.get(outer)?, *sorted.get(count - 1 - outer)?);
        interval = Some(Interval { low, high, confidence });
    }
    interval
}

/// Smallest share of the mean: 1.0 means that all got the same, 0.0 that one got nothing.
pub fn smallest_share(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let smallest = values.iter().copied().reduce(f64::min)?;
    (sum > 0.0).then(|| smallest * values.len() as f64 / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_binomial() {
        let of = |count: usize| median_interval(&(1..=count).map(|n| n as f64).collect::<Vec<_>>()).unwrap();
        // Conover, table A3: 5 values give 1 - 2/32, 6 give 1 - 2/64; of 10 the second and ninth give 0.9785.
        assert_eq!(of(5), Interval { low: 1.0, high: 5.0, confidence: 0.9375 });
        assert_eq!(of(6), Interval { low: 1.0, high: 6.0, confidence: 0.96875 });
        let ten = of(10);
        assert_eq!((ten.low, ten.high), (2.0, 9.0));
        assert!((ten.confidence - 0.9785).abs() < 1e-4);
        // Nine give 1 - 2/512, the least that is 0.995.
        let nine = median_interval_at(&(1..=9).map(f64::from).collect::<Vec<_>>(), 0.995).unwrap();
        assert_eq!((nine.low, nine.high, nine.confidence), (1.0, 9.0, 1.0 - 2.0 / 512.0));
        assert_eq!(median_interval(&[]), None);
        assert_eq!(median_interval(&[3.0]).map(|interval| (interval.low, interval.confidence)), Some((3.0, 0.0)));
    }

    #[test]
    fn nan_does_not_win() {
        assert_eq!(median(&[f64::NAN, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn spread_ignores_one_outlier() {
        assert_eq!(spread(&[10.0, 10.0, 10.0, 1000.0, 10.0]), Some(0.0));
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.1));
        assert_eq!(spread(&[0.0]), None);
    }

    #[test]
    fn share_of_the_poorest() {
        assert_eq!(smallest_share(&[1.0, 1.0]), Some(1.0));
        assert_eq!(smallest_share(&[0.0, 4.0]), Some(0.0));
        assert_eq!(smallest_share(&[1.0, 3.0]), Some(0.5));
        assert_eq!(smallest_share(&[]), None);
    }
}

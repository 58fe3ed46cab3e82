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

//! Making a sequence that fails a short one.
//!
//! Operations are left out in ever smaller runs while the rest still fails (Zeller, Hildebrandt: "Simplifying and
//! isolating failure-inducing input", 2002, in its simplest form). Each operation draws its choices from its own
//! number, so those that stay do much the same without the others.

/// The steps that are left when none can be left out any more, or `trials` have been made.
pub fn shrink(mut steps: Vec<usize>, trials: usize, mut fails: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut left = trials;
    let mut length = steps.len().div_ceil(2);
    while length > 0 {
        // From the end: what follows the difference goes first.
        let mut end = steps.len();
        while end > 0 {
            let begin = end.saturating_sub(length);
            let without: Vec<usize> = steps[..begin].iter().chain(&steps[end..]).copied().collect();
            if left == 0 {
                return steps;
            }
            left -= 1;
            if fails(&without) {
                steps = without;
            }
            end = begin;
        }
        length = if length == 1 { 0 } else { length.div_ceil(2) };
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_left() {
        let needed = [3, 17, 40];
        let left = shrink((0..80).collect(), 1000, |steps| needed.iter().all(|step| steps.contains(step)));
        assert_eq!(left, needed);
    }

    #[test]
    fn trials_are_counted() {
        let mut made = 0;
        shrink((0..80).collect(), 5, |_| {
            made += 1;
            false
        });
        assert_eq!(made, 5);
    }
}

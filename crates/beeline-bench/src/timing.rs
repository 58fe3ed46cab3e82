//! Taking times without the clock showing in them: CLOCK_MONOTONIC (std's `Instant`) around batches that are long
//! enough for the clock call to vanish.

use std::time::{Duration, Instant};

use anyhow::Result;

/// A batch is made at least this long before anything is recorded.
const BATCH_AT_LEAST: Duration = Duration::from_millis(1);

/// What one measured loop took.
#[derive(Debug, Default)]
pub struct Batches {
    /// Nanoseconds for each operation, batch by batch.
    pub ns_per_op: Vec<f64>,
    /// Operations done in the recorded batches.
    pub ops: u64,
    /// Time of all recorded batches.
    pub elapsed: Duration,
}

/// Runs `batch(n)`, which does `n` operations, for `duration`, after a warm-up of an eighth of it during which the
/// batch grows until it is long enough to be timed.
pub fn measure(duration: Duration, mut batch: impl FnMut(u64) -> Result<()>) -> Result<Batches> {
    let mut size = 1;
    let warm_up = Instant::now();
    loop {
        let start = Instant::now();
        batch(size)?;
        let long_enough = start.elapsed() >= BATCH_AT_LEAST.min(duration / 8);
        if !long_enough {
            size *= 2;
        } else if warm_up.elapsed() >= duration / 8 {
            break;
        }
    }
    let mut batches = Batches::default();
    while batches.elapsed < duration {
        let start = Instant::now();
        batch(size)?;
        let took = start.elapsed();
        batches.ns_per_op.push(took.as_nanos() as f64 / size as f64);
        batches.ops += size;
        batches.elapsed += took;
    }
    Ok(batches)
}

/// What a rate is taken over, in warm-ups: half of a sample, which is eight of them.
const LONG: u32 = 4;

/// Measures a flow (bytes received, requests answered) whose end is not known beforehand. The first `warm_up` does not
/// count.
pub struct Flow {
    made: Instant,
    warm_up: Duration,
    begin: Option<(Instant, u64)>,
    /// The end of the warm-up.
    mark: Option<(Instant, u64)>,
    /// The end of the last piece.
    piece: Option<(Instant, u64)>,
    /// The last note.
    last: Option<(Instant, u64)>,
    /// Units per second, piece by piece.
    pub rates: Vec<f64>,
}

impl Flow {
    pub fn new(warm_up: Duration) -> Self {
        Flow { made: Instant::now(), warm_up, begin: None, mark: None, piece: None, last: None, rates: Vec::new() }
    }

    /// Notes that so much has passed in all. Reads the clock: not to be called for each message.
    pub fn note(&mut self, total: u64) {
        let now = Instant::now();
        let (begin, _) = *self.begin.get_or_insert((now, total));
        self.last = Some((now, total));
        match self.piece {
            None if now - begin >= self.warm_up => {
                self.mark = self.last;
                self.piece = self.last;
            }
            Some((then, before)) if now - then >= 4 * BATCH_AT_LEAST => {
                self.rates.push((total - before) as f64 / (now - then).as_secs_f64());
                self.piece = self.last;
            }
            _ => {}
        }
    }

    /// Units per second from the end of the warm-up to the last note. Where the machine was so busy that notes lie
    /// close together, what was waiting came at once and is no rate: then the warm-up counts, too, or all the time
    /// since this was made. `None` when there was no note.
    pub fn rate(&self) -> Option<f64> {
        let (until, after) = self.last?;
        let (from, before) = self.long_ago().unwrap_or((self.made, 0));
        (from < until).then(|| (after - before) as f64 / (until - from).as_secs_f64())
    }

    /// Whether there are notes far enough from each other for a rate.
    pub fn is_long(&self) -> bool {
        self.long_ago().is_some()
    }

    fn long_ago(&self) -> Option<(Instant, u64)> {
        let (until, _) = self.last?;
        let is_long = |(from, _): &(Instant, u64)| *from < until && until - *from >= LONG * self.warm_up;
        [self.mark, self.begin].into_iter().flatten().find(is_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_recorded_operations_are_counted() {
        let mut done = 0u64;
        let batches = measure(Duration::from_millis(4), |n| {
            done += n;
            (0..n).for_each(|i| {
                std::hint::black_box(i);
            });
            Ok(())
        })
        .unwrap();
        assert!(batches.ops > 0 && batches.ops < done);
        assert!(batches.elapsed >= Duration::from_millis(4));
        assert!(!batches.ns_per_op.is_empty());
    }

    #[test]
    fn flow_without_time_has_no_rate() {
        assert_eq!(Flow::new(Duration::from_secs(3600)).rate(), None);
    }

    #[test]
    fn what_came_at_once_after_a_long_silence_is_no_rate() {
        let begin = Instant::now();
        let mut flow = Flow::new(Duration::from_millis(5));
        flow.note(1);
        // Nothing is seen for a whole sample, and then all that was waiting.
        std::thread::sleep(Duration::from_millis(40));
        for total in 2..1000 {
            flow.note(total);
        }
        let rate = flow.rate().unwrap();
        assert!(flow.is_long() && rate <= 999.0 / 0.04 && rate >= 998.0 / begin.elapsed().as_secs_f64(), "{rate}");
    }

    #[test]
    fn flow_that_never_left_the_warm_up_has_the_rate_of_all() {
        let mut flow = Flow::new(Duration::from_secs(3600));
        flow.note(1);
        while flow.rate().is_none() {
            flow.note(2);
        }
        assert!(flow.rate().unwrap() > 0.0);
    }

    #[test]
    fn flow_counts_only_after_the_warm_up() {
        let mut flow = Flow::new(Duration::ZERO);
        flow.note(1_000_000);
        let begin = Instant::now();
        let mut total = 1_000_000;
        while flow.rates.is_empty() {
            total += 1;
            flow.note(total);
        }
        let bound = (total - 1_000_000) as f64 / (4 * BATCH_AT_LEAST).as_secs_f64();
        assert!(flow.rate().unwrap() <= bound);
        assert!(begin.elapsed() >= 4 * BATCH_AT_LEAST);
    }
}

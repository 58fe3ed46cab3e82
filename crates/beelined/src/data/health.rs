//! Whether a rail that fails when it is asked fails for good.
//!
//! A failure may pass (memory that is short, a driver that is being restarted). One that does not, again and again,
//! means that the rail is gone: then it is retired, so that nobody asks it, and logs its answer, for ever.

/// Failures in a row, and for how long, after which a rail is gone.
const FAILURES_MAX: u32 = 8;
const FAILING_NS: u64 = 500_000_000;

/// What a rail is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Events,
    Completions,
    MaySleep,
}

/// How a rail's latest answers were, by what it was asked.
pub type Healths = [Health; 3];

/// How the latest answers were.
#[derive(Debug, Default)]
pub struct Health {
    failures: u32,
    since_ns: u64,
}

/// What to make of a failure.
#[derive(Debug, PartialEq, Eq)]
pub enum Failing {
    /// It is the first one: worth a line in the log.
    First,
    /// It goes on.
    Still,
    /// It fails for good.
    Gone,
}

impl Health {
    /// It has answered.
    pub fn answered(&mut self) {
        self.failures = 0;
    }

    /// It has failed.
    pub fn failed(&mut self, now_ns: u64) -> Failing {
        if self.failures == 0 {
            self.since_ns = now_ns;
        }
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            1 => Failing::First,
            FAILURES_MAX.. if now_ns.saturating_sub(self.since_ns) >= FAILING_NS => Failing::Gone,
            _ => Failing::Still,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_gone_after_many_failures_and_some_time() {
        let mut health = Health::default();
        assert_eq!(health.failed(1), Failing::First);
        // Many at once are one.
        assert!((0..1000).all(|_| health.failed(1 + FAILING_NS - 1) == Failing::Still));
        assert_eq!(health.failed(1 + FAILING_NS), Failing::Gone);
        // So are few with long pauses.
        let mut health = Health::default();
        assert_eq!(health.failed(1), Failing::First);
        assert!((2..FAILURES_MAX).all(|time| health.failed(u64::from(time) * FAILING_NS) == Failing::Still));
        assert_eq!(health.failed(u64::from(FAILURES_MAX) * FAILING_NS), Failing::Gone);
    }

    #[test]
    fn an_answer_makes_it_well() {
        let mut health = Health::default();
        for round in 0..100 {
            assert_eq!(health.failed(round * FAILING_NS), Failing::First);
            health.answered();
        }
    }
}

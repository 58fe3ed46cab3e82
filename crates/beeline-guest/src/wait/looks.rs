//! Looking again and again where a look is a system call or more: at a listener's queues, at the socket of a relay. The
//! waits of connections, whose looks cost next to nothing, know more ([`super::Budget`]).
//!
//! 1. A spin takes its budget at most. The next one's is twice as long if it has won, and half as long if not.
//! 2. A budget below the least is none: then one wait in [`PROBE_EVERY`] is a probe, and no other spins.
//! 3. A spin is over when its CPU was another task's meanwhile: there is more work than CPUs.

/// Waits from one probe to the next.
const PROBE_EVERY: u32 = 32;
/// Between two looks nothing takes so long but another task.
const GAP_NS: u64 = 20_000;

/// How long is worth while in one place, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// The least budget.
    pub least_ns: u64,
    /// That of a probe.
    pub probe_ns: u64,
    /// The largest budget.
    pub most_ns: u64,
}

/// What a look has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look<T> {
    Something(T),
    Nothing,
    /// Nothing, and no more looks: the thread is wanted elsewhere.
    Enough,
}

impl Looks {
    /// What a wait may spin whose last budget is known. `skip` counts one more that does not spin, and returns how many
    /// did not before.
    pub fn grant(&self, known_ns: u64, skip: impl FnOnce() -> u32) -> Option<u64> {
        let budget_ns = known_ns.min(self.most_ns);
        if budget_ns >= self.least_ns {
            return Some(budget_ns);
        }
        skip().wrapping_add(1).is_multiple_of(PROBE_EVERY).then(|| self.probe_ns.min(self.most_ns))
    }

    /// Looks until there is something, or the budget is used up. Returns what was seen, and the next budget.
    pub fn spin<T>(
        &self,
        budget_ns: u64,
        now: impl Fn() -> u64,
        mut look: impl FnMut() -> Look<T>,
    ) -> (Option<T>, u64) {
        let start_ns = now();
        let mut last_ns = start_ns;
        loop {
            let seen = look();
            if let Look::Something(seen) = seen {
                return (Some(seen), budget_ns.max(self.least_ns).saturating_mul(2).min(self.most_ns));
            }
            let now_ns = now();
            let is_over = now_ns.saturating_sub(last_ns) > GAP_NS || now_ns.saturating_sub(start_ns) >= budget_ns;
            if is_over || matches!(seen, Look::Enough) {
                return (None, budget_ns / 2);
            }
            last_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    const LOOKS: Looks = Looks { least_ns: 1_000, probe_ns: 4_000, most_ns: 50_000 };

    /// A spin whose looks take so long, of which the one with this number shows something.
    fn spin(budget_ns: u64, look_ns: u64, shows: u32) -> (Option<u32>, u64, u64) {
        let (now, looks) = (Cell::new(7), Cell::new(0));
        let (seen, next_ns) = LOOKS.spin(
            budget_ns,
            || now.get(),
            || {
                looks.set(looks.get() + 1);
                now.set(now.get() + look_ns);
                if looks.get() == shows { Look::Something(shows) } else { Look::Nothing }
            },
        );
        (seen, next_ns, now.get() - 7)
    }

    #[test]
    fn what_wins_is_doubled_and_what_is_in_vain_is_halved() {
        assert_eq!(spin(10_000, 500, 3), (Some(3), 20_000, 1_500));
        assert_eq!(spin(40_000, 500, 1), (Some(1), LOOKS.most_ns, 500));
        assert_eq!(spin(10_000, 500, u32::MAX), (None, 5_000, 10_000));
        assert_eq!(spin(50_000, GAP_NS + 1, 2), (None, 25_000, GAP_NS + 1), "others want the CPU");
        assert_eq!(LOOKS.spin(10_000, || 1, || Look::<()>::Enough), (None, 5_000));
    }

    #[test]
    fn without_a_budget_one_wait_in_many_is_a_probe() {
        let mut skipped = 0;
        let mut grant = |known_ns| {
            LOOKS.grant(known_ns, || {
                skipped += 1;
                skipped - 1
            })
        };
        assert_eq!(grant(1_000), Some(1_000));
        assert_eq!(grant(90_000), Some(LOOKS.most_ns));
        let probes: Vec<u64> = (0..2 * PROBE_EVERY).filter_map(|_| grant(999)).collect();
        assert_eq!(probes, [LOOKS.probe_ns; 2]);
        let none = Looks { most_ns: 0, ..LOOKS };
        assert!((0..PROBE_EVERY).filter_map(|_| none.grant(0, || PROBE_EVERY - 1)).all(|budget_ns| budget_ns == 0));
    }
}

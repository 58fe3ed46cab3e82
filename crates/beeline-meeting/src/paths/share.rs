//! How many ports were left to TCP of late, and how many more it has (rule 6).

/// The time that TCP wants for one, at least, to find a port for the next at once: where the range of ports is the
/// kernel's own.
pub(super) const EVERY_NS: u64 = 100_000;

/// What is of late, in spans: a little more than the second for which a port is not given again.
const SPAN_NS: u64 = 1 << 27;
const SPANS: usize = 9;

/// Those that TCP has taken and keeps, by spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The last span, counted from the clock's beginning.
    span: u64,
    taken: [u16; SPANS],
}

impl Share {
    /// None yet.
    pub const NONE: Self = Self { span: 0, taken: [0; SPANS] };

    /// Whether TCP has one of so many ports for one more.
    pub fn is_left(&mut self, now_ns: u64, ports: u32) -> bool {
        self.move_on(now_ns);
        let taken: u32 = self.taken.iter().copied().map(u32::from).sum();
        taken < ports
    }

    /// One is left to TCP.
    pub fn take(&mut self, now_ns: u64) {
        self.move_on(now_ns);
        if let Some(taken) = self.taken.get_mut(self.span as usize % SPANS) {
            *taken = taken.saturating_add(1);
        }
    }

    /// One that was left to TCP at that time has freed its port.
    pub fn give_back(&mut self, taken_ns: u64, now_ns: u64) {
        self.move_on(now_ns);
        let span = taken_ns / SPAN_NS;
        if self.span.saturating_sub(span) < SPANS as u64
            && let Some(taken) = self.taken.get_mut(span as usize % SPANS)
        {
            *taken = taken.saturating_sub(1);
        }
    }

    fn move_on(&mut self, now_ns: u64) {
        let span = now_ns / SPAN_NS;
        let passed = span.saturating_sub(self.span).min(SPANS as u64);
        for gone in 1..=passed {
            if let Some(taken) = self.taken.get_mut((self.span + gone) as usize % SPANS) {
                *taken = 0;
            }
        }
        self.span = self.span.max(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: u32 = 12_000;

    #[test]
    fn as_many_as_there_are_ports_go_at_once_and_again_a_second_later() {
        let mut share = Share::NONE;
        let mut all_at = |now_ns| {
            let mut taken = 0;
            while share.is_left(now_ns, PORTS) {
                share.take(now_ns);
                taken += 1;
            }
            taken
        };
        let begin_ns = 77 * SPAN_NS + 5;
        assert_eq!(all_at(begin_ns), PORTS);
        assert_eq!(all_at(begin_ns + 1_000_000_000), 0);
        assert_eq!(all_at(begin_ns - SPAN_NS), 0, "a clock that was read before");
        assert_eq!(all_at(begin_ns + SPANS as u64 * SPAN_NS), PORTS);
        assert_eq!(all_at(u64::MAX), PORTS);
    }

    #[test]
    fn a_port_that_is_given_back_is_there_again() {
        let mut share = Share::NONE;
        (0..PORTS).for_each(|_| share.take(0));
        assert!(!share.is_left(SPAN_NS, PORTS));
        share.give_back(5, SPAN_NS);
        assert!(share.is_left(SPAN_NS, PORTS));
        share.take(SPAN_NS);
        let long_after_ns = SPANS as u64 * SPAN_NS;
        share.give_back(5, long_after_ns);
        assert!(share.is_left(long_after_ns, 2) && !share.is_left(long_after_ns, 1), "its span is another's by now");
    }

    #[test]
    fn those_that_come_as_slowly_as_ports_come_back_all_go() {
        let mut share = Share::NONE;
        let every_ns = SPANS as u64 * SPAN_NS / u64::from(PORTS) + 1_000;
        for number in 0..100_000 {
            assert!(share.is_left(number * every_ns, PORTS), "{number}");
            share.take(number * every_ns);
        }
    }
}

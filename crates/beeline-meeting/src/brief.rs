//! Which destinations on other hosts have only short-lived connections.
//!
//! A connection over the bridge costs more to make than one over TCP: two more processes have to wake, on each side
//! one. That pays with the first dozen of messages, and never for a connection that says a few words and is gone.
//!
//! 1. A connection was *short-lived* if it sent at most [`SENDS_MAX`] times, and at most [`BYTES_MAX`] went either way.
//! 2. After [`RUN`] such ones in a row to one destination, without [`PAUSE_NS`] between two, the next ones go by TCP.
//! 3. Nobody sees how those end. So one in [`PROBE_EVERY`] goes over the bridge all the same; if it lives longer, all
//!    do again. One that could not go there whatever is known is none: the next one is asked for in its place.
//!
//! A process counts for itself, and one that connects seldom is not concerned.

/// Sends of a short-lived connection.
const SENDS_MAX: u32 = 16;
/// Bytes of a short-lived connection, both ways together.
const BYTES_MAX: u64 = 64 * 1024;
/// Short lives that are believed.
const RUN: u32 = 8;
/// A destination left alone for so long is a new one.
const PAUSE_NS: u64 = 1_000_000_000;
/// Connections of which one goes over the bridge nevertheless.
const PROBE_EVERY: u32 = 64;

/// How a connection was used, when it ends.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub sends: u32,
    pub bytes: u64,
}

impl Life {
    /// Whether the connection was short-lived.
    pub(super) fn was_short(self) -> bool {
        self.is_within(SENDS_MAX)
    }

    /// The same, with another number of sends.
    pub(super) fn is_within(self, sends_max: u32) -> bool {
        self.sends <= sends_max && self.bytes <= BYTES_MAX
    }
}

/// What is known of one destination. Valid when zeroed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brief {
    /// Short lives in a row.
    run: u32,
    /// Connections left to TCP since the last that looked for another way.
    left: u32,
    /// When a connection began or ended last.
    seen_ns: u64,
}

impl Brief {
    /// Whether the destination is known for short lives.
    pub(super) fn is_known(&self) -> bool {
        self.run >= RUN
    }

    /// A connection over the bridge has ended.
    pub(super) fn ended(&mut self, life: Life, now_ns: u64) {
        self.age(now_ns);
        self.run = if life.was_short() { self.run.saturating_add(1) } else { 0 };
    }

    /// Whether a connection that begins now is left to TCP.
    pub(super) fn decide_to_leave(&mut self, now_ns: u64) -> bool {
        self.age(now_ns);
        if !self.is_known() || self.left + 1 >= PROBE_EVERY {
            return false;
        }
        self.left += 1;
        true
    }

    /// A connection looks for another way than TCP.
    pub(super) fn looked(&mut self) {
        self.left = 0;
    }

    fn age(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.seen_ns) > PAUSE_NS {
            (self.run, self.left) = (0, 0);
        }
        self.seen_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Life = Life { sends: 1, bytes: 2 };
    const LONG: Life = Life { sends: SENDS_MAX + 1, bytes: 2 };
    const LARGE: Life = Life { sends: 1, bytes: BYTES_MAX + 1 };

    fn known() -> Brief {
        let mut brief = Brief::default();
        for now in 0..u64::from(RUN) {
            assert!(!brief.decide_to_leave(now));
            brief.ended(SHORT, now);
        }
        brief
    }

    #[test]
    fn a_run_of_short_lives_goes_to_tcp_but_for_probes() {
        let mut brief = known();
        let mut over_the_bridge = 0;
        for now in 0..640 {
            if !brief.decide_to_leave(now) {
                brief.looked();
                over_the_bridge += 1;
            }
        }
        assert_eq!(over_the_bridge, 10);
    }

    #[test]
    fn one_that_could_have_no_lane_looks_for_nobody() {
        let mut brief = known();
        assert_eq!((1..u64::from(PROBE_EVERY)).filter(|now| brief.decide_to_leave(*now)).count(), 63);
        assert!((0..3).all(|_| !brief.decide_to_leave(64)));
        brief.looked();
        assert!(brief.decide_to_leave(64));
    }

    #[test]
    fn one_that_says_more_ends_the_run() {
        for life in [LONG, LARGE] {
            let mut brief = known();
            assert!(brief.decide_to_leave(RUN.into()));
            brief.ended(life, RUN.into());
            assert!(!brief.decide_to_leave(RUN.into()));
        }
    }

    #[test]
    fn a_pause_ends_the_run() {
        let mut brief = known();
        assert!(brief.decide_to_leave(PAUSE_NS));
        assert!(!brief.decide_to_leave(2 * PAUSE_NS + 1));
    }

    #[test]
    fn rare_short_lives_are_no_run() {
        let mut brief = Brief::default();
        for turn in 0..100 {
            assert!(!brief.decide_to_leave(turn * 2 * PAUSE_NS));
            brief.ended(SHORT, turn * 2 * PAUSE_NS);
        }
    }
}

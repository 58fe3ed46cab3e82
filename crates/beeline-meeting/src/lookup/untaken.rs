//! Listeners at whose door hellos are not taken.
//!
//! 1. A hello that nobody takes in time is a *finding*. Its server is late, or whoever accepts there knows nothing of
//!    doors; which of both no single one tells. What was said before the last finding was made is none: what kept the
//!    server from one of twenty hellos kept it from all.
//! 2. With the second finding in a row, and none taken in between, the listener gets no hellos for as long as this one
//!    has waited, and twice as long with each further one. So a pause is shorter than the time for which nobody has
//!    taken anything: a server that is late for a second is left to TCP for less than another one, and one that takes
//!    none is asked ever more seldom. A hello waits for [`WAIT_NS`], but for a millisecond only if its connection is
//!    closed then, after which a busy server may well come.
//! 3. After a pause one hello is said, and those that come within [`PROBE_NS`] go by TCP, so that not all wait that are
//!    ready at that moment.
//! 4. One that is taken makes up for all. Who takes them after all takes them: a listener that was found late before is
//!    left alone for [`PAUSE_NS_TAKER`] at most, any other for [`PAUSE_NS_MAX`].
//! 5. All of this is about one listener. Another one at the same address begins anew, unless both are of a group.

/// How long a hello waits (`offers` of beeline-sockets), and how long a listener gets none at first.
const WAIT_NS: u64 = 80_000_000;
/// At last.
const PAUSE_NS_MAX: u64 = 64_000_000_000;
/// The same for one that was late before, and then took hellos.
const PAUSE_NS_TAKER: u64 = 1_000_000_000;
/// How long others go by TCP while one hello tries: a little longer than that one waits.
const PROBE_NS: u64 = 100_000_000;

/// What is known of one destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untaken {
    /// Findings in a row.
    findings: u32,
    /// When the last one was made.
    found_ns: u64,
    /// No client says hello there until then; how long the last pause is.
    until_ns: u64,
    pause_ns: u64,
    /// Whether hellos were taken after findings.
    takes: bool,
}

impl Untaken {
    pub(super) const NEW: Self = Self { findings: 0, found_ns: 0, until_ns: 0, pause_ns: 0, takes: false };

    /// Whether a connection that begins now says no hello. One that does may be the probe: asked once for each.
    pub(super) fn decide_to_leave(&mut self, now_ns: u64) -> bool {
        if self.findings < 2 || now_ns < self.until_ns {
            return self.findings >= 2;
        }
        self.until_ns = now_ns.saturating_add(PROBE_NS);
        false
    }

    /// Nobody took a hello in time that was said then.
    pub(super) fn found(&mut self, said_ns: u64, now_ns: u64) {
        if said_ns <= self.found_ns {
            return;
        }
        self.findings = self.findings.saturating_add(1);
        self.found_ns = now_ns;
        if self.findings < 2 {
            return;
        }
        let waited_ns = now_ns.saturating_sub(said_ns).min(WAIT_NS);
        let max_ns = if self.takes { PAUSE_NS_TAKER } else { PAUSE_NS_MAX };
        self.pause_ns = self.pause_ns.saturating_mul(2).max(waited_ns).min(max_ns);
        self.until_ns = now_ns.saturating_add(self.pause_ns);
    }

    /// Somebody took one.
    pub(super) fn taken(&mut self) {
        *self = Self { takes: self.takes || self.findings != 0, ..Self::NEW };
    }

    /// The next client says hello again, as the first did.
    pub(super) fn ask_again(&mut self) {
        self.until_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Clients that connect again and again, each when its last connection is over, to a server that takes no hellos
    /// before it does.
    struct Clients {
        untaken: Untaken,
        /// When each of them begins again, and since when it waits for its hello; 0 for none.
        clients: Vec<(u64, u64)>,
        /// How long a hello waits.
        wait_ns: u64,
        /// Hellos that were said and not taken.
        in_vain: u32,
        now_ns: u64,
    }

    impl Clients {
        fn new(clients: usize, wait_ns: u64) -> Self {
            Self { untaken: Untaken::NEW, clients: vec![(1, 0); clients], wait_ns, in_vain: 0, now_ns: 1 }
        }

        /// Goes on until then, with a server that takes hellos or not. TCP serves each within a millisecond. Returns
        /// when the first hello was taken.
        fn run(&mut self, until_ns: u64, takes: bool) -> Option<u64> {
            if takes && self.clients.iter().any(|(_, said_ns)| *said_ns != 0) {
                // Those that wait.
                self.untaken.taken();
                self.clients.iter_mut().for_each(|client| *client = (self.now_ns + MS, 0));
                return Some(self.now_ns);
            }
            loop {
                let (at_ns, said_ns) = *self.clients.iter().min().unwrap();
                if at_ns >= until_ns {
                    self.now_ns = until_ns;
                    return None;
                }
                self.now_ns = at_ns;
                let place = self.clients.iter().position(|client| *client == (at_ns, said_ns)).unwrap();
                if said_ns != 0 {
                    self.untaken.found(said_ns, at_ns);
                    self.in_vain += 1;
                    self.clients[place] = (at_ns + MS, 0);
                } else if self.untaken.decide_to_leave(at_ns) {
                    self.clients[place] = (at_ns + MS, 0);
                } else if takes {
                    self.untaken.taken();
                    return Some(at_ns);
                } else {
                    self.clients[place] = (at_ns + self.wait_ns, at_ns);
                }
            }
        }
    }

    #[test]
    fn a_stall_of_any_number_of_clients_leaves_nobody_to_tcp() {
        for clients in [1, 20, 500] {
            let mut late = Clients::new(clients, WAIT_NS);
            late.run(WAIT_NS + 20 * MS, false);
            assert_eq!(late.in_vain, clients as u32);
            assert!(!late.untaken.decide_to_leave(late.now_ns));
        }
    }

    #[test]
    fn a_server_that_was_late_is_left_to_tcp_for_less_than_it_was_late() {
        for (clients, wait_ns) in [(1, WAIT_NS), (20, WAIT_NS), (1, MS), (20, MS)] {
            for late_ns in [5, 20, 100, 170, 300, 1_000, 5_000, 70_000] {
                let late_ns = late_ns * MS;
                let mut late = Clients::new(clients, wait_ns);
                late.run(late_ns, false);
                let taken_ns = late.run(u64::MAX, true).unwrap();
                assert!(taken_ns - late_ns <= late_ns, "{clients} clients, {late_ns}: {taken_ns}");
            }
        }
    }

    #[test]
    fn one_that_is_late_again_and_again_is_never_left_for_long() {
        let mut late = Clients::new(20, WAIT_NS);
        late.run(200 * MS, false);
        assert!(late.run(u64::MAX, true).is_some());
        for _ in 0..10 {
            let until_ns = late.now_ns + 30_000 * MS;
            late.run(until_ns, false);
            let taken_ns = late.run(u64::MAX, true).unwrap();
            assert!(taken_ns - until_ns <= PAUSE_NS_TAKER, "{}", taken_ns - until_ns);
        }
    }

    #[test]
    fn one_that_takes_none_costs_its_clients_little() {
        // Two each before the first pause, and one of them after each pause: of 80 ms, 160 ms, and so on to 64 s.
        for (clients, wait_ns, doublings) in [(1, WAIT_NS, 10), (20, WAIT_NS, 10), (20, MS, 16)] {
            let mut passed_on = Clients::new(clients, wait_ns);
            passed_on.run(600_000 * MS, false);
            let most = 2 * clients as u32 + doublings + 1 + 600 / 64;
            assert!(passed_on.in_vain <= most, "{clients} clients: {}", passed_on.in_vain);
        }
    }

    #[test]
    fn what_was_said_before_a_finding_is_none() {
        let mut untaken = Untaken::NEW;
        untaken.found(10, 100);
        for said_ns in [1, 50, 100] {
            untaken.found(said_ns, 200);
        }
        assert!(!untaken.decide_to_leave(300));
        untaken.found(101, 400);
        assert!(
            untaken.decide_to_leave(401) && untaken.decide_to_leave(400 + 298) && !untaken.decide_to_leave(400 + 299)
        );
    }

    #[test]
    fn one_hello_tries_after_a_pause() {
        let mut untaken = Untaken::NEW;
        untaken.found(1, 2);
        untaken.found(3, 4);
        let again_ns = 4 + 1;
        let tried = (0..50).filter(|ms| !untaken.decide_to_leave(again_ns + ms * MS)).count();
        assert_eq!(tried, 1);
        // The probe came to nothing for another reason.
        assert!(!untaken.decide_to_leave(again_ns + PROBE_NS));
        untaken.taken();
        assert!((0..50).all(|ms| !untaken.decide_to_leave(again_ns + PROBE_NS + ms)));
    }
}

//! What each rule says, with a clock of the tests' own.

use super::share::EVERY_NS;
use super::*;

const SHORT: Life = Life { sends: 1, bytes: 2 };
/// Of the kernel's own range.
const PORTS: u32 = 12_348;
const LONG: Life = Life { sends: 1_000, bytes: 2 };

/// Clients that begin again and again, each connection as long as its path takes.
struct Clients {
    paths: Paths,
    now_ns: u64,
    open: Vec<(u64, Ticket)>,
    lane_ns: u64,
    tcp_ns: u64,
    tcp: u32,
    /// Whether the server closes first.
    port_is_free: bool,
}

impl Clients {
    fn new(lane_ns: u64, tcp_ns: u64) -> Self {
        Self::of(Port::Kernels, lane_ns, tcp_ns)
    }

    fn of(port: Port, lane_ns: u64, tcp_ns: u64) -> Self {
        Self { paths: Paths::of(port), now_ns: 1, open: Vec::new(), lane_ns, tcp_ns, tcp: 0, port_is_free: false }
    }

    fn begin(&mut self) {
        let (path, turn) = self.paths.begin(self.now_ns, PORTS);
        let tcp = path == Path::Tcp;
        self.tcp += u32::from(tcp);
        let takes_ns = if tcp { self.tcp_ns } else { self.lane_ns };
        let ticket = Ticket { destination: 1, turn, tcp, begun_ns: self.now_ns };
        self.open.push((self.now_ns + takes_ns, ticket));
    }

    fn end_next(&mut self) {
        let next = (0..self.open.len()).min_by_key(|index| self.open[*index].0).unwrap();
        let (at_ns, ticket) = self.open.remove(next);
        self.now_ns = self.now_ns.max(at_ns);
        let how = if ticket.tcp { Ended::Tcp { port_is_free: self.port_is_free } } else { Ended::Lane(SHORT) };
        self.paths.ended(ticket, how, self.now_ns);
    }

    /// So many connections, `at_once` at a time. Returns how many went by TCP.
    fn run(&mut self, at_once: usize, connections: u32) -> u32 {
        let before = self.tcp;
        for _ in 0..connections {
            if self.open.len() >= at_once {
                self.end_next();
            }
            self.begin();
        }
        self.tcp - before
    }
}

/// Connections that take so many times [`EVERY_NS`] over each path; enough of them for a comparison and what follows.
fn compared(at_once: usize, lane: u64, tcp: u64) -> Clients {
    let each_ns = EVERY_NS / 10 * at_once as u64;
    let mut clients = Clients::new(lane * each_ns, tcp * each_ns);
    clients.run(at_once, 4_000);
    clients
}

#[test]
fn the_faster_path_is_kept_but_for_comparisons() {
    for at_once in [1, 3, 20, 200] {
        let tcp = compared(at_once, 20, 15).run(at_once, 20_000);
        assert!(tcp > 18_000, "{at_once} at once: {tcp}");
        let tcp = compared(at_once, 15, 20).run(at_once, 20_000);
        assert!(tcp < 2_000, "{at_once} at once: {tcp}");
    }
}

#[test]
fn equal_paths_leave_lanes() {
    assert!(compared(4, 40, 39).run(4, 20_000) < 2_000);
}

/// Connections of some milliseconds, so many of them that a comparison has ended.
fn slow(at_once: usize, lane_us: u64, tcp_us: u64) -> Clients {
    let mut clients = Clients::new(lane_us * 1_000 * at_once as u64, tcp_us * 1_000 * at_once as u64);
    clients.run(at_once, 300);
    clients
}

#[test]
fn slow_ones_go_by_tcp_unless_lanes_are_clearly_faster() {
    for at_once in [1, 7, 20] {
        for (lane_us, tcp_us, left) in
            [(5_000, 4_700, true), (5_000, 5_000, true), (4_200, 5_000, true), (3_900, 5_000, false)]
        {
            let tcp = slow(at_once, lane_us, tcp_us).run(at_once, 3_000);
            assert_eq!(tcp > 2_500, left, "{at_once} at once, {lane_us} and {tcp_us} us: {tcp}");
        }
    }
}

#[test]
fn slow_ones_are_compared_within_half_a_second() {
    let mut clients = Clients::new(8 * 5_000_000, 8 * 4_400_000);
    let (mut last_lane_ns, mut at_once) = (0, 0);
    while at_once < 100 {
        let tcp = clients.run(8, 1);
        (last_lane_ns, at_once) = if tcp == 0 { (clients.now_ns, 0) } else { (last_lane_ns, at_once + 1) };
    }
    assert!(last_lane_ns < 300_000_000, "{last_lane_ns}");
    let over_lanes = 2_000 - clients.run(8, 2_000);
    assert!(over_lanes < 120, "{over_lanes} of 2,000, which take ten seconds");
}

#[test]
fn a_run_of_slow_ones_is_a_turn_of_lanes() {
    let mut clients = Clients::new(5_000_000, 4_400_000);
    while clients.tcp == 0 {
        clients.run(1, 1);
    }
    assert!(clients.paths.spent[0].mean.are_slow() && clients.paths.spent[1].count == 0);
    let over_lanes = clients.now_ns / clients.lane_ns;
    assert!(over_lanes <= u64::from(RUN_SLOW) + 3, "{over_lanes}");
}

/// One that connects by a clock of its own sees how long a connection takes, however seldom it comes.
#[test]
fn what_comes_seldom_is_not_slow() {
    let mut clients = Clients::new(90_000, 100_000);
    for _ in 0..1_000 {
        clients.run(1, 1);
        clients.end_next();
        clients.now_ns += 2_000_000;
    }
    let before = clients.tcp;
    for _ in 0..1_000 {
        clients.run(1, 1);
        clients.end_next();
        clients.now_ns += 2_000_000;
    }
    assert!(clients.tcp - before < 200, "{}", clients.tcp - before);
}

#[test]
fn a_log_in_and_some_statements_are_short_if_they_take_no_time() {
    const STATEMENTS: Life = Life { sends: SENDS_MAX, bytes: 20_000 };
    for (life_ns, compared) in [(BRIEF_NS, true), (BRIEF_NS + 1, false)] {
        let mut paths = Paths::of(Port::Kernels);
        let mut now_ns = 1;
        for _ in 0..RUN_SLOW + 2 {
            let (path, turn) = paths.begin(now_ns, PORTS);
            let ticket = Ticket { destination: 1, turn, tcp: path == Path::Tcp, begun_ns: now_ns };
            now_ns += life_ns;
            paths.ended(ticket, Ended::Lane(STATEMENTS), now_ns);
        }
        assert_eq!(matches!(paths.state, State::Comparing { .. }), compared);
    }
}

#[test]
fn few_that_come_too_often_for_tcp_are_never_left_to_it() {
    assert_eq!(compared(1, 9, 5).tcp, 0);
}

#[test]
fn of_many_that_come_too_often_tcp_gets_as_many_as_it_has_ports_for() {
    let mut clients = compared(20, 9, 5);
    let (began_ns, tcp) = (clients.now_ns, clients.run(20, 50_000));
    let at_once = u64::from(PORTS);
    let share = ((clients.now_ns - began_ns) * at_once / 1_000_000_000) as u32;
    assert!(tcp > share / 2 && tcp < share + at_once as u32, "{tcp} of 50000, a share of {share}");
    clients.tcp_ns = 2 * clients.lane_ns;
    clients.run(20, 1_000_000);
    assert!(clients.run(20, 50_000) < 5_000, "TCP is slower now");
}

#[test]
fn of_those_whose_server_closes_first_tcp_gets_all() {
    let mut clients = compared(20, 9, 5);
    clients.port_is_free = true;
    clients.run(20, 100_000);
    let tcp = clients.run(20, 50_000);
    assert!(tcp > 45_000, "{tcp}");
}

#[test]
fn those_whose_ports_the_program_chooses_are_compared_however_often_they_come() {
    let mut clients = Clients::of(Port::Programs, 9 * EVERY_NS / 10, 5 * EVERY_NS / 10);
    clients.run(1, 20_000);
    assert!(clients.run(1, 1_000) > 900, "TCP is faster");
    clients.tcp_ns = clients.lane_ns;
    clients.run(1, 200_000);
    assert!(clients.run(1, 10_000) < 1_000, "it is not any more");
}

#[test]
fn where_tcp_fails_it_is_left() {
    let mut clients = Clients::of(Port::Programs, 9 * EVERY_NS / 10, 5 * EVERY_NS / 10);
    clients.run(1, 20_000);
    clients.begin();
    assert!(clients.open.pop().is_some_and(|(_, ticket)| ticket.tcp));
    clients.paths.failed();
    assert_eq!(clients.run(1, 100_000), 0);
}

#[test]
fn what_comes_more_often_than_before_has_lanes_beyond_its_share() {
    let mut clients = compared(1, 40, 20);
    assert!(clients.run(1, 200) > 0);
    clients.end_next();
    clients.open.clear();
    let left = (0..40_000).filter(|_| {
        clients.now_ns += EVERY_NS / 40;
        let tcp = clients.paths.begin(clients.now_ns, PORTS).0 == Path::Tcp;
        clients.paths.abandoned();
        tcp
    });
    let left = left.count() as u32;
    assert!(left > 0 && left <= PORTS, "{left} in a tenth of a second");
}

#[test]
fn a_path_that_becomes_slower_is_left() {
    let mut clients = compared(4, 20, 15);
    clients.lane_ns = clients.tcp_ns / 2;
    // What was kept at last is kept for some seconds more.
    clients.run(4, 300_000);
    assert!(clients.run(4, 10_000) < 2_000);
}

#[test]
fn few_connections_are_never_left_to_tcp() {
    let mut clients = Clients::new(500_000, 400_000);
    assert_eq!(clients.run(1, RUN_SLOW), 0);
    for _ in 0..100 {
        clients.now_ns += 2 * PAUSE_NS;
        assert_eq!(clients.run(1, RUN_SLOW), 0);
    }
}

#[test]
fn one_that_lives_longer_ends_it() {
    let mut clients = compared(1, 20, 15);
    clients.end_next();
    assert_eq!(clients.paths.begin(clients.now_ns, PORTS).0, Path::Tcp);
    let ticket = Ticket { destination: 1, turn: 0, tcp: false, begun_ns: clients.now_ns };
    clients.paths.ended(ticket, Ended::Lane(LONG), clients.now_ns);
    assert_eq!(clients.run(1, RUN), 0);
}

#[test]
fn one_that_is_open_for_long_over_tcp_ends_it() {
    let mut clients = compared(1, 20, 15);
    clients.tcp_ns = LONG_NS + 1;
    clients.end_next();
    clients.begin();
    clients.end_next();
    clients.tcp = 0;
    assert_eq!(clients.run(1, RUN), 0);
}

#[test]
fn those_that_are_opened_and_kept_get_lanes() {
    let mut clients = compared(1, 20, 15);
    let kept = (0..100).filter(|_| clients.paths.begin(clients.now_ns, PORTS).0 == Path::Tcp).count();
    assert!(kept <= (2 + OPEN_MIN + 1) as usize, "{kept}");
}

#[test]
fn those_that_are_opened_and_kept_in_a_turn_of_tcp_get_lanes() {
    let mut clients = Clients::new(500_000, 400_000);
    while clients.tcp == 0 {
        clients.run(1, 1);
    }
    let kept = (0..1_000).filter(|_| {
        clients.now_ns += 2 * EVERY_NS;
        clients.paths.begin(clients.now_ns, PORTS).0 == Path::Tcp
    });
    assert!(kept.count() <= (2 + OPEN_MIN + 1) as usize);
}

#[test]
fn many_and_few_at_once_are_not_compared_with_each_other() {
    let lane = Times { each_ns: 200_000, life_ns: 1_600_000, many: true };
    let tcp = Times { each_ns: 400_000, life_ns: 2_800_000, many: false };
    let of = |best| Turns { best, mean: best, count: 1 };
    assert!(!tcp_wins(Port::Kernels, of(lane), of(tcp)));
}

#[test]
fn a_ticket_is_taken_once() {
    let cell = TicketCell::default();
    assert_eq!(cell.take(), None);
    let ticket = Ticket { destination: 7, turn: 3, tcp: true, begun_ns: 9 };
    assert_eq!(cell.replace(ticket), None);
    assert_eq!(cell.replace(Ticket { turn: 4, ..ticket }), Some(ticket));
    assert_eq!(cell.take().map(|ticket| ticket.turn), Some(4));
    assert_eq!(cell.take(), None);
}

/// The first connections of a server, or of a client, may cost what later ones do not.
#[test]
fn a_run_that_was_slow_at_first_is_no_turn_of_lanes() {
    let mut clients = Clients::new(5_000_000, 400_000);
    while clients.tcp == 0 {
        clients.run(1, 1);
    }
    clients.lane_ns = 200_000;
    clients.run(1, 400);
    assert!(matches!(clients.paths.state, State::Keeping { path: Path::Lane, .. }), "{:?}", clients.paths.state);
}

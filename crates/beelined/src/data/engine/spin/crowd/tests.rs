use super::*;

const US: u64 = 1000;
const MS: u64 = 1_000_000;

#[test]
fn this_host_tells() {
    let mut crowd = Crowd::of_thread();
    crowd.pass(10 * MS);
    assert!(crowd.delays.is_some() && crowd.state.asked_ns == 10 * MS, "it was asked, and has answered");
    assert!(crowd.uptime.as_ref().and_then(|file| hundredths(&word(file, 1)?)).is_some());
}

#[test]
fn words_are_read() {
    assert_eq!(hundredths("48711.09"), Some(48_711_090 * MS));
    for bad in ["", "1", "x.y", "1.y"] {
        assert_eq!(hundredths(bad), None);
    }
}

/// A thread and what the kernel would say of it.
struct Host {
    state: State,
    now: u64,
    waited: u64,
    idle: u64,
}

impl Host {
    fn new() -> Self {
        Host { state: State::default(), now: MS, waited: 0, idle: 0 }
    }

    /// Something took so long, of which the thread waited that long for a CPU.
    fn pass(&mut self, took: u64, waited: u64) {
        (self.now, self.waited) = (self.now + took, self.waited + waited);
        match self.state.asks(self.now) {
            Asks::Nothing => {}
            Asks::Delay(long) => self.state.waited(self.now, self.waited, long),
            Asks::Idle => self.state.idled(self.now, Some(self.idle)),
        }
        self.state.seen_ns = self.now;
    }

    /// Messages come and go, for so many milliseconds. Whether it is crowded then.
    fn talk(&mut self, ms: u64, waited: u64) -> bool {
        for _ in 0..ms * 20 {
            self.pass(50 * US, waited);
        }
        self.state.since_ns.is_some()
    }

    fn is_crowded_after_turns(&mut self, turns: u32) -> bool {
        (0..turns).any(|_| {
            self.talk(10, 0);
            self.pass(4 * MS, 3 * MS);
            self.state.since_ns.is_some()
        })
    }
}

#[test]
fn bridges_that_fill_the_host_are_no_crowd() {
    let mut host = Host::new();
    assert!(!host.talk(10_000, 45 * US), "nine tenths of the time it waits, in short waits");
    // Then a pause, at whose end the kernel tells of all these.
    for _ in 0..1_000 {
        host.talk(10, 45 * US);
        host.pass(20 * MS, 30 * US);
        assert!(host.state.since_ns.is_none());
    }
}

#[test]
fn sleeps_are_no_waits() {
    let mut host = Host::new();
    (0..1_000).for_each(|_| host.pass(20 * MS, 100 * US));
    assert!(host.state.since_ns.is_none());
}

#[test]
fn turns_of_others_are_a_crowd_and_one_is_none() {
    let mut host = Host::new();
    for _ in 0..100 {
        assert!(!host.talk(300, 0));
        host.pass(4 * MS, 4 * MS);
    }
    assert!(host.is_crowded_after_turns(4));
}

#[test]
fn it_is_over_when_something_is_idle_but_not_at_once() {
    let mut host = Host::new();
    assert!(host.is_crowded_after_turns(4));
    let since = host.now;
    while host.state.since_ns.is_some() {
        host.idle += 100 * MS;
        host.pass(100 * MS, 0);
    }
    assert!((250..600).contains(&((host.now - since) / MS)), "{}", (host.now - since) / MS);
}

#[test]
fn a_crowd_that_lasts_is_asked_ever_more_rarely() {
    let mut host = Host::new();
    let mut holds = Vec::new();
    for _ in 0..7 {
        assert!(host.is_crowded_after_turns(4));
        let since = host.now;
        while host.talk(100, 0) {}
        holds.push((host.now - since) / MS / 1000);
    }
    assert_eq!(holds, [2, 4, 8, 16, 32, 32, 32]);
    // And after a long time without it is as new.
    host.talk(40_000, 0);
    assert!(host.is_crowded_after_turns(4));
    assert_eq!(host.state.hold_ns, HOLD_MIN_NS);
}

#[test]
fn a_host_that_tells_nothing_is_not_crowded() {
    let mut crowd = Crowd::default();
    (1..100).for_each(|round| crowd.pass(round * 5 * MS));
    assert!(!crowd.is());
}

//! What the ledger says of made-up times.

use proptest::prelude::*;

use super::*;

fn server(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// A round in which TCP takes 100 (short) or 10,000 (much), and the bridge so many hundredths of that.
fn round(percent: [u64; 3]) -> Round {
    let times = |tcp: u64, percent: u64| Times { bridge: vec![tcp * percent / 100; 16], tcp: vec![tcp; 16] };
    [times(100, percent[0]), times(10_000, percent[1]), times(10_000, percent[2])]
}

fn after(rounds: &[[u64; 3]]) -> Ledger {
    let mut ledger = Ledger::default();
    rounds.iter().for_each(|percent| ledger.add(round(*percent)));
    ledger
}

#[test]
fn the_bridge_is_used_until_it_was_measured_to_be_slower() {
    assert!(!Ledger::default().prefers_tcp(server(1)));
    assert!(!after(&[[500; 3]]).prefers_tcp(server(1)), "one round is no verdict");
    assert!(after(&[[500; 3]; ROUNDS_MIN]).prefers_tcp(server(1)));
    assert!(!after(&[[109; 3]; ROUNDS_MAX]).prefers_tcp(server(1)));
}

#[test]
fn it_is_used_again_only_when_it_is_as_fast() {
    let mut ledger = after(&[[150; 3]; ROUNDS_MIN]);
    for _ in 0..2 * ROUNDS_MAX {
        ledger.add(round([105; 3]));
    }
    assert!(ledger.prefers_tcp(server(1)), "a little slower is slower still");
    for _ in 0..ROUNDS_MAX {
        ledger.add(round([95; 3]));
    }
    assert!(!ledger.prefers_tcp(server(1)));
}

#[test]
fn a_tail_that_is_long_counts_as_much_as_the_middle() {
    let mut ledger = Ledger::default();
    for _ in 0..ROUNDS_MIN {
        let mut slow_now_and_then = round([50; 3]);
        slow_now_and_then[0].bridge[..2].fill(4_000);
        ledger.add(slow_now_and_then);
    }
    assert!(ledger.is_slower(Kind::Short) && !ledger.is_slower(Kind::There));
}

#[test]
fn a_destination_is_judged_by_what_its_connections_do() {
    // Short exchanges are slower over the bridge, streams there are not, streams back are.
    let mut ledger = after(&[[200, 50, 300]; ROUNDS_MIN]);
    let second = 1_000_000_000;
    ledger.ended(server(1), 1 << 30, 1_000, second / 1_000);
    ledger.ended(server(2), 1_000, 1 << 30, second / 1_000);
    ledger.ended(server(3), 1_000, 1_000, second);
    // As much, but over a day: that is no stream.
    ledger.ended(server(4), 1 << 30, 1_000, 86_400 * second);
    assert!(!ledger.prefers_tcp(server(1)));
    assert!((0..100).all(|_| ledger.prefers_tcp(server(2))));
    for port in [3, 4, 5] {
        let by_tcp = (0..16 * TRIAL).filter(|_| ledger.prefers_tcp(server(port))).count();
        assert_eq!(by_tcp, 15 * TRIAL as usize, "one of {TRIAL} is tried at {port}");
    }
    ledger.ended(server(1), 10, 10, second);
    assert!((1..TRIAL).any(|_| ledger.prefers_tcp(server(1))), "its last connection counts");
}

#[test]
fn what_held_on_another_host_than_this_one_is_now_is_no_part_of_a_verdict() {
    // Not slower for long, then the CPUs become busy: two rounds are enough, where five were needed without.
    let mut ledger = after(&[[90; 3]; ROUNDS_MAX]);
    ledger.forget_rounds();
    ledger.add(round([300; 3]));
    assert!(!ledger.is_slower(Kind::There), "one round is none");
    ledger.add(round([300; 3]));
    assert!(KINDS.into_iter().all(|kind| ledger.is_slower(kind)));
    // And back.
    ledger.forget_rounds();
    let rests_on = Told { bridge_ns: 300, tcp_ns: 100, slower: true };
    assert_eq!(ledger.told(Kind::Short), Some(rests_on), "it stands, and so does what it rests on");
    // What a stream is is not forgotten with it: this one is far too slow.
    ledger.ended(server(9), 0, MUCH_BYTES + 1, u64::MAX);
    assert_eq!(ledger.destinations.back(), Some(&(server(9), Kind::Short)));
    ledger.add(round([90; 3]));
    assert_eq!(ledger.told(Kind::Short), Some(rests_on));
    ledger.add(round([90; 3]));
    assert!(KINDS.into_iter().all(|kind| !ledger.is_slower(kind)));
}

#[test]
fn what_is_slower_in_everything_is_not_tried() {
    let mut ledger = after(&[[200; 3]; ROUNDS_MIN]);
    assert!((0..10 * TRIAL).all(|_| ledger.prefers_tcp(server(1))));
}

proptest! {
    /// Whatever is measured: memory is bounded, and the verdict is that of the last rounds alone, but for the band
    /// between.
    #[test]
    fn verdicts_follow_the_last_rounds(percents in prop::collection::vec(20_u64..400, 1..40), last in 20_u64..400) {
        let mut ledger = Ledger::default();
        for percent in percents {
            ledger.add(round([percent; 3]));
        }
        for _ in 0..ROUNDS_MAX {
            ledger.add(round([last; 3]));
        }
        prop_assert_eq!(ledger.rounds(), ROUNDS_MAX);
        for kind in KINDS {
            if last > SLOWER {
                prop_assert!(ledger.is_slower(kind));
            } else if last <= EQUAL {
                prop_assert!(!ledger.is_slower(kind));
            }
        }
    }

    /// A round that is broken off, or measured nothing, changes no verdict and divides by nothing.
    #[test]
    fn rounds_may_be_empty_or_hold_zeros(bridge in prop::collection::vec(0_u64..5, 0..4), tcp in prop::collection::vec(0_u64..5, 0..4)) {
        let mut ledger = after(&[[200; 3]; ROUNDS_MIN]);
        let before = ledger.slower;
        ledger.add(Round::default());
        prop_assert_eq!(ledger.slower, before);
        ledger.add([Times { bridge: bridge.clone(), tcp: tcp.clone() }, Times::default(), Times { bridge, tcp }]);
        prop_assert!(ledger.told(Kind::There).is_some());
    }

    #[test]
    fn destinations_are_bounded(ports in prop::collection::vec(1_u16..2_000, 1..1_000)) {
        let mut ledger = Ledger::default();
        for port in &ports {
            ledger.ended(server(*port), 1, 1, 1);
        }
        prop_assert!(ledger.destinations.len() <= DESTINATIONS_MAX);
        let newest = ports.last().copied().map(server);
        prop_assert_eq!(ledger.destinations.back().map(|(address, _)| *address), newest);
    }
}

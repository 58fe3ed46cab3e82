use super::*;

const CHUNK: u64 = 256 << 10;

fn first_of(rail: usize) -> RailLife {
    RailLife { rail, life: 0 }
}

fn two(mbps_a: u32, mbps_b: u32) -> Rates {
    let mut rates = Rates::new();
    rates.add(mbps_a, 8 << 20);
    rates.add(mbps_b, 8 << 20);
    rates
}

/// A transfer over rails of these rates, in bytes a second, of whose `window` at most is under way. It is
/// acknowledged in order, an eighth of the window at a time, and how long a chunk takes varies. Goes on until
/// `until_ns`; bytes that each rail carried.
fn transfer(rates: &mut Rates, lines: [u64; 2], window: u64, from_ns: u64, until_ns: u64) -> [u64; 2] {
    let (mut now_ns, mut advanced_ns) = (from_ns, from_ns);
    let (mut free_ns, mut carried, mut dice) = ([from_ns; 2], [0; 2], 1_u64);
    let mut under_way = std::collections::VecDeque::new();
    while now_ns < until_ns {
        while (under_way.len() as u64 + 1) * CHUNK <= window
            && let Some(on) = rates.pick(&[0, 1], CHUNK, now_ns)
        {
            rates.sent(on, CHUNK, now_ns);
            let rail = on.rail;
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let varies = 75 + (dice >> 33) % 50;
            free_ns[rail] = free_ns[rail].max(now_ns) + CHUNK * 10_000_000 * varies / lines[rail];
            under_way.push_back((on, free_ns[rail] + 50_000));
        }
        let batch = (window / 8 / CHUNK).max(1) as usize;
        let there_ns = under_way.iter().take(batch).map(|&(_, there_ns)| there_ns).max();
        let (Some(there_ns), Some(&(head, _))) = (there_ns, under_way.front()) else { break };
        now_ns = now_ns.max(there_ns);
        rates.waited_for(head, now_ns - advanced_ns);
        advanced_ns = now_ns;
        while let Some(&(on, there_ns)) = under_way.front()
            && there_ns <= now_ns
        {
            rates.acknowledged(on, CHUNK, now_ns);
            carried[on.rail] += CHUNK;
            under_way.pop_front();
        }
    }
    under_way.into_iter().for_each(|(on, _)| rates.acknowledged(on, CHUNK, now_ns));
    carried
}

#[test]
fn shares_come_back_into_proportion_after_a_rail_was_slow() {
    const SECOND: u64 = 1_000_000_000;
    for (lines, window) in
        [([119_000_000; 2], 4 << 20), ([300_000_000, 100_000_000], 4 << 20), ([1 << 30; 2], 16 << 20)]
    {
        let mut rates = two(10_000, 10_000);
        transfer(&mut rates, [lines[0] / 8, lines[1]], window, 0, 2 * SECOND);
        transfer(&mut rates, lines, window, 2 * SECOND, 5 * SECOND);
        let carried = transfer(&mut rates, lines, window, 5 * SECOND, 9 * SECOND);
        let together = carried[0] + carried[1];
        let possible = 4 * (lines[0] + lines[1]);
        assert!(together * 10 > possible * 9, "{carried:?} of {possible} over {lines:?}");
    }
}

#[test]
fn the_rail_that_would_be_first_gets_the_chunk() {
    let mut rates = two(100_000, 50_000);
    let mut order = Vec::new();
    for _ in 0..6 {
        let on = rates.pick(&[0, 1], CHUNK, 0).unwrap();
        rates.sent(on, CHUNK, 0);
        order.push(on.rail);
    }
    // Finishing times in chunks of the faster rail: 1, 2 (both are equal: the first), 2, 3, 4 (equal), 4.
    assert_eq!(order, [0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_chunk_waits_for_the_fast_rail_rather_than_be_late_on_the_slow_one() {
    let mut rates = Rates::new();
    let fast = rates.add(100_000, 2 * CHUNK);
    let slow = rates.add(1_000, 2 * CHUNK);
    for _ in 0..2 {
        assert_eq!(rates.pick(&[0, 1], CHUNK, 0), Some(fast));
        rates.sent(fast, CHUNK, 0);
    }
    assert_eq!(rates.pick(&[0, 1], CHUNK, 0), None);
    assert_eq!(rates.pick(&[1], CHUNK, 0), Some(slow));
    rates.down(0);
    assert_eq!(rates.pick(&[0, 1], CHUNK, 0), Some(slow));
    rates.down(1);
    assert_eq!(rates.pick(&[0, 1], CHUNK, 0), None);
}

#[test]
fn a_rail_that_hangs_is_passed_over() {
    let mut rates = Rates::new();
    let fast = rates.add(80_000, 1 << 30);
    let slow = rates.add(8_000, 1 << 30);
    let chunk_ns = CHUNK / 10;
    rates.sent(fast, CHUNK, 0);
    // On the slow one it would take ten times as long: the fast one has that much credit, and no more.
    assert_eq!(rates.pick(&[0, 1], CHUNK, chunk_ns), Some(fast));
    assert_eq!(rates.pick(&[0, 1], CHUNK, 9 * chunk_ns), Some(fast));
    assert_eq!(rates.pick(&[0, 1], CHUNK, 10 * chunk_ns), Some(slow));
    rates.acknowledged(fast, CHUNK, 10 * chunk_ns);
    assert_eq!(rates.pick(&[0, 1], CHUNK, 20 * chunk_ns), Some(fast));
}

#[test]
fn a_chunk_larger_than_the_limit_goes_out_alone() {
    let mut rates = Rates::new();
    let on = rates.add(1_000, CHUNK / 2);
    assert_eq!(rates.pick(&[0], CHUNK, 0), Some(on));
    rates.sent(on, CHUNK, 0);
    assert_eq!(rates.pick(&[0], 1, 0), None);
}

#[test]
fn what_a_busy_rail_delivers_is_measured_and_later_forgotten() {
    let mut rates = Rates::new();
    let on = rates.add(8_000, 1 << 30);
    let mut now = 0;
    rates.sent(on, CHUNK, now);
    for _ in 0..64 {
        rates.sent(on, CHUNK, now);
        now += 500_000;
        rates.acknowledged(on, CHUNK, now);
    }
    let exact = CHUNK * 2_000;
    let measured = rates.measured(0, now).unwrap();
    assert!(measured.abs_diff(exact) < exact / 100, "{measured} for {exact}");
    assert_eq!(rates.rails[0].rate(now + SAMPLE_LIFE_NS + 1), 1_000_000_000);
}

/// It delivered what it was given, rounded down to whole chunks.
#[test]
fn a_rail_that_nobody_waits_for_is_not_believed_to_be_slower_than_before() {
    let mut rates = two(1_000, 1_000);
    let [busy, spared] = [first_of(0), first_of(1)];
    let mut now = 0;
    for on in [busy, busy, spared, spared] {
        rates.sent(on, SAMPLE_BYTES, now);
    }
    let mut round = |rates: &mut Rates, took_ns: u64| {
        now += took_ns;
        rates.waited_for(busy, took_ns);
        for on in [busy, spared] {
            rates.sent(on, SAMPLE_BYTES, now);
            rates.acknowledged(on, SAMPLE_BYTES, now);
        }
        rates.measured(1, now)
    };
    let before = (0..8).filter_map(|_| round(&mut rates, 10_000_000)).next_back().unwrap();
    let after = (0..8).filter_map(|_| round(&mut rates, 13_000_000)).next_back().unwrap();
    assert!(after >= before, "{before}, then {after}");
}

/// They waited for another rail's.
#[test]
fn chunks_that_are_acknowledged_all_at_once_are_no_measure() {
    let mut rates = two(1_000, 1_000);
    let on = first_of(0);
    let mut now = 0;
    for _ in 0..16 {
        rates.sent(on, SAMPLE_BYTES, now);
    }
    for burst in 0..64 {
        now += 40_000_000;
        for _ in 0..4 {
            now += 1_000;
            rates.acknowledged(on, SAMPLE_BYTES, now);
            rates.sent(on, SAMPLE_BYTES, now);
        }
        let exact = SAMPLE_BYTES * 100;
        let measured = rates.measured(0, now).filter(|_| burst > 32).unwrap_or(exact);
        assert!(measured < exact * 3 / 2, "{measured} for {exact}");
    }
}

#[test]
fn an_idle_rail_is_not_measured() {
    let mut rates = Rates::new();
    let on = rates.add(8_000, 1 << 30);
    for second in 0..64 {
        let now = second * 1_000_000_000;
        rates.sent(on, CHUNK, now);
        rates.acknowledged(on, CHUNK, now + 1_000_000);
    }
    assert_eq!(rates.measured(0, 0), None);
}

#[test]
fn a_rail_takes_the_place_of_one_that_is_down() {
    let mut rates = two(1_000, 1_000);
    assert_eq!((rates.replace(0, 8_000, CHUNK), rates.replace(2, 8_000, CHUNK)), (None, None));
    let old = first_of(0);
    rates.sent(old, CHUNK, 0);
    rates.down(0);
    let new = rates.replace(0, 8_000, 2 * CHUNK).unwrap();
    rates.acknowledged(old, CHUNK, 1);
    assert_eq!((new.rail, rates.in_flight(0), rates.rails[0].rate(1), rates.places()), (0, 0, 1_000_000_000, 2));
    assert!(new.life != old.life);
}

#[test]
fn an_earlier_life_counts_for_nothing() {
    let mut rates = two(1_000, 1_000);
    let old = first_of(0);
    rates.sent(old, CHUNK, 0);
    rates.down(0);
    assert_eq!((rates.pick(&[0], CHUNK, 0), rates.in_flight(0)), (None, 0));
    let new = rates.replace(0, 1_000, 8 << 20).unwrap();
    assert!(new.life != old.life);
    rates.sent(new, CHUNK, 0);
    rates.acknowledged(old, CHUNK, 1);
    assert_eq!(rates.in_flight(0), CHUNK);
}

#[test]
fn what_was_given_up_burdens_a_rail_no_more() {
    let mut rates = two(10_000, 5_000);
    (0..32).for_each(|_| rates.sent(first_of(0), CHUNK, 0));
    assert_eq!(rates.pick(&[0], CHUNK, 1_000), None);
    rates.acknowledged(first_of(0), 2 * CHUNK, 1_000);
    rates.dropped(first_of(0), 30 * CHUNK);
    rates.dropped(RailLife { rail: 0, life: 1 }, CHUNK);
    assert_eq!((rates.in_flight(0), rates.pick(&[0, 1], CHUNK, 2_000)), (0, Some(first_of(0))));
    // The time until the next chunks is no measure of the rail.
    (0..4).for_each(|_| rates.sent(first_of(0), CHUNK, 1_000_000_000));
    rates.acknowledged(first_of(0), 4 * CHUNK, 1_001_000_000);
    assert_eq!(rates.measured(0, 1_001_000_000), Some(4 * CHUNK * 1_000));
}

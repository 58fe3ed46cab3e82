//! Carrying as a whole, on rails that fail and return, against the bytes themselves: [`Sender`](super::sender::Sender),
//! [`Losses`](super::losses::Losses), `LinkRates` and `Reorder`, put together as the engine does it.
//!
//! * [`world`] has the two bridges' moves and the rails between them;
//! * [`life`] is one link, with what lands on it late;
//! * [`ends`] are the two ends of a stream, with rings that are used again.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod ends;
mod life;
mod world;

use beeline_topo::stripe::PIECES_MAX;
use proptest::prelude::*;

use ends::Stream;
use world::{Event, Tunables, World};

/// The tunables' defaults, without pulls: of those a ring holds too few to divide them well.
const PUSHES: Tunables = Tunables { inline_max: 4 << 10, pull_min: u64::MAX, chunk: 256 << 10, stripe_min: 128 << 10 };
const RING: u64 = 4 << 20;
/// What is not urgent is acknowledged after so long.
const ACK_NS: u64 = 100_000_000;

/// As [`PUSHES`], for rings of some kilobytes, so that a short stream meets what a long one meets.
const SMALL: Tunables = Tunables { inline_max: 64, pull_min: 16 << 10, chunk: 4 << 10, stripe_min: 2 << 10 };
const SMALL_RING: u64 = 256 << 10;
const SMALL_ACK_NS: u64 = 20_000;

fn event() -> impl Strategy<Value = Event> {
    let cut = (any::<bool>(), 0_u64..200_000, 0_u64..100_000);
    prop_oneof![
        2 => cut.prop_map(|(by_sender, heard_ns, late_ns)| Event::Cut { by_sender, heard_ns, late_ns }),
        1 => (0_u64..100_000).prop_map(|ns| Event::Hang { ns }),
        2 => Just(Event::Up),
    ]
}

/// Up to four rails, with what they claim and what they are, and up to four streams over some of them each.
fn rails_and_streams() -> impl Strategy<Value = (Vec<(u32, u32)>, Vec<Stream>)> {
    proptest::collection::vec((1_000_u32..100_000, 1_000_u32..100_000), 1..5).prop_flat_map(|rails| {
        let streams = proptest::collection::vec(Stream::any(rails.len()), 1..5);
        (Just(rails), streams)
    })
}

/// A stream over all of so many rails, between apps that wait for nothing.
fn stream(rails: usize, total: u64, ring: u64) -> Stream {
    let rails = (0..rails).collect();
    Stream { total, rails, source_ring: ring, target_ring: ring, burst: u64::MAX, pace: u64::MAX }
}

/// Carries a stream: how long it took, in percent of what all rails together would need, and what each of them carried.
fn carry(world: &mut World, rails: &[(u32, u32)], total: u64) -> (u64, Vec<u64>) {
    let before: Vec<u64> = world.wires.iter().map(|wire| wire.carried).collect();
    let begun_ns = world.now_ns;
    world.connect(&stream(rails.len(), total, RING));
    world.run(&[]);
    let took_ns = world.inwards.last().unwrap().done_at_ns - begun_ns;
    let sum: u64 = rails.iter().map(|&(_, real)| u64::from(real)).sum();
    let carried = world.wires.iter().zip(before).map(|(wire, before)| wire.carried - before).collect();
    (took_ns * 100 / (total * 8_000 / sum), carried)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn no_byte_is_lost_or_doubled_whatever_the_rails_do(
        (rails, streams) in rails_and_streams(),
        chunk in 512_u64..8_000,
        pull_min in prop_oneof![Just(u64::MAX), 512_u64..40_000],
        events in proptest::collection::vec((0_usize..400, 0_usize..4, event()), 0..32),
    ) {
        let mut world = World::new(Tunables { chunk, pull_min, ..SMALL }, SMALL_ACK_NS, &rails, &streams);
        let events: Vec<_> = events.into_iter().map(|(step, rail, event)| (step, rail % rails.len(), event)).collect();
        world.run(&events);
    }
}

/// Most streams are hardly slower than all rails together, and none by half. Shares wander, so a few are by more than a
/// quarter.
fn assert_hardly_slower(mut percents: Vec<u64>) {
    percents.sort_unstable();
    assert!(
        percents[percents.len() * 3 / 4] < 125 && percents.last().is_some_and(|slowest| *slowest < 150),
        "{percents:?}"
    );
}

#[test]
fn rails_that_are_what_they_claim_are_used_together_at_once() {
    let mut percents = Vec::new();
    for speeds in [&[25_000, 30_000][..], &[97_000, 30_000], &[60_000; 2], &[40_000; 3], &[97_000, 60_000, 25_000]] {
        let rails: Vec<(u32, u32)> = speeds.iter().map(|&real| (real, real)).collect();
        let mut world = World::new(PUSHES, ACK_NS, &rails, &[]);
        percents.push(carry(&mut world, &rails, 64 << 20).0);
    }
    assert_hardly_slower(percents);
}

/// Both claim the same, so only measuring can find out. Acknowledgements come in the order of the stream, so it takes a
/// while.
#[test]
fn shares_of_two_rails_come_to_what_they_really_do() {
    let (total, mut percents, mut wrong) = (64 << 20, Vec::new(), Vec::new());
    let reals = [25_000, 40_000, 60_000, 97_000].map(|first| [30_000, 50_000, 85_000].map(|second| (first, second)));
    for (claimed, (first, second)) in
        [30_000, 90_000].into_iter().flat_map(|claimed| reals.into_iter().flatten().map(move |real| (claimed, real)))
    {
        let rails = [(claimed, first), (claimed, second)];
        let mut world = World::new(PUSHES, ACK_NS, &rails, &[]);
        carry(&mut world, &rails, 256 << 20);
        let (percent, carried) = carry(&mut world, &rails, total);
        percents.push(percent);
        wrong.push(carried[0].abs_diff(total * u64::from(first) / u64::from(first + second)));
    }
    assert_hardly_slower(percents);
    wrong.sort_unstable();
    assert!(wrong[wrong.len() * 3 / 4] < total / 12, "{wrong:?}");
}

/// Windows of 64 MiB, of which the slower rail, the home of every other stream, carries a twentieth.
#[test]
fn many_streams_give_the_slower_rail_no_more_than_it_carries_in_their_time() {
    let rails = [(4_000, 4_000), (76_000, 76_000)];
    let streams = vec![stream(2, 64 << 20, RING); 16];
    let mut world = World::new(PUSHES, ACK_NS, &rails, &streams);
    world.run(&[]);
    let took_ns = world.inwards.iter().map(|inward| inward.done_at_ns).max().unwrap();
    let percent = took_ns * 100 / (16 * (64 << 20) * 8 / 80);
    assert!(world.in_flight_max[0] < 8 << 20 && percent < 115, "{:?}, {percent} %", world.in_flight_max);
}

#[test]
fn a_rail_that_returns_takes_its_share_again() {
    let rails = [(40_000, 40_000); 2];
    let mut world = World::new(PUSHES, ACK_NS, &rails, &[stream(2, 64 << 20, RING)]);
    let cut = Event::Cut { by_sender: true, heard_ns: 50_000, late_ns: 10_000 };
    world.run(&[(100, 1, cut), (200, 1, Event::Up)]);
    let [first, second] = [0, 1].map(|rail| world.wires[rail].carried);
    assert!(second < first, "{second} while it was gone, and {first}");
    let (percent, carried) = carry(&mut world, &rails, 64 << 20);
    assert!(percent < 125 && carried[1] > 28 << 20, "{percent} %, {carried:?}");
}

#[test]
fn hosts_without_a_rail_wait_for_one() {
    for by_sender in [true, false] {
        let mut world = World::new(SMALL, SMALL_ACK_NS, &[(40_000, 40_000)], &[stream(1, 1 << 20, SMALL_RING)]);
        world.run(&[(30, 0, Event::Cut { by_sender, heard_ns: 0, late_ns: 0 }), (40, 0, Event::Up)]);
        assert!(world.inwards[0].is_done());
    }
}

/// Rule 3 of `beeline_topo::stripe`: one of two rails hangs, early or late, and each of its pieces is a gap.
#[test]
fn a_rail_that_hangs_leaves_no_more_gaps_than_are_noted() {
    let tunables = Tunables { chunk: 512, pull_min: 512, ..SMALL };
    let gaps_if_at = |step: usize| {
        let streams = [stream(2, 1 << 20, SMALL_RING)];
        let mut world = World::new(tunables, SMALL_ACK_NS, &[(10_000, 10_000); 2], &streams);
        world.run(&[(step, 1, Event::Hang { ns: 10_000_000 })]);
        world.inwards[0].gaps_max
    };
    let gaps: Vec<usize> = (3..64).map(gaps_if_at).collect();
    assert!(gaps.iter().max().is_some_and(|most| (PIECES_MAX / 4..=PIECES_MAX).contains(most)), "{gaps:?}");
}

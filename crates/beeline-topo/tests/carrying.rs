//! The three parts of striping put together as a bridge does, on rails that fail and return, against a plain model: the
//! bytes themselves.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use beeline_topo::stripe::{Chunk, Ledger, PIECES_MAX, RailLife, Rates, Reorder, SAMPLE_BYTES};
use proptest::prelude::*;

const CHUNK: u64 = 64 << 10;
const RING: u64 = 4 << 20;

/// A chunk under way, with the time at which it is there.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    at_ns: u64,
    connection: usize,
    chunk: Chunk,
    on: RailLife,
}

/// One rail as it really is: it carries one chunk after the other at its own speed.
#[derive(Clone, Debug)]
struct Wire {
    bytes_per_s: u64,
    free_at_ns: u64,
    carried: u64,
    queue: Vec<UnderWay>,
}

struct Connection {
    ledger: Ledger,
    reorder: Reorder,
    /// How often each chunk-sized piece of the stream was accepted by the receiver.
    came: Vec<u8>,
    total: u64,
    offered: u64,
    rails: Vec<usize>,
    done_at_ns: u64,
}

impl Connection {
    fn new(total: u64, rails: &[usize]) -> Self {
        let mut connection = Self {
            ledger: Ledger::new(PIECES_MAX),
            reorder: Reorder::new(RING, PIECES_MAX),
            came: vec![0; usize::try_from(total).unwrap()],
            total,
            offered: 0,
            rails: rails.to_vec(),
            done_at_ns: 0,
        };
        connection.grant();
        connection
    }

    /// The receiver consumes at once what is complete, and so grants a ring's length above its prefix.
    fn grant(&mut self) {
        let until = self.total.min(self.reorder.prefix() + RING);
        self.ledger.offer(until - self.offered);
        self.offered = until;
    }

    fn receive(&mut self, chunk: Chunk) {
        self.reorder.insert(chunk.offset, chunk.bytes).unwrap();
        let range = usize::try_from(chunk.offset).unwrap()..usize::try_from(chunk.offset + chunk.bytes).unwrap();
        for byte in &mut self.came[range] {
            *byte += 1;
        }
        self.grant();
    }
}

/// What happens to a rail at a time.
#[derive(Clone, Copy, Debug)]
enum Event {
    Down,
    Up,
}

struct World {
    now_ns: u64,
    rates: Rates,
    wires: Vec<Wire>,
    /// Whose turn it is: one chunk each, as the bridge's hot connections have theirs.
    turn: usize,
    connections: Vec<Connection>,
    /// Lives that ended, until the receiver's word of it arrives.
    closing: Vec<(u64, RailLife)>,
}

impl World {
    /// Rails with the speed they claim and the speed they have, in Mb/s.
    fn new(rails: &[(u32, u32)], connections: Vec<Connection>) -> Self {
        let mut rates = Rates::new();
        let mut wires = Vec::new();
        for &(claimed, real) in rails {
            rates.add(claimed, 2 << 20);
            wires.push(Wire { bytes_per_s: u64::from(real) * 125_000, free_at_ns: 0, carried: 0, queue: Vec::new() });
        }
        Self { now_ns: 0, rates, wires, turn: 0, connections, closing: Vec::new() }
    }

    /// Hands out all that can be handed out now.
    fn send(&mut self) {
        let count = self.connections.len();
        let mut passed_over = 0;
        while passed_over < count {
            let index = self.turn % count;
            self.turn += 1;
            let connection = &self.connections[index];
            let head = connection.ledger.head(CHUNK);
            let Some(bytes) = head.filter(|bytes| self.rates.pick(&connection.rails, *bytes, self.now_ns).is_some())
            else {
                passed_over += 1;
                continue;
            };
            passed_over = 0;
            let connection = &mut self.connections[index];
            let on = self.rates.pick(&connection.rails, bytes, self.now_ns).unwrap();
            let chunk = connection.ledger.assign(on, CHUNK).unwrap();
            assert_eq!(chunk.bytes, bytes);
            self.rates.sent(on, bytes, self.now_ns);
            let wire = &mut self.wires[on.rail];
            wire.free_at_ns = wire.free_at_ns.max(self.now_ns) + bytes * 1_000_000_000 / wire.bytes_per_s;
            wire.queue.push(UnderWay { at_ns: wire.free_at_ns, connection: index, chunk, on });
        }
    }

    /// The next chunk to arrive, or the next word of a closed rail.
    fn next_at_ns(&self) -> Option<u64> {
        let arrivals = self.wires.iter().filter_map(|wire| wire.queue.first()).map(|first| first.at_ns);
        arrivals.chain(self.closing.iter().map(|(at_ns, _)| *at_ns)).min()
    }

    fn advance_to(&mut self, at_ns: u64) {
        self.now_ns = at_ns;
        for wire in &mut self.wires {
            while wire.queue.first().is_some_and(|first| first.at_ns <= at_ns) {
                let there = wire.queue.remove(0);
                wire.carried += there.chunk.bytes;
                let connection = &mut self.connections[there.connection];
                connection.receive(there.chunk);
                connection.ledger.acknowledge(there.chunk.offset, there.on).unwrap();
                self.rates.acknowledged(there.on, there.chunk.bytes, at_ns);
                if connection.ledger.complete() == connection.total {
                    connection.done_at_ns = at_ns;
                }
            }
        }
        let said: Vec<RailLife> = self.closing.extract_if(.., |(at, _)| *at <= at_ns).map(|(_, life)| life).collect();
        for life in said {
            for connection in &mut self.connections {
                let (prefix, above) = (connection.reorder.prefix(), connection.reorder.above().to_vec());
                connection.ledger.closed(life, prefix, &above).unwrap();
                assert_eq!(connection.ledger.bytes_on(life), 0);
                if connection.ledger.complete() == connection.total {
                    connection.done_at_ns = at_ns;
                }
            }
        }
    }

    /// What was under way is lost, but for `arrives` chunks: they came, and their acknowledgement is lost.
    fn fail(&mut self, rail: usize, arrives: usize) {
        let Some(life) = self.rates.life(rail) else { return };
        self.rates.down(rail);
        let lost = std::mem::take(&mut self.wires[rail].queue);
        for there in lost.iter().take(arrives) {
            self.connections[there.connection].receive(there.chunk);
        }
        self.wires[rail].free_at_ns = 0;
        self.closing.push((self.now_ns + 100_000, life));
    }

    fn bring_up(&mut self, rail: usize) {
        self.rates.up(rail).unwrap();
    }

    /// Until everything is there, with events on rails when so many chunks have arrived.
    fn run(&mut self, events: &[(usize, usize, Event, usize)]) {
        let mut events = events.to_vec();
        events.sort_by_key(|(step, ..)| *step);
        let mut events = events.into_iter().peekable();
        for step in 0.. {
            while let Some((_, rail, event, arrives)) = events.next_if(|(at, ..)| *at <= step) {
                match event {
                    Event::Down => self.fail(rail, arrives),
                    Event::Up => self.bring_up(rail),
                }
            }
            self.send();
            match self.next_at_ns() {
                Some(at_ns) => self.advance_to(at_ns),
                None if self.connections.iter().all(|connection| connection.ledger.is_complete()) => break,
                // Everything waits for a rail.
                None => match events.next() {
                    Some((_, rail, Event::Up, _)) => self.bring_up(rail),
                    Some(_) => {}
                    None => (0..self.wires.len()).for_each(|rail| self.bring_up(rail)),
                },
            }
        }
    }

    fn assert_all_came_once(&self) {
        for connection in &self.connections {
            assert_eq!((connection.reorder.prefix(), connection.reorder.above()), (connection.total, &[][..]));
            assert!(connection.came.iter().all(|&times| times == 1));
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![Just(Event::Down), Just(Event::Up)]
}

proptest! {
    #[test]
    fn no_byte_is_lost_or_doubled_whatever_the_rails_do(
        rails in proptest::collection::vec((1_000_u32..100_000, 1_000_u32..100_000), 1..5),
        totals in proptest::collection::vec(1_u64..1_000_000, 1..5),
        events in proptest::collection::vec((0_usize..60, 0_usize..4, event(), 0_usize..4), 0..24),
        subset in any::<u16>(),
    ) {
        let all: Vec<usize> = (0..rails.len()).collect();
        let connections = totals.iter().enumerate().map(|(index, &total)| {
            let bits = usize::from(subset) >> (index * 4);
            let some: Vec<usize> = all.iter().copied().filter(|rail| bits >> rail & 1 == 1).collect();
            Connection::new(total, if some.is_empty() { &all } else { &some })
        });
        let mut world = World::new(&rails, connections.collect());
        let events: Vec<_> = events.into_iter().map(|(step, rail, event, n)| (step, rail % rails.len(), event, n)).collect();
        world.run(&events);
        world.assert_all_came_once();
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn shares_follow_what_the_rails_really_do(
        real in proptest::collection::vec(10_000_u32..100_000, 2..4),
        claimed in 10_000_u32..100_000,
    ) {
        // Each rail claims the same, so only measuring can find out.
        let rails: Vec<(u32, u32)> = real.iter().map(|&real| (claimed, real)).collect();
        let all: Vec<usize> = (0..rails.len()).collect();
        let total = 64 << 20;
        let mut world = World::new(&rails, vec![Connection::new(total, &all)]);
        world.run(&[]);
        world.assert_all_came_once();
        let sum: u64 = real.iter().map(|&real| u64::from(real)).sum();
        for (wire, &real) in world.wires.iter().zip(&real) {
            let fair = total * u64::from(real) / sum;
            prop_assert!(wire.carried.abs_diff(fair) < total / 12, "{} for {fair}: {rails:?}", wire.carried);
        }
        // And all of it is there hardly later than an ideal division would have it, once the slowest is measured.
        let ideal_ns = total * 8_000 / sum;
        let measured_ns = SAMPLE_BYTES * 8_000 / u64::from(*real.iter().min().unwrap());
        prop_assert!(world.now_ns < ideal_ns * 5 / 4 + measured_ns, "{} for {ideal_ns}: {rails:?}", world.now_ns);
    }

    #[test]
    fn connections_of_a_rail_get_the_same(count in 2_usize..6) {
        let mut world = World::new(&[(10_000, 10_000)], (0..count).map(|_| Connection::new(4 << 20, &[0])).collect());
        world.run(&[]);
        world.assert_all_came_once();
        let done = world.connections.iter().map(|connection| connection.done_at_ns);
        let (first, last) = (done.clone().min().unwrap(), done.max().unwrap());
        // They end within a round of chunks of each other.
        let round_ns = u64::try_from(count).unwrap() * CHUNK * 1_000_000_000 / world.wires[0].bytes_per_s;
        prop_assert!(last - first <= 2 * round_ns, "{first} {last}");
    }
}

#[test]
fn a_rail_that_returns_takes_its_share_again() {
    let mut world = World::new(&[(40_000, 40_000), (40_000, 40_000)], vec![Connection::new(32 << 20, &[0, 1])]);
    world.run(&[(100, 1, Event::Down, 2), (200, 1, Event::Up, 0)]);
    world.assert_all_came_once();
    // 100 of 512 chunks went over the other rail alone.
    assert!(world.wires[1].carried > 11 << 20, "{}", world.wires[1].carried);
    assert!(world.wires[1].carried < 16 << 20, "{}", world.wires[1].carried);
}

#[test]
fn hosts_without_a_rail_wait_for_one() {
    let mut world = World::new(&[(40_000, 40_000)], vec![Connection::new(8 << 20, &[0])]);
    world.run(&[(10, 0, Event::Down, 0), (20, 0, Event::Up, 0)]);
    world.assert_all_came_once();
}

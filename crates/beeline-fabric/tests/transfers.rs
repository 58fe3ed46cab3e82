//! Messages, writes and reads.

mod common;

use std::time::{Duration, Instant};

use beeline_fabric::{Access, Completion, Error, Flags, Kind, Options, Posted, Slice};
use beeline_testkit::rng::{Hash, Rng, fill_stream};
use common::{Pair, Side, all, iwarp, join, patience, taken, until};

fn hash(bytes: &[u8]) -> u64 {
    Hash::of(bytes).0
}

#[test]
fn ten_thousand_messages_arrive_in_order_and_whole() {
    const COUNT: u64 = 10_000;
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let bytes_max = pair.a.rail.options().message_bytes;
    // Injected, buffered and longest ones.
    let length = |number: u64| [8, 100, 129, 1000, bytes_max][(number % 5) as usize];
    let (mut sent, mut received, mut completed) = (0, 0, 0);
    let message = |number: u64| {
        let mut message = vec![number as u8; length(number)];
        message[..8].copy_from_slice(&number.to_le_bytes());
        message
    };
    let ahead = if iwarp() { pair.b.rail.options().receives as u64 } else { COUNT };
    pair.until("all messages", |a, b| {
        while sent < COUNT.min(received + ahead) && a.rail.send(to_b, &message(sent), sent).unwrap() == Posted::Taken {
            sent += 1;
        }
        while let Some(came) = b.take_message() {
            assert_eq!(came.bytes(), message(received), "message {received}");
            received += 1;
            b.rail.recycle(came).unwrap();
        }
        for completion in a.completions.drain(..) {
            let Completion::Done { kind: Kind::Send, context, .. } = completion else { panic!("{completion:?}") };
            assert_eq!(context, completed);
            completed += 1;
        }
        (received == COUNT && completed == COUNT).then_some(())
    });
}

#[test]
fn a_message_after_a_write_finds_the_written_bytes() {
    const BYTES: usize = 1 << 20;
    let mut pair = Pair::new();
    let (to_b, mut rng) = (pair.to_b, Rng::new(1));
    let (source, local) = pair.a.region(BYTES, Access::SOURCE);
    let (target, placed) = pair.b.region(BYTES, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    let mut bytes = vec![0; BYTES];
    for round in 0..40 {
        let length = 1 + rng.below(BYTES);
        let offset = rng.below(BYTES - length + 1);
        fill_stream(round, 0, &mut bytes[..length]);
        local.copy_in(offset, &bytes[..length]);
        let from = Slice { region: source, offset, bytes: length };
        taken(pair.a.rail.write(to_b, from, remote.at(offset as u64), 2 * round, Flags::MORE));
        taken(pair.a.rail.send(to_b, &hash(&bytes[..length]).to_le_bytes(), 2 * round + 1));
        let message = pair.until("the message", |_, b| b.take_message());
        let mut there = vec![0; length];
        placed.copy_out(offset, &mut there);
        assert_eq!(message.bytes(), hash(&there).to_le_bytes(), "round {round}");
        pair.b.rail.recycle(message).unwrap();
        assert!(pair.until("the write", |a, _| a.take_done(2 * round)));
        assert!(pair.until("the send", |a, _| a.take_done(2 * round + 1)));
    }
}

#[test]
fn a_read_brings_the_peers_bytes() {
    const BYTES: usize = 300_000;
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (target, placed) = pair.a.region(BYTES, Access::TARGET);
    let (source, theirs) = pair.b.region(BYTES, Access::REMOTE_READ);
    let remote = pair.b.remote(source);
    for (round, length) in [1, 4096, BYTES].into_iter().enumerate() {
        let mut bytes = vec![0; length];
        fill_stream(2, 0, &mut bytes);
        theirs.copy_in(BYTES - length, &bytes);
        let at = remote.at((BYTES - length) as u64);
        taken(pair.a.rail.read(to_b, all(target, length), at, round as u64, Flags::empty()));
        assert!(pair.until("the read", |a, _| a.take_done(round as u64)));
        let mut got = vec![0; length];
        placed.copy_out(0, &mut got);
        assert_eq!(hash(&got), hash(&bytes));
    }
}

/// Soft-iWARP completes them in another order than they were posted in.
#[test]
fn reads_and_messages_at_once_complete_each_once() {
    const COUNT: u64 = 600;
    const BYTES: usize = 64 << 10;
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (here, local) = pair.a.region(BYTES, Access::TARGET);
    let (there, source) = pair.b.region(BYTES, Access::REMOTE_READ);
    let remote = pair.b.remote(there);
    let mut bytes = vec![0; BYTES];
    fill_stream(3, 0, &mut bytes);
    source.copy_in(0, &bytes);
    let (mut posted, mut received) = (0, 0);
    let mut completed = vec![0; COUNT as usize];
    pair.until("all of them", |a, b| {
        while posted < COUNT.min(received * 2 + 64) {
            let taken = match posted % 2 {
                0 => a.rail.read(to_b, all(here, BYTES), remote, posted, Flags::empty()),
                _ => a.rail.send(to_b, &posted.to_le_bytes(), posted),
            };
            if taken.unwrap() == Posted::Full {
                break;
            }
            posted += 1;
        }
        while let Some(came) = b.take_message() {
            assert_eq!(came.bytes(), (2 * received + 1).to_le_bytes());
            received += 1;
            b.rail.recycle(came).unwrap();
        }
        for completion in a.completions.drain(..) {
            let Completion::Done { context, .. } = completion else { panic!("{completion:?}") };
            completed[context as usize] += 1;
        }
        completed.iter().all(|&count| count == 1).then_some(())
    });
    let mut got = vec![0; BYTES];
    local.copy_out(0, &mut got);
    assert!(got == bytes);
}

#[test]
fn flags_are_taken_by_every_provider() {
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (source, local) = pair.a.region(64, Access::SOURCE | Access::TARGET);
    let (target, placed) = pair.b.region(64, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let remote = pair.b.remote(target);
    local.copy_in(0, b"fenced");
    if iwarp() {
        let error = pair.a.rail.write(to_b, all(source, 6), remote, 0, Flags::DELIVERED).unwrap_err();
        assert!(matches!(error, Error::DeliveryUnknown { .. }), "{error}");
        taken(pair.a.rail.write(to_b, all(source, 6), remote, 0, Flags::empty()));
        taken(pair.a.rail.send(to_b, b"written", 2));
        pair.until("word of it", |_, b| b.take_message().map(|_| ()));
    } else {
        taken(pair.a.rail.write(to_b, all(source, 6), remote, 0, Flags::DELIVERED));
    }
    assert!(pair.until("the write", |a, _| a.take_done(0)));
    let mut there = [0; 6];
    placed.copy_out(0, &mut there);
    assert_eq!(&there, b"fenced", "delivered means that it is there");
    taken(pair.a.rail.read(to_b, all(source, 6), remote, 1, Flags::FENCE));
    assert!(pair.until("the read", |a, _| a.take_done(1)));
}

#[test]
fn what_does_not_fit_is_an_error_before_the_provider_hears_of_it() {
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (region, _) = pair.a.region(100, Access::SOURCE);
    let (theirs, _) = pair.b.region(100, Access::REMOTE_WRITE);
    let remote = pair.b.remote(theirs);
    let a = &mut pair.a.rail;
    for slice in [(1, 100), (101, 0), (usize::MAX, 2)].map(|(offset, bytes)| Slice { region, offset, bytes }) {
        let error = a.write(to_b, slice, remote, 0, Flags::empty()).unwrap_err();
        assert!(matches!(error, Error::OutOfRegion { region_bytes: 100, .. }), "{error}");
    }
    let error = a.read(to_b, all(region, 1), remote, 0, Flags::empty()).unwrap_err();
    assert!(matches!(error, Error::AccessMissing { .. }), "{error}");
    let error = a.send(to_b, &[0; 4097], 0).unwrap_err();
    assert!(matches!(error, Error::MessageTooLong { bytes: 4097, bytes_max: 4096, .. }), "{error}");
    a.close_region(region).unwrap();
    let error = a.write(to_b, all(region, 1), remote, 0, Flags::empty()).unwrap_err();
    assert!(matches!(error, Error::RegionGone { .. }), "{error}");
    assert!(matches!(a.remote(region), Err(Error::RegionGone { .. })));
}

#[test]
fn a_full_queue_says_full_and_goes_on_when_it_is_polled() {
    let receives = if iwarp() { 16 } else { 4 };
    let options = Options { receives, sends: 8, operations: 16, message_bytes: 65_536, ..Options::default() };
    let ahead = if iwarp() { receives as u64 } else { u64::MAX };
    let mut pair = Pair::with(options);
    let to_b = pair.to_b;
    let message = vec![5; 65_536];
    let mut sent = 0;
    // Nobody looks at b: its receives are used up where they can be, then the sends stand still.
    while pair.a.rail.send(to_b, &message, sent).unwrap() == Posted::Taken {
        sent += 1;
        assert!(sent <= 16);
    }
    assert_eq!(sent, 8, "as many as there are buffers");
    let total = 200;
    let mut received = 0_u64;
    pair.until("all messages", |a, b| {
        while sent < total.min(received.saturating_add(ahead))
            && a.rail.send(to_b, &message, sent).unwrap() == Posted::Taken
        {
            sent += 1;
        }
        a.completions.clear();
        while let Some(came) = b.take_message() {
            assert_eq!(came.bytes().len(), message.len());
            received += 1;
            b.rail.recycle(came).unwrap();
        }
        (received == total).then_some(())
    });
}

#[test]
fn writes_in_flight_are_bounded_by_the_options_and_leave_places_to_messages() {
    let options = Options { operations: 8, sends: 3, ..Options::default() };
    let mut pair = Pair::with(options);
    let to_b = pair.to_b;
    let (source, _) = pair.a.region(8, Access::SOURCE);
    let (target, _) = pair.b.region(8, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    let count = (0..100)
        .take_while(|&i| pair.a.rail.write(to_b, all(source, 8), remote, i, Flags::empty()) == Ok(Posted::Taken))
        .count();
    assert_eq!(count, 5);
    for context in 5..8 {
        taken(pair.a.rail.send(to_b, b"written", context));
    }
    assert_eq!(pair.a.rail.send(to_b, b"written", 8), Ok(Posted::Full));
    for context in 0..8 {
        assert!(pair.until("a write or a message", |a, _| a.take_done(context)));
    }
    taken(pair.a.rail.write(to_b, all(source, 8), remote, 9, Flags::empty()));
}

#[test]
fn many_endpoints_share_one_completion_queue() {
    // Soft-iWARP gives one process about eight queue pairs (`rdma_create_qp`: EAGAIN).
    let ends_max = if iwarp() { 3 } else { 40 };
    let options = Options { receives: 8, sends: 8, operations: 16, ..Options::default() };
    let mut pair = Pair::with(options);
    let to = pair.b.rail.listening_on().unwrap();
    let mut ends = vec![(pair.to_b, pair.to_a)];
    while ends.len() < ends_max {
        ends.push(join(&mut pair.a, &mut pair.b, to));
    }
    for round in 0..20_u64 {
        for (index, &(to_b, to_a)) in ends.iter().enumerate() {
            let number = round * ends_max as u64 + index as u64;
            taken(pair.a.rail.send(to_b, &number.to_le_bytes(), number));
            taken(pair.b.rail.send(to_a, &number.to_le_bytes(), number));
        }
        let (mut at_a, mut at_b, mut sent) = (0, 0, 0);
        pair.until("a round", |a, b| {
            for (side, count, other) in [(a, &mut at_a, false), (b, &mut at_b, true)] {
                for completion in std::mem::take(&mut side.completions) {
                    match completion {
                        Completion::Received { endpoint, message } => {
                            let number = u64::from_le_bytes(message.bytes().try_into().unwrap());
                            let (to_b, to_a) = ends[number as usize % ends_max];
                            assert_eq!(endpoint, if other { to_a } else { to_b }, "number {number}");
                            assert_eq!(number / ends_max as u64, round);
                            *count += 1;
                            side.rail.recycle(message).unwrap();
                        }
                        Completion::Done { .. } => sent += 1,
                        failed @ Completion::Failed { .. } => panic!("{failed:?}"),
                    }
                }
            }
            (at_a == ends_max && at_b == ends_max && sent == 2 * ends_max).then_some(())
        });
    }
}

/// Both sides sleep on their fds between messages; a lost event would sleep until the time is up.
#[test]
fn nothing_is_missed_by_two_sides_that_sleep() {
    const ROUNDS: u64 = 2_000;
    let Pair { mut a, mut b, to_b, to_a } = Pair::new();
    let far = std::thread::spawn(move || {
        answer_asleep(&mut b, to_a, ROUNDS);
        b
    });
    let began = Instant::now();
    for round in 0..ROUNDS {
        taken(a.rail.send(to_b, &round.to_le_bytes(), round));
        let message = next_asleep(&mut a);
        assert_eq!(message.bytes(), round.to_le_bytes());
        a.rail.recycle(message).unwrap();
        a.completions.clear();
        assert!(began.elapsed() < patience() * 3, "round {round} after {:?}", began.elapsed());
    }
    drop(far.join().unwrap());
}

fn answer_asleep(side: &mut common::Side, to: beeline_fabric::EndpointId, rounds: u64) {
    for round in 0..rounds {
        let message = next_asleep(side);
        assert_eq!(message.bytes(), round.to_le_bytes());
        side.rail.recycle(message).unwrap();
        taken(side.rail.send(to, &round.to_le_bytes(), round));
        side.completions.retain(|completion| matches!(completion, Completion::Received { .. }));
    }
    // The last answer must be out before the endpoint goes.
    while side.completions.is_empty() {
        side.look();
    }
}

fn next_asleep(side: &mut common::Side) -> beeline_fabric::Message {
    loop {
        side.look();
        if let Some(message) = side.take_message() {
            return message;
        }
        let asleep = Instant::now();
        side.sleep(patience());
        assert!(asleep.elapsed() < patience().saturating_sub(Duration::from_secs(1)), "slept over an event");
    }
}

#[test]
fn an_endpoint_whose_peer_hangs_keeps_no_other_from_sending() {
    const OWN: usize = 4;
    const SHARED: usize = 8;
    let (ends, receives) = (3, 16);
    let completion_entries = ends * (receives + OWN) + SHARED;
    let options = Options { receives, operations_own: OWN, completion_entries, ..Options::default() };
    let (mut a, mut b) = (Side::new(options), Side::new(Options::default()));
    let address = b.rail.listen(0).unwrap();
    let to_b: Vec<_> = (0..ends).map(|_| join(&mut a, &mut b, address).0).collect();
    // What nobody polls is never done.
    let fill =
        |a: &mut Side, end: usize| (0..64).take_while(|_| a.rail.send(to_b[end], b"x", 1) == Ok(Posted::Taken)).count();
    assert_eq!([0, 1, 2].map(|end| fill(&mut a, end)), [OWN / 2 + SHARED, OWN / 2, OWN / 2]);
    let mut done = 0;
    until(&mut a, &mut b, "all of them", |a, _| {
        done += (0..64).take_while(|_| a.take_done(1).is_some()).count();
        (done == 3 * (OWN / 2) + SHARED).then_some(())
    });
    // One that ends leaves its part of the queue to the others.
    assert_eq!(fill(&mut a, 0), OWN / 2 + SHARED);
    a.rail.close(to_b[0]).unwrap();
    assert_eq!(fill(&mut a, 1), OWN / 2 + SHARED + receives + OWN);
}

#[test]
fn writes_that_fill_the_queue_keep_no_message_back() {
    const OWN: usize = 4;
    const SHARED: usize = 8;
    let (ends, receives) = (2, 16);
    let completion_entries = ends * (receives + OWN) + SHARED;
    let options = Options { receives, operations_own: OWN, completion_entries, ..Options::default() };
    let (mut a, mut b) = (Side::new(options), Side::new(Options::default()));
    let address = b.rail.listen(0).unwrap();
    let to_b: Vec<_> = (0..ends).map(|_| join(&mut a, &mut b, address).0).collect();
    let (source, _) = a.region(8, Access::SOURCE);
    let (target, _) = b.region(8, Access::REMOTE_WRITE);
    let remote = b.remote(target);
    let count = |a: &mut Side, end: usize| {
        let write = |a: &mut Side| a.rail.write(to_b[end], all(source, 8), remote, 1, Flags::empty());
        (0..64).take_while(|_| write(a) == Ok(Posted::Taken)).count()
    };
    assert_eq!([0, 1].map(|end| count(&mut a, end)), [OWN / 2 + SHARED, OWN / 2]);
    for &end in &to_b {
        let sent = (0..64).take_while(|_| a.rail.send(end, b"x", 1) == Ok(Posted::Taken)).count();
        assert_eq!(sent, OWN / 2);
    }
    let mut done = 0;
    until(&mut a, &mut b, "all of them", |a, _| {
        done += (0..64).take_while(|_| a.take_done(1).is_some()).count();
        (done == 4 * (OWN / 2) + SHARED).then_some(())
    });
    assert_eq!(count(&mut a, 1), OWN / 2 + SHARED);
}

//! Peers that die, endpoints that close with work in flight, keys that are taken away: what may still touch memory.

mod common;

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};

use beeline_fabric::{Access, Completion, Event, Flags, Mapping, Memory, Options, Posted, Remote, Slice};
use common::{Pair, Side, all, iwarp, provider, taken};

/// Long enough that a socket's buffers cannot hold it, if the provider takes so much at once.
fn long() -> usize {
    common::port().operation_bytes_max.min(16 << 20)
}

/// What has a write tell as soon as anything can that it did not come. Over iWARP that is the end of the connection.
fn told() -> Flags {
    if iwarp() { Flags::empty() } else { Flags::DELIVERED }
}

fn snapshot(memory: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    memory.copy_out(0, &mut bytes);
    bytes
}

/// What a second process does: connects to the address in the environment, and writes to the place that it is given
/// in the answer until it is killed. Does nothing when it is run as a test.
#[test]
fn the_other_process() {
    let Ok(to) = env::var("BEELINE_FABRIC_CHILD") else { return };
    let mut side = Side::new(Options::default());
    let to_parent = side.rail.connect(to.parse().unwrap(), b"child").unwrap();
    let data = loop {
        side.look();
        if let Some((_, data)) = side.take_connected() {
            break data;
        }
    };
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let remote = Remote { address: number(0), key: number(8) };
    let (source, local) = side.region(1 << 20, Access::SOURCE);
    for round in 0_u64.. {
        local.copy_in(0, &round.to_le_bytes());
        while side.rail.write(to_parent, all(source, 1 << 20), remote, round, Flags::empty()) == Ok(Posted::Full) {
            side.look();
        }
        side.look();
        side.completions.clear();
    }
}

/// Starts the process above and accepts it, with memory for it to write to.
fn accept_child(side: &mut Side, remote: Remote) -> (Child, beeline_fabric::EndpointId) {
    let to = side.rail.listen(0).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture"])
        .env("BEELINE_FABRIC_CHILD", to.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut other = Side::new(Options::default());
    let request = common::until(side, &mut other, "the child", |side, _| side.take_request());
    let mut answer = remote.address.to_le_bytes().to_vec();
    answer.extend(remote.key.to_le_bytes());
    let endpoint = side.rail.accept(request, &answer).unwrap();
    common::until(side, &mut other, "the child's connection", |side, _| side.take_connected());
    (child, endpoint)
}

#[test]
fn a_peer_killed_while_it_writes_brings_the_endpoint_down_and_leaves_the_memory_alone() {
    let mut side = Side::new(Options::default());
    let (region, memory) = side.region(1 << 20, Access::REMOTE_WRITE);
    let remote = side.remote(region);
    let (mut child, endpoint) = accept_child(&mut side, remote);
    let mut nobody = Side::new(Options::default());
    let first_bytes = |memory: &Mapping| u64::from_le_bytes(snapshot(memory)[..8].try_into().unwrap());
    common::until(&mut side, &mut nobody, "some writes", |_, _| (first_bytes(&memory) > 20).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    common::until(&mut side, &mut nobody, "down", |side, _| side.is_down(endpoint).then_some(()));
    side.rail.close_region(region).unwrap();
    side.rail.close(endpoint).unwrap();
    common::until(&mut side, &mut nobody, "closed", |side, _| side.is_region_closed(region).then_some(()));
    assert_eq!(Arc::strong_count(&memory), 1, "the rail has let the memory go");
}

#[test]
fn a_peer_stopped_in_the_middle_of_a_write_cannot_go_on_once_its_endpoint_is_closed() {
    let mut side = Side::new(Options::default());
    let (region, memory) = side.region(1 << 20, Access::REMOTE_WRITE);
    let remote = side.remote(region);
    let (mut child, endpoint) = accept_child(&mut side, remote);
    let mut nobody = Side::new(Options::default());
    common::until(&mut side, &mut nobody, "a write", |_, _| (snapshot(&memory)[0] > 5).then_some(()));
    side.rail.close(endpoint).unwrap();
    side.rail.close_region(region).unwrap();
    common::until(&mut side, &mut nobody, "closed", |side, _| side.is_region_closed(region).then_some(()));
    let before = snapshot(&memory);
    for _ in 0..2_000 {
        side.look();
    }
    assert!(snapshot(&memory) == before, "written after the region was closed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_key_that_was_taken_away_ends_the_writers_connection_and_nothing_is_written() {
    let mut pair = Pair::new();
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    let (source, local) = pair.a.region(4096, Access::SOURCE);
    let (target, placed) = pair.b.region(4096, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    local.copy_in(0, &[1; 4096]);
    taken(pair.a.rail.write(to_b, all(source, 4096), remote, 1, Flags::empty()));
    assert!(pair.until("a good write", |a, _| a.take_done(1)));
    pair.b.rail.close_region(target).unwrap();
    let before = snapshot(&placed);
    local.copy_in(0, &[2; 4096]);
    taken(pair.a.rail.write(to_b, all(source, 4096), remote, 2, told()));
    assert!(!pair.until("a failed write", |a, _| a.take_done(2)) || iwarp());
    pair.until("down", |a, _| a.is_down(to_b).then_some(()));
    assert!(snapshot(&placed) == before, "written with a key that was taken away");
    // Hardware tells only the writer; its peer hears of it when the writer closes.
    pair.a.rail.close(to_b).unwrap();
    pair.until("down there", |_, b| b.is_down(to_a).then_some(()));
    pair.b.rail.close(to_a).unwrap();
    pair.until("free", |_, b| b.is_region_closed(target).then_some(()));
}

#[test]
fn writes_beyond_a_region_or_without_the_right_end_the_writers_connection() {
    for (access, offset) in [(Access::REMOTE_WRITE, 1), (Access::REMOTE_READ, 0)] {
        let mut pair = Pair::new();
        let to_b = pair.to_b;
        let (source, local) = pair.a.region(4096, Access::SOURCE);
        let (target, placed) = pair.b.region(4096, access);
        let remote = pair.b.remote(target).at(offset);
        local.copy_in(0, &[1; 4096]);
        taken(pair.a.rail.write(to_b, all(source, 4096), remote, 1, told()));
        assert!(!pair.until("a failed write", |a, _| a.take_done(1)) || iwarp());
        pair.until("down", |a, _| a.is_down(to_b).then_some(()));
        assert!(snapshot(&placed).iter().all(|&byte| byte == 0), "written against {access:?}");
    }
}

#[test]
fn a_message_that_is_too_long_for_its_receiver_ends_the_connection() {
    let (mut a, mut b) =
        (Side::new(Options::default()), Side::new(Options { message_bytes: 512, ..Options::default() }));
    let to = b.rail.listen(0).unwrap();
    let (to_b, to_a) = common::join(&mut a, &mut b, to);
    taken(a.rail.send(to_b, &[1; 4000], 1));
    common::until(&mut a, &mut b, "down", |_, b| b.is_down(to_a).then_some(()));
    assert!(b.take_message().is_none());
    b.rail.close(to_a).unwrap();
    common::until(&mut a, &mut b, "down there", |a, _| a.is_down(to_b).then_some(()));
}

#[test]
fn memory_is_free_only_when_a_write_that_was_half_done_is_over() {
    let long = long();
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (source, local) = pair.a.region(long, Access::SOURCE);
    let (target, placed) = pair.b.region(long, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    local.copy_in(0, &vec![7; long]);
    taken(pair.a.rail.write(to_b, all(source, long), remote, 1, Flags::empty()));
    pair.until("the first bytes", |_, _| {
        let mut byte = [0];
        placed.copy_out(0, &mut byte);
        (byte[0] == 7).then_some(())
    });
    pair.b.rail.close_region(target).unwrap();
    let weak: Weak<Mapping> = Arc::downgrade(&placed);
    drop(placed);
    if provider() == "tcp" {
        // The half that is under way still lands, so the memory must still be there.
        pair.b.look();
        assert!(!pair.b.is_region_closed(target) && weak.upgrade().is_some());
        assert_eq!(pair.b.rail.regions_closing(), 1);
        assert!(pair.until("the write", |a, _| a.take_done(1)));
        taken(pair.a.rail.send(to_b, b"that was all", 2));
    }
    pair.until("free", |_, b| b.is_region_closed(target).then_some(()));
    assert!(weak.upgrade().is_none() && pair.b.rail.regions_closing() == 0);
}

#[test]
fn memory_that_a_peer_reads_is_free_only_when_the_answer_is_out() {
    let long = long();
    let mut pair = Pair::new();
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    let (target, _placed) = pair.a.region(long, Access::TARGET);
    let (source, theirs) = pair.b.region(long, Access::REMOTE_READ);
    let remote = pair.b.remote(source);
    taken(pair.a.rail.read(to_b, all(target, long), remote, 1, Flags::empty()));
    let weak = Arc::downgrade(&theirs);
    drop(theirs);
    // One side only: the answer cannot get far.
    for _ in 0..50 {
        pair.b.look();
    }
    pair.b.rail.close_region(source).unwrap();
    taken(pair.b.rail.send(to_a, b"closed it", 2));
    for _ in 0..50 {
        pair.b.look();
    }
    if provider() == "tcp" {
        assert!(!pair.b.is_region_closed(source) && weak.upgrade().is_some());
    }
    pair.until("free", |_, b| b.is_region_closed(source).then_some(()));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_region_waits_for_our_own_operations_before_it_closes() {
    let long = long();
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (source, local) = pair.a.region(long, Access::SOURCE);
    let (target, placed) = pair.b.region(long, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    local.copy_in(long - 1, &[3]);
    taken(pair.a.rail.write(to_b, all(source, long), remote, 1, told()));
    pair.a.rail.close_region(source).unwrap();
    assert!(!pair.a.is_region_closed(source));
    assert!(pair.until("the write", |a, _| a.take_done(1)), "closing a region spoils no operation");
    pair.until("free", |a, _| a.is_region_closed(source).then_some(()));
    taken(pair.a.rail.send(to_b, b"written", 2));
    pair.until("word of it", |_, b| b.take_message().map(|_| ()));
    assert_eq!(snapshot(&placed)[long - 1], 3);
}

#[test]
fn closing_an_endpoint_gives_up_what_is_in_flight_and_tells_of_each() {
    let long = long();
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (source, _local) = pair.a.region(long, Access::SOURCE);
    let (target, _placed) = pair.b.region(long, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    for context in 0..3 {
        taken(pair.a.rail.write(to_b, all(source, long), remote, context, Flags::empty()));
    }
    taken(pair.a.rail.send(to_b, &[1; 1000], 3));
    pair.a.rail.close(to_b).unwrap();
    pair.a.look();
    let mut told: Vec<u64> = Vec::new();
    for completion in pair.a.completions.drain(..) {
        match completion {
            Completion::Done { context, .. } => told.push(context),
            Completion::Failed { context, failure, .. } => {
                assert!(failure.is_cancelled(), "{failure}");
                told.push(context);
            }
            other @ Completion::Received { .. } => panic!("{other:?}"),
        }
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3]);
    pair.a.rail.close_region(source).unwrap();
    pair.until("free", |a, _| a.is_region_closed(source).then_some(()));
}

#[test]
fn a_message_outlives_its_endpoint() {
    let mut pair = Pair::new();
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    taken(pair.a.rail.send(to_b, b"last words", 1));
    let message = pair.until("the message", |_, b| b.take_message());
    pair.b.rail.close(to_a).unwrap();
    assert_eq!(message.bytes(), b"last words");
    pair.b.rail.recycle(message).unwrap();
}

#[test]
fn what_a_peer_said_before_it_closed_can_be_read_after_down() {
    let mut pair = Pair::new();
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    for number in 0..10_u64 {
        taken(pair.a.rail.send(to_b, &[number as u8; 500], number));
    }
    for number in 0..10 {
        assert!(pair.until("a send", |a, _| a.take_done(number)));
    }
    pair.a.rail.close(to_b).unwrap();
    pair.until("down", |_, b| b.is_down(to_a).then_some(()));
    pair.b.look();
    for number in 0..10 {
        let message = pair.b.take_message().expect("ten messages");
        assert_eq!(message.bytes(), [number; 500]);
        pair.b.rail.recycle(message).unwrap();
    }
}

#[test]
fn a_rail_that_is_dropped_lets_everything_go() {
    let long = long();
    let mut pair = Pair::new();
    let to_b = pair.to_b;
    let (source, local) = pair.a.region(long, Access::SOURCE);
    let (target, placed) = pair.b.region(long, Access::REMOTE_WRITE);
    let remote = pair.b.remote(target);
    taken(pair.a.rail.write(to_b, Slice { region: source, offset: 0, bytes: long }, remote, 1, Flags::empty()));
    let Pair { a, b, to_a, .. } = pair;
    drop(a);
    assert_eq!(Arc::strong_count(&local), 1);
    let mut nobody = Side::new(Options::default());
    let mut b = b;
    common::until(&mut b, &mut nobody, "down", |b, _| b.is_down(to_a).then_some(()));
    assert!(b.events.iter().all(|event| !matches!(event, Event::Refused { .. })));
    drop(b);
    assert_eq!(Arc::strong_count(&placed), 1);
}
